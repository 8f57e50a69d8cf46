/*
 * request.c - what the program wants: the order under way, tried again whenever something happened.
 *
 * A session forgets its effects at the next call, so net_run_effects directly follows each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "worker/client/net_impl.h"

enum {
	STOP_GRACE_MS = 5000, /* what a stopped program's pushes still get */
	ASK_AGAIN_MS = 5000,  /* STATUS and ADMIN are repeated here: no session knows of them */
};

void net_reply(struct net *n, int status)
{
	struct order *o = n->order;

	if (!o)
		return;
	o->status = status;
	memcpy(o->why, n->why, sizeof o->why);
	n->order = NULL;
	net_alive(n);
}

struct order *net_under_way(struct net *n, enum order_kind kind)
{
	return n->order && n->order->kind == kind ? n->order : NULL;
}

static void try_connect(struct net *n)
{
	if (!n->welcomed)
		return;
	n->order->welcome = *session_welcome(n->session);
	net_reply(n, PS_OK);
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
		net_run_effects(n);
	}
	if (status || !o->push.then_pull) {
		net_reply(n, status);
		return;
	}
	o->kind = ORDER_PULL;
	n->asked = !n->ahead;
	net_try_order(n, now);
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
	net_reply(n, PS_OK);
}

/* Not now: then the next pull makes its own request. */
static void try_prefetch(struct net *n, uint64_t now)
{
	int status = n->ahead ? PS_EAGAIN : session_pull(n->session, WEIGHTS_CURRENT, now);

	if (!status) {
		n->ahead = AHEAD_ASKED;
		net_run_effects(n);
	}
	net_reply(n, status == PS_EAGAIN ? PS_OK : status);
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
	net_run_effects(n);
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
		net_reply(n, PS_OK);
	else if (is_late(n->order))
		net_reply(n, PS_EAGAIN);
}

/* Two steps: wait for decisions, then say BYE and wait for its answer, both up to one deadline. */
static void try_close(struct net *n, uint64_t now)
{
	int late = is_late(n->order);

	if (!n->asked && !n->ended && (late || all_decided(n, 0))) {
		n->asked = 1;
		session_bye(n->session, now);
		net_run_effects(n);
	}
	if (n->ended || late)
		net_reply(n, PS_OK);
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
	net_reply(n, PS_OK);
}

void net_try_order(struct net *n, uint64_t now)
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
		net_reply(n, n->end_status ? n->end_status : PS_ESHUTDOWN);
	else if (n->stop_ms && (!outlives_stop(kind) || now - n->stop_ms >= STOP_GRACE_MS))
		net_reply(n, PS_ESHUTDOWN);
	else
		try_kind(n, now);
}
