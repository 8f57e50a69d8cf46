/*
 * gemm.cuh - the inner loop of an implicit GEMM: the product of one pipeline stage in each
 * precision.
 *
 * A warp computes MI x NJ tiles of 16 x 8. A thread holds the values of a tile that mma.m16n8
 * assigns to it (PTX ISA, "Matrix Fragments"): rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2
 * and lane % 4 * 2 + 1. The fp32 products use plain FFMA with the same layout, so all precisions
 * share one epilogue.
 *
 * In bf16 thread t loads its four values of K at t, t + 4, t + 8 and t + 12, where mma expects 2t,
 * 2t + 1, 2t + 8 and 2t + 9. The values of K of both operands are permuted alike, so the sum is the
 * same. The loads have no bank conflicts in this order.
 */
#ifndef KERNELS_CUDA_MMA_GEMM_CUH
#define KERNELS_CUDA_MMA_GEMM_CUH
#include <cuda_bf16.h>
#include "kernels/cuda/base/common.cuh"

#define GEMM_THREADS 128
#define GEMM_STAGES  3

/* Adds half a unit of the last place of tf32 to x. The tensor core then truncates the low 13 bits,
 * so that x is rounded to the nearest tf32. The maximum keeps the NaN that GPUs compute,
 * 0x7fffffff: the sum alone would be negative and truncated to -0. Hopper computes sum and maximum
 * in one instruction. */
__device__ static inline uint32_t to_tf32(float x)
{
	const int bits = __float_as_int(x);

	return (uint32_t)max((int)((uint32_t)bits + 0x1000u), bits);
}

__device__ static inline uint32_t to_bf16x2(float lo, float hi)
{
	__nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);

	return *reinterpret_cast<uint32_t *>(&v);
}

