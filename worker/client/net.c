/*
 * net.c - see net.h: the two threads that share the connections, and the program's requests.
 *
 * One step consists of these parts: an event arrives (message, link event, request or tick) ->
 * net.c calls the session -> net.c carries out the effects of the session -> net.c tries the
 * request in progress again, because the request may be complete now.
 */
#include "worker/client/net.h"
#include "worker/client/show.h"
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include "common/assert.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "worker/client/contact.h"
#include "worker/client/counters.h"
#include "worker/client/garbage.h"
#include "worker/client/heartbeat.h"
#include "worker/client/lane_setup.h"
#include "worker/client/lease_pace.h"
#include "worker/client/link.h"
#include "worker/client/outbox.h"
#include "worker/client/requests.h"
#include "worker/client/sides.h"

#define TICK_MS     100
#define RECEIPTS_MS 2 /* pause of the background thread while a push waits for receipts */
/* while there is no WELCOME, send STATUS after this time without a message */
#define STATUS_AFTER_MS 700
#define REDIAL_MS       1000
#define RELEASE_SINCE   7u /* first protocol version that has ADMIN_RELEASE */
/* A server repeats a notice, that is, an ERROR that says why replies wait, within this time. This
 * time is shorter than 1.5 s, the time after which the worker reports a wait. A single notice is
 * therefore never reported. */
#define NOTICE_MS 1400
#define CLOSE_MS  5000 /* maximum wait of net_free for the last decisions and BYE */
/* time limit of this wait if no decision is open and no server is there */
#define CLOSE_DOWN_MS 500
/* maximum number of messages from one socket before the loop reads the other sockets */
#define BUDGET 64

enum {
	STOP_GRACE_MS = 5000, /* time limit of each request after `stop` has reported a stop */
	/* send an unanswered STATUS or ADMIN again after this time; the session repeats only its
	 * own requests */
	RESEND_MS = 5000,
	/* in a run that grants no leases, refuse a lease only after this time: until then, the
	 * message that ends the run may arrive */
	NO_LEASE_MS = 1000,
};

struct net {
	struct net_config cfg;
	struct counters count;
	uv_thread_t background;
	uv_mutex_t background_lock; /* the background thread holds it, except while it waits */
	uv_cond_t wake_background;
	int closing; /* 1 if the background thread must end; guarded by background_lock */
	struct heartbeat heartbeat;
	/* guarded by io_lock, except for the time that requests_alive sets */
	struct requests requests;

	uv_mutex_t io_lock; /* guards all members below */
	uv_thread_t io_holder;
	int io_held;
	struct link link;
	struct wire *wire;
	struct frames *in;    /* the message being handled */
	struct frames joined; /* PARAMS whose parts have all arrived */
	struct session *session;
	struct awake awake; /* the clock of the session */
	struct outbox out;
	struct lane_setup lane;
	struct sides sides;
	/* the device of net_use_device; `pin` is NULL if there is none */
	struct lane_device device;
	uint64_t tick_ms; /* time at which the next tick is due */
	/* number of bytes that the connections for tensors had moved at the newest tick */
	uint64_t moved;
	uint64_t stop_ms;  /* time at which cfg.stop reported a stop; 0 before that */
	uint64_t base_seq; /* last_seq of the first WELCOME */
	uint64_t n_params; /* size of the model in the first WELCOME */
	int welcomed;
	uint64_t links; /* number of times that the bulk connection was established */
	/* number of times that the peer closed the bulk connection during the handshake */
	uint64_t failed_handshakes;
	int up; /* 1 if the bulk connection is established */
	/* 1 if a receive on the bulk connection has found no message, and since then the descriptor
	 * has reported nothing */
	int bulk_is_empty;
	int answered; /* 1 if the present bulk connection has carried messages of cnn-ps */
	/* time of the newest message, or of the begin of the connection if no message came */
	uint64_t received_ms;
	struct contact contact;
	uint64_t status_sent_ms;      /* time of the newest STATUS that query_status has sent */
	uint64_t redial_ms;           /* time from which on link_redial may be called */
	uint64_t heartbeat_redial_ms; /* time from which on heartbeat_redial may be called */
	int keyed;                    /* 1 if the connection is encrypted with the two keys below */
	char own_key[KEY_SHORT + 1], server_key[KEY_SHORT + 1];
	struct err server_error;   /* the newest ERROR of the server */
	uint64_t notice_ms;        /* time of the newest ERROR */
	atomic_int show_requested; /* 1 if the server has requested pictures (show.h) */
	/* time at which net_show_requested last returned 1, or 0; only this function uses the
	 * member */
	uint64_t show_ms;
	char *tensors; /* a copy of the list of tensors in the first WELCOME; owned */
	struct lease_pace pace;
	struct garbage garbage;
	/* time at which the worker opens its connections again, which it has closed because the
	 * server has sent too much garbage or ended too many connections; 0: they are open */
	uint64_t reopen_ms;
};

/* Asserts invariant (1): the calling thread holds the I/O lock. */
static void assert_io_lock(const struct net *n)
{
	const uv_thread_t self = uv_thread_self();

	PS_ASSERT(n->io_held && uv_thread_equal(&n->io_holder, &self)); /* invariant 1 */
}

static void own_io_lock(struct net *n)
{
	PS_ASSERT(!n->io_held);
	n->io_held = 1;
	n->io_holder = uv_thread_self();
}

static void unlock_io(struct net *n)
{
	assert_io_lock(n);
	n->io_held = 0;
	uv_mutex_unlock(&n->io_lock);
}

/* Returns the time of the session's clock, which stands still while this process is suspended. */
static uint64_t now_of(struct net *n)
{
	return awake_ms(&n->awake, clock_ms(), AWAKE_HEARTBEAT_MS);
}

/* Returns 1 while the server repeats the notice that replies wait for its disk. */
static int is_held(const struct net *n, uint64_t now_ms)
{
	return n->requests.current && n->server_error.status == PS_EAGAIN &&
	       now_ms - n->notice_ms < NOTICE_MS;
}

static struct contact_state contact_state_of(const struct net *n, uint64_t now_ms)
{
	int rc = n->server_error.status, waits = rc == PS_EFULL || rc == PS_EAGAIN;

