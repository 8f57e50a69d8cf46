/*
 * pack.h - copies parameters from the order of the manifest to the order of the inner loops, and
 * gradients back. Each call does one of `parts` shares of the work, so that a team can divide it.
 */
#ifndef KERNELS_CPU_PACK_H
#define KERNELS_CPU_PACK_H
#include "kernels/cpu/plan.h"

/* Share number `part` of work that is divided into `parts` shares. */
struct share {
	size_t part, parts;
};

/* Sets [*begin, *end) to the part of 0..n that belongs to share `s`. */
void share_range(struct share s, size_t n, size_t *begin, size_t *end);
/* Copies `params`, in the order of the manifest, to `packed`, which has plan->packed_floats floats.
 * The padding of `packed` must be zero and stays zero. `room` is scratch memory of plan->max_taps
 * floats; each thread needs its own. */
void pack_params(
	const struct plan *p, struct share s, const float *params, float *packed, float *room);
/* Adds the vectors sum[1], sum[2], ..., sum[n - 1] to sum[0], in this order. Each vector has
 * plan->grad_floats floats. */
void sum_gradients(const struct plan *p, struct share s, float *const *sum, size_t n);
/* Writes scale * sum to `grad` in the order of the manifest. `room`: as for pack_params. */
void unpack_gradient(const struct plan *p, struct share s, const float *sum, float scale,
	float *grad, float *room);

#endif
