/* lbfgs.c - see lbfgs.h. */
#include "server/core/lbfgs.h"
#include "server/core/blocks.h"
#include "server/core/core_state.h"
#include "server/core/store.h"
#include <math.h>

#define CURVATURE 1e-10 /* a pair with a lower ratio of y . s to y . y is not kept */
/* relative rounding error of the loss f, because workers send losses as float32 */
#define ROUNDING 1e-7

size_t lbfgs_vectors(uint32_t history)
{
	return 3 + 2 * (size_t)history;
}

/* Returns the index in the ring of the pair that is `age` steps older than the newest pair. */
static uint32_t pair_at(const struct core *c, uint32_t age)
{
	uint32_t m = c->cfg.lbfgs.history;

	return (c->lbfgs.newest + m - age) % m;
}

/* Computes d = - (inverse Hessian) g, by the two-loop recursion of Nocedal 1980. */
static void direction(struct core *c)
{
	struct lbfgs *b = &c->lbfgs;
	size_t n = c->store.n;
	double a[LBFGS_MAX_HISTORY];

	blocks_copy(&c->blocks, b->d, b->g, n);
	blocks_scale(&c->blocks, b->d, -1, n);
	for (uint32_t age = 0; age < b->pairs; age++) {
		uint32_t j = pair_at(c, age);

		a[j] = blocks_dot(&c->blocks, b->s[j], b->d, n) / b->ys[j];
		blocks_axpy(&c->blocks, b->d, -a[j], b->y[j], n);
	}
	if (b->pairs)
		blocks_scale(&c->blocks, b->d, b->ys[b->newest] / b->yy, n);
	for (uint32_t age = b->pairs; age-- > 0;) {
		uint32_t j = pair_at(c, age);
		double back = blocks_dot(&c->blocks, b->y[j], b->d, n) / b->ys[j];

		blocks_axpy(&c->blocks, b->d, a[j] - back, b->s[j], n);
	}
}

/* Publishes x + step * d as the current weights. If a value of the result is not finite, halves the
 * step, up to 64 times. If a value is then still not finite, publishes x itself. */
static void publish(struct core *c)
{
	struct lbfgs *b = &c->lbfgs;
	float *next = store_next(c);
	int halvings = 0;

	blocks_add(&c->blocks, next, b->x, b->step, b->d, c->store.n);
	while (!blocks_finite(&c->blocks, next, c->store.n) && halvings++ < 64) {
		b->high = b->step;
		b->step = (b->low + b->high) / 2;
		blocks_add(&c->blocks, next, b->x, b->step, b->d, c->store.n);
	}
	if (halvings > 64)
		blocks_copy(&c->blocks, next, b->x, c->store.n);
	store_publish(c, next);
}

/* Begins a line search from x, where f and g are known. */
static void search(struct core *c)
{
	struct lbfgs *b = &c->lbfgs;
	size_t n = c->store.n;

	direction(c);
	b->slope = blocks_dot(&c->blocks, b->g, b->d, n);
	if (b->pairs && !(b->slope < 0 && blocks_finite(&c->blocks, b->d, n))) {
		b->pairs = 0;
		direction(c);
		b->slope = blocks_dot(&c->blocks, b->g, b->d, n);
	}
	double length = sqrt(blocks_dot(&c->blocks, b->d, b->d, n));
	b->step = b->pairs || length <= 1 ? 1 : 1 / length;
	b->low = b->high = 0;
	b->trials = 0;
	b->searching = 1;
	publish(c);
}

int lbfgs_begin(struct core *c, int same)
{
	struct lbfgs *b = &c->lbfgs;

	b->known &= same;
	if (b->known)
		search(c);
	return b->known;
}

/* Adds to the history the pair (s, y) of the step that led from x to the current weights. */
static void remember(struct core *c, const float *g)
{
	struct lbfgs *b = &c->lbfgs;
	size_t n = c->store.n;
	uint32_t j = b->pairs ? (b->newest + 1) % c->cfg.lbfgs.history : b->newest;

	blocks_add(&c->blocks, b->s[j], c->store.weights, -1, b->x, n);
	blocks_add(&c->blocks, b->y[j], g, -1, b->g, n);
	double ys = blocks_dot(&c->blocks, b->y[j], b->s[j], n),
	       yy = blocks_dot(&c->blocks, b->y[j], b->y[j], n);
	if (!(ys > CURVATURE * yy)) {
		if (b->pairs == c->cfg.lbfgs.history)
			/* the new pair is not kept, but it has overwritten the oldest pair */
			b->pairs--;
		return;
	}
	b->ys[j] = ys;
	b->yy = yy;
	b->newest = j;
	b->pairs += b->pairs < c->cfg.lbfgs.history;
}

static int accept_step(struct core *c, double f, const float *g)
{
	struct lbfgs *b = &c->lbfgs;

	remember(c, g);
	blocks_copy(&c->blocks, b->x, c->store.weights, c->store.n);
	blocks_copy(&c->blocks, b->g, g, c->store.n);
	b->f = f;
	b->searching = 0;
	return 1;
}

/* Ends a search that found no better point along d. If d came from the history, searches along the
 * negative gradient and returns 0. If d already was the negative gradient, publishes x and returns
 * 1. There, f and g may be wrong, because a worker has sent wrong gradients. The next step
 * therefore begins with a pass that computes them again; otherwise all later searches would fail,
 * too. */
static int give_up(struct core *c)
{
	struct lbfgs *b = &c->lbfgs;

	if (b->pairs) {
		b->pairs = 0;
		search(c);
		return 0;
	}
	float *next = store_next(c);
	blocks_copy(&c->blocks, next, b->x, c->store.n);
	store_publish(c, next);
	b->searching = 0;
	b->known = 0;
	return 1;
}

int lbfgs_pass(struct core *c, double f, const float *g)
{
	struct lbfgs *b = &c->lbfgs;
	size_t n = c->store.n;

	if (!b->searching) {
		blocks_copy(&c->blocks, b->x, c->store.weights, n);
		blocks_copy(&c->blocks, b->g, g, n);
		b->f = f;
		b->known = 1;
		search(c);
		return 0;
	}
	c->stats.trials++;
	b->trials++;
	int lower = f <= b->f + c->cfg.lbfgs.armijo * b->step * b->slope + ROUNDING * fabs(b->f);
	int flat = lower && blocks_dot(&c->blocks, g, b->d, n) >= c->cfg.lbfgs.wolfe * b->slope;
	if (flat || (lower && b->trials >= c->cfg.lbfgs.trials))
		return accept_step(c, f, g);
	if (b->trials >= c->cfg.lbfgs.trials)
		return give_up(c);
	if (lower)
		b->low = b->step;
	else
		b->high = b->step;
	b->step = b->high > 0 ? (b->low + b->high) / 2 : 2 * b->step;
	publish(c);
	return 0;
}
