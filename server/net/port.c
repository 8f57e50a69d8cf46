/* port.c - see port.h. */
#include "server/net/port.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <zmq.h>
#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/zmonitor.h"

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

	if (zmq_bind(p->socket, p->endpoint) != 0) {
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
	memset(p->open, 0, sizeof(p->open));
	memset(p->ended, 0, sizeof(p->ended));
	memset(p->active, 0, sizeof(p->active));
	memset(p->swept, 0, sizeof(p->swept));
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

/* Sets bit `fd` of `bits` to `value`. Returns 1 if the bit has changed. */
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
	if (fd >= PORT_FDS || set_bit(p->ended, fd, 0) || !set_bit(p->open, fd, 1))
		return;
	log_debug("net", "accepted", "fd=%u", fd);
	p->stats.connections++;
}

static void note_ended(struct port *p, uint32_t fd)
{
	if (fd >= PORT_FDS)
		return;
	set_bit(p->active, fd, 0);
	set_bit(p->swept, fd, 0);
	if (p->keys)
		key_connections_remove(p->keys, fd);
	if (set_bit(p->open, fd, 0)) {
		log_debug("net", "hung_up", "fd=%u", fd);
		PS_ASSERT(p->stats.connections > 0);
		p->stats.connections--;
		/* if the port is not bound, zmq_unbind has already closed the connection */
	} else if (p->bound) {
		set_bit(p->ended, fd, 1);
	}
}

/* libzmq has no function that closes a connection, but it closes a connection whose socket is shut
 * down. */
static void shut_down(int fd)
{
	(void)shutdown(fd, SHUT_RDWR);
}

/* ---- silent connections ---------------------------------------------------------------------- */

static int has_bit(const unsigned char *bits, uint32_t fd)
{
	return bits[fd / 8] >> (fd % 8) & 1;
}

void port_note_message(struct port *p, int fd)
{
	/* The monitor may report later that the connection was accepted. */
	if (fd > 0 && fd < PORT_FDS)
		set_bit(p->active, (uint32_t)fd, 1);
}

/* Returns 1 if no byte has arrived on the connection for `ms` milliseconds. If the descriptor now
 * belongs to a newer connection, which has existed for less than `ms` milliseconds, the function
 * returns 0. */
static int is_without_data(int fd, uint64_t ms)
{
	struct tcp_info info = {0};
	socklen_t length = sizeof(info);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
	       length > offsetof(struct tcp_info, tcpi_last_data_recv) &&
	       info.tcpi_last_data_recv >= ms;
}

/* Closes the connections that have sent no message for too long. */
static void on_sweep(uv_timer_t *t)
{
	struct port *p = t->data;
	uint64_t silent_ms = uv_timer_get_repeat(t);

	for (uint32_t fd = 0; fd < PORT_FDS; fd++) {
		if (!has_bit(p->open, fd) || has_bit(p->active, fd))
			continue;
		if (set_bit(p->swept, fd, 1) || !is_without_data((int)fd, silent_ms))
			continue;
		shut_down((int)fd);
		p->stats.silent++;
		log_debug("net", "silent", "fd=%u", fd);
	}
}

/* ---- refused messages ------------------------------------------------------------------------ */

#define REFUSAL_MS (1000 / FLOOD_PER_S)

/* Returns the entry of a connection. Returns NULL if the descriptor is not known, or if there is no
 * memory; the refusals are then not counted. */
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

int port_note_refused(struct port *p, int fd, uint32_t peer, uint64_t now_ms)
{
	struct port_refusals *e = refusals_of(p, fd, peer);

	if (!e || e->closed)
		return 0;
	uint64_t passed_ms = now_ms - e->now_ms;
	e->spent_ms -= passed_ms < e->spent_ms ? (uint32_t)passed_ms : e->spent_ms;
	e->now_ms = now_ms;
	e->spent_ms += REFUSAL_MS;
	if (e->spent_ms <= p->burst * REFUSAL_MS)
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

/* maximum number of events of the monitor that the port reads when a key seems to have too many
 * connections */
#define EVENTS_AT_ONCE 4096

/* Returns 1 if `key` has more than `limit` open connections. The monitor may not have reported the
 * ends of some of them yet. */
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

int port_start(struct port *p, uv_loop_t *loop, uint64_t silent_ms, uint32_t window)
{
	p->burst = FLOOD_BURST + 2 * window;
	if (zloop_start(&p->loop, loop, p->monitor, on_monitor, p) != 0)
		return PS_ENET;
	uv_timer_init(loop, &p->rebind);
	uv_timer_init(loop, &p->reopen);
	uv_timer_init(loop, &p->sweep);
	p->rebind.data = p->reopen.data = p->sweep.data = p;
	if (silent_ms > 0)
		uv_timer_start(&p->sweep, on_sweep, silent_ms, silent_ms);
	return PS_OK;
}

void port_stop(struct port *p)
{
	zloop_stop(&p->loop, NULL);
	uv_close((uv_handle_t *)&p->rebind, NULL);
	uv_close((uv_handle_t *)&p->reopen, NULL);
	uv_close((uv_handle_t *)&p->sweep, NULL);
}

void port_close(struct port *p)
{
	zmonitor_close(p->socket, &p->monitor);
	p->socket = NULL;
}
