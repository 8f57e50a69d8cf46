/*
 * session.c - fuzzes a worker's session (worker/client/session.h). The input chooses messages of a
 * hostile or faulty server, links that open and close, the passing of time, and requests of the
 * program. The codec encodes and decodes each message on its way to the session.
 *
 * The target checks the numbered invariants of session.h, in addition to the assertions of the
 * session: the program is notified of each push once and in order, pushes are released in order and
 * only when they are durable, and no effect follows the end.
 */
#include <math.h>
#include "proto/wire.h"
#include "tests/support/fuzz_input.h"
#include "worker/client/session.h"

#define PARAMS 8u

struct fuzz {
	struct session *s;
	struct wire *wire;
	uint64_t now_ms, term, request;
	uint64_t notified, released;
	int begun, ended; /* begun: 1: a WELCOME has arrived; ended: 1: the session has ended */
};

static void check_effects(struct fuzz *f)
{
	for (size_t i = 0; session_effect(f->s, i); i++) {
		const struct session_effect *e = session_effect(f->s, i);

		PS_ASSERT(!f->ended);
		if (e->kind == NOTIFY_READY && !f->begun) {
			f->begun = 1;
			f->notified = session_acked_seq(f->s);
			f->released = session_durable_seq(f->s);
		}
		if (e->kind == NOTIFY_ACK) {
			PS_ASSERT(e->seq == f->notified + 1 && e->msg.ack.seq == e->seq);
			f->notified = e->seq;
		}
		if (e->kind == DO_RELEASE) {
			PS_ASSERT(e->seq > f->released && e->seq <= session_last_seq(f->s));
			f->released = e->seq;
		}
		if (e->kind == DO_SEND_PUSH)
			PS_ASSERT(e->seq > f->released && e->seq <= session_last_seq(f->s));
		if (e->kind == DO_SEND && e->msg.type == MSG_LEASE)
			f->request = e->msg.lease.request;
		if (e->kind == DO_SEND && e->msg.type == MSG_PULL)
			f->request = e->msg.pull.request;
		f->ended |= e->kind == NOTIFY_END;
	}
	PS_ASSERT(session_durable_seq(f->s) <= session_last_seq(f->s));
}

static void make_welcome(struct fuzz *f, struct input *in, struct msg_welcome *w)
{
	w->stamp.run = (struct run_id){11, input_near(in, 22)};
	w->stamp.term = input_near(in, f->term);
	w->stamp.worker = (uint32_t)input_near(in, 1);
	w->stamp.incarnation = (uint32_t)input_near(in, 1);
	w->last_seq = input_near(in, session_last_seq(f->s));
	w->durable_seq = input_near(in, session_durable_seq(f->s));
	memcpy(w->model, "vector:8", 9);
	w->model_fingerprint = input_near(in, 77);
	w->n_params = input_near(in, PARAMS);
	w->batch = 10;
	w->epochs = 2;
	w->push_window = (uint32_t)input_near(in, 4);
	w->replay_window = (uint32_t)input_near(in, 8);
	w->heartbeat_ms = (uint32_t)input_near(in, 100);
	w->dead_ms = (uint32_t)input_near(in, 1000);
	w->session_ttl_ms = (uint32_t)input_near(in, 5000);
	w->mode = (enum mode)(1 + input_below(in, 5));
	w->n_push = w->n_fetch = 1;
}

static struct msg_ack make_ack(struct fuzz *f, struct input *in)
{
	struct msg_ack a = {.seq = input_near(in, session_acked_seq(f->s) + 1),
		.verdict = (enum verdict)(1 + input_below(in, 2)),
		.version = 100,
		.durable_seq = input_near(in, session_acked_seq(f->s)),
		.term = input_near(in, f->term)};

	a.reject = a.verdict == VERDICT_REJECTED ? REJECT_NORM : REJECT_NONE;
	return a;
}

static void make_params(struct fuzz *f, struct input *in, struct msg *m)
{
	static const float zeros[PARAMS];

	m->params.request = input_near(in, f->request);
	m->params.version = input_near(in, 100);
	m->params.which = (enum weights)(1 + input_below(in, 2));
	if (input_u8(in) & 1)
		m->params.ack = make_ack(f, in);
	m->params.slices.n = 1;
	m->params.slices.slice[0] =
		(struct slice){.count = PARAMS, .encoding = ENCODING_F32, .data = zeros};
}

