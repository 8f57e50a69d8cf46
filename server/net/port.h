/*
 * port.h - the server's port. The module binds the router's socket, counts connections with
 * libzmq's monitor, and closes the accept gate when descriptors run out.
 *
 * The module also closes silent connections, because libzmq would keep them and their memory for
 * ever. The caller calls port_sweep at intervals. A connection is silent if no byte has arrived on
 * it between two calls of port_sweep, or if it has existed since the earlier call and has never
 * sent a whole message. The connections of a key that is no longer on the list are closed, silent
 * or not.
 *
 * The module also closes a connection that floods the server with messages which the server refuses
 * or drops, because handling them takes time. A connection may send FLOOD_BURST + 2 * --push-window
 * such messages at once, and FLOOD_PER_S in each second. A correct peer sends far fewer: after a
 * restart of the server at most the messages that were on their way.
 *
 * With keys, a key has a limited number of connections. The module closes a connection above the
 * limit at its first message, because only then libzmq reports its key (key_connections.h).
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_NET_PORT_H
#define SERVER_NET_PORT_H
#include <stdint.h>
#include <uv.h>
#include <zmq.h>
#include "common/err.h"
#include "common/zloop.h"
#include "server/auth/auth.h"
#include "server/net/accept_gate.h"
#include "server/net/key_connections.h"

#define PORT_FDS    65536
#define PORT_RECENT 1024
#define FLOOD_BURST 256u
#define FLOOD_PER_S 20u

struct port_stats {
	uint64_t accepted, handshakes_failed;
	uint64_t accept_failures; /* number of accepts that failed because no descriptor was left */
	/* number of connections that were closed because they sent nothing for too long */
	uint64_t silent;
	/* number of connections that were closed because the server refused too many of their
	 * messages */
	uint64_t floods;
	/* number of connections that were closed because their key had too many connections */
	uint64_t crowded;
	uint32_t connections; /* number of open connections now */
};

/* This struct counts the refused messages of a connection. After a connection is closed, the system
 * gives its descriptor to a new one, although messages of the old one may still wait. Therefore the
 * struct also has the number `peer`, which is different for each connection. */
struct port_refusals {
	uint32_t peer;
	/* time in ms after which all refusals are forgotten if no other message is refused */
	uint32_t spent_ms;
	uint64_t now_ms; /* time of the newest refused message */
	int revoked;     /* 1 if a message was refused because the key is no longer on the list */
	int closed;      /* 1 if the server has shut down the connection */
};

/* This struct describes an open connection. */
struct port_connection {
	/* number of the connection, from its newest message; 0: it has sent no message */
	uint32_t peer;
	/* number of bytes received up to the newest port_sweep, modulo 2^32; 0: unknown */
	uint32_t received;
};

/* This struct is a member of the router. Only port.c may use the members of this struct. */
struct port {
	/* socket: the ROUTER socket, borrowed; monitor: the socket with its events */
	void *socket, *monitor;
	struct zloop loop;    /* watches the monitor's socket */
	struct zloop *router; /* watches the ROUTER socket, borrowed */
	uv_timer_t rebind, reopen;
	struct accept_gate *gate;
	char endpoint[256];
	int bound;
	struct port_stats stats;
	/* These bit sets have a bit for each descriptor. `open` has the open connections. `ended`
	 * has the connections whose end was reported before their begin, which happens because
	 * different I/O threads of libzmq send the two reports. */
	unsigned char open[PORT_FDS / 8], ended[PORT_FDS / 8];
	struct port_connection connection[PORT_FDS]; /* an entry for each descriptor */
	/* the descriptors of recent peers; the entry of a peer has the index peer % PORT_RECENT. An
	 * entry is right if `connection` has the same peer for this descriptor */
	uint16_t recent[PORT_RECENT];
	/* an entry for each descriptor; NULL until the first message is refused */
	struct port_refusals *refusals;
	uint32_t burst; /* maximum number of refused messages that a connection may send at once */
	/* counts the connections of each key; NULL until a peer with a key sends a message */
	struct key_connections *keys;
};

/* Creates the accept gate. The caller must call port_release even after a failure. Error:
 * PS_ENOMEM. */
int port_init(struct port *p) PS_MUST_CHECK;
void port_release(struct port *p);
/* Lets libzmq's monitor report events of `socket`, which must not be bound yet. The caller must
 * call port_close even after a failure. Error: PS_ENET. */
int port_monitor(struct port *p, void *context, void *socket, struct err *e) PS_MUST_CHECK;
/* Binds the socket to `address`. Returns PS_EUSAGE if the address cannot be bound. Other error:
 * PS_ENET. */
int port_bind(struct port *p, const char *address, struct err *e) PS_MUST_CHECK;
/* Begins to read the monitor's events in `loop`. `router` is the loop that watches the ROUTER
 * socket. `window` is the maximum number of unanswered messages of a correct peer. After a success
 * the caller must call port_stop. Error: PS_ENET. */
int port_start(
	struct port *p, uv_loop_t *loop, struct zloop *router, uint32_t window) PS_MUST_CHECK;
void port_stop(struct port *p);
/* Returns the descriptor of the connection of `peer`, from which `frame` has arrived, or -1 if it
 * is unknown. */
int port_descriptor(struct port *p, uint32_t peer, zmq_msg_t *frame);
/* Notes that a message of `peer` has arrived on the connection with descriptor `fd`. */
void port_note_message(struct port *p, int fd, uint32_t peer);
/* Closes the connections that have been silent since the previous call, except those of the `n`
 * peers in `used`. Unless `auth` is NULL, also closes the connections of keys that are not on its
 * list. */
void port_sweep(struct port *p, const struct auth *auth, const uint32_t *used, size_t n);
/* Notes that a message of `key` has arrived on connection `peer` with descriptor `fd`. If more than
 * `limit` connections of the key are open, closes this one and returns 1. */
int port_note_key(struct port *p, int fd, uint32_t peer, const char *key, uint32_t limit);
/* Notes that a message of connection `peer` with descriptor `fd` was refused or dropped. If the
 * connection has sent too many such messages, closes it and returns 1. */
int port_note_refused(struct port *p, int fd, uint32_t peer, uint64_t now_ms);
/* Notes a refused message in `e`, of which at most `burst` may come at once. Returns 1 if there
 * were too many. */
int port_is_flood(struct port_refusals *e, uint32_t burst, uint64_t now_ms);
/* Notes that a message was refused because its key is no longer on the list. Closes the connection
 * at the second such message, so that the peer can receive the reason after the first one. */
void port_note_revoked(struct port *p, int fd, uint32_t peer);
/* Returns 1 if port_note_key, port_note_refused or port_note_revoked has closed the connection. The
 * caller must then drop the messages of the connection that have already arrived. */
int port_is_closed(const struct port *p, int fd, uint32_t peer);
/* Closes the monitor. Call port_close before you close the socket. */
void port_close(struct port *p);
/* Closes all connections, as net.h describes for router_close_connections. */
void port_close_connections(struct port *p);

#endif
