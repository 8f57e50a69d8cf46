/*
 * session_bench.h - a worker's session on the bench: what it does is read as one line of words, and
 * every call is watched for the invariants of worker/client/session.h that must hold always.
 */
#ifndef TESTS_UNIT_SESSION_BENCH_H
#define TESTS_UNIT_SESSION_BENCH_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "worker/client/session.h"

#define BENCH_SEQS 4096u

struct sbench {
	struct session *s;
	uint64_t now_ms;
	struct msg_welcome welcome;       /* what the server says next; epoch and stamp are in it */
	uint64_t notified_ack, released;  /* newest */
	uint64_t durable;                 /* newest that the server called durable */
	struct msg_push made[BENCH_SEQS]; /* as they were given to session_push */
	uint8_t told[BENCH_SEQS];         /* verdict that was told, by seq */
	int ended;
	char did[2048];
};

static inline struct session_config sbench_config(void)
{
	return (struct session_config){.role = ROLE_WORKER,
		.name = "anna",
		.device = "cpu",
		.data = {.n_train = 35,
			.n_test = 7,
			.rows = 2,
			.cols = 3,
			.classes = 10,
			.xxh3 = 9},
		.seed = 1,
		.connect_timeout_ms = 30000,
		.disconnect_timeout_ms = 20000,
		.retry_ms = 100,
		.silence_ms = 3000};
}

/* ---- looking -------------------------------------------------------------------------------- */

static inline const struct session_effect *sbench_effect(
	const struct sbench *b, enum session_effect_kind kind)
{
	for (size_t i = 0; session_effect(b->s, i); i++)
		if (session_effect(b->s, i)->kind == kind)
			return session_effect(b->s, i);
	return NULL;
}

/* The first message of this type that goes out, pushes and beats too. */
static inline const struct msg *sbench_sent(const struct sbench *b, enum msg_type type)
{
	for (size_t i = 0; session_effect(b->s, i); i++) {
		const struct session_effect *e = session_effect(b->s, i);

		if (e->kind <= DO_SEND_BEAT && e->msg.type == type)
			return &e->msg;
	}
	return NULL;
}

static inline void sbench_watch_push(struct sbench *b, const struct session_effect *e)
{
	const struct msg_push *p = &e->msg.push, *made = &b->made[e->seq];

	/* (1): what was made is what is sent, under its seq, whenever it is sent */
	assert_int_equal(p->seq, e->seq);
	assert_int_equal(p->base_version, made->base_version);
	assert_int_equal(p->base_term, made->base_term);
	assert_memory_equal(&p->work, &made->work, sizeof(p->work));
	assert_int_equal(p->images, made->images);
	assert_true(p->loss == made->loss);
	assert_int_equal(p->verdict, b->told[e->seq]);
	assert_int_equal(p->slices.n, 0);
	assert_memory_equal(&p->stamp, &b->welcome.stamp, sizeof(p->stamp));
	assert_true(e->seq > b->released); /* (2) */
}

static inline void sbench_watch(struct sbench *b)
{
	for (size_t i = 0; session_effect(b->s, i); i++) {
		const struct session_effect *e = session_effect(b->s, i);

		assert_int_equal(b->ended, 0); /* nothing comes after the end */
		if (e->kind == DO_SEND_PUSH)
			sbench_watch_push(b, e);
		if (e->kind == NOTIFY_ACK) { /* once, in order */
			assert_int_equal(e->seq, b->notified_ack + 1);
			assert_int_equal(e->msg.ack.seq, e->seq);
			b->notified_ack = e->seq;
			b->told[e->seq] = (uint8_t)e->msg.ack.verdict;
		}
		if (e->kind == DO_RELEASE) { /* (2) */
			assert_true(e->seq > b->released);
			assert_true(e->seq <= b->durable && e->seq <= b->notified_ack);
			b->released = e->seq;
		}
		b->ended |= e->kind == NOTIFY_END;
	}
	assert_int_equal(b->released, session_durable_seq(b->s));
	assert_int_equal(b->notified_ack, session_acked_seq(b->s));
}

static inline const char *sbench_word(const struct session_effect *e, char out[40])
{
	static const char *const types[MSG_TYPES] = {"?", "hello", "welcome", "pull", "params",
		"push", "ack", "lease", "grant", "result", "beat", "bye", "status", "admin",
		"error"};
	static const char *const kinds[] = {"", "push", "beat", "release", "READY", "ACK", "PARAMS",
		"NO-PARAMS", "GRANT", "END"};

	if (e->kind == DO_SEND)
		snprintf(out, 40, "%s", types[e->msg.type]);
	else if (e->seq)
		snprintf(out, 40, "%s:%llu", kinds[e->kind], (unsigned long long)e->seq);
	else if (e->kind == NOTIFY_END)
		snprintf(out, 40, "END:%s", err_name(e->status));
	else
		snprintf(out, 40, "%s", kinds[e->kind]);
	return out;
}

/* What the last call did, in order: "READY push:4 push:5 lease". Capitals: told to the program. */
static inline const char *sbench_did(struct sbench *b)
{
	char word[40];
	size_t at = 0;

	b->did[0] = '\0';
	for (size_t i = 0; session_effect(b->s, i) && at < sizeof(b->did) - 48; i++)
		at += (size_t)snprintf(b->did + at, sizeof(b->did) - at, "%s%s", i ? " " : "",
			sbench_word(session_effect(b->s, i), word));
	return b->did;
}

#define assert_did(b, words) assert_string_equal(sbench_did(b), words)

/* ---- driving -------------------------------------------------------------------------------- */

static inline void sbench_message(struct sbench *b, const struct msg *m)
{
	session_message(b->s, m, b->now_ms);
	sbench_watch(b);
}

