/*
 * wgmma.cuh - matrix products of a warpgroup (four warps) with operands in shared memory. Needs
 * sm_90a.
 *
 * An operand consists of core matrices of 8 contiguous rows of 16 bytes (PTX ISA, "Matrix
 * descriptor", no swizzle). A row is one m or n; its 16 bytes are eight k. The next eight k start
 * next_k bytes further, the next eight rows next_rows bytes further.
 */
#ifndef KERNELS_CUDA_MMA_WGMMA_CUH
#define KERNELS_CUDA_MMA_WGMMA_CUH
#include "kernels/cuda/base/common.cuh"

#ifdef __CUDACC__
__device__ static inline uint64_t wgmma_descriptor(uint32_t at, uint32_t next_k, uint32_t next_rows)
{
	return (uint64_t)(at >> 4) | (uint64_t)(next_k >> 4) << 16 |
	       (uint64_t)(next_rows >> 4) << 32;
}

/* Makes the thread's writes to shared memory visible to wgmma. Each thread that has written calls
 * it before the barrier that precedes the products. */
__device__ static inline void wgmma_fence_smem()
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A batch of products starts with wgmma_fence and ends with wgmma_commit. */
__device__ static inline void wgmma_fence()
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ static inline void wgmma_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits for all committed products. */
__device__ static inline void wgmma_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* d += a * b, 64 x 64, K = 16, fp16. d[i] of a thread is row warp * 16 + lane / 4 + 8 * (i / 2 %
 * 2), column i / 4 * 8 + lane % 4 * 2 + i % 2. */
__device__ static inline void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
		     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,"
		     "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
		     "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
		     "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
		     "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
		     "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
		     "+f"(d[30]), "+f"(d[31])
		     : "l"(a), "l"(b));
}

/* d += a * b, 64 x 32, K = 16, fp16. `a` is in registers; each warp has 16 rows in the fragment
 * layout of mma.m16n8k16. `b` is transposed: the rows of its core matrices are k, and the 16 bytes
 * of a row are eight n. */
__device__ static inline void wgmma_m64n32k16(float (&d)[16], uint4 a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
		     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, "
		     "%20, 1, 1, 1, 1;"
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
		     "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
		     "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
		     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
#endif

#endif
