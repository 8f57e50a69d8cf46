/*
 * seed_fprop.cu - fprop of the seed networks. One kernel computes convolution, bias, ReLU, max-pool
 * and the fc product. A second kernel computes logits and loss.
 *
 * With exact_conv.cuh a thread holds four features of a position: filter lane / 4 for images 2t, 2t
 * + 1, 2t + 8 and 2t + 9 of a group of sixteen (t = lane % 4). The argmax of each feature takes two
 * bits; the four argmax are in this order from the lowest bit on. Each position and filter has one
 * 32-bit word of argmax bits for the sixteen images of a group; the eight bits of this thread are
 * byte t of the word.
 */
#include "kernels/cuda/fused/seed_half.cuh"

namespace
{

#define FPROP_WARPS   8
#define FPROP_THREADS (FPROP_WARPS * 32)

/* ---- fragments ------------------------------------------------------------------------------- */

__global__ void seed_fragments_kernel(struct kx_seed s)
{
	const size_t n = (size_t)s.f_pad / 8 * 2 * 32 * 4;

	FOR_EACH (i, n)
		seed_fragment(s, (int)(i / 256), s.params.conv + i / 256 * 8 * SEED_ROW, i % 256);
}

__global__ void seed_pack_kernel(struct kx_seed s, const float *manifest)
{
	const float *fc = manifest + (size_t)s.f * SEED_ROW_USED;
	const float *bias = fc + (size_t)s.f * SEED_POSITIONS * SEED_CLASSES;

	FOR_EACH (i, (size_t)SEED_POSITIONS * s.f_pad * SEED_ROW) {
		int c = (int)(i % SEED_ROW), f = (int)(i / SEED_ROW % s.f_pad);
		int p = (int)(i / SEED_ROW / s.f_pad);
		bool real = c < SEED_CLASSES && f < s.f;

		s.params.fc[i] = real ? fc[((size_t)c * s.f + f) * SEED_POSITIONS + p] : 0;
	}
	FOR_EACH (i, (size_t)s.f_pad * SEED_ROW) {
		int k = (int)(i % SEED_ROW), f = (int)(i / SEED_ROW);

		s.params.conv[i] =
			f < s.f && k < SEED_ROW_USED ? manifest[seed_conv_at(s, f, k)] : 0;
	}
	FOR_EACH (i, SEED_ROW)
		s.params.bias[i] = i < SEED_CLASSES ? bias[i] : 0;
}

/* ---- fprop ----------------------------------------------------------------------------------- */

struct fprop_tiling {
	int filter_warps, ranges, training, step;
};

__device__ inline void fprop_load_images(
	struct conv_images *to, const struct kx_batch &batch, int step, int group)
{
	const int chunks = SEED_SIDE * SEED_SIDE / 16, n = SEED_GROUP * chunks;

