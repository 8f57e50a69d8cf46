/*
 * outbox.h - the send queue of the bulk connection, and the bytes of every push that may have to be
 * sent again.
 *
 * Invariants:
 * (1) the tensor of a push is one message, which all sendings of the push share without a copy;
 * (2) messages leave in the order in which they were posted;
 * (3) retained_bytes is the sum over the retained pushes.
 * Thread: the holder of the I/O lock (net.h).
 */
#ifndef WORKER_CLIENT_OUTBOX_H
#define WORKER_CLIENT_OUTBOX_H
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>
#include "common/err.h"
#include "proto/msg.h"

/* Messages; more than the pushes of a session's window and its requests. */
#define OUTBOX_SIZE  512
#define OUTBOX_PARTS 4 /* frames of a large push */

/* A push that is not durable yet, at seq % WIRE_MAX_WINDOW. */
struct retained {
	uint64_t seq;                    /* 0: free */
	uint32_t n;                      /* parts: all but the last are sent ahead, see wire.h */
	struct slice part[OUTBOX_PARTS]; /* no data; xxh3 0: not sent yet */
	zmq_msg_t tensor;                /* of all parts */
};

struct outgoing {
	zmq_msg_t header;
	uint64_t push; /* seq of the retained push whose frame follows; 0: none */
	uint32_t part;
};

struct outbox {
	void *socket; /* borrowed */
	size_t retained_bytes;
	uint64_t sent_seq; /* newest push that was posted */
	uint64_t replayed; /* posts of pushes that had been posted before */
	struct retained retained[WIRE_MAX_WINDOW];
	size_t first, count; /* the ring `waiting` */
	struct outgoing waiting[OUTBOX_SIZE];
};

void outbox_init(struct outbox *o, void *socket);
/* Drops what is queued and what is retained. */
void outbox_release(struct outbox *o);

/* Retain push `seq`, whose values belong where `slice` says. Takes *tensor over and leaves it
 * empty. The first sending computes the checksums. */
void outbox_retain(struct outbox *o, uint64_t seq, const struct slice *slice, zmq_msg_t *tensor);
/* Pushes up to `seq` are durable: free their bytes. */
void outbox_drop(struct outbox *o, uint64_t seq);

/* Queue `m` behind everything posted before; send at once if the socket has room. A full outbox
 * loses `m`, as a network may: the session sends it again. */
void outbox_post(struct outbox *o, const struct msg *m);
/* The same for retained push `seq`, with header `m` without slices. */
void outbox_post_push(struct outbox *o, const struct msg *m, uint64_t seq);
/* Continue to send what is queued. */
void outbox_flush(struct outbox *o);
/* The connection broke: discard what is queued for it. */
void outbox_clear(struct outbox *o);

#endif
