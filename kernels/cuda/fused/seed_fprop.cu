/*
 * seed_fprop.cu - convolution, bias, ReLU, max-pool and the fc product in one kernel; scores.
 *
 * exact_conv.cuh leaves a thread with four features of a position: filter lane / 4, images 2t, 2t +
 * 1, 2t + 8 and 2t + 9 of a group of sixteen (t = lane % 4). Which cell won is two bits of each, in
 * this order from the lowest, and makes byte t of the position's and filter's word of winners.
 */
#include "kernels/cuda/fused/seed_half.cuh"

#define WARPS   8
#define THREADS (WARPS * 32)

/* ---- parameters into fragments --------------------------------------------------------------- */

size_t kx_seed_winners(int f_pad, int low, size_t images)
{
	const size_t groups = (images + SEED_GROUP - 1) / SEED_GROUP;
	/* nibbles, and as many more as a block goes past the last position */
	return groups * SEED_POSITIONS * f_pad * 4 * (low ? 2 : 1) +
	       (low ? (size_t)SEED_LOW_POSITIONS * f_pad * 4 * 2 : 0);
}

size_t kx_seed_low_fragments(int f_pad)
{
	return LOW_FRAGMENT_WORDS(f_pad);
}

size_t kx_seed_fragments(int f_pad)
{
	return (size_t)f_pad / 8 * 256 * CONV_PIECES;
}

__global__ void fragments_kernel(struct kx_seed s)
{
	const size_t n = (size_t)s.f_pad / 8 * 2 * 32 * 4;
	FOR_EACH (i, n)
		seed_fragment(s, (int)(i / 256), s.params.conv + i / 256 * 8 * SEED_ROW, i % 256);
}

__global__ void from_manifest_kernel(struct kx_seed s, const float *manifest)
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

int kx_seed_pack(struct kx_seed s, const float *manifest, cudaStream_t stream)
{
	const size_t n = (size_t)SEED_POSITIONS * s.f_pad * SEED_ROW;
	if (manifest)
		from_manifest_kernel<<<blocks_for(n, 256), 256, 0, stream>>>(s, manifest);
	fragments_kernel<<<blocks_for(s.f_pad * 32, 256), 256, 0, stream>>>(s);
	return KX_LAUNCHED();
}

/* ---- forward --------------------------------------------------------------------------------- */

struct cut {
	int filter_warps, ranges, training, step;
};

__device__ static inline void load_images(
	struct conv_images *to, const struct kx_batch &batch, int step, int group)
{
	const int chunks = SEED_SIDE * SEED_SIDE / 16, n = SEED_GROUP * chunks;
	for (int i = threadIdx.x; i < n; i += THREADS) {
		int image = group * SEED_GROUP + i / chunks;
		bool here = image < batch.images;
		conv_fetch(to, i, here ? seed_image(batch, step, image) : batch.pixels, here);
	}
	copies_commit();
	copies_wait<0>();
	for (int i = threadIdx.x; i < n; i += THREADS)
		conv_convert(to, i);
}

/* Sum over a warp's eight filters, then over the block's warps, in a fixed order. */
__device__ static inline void scores_out(const struct kx_seed &s, const struct kx_batch &batch,
	float (&score)[4][SEED_CLASSES], float (*shared)[SEED_GROUP * SEED_CLASSES], int group,
	int part)
{
	const int t = threadIdx.x % 4, warp = threadIdx.x / 32;
#pragma unroll
	for (int i = 0; i < 4; i++)
		scores_add_filters(
			score[i], shared[warp] + (2 * t + i % 2 + i / 2 * 8) * SEED_CLASSES);
	__syncthreads();
	for (int i = threadIdx.x; i < SEED_GROUP * SEED_CLASSES; i += THREADS) {
		int image = group * SEED_GROUP + i / SEED_CLASSES;
		float v = 0;
		for (int w = 0; w < WARPS; w++)
			v += shared[w][i];
		if (image < batch.images)
			s.score_parts[((size_t)part * batch.images + image) * SEED_CLASSES +
				      i % SEED_CLASSES] = v;
	}
}

struct forward_shared {
	struct conv_images images;
	float reduced[WARPS][SEED_GROUP * SEED_CLASSES];
};

