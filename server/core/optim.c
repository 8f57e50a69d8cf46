/*
 * optim.c - the optimizers, in place on a flat slice.
 *
 * No contraction into fused multiply-add is allowed (the Makefile compiles the core with
 * -ffp-contract=off), so every clone below gives the same bits: a checkpoint continues bit-exactly
 * on another CPU.
 */
#include "server/core/state.h"
#include <math.h>

PS_CLONES void optim_sgd(float *restrict w, const float *restrict g, size_t n, float eta)
{
	for (size_t i = 0; i < n; i++)
		w[i] -= eta * g[i];
}

/* Duchi, Hazan, Singer 2011, with epsilon outside the root as PyTorch has it. */
PS_CLONES void optim_adagrad(float *restrict w, float *restrict acc, const float *restrict g,
	size_t n, float eta, float eps)
{
	for (size_t i = 0; i < n; i++) {
		acc[i] += g[i] * g[i];
		w[i] -= eta * g[i] / (sqrtf(acc[i]) + eps);
	}
}
