/*
 * net.h - the server's port: a ROUTER socket in the event loop that receives messages and sends
 * replies.
 *
 * In:  when the socket is readable, wire_decode decodes the message, and on_message handles it. If
 *      the server cannot decode a message, it counts the message and answers ERROR.
 * Out: router_send encodes a reply, and router_flush sends the replies for which libzmq's queues
 *      have room. If a push also requests weights, the answer is a single message, PARAMS with the
 *      ACK inside, so that the worker wakes up only once.
 *
 * Invariants:
 * (1) the memory of waiting replies is bounded (asserted by append_reply;
 *     a_peer_that_does_not_read_loses_replies_and_is_notified);
 * (2) the router sends replies to one peer in the order of the calls of router_send, or evicts the
 *     peer, as invariant 2 of the queue of replies below describes (asserted by replies_flush;
 *     too_much_for_one_peer_becomes_one_error);
 * (3) with `auth`, no byte of a peer without a listed key reaches wire_decode (asserted by
 *     on_readable;
 *     tests/wire/test_keys.py, test_nothing_of_an_unauthenticated_peer_is_read_or_answered).
 *
 * Promises:
 * (1) while the server runs, no function waits for a peer (test_server_replies);
 * (2) when file descriptors run out, new connections wait and open connections continue to work
 *     (accept_gate.h; test_out_of_descriptors).
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_NET_NET_H
#define SERVER_NET_NET_H
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "common/pool.h"
#include "proto/msg.h"
#include "proto/wire.h"
#include "server/auth/auth.h"
#include "server/net/lane.h"
#include "server/net/port.h"
#include "server/net/param_buffers.h"
#include "server/net/sides.h"

/* Handles message `m` of `peer`; `m` and its frames are valid only during the call. The function
 * answers with router_send. The router sends these answers after the function has returned. */
typedef void router_message_fn(
	void *arg, uint32_t peer, const struct msg *m, struct frames *frames);
/* Called when the connection of `peer` is gone. */
typedef void router_gone_fn(void *arg, uint32_t peer);

struct router_config {
	uv_loop_t *loop;
	const char *bind;     /* tcp://HOST:PORT; PORT 0 or *: any free port */
	size_t n_params;      /* number of parameters, which limits the size of a message */
	uint32_t push_window; /* maximum number of unanswered messages of a correct peer */
	uint32_t max_workers;
	struct line_budget *lines; /* limits the log lines about each worker; borrowed */
	/* With keys, each key has an equal part of this number of bytes for the chunks of its
	 * pushes, and half such a part for weights that wait for its connections. Each of these two
	 * limits is at least the number of bytes of one push. If this number of bytes is 0, only
	 * the number of places for chunks (chunked_push.h) and the number of waiting replies are
	 * limited. */
	uint64_t key_bytes;
	/* router_check_sessions closes a connection when it has been silent for this time, or at
	 * the latest for twice this time (port.h) */
	uint64_t silent_ms;
	struct param_buffers *params; /* the buffers of the weights; must outlive the router */
	/* how the router makes its only pass over a gradient that arrives (wire.h) */
	struct wire_pass pass;
	/* 1 if the run needs exact gradients, as --optimizer lbfgs does, so that the router accepts
	 * no bfloat16 (proto/bf16.h) */
	int only_exact;
	struct pool *copies; /* for this field and the next two, see struct lanes_config */
	struct gpu_store *gpu;
	const char *gpu_off;
	/* lane_path is the Unix socket of shared-memory lanes (lane.h), or NULL if there are no
	 * lanes. lane_fd is the socket that listens there, or -1 if it cannot be opened; lane_why
	 * is then the reason. Both are borrowed. If the router cannot open the lanes and needs_lane
	 * is 1, router_new fails. */
	const char *lane_path;
	int lane_fd;
	const struct err *lane_why;
	int needs_lane;
	uint32_t sides;    /* maximum number of side connections of a worker (sides.h) */
	struct auth *auth; /* borrowed; if NULL, every peer has all rights */
	router_message_fn *on_message;
	router_gone_fn *on_gone;
	void *arg;
};

struct router_stats {
	uint64_t received, sent;
	/* numbers of bytes of messages; tensors that go through lanes do not count */
	uint64_t received_bytes, sent_bytes;
	uint64_t malformed; /* number of messages that could not be decoded */
	/* number of replies that were dropped because their peer did not read */
	uint64_t dropped;
	/* number of replies that were dropped because their peer's connection was gone */
	uint64_t gone;
	/* number of versions of the weights that the server has sent */
	uint64_t params_framed;
	uint64_t torn;  /* number of pushes in shared memory whose checksum was wrong */
	int has_lanes;  /* 1 if the router offers shared-memory lanes */
	uint32_t sides; /* number of open side connections */
	struct lanes_stats lanes;
	/* total time of decoding messages and verifying their checksums, in seconds */
	double verify_s;
	/* number of messages that no event reported, so that only the safety timer of zloop.h found
	 * them; must stay 0 */
	uint64_t rescues;
	struct port_stats port;
	uint32_t waiting; /* number of replies in the queue now */
};

struct router; /* opaque, see net.c */

/* Binds the port and begins to receive. Returns PS_EUSAGE if the address cannot be bound. Returns
 * PS_EAUTH if the authentication self-test failed. Other errors: PS_ENET, PS_ENOMEM. */
int router_new(struct router **out, const struct router_config *cfg, struct err *e) PS_MUST_CHECK;
/* Returns the bound address, with the actual port. */
const char *router_endpoint(const struct router *r);
/* Logs one line with the path of the socket of shared-memory lanes, or with the reason why there is
 * none. */
void router_log_lanes(const struct router *r);
/* Returns the IP address of the sender of the newest HELLO, or "" if libzmq does not report the
 * address. */
