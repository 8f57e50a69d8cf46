/*
 * cpu_pack.h - parameters from the order of the manifest into the order of the inner loops, and
 * gradients back. Each call does one of `parts` shares, so that a team can split the work.
 */
#ifndef KERNELS_CPU_PACK_H
#define KERNELS_CPU_PACK_H
#include "kernels/cpu_plan.h"

/* One of `parts` shares of work. */
struct share {
	size_t part, parts;
};

/* The part of 0..n that share `s` covers: [*begin, *end). */
void share_range(struct share s, size_t n, size_t *begin, size_t *end);
/* `packed` has plan->packed_floats, its padding zero. */
void pack_params(const struct plan *p, struct share s, const float *params, float *packed);
/* grad = scale * the sum of the n threads' sum[i] (plan->grad_floats each), in the order of i. */
void unpack_gradient(const struct plan *p, struct share s, float *const *sum, size_t n, float scale,
	float *grad);

#endif
