/*
 * replies.h - the bounded queue of replies, in order for each peer.
 *
 * Invariants:
 * (1) replies to one peer leave in the order of replies_put, or not at all;
 * (2) a peer whose waiting replies exceed its bytes is evicted, and so is the peer with the oldest
 *     reply when the queue is full (room >= 2): one ERROR PS_ESTATE, its tombstone, replaces all
 *     its replies ("say HELLO again"). Later replies to it are dropped until the tombstone has
 *     left. So a peer never reads a sequence of replies with an unreported gap;
 * (3) a peer that does not read delays no other peer;
 * (4) a reply leaves after its LSN was flushed.
 * Thread: the loop's.
 */
#ifndef SERVER_NET_REPLIES_H
#define SERVER_NET_REPLIES_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/wire.h"

struct replies; /* opaque, see replies.c */

/* wire_send on a socket: 0, PS_EAGAIN or PS_EUNREACHABLE; any other status drops the reply. */
typedef int replies_send_fn(void *arg, uint32_t peer, struct frames *f);

/* At most `room` replies, and `peer_bytes` for each peer. PS_ENOMEM. */
int replies_new(struct replies **out, size_t room, size_t peer_bytes) PS_MUST_CHECK;
/* Frees and nulls *q and the waiting replies; NULL is fine. */
void replies_free(struct replies **q);
/* Queue `f` for `peer` until `lsn` is flushed (0: no wait). Takes over the frames and empties f. */
void replies_put(struct replies *q, uint32_t peer, struct frames *f, uint64_t after);
/* The log is on disk up to `lsn`. */
void replies_set_flushed(struct replies *q, uint64_t lsn);
/* Offer every reply that may leave. Returns 0, or a peer that is gone, with its replies dropped:
 * then call again. */
uint32_t replies_flush(struct replies *q, replies_send_fn *send, void *arg);

size_t replies_waiting(const struct replies *q);
uint64_t replies_sent(const struct replies *q);
/* Replies that were dropped because their peer did not read. */
uint64_t replies_dropped(const struct replies *q);

#endif
