/*
 * kx_second.cuh - what forward and the packing of its weights share: a value as the sum of two
 * bf16 numbers.
 */
#ifndef KERNELS_KX_SECOND_CUH
#define KERNELS_KX_SECOND_CUH
#include <cuda_bf16.h>
#include "kernels/kx_second.h"

#define SECOND_TAPS   (SECOND_SIZE * SECOND_SIZE)
#define SECOND_POOLED (SECOND_OUT / 2)
#define SECOND_PIECES 2

#ifdef __CUDACC__
__device__ static inline uint32_t two_bf16(float low, float high)
{
	__nv_bfloat162 v = __floats2bfloat162_rn(low, high);
	return *reinterpret_cast<uint32_t *>(&v);
}

/* low and high as pairs of bf16 in piece[0], and what is left of them in piece[1]. */
__device__ static inline void two_pieces(uint32_t (&piece)[SECOND_PIECES], float low, float high)
{
	piece[0] = two_bf16(low, high);
	piece[1] = two_bf16(low - __uint_as_float(piece[0] << 16),
		high - __uint_as_float(piece[0] & 0xffff0000u));
}

/* Four 8 x 8 matrices of 16 bits, or 8 x 4 of 32: lane i has the address of row i % 8 of matrix
 * i / 8, and gets word i % 4 of row i / 4 of each. */
__device__ static inline uint4 load_matrices(uint32_t at)
{
	uint4 v;
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "r"(at));
	return v;
}
#endif

#endif
