/*
 * conv1.cu - the kernels of conv1.h.
 */
#include "kernels/cuda/mma/exact_conv.cuh"
#include "kernels/cuda/fused/conv1.h"
#include "kernels/cuda/fused/conv2.cuh"

namespace
{

#define CONV1_WARPS   8
#define CONV1_THREADS (CONV1_WARPS * 32)
#define PREFETCH      9 /* number of positions whose dY loads are in flight at a time */
#define RELU_OPEN     4 /* bit of an argmax that is set if the ReLU passes the gradient */

/* ---- fprop ----------------------------------------------------------------------------------- */

__device__ inline const uint8_t *conv1_image(const struct kx_batch &batch, int n)
{
	return batch.pixels + image_number(&batch, n) * (CONV_SIDE * CONV_SIDE);
}

__device__ inline void conv1_load_group(
	struct conv_images *to, const struct kx_batch &batch, int group)
{
	const int chunks = CONV_SIDE * CONV_SIDE / 16, n = CONV_GROUP * chunks;

	for (int i = threadIdx.x; i < n; i += CONV1_THREADS) {
		int image = group * CONV_GROUP + i / chunks;
		bool here = image < batch.images;

		conv_fetch(to, i, here ? conv1_image(batch, image) : batch.pixels, here);
	}
	copies_commit();
	copies_wait<0>();
	for (int i = threadIdx.x; i < n; i += CONV1_THREADS)
		conv_convert(to, i);
}

/* blockIdx.x selects the images of a block, blockIdx.y its 32 filters, and blockIdx.z its
 * positions. A warp handles one of 4 groups of 8 filters at one of 2 ranges of the positions. */
template <int SIZE>
__global__ void __launch_bounds__(CONV1_THREADS, 2)
	conv1_fprop_kernel(struct kx_conv1 l, struct kx_batch batch)
{
	__shared__ __align__(16) struct conv_images images;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
	const int filter_group = blockIdx.y * 4 + warp % 4, f = filter_group * 8 + lane / 4;
	const int range = blockIdx.z * 2 + warp / 4, ranges = gridDim.z * 2;
	const int begin = conv<SIZE>::POSITIONS * range / ranges;
	const int end = conv<SIZE>::POSITIONS * (range + 1) / ranges;
	struct conv_weights<SIZE> w;
	int at[conv<SIZE>::STEPS][2];

	await_previous();
	const float bias = l.bias[f];
	conv1_load_group(&images, batch, blockIdx.x);
	conv_load(&w, l.fragments, filter_group, lane);
#pragma unroll
	for (int k = 0; k < conv<SIZE>::STEPS; k++) {
		at[k][0] = conv_pair<SIZE>(k, 0, t);
		at[k][1] = conv_pair<SIZE>(k, 1, t);
	}
	__syncthreads();
	for (int p = begin; p < end; p++) {
		const int y = p / conv<SIZE>::POOLED, x = p % conv<SIZE>::POOLED;

		const uint32_t *patch =
			images.pixels + lane / 4 * IMAGE_WORDS + y * (2 * ROW_WORDS) + x;
		const size_t to = l.y.origin + (size_t)y * l.y.row + x * l.y.c + f;
#pragma unroll
		for (int j = 0; j < 2; j++) {
			float c[2][4] = {};

			conv_window<SIZE>(c, w, patch + j * 8 * IMAGE_WORDS, at);
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const int n = blockIdx.x * CONV_GROUP + j * 8 + 2 * t + e;
				uint32_t which;
				float v = max4_argmax(
					c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &which);

				if (n >= batch.images)
					continue;
				v = max_or_nan(fmaf(v, CONV_PIXEL, bias), 0);
				l.y.value[n * l.y.image + to] = v;
				l.argmax[((size_t)n * conv<SIZE>::POSITIONS + p) * l.f + f] =
					(uint8_t)(which | (v > 0 ? RELU_OPEN : 0));
			}
		}
	}
}

template <int SIZE>
int conv1_fprop_launch(struct kx_conv1 l, struct kx_batch batch, cudaStream_t stream)
{
	const unsigned groups = (batch.images + CONV_GROUP - 1) / CONV_GROUP;
	const unsigned filters = l.f / CONV1_LANES, wanted = CONV1_SLICES / (groups * filters);
	const unsigned max_ranges = conv<SIZE>::POSITIONS / 8;

	dim3 grid(groups, filters, wanted < 1 ? 1 : wanted < max_ranges ? wanted : max_ranges);
	return kx_launch(conv1_fprop_kernel<SIZE>, grid, CONV1_THREADS, 0, stream, l, batch);
}

/* ---- fprop with hi/lo terms ------------------------------------------------------------------ */

