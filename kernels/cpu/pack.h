/*
 * pack.h - parameters from the order of the manifest into the order of the inner loops, and
 * gradients back. Each call does one of `parts` shares, so that a team can split the work.
 */
#ifndef KERNELS_CPU_PACK_H
#define KERNELS_CPU_PACK_H
#include "kernels/cpu/plan.h"

/* One of `parts` shares of work. */
struct share {
	size_t part, parts;
};

/* The part of 0..n that share `s` covers: [*begin, *end). */
void share_range(struct share s, size_t n, size_t *begin, size_t *end);
/* `packed` has plan->packed_floats, its padding zero. */
void pack_params(const struct plan *p, struct share s, const float *params, float *packed);
/* sum[0] += sum[1], then sum[2], up to the n threads' sum[n - 1] (plan->grad_floats each). */
void sum_gradients(const struct plan *p, struct share s, float *const *sum, size_t n);
/* grad = scale * sum. */
void unpack_gradient(
	const struct plan *p, struct share s, const float *sum, float scale, float *grad);

#endif
