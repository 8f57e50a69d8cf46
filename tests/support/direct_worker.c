/* direct_worker.c - see direct_worker.h. */
#include "tests/support/direct_worker.h"
#include "server/core/core_state.h"
#include "server/core/rights.h"
#include "server/core/workers.h"

#define MAX_ARGV 64

void parse_options(struct options *o, const char *line)
{
	static char text[2048], *argv[MAX_ARGV];
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
	assert_true(argc < MAX_ARGV);
	assert_int_equal(options_parse(o, argc, argv), OPT_RUN);
	log_set_level(LOG_WARN);
}

void start_core(struct startup *r, const struct options *o)
{
	struct err e = {0};

	if (startup(r, o, &e) != PS_OK)
		fail_msg("%s", e.text);
}

const struct msg *direct_sent(const struct core *core, enum msg_type type)
{
	const struct effect *e;

	for (size_t i = 0; (e = core_effect(core, i)) != NULL; i++)
		if (e->kind == EFFECT_SEND && e->msg.type == type)
			return &e->msg;
	return NULL;
}

void direct_progress(struct progress *p, const struct direct_worker *w)
{
	const struct effect *e;

	for (size_t i = 0; (e = core_effect(w->core, i)) != NULL; i++)
		progress_effect(p, w->core, e, w->now_ms);
}

/* Send `m` to the core. Returns the first reply of this type, or NULL if there is none. */
static const struct msg *direct_send(
	struct direct_worker *w, const struct msg *m, enum msg_type type)
{
	const struct event ev = {.kind = EVENT_MESSAGE, .peer = w->peer, .msg = m};

	core_step(w->core, &ev, w->now_ms);
	return direct_sent(w->core, type);
}

const struct msg *direct_hello(
	struct direct_worker *w, const char *name, uint32_t n_train, uint32_t n_test)
{
	struct msg m = {.type = MSG_HELLO,
		.hello = {.role = ROLE_WORKER,
			.device = "cpu \"quoted\"",
			.data = {.n_train = n_train,
				.n_test = n_test,
				.rows = 28,
				.cols = 28,
				.classes = 10,
				.xxh3 = 0x1234}}};

	snprintf(m.hello.name, sizeof(m.hello.name), "%s", name);
	return direct_send(w, &m, MSG_WELCOME);
}

void direct_join(struct direct_worker *w, const char *name, uint32_t n_train, uint32_t n_test)
{
	const struct msg *welcome = direct_hello(w, name, n_train, n_test);

	assert_non_null(welcome);
	w->stamp = welcome->welcome.stamp;
}

const struct msg_grant *direct_lease(struct direct_worker *w)
{
	const struct msg m = {
		.type = MSG_LEASE, .lease = {.stamp = w->stamp, .request = ++w->request}};
	const struct msg *grant = direct_send(w, &m, MSG_GRANT);

	assert_non_null(grant);
	w->grant = grant->grant;
	return &w->grant;
}

/* Returns the code of a grant of `work`. The tests push batches that no grant contains, so they
 * compute the code themselves. */
static uint64_t code_of(const struct direct_worker *w, struct work work)
{
	const struct msg_grant g = {.kind = GRANT_TRAIN, .work = work};

	return rights_of_grant(w->core, worker_find(w->core, w->stamp.worker), &g);
}

const struct msg_ack *direct_push(
	struct direct_worker *w, struct work work, uint32_t images, float loss, float value)
{
	struct msg m = {.type = MSG_PUSH,
		.push = {.stamp = w->stamp,
			.seq = ++w->seq,
			.base_version = core_stats(w->core)->version,
			.base_term = core_config(w->core)->term,
			.work = work,
			.images = images,
			.loss = loss}};

	m.push.grant_first = work.first;
	m.push.grant_count = work.count;
	m.push.grant_code = code_of(w, work);
	m.push.slices.n = 1;
	m.push.slices.slice[0] =
		(struct slice){.count = 1, .encoding = ENCODING_F32, .data = &value};
	const struct msg *ack = direct_send(w, &m, MSG_ACK);
	assert_non_null(ack);
	return &ack->ack;
}

void direct_result(struct direct_worker *w, uint32_t correct, double loss_sum)
{
	const struct msg m = {.type = MSG_RESULT,
		.result = {.stamp = w->stamp,
			.eval_id = w->grant.eval_id,
			.eval_first = w->grant.eval_first,
			.eval_count = w->grant.eval_count,
			.correct = correct,
			.loss_sum = loss_sum}};

	(void)direct_send(w, &m, MSG_ACK);
}
