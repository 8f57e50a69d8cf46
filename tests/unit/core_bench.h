/*
 * core_bench.h - a server core on the bench: made in poisoned memory, stepped one event at a time,
 * its effects looked at. Every step is watched for what must always hold: nothing is sent to
 * nobody, one snapshot at most is under way, and the lease counters count what is in batch[].
 */
#ifndef TESTS_UNIT_CORE_BENCH_H
#define TESTS_UNIT_CORE_BENCH_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "common/rng.h"
#include "server/core/state.h"

#define BENCH_PARAMS 8u

static const struct data_id bench_data = {
	.n_train = 35, .n_test = 7, .rows = 2, .cols = 3, .classes = 10, .xxh3 = 99};
static const float bench_ones[BENCH_PARAMS] = {1, 1, 1, 1, 1, 1, 1, 1};

struct bench {
	struct core_config cfg;
	void *memory;
	struct core *core;
	uint64_t now_ms;
	uint64_t saving;   /* generation of the snapshot under way; 0: none */
	struct core *twin; /* takes the same steps; NULL: none */
};

/* ---- configurations ------------------------------------------------------------------------- */

/* A flat vector at zero, plain SGD at rate 1, no data set; snapshots only when something urges. */
static inline struct core_config bench_config(void)
{
	return (struct core_config){.run = {11, 22},
		.term = 5,
		.model = "vector:8",
		.model_fingerprint = 77,
		.n_params = BENCH_PARAMS,
		.training.seed = 3,
		.training.batch_size = 10,
		.optim = {.kind = OPTIM_SGD,
			.eps = 1e-8,
			.momentum = 0.9,
			.beta1 = 0.9,
			.beta2 = 0.999,
			.rmsprop_alpha = 0.999},
		.training.mode = MODE_DOWNPOUR,
		.schedule = {.every_epochs = 1},
		.push.buffer_size = 1,
		.dc.lambda = 0.1,
		.easgd.beta = 0.9,
		.lbfgs = {.history = 1, .trials = 1, .armijo = 1e-4, .wolfe = 0.9},
		.push.n_push = 1,
		.push.n_fetch = 1,
		.rate.lr = 1,
		.rate.staleness_scaling = STALE_CONSTANT,
		.limits.max_staleness = 1000,
		.leases.max_batches = 2,
		.leases.first_deadline_ms = 30000,
		.leases.eval_images = 3,
		.leases.min_workers = 1,
		.sessions.max_workers = 4,
		.sessions.push_window = 4,
		.sessions.replay_window = 64,
		.sessions.heartbeat_ms = 100,
		.sessions.suspect_ms = 300,
		.sessions.dead_ms = 1000,
		.sessions.ttl_ms = 5000,
		.sessions.recovery_ms = 500,
		.checkpoint.interval_ms = 100000,
		.durable = 1};
}

/* Two epochs of 35 images in 4 batches (10, 10, 10, 5), evaluated in 3 portions (3, 3, 1). */
static inline struct core_config bench_training(void)
{
	struct core_config cfg = bench_config();

	cfg.training.epochs = 2;
	return cfg;
}

/* ---- life ----------------------------------------------------------------------------------- */

/* The core's block, and behind it the weights. */
static inline size_t bench_bytes(const struct core_config *cfg)
{
	return core_bytes(cfg) + (cfg->n_params * sizeof(float) + 63) / 64 * 64;
}

static inline void *bench_memory(const struct core_config *cfg)
{
	size_t n = bench_bytes(cfg);
	void *memory = aligned_alloc(64, n);

	assert_non_null(memory);
	memset(memory, 0xa5, n);
	return memory;
}

static inline float *bench_weights(void *memory, const struct core_config *cfg)
{
	return (float *)(void *)((char *)memory + core_bytes(cfg));
}

static inline void bench_open(struct bench *b, struct core_config cfg)
{
	*b = (struct bench){.cfg = cfg, .now_ms = 1000, .memory = bench_memory(&cfg)};
	memset(bench_weights(b->memory, &cfg), 0, cfg.n_params * sizeof(float));
	b->core = core_init(b->memory, &b->cfg, bench_weights(b->memory, &cfg));
}

static inline void bench_close(struct bench *b)
{
	free(b->memory);
	b->memory = b->core = NULL;
}

/* ---- steps and effects ---------------------------------------------------------------------- */

