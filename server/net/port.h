/*
 * port.h - the server's port. The module binds the router's socket, counts connections with
 * libzmq's monitor, and closes the accept gate when descriptors run out. The module also closes
 * each connection that has never sent a message, because libzmq would keep such a connection and
 * its memory for ever. The module closes such a silent connection between `silent_ms` and 2 *
 * `silent_ms` after libzmq has accepted it. A connection on which the first message is just
 * arriving stays open.
 *
 * Thread: the loop's.
 */
#ifndef SERVER_NET_PORT_H
#define SERVER_NET_PORT_H
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "common/zloop.h"
#include "server/net/accept_gate.h"

#define PORT_FDS 65536

struct port_stats {
	uint64_t accepted, handshakes_failed;
	uint64_t accept_failures; /* accept failed: no descriptor was left */
	uint64_t silent;          /* connections closed because they sent no message */
	uint32_t connections;     /* open now */
};

/* This struct is a member of the router. Only port.c may use its members. */
struct port {
	void *socket, *monitor; /* socket: the ROUTER, borrowed; monitor: its event socket */
	struct zloop loop;
	uv_timer_t rebind, reopen, sweep;
	struct accept_gate *gate;
	char endpoint[256];
	int bound;
	struct port_stats stats;
	/* These bit sets have a bit for each descriptor. `open` has the open connections. `ended`
	 * has the connections whose end was reported before their begin, which happens because
	 * different I/O threads of libzmq send the two reports. `active` has the connections that
	 * have sent a message. `swept` has the connections that had sent no message at the newest
	 * sweep. */
	unsigned char open[PORT_FDS / 8], ended[PORT_FDS / 8];
	unsigned char active[PORT_FDS / 8], swept[PORT_FDS / 8];
};

/* Creates the accept gate. The caller must call port_release even after a failure. PS_ENOMEM. */
int port_init(struct port *p) PS_MUST_CHECK;
void port_release(struct port *p);
/* Begins to monitor `socket`, which must not be bound yet. The caller must call port_close even
 * after a failure. PS_ENET. */
int port_monitor(struct port *p, void *context, void *socket, struct err *e) PS_MUST_CHECK;
/* Binds the socket to `address`. Returns PS_EUSAGE if the address cannot be bound. PS_ENET. */
int port_bind(struct port *p, const char *address, struct err *e) PS_MUST_CHECK;
/* Begins to read the monitor's events in `loop`. `silent_ms` is the time limit for the first
 * message of a connection; 0: there is no limit. After a success the caller must call port_stop.
 * PS_ENET. */
int port_start(struct port *p, uv_loop_t *loop, uint64_t silent_ms) PS_MUST_CHECK;
void port_stop(struct port *p);
/* Notes that a message has arrived on the connection with descriptor `fd`, so the connection is not
 * silent. */
void port_note_message(struct port *p, int fd);
/* Closes the monitor. Call port_close before you close the socket. */
void port_close(struct port *p);
/* Closes all connections, as net.h describes for router_close_connections. */
void port_close_connections(struct port *p);

#endif
