/*
 * optim.c - see optim.h. Each optimizer is one loop, which reads every value once.
 *
 * Constants are computed in double precision and rounded once to float32, as in PyTorch. The
 * weights therefore differ from PyTorch's only by the rounding of float32.
 */
#include "server/core/optim.h"
#include "server/core/vec.h"
#include <float.h>
#include <math.h>
#include "common/clones.h"
#include "common/subnormals.h"

/* keeps the factor finite if the norm is 0; the value of PyTorch's clip_grad_norm_ */
#define CLIP_EPS 1e-6

size_t optim_vectors(enum optim_kind kind)
{
	switch (kind) {
	case OPTIM_ADAGRAD:
	case OPTIM_MOMENTUM:
	case OPTIM_NESTEROV:
	case OPTIM_RMSPROP:
		return 1;
	case OPTIM_ADAM:
		return 2;
	case OPTIM_SGD:
	case OPTIM_LBFGS:
	case OPTIM_KINDS:
		break;
	}
	return 0;
}

int optim_is_square(enum optim_kind kind, size_t i)
{
	return kind == OPTIM_ADAM ? i == 1 : kind == OPTIM_ADAGRAD || kind == OPTIM_RMSPROP;
}

float optim_first(const struct optim *o, size_t i)
{
	return i == 0 && o->kind == OPTIM_ADAGRAD ? (float)o->adagrad_init : 0;
}

double optim_clip(const struct optim *o, double squares)
{
	double factor = o->clip_norm / (sqrt(squares) + CLIP_EPS);

	return o->clip_norm > 0 && factor < 1 ? factor : 1;
}

double optim_power(double base, uint64_t n)
{
	double p = 1;

	for (; n; n >>= 1) {
		p = n & 1 ? p * base : p;
		base *= base;
	}
	return p;
}

/* Returns the gradient that an optimizer uses: the scaled gradient plus the weight decay. */
static inline float slope(const struct step_coeff *c, float w, float g)
{
	return c->scale * g + c->decay * w;
}

PS_CLONES static void sgd(
	const struct step_coeff c, float *to, const float *w, const float *restrict g, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++)
		to[i] = w[i] - c.rate * slope(&c, w[i], g[i]);
}

PS_CLONES static void momentum(const struct step_coeff c, float *to, const float *w,
	const float *restrict g, float *restrict velocity, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		velocity[i] = c.keep * velocity[i] + slope(&c, w[i], g[i]);
		to[i] = w[i] - c.rate * velocity[i];
	}
}

PS_CLONES static void nesterov(const struct step_coeff c, float *to, const float *w,
	const float *restrict g, float *restrict velocity, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		float d = slope(&c, w[i], g[i]);

		velocity[i] = c.keep * velocity[i] + d;
		to[i] = w[i] - c.rate * (d + c.keep * velocity[i]);
	}
}

PS_CLONES static void adagrad(const struct step_coeff c, float *to, const float *w,
	const float *restrict g, float *restrict sum, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		float d = slope(&c, w[i], g[i]);

		sum[i] += d * d;
		to[i] = w[i] - c.rate * d / (sqrtf(sum[i]) + c.eps);
	}
}

PS_CLONES static void rmsprop(const struct step_coeff c, float *to, const float *w,
	const float *restrict g, float *restrict mean, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		float d = slope(&c, w[i], g[i]);

		mean[i] = c.square_keep * mean[i] + c.square_add * (d * d);
		to[i] = w[i] - c.rate * d / (sqrtf(mean[i]) + c.eps);
	}
}

PS_CLONES static void adam(const struct step_coeff c, float *to, const float *w,
	const float *restrict g, float *restrict first, float *restrict second, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		float d = slope(&c, w[i], g[i]);

		first[i] = c.keep * first[i] + c.add * d;
		second[i] = c.square_keep * second[i] + c.square_add * (d * d);
		to[i] = w[i] - c.rate * first[i] / (sqrtf(second[i]) + c.eps);
	}
}

static struct step_coeff coeff_of(const struct optim *o, const struct optim_step *s)
{
	int adam = o->kind == OPTIM_ADAM;
	double first = adam ? o->beta1 : o->momentum;
	double second = adam ? o->beta2 : o->rmsprop_alpha;
	struct step_coeff c = {.rate = (float)s->rate,
		.scale = (float)s->scale,
		.decay = (float)o->weight_decay,
		.eps = (float)o->eps,
		.keep = (float)first,
		.add = (float)(1 - first),
		.square_keep = (float)second,
		.square_add = (float)(1 - second)};

	if (adam) {
		double root = sqrt(1 - optim_power(second, s->step));

		/* Adam's step is rate * corrected first moment / (sqrt(corrected second moment) +
		 * eps). The numerator and the denominator of this fraction are both multiplied by
		 * `root`, so that the loop over the values computes no correction. */
		c.rate = (float)(s->rate * root / (1 - optim_power(first, s->step)));
		c.eps = (float)(o->eps * root);
	}
	return c;
}

