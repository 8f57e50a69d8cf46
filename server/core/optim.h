/*
 * optim.h - what turns gradients into updates: the optimizers and the schedules of their rate, as
 * pure functions on flat slices.
 *
 * The formulas are PyTorch's (torch.optim, 2.x), so that its users find what they know: weight
 * decay is added to the gradient, epsilon stands outside the root, Adam's moments are corrected for
 * their start, RMSprop is not centred, momentum has no dampening and its first value is the
 * gradient. Sources: Duchi 2011 (adagrad), Tieleman & Hinton 2012 (rmsprop), Kingma & Ba 2015
 * (adam), Nesterov 1983 as Sutskever 2013 writes it, Smith 2018 (one-cycle), Loshchilov 2017
 * (cosine).
 *
 * No contraction into fused multiply-add is allowed (the Makefile compiles the core with
 * -ffp-contract=off), so every clone of a loop gives the same bits: a checkpoint continues
 * bit-exactly on another CPU.
 */
#ifndef SERVER_CORE_OPTIM_H
#define SERVER_CORE_OPTIM_H
#include <stddef.h>
#include <stdint.h>
#include "server/core/config.h"

#define OPTIM_VECTORS 2 /* most vectors of state that an optimizer has */

/* Vectors of n values of state that an optimizer of this kind has: 0, 1 or 2. */
size_t optim_vectors(enum optim_kind kind);
/* 1 if vector `i` of the state is made of squares: never below 0. */
int optim_is_square(enum optim_kind kind, size_t i);
/* What vector `i` of the state holds before the first step. */
float optim_first(const struct optim *o, size_t i);
/* What clipping multiplies a gradient with, whose squares sum to `squares`. */
double optim_clip(const struct optim *o, double squares);

/* base^n, the same bits on every CPU, as libm does not promise. */
double optim_power(double base, uint64_t n);

/* One step on n values: `to` (may be `w`, else apart) = w - ... of scale * g. `step` counts from 1;
 * `state`: optim_vectors(kind) pointers, changed. */
struct optim_step {
	uint64_t step;
	double rate, scale;
};
void optim_apply(const struct optim *o, const struct optim_step *s, float *to, const float *w,
	const float *g, float *const state[OPTIM_VECTORS], size_t n);

/* ---- how far a step can go ------------------------------------------------------------------ */

/* Upper bounds of magnitudes. They decide before a step, in constant time, whether all values stay
 * finite: no value needs to be computed twice, and nothing needs to be taken back. */
struct optim_reach {
	double weight, state[OPTIM_VECTORS];
	double ratio; /* adam: first moment / (root of the second + eps) */
};

/* The exact bounds of n values, before step `s`. Reads every value. */
void optim_measure(const struct optim *o, const struct optim_step *s, const float *w,
	const float *const state[OPTIM_VECTORS], size_t n, struct optim_reach *r);
/* The bounds after step `s` with a gradient of at most `peak` in magnitude. 1: every value, also
 * those in between, is a finite float32. 0: one might not be; *r is then unspecified. */
int optim_advance(
	const struct optim *o, const struct optim_step *s, double peak, struct optim_reach *r);

/* ---- the rate over a run -------------------------------------------------------------------- */

/* What the rate is multiplied with after `done` of `total` images (>= 1) of `epochs` epochs;
 * 0 <= factor <= 1. total 0 (no known end): 1. */
double schedule_factor(const struct schedule *s, uint64_t done, uint64_t total, uint32_t epochs);

/* ---- the rate by the number of workers ------------------------------------------------------ */

/* The configured rate is that of one worker. An update from n gradients of the same weights may
 * take a larger step (Goyal 2017, arXiv 1706.02677: n times for SGD; Malladi 2022, arXiv
 * 2205.10287: the square root of n for adaptive optimizers), and a gradient that is tau versions
 * old a smaller one (Zhang 2016, arXiv 1511.05950). Both are one rule: n gradients per update and
 * staleness tau give the ratio n / (1 + tau). */
/* The factor of the rate for `ratio` (> 0), after `done` updates. A factor above 1 rises to its
 * value on a straight line from 1 in the first `warmup` updates (Goyal's gradual warm-up). */
double lr_scaling_factor(enum lr_scaling how, double ratio, uint64_t done, uint32_t warmup);

#endif
