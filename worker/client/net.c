/*
 * net.c - see net.h: the two threads that take turns on the connections, and the border to the
 * program.
 *
 * A turn: something happens (message, link event, order, tick) -> the session is told -> its
 * effects are carried out -> the order under way is looked at again, for it may now be done.
 */
#include "worker/client/net.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "worker/client/contact.h"
#include "worker/client/heartbeat.h"
#include "worker/client/link.h"
#include "worker/client/outbox.h"

#define TICK_MS    100
#define ASK_WHO_MS 700 /* without a WELCOME: after so long a silence, and then as often */
#define REDIAL_MS  1000
#define CLOSE_MS   5000 /* for the last decisions and the goodbye */
#define BUDGET     64   /* messages of one socket before the others are looked at */

enum {
	STOP_GRACE_MS = 5000, /* what a stopped program's pushes still get */
	ASK_AGAIN_MS = 5000,  /* STATUS and ADMIN are repeated here: no session knows of them */
};

/* A pull of the current weights that was started before it was ordered. */
enum ahead {
	AHEAD_NONE,
	AHEAD_ASKED, /* its PARAMS have not come */
	AHEAD_HERE,  /* they wait in `fetched` */
};

/* Written by the baton's holder, read by any thread. */
struct counters {
	atomic_uint_least64_t pushed, acked, rejected, durable, last_version, reconnects, replayed;
};

struct net {
	struct net_config cfg;
	struct counters count;
	atomic_uint_least64_t active_ms; /* the program last called, or got something */
	uv_thread_t keeper;
	uv_mutex_t rest; /* the keeper's, between two looks */
	uv_cond_t stop_keeper;
	int closing; /* under `rest`: the keeper is to end */
	struct pulse pulse;

	uv_mutex_t baton; /* whoever holds it may touch what follows */
	struct link link;
	struct wire *wire;
	struct frames *in; /* the message being handled */
	struct session *session;
	struct awake awake; /* the session's time */
	struct outbox out;
	struct order *order; /* under way, or NULL */
	int asked;           /* its request is with the session or on its way */
	uint64_t asked_ms;
	enum ahead ahead;
	struct arrival fetched;
	uint64_t tick_ms;  /* when the next tick is due */
	uint64_t moved;    /* bytes of the bulk connection, at the newest tick */
	uint64_t stop_ms;  /* the program was told to stop then; 0: it was not */
	uint64_t base_seq; /* of the first WELCOME: last_seq ... */
	uint64_t n_params; /* ... and size of the model */
	int welcomed, ended, end_status;
	uint64_t links;     /* times the bulk connection came up ... */
	uint64_t not_taken; /* ... and was hung up on before it had */
	int up;             /* the bulk connection stands ... */
	int answered;       /* ... and cnn-ps has said something on it */
	uint64_t heard_ms;  /* the newest of that; before it, when the connection came up */
	struct contact contact;
	uint64_t asked_who_ms; /* STATUS was sent instead of a WELCOME that does not come */
	uint64_t redial_ms;    /* look at link_redial then */
	int keyed;             /* the connection is encrypted, with these keys */
	char own_key[KEY_SHORT + 1], server_key[KEY_SHORT + 1];
	struct err server_error; /* the newest ERROR */
	char *last_status;       /* the server's, if it came unasked: as it ended; owned */
	char why[512];
};

/* The session's time: a worker that was stopped has not been left alone for so long. */
static uint64_t now_of(struct net *n)
{
	return awake_ms(&n->awake, clock_ms(), AWAKE_BEAT_MS);
}

static void reply(struct net *n, int status)
{
	struct order *o = n->order;

	if (!o)
		return;
	o->status = status;
	memcpy(o->why, n->why, sizeof o->why);
	n->order = NULL;
	net_alive(n);
}

static struct order *order_under_way(struct net *n, enum order_kind kind)
{
	return n->order && n->order->kind == kind ? n->order : NULL;
}

static struct contact_state contact_of(const struct net *n, uint64_t now_ms)
{
	int status = n->server_error.status, waits = status == PS_EFULL || status == PS_EAGAIN;