/*
 * This kernel is for 32 filters of 5 x 5 in front of conv2.h. A warp computes 8 filters of 16
 * images at a time, so for each image it has two pieces of 16 bytes to write: the hi terms and the
 * lo terms of 8 values of 2 bytes. Stores of 16 bytes to global memory would take longer than the
 * rest of the kernel. The block therefore collects values and argmax of its positions in shared
 * memory and writes them in long rows.
 */
#define HI_LO_SIZE    5
#define HI_LO_GROUPS  (CONV2_CHANNELS / 8)
#define MAX_POSITIONS 18 /* maximum number of positions that a block collects */
/* The strides from one image to the next, in bytes. With these strides, the 8 (or 4) images that a
 * warp stores are in different banks. */
#define VALUE_STRIDE  (CONV2_TERMS * HI_LO_GROUPS * MAX_POSITIONS * 16 + 16)
#define ARGMAX_STRIDE (MAX_POSITIONS * CONV2_CHANNELS + 16)

struct hi_lo_shared {
	struct conv_images images;
	__align__(16) unsigned char values[CONV_GROUP * VALUE_STRIDE];
	__align__(16) unsigned char argmax[CONV_GROUP * ARGMAX_STRIDE];
};

/* Does the same as conv_window, but for both halves of the images. The products of the halves
 * alternate, which hides their latency. */
