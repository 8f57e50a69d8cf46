/*
 * ring.h - a ring of messages in the shared memory of a lane (lane.h). One process writes messages
 * to the ring, and another process reads them.
 *
 * A lane has two rings, one for each direction. A message in a ring has the bytes of the header
 * frame that would otherwise travel over the connection. WIRE.md, "Shared-memory lane", says which
 * messages travel in a ring, and how they keep their order with those on the connection.
 *
 * The shared memory of a ring has two positions, which count bytes modulo 2^32: `tail`, up to which
 * the writer has written, and `head`, up to which the reader has read. The peer can write anything
 * to this memory at any time. Therefore each side has its own position in a struct ring, never
 * reads it from the shared memory, and checks the position of the peer and every length.
 *
 * A reader that sleeps sets `sleeps`. The writer must then wake it up, by means outside this
 * module.
 *
 * Invariants:
 * (1) the own position of a side is a multiple of RING_ALIGN (asserted by ring_advance;
 *     messages_wrap_around_the_end);
 * (2) a side accesses only the bytes between the two positions, at most RING_BYTES (asserted by
 *     ring_copy_in and ring_copy_out; hostile_positions_and_lengths_are_refused).
 *
 * Promises:
 * (1) the reader copies the bytes of a message once, before anybody looks at them
 *     (a_message_is_a_private_copy);
 * (2) if the reader has called ring_may_sleep and has got 1, the next ring_write reports that the
 *     reader sleeps (a_sleeping_reader_is_woken).
 *
 * One thread writes and one thread reads.
 */
#ifndef PROTO_RING_H
#define PROTO_RING_H
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define RING_BYTES       16384u /* bytes for messages, a power of two */
#define RING_ALIGN       8u     /* each message begins at a multiple of this number of bytes */
#define RING_MAX_MESSAGE 2048u  /* maximum number of bytes of a message in a ring */
#define RING_HEAD        4u     /* bytes of the length in front of each message */
/* maximum number of messages in a ring */
#define RING_MAX_MESSAGES (RING_BYTES / RING_ALIGN)

/* The shared memory of a ring. Each of the first three members has a cache line of its own. */
struct ring_memory {
	alignas(64) _Atomic uint32_t tail; /* the writer's position */
	alignas(64) _Atomic uint32_t head; /* the reader's position */
	_Atomic uint32_t sleeps;           /* 1: the reader sleeps, or is about to sleep */
	/* in the ring to the worker: what the worker has received over its connection (lane.h) */
	alignas(64) _Atomic uint64_t received;
	alignas(64) unsigned char bytes[RING_BYTES];
};

/* One side of a ring. */
struct ring {
	struct ring_memory *shared; /* borrowed */
	uint32_t at;                /* the position of this side */
};

/* Makes a side of a new ring, whose memory is zeros. */
void ring_init(struct ring *r, struct ring_memory *shared);
/* Writes a message. Sets *sleeps to 1 if the caller must wake the reader up. Returns PS_EAGAIN if
 * the ring has no room for the message, or if the message has no bytes or more than
 * RING_MAX_MESSAGE bytes. Returns PS_EPROTO if the reader has written an impossible position. */
int ring_write(struct ring *r, const void *bytes, size_t n, int *sleeps) PS_MUST_CHECK;
/* Copies the oldest message to `to`, which has room for RING_MAX_MESSAGE bytes, and sets *n to its
 * size. Returns 1, or 0 if the ring is empty. Returns PS_EPROTO if the writer has written an
 * impossible position or length. */
int ring_read(struct ring *r, void *to, size_t *n) PS_MUST_CHECK;
/* Returns 1 if the ring is not empty. */
int ring_has_message(const struct ring *r);
/* Returns the position up to which the writer has written. */
uint32_t ring_end(const struct ring *r);
/* The reader discards all messages up to the position `end`, which ring_end has returned. */
void ring_discard(struct ring *r, uint32_t end);
/* The reader is about to sleep. Returns 0 if a message has arrived: the reader must then read it
 * instead. Returns 1 if the reader may sleep. */
int ring_may_sleep(struct ring *r) PS_MUST_CHECK;
/* The reader does not sleep any more. */
void ring_wake(struct ring *r);

#endif
