/*
 * pool.h - buffers of floats for ZeroMQ messages. A caller takes a buffer, fills it and sends it
 * without a copy. When libzmq drops the last reference to the message, on any thread, the buffer
 * returns to the pool.
 *
 * Invariant: a buffer has one owner: the caller that took it, a message, or the pool. Thread: any.
 */
#ifndef COMMON_POOL_H
#define COMMON_POOL_H
#include <stddef.h>
#include <zmq.h>
#include "common/err.h"

struct pool; /* opaque, see pool.c */

/* Makes a pool of buffers of `n` floats. PS_ENOMEM. */
int pool_new(struct pool **out, size_t n) PS_MUST_CHECK;
/* Like pool_new, but with the caller's allocator, for example for pinned memory of a GPU. Such
 * memory is expensive to allocate, so the pool keeps it until pool_free. `allocate` returns zeroed
 * bytes aligned to 64, or NULL; `release` frees them. Any thread may call both. NULL and NULL: like
 * pool_new. */
int pool_new_in(struct pool **out, size_t n, void *(*allocate)(size_t bytes),
	void (*release)(void *memory)) PS_MUST_CHECK;
/* Frees the pool and sets *p to NULL; *p may be NULL. All messages must be closed before this call.
 */
void pool_free(struct pool **p);
/* Takes a buffer aligned to 64 bytes. A new buffer has zeros, a reused one its old values. NULL: no
 * memory. */
float *pool_acquire(struct pool *p);
/* Gives back to the pool a buffer that was not sent; sets *buffer to NULL. */
void pool_release(struct pool *p, float **buffer);
/* Makes `message` from the buffer without a copy and sets *buffer to NULL. PS_ENOMEM: the caller
 * keeps the buffer. */
int pool_send(struct pool *p, float **buffer, zmq_msg_t *message) PS_MUST_CHECK;

#endif