__device__ static inline void mma_tf32(float *c, const uint32_t *a, const uint32_t *b)
{
	asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
	    "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ static inline void mma_bf16_tile(float *c, const uint32_t *a, const uint32_t *b)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
	    "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Operand `a` of a stage: value (m, k) is at m * M + k * K. One of the strides M and K is 1. The
 * other one is 4 (M) or 8 (K) modulo 32, so the 8 x 4 values that a warp loads are in 32 different
 * banks. Value (k, n) of operand `b` is at k * pitch + n. */
template <int M, int K> struct tile_a {
	const float *at;
	__device__ float get(int m, int k) const
	{
		return at[m * M + k * K];
	}
};

template <int K, int MI, int NJ, class A>
__device__ static inline void stage_tf32(
	float (&c)[MI][NJ][4], A a, const float *b, int pitch, int r, int t)
{
#pragma unroll
	for (int k = 0; k < K; k += 8) {
		uint32_t x[MI][4], y[NJ][2];
#pragma unroll
		for (int i = 0; i < MI; i++)
#pragma unroll
			for (int q = 0; q < 4; q++)
				x[i][q] = to_tf32(a.get(16 * i + r + q % 2 * 8, k + t + q / 2 * 4));
#pragma unroll
		for (int j = 0; j < NJ; j++)
#pragma unroll
			for (int q = 0; q < 2; q++)
				y[j][q] = to_tf32(b[(k + t + 4 * q) * pitch + 8 * j + r]);
#pragma unroll
		for (int i = 0; i < MI; i++)
#pragma unroll
			for (int j = 0; j < NJ; j++)
				mma_tf32(c[i][j], x[i], y[j]);
	}
}

/* Splits x into two terms: x = hi + lo. The tensor core truncates hi and lo to tf32. */
__device__ static inline void split_hi_lo(float x, uint32_t *hi, uint32_t *lo)
{
	*hi = __float_as_uint(x) & 0xffffe000u;
	*lo = __float_as_uint(x - __uint_as_float(*hi));
}

template <int K, int MI, int NJ, class A>
__device__ static inline void stage_3xtf32(
	float (&c)[MI][NJ][4], A a, const float *b, int pitch, int r, int t)
{
#pragma unroll
	for (int k = 0; k < K; k += 8) {
		uint32_t hi[NJ][2], lo[NJ][2];
#pragma unroll
		for (int j = 0; j < NJ; j++)
#pragma unroll
			for (int q = 0; q < 2; q++)
				split_hi_lo(b[(k + t + 4 * q) * pitch + 8 * j + r], &hi[j][q],
					&lo[j][q]);
#pragma unroll
		for (int i = 0; i < MI; i++) {
			uint32_t x[4], x_lo[4];
#pragma unroll
			for (int q = 0; q < 4; q++)
				split_hi_lo(a.get(16 * i + r + q % 2 * 8, k + t + q / 2 * 4), &x[q],
					&x_lo[q]);
#pragma unroll
			for (int j = 0; j < NJ; j++) {
				mma_tf32(c[i][j], x_lo, hi[j]);
				mma_tf32(c[i][j], x, lo[j]);
				mma_tf32(c[i][j], x, hi[j]);
			}
		}
	}
}

template <int K, int MI, int NJ, class A>
__device__ static inline void stage_bf16(
	float (&c)[MI][NJ][4], A a, const float *b, int pitch, int r, int t)
{
#pragma unroll
	for (int k = 0; k < K; k += 16) {
		uint32_t x[MI][4], y[NJ][2];
#pragma unroll
		for (int i = 0; i < MI; i++)
#pragma unroll
			for (int q = 0; q < 4; q++) {
				int m = 16 * i + r + q % 2 * 8, at = k + t + q / 2 * 8;

				x[i][q] = to_bf16x2(a.get(m, at), a.get(m, at + 4));
			}
#pragma unroll
		for (int j = 0; j < NJ; j++)
#pragma unroll
			for (int q = 0; q < 2; q++) {
				const float *from = b + (k + t + 8 * q) * pitch + 8 * j + r;

				y[j][q] = to_bf16x2(from[0], from[4 * pitch]);
			}
#pragma unroll
		for (int i = 0; i < MI; i++)
#pragma unroll
			for (int j = 0; j < NJ; j++)
				mma_bf16_tile(c[i][j], x[i], y[j]);
	}
}

template <int K, int MI, int NJ, class A>
__device__ static inline void stage_fp32(
	float (&c)[MI][NJ][4], A a, const float *b, int pitch, int r, int t)
{
#pragma unroll 4
	for (int k = 0; k < K; k++) {
		float x[MI][2], y[NJ][2];
#pragma unroll
		for (int i = 0; i < MI; i++) {
			x[i][0] = a.get(16 * i + r, k);
			x[i][1] = a.get(16 * i + r + 8, k);
		}
#pragma unroll
		for (int j = 0; j < NJ; j++) {
			float2 v = *reinterpret_cast<const float2 *>(b + k * pitch + 8 * j + 2 * t);

			y[j][0] = v.x;
			y[j][1] = v.y;
		}
#pragma unroll
		for (int i = 0; i < MI; i++)
#pragma unroll
			for (int j = 0; j < NJ; j++)
#pragma unroll
				for (int q = 0; q < 4; q++)
					c[i][j][q] = fmaf(x[i][q / 2], y[j][q % 2], c[i][j][q]);
	}
}

/* Adds the products of one pipeline stage to c, in precision P. K is the depth of the stage, a
 * multiple of 16. */
template <int P, int K, int MI, int NJ, class A>
__device__ static inline void stage_mma(
	float (&c)[MI][NJ][4], A a, const float *b, int pitch, int lane)
{
	if (P == KX_MATH_TF32)
		stage_tf32<K>(c, a, b, pitch, lane / 4, lane % 4);
	else if (P == KX_MATH_BF16)
		stage_bf16<K>(c, a, b, pitch, lane / 4, lane % 4);
	else if (P == KX_MATH_3XTF32)
		stage_3xtf32<K>(c, a, b, pitch, lane / 4, lane % 4);
	else
		stage_fp32<K>(c, a, b, pitch, lane / 4, lane % 4);
}

#endif