	return (struct contact_state){.server = n->cfg.server,
		.welcomed = n->welcomed,
		.up = n->up,
		.answered = n->answered,
		.silent_ms = now_ms - n->received_ms,
		.refusal = waits && !n->welcomed ? n->server_error.text : NULL,
		.notice = is_held(n, now_ms) ? n->server_error.text : NULL,
		.failed_handshakes = n->failed_handshakes,
		.server_key = n->keyed ? n->server_key : NULL,
		.waiting_ms = session_waiting_ms(n->session, now_ms),
		.remaining_ms = session_remaining_ms(n->session, now_ms),
		.idle = requests_current(&n->requests, REQUEST_LEASE) && n->requests.pending};
}

/* ---- effects of the session ------------------------------------------------------------------ */

static void describe_unreachable(struct net *n, char why[CONTACT_TEXT])
{
	const struct session_config *s = &n->cfg.session;
	struct contact_state state = contact_state_of(n, n->awake.now_ms);

	contact_gave_up(&n->contact, &state,
		n->welcomed ? s->disconnect_timeout_ms : s->connect_timeout_ms, why);
}

/* Records the reason of the session's end as one line. The line is the server's text if the server
 * has sent one. */
static void on_end(struct net *n, int rc)
{
	char why[CONTACT_TEXT];

	if (n->server_error.status == rc && n->server_error.text[0])
		snprintf(why, sizeof(why), "%s", n->server_error.text);
	else if (rc == PS_EUNREACHABLE)
		describe_unreachable(n, why);
	else
		snprintf(why, sizeof(why), "%.150s: %s", n->cfg.server, err_text(rc));
	requests_end(&n->requests, rc, why);
}

/* Takes the size of the model from the first WELCOME, which determines the size of all buffers.
 * Refuses a later WELCOME with another size. */
static int take_size(struct net *n, const struct msg_welcome *w)
{
	if (n->welcomed)
		return n->n_params == w->n_params
			       ? PS_OK
			       : err_set(&n->server_error, PS_EWRONGRUN,
					 "%.100s: the model has %llu parameters now, and had %llu: "
					 "start this worker again to join the new run",
					 n->cfg.server, (unsigned long long)w->n_params,
					 (unsigned long long)n->n_params);
	/* w->tensors belongs to the message, which is still valid */
	n->tensors = strdup(w->tensors ? w->tensors : "");
	if (!n->tensors || wire_resize(n->wire, w->n_params))
		return err_set(&n->server_error, PS_ENOMEM, "no memory for %llu parameters",
			(unsigned long long)w->n_params);
	n->n_params = w->n_params;
	n->base_seq = w->last_seq;
	return PS_OK;
}

/* ---- shared memory --------------------------------------------------------------------------- */

/* Ends the session if the program requires a lane and a lane is not possible. */
static void require_lane(struct net *n, int rc, const struct err *e)
{
	if (rc)
		requests_end(&n->requests, rc, e->text);
}

static void on_welcome_lane(struct net *n, const struct msg_welcome *w)
{
	struct err e;

	require_lane(n, lane_setup_welcome(&n->lane, w, n->awake.now_ms, &e), &e);
}

static void poll_lane(struct net *n, uint64_t now)
{
	struct err e;

	require_lane(n, lane_setup_poll(&n->lane, now, &e), &e);
}

/* Appends the tensor frame of a PARAMS whose weights are in shared memory. */
static int append_weights(struct net *n, const struct lane_ref *ref, struct frames *f)
{
	/* read the answer about the lane first: the server sent it before this PARAMS */
	poll_lane(n, n->awake.now_ms);
	return lane_is_open(n->lane.lane) ? lane_append(n->lane.lane, ref, f) : PS_EPROTO;
}

int net_take_slot(struct net *n, struct lane_slot *slot, int on_device)
{
	int taken = 0;

	slot->lane = NULL;
	uv_mutex_lock(&n->io_lock);
	own_io_lock(n);
	if (lane_is_open(n->lane.lane))
		taken = lane_take(n->lane.lane, slot, on_device);
	unlock_io(n);
	return taken;
}

void net_use_device(struct net *n, const struct lane_device *device)
{
	uv_mutex_lock(&n->io_lock);
	own_io_lock(n);
	n->device = *device;
	n->out.device = &n->device;
	lane_setup_use_device(&n->lane, &n->device);
	unlock_io(n);
}

int net_pin(struct net *n, const void *values)
{
	uv_mutex_lock(&n->io_lock);
	own_io_lock(n);
	int pinned = n->device.pin && n->lane.lane && lane_pin(n->lane.lane, values, &n->device);
	unlock_io(n);
	return pinned;
}

int net_is_apart(struct net *n, const void *values)
{
	uv_mutex_lock(&n->io_lock);
	own_io_lock(n);
	int is_apart = lane_is_open(n->lane.lane) && lane_is_apart(n->lane.lane, values);
	unlock_io(n);
	return is_apart;
}

/* Refuses a server whose run needs exact gradients if the program is to send bfloat16. */
static int check_wire(struct net *n, const struct msg_welcome *w)
{
	if (n->cfg.session.wire != ENCODING_BF16 || w->wire == ENCODING_BF16)
		return PS_OK;
	return err_set(&n->server_error, PS_EUSAGE,
		"%.150s accepts no bfloat16, because its optimizer needs exact gradients: use "
		"--wire fp32",
		n->cfg.server);
}

static void on_ready(struct net *n)
{
	const struct msg_welcome *w = session_welcome(n->session);
	int rc = take_size(n, w);

	if (!rc)
		rc = check_wire(n, w);
	if (rc) {
		on_end(n, rc);
		return;
	}
	link_set_window(&n->link, w->push_window);
	n->welcomed = 1;
	on_welcome_lane(n, w);
	sides_on_welcome(&n->sides, w);
	if (requests_current(&n->requests, REQUEST_STATUS) ||
		requests_current(&n->requests, REQUEST_ADMIN))
		/* the request may be lost with the connection, so send it again */
		n->requests.pending = 0;
}

static void on_params(struct net *n, const struct msg_params *p)
{
	counters_version(&n->count, p->version);
	requests_params(&n->requests, p, session_welcome(n->session)->stamp.term, n->in);
}

static void take_status(struct net *n, const struct msg_status *s)
{
	if (s->reply)
		requests_status(&n->requests, s);
	else if (strcmp(s->text, SHOW_REQUEST) == 0)
		atomic_store(&n->show_requested, 1);
}

