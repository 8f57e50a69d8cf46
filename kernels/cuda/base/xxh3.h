/* xxh3.h - the C interface of xxh3.cu, as that of kernels.h. */
#ifndef KERNELS_CUDA_BASE_XXH3_H
#define KERNELS_CUDA_BASE_XXH3_H
#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Computes the sums of the first `blocks` blocks of `data` (common/xxh3_sums.h). */
int kx_xxh3_sums(const void *data, size_t blocks, void *sums, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
