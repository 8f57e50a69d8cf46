/*
 * kx_seed_backward.cu - gradients of the seed nets, and what becomes of them.
 *
 * A thread owns one filter at PLACES positions and goes through the images: the error of a feature
 * (10 products with its fc weights), its value once more (9 products with the pixels under the cell
 * that won; cheaper than 4 bytes to memory and back), and both gradients: 10 + 9 products. Sums
 * stay in registers until the end. Lanes are filters: the ten errors of an image are one broadcast,
 * and the four cells that lanes may look at start in different banks.
 */
#include "kernels/kx_seed.cuh"

#define WARPS   8
#define THREADS (WARPS * 32)
#define PLACES  2
#define IMAGE   (SEED_SIDE * SEED_SIDE)

struct seed_cut kx_seed_cut(int f_pad, int images)
{
	const int enough = 264; /* blocks: two for each of 132 multiprocessors */
	struct seed_cut c;
	int filter_groups = f_pad / 8, blocks;
	c.groups = (images + SEED_GROUP - 1) / SEED_GROUP;
	for (c.warps_filters = 8; filter_groups % c.warps_filters; c.warps_filters /= 2)
		;
	c.filter_blocks = filter_groups / c.warps_filters;
	blocks = c.groups * c.filter_blocks;
	c.ranges = blocks < enough ? enough / blocks : 1;
	/* a warp has at least two positions */
	const int most = SEED_POSITIONS * c.warps_filters / (2 * WARPS);
	c.ranges = c.ranges < most ? c.ranges : most;
	c.lane_blocks = (f_pad + 31) / 32;
	c.position_blocks = (SEED_POSITIONS + WARPS * PLACES - 1) / (WARPS * PLACES);
	blocks = c.lane_blocks * c.position_blocks;
	c.splits = blocks < enough ? enough / blocks : 1;
	c.splits = c.splits < c.groups ? c.splits : c.groups;
	return c;
}

/* ---- backward -------------------------------------------------------------------------------- */

struct sums {
	float fc[PLACES][SEED_CLASSES];
	float conv[9], bias;
};

struct weights {
	float fc[PLACES][SEED_CLASSES];
	float conv[9], bias;
};

__device__ static inline void load_images(
	float *shared, const struct kx_batch &batch, int step, int group)
{
	const int words = IMAGE / 4;
	for (int i = threadIdx.x; i < SEED_GROUP * words; i += THREADS) {
		int image = group * SEED_GROUP + i / words;
		uint32_t four = 0;
		if (image < batch.images)
			four = seed_image(batch, step, image)[i % words];
		float4 v = {
			pixel_of(four, 0), pixel_of(four, 1), pixel_of(four, 2), pixel_of(four, 3)};
		reinterpret_cast<float4 *>(shared)[i] = v;
	}
}

__device__ static inline void load_errors(
	float *shared, const struct kx_seed &s, int images, int group)
{
	const int n = SEED_GROUP * SEED_ROW;
	if (threadIdx.x < n) {
		int at = group * n + threadIdx.x;
		shared[threadIdx.x] = at < images * SEED_ROW ? s.d_scores[at] : 0;
	}
}

/* Floats from a patch's first pixel to that of winner 0..3: 0, 1, 28, 29, looked up in four bytes.
 */
__device__ static inline uint32_t winner_offset(uint32_t winners, int shift)
{
	return __byte_perm(0x1d1c0100u, 0, ((winners >> shift) & 3) | 0x4440);
}

__device__ static inline void add_feature(struct sums *sum, const struct weights &w, int place,
	const float *patch, const float (&error)[SEED_ROW])
{
	float x[9], v = 0, d = 0;
#pragma unroll
	for (int k = 0; k < 9; k++)
		x[k] = patch[k / 3 * SEED_SIDE + k % 3];
#pragma unroll
	for (int k = 0; k < 9; k++)
		v = fmaf(w.conv[k], x[k], v);
	v = fmaf(v, CONV_PIXEL, w.bias);
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		d = fmaf(error[c], w.fc[place][c], d);
	bool open = v > 0;
	d = open ? d : 0;
	v = max_or_nan(v, 0);
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		sum->fc[place][c] = fmaf(v, error[c], sum->fc[place][c]);
#pragma unroll
	for (int k = 0; k < 9; k++)
		sum->conv[k] = fmaf(d, x[k], sum->conv[k]);
	sum->bias += d;
}

/* The images of one group; word: their winners, see kx_seed_forward.cu for the order. */
__device__ static inline void add_group(struct sums *sum, const struct weights &w,
	const float *const (&patch)[PLACES], const uint32_t (&word)[PLACES], const float *errors)
{
#pragma unroll 1
	for (int half = 0; half < 2; half++) {
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const int image = half * 8 + i, shift = i / 2 * 8 + i % 2 * 2;
			float error[SEED_ROW];
#pragma unroll
			for (int k = 0; k < SEED_ROW; k += 4) {
				float4 v = *reinterpret_cast<const float4 *>(
					errors + image * SEED_ROW + k);
				error[k] = v.x;
				error[k + 1] = v.y;
				error[k + 2] = v.z;
				error[k + 3] = v.w;
			}
#pragma unroll
			for (int place = 0; place < PLACES; place++)
				add_feature(sum, w, place,
					patch[place] + image * IMAGE +
						winner_offset(word[place] >> (4 * half), shift),
					error);
		}
	}
}