static void heartbeat_now(struct net *n, const struct msg *m)
{
	struct msg heartbeat = *m;

	heartbeat.heartbeat.time = counters_time(&n->count);
	heartbeat_send(&n->heartbeat, &heartbeat, session_welcome(n->session)->heartbeat_ms / 2,
		clock_ms());
}

static void run_effect(struct net *n, const struct session_effect *e)
{
	switch (e->kind) {
	case DO_SEND:
		/* when the server receives HELLO, it forgets the parts of a push that have
		 * arrived */
		if (e->msg.type == MSG_HELLO && sides_drop(&n->sides))
			outbox_clear(&n->out);
		outbox_post(&n->out, &e->msg);
		break;
	case DO_SEND_PUSH:
		outbox_post_push(&n->out, &e->msg, e->seq);
		atomic_store(&n->count.replayed, n->out.replayed);
		break;
	case DO_SEND_HEARTBEAT:
		heartbeat_now(n, &e->msg);
		break;
	case DO_RELEASE:
		outbox_drop(&n->out, e->seq);
		atomic_store(&n->count.durable, e->seq - n->base_seq);
		break;
	case NOTIFY_READY:
		on_ready(n);
		break;
	case NOTIFY_ACK:
		counters_ack(&n->count, &e->msg.ack);
		break;
	case NOTIFY_PARAMS:
		on_params(n, &e->msg.params);
		break;
	case NOTIFY_NO_PARAMS:
		requests_no_params(&n->requests, e->status);
		break;
	case NOTIFY_GRANT:
		requests_grant(
			&n->requests, &e->msg.grant, session_welcome(n->session)->stamp.term);
		break;
	case NOTIFY_END:
		on_end(n, e->status);
		break;
	}
}

static void run_effects(struct net *n)
{
	const struct session_effect *e;

	assert_io_lock(n);
	for (size_t i = 0; (e = session_effect(n->session, i)); i++)
		run_effect(n, e);
}

/* ---- the request in progress, which is tried after every event ------------------------------- */

static void try_request_now(struct net *n, uint64_t now);

/* Logs the number format of the tensors, if the program has chosen another than the default. */
static void log_wire(const struct net *n)
{
	if (n->cfg.session.wire != ENCODING_BF16)
		return;
	if (n->lane.lane)
		log_info("net", "wire", "format=fp32 reason=\"the tensors are in shared memory\"");
	else
		log_info("net", "wire", "format=bf16");
}

/* In the functions below, run_effects must directly follow each call of the session, because the
 * next call clears the effects. */
static void try_connect(struct net *n)
{
	if (!n->welcomed || lane_setup_waits(&n->lane))
		return;
	log_wire(n);
	n->requests.current->welcome = *session_welcome(n->session);
	n->requests.current->welcome.tensors = n->tensors;
	requests_complete(&n->requests, PS_OK);
}

/* Passes the push to the session, with a pull if the request asks for one and no prefetch is in
 * progress. A push that starts a pull is sent without the pull if the session refuses the pull now;
 * the next pull then sends its own request. */
static int make_push(struct net *n, struct request *r, uint64_t *seq, uint64_t now)
{
	int rc = PS_EAGAIN;

	if (!n->requests.prefetch && (r->push.then_pull || r->push.starts_pull))
		rc = session_push_pull(n->session, &r->push.meta, seq, now);
	if (!rc && r->push.starts_pull)
		n->requests.prefetch = PREFETCH_PENDING;
	if (rc == PS_EAGAIN && (n->requests.prefetch || !r->push.then_pull))
		rc = session_push(n->session, &r->push.meta, seq, now);
	return rc;
}

static void try_push(struct net *n, uint64_t now)
{
	struct request *r = n->requests.current;
	size_t bytes = n->out.retained_bytes + zmq_msg_size(&r->push.tensor);
	int is_only = n->out.retained_bytes == 0;
	uint64_t seq;
	int rc;

	/* refuse a push without batches, because the server would reject it, and soon exclude the
	 * worker */
	if (!r->push.meta.work.count && session_welcome(n->session)->epochs) {
		requests_fail(&n->requests, PS_EUSAGE,
			"the run has a data set (--epochs), so a push needs the batches of a "
			"lease, but the `count` of its `work` is 0");
		return;
	}
	if (!is_only && bytes > n->cfg.replay_bytes)
		return;
	rc = make_push(n, r, &seq, now);
	if (rc == PS_EAGAIN)
		return;
	if (!rc) {
		outbox_retain(&n->out, seq, &r->push.meta.slices.slice[0], &r->push.tensor);
		/* invariant 4 */
		PS_ASSERT(n->out.retained_bytes <= n->cfg.replay_bytes || is_only);
		atomic_fetch_add(&n->count.pushed, 1);
		lease_pace_push(&n->pace);
		run_effects(n);
	}
	if (rc || !r->push.then_pull) {
		requests_complete(&n->requests, rc);
		return;
	}
	r->kind = REQUEST_PULL;
	counters_spend_on(&n->count, TIME_WEIGHTS);
	n->requests.pending = !n->requests.prefetch;
	try_request_now(n, now);
}

/* Starts a prefetch. If the session refuses it now, the next pull sends its own request. */
static void try_prefetch(struct net *n, uint64_t now)
{
	int rc = n->requests.prefetch ? PS_EAGAIN : session_pull(n->session, WEIGHTS_CURRENT, now);

	if (!rc) {
		n->requests.prefetch = PREFETCH_PENDING;
		run_effects(n);
	}
	requests_complete(&n->requests, rc == PS_EAGAIN ? PS_OK : rc);
}

/* Passes the request to the session once; an effect completes it later. */
static void try_request(struct net *n, uint64_t now)
{
	struct request *r = n->requests.current;
	int rc;

	if (n->requests.pending)
		return;
	if (r->kind == REQUEST_PULL && r->pull.which == WEIGHTS_CURRENT && n->requests.prefetch) {
		requests_take_prefetched(&n->requests);
		return;
	}
	rc = r->kind == REQUEST_PULL    ? session_pull(n->session, r->pull.which, now)
	     : r->kind == REQUEST_LEASE ? session_lease(n->session, now)
					: session_result(n->session, &r->result, now);
	if (rc == PS_EAGAIN)
		return;
	n->requests.pending = !rc;
	if (r->kind == REQUEST_RESULT)
		lease_pace_result(&n->pace);
	if (r->kind == REQUEST_LEASE)
		lease_pace_lease(&n->pace);
	run_effects(n);
	if (rc || r->kind == REQUEST_RESULT)
		requests_complete(&n->requests, rc);
}

