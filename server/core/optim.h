/*
 * optim.h - turns gradients into updates: the optimizers and the schedules of the learning rate, as
 * pure functions on arrays of values.
 *
 * The formulas are those of PyTorch (torch.optim, 2.x): weight decay is added to the gradient,
 * epsilon is added outside the square root, Adam's moments are bias-corrected, RMSprop is not
 * centred, and momentum has no dampening and starts with the first gradient. Subnormal numbers
 * count as 0 (common/subnormals.h). The sources are Duchi 2011 (adagrad), Tieleman & Hinton 2012
 * (rmsprop), Kingma & Ba 2015 (adam), Nesterov 1983 in the form of Sutskever 2013 (nesterov), Smith
 * 2018 (one-cycle) and Loshchilov 2017 (cosine).
 *
 * The compiler must not contract operations into fused multiply-add (the Makefile compiles the core
 * with -ffp-contract=off). The clones of a loop for different instruction sets (common/clones.h)
 * then compute the same bits, so a run continues bit-exactly from a checkpoint on another CPU.
 */
#ifndef SERVER_CORE_OPTIM_H
#define SERVER_CORE_OPTIM_H
#include <stddef.h>
#include <stdint.h>
#include "common/param_device.h"
#include "server/core/config.h"

#define OPTIM_VECTORS PARAM_DEVICE_VECTORS /* maximum number of state vectors of an optimizer */

/* Returns the number of state vectors of an optimizer, each with one value per weight: 0, 1 or
 * 2. */
size_t optim_vectors(enum optim_kind kind);
/* Returns 1 if state vector `i` consists of squares, which are never below 0. */
int optim_is_square(enum optim_kind kind, size_t i);
/* Returns the initial value of every element of state vector `i`. */
float optim_first(const struct optim *o, size_t i);
/* Returns the factor, at most 1, by which clipping multiplies a gradient. `squares` is the sum of
 * the squares of the gradient's values. */
double optim_clip(const struct optim *o, double squares);

/* Returns base^n. Unlike libm's pow, the function returns the same bits on every CPU. */
double optim_power(double base, uint64_t n);

/* optim_apply takes one step of the optimizer on n values. The weights are `w` and the gradient is
 * `scale * g`. The function writes the new weights to `to`, which is either `w` itself or does not
 * overlap `w`, and updates the first optim_vectors(kind) vectors of `state`. `step` counts from
 * 1. */
struct optim_step {
	uint64_t step;
	double rate, scale;
};
void optim_apply(const struct optim *o, const struct optim_step *s, float *to, const float *w,
	const float *g, float *const state[OPTIM_VECTORS], size_t n);
/* Return the rule and the constants with which a device (common/param_device.h) takes the same step
 * as optim_apply. `kind` must not be OPTIM_LBFGS. */
enum device_rule optim_device_rule(enum optim_kind kind);
struct step_coeff optim_coeff(const struct optim *o, const struct optim_step *s);

/* ---- how far a step can go ------------------------------------------------------------------ */

/* This struct has upper bounds of the magnitudes of the weights and of the optimizer's state. These
 * bounds show before a step, in constant time, that all values will stay finite, so the core never
 * has to undo a step. */
struct optim_reach {
	double weight, state[OPTIM_VECTORS];
	double ratio; /* adam: bound of |first moment| / (sqrt(second moment) + eps) */
};

/* Sets *r to the exact bounds of n values before step `s`. Reads every value. */
void optim_measure(const struct optim *o, const struct optim_step *s, const float *w,
	const float *const state[OPTIM_VECTORS], size_t n, struct optim_reach *r);
/* Advances the bounds *r by step `s` with a gradient of magnitude at most `peak`. Returns 1 if
 * every value of this step, intermediate results included, is sure to be a finite float32. Returns
 * 0 if a value might not be finite; *r is then unspecified. */
int optim_advance(
	const struct optim *o, const struct optim_step *s, double peak, struct optim_reach *r);

/* ---- the rate over a run -------------------------------------------------------------------- */

/* Returns the factor by which the schedule multiplies the learning rate after `done` images, from 0
 * to 1. The run has `total` images in `epochs` epochs. If `total` is 0, the end of the run is not
 * known, and the factor is 1. */
double schedule_factor(const struct schedule *s, uint64_t done, uint64_t total, uint32_t epochs);

/* ---- the rate by the number of workers ------------------------------------------------------ */

/* The configured learning rate is the right one for a run with one worker. An update from n
 * gradients of the same weights may take a larger step (Goyal 2017, arXiv 1706.02677: n times for
 * SGD; Malladi 2022, arXiv 2205.10287: the square root of n for adaptive optimizers). A gradient
 * that is tau versions old should take a smaller step (Zhang 2016, arXiv 1511.05950). One formula
 * covers larger and smaller steps: an update from n gradients of staleness tau has the ratio n / (1
 * + tau). */

/* Returns the factor of the learning rate for `ratio` (> 0) after `done` updates. If the factor is
 * above 1, it rises linearly from 1 during the first `warmup` updates (Goyal's gradual warmup). */
double lr_scaling_factor(enum lr_scaling how, double ratio, uint64_t done, uint32_t warmup);

#endif
