/*
 * kx_common.cuh - what every .cu file starts with.
 */
#ifndef KERNELS_KX_COMMON_CUH
#define KERNELS_KX_COMMON_CUH
#include "kernels/kx.h"

/* The status of the launch just made. KX_SYNC=1 builds wait for it, to find the guilty one. */
#ifdef KX_SYNC
#define KX_LAUNCHED() (cudaDeviceSynchronize() == cudaSuccess ? PS_OK : PS_EDEVICE)
#else
#define KX_LAUNCHED() (cudaGetLastError() == cudaSuccess ? PS_OK : PS_EDEVICE)
#endif

static inline unsigned blocks_for(size_t n, unsigned threads)
{
	size_t blocks = (n + threads - 1) / threads;
	const size_t most = 132 * 64; /* kernels over values go on with a stride */
	return (unsigned)(blocks < most ? blocks : most);
}

#define FOR_EACH(i, n)                                                                             \
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < (n);                    \
		i += (size_t)gridDim.x * blockDim.x)

#ifdef __CUDACC__
__device__ static inline size_t image_number(const struct kx_batch *b, int n)
{
	return b->index ? b->index[(size_t)b->now->step * b->images + n] : b->now->first + n;
}
#endif

#endif
