/*
 * tile.cuh - operands of the tensor cores in shared memory, for bf16 and for tf32.
 *
 * A k step is 32 bytes of K: 16 bf16 or 8 fp32 values, the depth of one mma. ldmatrix copies 8 x 8
 * bf16, or 8 x 4 fp32, so the same addresses serve both types, as long as K is contiguous. An
 * operand whose K is not contiguous needs the transposing ldmatrix, which exists for 16 bits only;
 * fp32 values are then loaded one by one. Rows are padded by 16 bytes (by 32 where fp32 values are
 * loaded one by one), so that no two of these accesses of a warp share a bank.
 */
#ifndef KERNELS_CUDA_TENSOR_TILE_CUH
#define KERNELS_CUDA_TENSOR_TILE_CUH
#include "kernels/cuda/mma/gemm.cuh"
#include "kernels/cuda/tensor/tensor.h"

template <class T> struct type_of;
template <> struct type_of<__nv_bfloat16> {
	/* STEP: number of values of K in one mma */
	static const int BYTES = 2, VECTOR = 8, STEP = 16;
	static const int PAD = 16;
};
template <> struct type_of<float> {
	static const int BYTES = 4, VECTOR = 4, STEP = 8;
	static const int PAD = 32;
};

__device__ static inline int divide_by(int n, const struct kx_divisor &d)
{
	return d.value == 1 ? n : (int)(__umulhi((uint32_t)n, d.multiplier) >> d.shift);
}

/* Does the same as copy_async, but through the L1 cache. The block uses this function for values
 * that it reads again under other taps. */
__device__ static inline void copy_cached(void *to, const void *from, bool valid)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
		     "l"(from), "r"(valid ? 16 : 0)
		     : "memory");
}

__device__ static inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t at)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(at)
		     : "memory");
}

__device__ static inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t at)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(at)
		     : "memory");
}

/* Returns the tf32 number nearest to x. The low 13 bits of the result are zero. */
__device__ static inline float nearest_tf32(float x)
{
	uint32_t bits;

	asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
	return __uint_as_float(bits);
}

__device__ static inline uint32_t shared_tf32(const unsigned char *at)
{
	return to_tf32(*reinterpret_cast<const float *>(at));
}

/* Loads operand A, 16 rows x one k step, from rows of contiguous K. */
template <class T>
__device__ static inline void load_a(
	uint32_t (&a)[4], const unsigned char *s, int pitch, int row, int k_bytes, int lane)
{
	ldmatrix_x4(a, shared_address(s + (row + lane % 16) * pitch + k_bytes + lane / 16 * 16));
	if (sizeof(T) == 4)
		for (int i = 0; i < 4; i++)
			a[i] = to_tf32(__uint_as_float(a[i]));
}

/* Loads operand B, 16 columns x one k step, from rows (one per column) of contiguous K. */
template <class T>
__device__ static inline void load_b(
	uint32_t (&b)[4], const unsigned char *s, int pitch, int column, int k_bytes, int lane)
{
	ldmatrix_x4(b, shared_address(s + (column + lane % 8 + lane / 16 * 8) * pitch + k_bytes +
				      lane / 8 % 2 * 16));
	if (sizeof(T) == 4)
		for (int i = 0; i < 4; i++)
			b[i] = to_tf32(__uint_as_float(b[i]));
}

/* Loads operand A, 16 columns of s x one k step. K runs over the rows of s. */
template <class T>
__device__ static inline void load_a_across(
	uint32_t (&a)[4], const unsigned char *s, int pitch, int k, int column, int lane)
{
	if (sizeof(T) == 2) {
		load_matrices_transposed(
			a, shared_address(s + (k + lane % 8 + lane / 16 * 8) * pitch +
					  (column + lane / 8 % 2 * 8) * 2));
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++)
			a[i] = shared_tf32(s + (k + lane % 4 + i / 2 * 4) * pitch +
					   (column + lane / 4 + i % 2 * 8) * 4);
	}
}

/* Loads operand B, 16 columns of s x one k step. K runs over the rows of s. */
template <class T>
__device__ static inline void load_b_across(
	uint32_t (&b)[4], const unsigned char *s, int pitch, int k, int column, int lane)
{
	if (sizeof(T) == 2) {
		load_matrices_transposed(b,
			shared_address(s + (k + lane % 16) * pitch + (column + lane / 16 * 8) * 2));
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i] = shared_tf32(s + (k + lane % 4 + i % 2 * 4) * pitch +
					   (column + lane / 4 + i / 2 * 8) * 4);
	}
}

template <class T>
__device__ static inline void mma_tile(float *c, const uint32_t *a, const uint32_t *b)
{
	if (sizeof(T) == 2)
		mma_bf16_tile(c, a, b);
	else
		mma_tf32(c, a, b);
}

/* The warps that have share 0 of the depth add the sums of the other shares, in order. `tile` is
 * the number of the warp among those of its share. */
template <int WARPS, int SHARES, int MI, int NJ>
__device__ static inline void add_shares(float (&c)[MI][NJ][4], float4 *shared, int share, int tile)
{
	const int n = MI * NJ, next = WARPS * n * 32;
	float4 *mine = shared + tile * n * 32 + threadIdx.x % 32;

	__syncthreads();
#pragma unroll
	for (int i = 0; i < n && share > 0; i++) {
		const float *v = c[i / NJ][i % NJ];

		mine[(share - 1) * next + i * 32] = {v[0], v[1], v[2], v[3]};
	}
	__syncthreads();
	for (int k = 0; k < SHARES - 1 && share == 0; k++)
#pragma unroll
		for (int i = 0; i < n; i++) {
			const float4 v = mine[k * next + i * 32];
			float *sum = c[i / NJ][i % NJ];

			sum[0] += v.x;
			sum[1] += v.y;
			sum[2] += v.z;
			sum[3] += v.w;
		}
}

/* Stores two neighbouring values of a tensor. */
__device__ static inline void store_pair(float *to, float x, float y)
{
	*reinterpret_cast<float2 *>(to) = {x, y};
}
__device__ static inline void store_pair(__nv_bfloat16 *to, float x, float y)
{
	*reinterpret_cast<__nv_bfloat162 *>(to) = __floats2bfloat162_rn(x, y);
}
__device__ static inline float2 load_pair(const float *from)
{
	return *reinterpret_cast<const float2 *>(from);
}
__device__ static inline float2 load_pair(const __nv_bfloat16 *from)
{
	return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(from));
}
__device__ static inline void store_one(float *to, float x)
{
	*to = x;
}
__device__ static inline void store_one(__nv_bfloat16 *to, float x)
{
	*to = __float2bfloat16_rn(x);
}
__device__ static inline float load_one(const float *from)
{
	return *from;
}
__device__ static inline float load_one(const __nv_bfloat16 *from)
{
	return __bfloat162float(*from);
}

#endif
