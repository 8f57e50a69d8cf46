/*
 * store.c - the weights and the only code that changes them.
 *
 * Invariants: (1) the version grows by one per gradient applied;
 *             (2) a refused gradient leaves every byte as it was: a push is judged whole, then
 * applied whole; (3) weights stay finite: no value over STORE_MAX_VALUE gets in.
 */
#include "server/core/state.h"
#include <math.h>
#include <string.h>

#define STORE_BLOCK     ((size_t)8192) /* values; three such blocks are in the L1 and L2 cache */
#define STORE_MAX_VALUE 1e15f          /* its square is a finite float32, for adagrad */

static uint32_t bits_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

PS_CLONES static uint32_t peak_of(const float *g, size_t n)
{
	uint32_t peak = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t magnitude = bits_of(g[i]) & 0x7fffffffu;

		peak = magnitude > peak ? magnitude : peak;
	}
	return peak;
}

/* Too large, infinite, or NaN: what has larger magnitude bits than STORE_MAX_VALUE. */
static int any_wild(const struct slice *s)
{
	uint32_t peak = s->peak ? s->peak : peak_of(s->data, s->count);

	return peak > bits_of(STORE_MAX_VALUE);
}

static double sum_of_squares(const float *g, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (double)g[i] * (double)g[i];
	return sum;
}

enum reject store_judge(const struct core *c, const struct slices *s)
{
	double squares = 0;

	for (uint32_t i = 0; i < s->n; i++) {
		const struct slice *p = &s->slice[i];

		if (p->count > c->store.n || p->offset > c->store.n - p->count)
			return REJECT_SHAPE;
		if (any_wild(p))
			return REJECT_NONFINITE;
		if (c->cfg.max_norm > 0)
			squares += sum_of_squares(p->data, p->count);
	}
	if (c->cfg.max_norm > 0 && sqrt(squares) > c->cfg.max_norm)
		return REJECT_NORM;
	return REJECT_NONE;
}

static void apply_block(struct core *c, const struct optim_step *step, float *next, size_t offset,
	const float *g, size_t n)
{
	struct store *st = &c->store;
	float *state[OPTIM_VECTORS];

	for (size_t i = 0; i < OPTIM_VECTORS; i++)
		state[i] = st->state[i] ? st->state[i] + offset : NULL;
	optim_apply(&c->cfg.optim, step, next + offset, st->weights + offset, g, state, n);
}

/* From the end, because the pass over the gradient before this one has left its end in the cache,
 * and the pass over the weights after this one begins at their beginning. */
static void apply_slice(
	struct core *c, const struct optim_step *step, float *next, const struct slice *p)
{
	for (size_t left = p->count; left > 0;) {
		size_t n = left < STORE_BLOCK ? left : STORE_BLOCK;

		left -= n;
		apply_block(c, step, next, p->offset + left, p->data + left, n);
	}
}

/* Values [from, to) get no gradient. */
static void keep(struct store *st, float *weights, size_t from, size_t to)
{
	if (weights != st->weights)
		memcpy(weights + from, st->weights + from, (to - from) * sizeof(float));
}

void store_apply(struct core *c, const struct slices *s, double eta)
{
	struct store *st = &c->store;
	const struct optim_step step = {st->version + 1, eta, 1};
	float *next = st->loan ? st->loan : st->weights;
	size_t end = 0;

	for (uint32_t i = 0; i < s->n; i++) {
		const struct slice *p = &s->slice[i];

		keep(st, next, end, p->offset);
		apply_slice(c, &step, next, p);
		end = p->offset + p->count;
	}
	keep(st, next, end, st->n);
	st->weights = next;
	st->loan = NULL;
	st->version++;
	c->stats.version = st->version;
}

void store_freeze(struct core *c)
{
	memcpy(c->store.eval_weights, c->store.weights, c->store.n * sizeof(float));
	c->store.eval_version = c->store.version;
}

void store_on_pull(struct core *c, struct worker *w, const struct event *ev)
{
	const struct msg_pull *p = &ev->msg->pull;
	int eval = p->which == WEIGHTS_EVAL;
	struct msg *m;

	if (eval && !c->leases.evaluating) {
		core_refuse(c, ev->peer, PS_EAGAIN, 0, "nothing is under evaluation");
		return;
	}
	if (w)
		w->peer = ev->peer;
	c->stats.pulls++;
	m = core_send(c, ev->peer, MSG_PARAMS);
	m->params.request = p->request;
	m->params.which = p->which;
	m->params.version = eval ? c->store.eval_version : c->store.version;
	m->params.slices.n = 1;
	m->params.slices.slice[0] = (struct slice){.offset = 0,
		.count = c->store.n,
		.encoding = ENCODING_F32,
		.xxh3 = 0,
		.data = eval ? c->store.eval_weights : c->store.weights};
}