	return (struct contact_state){.server = n->cfg.server,
		.welcomed = n->welcomed,
		.up = n->up,
		.answered = n->answered,
		.silent_ms = now_ms - n->heard_ms,
		.refusal = waits && !n->welcomed ? n->server_error.text : NULL,
		.hung_up = n->not_taken,
		.server_key = n->keyed ? n->server_key : NULL,
		.alone_ms = session_alone_ms(n->session, now_ms),
		.left_ms = session_left_ms(n->session, now_ms),
		.idle = n->order && n->order->kind == ORDER_LEASE && n->asked};
}

/* ---- what the session says is to be done -------------------------------------------------------- */

static void end_net(struct net *n, int status, const char *why)
{
	if (n->ended)
		return;
	n->ended = 1;
	n->end_status = status;
	snprintf(n->why, sizeof n->why, "%s", why);
}

static void say_unreachable(struct net *n, char why[CONTACT_TEXT])
{
	const struct session_config *s = &n->cfg.session;
	struct contact_state state = contact_of(n, n->awake.now_ms);

	contact_gave_up(&n->contact, &state, n->welcomed ? s->patience_ms : s->first_ms, why);
}

/* Say why in one line: the server's own words if it gave any. */
static void told_end(struct net *n, int status)
{
	char why[CONTACT_TEXT];

	if (n->server_error.status == status && n->server_error.text[0])
		snprintf(why, sizeof why, "%s", n->server_error.text);
	else if (status == PS_EUNREACHABLE)
		say_unreachable(n, why);
	else
		snprintf(why, sizeof why, "%.150s: %s", n->cfg.server, err_text(status));
	end_net(n, status, why);
}

/* The first WELCOME fixes the size of every buffer that the program hands in. */
static int take_size(struct net *n, const struct msg_welcome *w)
{
	if (n->welcomed)
		return n->n_params == w->n_params
			       ? PS_OK
			       : err_set(&n->server_error, PS_EWRONGRUN,
					 "%.100s: its model has %llu parameters, it had %llu: "
					 "start this worker again to join its new run",
					 n->cfg.server, (unsigned long long)w->n_params,
					 (unsigned long long)n->n_params);
	if (wire_resize(n->wire, w->n_params))
		return err_set(&n->server_error, PS_ENOMEM, "no memory for %llu parameters",
			(unsigned long long)w->n_params);
	n->n_params = w->n_params;
	n->base_seq = w->last_seq;
	return PS_OK;
}

static void told_ready(struct net *n)
{
	const struct msg_welcome *w = session_welcome(n->session);
	int status = take_size(n, w);

	if (status) {
		told_end(n, status);
		return;
	}
	link_set_window(&n->link, w->push_window);
	n->welcomed = 1;
	if (order_under_way(n, ORDER_STATUS) || order_under_way(n, ORDER_ADMIN))
		n->asked = 0; /* may have been lost with the connection */
}

static void newer_version(struct net *n, uint64_t version)
{
	if (version > atomic_load(&n->count.last_version))
		atomic_store(&n->count.last_version, version);
}

static void told_ack(struct net *n, const struct msg_ack *a)
{
	int ok = a->verdict == VERDICT_OK;

	newer_version(n, a->version);
	atomic_fetch_add(ok ? &n->count.acked : &n->count.rejected, 1);
	if (!ok)
		log_debug("net", "rejected", "seq=%llu reason=%d", (unsigned long long)a->seq,
			(int)a->reject);
}

/* The order that PARAMS are for, if they are not for one to come. */
static struct order *pulling(struct net *n)
{
	return n->asked ? order_under_way(n, ORDER_PULL) : NULL;
}

static void told_params(struct net *n, const struct msg_params *p)
{
	struct order *o = pulling(n);
	struct arrival *a = o ? &o->pull.got : &n->fetched;

	newer_version(n, p->version);
	if (!o && n->ahead != AHEAD_ASKED)
		return;
	frames_move(&a->frames, n->in);
	a->params = *p;
	a->term = session_welcome(n->session)->stamp.term;
	if (o)
		reply(n, PS_OK);
	else
		n->ahead = AHEAD_HERE;
}