/* blockIdx: x images, y filters, z positions. Warps: filter_warps x the rest of positions. */
__global__ void __launch_bounds__(THREADS, 2)
	forward_kernel(struct kx_seed s, struct kx_batch batch, struct cut cut)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct forward_shared *shared = reinterpret_cast<struct forward_shared *>(memory);
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
	const int group = blockIdx.x;
	const int filter_group = blockIdx.y * cut.filter_warps + warp % cut.filter_warps;
	const int f = filter_group * 8 + lane / 4;
	const int range = blockIdx.z * (WARPS / cut.filter_warps) + warp / cut.filter_warps;
	const int begin = SEED_POSITIONS * range / cut.ranges;
	const int end = SEED_POSITIONS * (range + 1) / cut.ranges;
	load_images(&shared->images, batch, cut.step, group);
	await_previous();
	struct conv_weights<3> a;
	conv_load(&a, s.fragments, filter_group, lane);
	const float bias = s.params.conv[f * SEED_ROW + 9];
	const int stride = s.f_pad * SEED_ROW;
	const float *fc = s.params.fc + (size_t)begin * stride + f * SEED_ROW;
	uint8_t *winners =
		s.winners + (((size_t)group * SEED_POSITIONS + begin) * s.f_pad + f) * 4 + t;
	const uint32_t *patch = shared->images.pixels + lane / 4 * IMAGE_WORDS +
				begin / 13 * (2 * ROW_WORDS) + begin % 13;
	const int at[1][2] = {{conv_pair<3>(0, 0, t), conv_pair<3>(0, 1, t)}};
	float score[4][SEED_CLASSES] = {};
	__syncthreads();

	/* one position ahead: behind the last lie the conv's weights */
	struct feature_weights next = feature_load(fc);
#pragma unroll 2
	for (int left = end - begin, x = begin % 13; left > 0; left--) {
		const struct feature_weights w = next;
		fc += stride;
		next = feature_load(fc);
		uint32_t won = 0;
#pragma unroll
		for (int j = 0; j < 2; j++) {
			float c[2][4] = {};
			conv_cells<3>(c, a, patch + j * 8 * IMAGE_WORDS, at);
#pragma unroll
			for (int e = 0; e < 2; e++) {
				uint32_t winner;
				float v = first_maximum(
					c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &winner);
				v = max_or_nan(fmaf(v, CONV_PIXEL, bias), 0);
				won |= winner << (4 * j + 2 * e);
				score_add(score[2 * j + e], v, w);
			}
		}
		if (cut.training)
			*winners = (uint8_t)won;
		winners += s.f_pad * 4;
		patch++;
		if (++x == 13) {
			x = 0;
			patch += 2 * ROW_WORDS - 13;
		}
	}
	scores_out(s, batch, score, shared->reduced, group, blockIdx.y * gridDim.z + blockIdx.z);
}

int kx_seed_forward(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	struct seed_cut c = kx_seed_cut(s.f_pad, s.low, batch.images);
	struct cut cut = {
		c.warps_filters, c.ranges * (WARPS / c.warps_filters), batch.training, step};
	dim3 grid(c.groups, c.filter_blocks, c.ranges);
	const int bytes = (int)sizeof(struct forward_shared);
	if (cudaFuncSetAttribute(
		    forward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(forward_kernel, grid, THREADS, bytes, stream, s, batch, cut);
}

/* ---- scores ---------------------------------------------------------------------------------- */

#define SCORE_THREADS 128

/* A warp per image: lane = class + 10 x a third of the parts. */
__global__ void scores_kernel(struct kx_seed s, struct kx_batch batch, int parts, int step)
{
	const unsigned all = 0xffffffffu;
	const int lane = threadIdx.x % 32, c = lane % SEED_CLASSES, third = lane / SEED_CLASSES;
	const int n = (blockIdx.x * SCORE_THREADS + threadIdx.x) / 32;
	if (n >= batch.images) {
		if (batch.training && lane < SEED_ROW) {
			await_previous();
			s.d_scores[n * SEED_ROW + lane] = 0; /* the last group is whole */
		}
		return;
	}
	const int label = batch.labels[seed_number(batch, step, n)];
	const bool real = lane < SEED_CLASSES;
	const float *from = s.score_parts + (size_t)n * SEED_CLASSES + c;
	await_previous();
	const size_t pitch = (size_t)batch.images * SEED_CLASSES;
	float v = sum_ahead<16>(third == 0 ? s.params.bias[c] : 0, third, third < 3 ? parts : 0, 3,
		[=](int part) { return from[part * pitch]; });
	v = v + __shfl_sync(all, v, c + 10) + __shfl_sync(all, v, c + 20);
	v = __shfl_sync(all, v, c);
	if (real)
		s.scores[n * SEED_CLASSES + c] = v;
	if (!batch.training)
		return;
	float most = v, power, sum;
	for (int d = 16; d; d /= 2)
		most = max_or_nan(most, __shfl_xor_sync(all, most, d));
	power = expf(v - most);
	sum = real ? power : 0;
	for (int d = 16; d; d /= 2)
		sum += __shfl_xor_sync(all, sum, d);
	if (lane < SEED_ROW)
		s.d_scores[n * SEED_ROW + lane] =
			real ? (power / sum - (c == label)) / batch.images : 0;
	if (lane == label)
		s.loss[n] = logf(sum) - (v - most);
}

int kx_seed_scores(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	struct seed_cut c = kx_seed_cut(s.f_pad, s.low, batch.images);
	int per_block = SCORE_THREADS / 32;
	return kx_launch(scores_kernel, dim3(c.groups * SEED_GROUP / per_block), SCORE_THREADS, 0,
		stream, s, batch, c.filter_blocks * c.ranges, step);
}
