/* link.c - see link.h. */
#include <errno.h>
#include <linux/tcp.h> /* this header has all fields of struct tcp_info */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <zmq.h>
#include "common/zmonitor.h"
#include "proto/wire.h"
#include "worker/client/link.h"

/* The first attempt to reconnect comes after 1 to 2 times RETRY_MS. Each failure doubles the wait,
 * up to about MAX_RETRY_MS, so that the worker uses a repaired network within two seconds. */
#define RETRY_MS     30
#define MAX_RETRY_MS 500
/* maximum number of queued messages per direction before WELCOME states the push window */
#define FIRST_WINDOW 8

static int set_socket_int(void *socket, int option, int value)
{
	return zmq_setsockopt(socket, option, &value, sizeof(value));
}

/* Sets each option of the socket whose default in libzmq does not suit this program, or on whose
 * value the code depends. */
static int link_set_options(void *socket, int has_keys, uint64_t random)
{
	/* a frame may be a whole model; decode.c checks the exact size after WELCOME */
	int64_t max_frame = (int64_t)wire_max_frame(WIRE_MAX_PARAMS);
	int jitter = (int)(random % RETRY_MS);
	int bad = 0;

	bad |= zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max_frame, sizeof(max_frame));
	/* do not queue messages without a connection: the session must detect that the queue is
	 * lost when a connection is lost */
	bad |= set_socket_int(socket, ZMQ_IMMEDIATE, 1);
	/* workers of a restarted server must not all reconnect at once */
	bad |= set_socket_int(socket, ZMQ_RECONNECT_IVL, RETRY_MS + jitter);
	bad |= set_socket_int(socket, ZMQ_RECONNECT_IVL_MAX, MAX_RETRY_MS + jitter);
	/* with libzmq's default, link_term could wait for ever for unsent messages */
	bad |= set_socket_int(socket, ZMQ_LINGER, LINK_LINGER_MS);
	/* give up a peer that accepts the connection and then sends nothing */
	bad |= set_socket_int(socket, ZMQ_HANDSHAKE_IVL, 2000);
	bad |= set_socket_int(socket, ZMQ_CONNECT_TIMEOUT, 1500);
	/* ZMTP heartbeats drop healthy peers that are busy; HEARTBEAT messages replace them */
	bad |= set_socket_int(socket, ZMQ_HEARTBEAT_IVL, 0);
	/* TCP probes every second and gives up after 2.5 s without progress. With TCP's defaults,
	 * retransmissions become rare, and a repaired network stays unused for seconds. A slow
	 * network makes progress, so it keeps its connection. The server sets the same options. */
	bad |= set_socket_int(socket, ZMQ_TCP_KEEPALIVE, 1);
	bad |= set_socket_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, 1);
	bad |= set_socket_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, 1);
	bad |= set_socket_int(socket, ZMQ_TCP_KEEPALIVE_CNT, 2);
	bad |= set_socket_int(socket, ZMQ_TCP_MAXRT, 2500);
	/* the queues hold few messages, because each may be a whole model; libzmq's default is 1000
	 * messages */
	bad |= set_socket_int(socket, ZMQ_SNDHWM, FIRST_WINDOW);
	bad |= set_socket_int(socket, ZMQ_RCVHWM, FIRST_WINDOW);
	bad |= set_socket_int(socket, ZMQ_SNDBUF, WIRE_SEND_BUFFER(has_keys));
	return bad ? PS_ENET : PS_OK;
}

static int set_keys(void *socket, const struct link_keys *k)
{
	int bad = zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, k->server, KEY_TEXT) ||
		  zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, k->own.public_key, KEY_TEXT) ||
		  zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, k->own.secret_key, KEY_TEXT);

	return bad ? PS_ENET : PS_OK;
}

static void *open_socket(struct link *l, const struct link_keys *keys, uint64_t random)
{
	void *socket = zmq_socket(l->context, ZMQ_DEALER);

	if (socket && (link_set_options(socket, keys != NULL, random) ||
			      (keys && set_keys(socket, keys)))) {
		zmq_close(socket);
		return NULL;
	}
	return socket;
}

