/*
 * accept_gate.h - keeps libzmq from accepting connections while file descriptors are short.
 *
 * When no descriptor is left, libzmq retries accept without a pause, and the server cannot unbind
 * the port without closing all connections. The gate avoids this by holding descriptors in reserve.
 * When accept fails or few descriptors are left, the gate closes: a filter on the listening socket
 * drops the packets of new connections, whose clients try again by themselves, and the gate
 * releases the reserve. The reserve is larger than the backlog, which is the number of connections
 * that can wait in the kernel. libzmq can therefore accept all connections that wait, and the
 * server can still open files for checkpoints. The gate opens again when the whole reserve is
 * available.
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_NET_ACCEPT_GATE_H
#define SERVER_NET_ACCEPT_GATE_H
#include <stdint.h>
#include "common/err.h"

struct accept_gate; /* opaque, see accept_gate.c */

/* Makes an open gate, which takes its reserve of descriptors. The size of the reserve depends on
 * the process's limit of descriptors. Error: PS_ENOMEM. */
int accept_gate_new(struct accept_gate **out) PS_MUST_CHECK;
/* Frees the gate and sets *g to NULL; *g may be NULL. */
void accept_gate_free(struct accept_gate **g);
/* Returns the listen backlog, that is, the number of connections that may wait in the kernel. */
int accept_gate_backlog(const struct accept_gate *g);
/* Sets the listening socket; `fd` is -1 if there is none. The gate is open after the call. */
void accept_gate_set_listener(struct accept_gate *g, int fd);
/* Returns 1 if `fd`, the descriptor of a new connection, shows that few descriptors are left. The
 * caller should then close the gate. */
int accept_gate_is_needed(const struct accept_gate *g, uint32_t fd);
/* Closes the gate until accept_gate_try_open opens it. Returns 0 if the gate was already closed, or
 * if there is no listening socket. */
int accept_gate_close(struct accept_gate *g);
/* Opens the gate if the whole reserve is available again. Returns 1 if the gate is open. */
int accept_gate_try_open(struct accept_gate *g);

#endif
