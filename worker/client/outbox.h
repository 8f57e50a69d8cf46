/*
 * outbox.h - what waits to go out on the bulk connection, and the bytes of every push that may have
 * to go out again.
 *
 * Invariants:
 * (1) a push's tensor is one message, shared by every sending of it, never copied;
 * (2) messages leave in the order they were posted;
 * (3) kept_bytes is the sum over the kept pushes.
 * Thread: one at a time (net.h's baton).
 */
#ifndef WORKER_CLIENT_OUTBOX_H
#define WORKER_CLIENT_OUTBOX_H
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>
#include "common/err.h"
#include "proto/msg.h"

/* Messages; more than a session's window of pushes and its requests. */
#define OUTBOX_SIZE  512
#define OUTBOX_PARTS 4 /* frames of a large push */

/* A push that is not durable yet, at seq % WIRE_MAX_WINDOW. */
struct kept {
	uint64_t seq;                    /* 0: free */
	uint32_t n;                      /* parts: all but the last go ahead, see wire.h */
	struct slice part[OUTBOX_PARTS]; /* no data; xxh3 0: was never sent */
	zmq_msg_t tensor;                /* of all of them */
};

struct outgoing {
	zmq_msg_t header;
	uint64_t push; /* seq of the kept push whose frame follows; 0: none */
	uint32_t part;
};

struct outbox {
	void *socket; /* borrowed */
	size_t kept_bytes;
	uint64_t sent_seq; /* newest push that was ever posted */
	uint64_t replayed; /* postings of pushes that had been posted before */
	struct kept kept[WIRE_MAX_WINDOW];
	size_t first, count; /* ring of what waits */
	struct outgoing waiting[OUTBOX_SIZE];
};

void outbox_init(struct outbox *o, void *socket);
/* Drops what waits and what is kept. */
void outbox_release(struct outbox *o);

/* Keep push `seq`, whose values belong where `slice` says: takes *tensor over and leaves it empty.
 * Checksums are made when it is sent first. */
void outbox_keep(struct outbox *o, uint64_t seq, const struct slice *slice, zmq_msg_t *tensor);
/* Pushes up to `seq` are durable. */
void outbox_forget(struct outbox *o, uint64_t seq);

/* Send `m` after everything posted before it; at once if the socket has room. A full outbox loses
 * it: for the protocol that is a network that loses. */
void outbox_post(struct outbox *o, const struct msg *m);
/* The same for kept push `seq`, whose header is `m` without slices. */
void outbox_post_push(struct outbox *o, const struct msg *m, uint64_t seq);
/* Go on sending what waits. */
void outbox_flush(struct outbox *o);
/* The connection broke: what waits for it is void. */
void outbox_clear(struct outbox *o);

#endif
