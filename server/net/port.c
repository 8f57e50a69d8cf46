/* port.c - see port.h. */
#include "server/net/port.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <zmq.h>
#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/zmonitor.h"
#include "server/net/watched.h"

#define REBIND_MS 50   /* time between two attempts to bind the port again */
#define CLOSED_MS 1000 /* minimum time for which the accept gate stays closed */

/* ---- bind and unbind, open and close ------------------------------------------------------- */

static void on_rebind(uv_timer_t *t);

static void schedule_rebind(struct port *p)
{
	uv_timer_start(&p->rebind, on_rebind, REBIND_MS, 0);
}

static void on_rebind(uv_timer_t *t)
{
	struct port *p = t->data;

	int rc = zmq_bind(p->socket, p->endpoint);
	zloop_used(p->router);
	if (rc != 0) {
		schedule_rebind(p);
		return;
	}
	p->bound = 1;
	log_info("net", "listening_again", "endpoint=%s", p->endpoint);
}

void port_close_connections(struct port *p)
{
	if (!p->bound)
		return;
	(void)zmq_unbind(p->socket, p->endpoint); /* closes the accepted connections, too */
	zloop_used(p->router);
	memset(p->open, 0, sizeof(p->open));
	memset(p->ended, 0, sizeof(p->ended));
	memset(p->connection, 0, sizeof(p->connection));
	key_connections_free(&p->keys);
	p->stats.connections = 0;
	p->bound = 0;
	accept_gate_set_listener(p->gate, -1);
	schedule_rebind(p);
}

static void on_reopen(uv_timer_t *t)
{
	struct port *p = t->data;

	if (!accept_gate_try_open(p->gate))
		return;
	uv_timer_stop(t);
	log_info("net", "accepting_again", "endpoint=%s", p->endpoint);
}

static void close_gate(struct port *p, const char *why)
{
	if (!accept_gate_close(p->gate))
		return;
	log_warn("net", "descriptors_short", "reason=\"%s\" connections=%u", why,
		p->stats.connections);
	uv_timer_start(&p->reopen, on_reopen, CLOSED_MS, CLOSED_MS);
}

/* Sets bit `fd` of `bits` to `value`. Returns 1 if the bit had another value before. */
static int set_bit(unsigned char *bits, uint32_t fd, int value)
{
	unsigned char bit = (unsigned char)(1u << (fd % 8)), *byte = &bits[fd / 8];

	if (((*byte & bit) != 0) == value)
		return 0;
	*byte = (unsigned char)(*byte ^ bit);
	return 1;
}

static void note_accepted(struct port *p, uint32_t fd)
{
	p->stats.accepted++;
	if (p->refusals && fd < PORT_FDS)
		p->refusals[fd] = (struct port_refusals){0};
	if (accept_gate_is_needed(p->gate, fd))
		close_gate(p, "few descriptors are left");
	if (fd >= PORT_FDS)
		return;
	log_debug("net", "accepted", "fd=%u", fd);
	if (!set_bit(p->ended, fd, 0) && set_bit(p->open, fd, 1))
		p->stats.connections++;
}

static void note_ended(struct port *p, uint32_t fd)
{
	if (fd >= PORT_FDS)
		return;
	p->connection[fd] = (struct port_connection){0};
	if (p->keys)
		key_connections_remove(p->keys, fd);
	if (set_bit(p->open, fd, 0)) {
		PS_ASSERT(p->stats.connections > 0);
		p->stats.connections--;
	} else if (p->bound) {
		set_bit(p->ended, fd, 1);
	} else {
		return; /* zmq_unbind has closed an unknown connection */
	}
	log_debug("net", "hung_up", "fd=%u", fd);
}

/* libzmq has no function that closes a connection, but it closes a connection whose socket is shut
 * down. */
static void shut_down(int fd)
{
	(void)shutdown(fd, SHUT_RDWR);
}

/* ---- silent connections ---------------------------------------------------------------------- */

#define EVENTS_AT_ONCE 4096 /* maximum number of the monitor's events that the port reads at once */

static int has_bit(const unsigned char *bits, uint32_t fd)
{
	return bits[fd / 8] >> (fd % 8) & 1;
}

int port_descriptor(struct port *p, uint32_t peer, zmq_msg_t *frame)
{
	uint16_t *recent = &p->recent[peer % PORT_RECENT];

	if (p->connection[*recent].peer == peer)
		return *recent;
	/* this call is slow, because libzmq stores the number as text */
	int fd = zmq_msg_get(frame, ZMQ_SRCFD);
	if (fd >= 0 && fd < PORT_FDS)
		*recent = (uint16_t)fd;
	return fd;
}