/* `durable` is a promise of the server from now on. */
static inline void sbench_promise(struct sbench *b, uint64_t durable)
{
	b->durable = durable > b->durable ? durable : b->durable;
}

static inline void sbench_welcome(struct sbench *b, uint64_t last_seq, uint64_t durable_seq)
{
	struct msg m = {.type = MSG_WELCOME};

	if (session_phase(b->s) == PHASE_HELLO && session_last_seq(b->s) == 0)
		b->notified_ack = b->released = last_seq; /* its predecessor's */
	sbench_promise(b, durable_seq);
	b->welcome.last_seq = last_seq;
	b->welcome.durable_seq = durable_seq;
	m.welcome = b->welcome;
	sbench_message(b, &m);
}

static inline void sbench_ack(struct sbench *b, uint64_t seq, enum verdict v, uint64_t durable)
{
	struct msg m = {.type = MSG_ACK};

	sbench_promise(b, durable);
	m.ack = (struct msg_ack){.seq = seq,
		.verdict = v,
		.reject = v == VERDICT_REJECTED ? REJECT_NORM : REJECT_NONE,
		.version = 100 + seq,
		.durable_seq = durable,
		.term = b->welcome.stamp.term};
	sbench_message(b, &m);
}

static inline void sbench_beat(struct sbench *b, uint64_t last_seq, uint64_t durable_seq)
{
	struct msg m = {.type = MSG_BEAT};

	sbench_promise(b, durable_seq);
	m.beat = (struct msg_beat){b->welcome.stamp, last_seq, durable_seq};
	sbench_message(b, &m);
}

static inline void sbench_error(struct sbench *b, int status)
{
	struct msg m = {.type = MSG_ERROR, .error = {.status = status, .text = "because"}};

	sbench_message(b, &m);
}

/* The server waits for its disk, and its replies with it. */
static inline void sbench_notice(struct sbench *b)
{
	struct msg m = {
		.type = MSG_ERROR, .error = {.status = PS_EAGAIN, .text = "because", .notice = 1}};

	sbench_message(b, &m);
}

static inline void sbench_bye_from_server(struct sbench *b, int status)
{
	struct msg m = {.type = MSG_BYE, .bye = {.status = status}};

	sbench_message(b, &m);
}

static inline void sbench_tick(struct sbench *b, uint64_t ms)
{
	b->now_ms += ms;
	session_tick(b->s, 1, b->now_ms);
	sbench_watch(b);
}

typedef int sbench_push_fn(struct session *, const struct msg_push *, uint64_t *, uint64_t);

/* A push unlike any other; 0 or why not. */
static inline int sbench_push_by(struct sbench *b, sbench_push_fn *push)
{
	uint64_t seq = 0, next = session_last_seq(b->s) + 1;
	struct msg_push p = {.base_version = 1000 + next,
		.base_term = 2000 + next,
		.work = {(uint32_t)next, (uint32_t)next * 2, 1},
		.images = (uint32_t)next * 3,
		.loss = (float)next / 7};
	int rc;

	assert_true(next < BENCH_SEQS);
	b->made[next] = p;
	rc = push(b->s, &p, &seq, b->now_ms);
	if (rc == PS_OK)
		assert_int_equal(seq, next);
	else
		assert_int_equal(session_last_seq(b->s), next - 1);
	sbench_watch(b);
	return rc;
}

static inline int sbench_push(struct sbench *b)
{
	return sbench_push_by(b, session_push);
}

static inline int sbench_push_pull(struct sbench *b)
{
	return sbench_push_by(b, session_push_pull);
}

static inline void sbench_push_ok(struct sbench *b, int n)
{
	while (n--)
		assert_int_equal(sbench_push(b), PS_OK);
}

static inline int sbench_pull(struct sbench *b)
{
	int rc = session_pull(b->s, WEIGHTS_CURRENT, b->now_ms);

	sbench_watch(b);
	return rc;
}

static inline int sbench_lease(struct sbench *b)
{
	int rc = session_lease(b->s, b->now_ms);

	sbench_watch(b);
	return rc;
}

static inline void sbench_bye(struct sbench *b)
{
	session_bye(b->s, b->now_ms);
	sbench_watch(b);
}

static inline void sbench_lost(struct sbench *b)
{
	session_link_lost(b->s, b->now_ms);
	sbench_watch(b);
}

static inline void sbench_up(struct sbench *b)
{
	session_link_up(b->s, b->now_ms);
	sbench_watch(b);
}

/* The server was killed and came back with less. */
static inline void sbench_crash(struct sbench *b)
{
	b->welcome.stamp.term++;
}

/* ---- life ----------------------------------------------------------------------------------- */

/* Started, connected, HELLO said. */
static inline void sbench_new(struct sbench *b, struct session_config cfg, size_t replay_max)
{
	memset(b, 0, sizeof(*b));
	b->now_ms = 5000;
	b->welcome = (struct msg_welcome){.stamp = {{7, 8}, 3, 2, 1},
		.n_params = 8,
		.push_window = 4,
		.replay_window = 8,
		.beat_ms = 500,
		.dead_ms = 10000,
		.forget_ms = 60000,
		.mode = MODE_DOWNPOUR,
		.n_push = 1,
		.n_fetch = 1};
	assert_int_equal(session_new(&b->s, &cfg, replay_max), PS_OK);
	session_start(b->s, b->now_ms);
	sbench_watch(b);
	sbench_up(b);
	assert_did(b, "hello");
}

/* And welcomed to a fresh run. */
static inline void sbench_open(struct sbench *b)
{
	sbench_new(b, sbench_config(), 64);
	sbench_welcome(b, 0, 0);
	assert_did(b, "READY");
}

#endif