/* Requests a lease when lease_pace_allows permits it. In a run without a data set, refuses the
 * request after NO_LEASE_MS, because the server would not answer. */
static void try_lease(struct net *n, uint64_t now)
{
	if (!n->requests.pending && !lease_pace_allows(&n->pace, now - n->requests.begun_ms, now))
		return;
	if (session_phase(n->session) != PHASE_READY || session_welcome(n->session)->epochs)
		try_request(n, now);
	else if (now - n->requests.begun_ms >= NO_LEASE_MS)
		requests_fail(&n->requests, PS_EUSAGE,
			"the run has no data set (--epochs 0), so its server grants no leases: "
			"start cnn-ps with --epochs N");
}

/* Returns 0 if the server is too old for the command of the request in progress, which then
 * fails. */
static int has_command(struct net *n)
{
	uint64_t protocol = wire_peer_protocol(n->wire);
	char why[128];

	if (n->requests.current->admin.verb != ADMIN_RELEASE || protocol >= RELEASE_SINCE)
		return 1;
	snprintf(why, sizeof(why),
		"the server has protocol %llu, and `release` exists since protocol %u: update the "
		"server",
		(unsigned long long)protocol, RELEASE_SINCE);
	requests_fail(&n->requests, PS_EVERSION, why);
	return 0;
}

/* Sends a STATUS or ADMIN request. These requests do not pass through the session; they only need a
 * WELCOME. */
static void try_query(struct net *n, uint64_t now)
{
	const struct request *r = n->requests.current;
	struct msg m = {.type = r->kind == REQUEST_STATUS ? MSG_STATUS : MSG_ADMIN};

	if (session_phase(n->session) != PHASE_READY ||
		(n->requests.pending && now - n->requests.sent_ms < RESEND_MS))
		return;
	if (m.type == MSG_ADMIN && !has_command(n))
		return;
	if (m.type == MSG_ADMIN) {
		m.admin = (struct msg_admin){.verb = r->admin.verb, .level = r->admin.level};
		memcpy(m.admin.worker, r->admin.worker, sizeof(m.admin.worker));
	} else
		m.status = (struct msg_status){.first = r->report.first, .max_text = WIRE_MAX_TEXT};
	n->requests.pending = 1;
	n->requests.sent_ms = now;
	outbox_post(&n->out, &m);
}

static void try_show(struct net *n)
{
	const struct msg m = {.type = MSG_STATUS,
		.status = {.reply = STATUS_REPLY, .text = n->requests.current->show}};

	if (session_phase(n->session) == PHASE_READY)
		outbox_post(&n->out, &m);
	requests_complete(&n->requests, PS_OK);
}

static int all_decided(const struct net *n, int durable)
{
	uint64_t done = durable ? session_durable_seq(n->session) : session_acked_seq(n->session);

	return done == session_last_seq(n->session);
}

/* Returns 1 if the deadline of the request has passed. The deadline uses the real clock, not the
 * session's clock. */
static int deadline_passed(const struct request *r)
{
	return clock_ms() >= r->deadline_ms;
}

static void try_flush(struct net *n)
{
	if (all_decided(n, n->requests.current->durable))
		requests_complete(&n->requests, PS_OK);
	else if (deadline_passed(n->requests.current))
		requests_complete(&n->requests, PS_EAGAIN);
}

/* Closes the session in two steps with one deadline: waits for the decisions on the pushes, then
 * sends BYE and waits for the answer. If all pushes are decided and there is no connection, the
 * wait takes only CLOSE_DOWN_MS: a longer wait would only help to send BYE to a server that comes
 * back during it. */
static void try_close(struct net *n, uint64_t now)
{
	int alone = !n->up && all_decided(n, 0) && now - n->requests.begun_ms >= CLOSE_DOWN_MS;
	int late = deadline_passed(n->requests.current) || alone;

	if (!n->requests.pending && !n->requests.ended && (late || all_decided(n, 0))) {
		n->requests.pending = 1;
		session_bye(n->session, now);
		run_effects(n);
	}
	if (n->requests.ended || late)
		requests_complete(&n->requests, PS_OK);
}

static int outlives_stop(enum request_kind kind)
{
	return kind == REQUEST_PUSH || kind == REQUEST_RESULT || kind == REQUEST_FLUSH;
}

static void try_kind(struct net *n, uint64_t now)
{
	switch (n->requests.current->kind) {
	case REQUEST_CONNECT:
		try_connect(n);
		break;
	case REQUEST_PUSH:
		try_push(n, now);
		break;
	case REQUEST_LEASE:
		try_lease(n, now);
		break;
	case REQUEST_PULL:
	case REQUEST_RESULT:
		try_request(n, now);
		break;
	case REQUEST_PREFETCH:
		try_prefetch(n, now);
		break;
	case REQUEST_STATUS:
	case REQUEST_ADMIN:
		try_query(n, now);
		break;
	case REQUEST_SHOW:
		try_show(n);
		break;
	case REQUEST_FLUSH:
		try_flush(n);
		break;
	case REQUEST_CLOSE:
		try_close(n, now);
		break;
	}
}

/* Returns 1 if the request of a stopped program has taken longer than STOP_GRACE_MS. The time
 * begins with the stop or, if the request began after the stop, with the request: the program may
 * compute for longer than STOP_GRACE_MS between the two. */
static int stop_is_over(const struct net *n, uint64_t now)
{
	uint64_t since = n->stop_ms > n->requests.begun_ms ? n->stop_ms : n->requests.begun_ms;

	return now - since >= STOP_GRACE_MS;
}

static void try_request_now(struct net *n, uint64_t now)
{
	enum request_kind kind;

	if (!n->requests.current)
		return;
	kind = n->requests.current->kind;
	if (kind == REQUEST_CLOSE)
		try_close(n, now);
	else if (n->requests.ended)
		requests_answer_with_end(&n->requests);
	else if (n->stop_ms && (!outlives_stop(kind) || stop_is_over(n, now)))
		requests_fail(&n->requests, PS_ESHUTDOWN, "the program ended this wait");
	else
		try_kind(n, now);
}