	for (int i = threadIdx.x; i < n; i += FPROP_THREADS) {
		int image = group * SEED_GROUP + i / chunks;
		bool here = image < batch.images;

		conv_fetch(to, i, here ? seed_image(batch, step, image) : batch.pixels, here);
	}
	copies_commit();
	copies_wait<0>();
	for (int i = threadIdx.x; i < n; i += FPROP_THREADS)
		conv_convert(to, i);
}

/* Adds up the logits over the eight filters of each warp, then over the warps of the block, in a
 * fixed order, and stores them. */
__device__ inline void fprop_store_logits(const struct kx_seed &s, const struct kx_batch &batch,
	float (&logits)[4][SEED_CLASSES], float (*shared)[SEED_GROUP * SEED_CLASSES], int group,
	int slice)
{
	const int t = threadIdx.x % 4, warp = threadIdx.x / 32;
#pragma unroll
	for (int i = 0; i < 4; i++)
		logits_reduce_filters(
			logits[i], shared[warp] + (2 * t + i % 2 + i / 2 * 8) * SEED_CLASSES);
	__syncthreads();
	for (int i = threadIdx.x; i < SEED_GROUP * SEED_CLASSES; i += FPROP_THREADS) {
		int image = group * SEED_GROUP + i / SEED_CLASSES;
		float v = 0;

		for (int w = 0; w < FPROP_WARPS; w++)
			v += shared[w][i];
		if (image < batch.images)
			s.partial_logits[((size_t)slice * batch.images + image) * SEED_CLASSES +
					 i % SEED_CLASSES] = v;
	}
}

struct fprop_shared {
	struct conv_images images;
	float partial_logits[FPROP_WARPS][SEED_GROUP * SEED_CLASSES];
};

/* blockIdx.x selects the images of a block, blockIdx.y its filters, and blockIdx.z its positions. A
 * warp handles one of filter_warps groups of 8 filters at a range of the positions. */
__global__ void __launch_bounds__(FPROP_THREADS, 2)
	seed_fprop_kernel(struct kx_seed s, struct kx_batch batch, struct fprop_tiling fprop_tiling)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct fprop_shared *shared = reinterpret_cast<struct fprop_shared *>(memory);
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
	const int group = blockIdx.x;
	const int filter_group =
		blockIdx.y * fprop_tiling.filter_warps + warp % fprop_tiling.filter_warps;
	const int f = filter_group * 8 + lane / 4;
	const int range = blockIdx.z * (FPROP_WARPS / fprop_tiling.filter_warps) +
			  warp / fprop_tiling.filter_warps;
	const int begin = SEED_POSITIONS * range / fprop_tiling.ranges;
	const int end = SEED_POSITIONS * (range + 1) / fprop_tiling.ranges;
	fprop_load_images(&shared->images, batch, fprop_tiling.step, group);
	await_previous();
	struct conv_weights<3> a;
	conv_load(&a, s.fragments, filter_group, lane);
	const float bias = s.params.conv[f * SEED_ROW + 9];
	const int stride = s.f_pad * SEED_ROW;
	const float *fc = s.params.fc + (size_t)begin * stride + f * SEED_ROW;
	uint8_t *argmax =
		s.argmax + (((size_t)group * SEED_POSITIONS + begin) * s.f_pad + f) * 4 + t;
	const uint32_t *patch = shared->images.pixels + lane / 4 * IMAGE_WORDS +
				begin / 13 * (2 * ROW_WORDS) + begin % 13;
	const int at[1][2] = {{conv_pair<3>(0, 0, t), conv_pair<3>(0, 1, t)}};
	float logits[4][SEED_CLASSES] = {};
	__syncthreads();

	/* the loop loads one position ahead; after the last position it reads conv weights, which
	 * follow the fc weights in memory, and does not use them */
	struct feature_weights next = feature_load(fc);
#pragma unroll 2
	for (int left = end - begin, x = begin % 13; left > 0; left--) {
		const struct feature_weights w = next;

		fc += stride;
		next = feature_load(fc);
		uint32_t argmax_bits = 0;
#pragma unroll
		for (int j = 0; j < 2; j++) {
			float c[2][4] = {};

			conv_window<3>(c, a, patch + j * 8 * IMAGE_WORDS, at);
#pragma unroll
			for (int e = 0; e < 2; e++) {
				uint32_t which;
				float v = max4_argmax(
					c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &which);

				v = max_or_nan(fmaf(v, CONV_PIXEL, bias), 0);
				argmax_bits |= which << (4 * j + 2 * e);
				logits_add(logits[2 * j + e], v, w);
			}
		}
		if (fprop_tiling.training)
			*argmax = (uint8_t)argmax_bits;
		argmax += s.f_pad * 4;
		patch++;
		if (++x == 13) {
			x = 0;
			patch += 2 * ROW_WORDS - 13;
		}
	}
	fprop_store_logits(s, batch, logits, shared->partial_logits, group,
		blockIdx.y * gridDim.z + blockIdx.z);
}

/* ---- logits ---------------------------------------------------------------------------------- */

#define LOGITS_THREADS 128