void port_note_message(struct port *p, int fd, uint32_t peer)
{
	/* the first message can arrive before the monitor reports that the connection was
	 * accepted */
	if (fd > 0 && fd < PORT_FDS)
		p->connection[fd].peer = peer;
}

/* Returns 1 if the connection was silent since the previous sweep. If the kernel does not count the
 * bytes of connections, no connection is silent. */
static int is_silent(struct port_connection *c, uint32_t fd)
{
	const uint32_t before = c->received;

	c->received = (uint32_t)watched_received((int)fd);
	return before && (c->received == before || !c->peer);
}

static int is_peer_of(uint32_t peer, const uint32_t *peers, size_t n)
{
	int found = 0;

	for (size_t i = 0; i < n; i++)
		found |= peers[i] == peer;
	return found;
}

void port_sweep(struct port *p, const struct auth *auth, const uint32_t *used, size_t n)
{
	zloop_read(&p->loop, EVENTS_AT_ONCE);
	for (uint32_t fd = 0; fd < PORT_FDS; fd++) {
		if (!has_bit(p->open, fd))
			continue;
		struct port_connection *c = &p->connection[fd];
		const char *key = p->keys ? key_connections_key(p->keys, fd) : NULL;
		int is_revoked = auth && key && !auth_is_listed(auth, key);
		if (!is_revoked && (!is_silent(c, fd) || is_peer_of(c->peer, used, n)))
			continue;
		shut_down((int)fd);
		p->stats.silent += (uint64_t)!is_revoked;
		log_debug("net", is_revoked ? "revoked" : "silent", "fd=%u", fd);
	}
}

/* ---- refused messages ------------------------------------------------------------------------ */

#define REFUSAL_MS (1000 / FLOOD_PER_S)

/* Returns the entry that counts the refusals of a connection. Returns NULL if the descriptor is not
 * known, or if there is no memory; the caller then counts no refusals. */
static struct port_refusals *refusals_of(struct port *p, int fd, uint32_t peer)
{
	if (fd <= 0 || fd >= PORT_FDS)
		return NULL;
	if (!p->refusals)
		p->refusals = mem_lazy(PORT_FDS * sizeof(*p->refusals));
	if (!p->refusals)
		return NULL;
	struct port_refusals *e = &p->refusals[fd];
	if (e->peer != peer)
		*e = (struct port_refusals){.peer = peer};
	return e;
}

int port_is_closed(const struct port *p, int fd, uint32_t peer)
{
	return p->refusals && fd > 0 && fd < PORT_FDS && p->refusals[fd].peer == peer &&
	       p->refusals[fd].closed;
}

int port_is_flood(struct port_refusals *e, uint32_t burst, uint64_t now_ms)
{
	uint64_t passed_ms = now_ms - e->now_ms;

	e->spent_ms -= passed_ms < e->spent_ms ? (uint32_t)passed_ms : e->spent_ms;
	e->now_ms = now_ms;
	e->spent_ms += REFUSAL_MS;
	return e->spent_ms > burst * REFUSAL_MS;
}

int port_note_refused(struct port *p, int fd, uint32_t peer, uint64_t now_ms)
{
	struct port_refusals *e = refusals_of(p, fd, peer);

	if (!e || e->closed || !port_is_flood(e, p->burst, now_ms))
		return 0;
	e->closed = 1;
	p->stats.floods++;
	shut_down(fd);
	return 1;
}

void port_note_revoked(struct port *p, int fd, uint32_t peer)
{
	struct port_refusals *e = refusals_of(p, fd, peer);

	if (!e || e->closed)
		return;
	if (e->revoked) {
		e->closed = 1;
		shut_down(fd);
	}
	e->revoked = 1;
}

/* ---- connections of a key -------------------------------------------------------------------- */

/* Returns 1 if `key` has more than `limit` open connections. Some of the counted connections may
 * already have ended, so the function first reads the events that wait in the monitor. */
static int is_crowded(struct port *p, int fd, const char *key, uint32_t limit)
{
	if (key_connections_of(p->keys, key) <= limit)
		return 0;
	zloop_read(&p->loop, EVENTS_AT_ONCE);
	key_connections_retain(p->keys, p->open, (uint32_t)fd);
	return key_connections_of(p->keys, key) > limit;
}

