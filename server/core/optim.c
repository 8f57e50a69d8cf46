/*
 * optim.c - the optimizers on a flat slice, in place or from one vector to another.
 *
 * No contraction into fused multiply-add is allowed (the Makefile compiles the core with
 * -ffp-contract=off), so every clone below gives the same bits: a checkpoint continues bit-exactly
 * on another CPU.
 */
#include "server/core/state.h"
#include <math.h>

PS_CLONES void optim_sgd(float *to, const float *w, const float *restrict g, size_t n, float eta)
{
	PS_APART
	for (size_t i = 0; i < n; i++)
		to[i] = w[i] - eta * g[i];
}

/* Duchi, Hazan, Singer 2011, with epsilon outside the root as PyTorch has it. */
PS_CLONES void optim_adagrad(float *to, const float *w, float *restrict acc,
	const float *restrict g, size_t n, float eta, float eps)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		acc[i] += g[i] * g[i];
		to[i] = w[i] - eta * g[i] / (sqrtf(acc[i]) + eps);
	}
}