static inline void bench_watch(struct bench *b)
{
	const struct leases *l = &b->core->leases;
	uint32_t n_free = 0, n_done = 0;

	for (size_t i = 0; core_effect(b->core, i); i++) {
		const struct effect *e = core_effect(b->core, i);

		if (e->kind == EFFECT_SEND || e->kind == EFFECT_STATUS)
			assert_int_not_equal(e->peer, 0);
		if (e->kind != EFFECT_SNAPSHOT)
			continue;
		assert_int_equal(b->saving, 0);
		assert_true(e->generation > 0);
		b->saving = e->generation;
	}
	if (l->epoch >= b->core->cfg.training.epochs)
		return;
	for (uint32_t i = 0; i < l->n_batches; i++) {
		n_free += l->batch[i] == BATCH_FREE;
		n_done += l->batch[i] == BATCH_DONE;
	}
	assert_int_equal(l->n_free, n_free);
	assert_int_equal(l->n_done, n_done);
}

static inline void bench_step(struct bench *b, const struct event *ev)
{
	core_step(b->core, ev, b->now_ms);
	if (b->twin)
		core_step(b->twin, ev, b->now_ms);
	bench_watch(b);
}

static inline void bench_message(struct bench *b, uint32_t peer, const struct msg *m)
{
	bench_step(b, &(struct event){.kind = EVENT_MESSAGE, .peer = peer, .msg = m});
}

static inline void bench_tick(struct bench *b, uint64_t ms)
{
	b->now_ms += ms;
	bench_step(b, &(struct event){.kind = EVENT_TICK});
}

static inline void bench_gone(struct bench *b, uint32_t peer)
{
	bench_step(b, &(struct event){.kind = EVENT_PEER_GONE, .peer = peer});
}

static inline void bench_saved(struct bench *b, enum event_kind kind)
{
	uint64_t generation = b->saving;

	assert_int_not_equal(generation, 0);
	b->saving = 0;
	bench_step(b, &(struct event){.kind = kind, .generation = generation});
}

static inline void bench_durable(struct bench *b)
{
	bench_saved(b, EVENT_DURABLE);
}

static inline size_t bench_count(const struct bench *b, enum effect_kind kind)
{
	size_t n = 0;

	for (size_t i = 0; core_effect(b->core, i); i++)
		n += core_effect(b->core, i)->kind == kind;
	return n;
}

static inline const struct effect *bench_effect(const struct bench *b, enum effect_kind kind)
{
	for (size_t i = 0; core_effect(b->core, i); i++)
		if (core_effect(b->core, i)->kind == kind)
			return core_effect(b->core, i);
	return NULL;
}

/* The first message of this type that the last step sent to peer, or NULL. */
static inline const struct msg *bench_sent(const struct bench *b, uint32_t peer, enum msg_type type)
{
	for (size_t i = 0; core_effect(b->core, i); i++) {
		const struct effect *e = core_effect(b->core, i);

		if (e->kind == EFFECT_SEND && e->peer == peer && e->msg.type == type)
			return &e->msg;
	}
	return NULL;
}

/* The last step's whole answer was ERROR `status` to peer. */
static inline void bench_refused(const struct bench *b, uint32_t peer, int status)
{
	const struct msg *m = bench_sent(b, peer, MSG_ERROR);

	assert_int_equal(bench_count(b, EFFECT_SEND), 1);
	assert_non_null(m);
	assert_int_equal(m->error.status, status);
	assert_non_null(m->error.text);
}

/* The last step told nobody anything. */
static inline void bench_silent(const struct bench *b)
{
	assert_int_equal(bench_count(b, EFFECT_FINISH), 0);
	assert_int_equal(bench_count(b, EFFECT_SEND), 0);
}

static inline struct worker_view bench_worker(const struct bench *b, uint32_t id)
{
	struct worker_view v;

	core_worker(b->core, id - 1, &v);
	return v;
}

/* ---- messages of a worker ------------------------------------------------------------------- */

static inline struct msg bench_hello(const char *name)
{
	struct msg m = {.type = MSG_HELLO};

	m.hello = (struct msg_hello){.role = ROLE_WORKER, .device = "cpu", .data = bench_data};
	memcpy(m.hello.name, name, strlen(name));
	return m;
}

static inline struct msg bench_resume(struct stamp s, uint64_t last_seq, uint64_t durable_seq)
{
	struct msg m = bench_hello("");

	m.hello.resume = s;
	m.hello.last_seq = last_seq;
	m.hello.durable_seq = durable_seq;
	return m;
}