/* One warp computes one image. Lane c + 10 * i adds up third i of the partial logits of class c. */
__global__ void seed_logits_kernel(struct kx_seed s, struct kx_batch batch, int slices, int step)
{
	const unsigned all = 0xffffffffu;
	const int lane = threadIdx.x % 32, c = lane % SEED_CLASSES, third = lane / SEED_CLASSES;
	const int n = (blockIdx.x * LOGITS_THREADS + threadIdx.x) / 32;

	if (n >= batch.images) {
		if (batch.training && lane < SEED_ROW) {
			await_previous();
			s.d_logits[n * SEED_ROW + lane] = 0; /* pads the last group with zeros */
		}
		return;
	}
	const int label = batch.labels[seed_number(batch, step, n)];
	const bool real = lane < SEED_CLASSES;
	const float *from = s.partial_logits + (size_t)n * SEED_CLASSES + c;
	await_previous();
	const size_t pitch = (size_t)batch.images * SEED_CLASSES;
	float v = sum_fetched<16>(third == 0 ? s.params.bias[c] : 0, third, third < 3 ? slices : 0,
		3, [=](int slice) { return from[slice * pitch]; });
	v = v + __shfl_sync(all, v, c + 10) + __shfl_sync(all, v, c + 20);
	v = __shfl_sync(all, v, c);
	if (real)
		s.logits[n * SEED_CLASSES + c] = v;
	if (!batch.training)
		return;
	float max_logit = v, exp_logit, sum;
	for (int d = 16; d; d /= 2)
		max_logit = max_or_nan(max_logit, __shfl_xor_sync(all, max_logit, d));
	exp_logit = expf(v - max_logit);
	sum = real ? exp_logit : 0;
	for (int d = 16; d; d /= 2)
		sum += __shfl_xor_sync(all, sum, d);
	if (lane < SEED_ROW)
		s.d_logits[n * SEED_ROW + lane] =
			real ? (exp_logit / sum - (c == label)) / batch.images : 0;
	if (lane == label)
		s.loss[n] = logf(sum) - (v - max_logit);
}

} // namespace

size_t kx_seed_argmax_bytes(int f_pad, int half, size_t images)
{
	const size_t groups = (images + SEED_GROUP - 1) / SEED_GROUP;

	/* Half precision stores a nibble instead of two bits, and a block may read past the last
	 * position. */
	return groups * SEED_POSITIONS * f_pad * 4 * (half ? 2 : 1) +
	       (half ? (size_t)SEED_HALF_POSITIONS * f_pad * 4 * 2 : 0);
}

size_t kx_seed_half_fragments(int f_pad)
{
	return HALF_FRAGMENT_WORDS(f_pad);
}

size_t kx_seed_fragments(int f_pad)
{
	return (size_t)f_pad / 8 * 256 * CONV_TERMS;
}

int kx_seed_pack(struct kx_seed s, const float *manifest, cudaStream_t stream)
{
	const size_t n = (size_t)SEED_POSITIONS * s.f_pad * SEED_ROW;

	if (manifest)
		seed_pack_kernel<<<blocks_for(n, 256), 256, 0, stream>>>(s, manifest);
	seed_fragments_kernel<<<blocks_for(s.f_pad * 32, 256), 256, 0, stream>>>(s);
	return KX_LAUNCHED();
}

int kx_seed_fprop(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	struct seed_tiling c = kx_seed_tiling(s.f_pad, s.half, batch.images);
	struct fprop_tiling fprop_tiling = {
		c.warps_filters, c.ranges * (FPROP_WARPS / c.warps_filters), batch.training, step};

	dim3 grid(c.groups, c.filter_blocks, c.ranges);
	const int bytes = (int)sizeof(struct fprop_shared);
	if (cudaFuncSetAttribute(
		    seed_fprop_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(
		seed_fprop_kernel, grid, FPROP_THREADS, bytes, stream, s, batch, fprop_tiling);
}

int kx_seed_logits(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	struct seed_tiling c = kx_seed_tiling(s.f_pad, s.half, batch.images);
	int per_block = LOGITS_THREADS / 32;

	return kx_launch(seed_logits_kernel, dim3(c.groups * SEED_GROUP / per_block),
		LOGITS_THREADS, 0, stream, s, batch, c.filter_blocks * c.ranges, step);
}
