/* ring.c - see ring.h. */
#include "proto/ring.h"
#include <string.h>
#include "common/assert.h"

_Static_assert((RING_BYTES & (RING_BYTES - 1)) == 0 && RING_BYTES % RING_ALIGN == 0,
	"positions wrap around at 2^32, and messages do not begin near the end");
_Static_assert(RING_MAX_MESSAGE + RING_HEAD <= RING_BYTES, "each message fits into an empty ring");

void ring_init(struct ring *r, struct ring_memory *shared)
{
	*r = (struct ring){.shared = shared};
}

/* Returns the number of bytes that a message of `n` bytes takes in the ring. */
static uint32_t room_of(uint32_t n)
{
	return (n + RING_HEAD + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
}

/* Copies `n` bytes to position `at` of the ring. The writer owns `room` bytes from `at` on. */
static void ring_copy_in(
	struct ring_memory *m, uint32_t at, const unsigned char *from, uint32_t n, uint32_t room)
{
	const uint32_t start = at % RING_BYTES, first = RING_BYTES - start;

	PS_ASSERT(n <= room && room <= RING_BYTES); /* invariant 2 */
	memcpy(m->bytes + start, from, n < first ? n : first);
	if (n > first)
		memcpy(m->bytes, from + first, n - first);
}

/* Copies `n` bytes from position `at` of the ring. The reader owns `left` bytes from `at` on. */
static void ring_copy_out(
	const struct ring_memory *m, uint32_t at, unsigned char *to, uint32_t n, uint32_t left)
{
	const uint32_t start = at % RING_BYTES, first = RING_BYTES - start;

	PS_ASSERT(n <= left && left <= RING_BYTES); /* invariant 2 */
	memcpy(to, m->bytes + start, n < first ? n : first);
	if (n > first)
		memcpy(to + first, m->bytes, n - first);
}

/* Moves the own position, and shows it to the peer. */
static void ring_advance(struct ring *r, _Atomic uint32_t *shown, uint32_t n)
{
	r->at += n;
	PS_ASSERT(r->at % RING_ALIGN == 0); /* invariant 1 */
	atomic_store_explicit(shown, r->at, memory_order_release);
}

int ring_write(struct ring *r, const void *bytes, size_t n, int *sleeps)
{
	struct ring_memory *m = r->shared;
	const uint32_t size = (uint32_t)n;

	*sleeps = 0;
	if (n < 1 || n > RING_MAX_MESSAGE)
		return PS_EAGAIN;
	uint32_t used = r->at - atomic_load_explicit(&m->head, memory_order_acquire);
	if (used > RING_BYTES || used % RING_ALIGN)
		return PS_EPROTO;
	uint32_t room = RING_BYTES - used;
	if (room_of(size) > room)
		return PS_EAGAIN;
	ring_copy_in(m, r->at, (const unsigned char *)&size, RING_HEAD, room);
	ring_copy_in(m, r->at + RING_HEAD, bytes, size, room - RING_HEAD);
	ring_advance(r, &m->tail, room_of(size));
	/* this fence pairs with that of ring_may_sleep: either the writer reads `sleeps`, or the
	 * reader reads the new `tail` */
	atomic_thread_fence(memory_order_seq_cst);
	*sleeps = atomic_load_explicit(&m->sleeps, memory_order_relaxed) != 0;
	return PS_OK;
}

int ring_read(struct ring *r, void *to, size_t *n)
{
	struct ring_memory *m = r->shared;
	uint32_t size, left = atomic_load_explicit(&m->tail, memory_order_acquire) - r->at;

	*n = 0;
	if (left == 0)
		return 0;
	if (left > RING_BYTES || left % RING_ALIGN)
		return PS_EPROTO;
	ring_copy_out(m, r->at, (unsigned char *)&size, RING_HEAD, left);
	if (size < 1 || size > RING_MAX_MESSAGE || room_of(size) > left)
		return PS_EPROTO;
	ring_copy_out(m, r->at + RING_HEAD, to, size, left - RING_HEAD);
	ring_advance(r, &m->head, room_of(size));
	*n = size;
	return 1;
}

uint32_t ring_end(const struct ring *r)
{
	return atomic_load_explicit(&r->shared->tail, memory_order_acquire);
}

int ring_has_message(const struct ring *r)
{
	return ring_end(r) != r->at;
}

void ring_discard(struct ring *r, uint32_t end)
{
	uint32_t left = end - r->at;

	if (left <= RING_BYTES && left % RING_ALIGN == 0)
		ring_advance(r, &r->shared->head, left);
}

int ring_may_sleep(struct ring *r)
{
	atomic_store_explicit(&r->shared->sleeps, 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	if (!ring_has_message(r))
		return 1;
	ring_wake(r);
	return 0;
}

void ring_wake(struct ring *r)
{
	atomic_store_explicit(&r->shared->sleeps, 0, memory_order_relaxed);
}
