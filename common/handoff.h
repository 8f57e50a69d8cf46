/*
 * handoff.h - a bounded queue that hands pointers from one thread to another.
 *
 * Ownership travels with the pointer: after handoff_put(q, &p) succeeded, p is NULL. Capacity is
 * fixed at birth; nothing is allocated afterwards.
 *
 * Thread: any number of putters and takers; new and free by the owner while nobody else uses it.
 */
#ifndef COMMON_HANDOFF_H
#define COMMON_HANDOFF_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

struct handoff; /* opaque, see handoff.c */

int handoff_new(struct handoff **out, size_t capacity) PS_MUST_CHECK;
/* Frees and nulls *q; items still inside are the caller's problem: drain first. NULL is fine. */
void handoff_free(struct handoff **q);
/* Hand over *item without waiting and null it. PS_EAGAIN: full, *item unchanged. PS_ESHUTDOWN:
 * closed. */
int handoff_put(struct handoff *q, void **item) PS_MUST_CHECK;
/* Take the oldest item, waiting at most timeout_ms (0: not at all). PS_EAGAIN: none in time.
 * PS_ESHUTDOWN: closed and empty. */
int handoff_take(struct handoff *q, void **item, uint64_t timeout_ms) PS_MUST_CHECK;
/* No more puts; waiting takers wake up once the queue is empty. */
void handoff_close(struct handoff *q);

#endif