__device__ inline void conv_window_both(float (&c)[2][2][4],
	const struct conv_weights<HI_LO_SIZE> &w, const uint32_t *patch,
	const int (&at)[conv<HI_LO_SIZE>::STEPS][2])
{
	uint32_t b[2][conv<HI_LO_SIZE>::STEPS][2];
#pragma unroll
	for (int i = 0; i < 4 * conv<HI_LO_SIZE>::STEPS; i++)
		b[i % 2][i / 4][i / 2 % 2] = patch[i % 2 * 8 * IMAGE_WORDS + at[i / 4][i / 2 % 2]];
#pragma unroll
	for (int term = CONV_TERMS; term-- > 0;)
#pragma unroll
		for (int k = 0; k < conv<HI_LO_SIZE>::STEPS; k++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				mma_bf16(c[i / 2][i % 2], w.a[k][term][i % 2], b[i / 2][k][0],
					b[i / 2][k][1]);
}

/* Computes position p, the i-th that the block collects: eight filters of all images. *max is the
 * largest value so far. */
__device__ inline void hi_lo_position(struct hi_lo_shared *s,
	const struct conv_weights<HI_LO_SIZE> &w, const int (&at)[conv<HI_LO_SIZE>::STEPS][2],
	int p, int i, int group, float bias, float *max)
{
	const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
	float window[2][2][4] = {};
	uint32_t packed[2][CONV2_TERMS];

	conv_window_both(window, w,
		s->images.pixels + r * IMAGE_WORDS + p / CONV2_IN * (2 * ROW_WORDS) + p % CONV2_IN,
		at);
#pragma unroll
	for (int j = 0; j < 2; j++) {
		const float(&c)[2][4] = window[j];
		float v[2], lo[2];
#pragma unroll
		for (int e = 0; e < 2; e++) {
			uint32_t which;

			v[e] = max4_argmax(c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &which);
			v[e] = max_or_nan(fmaf(v[e], CONV_PIXEL, bias), 0);
			*max = fmaxf(*max, v[e]);
			s->argmax[(8 * j + 2 * t + e) * ARGMAX_STRIDE + i * CONV2_CHANNELS +
				  group * 8 + r] =
				(unsigned char)(which | (v[e] > 0 ? RELU_OPEN : 0));
			lo[e] = v[e] - __half2float(__float2half_rn(v[e]));
		}
		packed[j][0] = two_halves(v[0], v[1]);
		packed[j][1] = two_halves(lo[0], lo[1]);
	}
	/* four matrices of 8 filters x 8 images: images 0 to 7 (hi, lo), then 8 to 15 */
	const int image = lane / 16 * 8 + lane % 8, term = lane / 8 % 2;
	store_transposed(shared_address(s->values) + image * VALUE_STRIDE +
				 ((term * HI_LO_GROUPS + group) * MAX_POSITIONS + i) * 16,
		{packed[0][0], packed[0][1], packed[1][0], packed[1][1]});
}

/* Writes values and argmax of positions [begin, end) to global memory. */
__device__ inline void hi_lo_write(const struct hi_lo_shared *s, const struct kx_conv1 &l, int n0,
	int images, int begin, int end)
{
	const int chunks = CONV2_TERMS * HI_LO_GROUPS,
		  argmaxes = MAX_POSITIONS * CONV2_CHANNELS / 16;
	const int count = end - begin;

	for (int i = threadIdx.x; i < CONV_GROUP * chunks * MAX_POSITIONS; i += CONV1_THREADS) {
		const int image = i / (chunks * MAX_POSITIONS), chunk = i / MAX_POSITIONS % chunks,
			  p = i % MAX_POSITIONS;

		if (n0 + image < images && p < count)
			*reinterpret_cast<uint4 *>(l.y_hi_lo + (size_t)(n0 + image) * CONV2_IMAGE +
						   (chunk * CONV2_PIXELS + begin + p) * 8) =
				*reinterpret_cast<const uint4 *>(s->values + image * VALUE_STRIDE +
								 (chunk * MAX_POSITIONS + p) * 16);
	}
	for (int i = threadIdx.x; i < CONV_GROUP * argmaxes; i += CONV1_THREADS) {
		const int image = i / argmaxes, at = i % argmaxes * 16;

		if (n0 + image < images && at < count * CONV2_CHANNELS)
			*reinterpret_cast<uint4 *>(
				l.argmax +
				((size_t)(n0 + image) * CONV2_PIXELS + begin) * CONV2_CHANNELS +
				at) = *reinterpret_cast<const uint4 *>(s->argmax +
								       image * ARGMAX_STRIDE + at);
	}
}

/* blockIdx.x selects the images of a block, and blockIdx.y its positions. A warp handles one of 4
 * groups of 8 filters at one of 2 interleaved sets of positions. */
__global__ void __launch_bounds__(CONV1_THREADS, 2)
	conv1_fprop_hi_lo_kernel(struct kx_conv1 l, struct kx_batch batch)
{
	extern __shared__ __align__(128) unsigned char memory[];
	struct hi_lo_shared *s = reinterpret_cast<struct hi_lo_shared *>(memory);
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp % HI_LO_GROUPS;
	const int begin = CONV2_PIXELS * blockIdx.y / gridDim.y;
	const int end = CONV2_PIXELS * (blockIdx.y + 1) / gridDim.y;
	struct conv_weights<HI_LO_SIZE> w;
	int at[conv<HI_LO_SIZE>::STEPS][2];
	float max = 0;

	await_previous();
	const float bias = l.bias[group * 8 + lane / 4];
	conv1_load_group(&s->images, batch, blockIdx.x);
	conv_load(&w, l.fragments, group, lane);
#pragma unroll
	for (int k = 0; k < conv<HI_LO_SIZE>::STEPS; k++) {
		at[k][0] = conv_pair<HI_LO_SIZE>(k, 0, lane % 4);
		at[k][1] = conv_pair<HI_LO_SIZE>(k, 1, lane % 4);
	}
	__syncthreads();
	for (int from = begin; from < end; from += MAX_POSITIONS) {
		const int to = min(from + MAX_POSITIONS, end);

		for (int p = from + warp / HI_LO_GROUPS; p < to; p += CONV1_WARPS / HI_LO_GROUPS)
			hi_lo_position(s, w, at, p, p - from, group, bias, &max);
		__syncthreads();
		hi_lo_write(s, l, blockIdx.x * CONV_GROUP, batch.images, from, to);
		__syncthreads();
	}
	if (max >= CONV2_MAX_VALUE)
		*l.trouble = KX_TROUBLE_RANGE;
}

int conv1_fprop_hi_lo_launch(struct kx_conv1 l, struct kx_batch batch, cudaStream_t stream)
{
	const int bytes = (int)sizeof(struct hi_lo_shared);
	const unsigned groups = (batch.images + CONV_GROUP - 1) / CONV_GROUP;
	const unsigned wanted = CONV1_SLICES / groups,
		       max_ranges = CONV2_PIXELS / (MAX_POSITIONS / 2);
	const unsigned ranges = wanted < 1 ? 1 : wanted < max_ranges ? wanted : max_ranges;

	if (cudaFuncSetAttribute(
		    conv1_fprop_hi_lo_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(conv1_fprop_hi_lo_kernel, dim3(groups, ranges), CONV1_THREADS, bytes,
		stream, l, batch);
}

/* ---- wgrad ----------------------------------------------------------------------------------- */

__device__ inline const uint32_t *conv1_image_words(const struct kx_batch &batch, int n)
{
	return reinterpret_cast<const uint32_t *>(conv1_image(batch, n));
}

/* Adds one image to the sums. A lane handles one filter, a warp handles every eighth position, and
 * the sums stay in registers. Lanes may select different output pixels of a window, but their loads
 * have no bank conflicts, because the patches of the four output pixels start in different
 * banks. */
template <int SIZE>
__device__ inline void conv1_wgrad_image(float (&sum)[SIZE * SIZE], float *bias,
	const struct kx_conv1 &l, const float *pixels, int n, int f)
{
	const uint8_t *argmax = l.argmax + (size_t)n * conv<SIZE>::POSITIONS * l.f + f;
	const float *dy = l.dy + n * l.y.image + l.y.origin + f;
	const int warp = threadIdx.x / 32;

	for (int p0 = 0; p0 < conv<SIZE>::POSITIONS; p0 += CONV1_WARPS * PREFETCH) {
		int won[PREFETCH];
		float d[PREFETCH];
#pragma unroll
		for (int i = 0; i < PREFETCH; i++) {
			const int p = min(p0 + i * CONV1_WARPS + warp, conv<SIZE>::POSITIONS - 1);
			const int y = p / conv<SIZE>::POOLED, x = p % conv<SIZE>::POOLED;

			won[i] = argmax[(size_t)p * l.f];
			d[i] = dy[(size_t)y * l.y.row + x * l.y.c];
			const bool here = p0 + i * CONV1_WARPS + warp < conv<SIZE>::POSITIONS;
			d[i] = here && won[i] & RELU_OPEN ? d[i] : 0;
			won[i] = (2 * y + won[i] / 2 % 2) * CONV_SIDE + 2 * x + won[i] % 2;
		}
#pragma unroll
		for (int i = 0; i < PREFETCH; i++) {
#pragma unroll
			for (int k = 0; k < SIZE * SIZE; k++)
				sum[k] = fmaf(d[i],
					pixels[won[i] + k / SIZE * CONV_SIDE + k % SIZE], sum[k]);
			*bias += d[i];
		}
	}
}

/* blockIdx.x selects the images of a block (its split-K slice), and blockIdx.y its filters. */
template <int SIZE>
__global__ void __launch_bounds__(CONV1_THREADS, 2)
	conv1_wgrad_kernel(struct kx_conv1 l, struct kx_batch batch)
{
	const int taps = SIZE * SIZE, words = CONV_SIDE * CONV_SIDE / 4;
	__shared__ float4 pixels[2][words];
	__shared__ float partial[CONV1_WARPS][32];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int f = blockIdx.y * CONV1_LANES + lane;
	float sum[taps] = {}, bias = 0;

	await_previous();
	uint32_t bytes = 0;
	if (threadIdx.x < words && blockIdx.x < batch.images)
		bytes = conv1_image_words(batch, blockIdx.x)[threadIdx.x];
	for (int n = blockIdx.x, stage = 0; n < batch.images; n += gridDim.x, stage ^= 1) {
		if (threadIdx.x < words) {
			pixels[stage][threadIdx.x] = {pixel_of(bytes, 0), pixel_of(bytes, 1),
				pixel_of(bytes, 2), pixel_of(bytes, 3)};
		}
		__syncthreads();
		/* the block loads the words of image `next` while it processes image n */
		const int next = n + gridDim.x;
		if (threadIdx.x < words && next < batch.images)
			bytes = conv1_image_words(batch, next)[threadIdx.x];
		conv1_wgrad_image<SIZE>(
			sum, &bias, l, reinterpret_cast<const float *>(pixels[stage]), n, f);
	}
	float *to = l.workspace + KX_WGRAD_ROWS(taps) * l.f * blockIdx.x;
#pragma unroll
	for (int k = 0; k <= taps; k++) {
		__syncthreads();
		partial[warp][lane] = k < taps ? sum[k < taps ? k : 0] * CONV_PIXEL : bias;
		__syncthreads();
		if (warp == 0) {
			float v = 0;

			for (int i = 0; i < CONV1_WARPS; i++)
				v += partial[i][lane];
			to[(size_t)k * l.f + f] = v;
		}
	}
}

} // namespace

size_t kx_conv1_fragments(int size, int f)
{
	int steps = size == 3 ? conv<3>::STEPS : conv<5>::STEPS;

	return (size_t)f / 8 * steps * CONV_TERMS * 256;
}

int kx_conv1_fprop(struct kx_conv1 l, struct kx_batch batch, cudaStream_t stream)
{
	if (l.y_hi_lo)
		return conv1_fprop_hi_lo_launch(l, batch, stream);
	return l.size == 3 ? conv1_fprop_launch<3>(l, batch, stream)
			   : conv1_fprop_launch<5>(l, batch, stream);
}

int kx_conv1_wgrad(struct kx_conv1 l, struct kx_batch batch, cudaStream_t stream)
{
	dim3 grid(CONV1_SLICES, l.f / CONV1_LANES);
	if (l.size == 3)
		return kx_launch(conv1_wgrad_kernel<3>, grid, CONV1_THREADS, 0, stream, l, batch);
	return kx_launch(conv1_wgrad_kernel<5>, grid, CONV1_THREADS, 0, stream, l, batch);
}