int port_note_key(struct port *p, int fd, uint32_t peer, const char *key, uint32_t limit)
{
	if (fd <= 0 || fd >= PORT_FDS || (!p->keys && key_connections_new(&p->keys, PORT_FDS)) ||
		key_connections_has(p->keys, (uint32_t)fd, peer))
		return 0;
	if (!key_connections_add(p->keys, (uint32_t)fd, peer, key) ||
		!is_crowded(p, fd, key, limit))
		return 0;
	struct port_refusals *e = refusals_of(p, fd, peer);
	if (e)
		e->closed = 1;
	key_connections_remove(p->keys, (uint32_t)fd);
	p->stats.crowded++;
	shut_down(fd);
	return 1;
}

/* ---- events of the monitor ------------------------------------------------------------------- */

static void on_event(struct port *p, unsigned event, uint32_t value)
{
	switch (event) {
	case ZMQ_EVENT_LISTENING:
		accept_gate_set_listener(p->gate, (int)value);
		break;
	case ZMQ_EVENT_ACCEPTED:
		note_accepted(p, value);
		break;
	case ZMQ_EVENT_ACCEPT_FAILED:
		p->stats.accept_failures++;
		close_gate(p, strerror((int)value));
		break;
	case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
	case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
		p->stats.handshakes_failed++;
		break;
	case ZMQ_EVENT_DISCONNECTED:
		note_ended(p, value);
		break;
	default:
		break;
	}
}

static int on_monitor(void *arg)
{
	struct port *p = arg;
	struct zmonitor_event e;

	if (!zmonitor_next(p->monitor, &e))
		return 0;
	on_event(p, e.number, e.value);
	return 1;
}

/* ---- creation ------------------------------------------------------------------------------ */

int port_init(struct port *p)
{
	memset(p, 0, sizeof(*p));
	return accept_gate_new(&p->gate);
}

void port_release(struct port *p)
{
	accept_gate_free(&p->gate);
	mem_lazy_free(p->refusals, PORT_FDS * sizeof(*p->refusals));
	p->refusals = NULL;
	key_connections_free(&p->keys);
}

int port_monitor(struct port *p, void *context, void *socket, struct err *e)
{
	/* ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL is missing on purpose: libzmq reports a forged
	 * message by this event, and the report overwrites errno. With an overwritten errno, libzmq
	 * would read no more from the connection and never close it. */
	const int events = ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED |
			   ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
			   ZMQ_EVENT_DISCONNECTED;

	p->socket = socket;
	p->monitor = zmonitor_open(context, socket, events);
	if (!p->monitor)
		return err_set(e, PS_ENET, "no monitor: %s", zmq_strerror(errno));
	return PS_OK;
}

/* Binds the socket. Retries for 0.2 s, because the port of a server that was just killed may still
 * be in use. */
static int bind_retrying(void *socket, const char *address)
{
	const struct timespec pause = {.tv_nsec = 2000000};

	for (int tries = 100; tries > 0; tries--) {
		if (zmq_bind(socket, address) == 0)
			return 0;
		if (errno != EADDRINUSE)
			break;
		nanosleep(&pause, NULL);
	}
	return -1;
}

int port_bind(struct port *p, const char *address, struct err *e)
{
	size_t size = sizeof(p->endpoint);

	if (bind_retrying(p->socket, address) != 0)
		return err_set(e, PS_EUSAGE, "--bind %.100s: %s%s", address, zmq_strerror(errno),
			errno == EADDRINUSE ? ": stop the process that has it, or take another port"
					    : "");
	if (zmq_getsockopt(p->socket, ZMQ_LAST_ENDPOINT, p->endpoint, &size) != 0)
		return err_set(e, PS_ENET, "--bind %.100s: %s", address, zmq_strerror(errno));
	p->bound = 1;
	return PS_OK;
}

int port_start(struct port *p, uv_loop_t *loop, struct zloop *router, uint32_t window)
{
	p->router = router;
	p->burst = FLOOD_BURST + 2 * window;
	if (zloop_start(&p->loop, loop, p->monitor, on_monitor, p) != 0)
		return PS_ENET;
	uv_timer_init(loop, &p->rebind);
	uv_timer_init(loop, &p->reopen);
	p->rebind.data = p->reopen.data = p;
	return PS_OK;
}

void port_stop(struct port *p)
{
	zloop_stop(&p->loop, NULL);
	uv_close((uv_handle_t *)&p->rebind, NULL);
	uv_close((uv_handle_t *)&p->reopen, NULL);
}

void port_close(struct port *p)
{
	zmonitor_close(p->socket, &p->monitor);
	p->socket = NULL;
}