/* Carries out the session's effects and tries the request in progress. Call this function after
 * each call of a function of the session. */
static void apply_effects(struct net *n, uint64_t now)
{
	if (session_phase(n->session) == PHASE_READY)
		outbox_decided(&n->out, session_confirmed_seq(n->session));
	run_effects(n);
	if (session_phase(n->session) != PHASE_READY)
		heartbeat_stop(&n->heartbeat);
	try_request_now(n, now);
}

/* ---- messages and events --------------------------------------------------------------------- */

/* Passes the ACK inside a PARAMS to the session as a separate message. */
static void on_inner_ack(struct net *n, const struct msg_ack *a, uint64_t now)
{
	struct msg m;

	m.type = MSG_ACK;
	m.ack = *a;
	session_message(n->session, &m, now);
	apply_effects(n, now);
}

/* Returns 1 for the answer to query_status. The answer shows only that the server is alive, so it
 * is not passed to the session: the wait for a WELCOME continues. */
static int is_sign_of_life(const struct net *n, const struct msg *m)
{
	return m->type == MSG_STATUS && session_phase(n->session) == PHASE_HELLO;
}

static void handle_message(struct net *n, const struct msg *m)
{
	uint64_t now = now_of(n);

	n->answered = 1;
	n->received_ms = now;
	if (m->type == MSG_PARAMS && m->params.ack.seq)
		on_inner_ack(n, &m->params.ack, now);
	if (m->type == MSG_WELCOME)
		lane_setup_note_welcome(&n->lane, &m->welcome);
	if (m->type == MSG_STATUS)
		take_status(n, &m->status);
	if (m->type == MSG_ADMIN)
		requests_admin(&n->requests, &m->admin);
	if (m->type == MSG_ERROR) {
		err_set(&n->server_error, m->error.status, "%s", m->error.text);
		n->notice_ms = now;
		requests_error(&n->requests, &n->server_error);
	}
	if (!is_sign_of_life(n, m))
		session_message(n->session, m, now);
	apply_effects(n, now);
}

/* Closes the connections until `reopen_ms`. */
static void cut_connections(struct net *n, uint64_t reopen_ms)
{
	n->reopen_ms = reopen_ms;
	link_cut(&n->link);
	heartbeat_cut(&n->heartbeat, &n->link);
}

/* Handles the loss of the bulk connection. */
static void lose_connection(struct net *n, uint64_t now)
{
	n->up = 0;
	(void)sides_drop(&n->sides);
	outbox_clear(&n->out);
	session_link_lost(n->session, now);
}

/* Notes a message that nobody can use. A server that sends too many of them loses its connections
 * for a while. */
static void note_garbage(struct net *n, const char *why)
{
	const uint64_t now = now_of(n), pause_ms = garbage_note(&n->garbage, why, now);

	if (!pause_ms || n->reopen_ms)
		return;
	log_warn("net", "flood", "server=%s pause_ms=%llu reason=\"too much that nobody can use\"",
		n->cfg.server, (unsigned long long)pause_ms);
	cut_connections(n, now + pause_ms);
	lose_connection(n, now);
	apply_effects(n, now);
}

void net_note_garbage(struct net *n, const char *why)
{
	uv_mutex_lock(&n->io_lock);
	own_io_lock(n);
	note_garbage(n, why);
	unlock_io(n);
}

/* Handles the message `f` that wire_recv has received with the result `got`. Returns 0 if there was
 * no message. */
static int handle_frames(struct net *n, int got, struct frames *f)
{
	struct msg m;
	const char *why = "parts";
	struct lane_ref ref;
	struct side_mark receipt;
	uint64_t parts, request;
	int rc;

	if (got == 0 || got == PS_ENET)
		return 0;
	if (n->reopen_ms) { /* this message came before the connections were closed */
		frames_release(f);
		return 1;
	}
	n->in = f;
	rc = got == 1 ? PS_OK : PS_EPROTO;
	if (!rc && n->sides.n && side_is_receipt(f, &receipt)) {
		outbox_confirm(&n->out, &receipt);
		frames_release(f);
		return 1;
	}
	if (!rc && wire_lane_ref(f, &ref)) {
		why = "weights in shared memory that is not open";
		rc = append_weights(n, &ref, f);
	}
	if (!rc && (parts = wire_params_parts(f, &request)) && f != &n->joined) {
		n->answered = 1;
		n->received_ms = now_of(n);
		sides_hold(&n->sides, f, parts, request);
		return 1;
	}
	if (!rc)
		rc = wire_decode(n->wire, f, &m, &why);
	/* treat a WELCOME of an incompatible version like an ERROR of the server */
	if (rc == PS_EVERSION)
		m = (struct msg){.type = MSG_ERROR, .error = {.status = rc, .text = why}};
	if (rc == PS_OK || rc == PS_EVERSION)
		handle_message(n, &m);
	else
		note_garbage(n, why);
	frames_release(f);
	return 1;
}

/* After the loss of a lane with rings, the session behaves as if the server had asked it to send
 * HELLO, because messages in the rings are lost. */
static void resume_without_ring(struct net *n)
{
	const struct msg lost = {.type = MSG_ERROR, .error = {.status = PS_ESTATE}};

	session_message(n->session, &lost, now_of(n));
	apply_effects(n, now_of(n));
}

static void lose_lane(struct net *n, const char *why)
{
	log_info("lane", "lost", "server=%s reason=\"%s\"", n->cfg.server, why);
	lane_setup_drop(&n->lane);
	resume_without_ring(n);
}

/* Handles the messages in the ring of the lane. Returns their number. */
static unsigned drain_ring(struct net *n)
{
	struct frames f;
	unsigned handled = 0;
	int got = 0;

	while (handled < RING_MAX_MESSAGES && (got = lane_ring_receive(n->lane.lane, &f)) == 1) {
		(void)handle_frames(n, got, &f);
		handled++;
	}
	if (got < 0)
		lose_lane(n, "the server has damaged its ring");
	return handled;
}

