/*
 * outbox.h - the send queue of the bulk connection, and the bytes of every push that may need a
 * replay.
 *
 * Invariants:
 * (1) the tensor of a push is one message, which all transmissions of the push share without a copy
 *     (a_large_push_is_whole_again_and_the_same_when_it_is_sent_again);
 * (2) messages leave in the order of their posting (what_finds_no_room_leaves_later_in_its_order);
 * (3) retained_bytes is the sum over the retained pushes (bytes_stay_until_they_have_left).
 * PS_ASSERT checks that no tensor is replaced (1), and that the sum is possible (3), in every
 * build.
 * Thread: the holder of the I/O lock (net.h).
 */
#ifndef WORKER_CLIENT_OUTBOX_H
#define WORKER_CLIENT_OUTBOX_H
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>
#include "common/err.h"
#include "proto/msg.h"
#include "worker/client/lane.h"

/* Maximum of queued messages: more than a session's window of pushes and its requests. */
#define OUTBOX_SIZE  512
#define OUTBOX_PARTS 4 /* frames of a large push */

/* A push that is not durable yet, at seq % WIRE_MAX_WINDOW. */
struct retained {
	uint64_t seq; /* 0: free */
	/* number of parts; all but the last are chunks, see wire.h */
	uint32_t n;
	struct slice whole; /* for a push in shared memory; without data; xxh3 0: not sent yet */
	struct slice part[OUTBOX_PARTS]; /* without data; xxh3 0: not sent yet */
	zmq_msg_t tensor;                /* the values of all parts */
};

struct outgoing {
	zmq_msg_t header;
	uint64_t push; /* seq of the retained push whose frame follows; 0: none */
	uint32_t part;
};

struct outbox {
	void *socket; /* borrowed */
	/* borrowed, or NULL. If set, the server reads tensors in the slots of this lane, and no
	 * frame is sent */
	const struct lane *lane;
	size_t retained_bytes;
	uint64_t sent_seq; /* newest posted push */
	uint64_t replayed; /* number of repeated posts of a push */
	struct retained retained[WIRE_MAX_WINDOW];
	size_t first, count; /* the ring `waiting` */
	struct outgoing waiting[OUTBOX_SIZE];
};

void outbox_init(struct outbox *o, void *socket);
/* Discards all queued messages and all retained pushes. */
void outbox_release(struct outbox *o);

/* Retains push `seq`, whose values have the position `slice`. Takes *tensor over and leaves it
 * empty. The first transmission computes the checksums, except a checksum that `slice` already
 * has. */
void outbox_retain(struct outbox *o, uint64_t seq, const struct slice *slice, zmq_msg_t *tensor);
/* Frees the bytes of the pushes up to `seq`, which are durable. */
void outbox_drop(struct outbox *o, uint64_t seq);

/* Queues `m` after all earlier posts, and sends it at once if the socket has room. A full outbox
 * discards `m`. The session later sends the message again, as it does after a loss in the
 * network. */
void outbox_post(struct outbox *o, const struct msg *m);
/* As outbox_post, for the retained push `seq`. `m` is the header of the push without slices. */
void outbox_post_push(struct outbox *o, const struct msg *m, uint64_t seq);
/* Sends queued messages while the socket has room. */
void outbox_flush(struct outbox *o);
/* Discards all queued messages; call outbox_clear when the connection has broken. */
void outbox_clear(struct outbox *o);

#endif