static void told_no_params(struct net *n, int status)
{
	if (pulling(n))
		reply(n, status);
	else if (n->ahead == AHEAD_ASKED)
		n->ahead = AHEAD_NONE;
}

static void told_grant(struct net *n, const struct msg_grant *g)
{
	struct order *o = order_under_way(n, ORDER_LEASE);

	if (!o)
		return;
	o->lease.grant = *g;
	o->lease.term = session_welcome(n->session)->stamp.term;
	reply(n, PS_OK);
}

static void told_status(struct net *n, const struct msg_status *s)
{
	struct order *o = order_under_way(n, ORDER_STATUS);

	if (!s->reply)
		return;
	if (!o) { /* kept for the next one: the end of the run may follow */
		free(n->last_status);
		n->last_status = strdup(s->text);
		return;
	}
	snprintf(o->report.json, o->report.size, "%s", s->text);
	reply(n, PS_OK);
}

static void told_admin(struct net *n, const struct msg_admin *a)
{
	struct order *o = order_under_way(n, ORDER_ADMIN);

	if (!o || !a->reply || a->verb != o->admin.verb)
		return;
	o->admin.generation = a->generation;
	reply(n, PS_OK);
}

static void on_answer(struct net *n, const struct msg *m)
{
	if (m->type == MSG_STATUS)
		told_status(n, &m->status);
	if (m->type == MSG_ADMIN)
		told_admin(n, &m->admin);
}

static void on_refusal(struct net *n, const struct msg_error *e)
{
	if (e->status != PS_EUSAGE || !order_under_way(n, ORDER_ADMIN) || !n->asked)
		return;
	snprintf(n->why, sizeof n->why, "%s", n->server_error.text);
	reply(n, PS_EUSAGE);
	n->why[0] = '\0';
}

static void run_effect(struct net *n, const struct session_effect *e)
{
	switch (e->kind) {
	case DO_SEND:
		outbox_post(&n->out, &e->msg);
		break;
	case DO_SEND_PUSH:
		outbox_post_push(&n->out, &e->msg, e->seq);
		atomic_store(&n->count.replayed, n->out.replayed);
		break;
	case DO_SEND_BEAT:
		pulse_say(&n->pulse, &e->msg, session_welcome(n->session)->beat_ms / 2, clock_ms());
		break;
	case DO_RELEASE:
		outbox_forget(&n->out, e->seq);
		atomic_store(&n->count.durable, e->seq - n->base_seq);
		break;
	case TELL_READY:
		told_ready(n);
		break;
	case TELL_ACK:
		told_ack(n, &e->msg.ack);
		break;
	case TELL_PARAMS:
		told_params(n, &e->msg.params);
		break;
	case TELL_NO_PARAMS:
		told_no_params(n, e->status);
		break;
	case TELL_GRANT:
		told_grant(n, &e->msg.grant);
		break;
	case TELL_END:
		told_end(n, e->status);
		break;
	}
}

static void run_effects(struct net *n)
{
	const struct session_effect *e;

	for (size_t i = 0; (e = session_effect(n->session, i)); i++)
		run_effect(n, e);
}

/* ---- the order under way: tried again whenever something happened ------------------------------- */

static void try_order(struct net *n, uint64_t now);

/* A session forgets its effects at the next call, so run_effects directly follows each. */
static void try_connect(struct net *n)
{
	if (!n->welcomed)
		return;
	n->order->welcome = *session_welcome(n->session);
	reply(n, PS_OK);
}

/* A pull that was started ahead has its answer under way: then the push goes alone. */
static int make_push(struct net *n, struct order *o, uint64_t *seq, uint64_t now)
{
	if (!o->push.then_pull || n->ahead)
		return session_push(n->session, &o->push.meta, seq, now);
	return session_push_pull(n->session, &o->push.meta, seq, now);
}

