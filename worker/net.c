/*
 * net.c - see net.h: the loop's thread, what wakes it, and the border to the program.
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
#include "worker/net_impl.h"

#define TICK_MS  100
#define CLOSE_MS 5000 /* for the last decisions and the goodbye */

/* The session's time: a worker that was stopped has not been left alone for so long. */
static uint64_t now_of(struct net *n)
{
	return awake_ms(&n->awake, clock_ms());
}

/* ---- what happens ---------------------------------------------------------------------------- */

static void on_message(struct net *n, const struct msg *m)
{
	uint64_t now = now_of(n);

	if (m->type == MSG_STATUS || m->type == MSG_ADMIN)
		net_answer(n, m);
	if (m->type == MSG_ERROR) {
		err_set(&n->server_error, m->error.status, "%s", m->error.text);
		net_refused(n, &m->error);
	}
	session_message(n->session, m, now);
	net_settle(n, now);
}

/* zloop: one message of the bulk or the beat socket. */
static int on_socket(void *arg)
{
	struct watched *w = arg;
	struct net *n = w->net;
	struct frames f;
	struct msg m;
	const char *why = "parts";
	int got = wire_recv(w->socket, NULL, &f);

	if (got == 0 || got == PS_ENET)
		return 0;
	n->in = &f;
	wire_land(n->wire, net_landing(n));
	if (got == 1 && !wire_decode(n->wire, &f, &m, &why))
		on_message(n, &m);
	else
		log_warn("net", "dropped", "why=\"%s\"", why);
	frames_release(&f);
	return 1;
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
	char why[sizeof n->why];
	const char *server = n->cfg.server;

	if (event == LINK_REFUSED)
		snprintf(why, sizeof why, "%.150s: the key %s is not on the server's list", server,
			n->own_key);
	else
		snprintf(why, sizeof why, "%.150s: the server %s", server,
			n->keyed ? "takes no keys: it was started without one"
				 : "wants a key, and none was given");
	net_end(n, PS_EAUTH, why);
	net_settle(n, clock_ms());
}

static int on_monitor(void *arg)
{
	struct watched *w = arg;
	struct net *n = w->net;
	enum link_event event = link_next_event(&n->link);

	if (event == LINK_UP || event == LINK_LOST)
		on_link(n, event);
	else if (event == LINK_REFUSED || event == LINK_UNLIKE)
		on_refused(n, event);
	else if (event == LINK_NOT_TAKEN)
		n->not_taken++;
	return event != LINK_NONE;
}

static void on_wake(uv_async_t *h)
{
	struct net *n = h->data;
	void *item;

	if (n->order || handoff_take(n->orders, &item, 0))
		return;
	n->order = item;
	n->asked = 0;
	net_alive(n);
	net_try_order(n, now_of(n));
}

static void on_tick(uv_timer_t *h)
{
	struct net *n = h->data;
	uint64_t now = now_of(n);

	if (!n->stop_ms && n->cfg.stop && n->cfg.stop(n->cfg.stop_arg))
		n->stop_ms = now;
	int alive = n->order || clock_ms() < atomic_load(&n->active_ms) + n->cfg.hang_ms;
	session_tick(n->session, alive, now);
	net_settle(n, now);
}

/* The socket's fd wakes the loop when there is room again. After zloop's check and before the next
 * prepare, so that an edge that a send eats is looked for again. */
static void on_retry(uv_check_t *h)
{
	struct net *n = h->data;

	outbox_flush(&n->out);
}

/* ---- life of the thread ---------------------------------------------------------------------- */

static int watch(struct net *n, struct watched *w, void *socket, zloop_readable_fn *on_readable)
{
	w->net = n;
	w->socket = socket;
	w->watching = !zloop_start(&w->zloop, &n->loop, socket, on_readable, w);
	return w->watching ? PS_OK : PS_ENET;
}

static void unwatch(struct watched *w)
{
	if (w->watching)
		zloop_stop(&w->zloop, NULL);
	w->watching = 0;
}

/* With no handle left, uv_run returns. */
static void close_handles(struct net *n)
{
	unwatch(&n->bulk);
	unwatch(&n->beat);
	unwatch(&n->monitor);
	uv_close((uv_handle_t *)&n->wake, NULL);
	uv_close((uv_handle_t *)&n->tick, NULL);
	uv_close((uv_handle_t *)&n->retry, NULL);
}

static int open_handles(struct net *n, struct err *e)
{
	if (uv_async_init(&n->loop, &n->wake, on_wake))
		return err_set(e, PS_ENET, "no descriptor to wake the client thread by");
	uv_timer_init(&n->loop, &n->tick);
	uv_timer_start(&n->tick, on_tick, TICK_MS, TICK_MS);
	uv_check_init(&n->loop, &n->retry);
	uv_check_start(&n->retry, on_retry);
	n->wake.data = n->tick.data = n->retry.data = n;
	if (!watch(n, &n->bulk, n->link.bulk, on_socket) &&
		!watch(n, &n->beat, n->link.beat, on_socket) &&
		!watch(n, &n->monitor, n->link.monitor, on_monitor))
		return PS_OK;
	close_handles(n);
	uv_run(&n->loop, UV_RUN_DEFAULT);
	return err_set(e, PS_ENET, "no descriptor to watch the server's connection by");
}

void net_shut_down(struct net *n)
{
	if (!n->order) /* closed already */
		return;
	outbox_flush(&n->out);
	close_handles(n);
	net_reply(n, PS_OK);
}

static void run(void *arg)
{
	struct net *n = arg;

	net_alive(n);
	session_start(n->session, now_of(n));
	uv_run(&n->loop, UV_RUN_DEFAULT);
	(void)zmq_msg_close(&n->fetched.frame);
	outbox_release(&n->out);
	link_close(&n->link);
}

/* ---- border: the program's thread ------------------------------------------------------------ */

static int open_loop(struct net *n, struct err *e)
{
	int status;

	if (uv_loop_init(&n->loop))
		return err_set(e, PS_ENET, "no event loop for the client thread");
	status = open_handles(n, e);
	if (!status && uv_thread_create(&n->thread, run, n)) {
		status = err_set(e, PS_ENOMEM, "no client thread");
		close_handles(n);
		uv_run(&n->loop, UV_RUN_DEFAULT);
	}
	if (status)
		uv_loop_close(&n->loop);
	return status;
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

	if (handoff_new(&n->orders, 2) || handoff_new(&n->replies, 2) || wire_new(&n->wire, 0) ||
		session_new(&n->session, s, WIRE_MAX_WINDOW))
		return err_set(e, PS_ENOMEM, "no memory for a connection");
	if ((status = dial(n, e)))
		return status;
	outbox_init(&n->out, n->link.bulk);
	(void)zmq_msg_init(&n->fetched.frame);
	status = open_loop(n, e);
	if (status) {
		link_close(&n->link);
		link_term(&n->link);
	}
	return status;
}

static void free_all(struct net **n)
{
	session_free(&(*n)->session);
	wire_free(&(*n)->wire);
	handoff_free(&(*n)->replies);
	handoff_free(&(*n)->orders);
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

int net_order(struct net *n, struct order *o)
{
	void *item = o;

	o->why[0] = '\0';
	if (handoff_put(n->orders, &item))
		return o->status = PS_ESTATE; /* two threads used one struct cnnps */
	uv_async_send(&n->wake);
	return handoff_take(n->replies, &item, UINT64_MAX) ? PS_ESTATE : o->status;
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
	uv_thread_join(&(*n)->thread);
	uv_loop_close(&(*n)->loop);
	link_term(&(*n)->link);
	free_all(n);
}
