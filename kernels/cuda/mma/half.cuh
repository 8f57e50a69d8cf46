/*
 * half.cuh - products of fp16 values on tensor cores.
 *
 * fp16 has less range than bf16. Operands are therefore multiplied by a *scale*: a power of two
 * that brings the largest value to the upper end of the range. Values below 2^-29 of the largest
 * then lose bits, which does not matter beside the largest. Two fp16 terms, hi (the rounded value)
 * and lo (the remainder), hold 22 bits.
 *
 * An fp16 whose lower byte is n and whose upper byte is 0 is the subnormal number n * 2^-24
 * (PIXEL_HALF), exactly. Pixels are therefore only unpacked and never converted.
 */
#ifndef KERNELS_CUDA_MMA_HALF_CUH
#define KERNELS_CUDA_MMA_HALF_CUH
#include <cuda_fp16.h>
#include "kernels/cuda/base/common.cuh"

/* The value of an fp16 whose bits are those of the pixel 1. */
#define PIXEL_HALF 0x1p-24f

#ifdef __CUDACC__
__device__ static inline void mma_half(float *c, uint4 a, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
	    "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* Does the same as mma_half, but with fp16 accumulators. c[0] has row lane / 4, and c[1] has row
 * lane / 4 + 8. Each word has two columns. */
__device__ static inline void mma_half_sums(uint32_t *c, uint4 a, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, "
	    "{%0,%1};"
		: "+r"(c[0]), "+r"(c[1])
		: "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ static inline uint32_t half_bits(__half2 v)
{
	return *reinterpret_cast<const uint32_t *>(&v);
}

__device__ static inline __half2 half_of(uint32_t bits)
{
	return *reinterpret_cast<const __half2 *>(&bits);
}

__device__ static inline uint32_t two_halves(float low, float high)
{
	return half_bits(__floats2half2_rn(low, high));
}

__device__ static inline uint32_t half_times(uint32_t a, uint32_t b)
{
	return half_bits(__hmul2(half_of(a), half_of(b)));
}

/* Returns the smallest power of two above |x|, clamped to 2^-99 .. 2^100. A product or quotient
 * with this power is exact. */
__device__ static inline float power_above(float x)
{
	const int exponent = (int)(__float_as_uint(x) >> 23 & 255);

	return __uint_as_float((uint32_t)(min(max(exponent, 27), 226) + 1) << 23);
}

/* Returns 1 / power exactly. `power` is a power of two. */
__device__ static inline float inverse(float power)
{
	return __uint_as_float((254u << 23) - __float_as_uint(power));
}
#endif

#endif