static void try_push(struct net *n, uint64_t now)
{
	struct order *o = n->order;
	size_t bytes = n->out.kept_bytes + zmq_msg_size(&o->push.tensor);
	uint64_t seq;
	int status;

	if (n->out.kept_bytes && bytes > n->cfg.replay_bytes)
		return;
	status = make_push(n, o, &seq, now);
	if (status == PS_EAGAIN)
		return;
	if (!status) {
		outbox_keep(&n->out, seq, &o->push.meta.slices.slice[0], &o->push.tensor);
		atomic_fetch_add(&n->count.pushed, 1);
		run_effects(n);
	}
	if (status || !o->push.then_pull) {
		reply(n, status);
		return;
	}
	o->kind = ORDER_PULL;
	n->asked = !n->ahead;
	try_order(n, now);
}

/* ---- pulls, ordered and started ahead ------------------------------------------------------- */

/* What was started ahead is this order's now, whether it has come or not. */
static void take_ahead(struct net *n)
{
	enum ahead was = n->ahead;

	n->ahead = AHEAD_NONE;
	n->asked = was == AHEAD_ASKED;
	if (was == AHEAD_ASKED)
		return;
	arrival_move(&n->order->pull.got, &n->fetched);
	reply(n, PS_OK);
}

/* Not now: then the next pull makes its own request. */
static void try_prefetch(struct net *n, uint64_t now)
{
	int status = n->ahead ? PS_EAGAIN : session_pull(n->session, WEIGHTS_CURRENT, now);

	if (!status) {
		n->ahead = AHEAD_ASKED;
		run_effects(n);
	}
	reply(n, status == PS_EAGAIN ? PS_OK : status);
}

/* Make the session's request once; its effects answer later. */
static void try_request(struct net *n, uint64_t now)
{
	struct order *o = n->order;
	int status;

	if (n->asked)
		return;
	if (o->kind == ORDER_PULL && o->pull.which == WEIGHTS_CURRENT && n->ahead) {
		take_ahead(n);
		return;
	}
	status = o->kind == ORDER_PULL    ? session_pull(n->session, o->pull.which, now)
		 : o->kind == ORDER_LEASE ? session_lease(n->session, now)
					  : session_result(n->session, &o->result, now);
	if (status == PS_EAGAIN)
		return;
	n->asked = !status;
	run_effects(n);
	if (status || o->kind == ORDER_RESULT)
		reply(n, status);
}

/* STATUS and ADMIN need no session state, only a server that knows us. */
static void try_question(struct net *n, uint64_t now)
{
	struct msg m = {.type = n->order->kind == ORDER_STATUS ? MSG_STATUS : MSG_ADMIN};

	if (session_phase(n->session) != PHASE_READY ||
		(n->asked && now - n->asked_ms < ASK_AGAIN_MS))
		return;
	if (m.type == MSG_ADMIN)
		m.admin = (struct msg_admin){
			.verb = n->order->admin.verb, .level = n->order->admin.level};
	n->asked = 1;
	n->asked_ms = now;
	outbox_post(&n->out, &m);
}

static int all_decided(const struct net *n, int durable)
{
	uint64_t done = durable ? session_durable_seq(n->session) : session_acked_seq(n->session);

	return done == session_last_seq(n->session);
}

/* The program's deadlines are of the real clock: that thread does not ask the loop's. */
static int is_late(const struct order *o)
{
	return clock_ms() >= o->deadline_ms;
}

static void try_flush(struct net *n)
{
	if (all_decided(n, n->order->durable))
		reply(n, PS_OK);
	else if (is_late(n->order))
		reply(n, PS_EAGAIN);
}

/* Two steps: wait for decisions, then say BYE and wait for its answer, both up to one deadline. */
static void try_close(struct net *n, uint64_t now)
{
	int late = is_late(n->order);

	if (!n->asked && !n->ended && (late || all_decided(n, 0))) {
		n->asked = 1;
		session_bye(n->session, now);
		run_effects(n);
	}
	if (n->ended || late)
		reply(n, PS_OK);
}

