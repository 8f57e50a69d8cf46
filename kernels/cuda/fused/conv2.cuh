/*
 * conv2.cuh - helpers of the conv2 kernels: hi/lo terms of fp16, matrix loads from shared memory,
 * and the scale of dY.
 */
#ifndef KERNELS_CUDA_FUSED_CONV2_CUH
#define KERNELS_CUDA_FUSED_CONV2_CUH
#include "kernels/cuda/mma/half.cuh"
#include "kernels/cuda/fused/conv2.h"

#define CONV2_TAPS   (CONV2_SIZE * CONV2_SIZE)
#define CONV2_POOLED (CONV2_OUT / 2)
#define CONV2_PIXELS (CONV2_IN * CONV2_IN)
/* The number of bytes that a group of eight channels takes in one image, and the number of bytes of
 * one term of an image. */
#define CONV2_GROUP_BYTES (CONV2_PIXELS * 16)
#define CONV2_TERM_BYTES  (CONV2_CHANNELS / 8 * CONV2_GROUP_BYTES)
/* The scale of the weights, which keeps their lo terms out of the subnormal range of fp16. */
#define CONV2_SCALE 64.0f

#ifdef __CUDACC__
/* Splits a value into a hi and a lo term. */
__device__ static inline void split_half_hi_lo(uint16_t (&term)[CONV2_TERMS], float v)
{
	const __half hi = __float2half_rn(v);

	term[0] = __half_as_ushort(hi);
	term[1] = __half_as_ushort(__float2half_rn(v - __half2float(hi)));
}

/* Loads four 8 x 8 matrices of 16-bit values. Lane i passes the address of row i % 8 of matrix i /
 * 8. Lane i receives columns i % 4 * 2 and i % 4 * 2 + 1 of row i / 4 of each matrix. */
__device__ static inline uint4 load_matrices(uint32_t at)
{
	uint4 v;

	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "r"(at)
		     : "memory");
	return v;
}

/* Loads four matrices as load_matrices does, but transposes each. */
__device__ static inline uint4 load_transposed(uint32_t at)
{
	uint4 v;

	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "r"(at)
		     : "memory");
	return v;
}

/* The inverse of load_transposed: stores four matrices, each transposed. */
__device__ static inline void store_transposed(uint32_t at, uint4 v)
{
	asm volatile(
		"stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
		"r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
		: "memory");
}

/* Multiplied by `up`, a power of two, values of up to `amax` are below 2^14. `down` is 1 / up. */
struct dy_scale {
	float up, down;
};

__device__ static inline struct dy_scale dy_scale_for(float amax)
{
	const int wanted = 267 - (int)(__float_as_uint(amax) >> 23 & 0xff);
	const uint32_t exponent = (uint32_t)max(27, min(227, wanted));

	return {__uint_as_float(exponent << 23), __uint_as_float((254 - exponent) << 23)};
}

__device__ static inline float warp_amax(float v)
{
	for (int d = 16; d; d /= 2)
		v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
	return v;
}

/* Returns the maximum of `v` over all threads of the block. `shared` has one float per warp. The
 * caller synchronises the block before other uses of `shared`. */
__device__ static inline float block_amax(float v, float *shared)
{
	const int warps = (int)blockDim.x / 32;

	v = warp_amax(v);
	if (threadIdx.x % 32 == 0)
		shared[threadIdx.x / 32] = v;
	__syncthreads();
	v = 0;
	for (int i = 0; i < warps; i++)
		v = fmaxf(v, shared[i]);
	return v;
}

/*
 * Stores a weight, times CONV2_SCALE, in both layouts. w_fprop is [tap][term][group of 8
 * channels][filter][channel], the core matrices of wgmma. w_dgrad is [tap][group of 16
 * filters][tile][lane][4][2], 16 bytes per lane for mma.m16n8k16. In w_dgrad row i of tile j is
 * channel i % 8 * 4 + 2 * j + i / 8. The four rows of a lane are therefore neighbouring channels.
 */
__device__ static inline void conv2_store_weight(
	uint16_t *w_fprop, uint16_t *w_dgrad, int f, int c, int tap, float weight)
{
	const int term = CONV2_FILTERS * CONV2_CHANNELS;
	const int tile = c / 2 % 2, lane = c / 4 * 4 + f / 2 % 4, word = c % 2 + f / 8 % 2 * 2;
	uint16_t v[CONV2_TERMS];

	split_half_hi_lo(v, weight * CONV2_SCALE);
	w_fprop += tap * (CONV2_TERMS * term) + (c / 8 * CONV2_FILTERS + f) * 8 + c % 8;
	w_fprop[0] = v[0];
	w_fprop[term] = v[1];
	w_dgrad[((((tap * 4 + f / 16) * 2 + tile) * 32 + lane) * 4 + word) * 2 + f % 2] = v[0];
}
#endif

#endif
