/*
 * chunk.h - describes consecutive windows of a weighted step as a struct chunk of simd.h.
 */
#ifndef KERNELS_CPU_CHUNK_H
#define KERNELS_CPU_CHUNK_H
#include "kernels/cpu/lane.h"

/* Returns windows [window, window + n) of step i, counted over all images of a block. For each
 * window of the block, `out` has a pointer to its values or gradients in the output activation. */
struct chunk chunk_at(const struct lane *l, size_t i, float *const *out, size_t window, size_t n);

#endif
