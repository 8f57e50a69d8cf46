/* attack.c - makes the last worker of a virtual run misbehave (--attack). This worker follows the
 * protocol, but changes the content of its pushes and results. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/bench/virtual/virtual.h"

#define NOISE_STREAM 0x7a5d

static const char *const names[ATTACKS] = {[ATTACK_NONE] = "none",
	[ATTACK_SCALE] = "scale",   /* -10 times the gradient */
	[ATTACK_FLIP] = "flip",     /* -1 times the gradient */
	[ATTACK_NOISE] = "noise",   /* values of N(0, 1) */
	[ATTACK_STALE] = "stale",   /* the worker's first gradient, again and again */
	[ATTACK_STALE2] = "stale2", /* the worker's first two gradients, in turn */
	[ATTACK_HUGE] = "huge",     /* 1e15 in every value */
	[ATTACK_NAN] = "nan",       /* NaN in every value */
	[ATTACK_EMPTY] = "empty",   /* a gradient of zeros, without computing the batches */
	/* evaluation results that claim that every test image is right */
	[ATTACK_FORGE] = "forge"};

int attack_of(const char *name)
{
	for (int i = 0; i < ATTACKS; i++)
		if (strcmp(names[i], name) == 0)
			return i;
	return -1;
}

static float normal(struct rng *r)
{
	double u = 1 - rng_unit(r), v = rng_unit(r);

	return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static void fill_gradient(float *g, size_t n, float value)
{
	for (size_t i = 0; i < n; i++)
		g[i] = value;
}

static void multiply_gradient(float *g, size_t n, float by)
{
	for (size_t i = 0; i < n; i++)
		g[i] *= by;
}

/* Replaces the gradient `g` by the one in *old. If *old is NULL, copies `g` to *old instead. */
static void send_old_gradient(float **old, float *g, size_t n)
{
	if (!*old)
		*old = memcpy(mem_must(n, sizeof(*g), "a gradient"), g, n * sizeof(*g));
	memcpy(g, *old, n * sizeof(*g));
}

void attack_push(struct attacker *a, float *g, size_t n)
{
	switch (a->attack) {
	case ATTACK_SCALE:
		multiply_gradient(g, n, -10);
		break;
	case ATTACK_FLIP:
		multiply_gradient(g, n, -1);
		break;
	case ATTACK_NOISE:
		a->rng = a->rng.state ? a->rng : rng_seed(1, (enum rng_stream)NOISE_STREAM, 0);
		for (size_t i = 0; i < n; i++)
			g[i] = normal(&a->rng);
		break;
	case ATTACK_STALE:
		send_old_gradient(&a->old[0], g, n);
		break;
	case ATTACK_STALE2:
		send_old_gradient(&a->old[a->pushes++ % 2], g, n);
		break;
	case ATTACK_HUGE:
		fill_gradient(g, n, 1e15f);
		break;
	case ATTACK_NAN:
		fill_gradient(g, n, NAN);
		break;
	case ATTACK_EMPTY:
		fill_gradient(g, n, 0);
		break;
	case ATTACK_NONE:
	case ATTACK_FORGE:
	case ATTACKS:
		break;
	}
}

void attack_result(const struct attacker *a, struct msg_result *r)
{
	if (a->attack == ATTACK_FORGE) {
		r->correct = r->eval_count;
		r->loss_sum = 0;
	}
}

void attack_release(struct attacker *a)
{
	free(a->old[0]);
	free(a->old[1]);
	*a = (struct attacker){0};
}