static int start_monitor(struct link *l)
{
	int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CONNECT_DELAYED | ZMQ_EVENT_CONNECT_RETRIED |
		     ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
		     ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
		     ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;

	/* The heartbeat connection has no ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL, because libzmq
	 * closes a connection with a forged message only if it does not report this event
	 * (server/net/port.c). */
	int of_heartbeat = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CONNECT_DELAYED |
			   ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_DISCONNECTED;

	l->monitor = zmonitor_open(l->context, l->bulk, events);
	l->heartbeat_monitor = zmonitor_open(l->context, l->heartbeat, of_heartbeat);
	return l->monitor && l->heartbeat_monitor ? PS_OK : PS_ENET;
}

int link_open(struct link *l, const char *server, const struct link_keys *keys, uint64_t random,
	uint32_t connections, struct err *e)
{
	int rc = PS_ENET;

	memset(l, 0, sizeof(*l));
	l->fd = -1;
	snprintf(l->server, sizeof(l->server), "%s", server);
	l->context = zmq_ctx_new();
	if (!l->context)
		return err_set(e, PS_ENET, "no ZeroMQ context: %s", zmq_strerror(errno));
	if (connections > 1) {
		/* one I/O thread per connection, which matters most if the connections are
		 * encrypted */
		(void)zmq_ctx_set(l->context, ZMQ_IO_THREADS, (int)connections);
		l->random = random;
		l->has_keys = keys != NULL;
		if (keys)
			l->keys = *keys;
	}
	if (!(l->bulk = open_socket(l, keys, random)) ||
		!(l->heartbeat = open_socket(l, keys, random)) || start_monitor(l)) {
		err_set(e, rc, "no ZeroMQ socket: %s", zmq_strerror(errno));
		goto fail;
	}
	if (zmq_connect(l->bulk, server) || zmq_connect(l->heartbeat, server)) {
		rc = err_set(e, PS_EUSAGE, "server \"%.200s\": %s; expected tcp://HOST:PORT",
			server, zmq_strerror(errno));
		goto fail;
	}
	return PS_OK;
fail:
	link_close(l);
	link_term(l);
	return rc;
}

/* The queues have room for two messages more than the window: a HELLO and a request. */
void link_set_window(struct link *l, uint32_t push_window)
{
	set_socket_int(l->bulk, ZMQ_SNDHWM, (int)push_window + 2);
	set_socket_int(l->bulk, ZMQ_RCVHWM, (int)push_window + 2);
}

/* Returns 1 if a message of the established connection was forged. libzmq then reads no more from
 * this connection. */
static int is_forged(const struct link *l, unsigned number)
{
	return number == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL && l->established;
}

/* Notes the descriptor and the state of the bulk connection. libzmq may have closed the descriptor
 * before this function reads the event, so the number may belong to another file for a moment. A
 * wrong number does no harm, because link_bytes_moved only reads the TCP_INFO of the descriptor. */
