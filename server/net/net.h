/*
 * net.h - the server's one port: a ROUTER socket in the loop, messages in, replies out.
 *
 * In:  a readable socket -> wire_decode -> on_message. What does not decode is answered by ERROR
 *      and counted.
 * Out: router_send encodes a reply, router_flush sends what the peers' queues take (replies.h). An
 *      ACK goes along with the PARAMS that directly follow it to its peer: one message wakes the
 *      worker once.
 *
 * Invariants:
 * (1) nothing here ever waits, and waiting replies never take more than their room;
 * (2) replies to one peer leave in the order of router_send, or not at all: a peer that does not
 *     read loses all its waiting replies at once and is told so by one ERROR PS_ESTATE, which
 *     makes it say HELLO again; the loss is counted;
 * (3) when file descriptors run out newcomers wait, and nobody else notices (accept_gate.h);
 * (4) with `auth`, no byte of a peer without a listed key reaches wire_decode.
 * Thread: the loop's.
 */
#ifndef SERVER_NET_NET_H
#define SERVER_NET_NET_H
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "proto/msg.h"
#include "proto/wire.h"
#include "server/auth/auth.h"
#include "server/net/port.h"
#include "server/net/param_buffers.h"

/* `m` and the frames that it came in are borrowed for the call. Replies by router_send; they leave
 * when the call has returned. */
typedef void router_message_fn(
	void *arg, uint32_t peer, const struct msg *m, struct frames *frames);
/* No reply reaches `peer` any more. */
typedef void router_gone_fn(void *arg, uint32_t peer);

struct router_config {
	uv_loop_t *loop;
	const char *bind;     /* tcp://HOST:PORT, PORT 0 or *: any */
	size_t n_params;      /* bounds a message */
	uint32_t push_window; /* messages that a well-behaved peer may have under way */
	uint32_t max_workers;
	struct param_buffers *params; /* frames for PARAMS; must outlive the router */
	struct auth *auth;            /* who may connect and say what, borrowed; NULL: anybody */
	router_message_fn *on_message;
	router_gone_fn *on_gone;
	void *arg;
};

struct router_stats {
	uint64_t received, sent;
	uint64_t malformed;     /* answered by ERROR: not decodable */
	uint64_t dropped;       /* replies thrown away: their peer did not read */
	uint64_t gone;          /* replies whose peer had left */
	uint64_t params_framed; /* versions of the weights made into a frame that PARAMS share */
	uint64_t rescues;       /* must stay 0: see zloop.h */
	struct port_stats port;
	uint32_t waiting; /* replies that wait now */
};

struct router; /* opaque, see net.c */

/* Bind and serve. PS_EUSAGE: the address cannot be bound. PS_EAUTH: keys do not keep strangers out.
 * PS_ENET, PS_ENOMEM. */
int router_new(struct router **out, const struct router_config *cfg, struct err *e) PS_MUST_CHECK;
/* The address in use, with the real port. */
const char *router_endpoint(const struct router *r);
/* The IP address that the newest HELLO came from, "" where libzmq does not know it. */
const char *router_address(const struct router *r);
/* What is sent from now on leaves when everything up to `position` is on disk (0: at once). */
void router_set_lsn(struct router *r, uint64_t lsn);
/* It is. What may leave does so at the next flush. */
void router_set_flushed(struct router *r, uint64_t lsn);
/* Encode `m` for `peer` now; it leaves at the next flush. */
void router_send(struct router *r, uint32_t peer, const struct msg *m);
/* Send what can be sent; calls on_gone. Not from inside on_message or on_gone. */
void router_flush(struct router *r);
/* Before silence is judged: read what has come, a message of each connection at least. */
void router_receive_pending(struct router *r);
void router_stats(const struct router *r, struct router_stats *s);
/* Close every connection, and with them the memory of messages that never end; the port is open
 * again at once, and who has a session comes back with HELLO. */
void router_close_connections(struct router *r);
/* Close sockets and handles; the loop must run once more before router_free. */
void router_stop(struct router *r);
/* Frees and nulls *r; waits a bounded time for libzmq to deliver what was sent. NULL is fine. */
void router_free(struct router **r);

#endif