/* HELLO until WELCOME, with a disk that works. */
static inline struct stamp bench_join(struct bench *b, uint32_t peer, const char *name)
{
	struct msg m = bench_hello(name);

	bench_message(b, peer, &m);
	for (int i = 0; i < 2 && !bench_sent(b, peer, MSG_WELCOME); i++)
		bench_durable(b);
	assert_non_null(bench_sent(b, peer, MSG_WELCOME));
	return bench_sent(b, peer, MSG_WELCOME)->welcome.stamp;
}

/* HELLO of an earlier life, and WELCOME at once. */
static inline struct stamp bench_come_back(
	struct bench *b, uint32_t peer, struct stamp s, uint64_t last_seq)
{
	struct msg m = bench_resume(s, last_seq, 0);

	bench_message(b, peer, &m);
	assert_non_null(bench_sent(b, peer, MSG_WELCOME));
	return bench_sent(b, peer, MSG_WELCOME)->welcome.stamp;
}

/* A push of no batch and no slice: a gradient of zero. */
static inline struct msg bench_push(struct stamp s, uint64_t seq)
{
	struct msg m = {.type = MSG_PUSH};

	m.push = (struct msg_push){.stamp = s, .seq = seq, .loss = 0.5f};
	return m;
}

static inline void bench_slice(struct msg *m, uint64_t offset, uint64_t count, const float *g)
{
	m->push.slices.slice[m->push.slices.n++] = (struct slice){
		.offset = offset, .count = count, .encoding = ENCODING_F32, .data = g};
}

/* A push that moves every weight by -rate. */
static inline struct msg bench_push_ones(struct stamp s, uint64_t seq)
{
	struct msg m = bench_push(s, seq);

	bench_slice(&m, 0, BENCH_PARAMS, bench_ones);
	return m;
}

static inline void bench_work(struct msg *m, uint32_t epoch, uint32_t first, uint32_t count)
{
	uint32_t to = (first + count) * 10 < 35 ? (first + count) * 10 : 35;

	m->push.work = (struct work){epoch, first, count};
	m->push.images = to - first * 10;
}

/* Send it; its one answer is the ACK, which comes with the weights if it pulls. */
static inline struct msg_ack bench_acked(struct bench *b, uint32_t peer, const struct msg *m)
{
	enum msg_type type = m->push.pull ? MSG_PARAMS : MSG_ACK;

	bench_message(b, peer, m);
	const struct msg *answer = bench_sent(b, peer, type);
	assert_non_null(answer);
	assert_null(bench_sent(b, peer, type == MSG_ACK ? MSG_PARAMS : MSG_ACK));
	const struct msg_ack ack = type == MSG_ACK ? answer->ack : answer->params.ack;
	assert_int_equal(ack.seq, m->push.seq);
	return ack;
}

static inline void bench_applied(struct bench *b, uint32_t peer, const struct msg *m)
{
	struct msg_ack a = bench_acked(b, peer, m);

	assert_int_equal(a.reject, REJECT_NONE);
	assert_int_equal(a.verdict, VERDICT_OK);
	assert_int_equal(a.duplicate, 0);
}

static inline void bench_rejected(
	struct bench *b, uint32_t peer, const struct msg *m, enum reject why)
{
	struct msg_ack a = bench_acked(b, peer, m);

	assert_int_equal(a.reject, why);
	assert_int_equal(a.verdict, VERDICT_REJECTED);
	assert_int_equal(a.duplicate, 0);
}

static inline void bench_lease(struct bench *b, uint32_t peer, struct stamp s, uint64_t request)
{
	struct msg m = {.type = MSG_LEASE};

	m.lease = (struct msg_lease){.stamp = s, .request = request};
	bench_message(b, peer, &m);
}

static inline void bench_beat(struct bench *b, uint32_t peer, struct stamp s)
{
	struct msg m = {.type = MSG_BEAT};

	m.beat.stamp = s;
	bench_message(b, peer, &m);
}

static inline void bench_pull(struct bench *b, uint32_t peer, struct stamp s, enum weights which)
{
	struct msg m = {.type = MSG_PULL};

	m.pull = (struct msg_pull){.stamp = s, .request = 42, .which = which};
	bench_message(b, peer, &m);
}

static inline void bench_bye(struct bench *b, uint32_t peer, struct stamp s)
{
	struct msg m = {.type = MSG_BYE};

	m.bye.stamp = s;
	bench_message(b, peer, &m);
}

static inline void bench_admin(struct bench *b, uint32_t peer, enum admin_verb verb)
{
	struct msg m = {.type = MSG_ADMIN, .admin = {.verb = verb}};

	bench_message(b, peer, &m);
}

#endif
