/*
 * replies.h - replies that wait for their peers' queues, bounded, in order per peer.
 *
 * Invariants:
 * (1) replies to one peer leave in the order they came, or not at all;
 * (2) a peer with too many bytes of waiting replies, or the longest waiting one when all room is
 *     used up (room >= 2), loses all of them; one ERROR PS_ESTATE takes their place ("say HELLO
 *     again"), and until it has left, later replies to that peer are dropped too: what a peer
 *     reads never has a hole that it is not told of;
 * (3) a peer that does not read delays nobody else;
 * (4) no reply leaves before what it says is on disk: its position was reached.
 * Thread: the loop's.
 */
#ifndef SERVER_NET_REPLIES_H
#define SERVER_NET_REPLIES_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/wire.h"

struct replies; /* opaque, see replies.c */

/* wire_send on some socket: 0, PS_EAGAIN, PS_EUNREACHABLE; any other status loses the reply. */
typedef int replies_send_fn(void *arg, uint32_t peer, struct frames *f);

/* `room` replies in all, of one peer not more than `peer_bytes`. PS_ENOMEM. */
int replies_new(struct replies **out, size_t room, size_t peer_bytes) PS_MUST_CHECK;
/* Frees and nulls *q with all that waits; NULL is fine. */
void replies_free(struct replies **q);
/* Queue `f` for `peer`, to leave when position `after` is reached (0: at once); the frames are ours
 * from here on, f is empty. */
void replies_put(struct replies *q, uint32_t peer, struct frames *f, uint64_t after);
/* Everything up to `position` is on disk. */
void replies_set_flushed(struct replies *q, uint64_t lsn);
/* Offer every reply whose turn it is. Returns 0 when that is done, else a peer that is gone, its
 * replies dropped: call again. */
uint32_t replies_flush(struct replies *q, replies_send_fn *send, void *arg);

size_t replies_waiting(const struct replies *q);
uint64_t replies_sent(const struct replies *q);
/* Replies thrown away because their peer did not read. */
uint64_t replies_dropped(const struct replies *q);

#endif
