/* session_driver.c - see session_driver.h. */
#include "tests/support/session_driver.h"

struct session_config driver_config(void)
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

/* ---- effects of the last call --------------------------------------------------------------- */

const struct session_effect *driver_effect(
	const struct session_driver *d, enum session_effect_kind kind)
{
	for (size_t i = 0; session_effect(d->s, i); i++)
		if (session_effect(d->s, i)->kind == kind)
			return session_effect(d->s, i);
	return NULL;
}

const struct msg *driver_sent(const struct session_driver *d, enum msg_type type)
{
	for (size_t i = 0; session_effect(d->s, i); i++) {
		const struct session_effect *e = session_effect(d->s, i);

		if (e->kind <= DO_SEND_HEARTBEAT && e->msg.type == type)
			return &e->msg;
	}
	return NULL;
}

static void driver_watch_push(struct session_driver *d, const struct session_effect *e)
{
	const struct msg_push *p = &e->msg.push, *made = &d->made[e->seq];

	/* invariant 1: each transmission of a seq has the same content */
	assert_int_equal(p->seq, e->seq);
	assert_int_equal(p->base_version, made->base_version);
	assert_int_equal(p->base_term, made->base_term);
	assert_memory_equal(&p->work, &made->work, sizeof(p->work));
	assert_int_equal(p->images, made->images);
	assert_true(p->loss == made->loss);
	assert_int_equal(p->verdict, d->verdict[e->seq]);
	assert_int_equal(p->slices.n, 0);
	assert_memory_equal(&p->stamp, &d->welcome.stamp, sizeof(p->stamp));
	assert_true(e->seq > d->released); /* invariant 2: a released push is never sent again */
}

static void driver_watch(struct session_driver *d)
{
	for (size_t i = 0; session_effect(d->s, i); i++) {
		const struct session_effect *e = session_effect(d->s, i);

		assert_int_equal(d->ended, 0); /* a session has no effects after its end */
		if (e->kind == DO_SEND_PUSH)
			driver_watch_push(d, e);
		if (e->kind == NOTIFY_ACK) { /* exactly one NOTIFY_ACK for each push, in order */
			assert_int_equal(e->seq, d->notified_ack + 1);
			assert_int_equal(e->msg.ack.seq, e->seq);
			d->notified_ack = e->seq;
			d->verdict[e->seq] = (uint8_t)e->msg.ack.verdict;
		}
		/* invariant 2: pushes are released in ascending order, each only after it is
		 * durable and the program was notified of its ACK */
		if (e->kind == DO_RELEASE) {
			assert_true(e->seq > d->released);
			assert_true(e->seq <= d->durable && e->seq <= d->notified_ack);
			d->released = e->seq;
		}
		d->ended |= e->kind == NOTIFY_END;
	}
	assert_int_equal(d->released, session_durable_seq(d->s));
	assert_int_equal(d->notified_ack, session_acked_seq(d->s));
}

typedef int driver_push_fn(struct session *, const struct msg_push *, uint64_t *, uint64_t);