static int outlives_stop(enum order_kind kind)
{
	return kind == ORDER_PUSH || kind == ORDER_RESULT || kind == ORDER_FLUSH;
}

static void try_kind(struct net *n, uint64_t now)
{
	switch (n->order->kind) {
	case ORDER_CONNECT:
		try_connect(n);
		break;
	case ORDER_PUSH:
		try_push(n, now);
		break;
	case ORDER_PULL:
	case ORDER_LEASE:
	case ORDER_RESULT:
		try_request(n, now);
		break;
	case ORDER_PREFETCH:
		try_prefetch(n, now);
		break;
	case ORDER_STATUS:
	case ORDER_ADMIN:
		try_question(n, now);
		break;
	case ORDER_FLUSH:
		try_flush(n);
		break;
	case ORDER_CLOSE:
		try_close(n, now);
		break;
	}
}

/* Once: the next STATUS order learns that the server has ended. */
static void give_last_status(struct net *n)
{
	snprintf(n->order->report.json, n->order->report.size, "%s", n->last_status);
	free(n->last_status);
	n->last_status = NULL;
	reply(n, PS_OK);
}

static void try_order(struct net *n, uint64_t now)
{
	enum order_kind kind;

	if (!n->order)
		return;
	kind = n->order->kind;
	if (kind == ORDER_CLOSE)
		try_close(n, now);
	else if (n->ended && kind == ORDER_STATUS && n->last_status)
		give_last_status(n);
	else if (n->ended)
		reply(n, n->end_status ? n->end_status : PS_ESHUTDOWN);
	else if (n->stop_ms && (!outlives_stop(kind) || now - n->stop_ms >= STOP_GRACE_MS))
		reply(n, PS_ESHUTDOWN);
	else
		try_kind(n, now);
}

static void settle(struct net *n, uint64_t now)
{
	run_effects(n);
	if (session_phase(n->session) != PHASE_READY)
		pulse_forget(&n->pulse);
	try_order(n, now);
}

/* ---- what happens ---------------------------------------------------------------------------- */

/* PARAMS that carry an ACK are two messages to the session. */
static void on_inner_ack(struct net *n, const struct msg_ack *a)
{
	struct msg m;

	m.type = MSG_ACK;
	m.ack = *a;
	session_message(n->session, &m, now_of(n));
	settle(n, now_of(n));
}

/* What ask_who_it_is was told is no welcome: the wait for one goes on. */
static int is_sign_of_life(const struct net *n, const struct msg *m)
{
	return m->type == MSG_STATUS && session_phase(n->session) == PHASE_HELLO;
}

static void on_message(struct net *n, const struct msg *m)
{
	uint64_t now = now_of(n);

	n->answered = 1;
	n->heard_ms = now;
	if (m->type == MSG_PARAMS && m->params.ack.seq)
		on_inner_ack(n, &m->params.ack);
	if (m->type == MSG_STATUS || m->type == MSG_ADMIN)
		on_answer(n, m);
	if (m->type == MSG_ERROR) {
		err_set(&n->server_error, m->error.status, "%s", m->error.text);
		on_refusal(n, &m->error);
	}
	if (!is_sign_of_life(n, m))
		session_message(n->session, m, now);
	settle(n, now);
}

/* What wire_recv got. 0: nothing. */
static int take(struct net *n, int got, struct frames *f)
{
	struct msg m;
	const char *why = "parts";

	if (got == 0 || got == PS_ENET)
		return 0;
	n->in = f;
	if (got == 1 && !wire_decode(n->wire, f, &m, &why))
		on_message(n, &m);
	else
		log_warn("net", "dropped", "why=\"%s\"", why);
	frames_release(f);
	return 1;
}

/* One message of the bulk connection, waiting for it at most `ms`. 0: there is none. */
static int receive(struct net *n, int ms)
{
	void *socket = n->link.bulk;
	struct frames f;

	return take(n, ms ? wire_recv_within(socket, ms, &f) : wire_recv(socket, NULL, &f), &f);
}