const char *router_address(const struct router *r);
/* Returns the key of the connection whose message on_message handles, or "" if the server has no
 * keys. Call router_sender_key only from on_message. */
const char *router_sender_key(const struct router *r);
/* Makes the replies of later calls of router_send wait until the write-ahead log is flushed up to
 * `lsn`. If `lsn` is 0, these replies do not wait. */
void router_set_lsn(struct router *r, uint64_t lsn);
/* Notes that the log is flushed up to `lsn`. The next router_flush sends the replies that have
 * waited for this LSN. */
void router_set_flushed(struct router *r, uint64_t lsn);
/* Encodes `m` for `peer` now. The next router_flush sends the reply, unless it must wait for the
 * log. */
void router_send(struct router *r, uint32_t peer, const struct msg *m);
/* Sends `m` at once, before the replies that wait for the log, or drops `m`. Therefore `m` must not
 * acknowledge anything, and must be correct at any place among the other replies. */
void router_send_notice(struct router *r, uint32_t peer, const struct msg *m);
/* Notes that on_message drops the message that it handles without an answer, because of a quota. If
 * a connection sends many messages that the server drops or answers with ERROR, the router closes
 * it (port.h). Call router_note_dropped only from on_message. */
void router_note_dropped(struct router *r);
/* Called when the run has ended. From now on, the router drops a push in a lane that is closed,
 * without an answer: a worker closes its lane when it receives BYE, and its last push may arrive
 * later. */
void router_run_ended(struct router *r);
/* Sends the replies that may leave. The function calls on_gone for each peer that is gone. Do not
 * call router_flush from on_message or on_gone. */
void router_flush(struct router *r);
/* Receives at least one message of each connection that has one. Called before the core checks for
 * silent workers, so that a worker whose message waits in the socket does not count as silent. */
void router_receive_pending(struct router *r);
/* Ends the side connections of workers that no longer use their bulk connection, and the lanes of
 * workers without a session. Closes silent connections, except those of a session, which may be
 * silent because the worker sends its heartbeats on another connection. The server calls this
 * function at each tick. */
void router_check_sessions(struct router *r, const struct core *c, uint64_t now_ms);
/* Returns the number of bytes that the side connections of the session with bulk connection `peer`
 * have moved since the last call. */
uint64_t router_sides_moved(struct router *r, uint32_t peer);
void router_stats(const struct router *r, struct router_stats *s);
/* Closes every connection, to free the memory of incomplete messages. The port opens again after a
 * short time, and the workers resume their sessions with HELLO. */
void router_close_connections(struct router *r);
/* Closes sockets and handles; the loop must run once more before router_free. */
void router_stop(struct router *r);
/* Frees *r and sets it to NULL; *r may be NULL. The function waits a bounded time until libzmq has
 * delivered the sent replies. */
void router_free(struct router **r);

/* ---- the queue of replies -------------------------------------------------------------------- */

/*
 * This queue of replies is bounded, and keeps the order of the replies to each peer. Only the
 * router and its unit test use it.
 *
 * Invariants:
 * (1) replies to one peer leave in the order of replies_put, or not at all (asserted by
 *     replies_flush; replies_leave_in_order, nothing_overtakes);
 * (2) the queue evicts a peer whose waiting replies exceed peer_bytes. When the queue is full (room
 *     >= 2), it evicts the peer with the oldest reply. To evict a peer means to replace all replies
 *     to it by one ERROR with PS_ESTATE, the tombstone, which asks the peer to send HELLO. The
 *     queue drops later replies to the peer until the tombstone has left. So if the queue has
 *     dropped replies to a peer, the tombstone is the next that the peer reads (asserted by
 *     replies_put for peer_bytes, and by append_reply for the room;
 *     too_much_for_one_peer_becomes_one_error,
 *     without_room_the_longest_waiting_peer_loses_its_replies);
 * (3) a reply leaves only after its LSN was flushed (asserted by replies_flush;
 *     replies_wait_for_the_disk).
 *
 * Promises:
 * (1) a peer that does not read delays no other peer (test_server_replies).
 */
struct replies; /* opaque, see net.c */

/* A function of this type sends a reply, as wire_send does on a socket. The function returns 0,
 * PS_EAGAIN or PS_EUNREACHABLE; if it returns another status, the queue drops the reply. */
typedef int replies_send_fn(void *arg, uint32_t peer, struct frames *f);

/* Makes a queue of at most `room` replies, with at most `peer_bytes` bytes for each peer. Error:
 * PS_ENOMEM. */
int replies_new(struct replies **out, size_t room, size_t peer_bytes) PS_MUST_CHECK;
/* Frees the queue with its replies and sets *q to NULL; *q may be NULL. */
void replies_free(struct replies **q);
/* Queues `f` for `peer` until the LSN `after` is flushed; if `after` is 0, `f` does not wait for
 * the log. The queue takes over the frames, and `f` becomes empty. */
void replies_put(struct replies *q, uint32_t peer, struct frames *f, uint64_t after);
/* Notes that the write-ahead log is flushed up to `lsn`. The replies that have waited for this LSN
 * may now leave. */
void replies_set_flushed(struct replies *q, uint64_t lsn);
/* Passes every reply that may leave to `send`. If `send` reports that a peer is gone, the function
 * drops the replies to this peer and returns the number of the peer; the caller must then call the
 * function again. When no more reply may leave, the function returns 0. */
uint32_t replies_flush(struct replies *q, replies_send_fn *send, void *arg);

size_t replies_waiting(const struct replies *q);
uint64_t replies_sent(const struct replies *q);
/* Returns the number of replies that were dropped because their peer did not read. */
uint64_t replies_dropped(const struct replies *q);

#endif
