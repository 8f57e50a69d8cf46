/*
 * chunked_push.h - chunked push, the server's part: tensor frames that a worker sends ahead of
 * their PUSH (wire.h) are verified and kept until the PUSH arrives.
 *
 * The chunks of a peer belong to its next message. A connection keeps the order, so any other
 * message in between means that the PUSH is lost or that the peer violates WIRE.md: then the chunks
 * are discarded. A connection that closes in between leaves its chunks behind unannounced.
 *
 * Invariants:
 * (1) a peer has at most WIRE_MAX_CHUNKS chunks of n_params values in total;
 * (2) at most as many peers have chunks as chunked_push_keep is told. Beyond that, the chunks of
 *     the peer that was idle for longest are discarded, as if the network had lost them.
 * Thread: the loop's.
 */
#ifndef SERVER_NET_CHUNKED_PUSH_H
#define SERVER_NET_CHUNKED_PUSH_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/wire.h"

struct chunked_push; /* opaque, see chunked_push.c */

/* At most max_peers have chunks. PS_ENOMEM. */
int chunked_push_new(struct chunked_push **out, size_t n_params, size_t max_peers) PS_MUST_CHECK;
/* Frees and nulls *a; NULL is fine. */
void chunked_push_free(struct chunked_push **a);
/* Verify and keep the tensor frame of `f`; `peers` (>= 1) may have chunks. All chunks of the peer
 * are discarded on PS_EPROTO: this is no tensor frame, and on PS_EAGAIN: too many, so the PUSH of
 * earlier ones was lost. */
int chunked_push_keep(
	struct chunked_push *a, uint32_t peer, struct frames *f, size_t peers) PS_MUST_CHECK;
/* `f` is a message of the peer: insert its chunks before the message's own tensor frames, if their
 * number is the one that the message names. PS_EAGAIN: it is not; treat the message as lost. */
int chunked_push_join(struct chunked_push *a, uint32_t peer, struct frames *f) PS_MUST_CHECK;
/* All connections were closed: discard all chunks. */
void chunked_push_clear(struct chunked_push *a);

#endif