static int receive_beat(struct net *n)
{
	struct frames f;

	return take(n, pulse_receive(&n->pulse, &f), &f);
}

static void on_link(struct net *n, enum link_event event)
{
	uint64_t now = now_of(n);

	if (event == LINK_UP) {
		if (n->links++)
			atomic_fetch_add(&n->count.reconnects, 1);
		log_write(n->links > 1 ? LOG_INFO : LOG_DEBUG, "net", "connected", "server=%s",
			n->cfg.server);
		n->up = 1;
		n->answered = 0;
		n->heard_ms = now;
		n->server_error.status = 0; /* of another connection, perhaps of another server */
		contact_up(&n->contact);
		session_link_up(n->session, now);
	} else {
		if (n->up && !n->ended)
			log_warn("net", "connection_lost", "server=%s", n->cfg.server);
		n->up = 0;
		outbox_clear(&n->out);
		session_link_lost(n->session, now);
	}
	settle(n, now);
}

/* libzmq does not dial again after these, and there is no use in it. */
static void on_refused(struct net *n, enum link_event event)
{
	char why[400];
	const char *server = n->cfg.server;

	if (event == LINK_REFUSED)
		snprintf(why, sizeof why, "%.150s: the key %s is not on the server's list", server,
			n->own_key);
	else
		snprintf(why, sizeof why, "%.150s: the server %s", server,
			n->keyed ? "takes no keys: it was started without one"
				 : "wants a key, and none was given");
	end_net(n, PS_EAUTH, why);
	settle(n, now_of(n));
}

/* One event of the bulk connection. 0: there is none. */
static int watch_link(struct net *n)
{
	enum link_event event = link_next_event(&n->link);

	if (event == LINK_UP || event == LINK_LOST)
		on_link(n, event);
	else if (event == LINK_REFUSED || event == LINK_UNLIKE)
		on_refused(n, event);
	else if (event == LINK_NOT_TAKEN)
		n->not_taken++;
	return event != LINK_NONE;
}

/* All that has come, without waiting; and what waits to go out, if there is room again. */
static void drain(struct net *n)
{
	for (int i = 0; i < BUDGET && receive(n, 0); i++)
		continue;
	for (int i = 0; i < BUDGET && receive_beat(n); i++)
		continue;
	for (int i = 0; i < BUDGET && watch_link(n); i++)
		continue;
	outbox_flush(&n->out);
}

/* A large message on a slow line takes longer than any answer may: while it moves, nothing hangs.
 */
static void note_progress(struct net *n, uint64_t now)
{
	uint64_t moved = link_moved(&n->link);

	if (moved != n->moved)
		session_moved(n->session, now);
	n->moved = moved;
}

/* ---- no server ------------------------------------------------------------------------------- */

/* A server that cannot welcome a worker answers STATUS all the same; another program does not, nor
 * does a server that hangs. */
static void ask_who_it_is(struct net *n, uint64_t now)
{
	const struct msg m = {.type = MSG_STATUS};

	if (!n->up || session_alone_ms(n->session, now) < ASK_WHO_MS ||
		now - n->heard_ms < ASK_WHO_MS || now - n->asked_who_ms < ASK_WHO_MS)
		return;
	n->asked_who_ms = now;
	outbox_post(&n->out, &m);
}

