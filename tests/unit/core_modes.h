/*
 * core_modes.h - a crew of honest workers for the tests of the modes: each asks for a lease, copies
 * the weights when it is granted one, and pushes the mean gradient of its batches at those weights.
 * What a batch's gradient is, the test says.
 */
#ifndef TESTS_UNIT_CORE_MODES_H
#define TESTS_UNIT_CORE_MODES_H
#include <math.h>
#include "tests/support/core_fixture.h"

#define CREW        8u
#define CREW_PARAMS 64u

/* Mean loss and gradient (n_params values) of batch `i` at `w`. */
typedef double crew_fn(uint32_t i, const float *w, double *g);

struct hand {
	struct stamp s;
	uint32_t peer;
	uint64_t seq, request;
	struct msg_grant grant; /* work.count 0: nothing to do */
	float w[CREW_PARAMS];   /* as pulled for it */
	uint64_t version, epoch;
};

struct crew {
	struct core_fixture f;
	struct data_id data;
	crew_fn *fn;
	uint32_t n;
	struct hand hand[CREW];
};

/* Images of batches [first, first + count). */
static inline uint32_t crew_images(const struct crew *k, uint32_t first, uint32_t count)
{
	uint32_t from = first * k->f.cfg.training.batch_size,
		 to = from + count * k->f.cfg.training.batch_size;

	return (to < k->data.n_train ? to : k->data.n_train) - from;
}

static inline void crew_hire(struct crew *k, uint32_t i)
{
	struct hand *h = &k->hand[i];
	struct msg m = fixture_hello("");

	*h = (struct hand){.peer = 100 + 10 * i};
	m.hello.data = k->data;
	fixture_message(&k->f, h->peer, &m);
	for (int try = 0; try < 2 && !fixture_sent(&k->f, h->peer, MSG_WELCOME); try++)
		fixture_durable(&k->f);
	assert_non_null(fixture_sent(&k->f, h->peer, MSG_WELCOME));
	h->s = fixture_sent(&k->f, h->peer, MSG_WELCOME)->welcome.stamp;
}

/* `n` workers; without a disk unless cfg says so. */
static inline void crew_open(
	struct crew *k, struct core_config cfg, uint32_t n, uint32_t n_train, crew_fn *fn)
{
	*k = (struct crew){.n = n, .data = fixture_data, .fn = fn};
	cfg.sessions.max_workers = CREW;
	k->data.n_train = n_train;
	fixture_open(&k->f, cfg);
	for (uint32_t i = 0; i < n; i++)
		crew_hire(k, i);
}

/* Grants of the last step find their workers, who pull at once. */
static inline void crew_hear(struct crew *k)
{
	for (uint32_t i = 0; i < k->n; i++) {
		struct hand *h = &k->hand[i];
		const struct msg *m = fixture_sent(&k->f, h->peer, MSG_GRANT);

		if (!m || m->grant.request != h->request)
			continue;
		h->grant = m->grant;
		h->version = core_stats(k->f.core)->version;
		h->epoch = h->s.term;
		memcpy(h->w, core_weights(k->f.core), k->f.cfg.n_params * sizeof(float));
	}
}

/* It asks for its next lease; 1: it has training to do. */
static inline int crew_ask(struct crew *k, uint32_t i)
{
	struct hand *h = &k->hand[i];

	h->grant.work.count = 0;
	fixture_lease(&k->f, h->peer, h->s, ++h->request);
	crew_hear(k);
	return h->grant.kind == GRANT_TRAIN && h->grant.work.count > 0;
}

/* A grant of training as expected. */
static inline void crew_granted(struct crew *k, uint32_t i, uint32_t first, uint32_t count)
{
	const struct msg_grant *g = &k->hand[i].grant;

	assert_int_equal(g->request, k->hand[i].request);
	assert_int_equal(g->kind, GRANT_TRAIN);
	assert_int_equal(g->work.first, first);
	assert_int_equal(g->work.count, count);
}

