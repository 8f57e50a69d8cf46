/* optim.c - see optim.h. */
#include "server/core/optim.h"
#include <math.h>
#include "common/clones.h"

size_t optim_vectors(enum optim_kind kind)
{
	return kind == OPTIM_ADAGRAD ? 1 : 0;
}

float optim_first(const struct optim *o, size_t i)
{
	return i == 0 && o->kind == OPTIM_ADAGRAD ? (float)o->adagrad_init : 0;
}

PS_CLONES static void sgd(float *to, const float *w, const float *restrict g, size_t n, float eta)
{
	PS_APART
	for (size_t i = 0; i < n; i++)
		to[i] = w[i] - eta * g[i];
}

PS_CLONES static void adagrad(float *to, const float *w, float *restrict acc,
	const float *restrict g, size_t n, float eta, float eps)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		acc[i] += g[i] * g[i];
		to[i] = w[i] - eta * g[i] / (sqrtf(acc[i]) + eps);
	}
}

void optim_apply(const struct optim *o, const struct optim_step *s, float *to, const float *w,
	const float *g, float *const state[OPTIM_VECTORS], size_t n)
{
	if (o->kind == OPTIM_SGD)
		sgd(to, w, g, n, (float)s->rate);
	else
		adagrad(to, w, state[0], g, n, (float)s->rate, (float)o->eps);
}
