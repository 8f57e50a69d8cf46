/*
 * pool.h - buffers of floats that travel and come back: somebody fills one, it leaves inside a
 * ZeroMQ message, and when the last reference to that message is dropped, on whatever thread, it
 * waits here to be filled again.
 *
 * Invariant: a buffer has one owner: who took it, a message, or the pool.
 * Thread: any.
 */
#ifndef COMMON_POOL_H
#define COMMON_POOL_H
#include <stddef.h>
#include <zmq.h>
#include "common/err.h"

struct pool; /* opaque, see pool.c */

/* Buffers of `n` floats. PS_ENOMEM. */
int pool_new(struct pool **out, size_t n) PS_MUST_CHECK;
/* The same in memory of the caller's kind, pinned for a GPU say, which is dear: what was taken once
 * stays in the pool. take gives zeroed bytes aligned to 64, or NULL; both by any thread. NULL and
 * NULL: as pool_new. */
int pool_new_in(struct pool **out, size_t n, void *(*take)(size_t bytes),
	void (*give)(void *memory)) PS_MUST_CHECK;
/* Frees and nulls *p; every message must be closed. NULL is fine. */
void pool_free(struct pool **p);
/* A buffer aligned to 64 bytes, zero or as it was when it left; NULL: no memory. */
float *pool_take(struct pool *p);
/* Give back one that was not sent; nulls *buffer. */
void pool_give(struct pool *p, float **buffer);
/* Make `message` of the buffer, without a copy; nulls *buffer. PS_ENOMEM leaves it. */
int pool_send(struct pool *p, float **buffer, zmq_msg_t *message) PS_MUST_CHECK;

#endif
