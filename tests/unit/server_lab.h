/*
 * server_lab.h - what the tests of the server's shell share: a core made from a command line, and a
 * worker whose messages go straight into it.
 */
#ifndef TESTS_UNIT_SERVER_LAB_H
#define TESTS_UNIT_SERVER_LAB_H
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"
#include "common/opt.h"
#include "server/core/core.h"
#include "server/config/options.h"
#include "server/monitor/progress.h"
#include "server/durability/startup.h"

#define LAB_MAX_ARGV 64

/* Options from words separated by ';'. Their texts live until the next call. */
static inline void lab_options(struct options *o, const char *line)
{
	static char text[2048], *argv[LAB_MAX_ARGV];
	int argc = 0;

	snprintf(text, sizeof(text), "cnn-ps%s%s", *line ? ";" : "", line);
	for (char *at = text;; argc++) {
		argv[argc] = at;
		at = strchr(at, ';');
		if (!at)
			break;
		*at++ = '\0';
	}
	argv[++argc] = NULL;
	assert_true(argc < LAB_MAX_ARGV);
	assert_int_equal(options_parse(o, argc, argv), OPT_RUN);
	log_set_level(LOG_WARN);
}

/* The core of these options, as a start would make it. */
static inline void lab_restore(struct startup *r, const struct options *o)
{
	struct err e = {0};

	if (startup(r, o, &e) != PS_OK)
		fail_msg("%s", e.text);
}

/* A worker of one core. */
struct lab_worker {
	struct core *core;
	uint32_t peer;
	uint64_t now_ms;
	struct stamp stamp;
	uint64_t seq, request;
	struct msg_grant grant; /* the newest one */
};

/* The first message of `type` that the newest step sends, or NULL. */
static inline const struct msg *lab_sent(const struct core *core, enum msg_type type)
{
	const struct effect *e;

	for (size_t i = 0; (e = core_effect(core, i)) != NULL; i++)
		if (e->kind == EFFECT_SEND && e->msg.type == type)
			return &e->msg;
	return NULL;
}

/* What the newest step has done, for `p`. */
static inline void lab_show(struct progress *p, const struct lab_worker *w)
{
	const struct effect *e;

	for (size_t i = 0; (e = core_effect(w->core, i)) != NULL; i++)
		progress_effect(p, w->core, e, w->now_ms);
}

/* Step `m` into the core; returns the first message of `type` that it answers, or NULL. */
static inline const struct msg *lab_say(
	struct lab_worker *w, const struct msg *m, enum msg_type type)
{
	const struct event ev = {.kind = EVENT_MESSAGE, .peer = w->peer, .msg = m};

	core_step(w->core, &ev, w->now_ms);
	return lab_sent(w->core, type);
}

/* HELLO with a data set of `n_train` and `n_test` images; the WELCOME, if it comes at once. */
static inline const struct msg *lab_hello(
	struct lab_worker *w, const char *name, uint32_t n_train, uint32_t n_test)
{
	struct msg m = {.type = MSG_HELLO,
		.hello = {.role = ROLE_WORKER,
			.device = "cpu \"quoted\"",
			.data = {n_train, n_test, 28, 28, 10, 0x1234}}};

	snprintf(m.hello.name, sizeof(m.hello.name), "%s", name);
	return lab_say(w, &m, MSG_WELCOME);
}

/* Join a core that saves nothing. */
static inline void lab_join(
	struct lab_worker *w, const char *name, uint32_t n_train, uint32_t n_test)
{
	const struct msg *welcome = lab_hello(w, name, n_train, n_test);

	assert_non_null(welcome);
	w->stamp = welcome->welcome.stamp;
}

static inline const struct msg_grant *lab_lease(struct lab_worker *w)
{
	const struct msg m = {
		.type = MSG_LEASE, .lease = {.stamp = w->stamp, .request = ++w->request}};
	const struct msg *grant = lab_say(w, &m, MSG_GRANT);

	assert_non_null(grant);
	w->grant = grant->grant;
	return &w->grant;
}

/* Push `value` at coordinate 0 for `work`. */
static inline const struct msg_ack *lab_push(
	struct lab_worker *w, struct work work, uint32_t images, float loss, float value)
{
	struct msg m = {.type = MSG_PUSH,
		.push = {.stamp = w->stamp,
			.seq = ++w->seq,
			.base_version = core_stats(w->core)->version,
			.base_term = core_config(w->core)->term,
			.work = work,
			.images = images,
			.loss = loss}};

	m.push.slices.n = 1;
	m.push.slices.slice[0] =
		(struct slice){.count = 1, .encoding = ENCODING_F32, .data = &value};
	const struct msg *ack = lab_say(w, &m, MSG_ACK);
	assert_non_null(ack);
	return &ack->ack;
}

static inline void lab_result(struct lab_worker *w, uint32_t correct, double loss_sum)
{
	const struct msg m = {.type = MSG_RESULT,
		.result = {.stamp = w->stamp,
			.eval_id = w->grant.eval_id,
			.eval_first = w->grant.eval_first,
			.eval_count = w->grant.eval_count,
			.correct = correct,
			.loss_sum = loss_sum}};

	(void)lab_say(w, &m, MSG_ACK);
}

#endif
