/*
 * order.c - what the program wants and what the session tells: orders under way, and effects.
 *
 * A session forgets its effects at the next call, so run_effects directly follows each.
 */
#include <stdio.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "worker/net_impl.h"

enum {
	STOP_GRACE_MS = 5000, /* what a stopped program's pushes still get */
	ASK_AGAIN_MS = 5000,  /* STATUS and ADMIN are repeated here: no session knows of them */
};

/* ---- orders ---------------------------------------------------------------------------------- */

void net_reply(struct net *n, int status)
{
	struct order *o = n->order;

	if (!o)
		return;
	o->status = status;
	memcpy(o->why, n->why, sizeof o->why);
	n->order = NULL;
	n->active_ms = clock_ms();
	if (handoff_put(n->replies, (void **)&o)) /* one order, two places: there is room */
		log_error("net", "reply_lost", "status=%s", err_name(status));
}

static struct order *under_way(struct net *n, enum order_kind kind)
{
	return n->order && n->order->kind == kind ? n->order : NULL;
}

static void run_effects(struct net *n);

static void try_connect(struct net *n)
{
	if (!n->welcomed)
		return;
	n->order->welcome = *session_welcome(n->session);
	net_reply(n, PS_OK);
}

static void try_push(struct net *n, uint64_t now)
{
	struct order *o = n->order;
	size_t bytes = n->out.kept_bytes + zmq_msg_size(&o->push.tensor);
	uint64_t seq;
	int status;

	if (n->out.kept_bytes && bytes > n->cfg.replay_bytes)
		return;
	status = session_push(n->session, &o->push.meta, &seq, now);
	if (status == PS_EAGAIN)
		return;
	if (!status) {
		outbox_keep(&n->out, seq, &o->push.meta.slices.slice[0], &o->push.tensor);
		atomic_fetch_add(&n->count.pushed, 1);
		run_effects(n);
	}
	net_reply(n, status);
}

/* Make the session's request once; its effects answer later. */
static void try_request(struct net *n, uint64_t now)
{
	struct order *o = n->order;
	int status;

	if (n->asked)
		return;
	status = o->kind == ORDER_PULL    ? session_pull(n->session, o->pull.which, now)
		 : o->kind == ORDER_LEASE ? session_lease(n->session, now)
					  : session_result(n->session, &o->result, now);
	if (status == PS_EAGAIN)
		return;
	n->asked = !status;
	run_effects(n);
	if (status || o->kind == ORDER_RESULT)
		net_reply(n, status);
}

/* STATUS and ADMIN need no session state, only a server that knows us. */
static void try_question(struct net *n, uint64_t now)
{
	struct msg m = {.type = n->order->kind == ORDER_STATUS ? MSG_STATUS : MSG_ADMIN};

	if (session_phase(n->session) != PHASE_READY ||
		(n->asked && now - n->asked_ms < ASK_AGAIN_MS))
		return;
	if (m.type == MSG_ADMIN)
		m.admin.verb = n->order->admin.verb;
	n->asked = 1;
	n->asked_ms = now;
	outbox_post(&n->out, &m);
}

static int all_decided(const struct net *n, int durable)
{
	uint64_t done = durable ? session_durable_seq(n->session) : session_acked_seq(n->session);

	return done == session_last_seq(n->session);
}

static void try_flush(struct net *n, uint64_t now)
{
	if (all_decided(n, n->order->durable))
		net_reply(n, PS_OK);
	else if (now >= n->order->deadline_ms)
		net_reply(n, PS_EAGAIN);
}

/* Two steps: wait for decisions, then say BYE and wait for its answer, both up to one deadline. */
static void try_close(struct net *n, uint64_t now)
{
	int late = now >= n->order->deadline_ms;

	if (!n->asked && !n->ended && (late || all_decided(n, 0))) {
		n->asked = 1;
		session_bye(n->session, now);
		run_effects(n);
	}
	if (n->ended || late)
		net_shut_down(n);
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
	case ORDER_STATUS:
	case ORDER_ADMIN:
		try_question(n, now);
		break;
	case ORDER_FLUSH:
		try_flush(n, now);
		break;
	case ORDER_CLOSE:
		try_close(n, now);
		break;
	}
}

void net_try_order(struct net *n, uint64_t now)
{
	enum order_kind kind;

	if (!n->order)
		return;
	kind = n->order->kind;
	if (kind == ORDER_CLOSE)
		try_close(n, now);
	else if (n->ended)
		net_reply(n, n->end_status ? n->end_status : PS_ESHUTDOWN);
	else if (n->stop_ms && (!outlives_stop(kind) || now - n->stop_ms >= STOP_GRACE_MS))
		net_reply(n, PS_ESHUTDOWN);
	else
		try_kind(n, now);
}