static void check_lane(struct net *n)
{
	const int had_ring = lane_has_ring(n->lane.lane);
	struct err e;

	/* the last messages of the server, such as BYE, may still be in the ring */
	if (had_ring && lane_is_lost(n->lane.lane))
		(void)drain_ring(n);
	require_lane(n, lane_setup_tick(&n->lane, now_of(n), &e), &e);
	if (had_ring && !n->lane.lane)
		resume_without_ring(n);
}

/* Waits for a message of the bulk connection for at most `ms` milliseconds and handles it. The
 * server has sent the messages in the ring before it, so the function first handles these. Returns
 * 0 if no message came. */
static int receive_bulk(struct net *n, int ms)
{
	void *socket = n->link.bulk;
	struct frames f;
	int got = ms ? wire_recv_within(socket, ms, &f) : wire_recv(socket, NULL, &f);

	n->out.used_socket = 0;
	n->bulk_is_empty = got == 0 && ms == 0;
	if (got != 0 && got != PS_ENET) {
		(void)drain_ring(n);
		lane_setup_received(&n->lane);
	}
	return handle_frames(n, got, &f);
}

static int receive_heartbeat(struct net *n)
{
	struct frames f;

	return handle_frames(n, heartbeat_receive(&n->heartbeat, &f), &f);
}

static void on_link_change(struct net *n, enum link_event event)
{
	uint64_t now = now_of(n);

	if (event == LINK_UP) {
		if (n->links++)
			atomic_fetch_add(&n->count.reconnects, 1);
		log_write(n->links > 1 ? LOG_INFO : LOG_DEBUG, "net", "connected", "server=%s",
			n->cfg.server);
		n->up = 1;
		n->answered = 0;
		n->received_ms = now;
		/* forget the ERROR: it came on an earlier connection, and possibly from another
		 * server */
		n->server_error.status = 0;
		contact_up(&n->contact);
		session_link_up(n->session, now);
	} else {
		if (n->up && !n->requests.ended)
			log_warn("net", "connection_lost", "server=%s", n->cfg.server);
		uint64_t pause_ms = n->up ? garbage_note_loss(&n->garbage, now) : 0;
		if (pause_ms)
			cut_connections(n, now + pause_ms);
		lose_connection(n, now);
	}
	apply_effects(n, now);
}

/* Ends the session after a refusal. libzmq does not reconnect, and a reconnect would not help. */
static void on_link_refused(struct net *n, enum link_event event)
{
	char why[400];
	const char *server = n->cfg.server;

	if (event == LINK_REFUSED)
		snprintf(why, sizeof(why), "%.150s: the key %s is not on the server's list", server,
			n->own_key);
	else
		snprintf(why, sizeof(why), "%.150s: the server %s", server,
			n->keyed ? "takes no keys: it was started without one"
				 : "requires a key, and none was given");
	requests_end(&n->requests, PS_EAUTH, why);
	apply_effects(n, now_of(n));
}

/* Handles one event of the bulk connection. Returns 0 if there was no event. */
static int on_link_event(struct net *n)
{
	enum link_event event = link_next_event(&n->link);

	if (n->reopen_ms)
		return event != LINK_NONE;
	if (event == LINK_UP || event == LINK_LOST)
		on_link_change(n, event);
	else if (event == LINK_REFUSED || event == LINK_MISMATCH)
		on_link_refused(n, event);
	else if (event == LINK_HANDSHAKE_FAILED)
		n->failed_handshakes++;
	return event != LINK_NONE;
}

/* Handles everything that has arrived on the side connections. After the loss of one of them, the
 * session behaves as if the server had asked it to send HELLO. */
static void poll_sides(struct net *n)
{
	const struct msg lost = {.type = MSG_ERROR, .error = {.status = PS_ESTATE}};

	if (sides_poll(&n->sides, now_of(n))) {
		outbox_clear(&n->out);
		session_message(n->session, &lost, now_of(n));
		apply_effects(n, now_of(n));
	}
	if (sides_take(&n->sides, n->n_params * sizeof(float), &n->joined))
		(void)handle_frames(n, 1, &n->joined);
	outbox_decided(&n->out, session_confirmed_seq(n->session));
}

/* Handles all received messages without blocking, and sends queued messages if the socket has
 * room. */
static void drain(struct net *n)
{
	assert_io_lock(n);
	(void)drain_ring(n);
	for (int i = 0; i < BUDGET && receive_bulk(n, 0); i++)
		continue;
	for (int i = 0; i < BUDGET && receive_heartbeat(n); i++)
		continue;
	for (int i = 0; i < BUDGET && on_link_event(n); i++)
		continue;
	poll_sides(n);
	outbox_flush(&n->out);
}

/* Reports to the session that bytes have moved on the connections for tensors. A large message on a
 * slow connection may take longer than silence_ms, and must not count as silence. */
static void note_progress(struct net *n, uint64_t now)
{
	uint64_t moved = link_bytes_moved(&n->link) + sides_bytes_moved(&n->sides);

	if (moved != n->moved)
		session_progress(n->session, now);
	n->moved = moved;
}

/* ---- the wait for contact, and the tick ------------------------------------------------------ */

/* Sends STATUS to find out whether the peer is a cnn-ps that cannot send a WELCOME yet. A cnn-ps
 * without a WELCOME answers STATUS; a server that hangs, or another program, does not. */
static void query_status(struct net *n, uint64_t now)
{
	const struct msg m = {.type = MSG_STATUS};

	if (!n->up || session_waiting_ms(n->session, now) < STATUS_AFTER_MS ||
		now - n->received_ms < STATUS_AFTER_MS || now - n->status_sent_ms < STATUS_AFTER_MS)
		return;
	n->status_sent_ms = now;
	outbox_post(&n->out, &m);
}

static void seek_server(struct net *n, uint64_t now)
{
	const struct contact_state state = contact_state_of(n, now);
	char line[CONTACT_TEXT];

	query_status(n, now);
	if (n->reopen_ms && now >= n->reopen_ms) {
		n->reopen_ms = 0;
		link_dial(&n->link);
		heartbeat_dial(&n->heartbeat, &n->link);
	}
	if (!n->reopen_ms && now >= n->redial_ms && !n->up) {
		n->redial_ms = now + REDIAL_MS;
		link_redial(&n->link);
	}
	if (!n->reopen_ms && now >= n->heartbeat_redial_ms) {
		n->heartbeat_redial_ms = now + REDIAL_MS;
		heartbeat_redial(&n->heartbeat, &n->link);
	}
	if (!contact_tick(&n->contact, &state, now, line) || n->stop_ms)
		return;
	if (n->cfg.report)
		n->cfg.report(n->cfg.report_arg, line);
	else
		log_info("net", "waiting", "reason=\"%s\"", line);
}