enum device_rule optim_device_rule(enum optim_kind kind)
{
	static const enum device_rule rules[OPTIM_KINDS] = {[OPTIM_SGD] = DEVICE_SGD,
		[OPTIM_ADAGRAD] = DEVICE_ADAGRAD,
		[OPTIM_MOMENTUM] = DEVICE_MOMENTUM,
		[OPTIM_NESTEROV] = DEVICE_NESTEROV,
		[OPTIM_RMSPROP] = DEVICE_RMSPROP,
		[OPTIM_ADAM] = DEVICE_ADAM};

	return rules[kind];
}

struct step_coeff optim_coeff(const struct optim *o, const struct optim_step *s)
{
	return coeff_of(o, s);
}

/* Calls the loop of the optimizer. */
static void apply(const struct optim *o, const struct optim_step *s, float *to, const float *w,
	const float *g, float *const state[OPTIM_VECTORS], size_t n)
{
	const struct step_coeff c = coeff_of(o, s);

	switch (o->kind) {
	case OPTIM_SGD:
		sgd(c, to, w, g, n);
		break;
	case OPTIM_ADAGRAD:
		adagrad(c, to, w, g, state[0], n);
		break;
	case OPTIM_MOMENTUM:
		momentum(c, to, w, g, state[0], n);
		break;
	case OPTIM_NESTEROV:
		nesterov(c, to, w, g, state[0], n);
		break;
	case OPTIM_RMSPROP:
		rmsprop(c, to, w, g, state[0], n);
		break;
	case OPTIM_ADAM:
		adam(c, to, w, g, state[0], state[1], n);
		break;
	case OPTIM_LBFGS: /* nothing to do: lbfgs.c takes the steps of L-BFGS */
	case OPTIM_KINDS:
		break;
	}
}

/* CPUs compute with subnormal numbers (below 1.2e-38) many times more slowly. The gradients of a
 * network that has learned its data are so small that their squares are subnormal, and the averages
 * of a gradient that stays 0 become subnormal. Therefore the CPU treats subnormal numbers as 0
 * here. */
void optim_apply(const struct optim *o, const struct optim_step *s, float *to, const float *w,
	const float *g, float *const state[OPTIM_VECTORS], size_t n)
{
	struct subnormals before = subnormals_are_0();

	apply(o, s, to, w, g, state, n);
	subnormals_restore(before);
}

/* ---- how far a step can go ------------------------------------------------------------------ */

/* maximum magnitude of intermediate results: half of the largest float32 */
#define REACH_LIMIT 1.7e38
#define ROOT_TINY   1.1e-19 /* the square root of the smallest normal float32 */

/* Returns an upper bound of the result of a few float32 operations whose exact result is x, even if
 * an intermediate result is denormal. */
static double rounded(double x)
{
	return 1.000001 * x + 1e-37;
}

/* Returns the bound of all values after a step. The step changes only values for which the push has
 * a gradient: their bound is now `after`. All others keep their magnitude, which is at most
 * `before`. */
static double bound_of_all(double before, double after)
{
	return vec_larger(rounded(after), before);
}

PS_CLONES static float magnitude(const float *v, size_t n)
{
	float max = 0;
	int wild = 0;

	for (size_t i = 0; i < n; i++) {
		float x = fabsf(v[i]);

		wild |= !(x <= FLT_MAX);
		max = x > max ? x : max;
	}
	return wild ? INFINITY : max;
}

PS_CLONES static float largest_ratio(const float *first, const float *second, float eps, size_t n)
{
	float max = 0;

	for (size_t i = 0; i < n; i++) {
		float x = fabsf(first[i]) / (sqrtf(second[i]) + eps);

		max = x > max ? x : max;
	}
	return max;
}

void optim_measure(const struct optim *o, const struct optim_step *s, const float *w,
	const float *const state[OPTIM_VECTORS], size_t n, struct optim_reach *r)
{
	*r = (struct optim_reach){.weight = (double)magnitude(w, n)};
	for (size_t i = 0; i < optim_vectors(o->kind); i++)
		r->state[i] = (double)magnitude(state[i], n);
	if (o->kind == OPTIM_ADAM)
		r->ratio =
			rounded((double)largest_ratio(state[0], state[1], coeff_of(o, s).eps, n));
}

/* Returns an upper bound of |d| / (sqrt(s) + eps) for s >= part * d * d, even if s is too small for
 * a normal float32. */
static double root_ratio(const struct step_coeff *c, double part)
{
	return (1.01 + ROOT_TINY / (double)c->eps) / sqrt(part);
}

/* Advances the bounds by one step of adam. Returns an upper bound of the change of a weight,
 * divided by the learning rate. sqrt(second moment) + eps is at least sqrt(square_keep) times its
 * previous value, and at least sqrt(square_add) * |d|. `flush` is the additional factor if the
 * second moment has become 0. If both betas are 0, the first moment does not depend on its previous
 * value, and the bound of that value would be 0 / 0. */
