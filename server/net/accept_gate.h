/*
 * accept_gate.h - accepts no new connections while file descriptors are short.
 *
 * When no descriptor is left, libzmq retries accept without a pause, and unbinding its port would
 * close all connections. So the gate holds descriptors in reserve. When accept fails or few
 * descriptors are left, the gate closes: a filter on the listening socket drops the packets of new
 * connections, whose clients try again by themselves, and the reserve is released. Then libzmq can
 * accept the connections that wait already (at most the backlog, which is smaller than the
 * reserve), and checkpoints still find descriptors. The gate opens again when the whole reserve is
 * available.
 *
 * Thread: the loop's.
 */
#ifndef SERVER_NET_ACCEPT_GATE_H
#define SERVER_NET_ACCEPT_GATE_H
#include <stdint.h>
#include "common/err.h"

struct accept_gate; /* opaque, see accept_gate.c */

/* Take the reserve, as the limit of descriptors allows. PS_ENOMEM. */
int accept_gate_new(struct accept_gate **out) PS_MUST_CHECK;
/* Frees and nulls *g; NULL is fine. */
void accept_gate_free(struct accept_gate **g);
/* Connections that the kernel may keep waiting. */
int accept_gate_backlog(const struct accept_gate *g);
/* The listening socket; -1: there is none. A new one is open. */
void accept_gate_set_listener(struct accept_gate *g, int fd);
/* A connection got descriptor `fd`: are so few left that the gate should close? */
int accept_gate_is_needed(const struct accept_gate *g, uint32_t fd);
/* Close it until accept_gate_try_open; 0: it was closed already, or nothing listens yet. */
int accept_gate_close(struct accept_gate *g);
/* Open it if the reserve is available again; returns whether it is open. */
int accept_gate_try_open(struct accept_gate *g);

#endif