static void tick(struct net *n)
{
	uint64_t now;

	drain(n);
	check_lane(n);
	n->tick_ms = clock_ms() + TICK_MS;
	now = now_of(n); /* after the last message: session.h, invariant (5) */
	if (n->cfg.stop && n->cfg.stop(n->cfg.stop_arg) && !n->stop_ms)
		n->stop_ms = now;
	int alive = requests_is_alive(&n->requests, n->cfg.batch_timeout_ms);
	note_progress(n, now);
	if (!n->lane.lane)
		sides_tick(&n->sides, now);
	if (!n->requests.ended)
		seek_server(n, now);
	session_tick(n->session, alive, now);
	n->bulk_is_empty = 0; /* the socket may have been used, for example to connect again */
	apply_effects(n, now);
}

/* ---- the program's thread, while it waits for its request ------------------------------------ */

/* Returns 1 if only the bulk connection can complete the request, so that the worker may ignore the
 * other sockets until the next tick. */
static int only_bulk_matters(const struct net *n)
{
	enum request_kind kind = n->requests.current->kind;

	return n->requests.pending && (kind == REQUEST_PULL || kind == REQUEST_PUSH) &&
	       !n->out.count && !n->sides.n && session_phase(n->session) == PHASE_READY;
}

/* Ends a wait for the ring, whose pipe is readable if `is_readable` is 1. */
static void end_ring_wait(struct net *n, int is_readable)
{
	if (lane_ring_wake(n->lane.lane, is_readable))
		return;
	/* the last messages of the server may still be in the ring */
	(void)drain_ring(n);
	if (n->lane.lane)
		lose_lane(n, "the server has closed it");
}

/* Returns 1 if nothing has happened to the bulk connection since a receive found no message. */
static int is_bulk_empty(const struct net *n)
{
	return n->bulk_is_empty && !n->out.used_socket;
}

/* Waits for a message of the bulk connection, or of the ring if the lane has one, and handles what
 * has arrived. */
static void await_bulk(struct net *n, int ms)
{
	if (!lane_has_ring(n->lane.lane)) {
		(void)receive_bulk(n, ms);
		return;
	}
	if (drain_ring(n) || (!is_bulk_empty(n) && receive_bulk(n, 0)) ||
		!lane_ring_may_sleep(n->lane.lane))
		return;
	struct pollfd p[2] = {{.fd = link_wait_fd(&n->link), .events = POLLIN},
		{.fd = lane_ring_fd(n->lane.lane), .events = POLLIN}};
	(void)poll(p, 2, ms); /* a signal ends the wait early */
	n->bulk_is_empty &= p[0].revents == 0;
	end_ring_wait(n, p[1].revents != 0);
}

/* Waits for a message, an event, or room for queued messages. */
static void wait_for_any(struct net *n, int ms)
{
	int sends = n->out.count && !outbox_awaits_receipts(&n->out);
	short bulk = ZMQ_POLLIN | (sends ? ZMQ_POLLOUT : 0);
	zmq_pollitem_t item[5 + 2 * MAX_SIDES] = {{.socket = n->link.bulk, .events = bulk},
		{.socket = n->link.monitor, .events = ZMQ_POLLIN}, {.events = ZMQ_POLLIN}};
	int n_items = 3, ring = 0;

	n->bulk_is_empty = 0; /* zmq_poll uses the socket */

	if (lane_has_ring(n->lane.lane)) {
		ring = n_items;
		item[n_items++] =
			(zmq_pollitem_t){.fd = lane_ring_fd(n->lane.lane), .events = ZMQ_POLLIN};
	}
	if (lane_setup_waits(&n->lane))
		item[n_items++] =
			(zmq_pollitem_t){.fd = lane_fd(n->lane.lane), .events = ZMQ_POLLIN};
	for (size_t i = 0; i < n->sides.n; i++) {
		item[n_items++] =
			(zmq_pollitem_t){.socket = n->sides.side[i].socket, .events = ZMQ_POLLIN};
		item[n_items++] =
			(zmq_pollitem_t){.socket = n->sides.side[i].monitor, .events = ZMQ_POLLIN};
	}
	if (!heartbeat_readable(&n->heartbeat, &item[2].fd) &&
		(!ring || lane_ring_may_sleep(n->lane.lane)))
		(void)zmq_poll(item, n_items, ms); /* a signal ends the wait early */
	if (ring)
		end_ring_wait(n, item[ring].revents != 0);
	poll_lane(n, n->awake.now_ms);
}

static void io_step(struct net *n)
{
	uint64_t now = clock_ms();
	int left = now < n->tick_ms ? (int)(n->tick_ms - now) : 0;

	if (left == 0) {
		tick(n);
	} else if (only_bulk_matters(n)) {
		await_bulk(n, left);
	} else {
		wait_for_any(n, left);
		drain(n);
		try_request_now(n, now_of(n));
	}
}

int net_request(struct net *n, struct request *r)
{
	uv_mutex_lock(&n->io_lock);
	own_io_lock(n);
	requests_begin(&n->requests, r, now_of(n));
	try_request_now(n, n->requests.begun_ms);
	while (n->requests.current)
		io_step(n);
	unlock_io(n);
	return r->status;
}

/* ---- the background thread, while the program makes no call ---------------------------------- */

/* Runs one step of the background thread. Returns the milliseconds until the next step. */
static uint64_t background_step(struct net *n)
{
	uint64_t now = clock_ms();

	/* the program's thread holds the lock, because it waits for a request */
	if (uv_mutex_trylock(&n->io_lock)) {
		heartbeat_repeat(&n->heartbeat, now);
		return TICK_MS;
	}
	own_io_lock(n);
	if (now >= n->tick_ms)
		tick(n);
	else if (outbox_awaits_receipts(&n->out))
		drain(n);
	now = clock_ms();
	uint64_t left = now < n->tick_ms ? n->tick_ms - now : 0;
	if (outbox_awaits_receipts(&n->out) && left > RECEIPTS_MS)
		left = RECEIPTS_MS;
	unlock_io(n);
	return left;
}