/* ---- effects --------------------------------------------------------------------------------- */

/* Say why in one line: the server's own words if it gave any. */
static void told_end(struct net *n, int status)
{
	const char *server = n->cfg.server;

	n->ended = 1;
	n->end_status = status;
	if (n->server_error.status == status && n->server_error.text[0])
		snprintf(n->why, sizeof n->why, "%.255s", n->server_error.text);
	else if (status == PS_EUNREACHABLE && !n->welcomed)
		snprintf(n->why, sizeof n->why, "%.150s: no answer within %llu ms", server,
			(unsigned long long)n->cfg.session.first_ms);
	else if (status == PS_EUNREACHABLE)
		snprintf(n->why, sizeof n->why, "%.150s: contact lost for %llu ms", server,
			(unsigned long long)n->cfg.session.patience_ms);
	else
		snprintf(n->why, sizeof n->why, "%.150s: %s", server, err_text(status));
}

/* The first WELCOME fixes the size of every buffer that the program hands in. */
static int take_size(struct net *n, const struct msg_welcome *w)
{
	if (n->welcomed)
		return n->n_params == w->n_params
			       ? PS_OK
			       : err_set(&n->server_error, PS_EWRONGRUN,
					 "%.150s: the model's size has changed", n->cfg.server);
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
	if (under_way(n, ORDER_STATUS) || under_way(n, ORDER_ADMIN))
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

float *net_landing(struct net *n)
{
	struct order *o = under_way(n, ORDER_PULL);

	return o && n->welcomed ? o->pull.w : NULL;
}

/* The weights as one message with aligned values: the one that came, if it is like that. */
static int take_view(struct net *n, const struct msg_params *p, zmq_msg_t *view)
{
	const struct slice *first = &p->slices.slice[0];
	zmq_msg_t *frame = &n->in->frame[1];

	if (p->slices.n == 1 && (const void *)first->data == zmq_msg_data(frame)) {
		(void)zmq_msg_init(view);
		return zmq_msg_move(view, frame) ? PS_ENET : PS_OK;
	}
	if (zmq_msg_init_size(view, n->n_params * sizeof(float)))
		return PS_ENOMEM;
	for (uint32_t i = 0; i < p->slices.n; i++) {
		const struct slice *s = &p->slices.slice[i];
		memcpy((float *)zmq_msg_data(view) + s->offset, s->data, s->count * sizeof(float));
	}
	return PS_OK;
}

static void told_params(struct net *n, const struct msg_params *p)
{
	struct order *o = under_way(n, ORDER_PULL);

	newer_version(n, p->version);
	if (!o)
		return;
	o->pull.version = p->version;
	net_reply(n, o->pull.w ? PS_OK : take_view(n, p, &o->pull.view));
}

static void told_grant(struct net *n, const struct msg_grant *g)
{
	struct order *o = under_way(n, ORDER_LEASE);

	if (!o)
		return;
	o->grant = *g;
	net_reply(n, PS_OK);
}

static void told_status(struct net *n, const struct msg_status *s)
{
	struct order *o = under_way(n, ORDER_STATUS);

	if (!o || !s->reply)
		return;
	snprintf(o->report.json, o->report.size, "%s", s->text);
	net_reply(n, PS_OK);
}

static void told_admin(struct net *n, const struct msg_admin *a)
{
	struct order *o = under_way(n, ORDER_ADMIN);

	if (!o || !a->reply || a->verb != o->admin.verb)
		return;
	o->admin.generation = a->generation;
	net_reply(n, PS_OK);
}

void net_answer(struct net *n, const struct msg *m)
{
	if (m->type == MSG_STATUS)
		told_status(n, &m->status);
	if (m->type == MSG_ADMIN)
		told_admin(n, &m->admin);
}

/* A beat that cannot go now is not worth keeping: the next one says more. */
static void send_beat(struct net *n, const struct msg *m)
{
	struct frames f;

	frames_init(&f);
	if (wire_encode_header(m, &f.frame[0]))
		return;
	f.n = 1;
	if (wire_send(n->link.beat, 0, &f))
		frames_release(&f);
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
		send_beat(n, &e->msg);
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
		if (under_way(n, ORDER_PULL))
			net_reply(n, e->status);
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

void net_settle(struct net *n, uint64_t now)
{
	run_effects(n);
	net_try_order(n, now);
}