static void make_server_message(struct fuzz *f, struct input *in, struct msg *m)
{
	static const enum msg_type types[] = {MSG_WELCOME, MSG_PARAMS, MSG_ACK, MSG_ACK, MSG_GRANT,
		MSG_HEARTBEAT, MSG_BYE, MSG_ERROR};

	m->type = types[input_below(in, 8)];
	switch (m->type) {
	case MSG_WELCOME:
		make_welcome(f, in, &m->welcome);
		break;
	case MSG_PARAMS:
		make_params(f, in, m);
		break;
	case MSG_ACK:
		m->ack = make_ack(f, in);
		break;
	case MSG_GRANT:
		m->grant = (struct msg_grant){.request = input_near(in, f->request),
			.kind = (enum grant_kind)(1 + input_below(in, 2)),
			.work = {.count = (uint32_t)input_near(in, 1)},
			.eval_count = 1,
			.eval_id = 1};
		break;
	case MSG_HEARTBEAT:
		m->heartbeat = (struct msg_heartbeat){.stamp = session_welcome(f->s)->stamp,
			.last_seq = input_near(in, session_last_seq(f->s)),
			.durable_seq = input_near(in, session_acked_seq(f->s))};
		break;
	case MSG_BYE:
		m->bye = (struct msg_bye){
			.stamp = session_welcome(f->s)->stamp, .status = -(int)input_below(in, 40)};
		break;
	default:
		m->error = (struct msg_error){.status = -(int)input_below(in, 40),
			.expected = input_near(in, session_last_seq(f->s)),
			.text = "no",
			.notice = input_u8(in) > 200};
	}
}

static void receive(struct fuzz *f, struct input *in)
{
	struct msg m = {0}, decoded;
	struct frames frames;

	make_server_message(f, in, &m);
	if (wire_encode(&m, &frames) != 0)
		return;
	if (wire_decode(f->wire, &frames, &decoded, NULL) == 0) {
		session_message(f->s, &decoded, f->now_ms);
		check_effects(f);
	}
	frames_release(&frames);
}

static void request(struct fuzz *f, struct input *in)
{
	struct msg_push push = {.base_version = 100, .images = 10, .work.count = 1};
	struct msg_result result = {.eval_id = 1, .eval_count = 1};
	uint64_t seq = 0;

	switch (input_below(in, 8)) {
	case 0:
		(void)!session_pull(f->s, (enum weights)(1 + input_below(in, 2)), f->now_ms);
		break;
	case 1:
		(void)!session_lease(f->s, f->now_ms);
		break;
	case 2:
		(void)!session_result(f->s, &result, f->now_ms);
		break;
	case 3:
		(void)!session_push_pull(f->s, &push, &seq, f->now_ms);
		break;
	case 4:
		if (input_u8(in) <= 220)
			return;
		session_bye(f->s, f->now_ms);
		break;
	default:
		(void)!session_push(f->s, &push, &seq, f->now_ms);
	}
	check_effects(f);
}

static void session_input_event(struct fuzz *f, struct input *in)
{
	switch (input_below(in, 16)) {
	case 0:
		session_link_lost(f->s, f->now_ms);
		break;
	case 1:
		session_link_up(f->s, f->now_ms);
		break;
	case 2:
		session_progress(f->s, f->now_ms);
		break;
	case 3:
	case 4:
		f->now_ms += input_u8(in) * 20u;
		session_tick(f->s, input_u8(in) < 250, f->now_ms);
		break;
	case 5:
		f->term++;
		return;
	case 6:
	case 7:
	case 8:
	case 9:
		request(f, in);
		return;
	default:
		receive(f, in);
		return;
	}
	check_effects(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct wire *wire;
	struct input in = {data, size};
	struct fuzz f = {.now_ms = 1000, .term = 1};
	struct session_config cfg = {.role = ROLE_WORKER,
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

	if (!wire)
		PS_ASSERT(wire_new(&wire, PARAMS) == 0);
	f.wire = wire;
	PS_ASSERT(session_new(&f.s, &cfg, 8) == 0);
	session_start(f.s, f.now_ms);
	session_link_up(f.s, f.now_ms);
	check_effects(&f);
	while (in.left)
		session_input_event(&f, &in);
	session_free(&f.s);
	return 0;
}
