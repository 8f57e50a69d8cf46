/*
 * kx_seed.cuh - what the two halves of the seed nets' kernels share.
 */
#ifndef KERNELS_KX_SEED_CUH
#define KERNELS_KX_SEED_CUH
#include "kernels/kx_conv.cuh"
#include "kernels/kx_seed.h"

#define SEED_ROW_USED 10 /* 9 weights and a bias; 10 classes */

#ifdef __CUDACC__
/* now->step is that of the graph's first step: written at its end only. */
__device__ static inline size_t seed_number(const struct kx_batch &b, int step, int n)
{
	return b.index ? b.index[((size_t)b.now->step + step) * b.images + n] : b.now->first + n;
}

__device__ static inline const uint8_t *seed_image(const struct kx_batch &b, int step, int n)
{
	return b.pixels + seed_number(b, step, n) * (SEED_SIDE * SEED_SIDE);
}

/* Where the manifest has filter f's weight k; k = 9: its bias. */
__device__ static inline size_t seed_conv_at(const struct kx_seed &s, int f, int k)
{
	return k < 9 ? (size_t)f * 9 + k : (size_t)s.f * 9 + f;
}

__device__ static inline void seed_fragment(const struct kx_seed &s, size_t i)
{
	conv_fragment<3>(s.fragments, s.params.conv, SEED_ROW, i);
}
#endif

#endif