static double adam_reach(const struct step_coeff *c, double d, struct optim_reach *r)
{
	double flush = 1 + ROOT_TINY / (double)c->eps;
	double kept = c->keep > 0 ? (double)c->keep / sqrt((double)c->square_keep) : 0;
	double before = kept * flush * r->ratio;
	double now = (double)c->add * root_ratio(c, (double)c->square_add);

	r->state[0] = bound_of_all(r->state[0], (double)c->keep * r->state[0] + (double)c->add * d);
	r->state[1] = bound_of_all(
		r->state[1], (double)c->square_keep * r->state[1] + (double)c->square_add * d * d);
	r->ratio = vec_smaller(bound_of_all(r->ratio, before + now), r->state[0] / (double)c->eps);
	return r->ratio;
}

/* Advances the bounds of the optimizer's state by one step. Returns an upper bound of the change of
 * a weight, divided by the learning rate. */
static double direction_reach(
	const struct step_coeff *c, enum optim_kind kind, double d, struct optim_reach *r)
{
	switch (kind) {
	case OPTIM_MOMENTUM:
	case OPTIM_NESTEROV:
		r->state[0] = bound_of_all(r->state[0], (double)c->keep * r->state[0] + d);
		return r->state[0] + (kind == OPTIM_NESTEROV ? d : 0);
	case OPTIM_ADAGRAD:
		r->state[0] = rounded(r->state[0] + d * d);
		return vec_smaller(root_ratio(c, 1), d / (double)c->eps);
	case OPTIM_RMSPROP:
		r->state[0] = bound_of_all(r->state[0],
			(double)c->square_keep * r->state[0] + (double)c->square_add * d * d);
		return root_ratio(c, (double)c->square_add);
	case OPTIM_ADAM:
		return adam_reach(c, d, r);
	case OPTIM_SGD:
	case OPTIM_LBFGS:
	case OPTIM_KINDS:
		break;
	}
	return d;
}

static int is_within(double x)
{
	return x <= REACH_LIMIT; /* false if x is NaN */
}

/* Returns d * d if the optimizer stores squares of gradients; otherwise 0. */
static double square_of(enum optim_kind kind, double d)
{
	size_t n = optim_vectors(kind);

	return n && optim_is_square(kind, n - 1) ? d * d : 0;
}

int optim_advance(
	const struct optim *o, const struct optim_step *s, double peak, struct optim_reach *r)
{
	const struct step_coeff c = coeff_of(o, s);
	double d = rounded(peak + (double)c.decay * r->weight);
	double direction = direction_reach(&c, o->kind, d, r);
	/* adam, adagrad and rmsprop compute rate * dividend before they divide */
	double dividend = o->kind == OPTIM_ADAM ? r->state[0] : d;

	r->weight = rounded(r->weight + (double)c.rate * direction);
	return is_within(d) && is_within(square_of(o->kind, d)) &&
	       is_within((double)c.rate * vec_larger(direction, dividend)) &&
	       is_within(r->weight) && is_within(r->state[0]) && is_within(r->state[1]);
}

/* ---- the rate over a run --------------------------------------------------------------------- */

/* factor with which the rise of the rate begins: 1 / div_factor of PyTorch's OneCycleLR */
#define ONECYCLE_FIRST (1.0 / 25)

/* Returns (1 + cos(pi x)) / 2 for x in 0..1, which falls from 1 to 0. The function computes it as
 * cos^2(pi x / 2) from the power series. For x in 0..1, at most the last bits of this result are
 * wrong. Unlike the functions of libm, the series gives the same bits on every CPU. */
static double half_wave(double x)
{
	double y = x * 1.57079632679489661923, term = 1, cosine = 1;

	for (int k = 2; k <= 22; k += 2) {
		term *= -y * y / (k * (k - 1));
		cosine += term;
	}
	return cosine * cosine;
}

static double fall_to(double floor, double x)
{
	return floor + (1 - floor) * half_wave(x);
}

static uint64_t epochs_done(uint64_t done, uint64_t total, uint32_t epochs)
{
	return done / (epochs && total >= epochs ? total / epochs : total);
}

double schedule_factor(const struct schedule *s, uint64_t done, uint64_t total, uint32_t epochs)
{
	double x, rise, rest;

	if (total == 0)
		return 1;
	x = done < total ? (double)done / (double)total : 1;
	rise = x < s->warmup ? x / s->warmup : 1;
	rest = x > s->warmup ? (x - s->warmup) / (1 - s->warmup) : 0;
	switch (s->kind) {
	case SCHEDULE_STEP:
		return rise *
		       optim_power(s->gamma, epochs_done(done, total, epochs) / s->every_epochs);
	case SCHEDULE_COSINE:
		return rise * fall_to(s->floor, rest);
	case SCHEDULE_ONECYCLE:
		return rise < 1 ? fall_to(ONECYCLE_FIRST, 1 - rise) : fall_to(s->floor, rest);
	case SCHEDULE_CONSTANT:
		break;
	}
	return rise;
}

double lr_scaling_factor(enum lr_scaling how, double ratio, uint64_t done, uint32_t warmup)
{
	double factor = how == LR_SCALING_LINEAR ? ratio : how == LR_SCALING_SQRT ? sqrt(ratio) : 1;

	if (factor <= 1 || done >= warmup)
		return factor;
	return 1 + (factor - 1) * (double)done / warmup;
}
