/*
 * port.h - the server's port: where it listens, who connects and leaves (libzmq's monitor), and the
 * door that shuts when descriptors run out.
 *
 * The socket is the router's; the port binds and unbinds it. Messages are none of its business.
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
	uint64_t accept_failures; /* no descriptor was left */
	uint32_t connections;     /* open now */
};

/* Embedded; its members are port.c's. */
struct port {
	void *socket, *monitor; /* the ROUTER, borrowed; and what tells of its connections */
	struct zloop loop;
	uv_timer_t rebind, reopen;
	struct door door;
	char endpoint[256];
	int bound;
	struct port_stats stats;
	/* Connections by descriptor; and those whose end was told before their beginning: the two
	 * come from different I/O threads of libzmq. */
	unsigned char open[PORT_FDS / 8], ended[PORT_FDS / 8];
};

/* Take the descriptors that the door has in reserve; needs port_release. */
void port_init(struct port *p);
void port_release(struct port *p);
/* Watch `socket`, before it is bound. PS_ENET. port_close in any case. */
int port_monitor(struct port *p, void *context, void *socket, struct err *e) PS_MUST_CHECK;
/* PS_EUSAGE: the address cannot be bound. */
int port_bind(struct port *p, const char *address, struct err *e) PS_MUST_CHECK;
/* PS_ENET: nothing to undo. Else port_stop. */
int port_start(struct port *p, uv_loop_t *loop) PS_MUST_CHECK;
void port_stop(struct port *p);
/* Before the socket is closed. */
void port_close(struct port *p);
/* See router_close_connections. */
void port_close_connections(struct port *p);

#endif
