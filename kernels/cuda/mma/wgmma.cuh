/*
 * wgmma.cuh - matrix products of a warpgroup (four warps) with operands in shared memory. Needs
 * sm_90a.
 *
 * An operand consists of core matrices of 8 contiguous rows of 16 bytes (PTX ISA, "Matrix
 * descriptor", no swizzle). A row is one m or n; its 16 bytes are eight k. The next eight k start
 * next_k bytes further, and the next eight rows start next_rows bytes further.
 */
#ifndef KERNELS_CUDA_MMA_WGMMA_CUH
#define KERNELS_CUDA_MMA_WGMMA_CUH
#include "kernels/cuda/base/common.cuh"

#ifdef __CUDACC__
/* Only Hopper has these instructions, so code for other GPUs omits them. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#else
#define HOPPER_ASM(...)
#endif

__device__ static inline uint64_t wgmma_descriptor(uint32_t at, uint32_t next_k, uint32_t next_rows)
{
	return (uint64_t)(at >> 4) | (uint64_t)(next_k >> 4) << 16 |
	       (uint64_t)(next_rows >> 4) << 32;
}

/* Makes the thread's writes to shared memory visible to wgmma. Each thread that has written calls
 * this function before the barrier that precedes the products. */
__device__ static inline void wgmma_fence_smem()
{
	HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A batch of products starts with wgmma_fence and ends with wgmma_commit. */
__device__ static inline void wgmma_fence()
{
	HOPPER_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ static inline void wgmma_commit()
{
	HOPPER_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until all products before the last wgmma_commit are complete. */
__device__ static inline void wgmma_wait()
{
	HOPPER_ASM("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* The operands %0 to %N - 1 of a product: the sums d[0] to d[N - 1] of a thread. */
#define OPERANDS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define OPERANDS_32 OPERANDS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define OPERANDS_64                                                                                \
	OPERANDS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"             \
		    ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define SUMS_4_FROM(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16_FROM(d, i)                                                                         \
	SUMS_4_FROM(d, i), SUMS_4_FROM(d, i + 4), SUMS_4_FROM(d, i + 8), SUMS_4_FROM(d, i + 12)
#define SUMS_16(d) SUMS_16_FROM(d, 0)
#define SUMS_32(d) SUMS_16(d), SUMS_16_FROM(d, 16)
#define SUMS_64(d) SUMS_32(d), SUMS_16_FROM(d, 32), SUMS_16_FROM(d, 48)

/* Computes d += a * b in fp16, with 64 x 64 sums and K = 16. d[i] of a thread is row warp * 16 +
 * lane / 4 + 8 * (i / 2 % 2), column i / 4 * 8 + lane % 4 * 2 + i % 2. */
__device__ static inline void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" OPERANDS_32
		     "}, %32, %33, 1, 1, 1, 0, 0;"
		     : SUMS_32(d)
		     : "l"(a), "l"(b));
}

/* Computes d += a * b in fp16, with 64 x 32 sums and K = 16. `a` is in registers; each warp has 16
 * rows in the fragment layout of mma.m16n8k16. `b` is transposed: the rows of its core matrices are
 * k, and the 16 bytes of a row are eight n. */
__device__ static inline void wgmma_m64n32k16(float (&d)[16], uint4 a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {" OPERANDS_16
		     "}, {%16,%17,%18,%19}, %20, 1, 1, 1, 1;"
		     : SUMS_16(d)
		     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}

/* ---- lines of 128 bytes ---------------------------------------------------------------------- */

/* Returns the offset, in bytes, of vector number `vector` (16 bytes) of row number `line`, in an
 * operand with `lines` rows. The operand first has vectors 0 to 7 of all rows, 128 bytes per row,
 * then vectors 8 to 15 of all rows, and so on. Each of eight successive rows permutes its vectors
 * differently, so that the vectors of a column are in different banks (PTX ISA, "128B swizzle"). */
__device__ static inline int line_place(int line, int vector, int lines)
{
	return vector / 8 * lines * 128 + line * 128 + ((vector ^ line) % 8) * 16;
}

/* Describes an operand in lines of 128 bytes. A line has values of K for one m or n, or 64 values
 * of m or n for one k. In lines of one k, the next 64 m or n start `next` bytes further. The
 * address of line 0 is a multiple of 1024. */
__device__ static inline uint64_t wgmma_lines(uint32_t at, uint32_t next)
{
	return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(next >> 4) << 16 |
	       (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

/* Computes d += a * b in bf16, with 64 x 64 sums and K = 16. The layout of d is that of
 * wgmma_m64n64k16. A_ACROSS, B_ACROSS: the operand is in lines of 64 m (n) for one k. */
template <int A_ACROSS, int B_ACROSS>
__device__ static inline void wgmma_bf16(float (&d)[32], uint64_t a, uint64_t b)
{
	HOPPER_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" OPERANDS_32
		   "}, %32, %33, 1, 1, 1, %34, %35;"
		   : SUMS_32(d)
		   : "l"(a), "l"(b), "n"(A_ACROSS), "n"(B_ACROSS));
}

/* Computes d += a * b in bf16, with 64 x 128 sums and K = 16. The layout of d is that of
 * wgmma_m64n64k16. A_ACROSS, B_ACROSS: the operand is in lines of 64 m (n) for one k. */
template <int A_ACROSS, int B_ACROSS>
__device__ static inline void wgmma_bf16(float (&d)[64], uint64_t a, uint64_t b)
{
	HOPPER_ASM("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" OPERANDS_64
		   "}, %64, %65, 1, 1, 1, %66, %67;"
		   : SUMS_64(d)
		   : "l"(a), "l"(b), "n"(A_ACROSS), "n"(B_ACROSS));
}

/* Computes d += a * b in tf32, with 64 x 64 sums and K = 8. `a` is in registers, as in
 * wgmma_m64n32k16: each warp has 16 rows in the fragment layout of mma.m16n8k8. `b` is in lines of
 * K, as the instruction requires for tf32. The layout of d is that of wgmma_m64n64k16. */
__device__ static inline void wgmma_tf32(float (&d)[32], const uint32_t (&a)[4], uint64_t b)
{
	HOPPER_ASM("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" OPERANDS_32
		   "}, {%32,%33,%34,%35}, %36, 1, 1, 1;"
		   : SUMS_32(d)
		   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Computes d += a * b in tf32, with 64 x 128 sums and K = 8. `a`, `b` and the layout of d are as
 * for 64 x 64. */
__device__ static inline void wgmma_tf32(float (&d)[64], const uint32_t (&a)[4], uint64_t b)
{
	HOPPER_ASM("wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" OPERANDS_64
		   "}, {%64,%65,%66,%67}, %68, 1, 1, 1;"
		   : SUMS_64(d)
		   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#endif

#endif