/* What it would push: the mean over its batches, at its weights. `g`: CREW_PARAMS floats. */
static inline struct msg crew_gradient(struct crew *k, uint32_t i, float *g)
{
	struct hand *h = &k->hand[i];
	struct msg m = fixture_push(h->s, h->seq + 1);
	const struct work *work = &h->grant.work;
	double sum[CREW_PARAMS] = {0}, loss = 0;

	m.push.work = *work;
	m.push.images = crew_images(k, work->first, work->count);
	m.push.base_version = h->version;
	m.push.base_term = h->epoch;
	for (uint32_t b = work->first; b < work->first + work->count; b++) {
		double one[CREW_PARAMS] = {0}, part = crew_images(k, b, 1);
		loss += part * k->fn(b, h->w, one);
		for (size_t j = 0; j < k->f.cfg.n_params; j++)
			sum[j] += part * one[j];
	}
	for (size_t j = 0; j < k->f.cfg.n_params; j++)
		g[j] = (float)(sum[j] / m.push.images);
	m.push.loss = (float)(loss / m.push.images);
	fixture_slice(&m, 0, k->f.cfg.n_params, g);
	return m;
}

/* Its result goes out; REJECT_NONE: it was taken. */
static inline enum reject crew_push(struct crew *k, uint32_t i)
{
	float g[CREW_PARAMS];
	struct msg m = crew_gradient(k, i, g);
	struct msg_ack a = fixture_acked(&k->f, k->hand[i].peer, &m);

	k->hand[i].seq++;
	k->hand[i].grant.work.count = 0;
	crew_hear(k);
	return a.reject;
}

static inline void crew_evaluate(struct crew *k, uint32_t i)
{
	struct hand *h = &k->hand[i];
	struct msg m = {.type = MSG_RESULT};

	m.result = (struct msg_result){.stamp = h->s,
		.eval_id = h->grant.eval_id,
		.eval_first = h->grant.eval_first,
		.eval_count = h->grant.eval_count};
	fixture_message(&k->f, h->peer, &m);
	h->grant = (struct msg_grant){.request = h->request};
	crew_hear(k);
}

/* Whatever is next for it: 1 if something was done. */
static inline int crew_act(struct crew *k, uint32_t i)
{
	struct hand *h = &k->hand[i];

	if (h->grant.kind == GRANT_EVAL)
		crew_evaluate(k, i);
	else if (h->grant.work.count)
		crew_push(k, i);
	else if (h->grant.request == h->request)
		crew_ask(k, i);
	else
		return 0; /* it waits for an answer */
	return 1;
}

/* Until the run is over: worker 0 alone, or any of the first `n` in an order that `r` draws. */
static inline void crew_run(struct crew *k, uint32_t n, struct rng *r)
{
	for (int i = 0; i < 1000000; i++) {
		crew_act(k, r ? (uint32_t)rng_below(r, n) : 0);
		if (fixture_count(&k->f, EFFECT_FINISH))
			return;
	}
	fail_msg("the run does not end");
}

/* The server is killed and comes back with what it has in this instant; the first n workers say
 * HELLO again, in the middle of whatever they did. */
static inline void crew_restart(struct crew *k, uint32_t n)
{
	fixture_restart(&k->f);
	for (uint32_t i = 0; i < n; i++) {
		struct hand *h = &k->hand[i];
		struct msg m = fixture_resume(h->s, h->seq, h->seq);

		m.hello.data = k->data;
		fixture_message(&k->f, h->peer, &m);
		assert_non_null(fixture_sent(&k->f, h->peer, MSG_WELCOME));
		h->s = fixture_sent(&k->f, h->peer, MSG_WELCOME)->welcome.stamp;
		crew_hear(k);
		if (h->grant.request == h->request)
			continue;
		fixture_lease(&k->f, h->peer, h->s, h->request); /* it has no answer yet */
		crew_hear(k);
	}
}

static inline void crew_close(struct crew *k)
{
	fixture_close(&k->f);
}

/* Constant gradients: 1 everywhere. */
static inline double crew_ones(uint32_t i, const float *w, double *g)
{
	(void)i;
	(void)w;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = 1;
	return 0.5;
}

/* Batch i pulls towards a target of its own, with a curvature of its own in each direction. */
static inline double crew_bowl(uint32_t i, const float *w, double *g)
{
	double loss = 0;

	for (size_t j = 0; j < FIXTURE_PARAMS; j++) {
		double k = 1 + (double)((i * 5 + j * 3) % 7);
		double x = (double)w[j] - ((double)((i * 3 + j * 7) % 11) / 5 - 1);
		g[j] = k * x;
		loss += k * x * x / 2;
	}
	return loss;
}

#endif