static void look_for_server(struct net *n, uint64_t now)
{
	const struct contact_state state = contact_of(n, now);
	char line[CONTACT_TEXT];

	ask_who_it_is(n, now);
	if (now >= n->redial_ms && !n->up) {
		n->redial_ms = now + REDIAL_MS;
		link_redial(&n->link);
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
	n->tick_ms = clock_ms() + TICK_MS;
	now = now_of(n);
	if (!n->stop_ms && n->cfg.stop && n->cfg.stop(n->cfg.stop_arg))
		n->stop_ms = now;
	int alive = n->order || clock_ms() < atomic_load(&n->active_ms) + n->cfg.hang_ms;
	note_progress(n, now);
	if (!n->ended)
		look_for_server(n, now);
	session_tick(n->session, alive, now);
	settle(n, now);
}

/* ---- the program's turns, while it waits for its order --------------------------------------- */

/* What it waits for comes on the bulk connection, and nothing else is urgent: the others are looked
 * at at the next tick. */
static int only_bulk_matters(const struct net *n)
{
	enum order_kind kind = n->order->kind;

	return n->asked && (kind == ORDER_PULL || kind == ORDER_PUSH) && !n->out.count &&
	       session_phase(n->session) == PHASE_READY;
}

/* Wait until one of the sockets has something, or there is room for what waits to go out. */
static void wait_for_any(struct net *n, int ms)
{
	short bulk = ZMQ_POLLIN | (n->out.count ? ZMQ_POLLOUT : 0);
	zmq_pollitem_t item[] = {{.socket = n->link.bulk, .events = bulk},
		{.socket = n->link.monitor, .events = ZMQ_POLLIN}, {.events = ZMQ_POLLIN}};

	if (!pulse_has(&n->pulse, &item[2].fd))
		(void)zmq_poll(item, 3, ms); /* a signal ends it early */
}

static void turn(struct net *n)
{
	uint64_t now = clock_ms();
	int left = now < n->tick_ms ? (int)(n->tick_ms - now) : 0;

	if (left == 0) {
		tick(n);
	} else if (only_bulk_matters(n)) {
		(void)receive(n, left);
	} else {
		wait_for_any(n, left);
		drain(n);
		try_order(n, now_of(n));
	}
}

int net_order(struct net *n, struct order *o)
{
	o->why[0] = '\0';
	uv_mutex_lock(&n->baton);
	n->order = o;
	n->asked = 0;
	net_alive(n);
	try_order(n, now_of(n));
	while (n->order)
		turn(n);
	uv_mutex_unlock(&n->baton);
	return o->status;
}

/* ---- the keeper's turns, while the program is elsewhere -------------------------------------- */

/* Returns the milliseconds until the next look is due. */
static uint64_t look(struct net *n)
{
	uint64_t now = clock_ms();

	if (uv_mutex_trylock(&n->baton)) { /* the program waits for an order, and may not run */
		pulse_repeat(&n->pulse, now);
		return TICK_MS;
	}
	if (now >= n->tick_ms)
		tick(n);
	now = clock_ms();
	uint64_t left = now < n->tick_ms ? n->tick_ms - now : 0;
	uv_mutex_unlock(&n->baton);
	return left;
}

static void keep(void *arg)
{
	struct net *n = arg;

	uv_mutex_lock(&n->rest);
	while (!n->closing) {
		uint64_t ms = look(n);
		if (ms)
			(void)uv_cond_timedwait(&n->stop_keeper, &n->rest, ms * 1000000);
	}
	uv_mutex_unlock(&n->rest);
}

/* ---- birth and death ------------------------------------------------------------------------- */

static int start_keeper(struct net *n, struct err *e)
{
	if (uv_mutex_init(&n->baton))
		goto no_baton;
	if (uv_mutex_init(&n->rest))
		goto no_rest;
	if (uv_cond_init(&n->stop_keeper))
		goto no_condition;
	if (!uv_thread_create(&n->keeper, keep, n))
		return PS_OK;
	uv_cond_destroy(&n->stop_keeper);
no_condition:
	uv_mutex_destroy(&n->rest);
no_rest:
	uv_mutex_destroy(&n->baton);
no_baton:
	return err_set(e, PS_ENOMEM, "no client thread");
}

static void stop_keeper(struct net *n)
{
	uv_mutex_lock(&n->rest);
	n->closing = 1;
	uv_cond_signal(&n->stop_keeper);
	uv_mutex_unlock(&n->rest);
	uv_thread_join(&n->keeper);
	uv_cond_destroy(&n->stop_keeper);
	uv_mutex_destroy(&n->rest);
	uv_mutex_destroy(&n->baton);
}

static int read_keys(struct net *n, struct link_keys *k, struct err *e)
{
	char beside[4096];
	const char *server = n->cfg.server_key ? n->cfg.server_key : beside;
	int status = key_read_secret(n->cfg.key, &k->own, e);

	if (!status && server == beside)
		status = key_beside(n->cfg.key, "server.pub", beside, sizeof beside, e);
	if (!status)
		status = key_read_public(server, k->server, e);
	if (status)
		return status;
	snprintf(n->own_key, sizeof n->own_key, "%.*s", KEY_SHORT, k->own.public_key);
	snprintf(n->server_key, sizeof n->server_key, "%.*s", KEY_SHORT, k->server);
	n->keyed = 1;
	return PS_OK;
}

static int dial(struct net *n, struct err *e)
{
	struct link_keys keys;
	int status = PS_OK;

	memset(&keys, 0, sizeof keys);
	if (n->cfg.key)
		status = read_keys(n, &keys, e);
	else if (n->cfg.server_key)
		status = err_set(e, PS_EUSAGE, "a server's key without one's own");
	if (!status)
		status = link_open(
			&n->link, n->cfg.server, n->keyed ? &keys : NULL, n->cfg.session.seed, e);
	explicit_bzero(&keys, sizeof keys);
	return status;
}

static int open_all(struct net *n, struct err *e)
{
	const struct session_config *s = &n->cfg.session;
	int status;

	if (wire_new(&n->wire, 0) || session_new(&n->session, s, WIRE_MAX_WINDOW) ||
		contact_init(&n->contact, n->cfg.server))
		return err_set(e, PS_ENOMEM, "no memory for a connection");
	wire_defer(n->wire);
	if ((status = dial(n, e)))
		return status;
	outbox_init(&n->out, n->link.bulk);
	net_alive(n);
	session_start(n->session, now_of(n));
	status = pulse_init(&n->pulse, n->link.beat);
	if (status) {
		err_set(e, status, "no memory for a connection");
	} else if ((status = start_keeper(n, e))) {
		pulse_release(&n->pulse);
	}
	if (status) {
		link_close(&n->link);
		link_term(&n->link);
	}
	return status;
}

static void free_all(struct net **n)
{
	contact_release(&(*n)->contact);
	free((*n)->last_status);
	session_free(&(*n)->session);
	wire_free(&(*n)->wire);
	free(*n);
	*n = NULL;
}

int net_new(struct net **out, const struct net_config *cfg, struct err *e)
{
	struct net *n = mem_try(1, sizeof *n);
	int status;

	*out = NULL;
	if (!n)
		return err_set(e, PS_ENOMEM, "no memory for a connection");
	n->cfg = *cfg;
	status = open_all(n, e);
	if (status)
		free_all(&n);
	*out = n;
	return status;
}

void arrival_move(struct arrival *to, struct arrival *from)
{
	frames_move(&to->frames, &from->frames);
	to->params = from->params;
	to->term = from->term;
}

void net_alive(struct net *n)
{
	atomic_store(&n->active_ms, clock_ms());
}

void net_stats(const struct net *n, struct cnnps_stats *s)
{
	const struct counters *c = &n->count;

	s->pushed = atomic_load(&c->pushed);
	s->acked = atomic_load(&c->acked);
	s->rejected = atomic_load(&c->rejected);
	s->durable = atomic_load(&c->durable);
	s->last_version = atomic_load(&c->last_version);
	s->reconnects = atomic_load(&c->reconnects);
	s->replayed = atomic_load(&c->replayed);
}

void net_free(struct net **n)
{
	struct order close = {.kind = ORDER_CLOSE, .deadline_ms = clock_ms() + CLOSE_MS};

	if (!*n)
		return;
	if (net_order(*n, &close))
		log_error("net", "close", "status=%s", err_name(close.status));
	stop_keeper(*n);
	outbox_flush(&(*n)->out);
	frames_release(&(*n)->fetched.frames);
	outbox_release(&(*n)->out);
	pulse_release(&(*n)->pulse);
	link_close(&(*n)->link);
	link_term(&(*n)->link);
	free_all(n);
}
