/* xxh3.h - the C interface of xxh3.cu, with the rules of kernels.h. */
#ifndef KERNELS_CUDA_BASE_XXH3_H
#define KERNELS_CUDA_BASE_XXH3_H
#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Computes the sums of all blocks of `data` but the last (common/xxh3_sums.h), and copies the last
 * XXH3_TAIL bytes to `tail`. `bytes` must be at least XXH3_TAIL and a multiple of 4. `sums` and
 * `tail` may be page-locked memory of the host. */
int kx_xxh3_sums(const void *data, size_t bytes, void *sums, void *tail, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
