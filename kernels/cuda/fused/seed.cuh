/*
 * seed.cuh - helpers that the kernels of the seed networks share.
 */
#ifndef KERNELS_CUDA_FUSED_SEED_CUH
#define KERNELS_CUDA_FUSED_SEED_CUH
#include "kernels/cuda/mma/exact_conv.cuh"
#include "kernels/cuda/fused/seed.h"

/* number of floats of a row that are used: 9 weights and a bias, or 10 classes */
#define SEED_ROW_USED 10

#ifdef __CUDACC__
/* Returns the number that image n of the batch has in the data set. now->step is the first step of
 * the graph; only the last kernel of the graph advances it. */
__device__ static inline size_t seed_number(const struct kx_batch &b, int step, int n)
{
	return b.index ? b.index[((size_t)b.now->step + step) * b.images + n] : b.now->first + n;
}

__device__ static inline const uint8_t *seed_image(const struct kx_batch &b, int step, int n)
{
	return b.pixels + seed_number(b, step, n) * (SEED_SIDE * SEED_SIDE);
}

/* Returns the offset of weight k of filter f in the manifest. k = 9 is the bias. */
__device__ static inline size_t seed_conv_at(const struct kx_seed &s, int f, int k)
{
	return k < 9 ? (size_t)f * 9 + k : (size_t)s.f * 9 + f;
}

/* ---- fprop ----------------------------------------------------------------------------------- */

struct feature_weights {
	float4 a, b, c;
};

__device__ static inline struct feature_weights feature_load(const float *fc)
{
	const float4 *from = reinterpret_cast<const float4 *>(fc);

	return {__ldg(from), __ldg(from + 1), __ldg(from + 2)};
}

__device__ static inline void logits_add(
	float (&s)[SEED_CLASSES], float v, const struct feature_weights &w)
{
	const float x[SEED_CLASSES] = {
		w.a.x, w.a.y, w.a.z, w.a.w, w.b.x, w.b.y, w.b.z, w.b.w, w.c.x, w.c.y};
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		s[c] = fmaf(v, x[c], s[c]);
}

/* Adds up the logits of an image over the eight filters of the warp. Lanes 0 to 3 store the results
 * of their images. */
__device__ static inline void logits_reduce_filters(const float (&logit)[SEED_CLASSES], float *to)
{
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++) {
		float v = logit[c];
#pragma unroll
		for (int d = 4; d < 32; d *= 2)
			v += __shfl_xor_sync(0xffffffffu, v, d);
		if (threadIdx.x % 32 < 4)
			to[c] = v;
	}
}

/* ---- wgrad ----------------------------------------------------------------------------------- */

__device__ static inline float load_shared(uint32_t at)
{
	float v;

	asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
	return v;
}

/* Stores the fc gradient of a feature, times `scale`. */
__device__ static inline void seed_store_fc_wgrad(const struct kx_seed &s,
	const float (&sum)[SEED_CLASSES], float scale, int slice, int p, int f)
{
	float *out =
		s.fc_workspace + (((size_t)slice * SEED_POSITIONS + p) * s.f_pad + f) * SEED_ROW;
	float v[SEED_ROW] = {};
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		v[c] = sum[c] * scale;
#pragma unroll
	for (int c = 0; c < SEED_ROW; c += 4)
		*reinterpret_cast<float4 *>(out + c) = {v[c], v[c + 1], v[c + 2], v[c + 3]};
}

/* Adds up the conv gradients of the block's warps, in order, and stores them. A lane handles filter
 * f0 + lane. `shared` has WARPS * 32 * SEED_ROW floats. In the sums of the weights, pixels are
 * still integers from 0 to 255. */
template <int WARPS>
__device__ static inline void seed_store_conv_wgrad(const struct kx_seed &s, const float (&sum)[9],
	float bias, float *shared, int f0, int slice)
{
	float *mine = shared + threadIdx.x * SEED_ROW;

	__syncthreads();
#pragma unroll
	for (int k = 0; k < 9; k++)
		mine[k] = sum[k] * CONV_PIXEL;
	mine[9] = bias;
	mine[10] = mine[11] = 0;
	__syncthreads();
	for (int i = threadIdx.x; i < 32 * SEED_ROW; i += WARPS * 32) {
		float v = 0;
#pragma unroll
		for (int w = 0; w < WARPS; w++)
			v += shared[w * 32 * SEED_ROW + i];
		if (f0 + i / SEED_ROW < s.f_pad)
			s.conv_workspace[((size_t)slice * s.f_pad + f0) * SEED_ROW + i] = v;
	}
}
#endif

#endif
