/*
 * optim.c - see optim.h. Each optimizer is one loop over its slice: whatever it reads is read once.
 *
 * Constants are made in double and rounded once, as PyTorch does, so that the two differ by the
 * rounding of float32 alone.
 */
#include "server/core/optim.h"
#include <math.h>
#include "common/clones.h"

#define CLIP_EPS 1e-6 /* keeps clipping finite where the norm is 0; clip_grad_norm_'s */

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

/* What the loops multiply with. */
struct coeff {
	float rate, scale, decay, eps;
	float keep, add;               /* momentum; adam: what it leaves to g */
	float square_keep, square_add; /* decay_square, and what it leaves to g^2 */
};

/* The gradient that an optimizer sees: weight decay is a part of it. */
static inline float slope(const struct coeff *c, float w, float g)
{
	return c->scale * g + c->decay * w;
}

PS_CLONES static void sgd(
	const struct coeff c, float *to, const float *w, const float *restrict g, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++)
		to[i] = w[i] - c.rate * slope(&c, w[i], g[i]);
}

PS_CLONES static void momentum(const struct coeff c, float *to, const float *w,
	const float *restrict g, float *restrict velocity, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		velocity[i] = c.keep * velocity[i] + slope(&c, w[i], g[i]);
		to[i] = w[i] - c.rate * velocity[i];
	}
}

PS_CLONES static void nesterov(const struct coeff c, float *to, const float *w,
	const float *restrict g, float *restrict velocity, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		float d = slope(&c, w[i], g[i]);

		velocity[i] = c.keep * velocity[i] + d;
		to[i] = w[i] - c.rate * (d + c.keep * velocity[i]);
	}
}

PS_CLONES static void adagrad(const struct coeff c, float *to, const float *w,
	const float *restrict g, float *restrict sum, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		float d = slope(&c, w[i], g[i]);

		sum[i] += d * d;
		to[i] = w[i] - c.rate * d / (sqrtf(sum[i]) + c.eps);
	}
}

PS_CLONES static void rmsprop(const struct coeff c, float *to, const float *w,
	const float *restrict g, float *restrict mean, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		float d = slope(&c, w[i], g[i]);

		mean[i] = c.square_keep * mean[i] + c.square_add * (d * d);
		to[i] = w[i] - c.rate * d / (sqrtf(mean[i]) + c.eps);
	}
}

PS_CLONES static void adam(const struct coeff c, float *to, const float *w, const float *restrict g,
	float *restrict first, float *restrict second, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		float d = slope(&c, w[i], g[i]);

		first[i] = c.keep * first[i] + c.add * d;
		second[i] = c.square_keep * second[i] + c.square_add * (d * d);
		to[i] = w[i] - c.rate * first[i] / (sqrtf(second[i]) + c.eps);
	}
}

static struct coeff coeff_of(const struct optim *o, const struct optim_step *s)
{
	struct coeff c = {.rate = (float)s->rate,
		.scale = (float)s->scale,
		.decay = (float)o->weight_decay,
		.eps = (float)o->eps,
		.keep = (float)o->momentum,
		.add = (float)(1 - o->momentum),
		.square_keep = (float)o->decay_square,
		.square_add = (float)(1 - o->decay_square)};

	if (o->kind == OPTIM_ADAM) {
		double root = sqrt(1 - optim_power(o->decay_square, s->step));

		/* rate * corrected first / (sqrt(corrected second) + eps), times root / root */
		c.rate = (float)(s->rate * root / (1 - optim_power(o->momentum, s->step)));
		c.eps = (float)(o->eps * root);
	}
	return c;
}

void optim_apply(const struct optim *o, const struct optim_step *s, float *to, const float *w,
	const float *g, float *const state[OPTIM_VECTORS], size_t n)
{
	const struct coeff c = coeff_of(o, s);

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
	case OPTIM_LBFGS: /* its steps are whole searches: lbfgs.c */
	case OPTIM_KINDS:
		break;
	}
}
