/*
 * net.c - see net.h: the two threads that take turns on the connections, and the border to the
 * program.
 *
 * A turn: something happens (message, link event, order, tick) -> the session is told -> its
 * effects are carried out -> the order under way is looked at again, for it may now be done.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "worker/client/net_impl.h"

#define TICK_MS    100
#define ASK_WHO_MS 700 /* without a WELCOME: after so long a silence, and then as often */
#define REDIAL_MS  1000
#define CLOSE_MS   5000 /* for the last decisions and the goodbye */
#define BUDGET     64   /* messages of one socket before the others are looked at */

/* The session's time: a worker that was stopped has not been left alone for so long. */
static uint64_t now_of(struct net *n)
{
	return awake_ms(&n->awake, clock_ms(), AWAKE_BEAT_MS);
}

/* ---- what happens ---------------------------------------------------------------------------- */

/* PARAMS that carry an ACK are two messages to the session. */
static void on_inner_ack(struct net *n, const struct msg_ack *a)
{
	struct msg m;

	m.type = MSG_ACK;
	m.ack = *a;
	session_message(n->session, &m, now_of(n));
	net_settle(n, now_of(n));
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
		net_answer(n, m);
	if (m->type == MSG_ERROR) {
		err_set(&n->server_error, m->error.status, "%s", m->error.text);
		net_refused(n, &m->error);
	}
	if (!is_sign_of_life(n, m))
		session_message(n->session, m, now);
	net_settle(n, now);
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
	net_settle(n, now);
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
	net_end(n, PS_EAUTH, why);
	net_settle(n, now_of(n));
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

struct contact_state net_contact(const struct net *n, uint64_t now_ms)
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
	const struct contact_state state = net_contact(n, now);
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
	net_settle(n, now);
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
		net_try_order(n, now_of(n));
	}
}

int net_order(struct net *n, struct order *o)
{
	o->why[0] = '\0';
	uv_mutex_lock(&n->baton);
	n->order = o;
	n->asked = 0;
	net_alive(n);
	net_try_order(n, now_of(n));
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