static void note_connection(struct link *l, unsigned number, uint32_t value)
{
	l->stopped = number == ZMQ_EVENT_DISCONNECTED || is_forged(l, number);
	if (number == ZMQ_EVENT_CONNECTED)
		l->fd = (int)value;
	else if (l->stopped)
		l->fd = -1;
	if (number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
		l->established = 1;
	else if (number == ZMQ_EVENT_CONNECTED || l->stopped)
		l->established = 0;
}

int link_wait_fd(const struct link *l)
{
	int fd = -1;
	size_t size = sizeof(fd);

	return zmq_getsockopt(l->bulk, ZMQ_FD, &fd, &size) ? -1 : fd;
}

void link_redial(struct link *l)
{
	if (!l->stopped)
		return;
	l->stopped = 0;
	(void)zmq_disconnect(l->bulk, l->server);
	(void)zmq_connect(l->bulk, l->server);
}

void link_cut(struct link *l)
{
	(void)zmq_disconnect(l->bulk, l->server);
	l->fd = -1;
	l->established = 0;
}

void link_dial(struct link *l)
{
	l->stopped = 1;
	link_redial(l);
}

void link_cut_heartbeat(struct link *l)
{
	(void)zmq_disconnect(l->heartbeat, l->server);
}

void link_dial_heartbeat(struct link *l)
{
	(void)zmq_disconnect(l->heartbeat, l->server);
	(void)zmq_connect(l->heartbeat, l->server);
	l->heartbeat_stopped = 0;
}

void link_redial_heartbeat(struct link *l)
{
	struct zmonitor_event e;

	for (int i = 0; i < 64 && zmonitor_next(l->heartbeat_monitor, &e); i++)
		l->heartbeat_stopped = e.number == ZMQ_EVENT_DISCONNECTED;
	if (!l->heartbeat_stopped)
		return;
	l->heartbeat_stopped = 0;
	(void)zmq_disconnect(l->heartbeat, l->server);
	(void)zmq_connect(l->heartbeat, l->server);
}

uint64_t link_side_moved(int fd)
{
	struct tcp_info info;
	socklen_t size = sizeof(info);

	memset(&info, 0, sizeof(info));
	if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size))
		return 0;
	return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

uint64_t link_bytes_moved(const struct link *l)
{
	return link_side_moved(l->fd);
}

static enum link_event meaning(unsigned number, uint32_t value)
{
	switch (number) {
	case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
		return LINK_UP;
	case ZMQ_EVENT_DISCONNECTED:
		return LINK_LOST;
	case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
		return LINK_REFUSED;
	case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
		return value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH ? LINK_MISMATCH
									   : LINK_OTHER;
	case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
		return LINK_HANDSHAKE_FAILED;
	default:
		return LINK_OTHER;
	}
}

enum link_event link_next_event(struct link *l)
{
	struct zmonitor_event e;

	if (!zmonitor_next(l->monitor, &e))
		return LINK_NONE;
	int forged = is_forged(l, e.number);

	note_connection(l, e.number, e.value);
	return forged ? LINK_LOST : meaning(e.number, e.value);
}

enum link_event link_side_event(void *monitor, int *fd)
{
	struct zmonitor_event e;

	if (!zmonitor_next(monitor, &e))
		return LINK_NONE;
	if (e.number == ZMQ_EVENT_CONNECTED)
		*fd = (int)e.value;
	if (e.number == ZMQ_EVENT_DISCONNECTED)
		*fd = -1;
	return meaning(e.number, e.value);
}

static void close_socket(void **socket)
{
	if (*socket)
		zmq_close(*socket);
	*socket = NULL;
}

int link_open_side(struct link *l, uint64_t max_frame, void **socket, void **monitor)
{
	const int64_t max = (int64_t)max_frame;
	int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
		     ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;

	*monitor = NULL;
	*socket = open_socket(l, l->has_keys ? &l->keys : NULL, l->random);
	if (!*socket || zmq_setsockopt(*socket, ZMQ_MAXMSGSIZE, &max, sizeof(max)) ||
		set_socket_int(*socket, ZMQ_RECONNECT_IVL, -1) ||
		set_socket_int(*socket, ZMQ_LINGER, 0))
		return PS_ENET;
	*monitor = zmonitor_open(l->context, *socket, events);
	return *monitor && !zmq_connect(*socket, l->server) ? PS_OK : PS_ENET;
}

void link_close_side(void **socket, void **monitor)
{
	if (*socket)
		zmonitor_close(*socket, monitor);
	close_socket(socket);
}

void link_close(struct link *l)
{
	explicit_bzero(&l->keys, sizeof(l->keys));
	zmonitor_close(l->bulk, &l->monitor);
	zmonitor_close(l->heartbeat, &l->heartbeat_monitor);
	close_socket(&l->bulk);
	close_socket(&l->heartbeat);
}

void link_term(struct link *l)
{
	if (l->context)
		zmq_ctx_term(l->context);
	l->context = NULL;
}