static const char *driver_word(const struct session_effect *e, char out[40])
{
	static const char *const types[MSG_TYPES] = {"?", "hello", "welcome", "pull", "params",
		"push", "ack", "lease", "grant", "result", "heartbeat", "bye", "status", "admin",
		"error"};
	static const char *const kinds[] = {"", "push", "heartbeat", "release", "READY", "ACK",
		"PARAMS", "NO-PARAMS", "GRANT", "END"};

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

const char *driver_did(struct session_driver *d)
{
	char word[40];
	size_t at = 0;

	d->did[0] = '\0';
	for (size_t i = 0; session_effect(d->s, i) && at < sizeof(d->did) - 48; i++)
		at += (size_t)snprintf(d->did + at, sizeof(d->did) - at, "%s%s", i ? " " : "",
			driver_word(session_effect(d->s, i), word));
	return d->did;
}

/* ---- calls ---------------------------------------------------------------------------------- */

void driver_message(struct session_driver *d, const struct msg *m)
{
	session_message(d->s, m, d->now_ms);
	driver_watch(d);
}

/* Record that the server reports the pushes up to seq `durable` as durable. */
static void driver_promise(struct session_driver *d, uint64_t durable)
{
	d->durable = durable > d->durable ? durable : d->durable;
}

void driver_welcome(struct session_driver *d, uint64_t last_seq, uint64_t durable_seq)
{
	struct msg m = {.type = MSG_WELCOME};

	if (session_phase(d->s) == PHASE_HELLO && session_last_seq(d->s) == 0)
		/* an earlier process of the worker made the pushes up to last_seq */
		d->notified_ack = d->released = last_seq;
	driver_promise(d, durable_seq);
	d->welcome.last_seq = last_seq;
	d->welcome.durable_seq = durable_seq;
	m.welcome = d->welcome;
	driver_message(d, &m);
}

void driver_ack(struct session_driver *d, uint64_t seq, enum verdict v, uint64_t durable)
{
	struct msg m = {.type = MSG_ACK};

	driver_promise(d, durable);
	m.ack = (struct msg_ack){.seq = seq,
		.verdict = v,
		.reject = v == VERDICT_REJECTED ? REJECT_NORM : REJECT_NONE,
		.version = 100 + seq,
		.durable_seq = durable,
		.term = d->welcome.stamp.term};
	driver_message(d, &m);
}

void driver_heartbeat(struct session_driver *d, uint64_t last_seq, uint64_t durable_seq)
{
	struct msg m = {.type = MSG_HEARTBEAT};

	driver_promise(d, durable_seq);
	m.heartbeat = (struct msg_heartbeat){
		.stamp = d->welcome.stamp, .last_seq = last_seq, .durable_seq = durable_seq};
	driver_message(d, &m);
}

void driver_error(struct session_driver *d, int status)
{
	struct msg m = {.type = MSG_ERROR, .error = {.status = status, .text = "because"}};

	driver_message(d, &m);
}

void driver_notice(struct session_driver *d)
{
	struct msg m = {
		.type = MSG_ERROR, .error = {.status = PS_EAGAIN, .text = "because", .notice = 1}};

	driver_message(d, &m);
}

void driver_bye_from_server(struct session_driver *d, int status)
{
	struct msg m = {.type = MSG_BYE, .bye = {.status = status}};

	driver_message(d, &m);
}

void driver_tick(struct session_driver *d, uint64_t ms)
{
	d->now_ms += ms;
	session_tick(d->s, 1, d->now_ms);
	driver_watch(d);
}

/* Make a push that differs from every other push. Returns the status of the call. */
static int driver_push_by(struct session_driver *d, driver_push_fn *push)
{
	uint64_t seq = 0, next = session_last_seq(d->s) + 1;
	struct msg_push p = {.base_version = 1000 + next,
		.base_term = 2000 + next,
		.work = {(uint32_t)next, (uint32_t)next * 2, 1},
		.images = (uint32_t)next * 3,
		.loss = (float)next / 7};
	int rc;

	assert_true(next < DRIVER_SEQS);
	d->made[next] = p;
	rc = push(d->s, &p, &seq, d->now_ms);
	if (rc == PS_OK)
		assert_int_equal(seq, next);
	else
		assert_int_equal(session_last_seq(d->s), next - 1);
	driver_watch(d);
	return rc;
}

int driver_push(struct session_driver *d)
{
	return driver_push_by(d, session_push);
}

int driver_push_pull(struct session_driver *d)
{
	return driver_push_by(d, session_push_pull);
}

void driver_push_ok(struct session_driver *d, int n)
{
	while (n--)
		assert_int_equal(driver_push(d), PS_OK);
}

int driver_pull(struct session_driver *d)
{
	int rc = session_pull(d->s, WEIGHTS_CURRENT, d->now_ms);

	driver_watch(d);
	return rc;
}

int driver_lease(struct session_driver *d)
{
	int rc = session_lease(d->s, d->now_ms);

	driver_watch(d);
	return rc;
}

void driver_bye(struct session_driver *d)
{
	session_bye(d->s, d->now_ms);
	driver_watch(d);
}

void driver_lost(struct session_driver *d)
{
	session_link_lost(d->s, d->now_ms);
	driver_watch(d);
}

void driver_up(struct session_driver *d)
{
	session_link_up(d->s, d->now_ms);
	driver_watch(d);
}

void driver_crash(struct session_driver *d)
{
	d->welcome.stamp.term++;
}

/* ---- life cycle ----------------------------------------------------------------------------- */

void driver_new(struct session_driver *d, struct session_config cfg, size_t replay_max)
{
	memset(d, 0, sizeof(*d));
	d->now_ms = 5000;
	d->welcome = (struct msg_welcome){.stamp = {{7, 8}, 3, 2, 1},
		.n_params = 8,
		.push_window = 4,
		.replay_window = 8,
		.heartbeat_ms = 500,
		.dead_ms = 10000,
		.session_ttl_ms = 60000,
		.mode = MODE_DOWNPOUR,
		.n_push = 1,
		.n_fetch = 1};
	assert_int_equal(session_new(&d->s, &cfg, replay_max), PS_OK);
	session_start(d->s, d->now_ms);
	driver_watch(d);
	driver_up(d);
	assert_did(d, "hello");
}

void driver_open(struct session_driver *d)
{
	driver_new(d, driver_config(), 64);
	driver_welcome(d, 0, 0);
	assert_did(d, "READY");
}
