/* effect.c - what the session says is to be done, and what that means for the order under way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "worker/client/net_impl.h"

void net_end(struct net *n, int status, const char *why)
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
	struct contact_state state = net_contact(n, n->awake.now_ms);

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
	net_end(n, status, why);
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
	if (net_under_way(n, ORDER_STATUS) || net_under_way(n, ORDER_ADMIN))
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
	return n->asked ? net_under_way(n, ORDER_PULL) : NULL;
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
		net_reply(n, PS_OK);
	else
		n->ahead = AHEAD_HERE;
}

static void told_no_params(struct net *n, int status)
{
	if (pulling(n))
		net_reply(n, status);
	else if (n->ahead == AHEAD_ASKED)
		n->ahead = AHEAD_NONE;
}

static void told_grant(struct net *n, const struct msg_grant *g)
{
	struct order *o = net_under_way(n, ORDER_LEASE);

	if (!o)
		return;
	o->lease.grant = *g;
	o->lease.term = session_welcome(n->session)->stamp.term;
	net_reply(n, PS_OK);
}

static void told_status(struct net *n, const struct msg_status *s)
{
	struct order *o = net_under_way(n, ORDER_STATUS);

	if (!s->reply)
		return;
	if (!o) { /* kept for the next one: the end of the run may follow */
		free(n->last_status);
		n->last_status = strdup(s->text);
		return;
	}
	snprintf(o->report.json, o->report.size, "%s", s->text);
	net_reply(n, PS_OK);
}

static void told_admin(struct net *n, const struct msg_admin *a)
{
	struct order *o = net_under_way(n, ORDER_ADMIN);

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

void net_refused(struct net *n, const struct msg_error *e)
{
	if (e->status != PS_EUSAGE || !net_under_way(n, ORDER_ADMIN) || !n->asked)
		return;
	snprintf(n->why, sizeof n->why, "%s", n->server_error.text);
	net_reply(n, PS_EUSAGE);
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

void net_run_effects(struct net *n)
{
	const struct session_effect *e;

	for (size_t i = 0; (e = session_effect(n->session, i)); i++)
		run_effect(n, e);
}

void net_settle(struct net *n, uint64_t now)
{
	net_run_effects(n);
	if (session_phase(n->session) != PHASE_READY)
		pulse_forget(&n->pulse);
	net_try_order(n, now);
}