/* A place that is not wanted gets zeros, so that no error comes out of it. */
__device__ static inline void load_weights(struct weights *w, const struct kx_seed &s, int f,
	const int (&p)[PLACES], const bool (&wanted)[PLACES])
{
	const float *conv = s.params.conv + f * SEED_ROW;
#pragma unroll
	for (int k = 0; k < 9; k++)
		w->conv[k] = conv[k];
	w->bias = conv[9];
#pragma unroll
	for (int i = 0; i < PLACES; i++)
#pragma unroll
		for (int c = 0; c < SEED_CLASSES; c++)
			w->fc[i][c] =
				wanted[i] ? s.params.fc[((size_t)p[i] * s.f_pad + f) * SEED_ROW + c]
					  : 0;
}

/* The filter's sums over the block's positions, in the order of the warps. */
__device__ static inline void conv_out(
	const struct kx_seed &s, const struct sums &sum, float *shared, int f0, int part)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float *mine = shared + (warp * 32 + lane) * SEED_ROW;
	__syncthreads();
#pragma unroll
	for (int k = 0; k < 9; k++)
		mine[k] = sum.conv[k] * CONV_PIXEL;
	mine[9] = sum.bias;
	mine[10] = mine[11] = 0;
	__syncthreads();
	for (int i = threadIdx.x; i < 32 * SEED_ROW; i += THREADS) {
		float v = 0;
		for (int w = 0; w < WARPS; w++)
			v += shared[w * 32 * SEED_ROW + i];
		if (f0 + i / SEED_ROW < s.f_pad)
			s.conv_parts[((size_t)part * s.f_pad + f0) * SEED_ROW + i] = v;
	}
}

/* blockIdx: x positions, y filters, z images. What lies past the last position or filter does the
 * last once more and is not wanted. */
__global__ void __launch_bounds__(THREADS, 2)
	backward_kernel(struct kx_seed s, struct kx_batch batch, struct seed_cut cut, int step)
{
	extern __shared__ __align__(16) float shared[];
	float *images = shared, *errors = shared + SEED_GROUP * IMAGE;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int f = min(blockIdx.y * 32 + lane, s.f_pad - 1);
	const bool real = blockIdx.y * 32 + lane < s.f_pad;
	const int begin = cut.groups * blockIdx.z / cut.splits;
	const int end = cut.groups * (blockIdx.z + 1) / cut.splits;
	const float *patch[PLACES];
	bool wanted[PLACES];
	int p[PLACES];
	struct weights w;
	struct sums sum = {};

	load_images(images, batch, step, begin);
	seed_await();
#pragma unroll
	for (int i = 0; i < PLACES; i++) {
		p[i] = (blockIdx.x * WARPS + warp) * PLACES + i;
		wanted[i] = real && p[i] < SEED_POSITIONS;
		p[i] = min(p[i], SEED_POSITIONS - 1);
		patch[i] = images + p[i] / 13 * 2 * SEED_SIDE + p[i] % 13 * 2;
	}
	load_weights(&w, s, f, p, wanted);
	for (int g = begin; g < end; g++) {
		uint32_t word[PLACES];
#pragma unroll
		for (int i = 0; i < PLACES; i++)
			word[i] = reinterpret_cast<const uint32_t *>(
				s.winners)[((size_t)g * SEED_POSITIONS + p[i]) * s.f_pad + f];
		if (g > begin) {
			__syncthreads();
			load_images(images, batch, step, g);
		}
		load_errors(errors, s, batch.images, g);
		__syncthreads();
		add_group(&sum, w, patch, word, errors);
	}
#pragma unroll
	for (int i = 0; i < PLACES; i++) {
		float *out =
			s.fc_parts +
			(((size_t)blockIdx.z * SEED_POSITIONS + p[i]) * s.f_pad + f) * SEED_ROW;
		const float *v = sum.fc[i];
		if (!wanted[i])
			continue;
		*reinterpret_cast<float4 *>(out) = {v[0], v[1], v[2], v[3]};
		*reinterpret_cast<float4 *>(out + 4) = {v[4], v[5], v[6], v[7]};
		*reinterpret_cast<float4 *>(out + 8) = {v[8], v[9], 0, 0};
	}
	conv_out(s, sum, images, blockIdx.y * 32, blockIdx.z * gridDim.x + blockIdx.x);
}

int kx_seed_backward(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	struct seed_cut c = kx_seed_cut(s.f_pad, batch.images);
	const int bytes = SEED_GROUP * (IMAGE + SEED_ROW) * (int)sizeof(float);
	if (cudaFuncSetAttribute(
		    backward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return seed_launch(backward_kernel, dim3(c.position_blocks, c.lane_blocks, c.splits),
		THREADS, bytes, stream, s, batch, c, step);
}