static void background_main(void *arg)
{
	struct net *n = arg;

	uv_mutex_lock(&n->background_lock);
	while (!n->closing) {
		uint64_t ms = background_step(n);

		if (ms)
			(void)uv_cond_timedwait(
				&n->wake_background, &n->background_lock, ms * 1000000);
	}
	uv_mutex_unlock(&n->background_lock);
}

/* ---- life cycle ------------------------------------------------------------------------------ */

static int start_background(struct net *n, struct err *e)
{
	if (uv_mutex_init(&n->io_lock))
		goto no_io_lock;
	if (uv_mutex_init(&n->background_lock))
		goto no_background_lock;
	if (uv_cond_init(&n->wake_background))
		goto no_condition;
	if (!uv_thread_create(&n->background, background_main, n))
		return PS_OK;
	uv_cond_destroy(&n->wake_background);
no_condition:
	uv_mutex_destroy(&n->background_lock);
no_background_lock:
	uv_mutex_destroy(&n->io_lock);
no_io_lock:
	return err_set(e, PS_ENOMEM, "no client thread");
}

static void stop_background(struct net *n)
{
	uv_mutex_lock(&n->background_lock);
	n->closing = 1;
	uv_cond_signal(&n->wake_background);
	uv_mutex_unlock(&n->background_lock);
	uv_thread_join(&n->background);
	uv_cond_destroy(&n->wake_background);
	uv_mutex_destroy(&n->background_lock);
	uv_mutex_destroy(&n->io_lock);
}

static int read_keys(struct net *n, struct link_keys *k, struct err *e)
{
	char beside[4096];
	const char *server = n->cfg.server_key ? n->cfg.server_key : beside;
	int rc = key_read_secret(n->cfg.key, &k->own, e);

	if (!rc && server == beside)
		rc = key_beside(n->cfg.key, "server.pub", beside, sizeof(beside), e);
	if (!rc)
		rc = key_read_public(server, k->server, e);
	if (rc)
		return rc;
	snprintf(n->own_key, sizeof(n->own_key), "%.*s", KEY_SHORT, k->own.public_key);
	snprintf(n->server_key, sizeof(n->server_key), "%.*s", KEY_SHORT, k->server);
	n->keyed = 1;
	return PS_OK;
}

static int dial(struct net *n, struct err *e)
{
	struct link_keys keys;
	int rc = PS_OK;

	memset(&keys, 0, sizeof(keys));
	if (n->cfg.key)
		rc = read_keys(n, &keys, e);
	else if (n->cfg.server_key)
		rc = err_set(e, PS_EUSAGE, "a server key, but no key of this program");
	if (!rc)
		rc = link_open(&n->link, n->cfg.server, n->keyed ? &keys : NULL,
			n->cfg.session.seed, n->cfg.connections, e);
	explicit_bzero(&keys, sizeof(keys));
	return rc;
}

static int open_net(struct net *n, struct err *e)
{
	const struct session_config *s = &n->cfg.session;
	int rc;

	if (wire_new(&n->wire, 0) || session_new(&n->session, s, WIRE_MAX_WINDOW) ||
		contact_init(&n->contact, n->cfg.server))
		return err_set(e, PS_ENOMEM, "no memory for a connection");
	wire_defer(n->wire);
	if ((rc = dial(n, e)))
		return rc;
	outbox_init(&n->out, n->link.bulk);
	lane_setup_init(&n->lane, s->role == ROLE_WORKER ? n->cfg.lane : CNNPS_LANE_TCP,
		n->cfg.server, &n->out);
	sides_init(&n->sides, &n->link, &n->out, s->role == ROLE_WORKER ? n->cfg.connections : 1);
	requests_alive(&n->requests);
	session_start(n->session, now_of(n));
	rc = heartbeat_init(&n->heartbeat, n->link.heartbeat);
	if (rc) {
		err_set(e, rc, "no memory for a connection");
	} else if ((rc = start_background(n, e))) {
		heartbeat_release(&n->heartbeat);
	}
	if (rc) {
		link_close(&n->link);
		link_term(&n->link);
	}
	return rc;
}

static void free_net(struct net **n)
{
	contact_release(&(*n)->contact);
	free((*n)->tensors);
	session_free(&(*n)->session);
	wire_free(&(*n)->wire);
	counters_release(&(*n)->count);
	free(*n);
	*n = NULL;
}

int net_new(struct net **out, const struct net_config *cfg, struct err *e)
{
	struct net *n = mem_try(1, sizeof(*n));
	int rc;

	*out = NULL;
	if (!n || counters_init(&n->count)) {
		free(n);
		return err_set(e, PS_ENOMEM, "no memory for a connection");
	}
	n->cfg = *cfg;
	rc = open_net(n, e);
	if (rc)
		free_net(&n);
	*out = n;
	return rc;
}

int net_show_requested(struct net *n)
{
	const uint64_t now_ms = clock_ms();

	if (!atomic_load(&n->show_requested) || (n->show_ms && now_ms - n->show_ms < SHOW_PAUSE_MS))
		return 0;
	n->show_ms = now_ms;
	return atomic_exchange(&n->show_requested, 0);
}

void net_alive(struct net *n)
{
	requests_alive(&n->requests);
}

void net_stats(struct net *n, struct cnnps_stats *s)
{
	counters_stats(&n->count, s);
}

void net_spend_on(struct net *n, enum time_part part)
{
	counters_spend_on(&n->count, part);
}

void net_free(struct net **n)
{
	struct request close = {.kind = REQUEST_CLOSE, .deadline_ms = clock_ms() + CLOSE_MS};

	if (!*n)
		return;
	if (net_request(*n, &close))
		log_error("net", "close", "status=%s", err_name(close.status));
	stop_background(*n);
	outbox_flush(&(*n)->out);
	requests_release(&(*n)->requests);
	outbox_release(&(*n)->out);
	lane_setup_drop(&(*n)->lane);
	(void)sides_drop(&(*n)->sides);
	heartbeat_release(&(*n)->heartbeat);
	link_close(&(*n)->link);
	link_term(&(*n)->link);
	free_net(n);
}
