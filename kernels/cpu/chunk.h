/*
 * chunk.h - describes consecutive windows of a weighted step as a struct chunk of simd.h.
 */
#ifndef KERNELS_CPU_CHUNK_H
#define KERNELS_CPU_CHUNK_H
#include "kernels/cpu/lane.h"

/* Returns windows [window, window + n) of step i, counted over all images of a block. `out` points
 * to the values or the gradients of the output activation, for each window of the block. */
struct chunk chunk_at(const struct lane *l, size_t i, float *const *out, size_t window, size_t n);

#endif
