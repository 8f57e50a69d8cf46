/*
 * chunked_push.h - tensor frames that came ahead of their PUSH (wire.h), until it comes.
 *
 * A peer's frames are joined to its next message, or void: order is kept within a connection, so
 * whatever comes in between says that the PUSH is lost, or that the peer does not keep to WIRE.md.
 * Who hangs up in between leaves some; nobody says so.
 * Invariants:
 * (1) nobody has more than WIRE_MAX_AHEAD frames and n_params values here;
 * (2) no more peers than chunked_push_keep is told have any: then who has been silent for longest loses
 *     his, and of him it is as if the network had lost them.
 * Thread: the loop's.
 */
#ifndef SERVER_NET_CHUNKED_PUSH_H
#define SERVER_NET_CHUNKED_PUSH_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/wire.h"

struct chunked_push; /* opaque, see chunked_push.c */

/* `most`: peers, at any time. PS_ENOMEM. */
int chunked_push_new(struct chunked_push **out, size_t n_params, size_t max_peers) PS_MUST_CHECK;
/* Frees and nulls *a; NULL is fine. */
void chunked_push_free(struct chunked_push **a);
/* Read and keep the tensor frame of `f`; `peers` (>= 1) may have some. All of the peer's is void
 * after PS_EPROTO, it is no tensor frame, and PS_EAGAIN, it is too much: a push before it was lost.
 */
int chunked_push_keep(
	struct chunked_push *a, uint32_t peer, struct frames *f, size_t peers) PS_MUST_CHECK;
/* A message of the peer: put what it has here before the message's own tensor frames, if that is as
 * many as it wants. PS_EAGAIN: it is not; the message is as good as lost. */
int chunked_push_join(struct chunked_push *a, uint32_t peer, struct frames *f) PS_MUST_CHECK;
/* All connections were closed. */
void chunked_push_clear(struct chunked_push *a);

#endif
