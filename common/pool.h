/*
 * pool.h - buffers of floats for ZeroMQ messages. A caller takes a buffer, fills it and sends it
 * without a copy. When libzmq drops the last reference to the message, on any thread, the buffer
 * returns to the pool.
 *
 * Invariants:
 * (1) a buffer has exactly one owner, which is the caller that took it, a message, or the pool
 *     (asserted by return_buffer for the buffers that came back last;
 *     a_buffer_comes_back_when_its_message_is_closed);
 * (2) a pool with the caller's allocator has room for all of its buffers (asserted by add_slab and
 *     return_buffer; special_memory_is_taken_once_and_given_back).
 *
 * Any thread may call these functions.
 */
#ifndef COMMON_POOL_H
#define COMMON_POOL_H
#include <stddef.h>
#include <zmq.h>
#include "common/err.h"

struct pool; /* opaque, see pool.c */

/* Makes a pool of buffers of `n` floats. Error: PS_ENOMEM. */
int pool_new(struct pool **out, size_t n) PS_MUST_CHECK;
/* Makes a pool like pool_new, but with the caller's allocator, for example for pinned memory of a
 * GPU. Such memory is expensive to allocate, so the pool keeps it until pool_free. `allocate` must
 * return zeroed memory aligned to 64 bytes, or NULL, and `release` must free it. The pool calls
 * both functions from any thread. If both are NULL, pool_new_in does the same as pool_new. */
int pool_new_in(struct pool **out, size_t n, void *(*allocate)(size_t bytes),
	void (*release)(void *memory)) PS_MUST_CHECK;
/* Frees the pool and sets *p to NULL; *p may be NULL. The caller must first close all messages that
 * pool_send has made. */
void pool_free(struct pool **p);
/* Takes a buffer aligned to 64 bytes. A new buffer contains zeros, and a reused buffer contains its
 * old values. Returns NULL if there is no memory. */
float *pool_acquire(struct pool *p);
/* Puts a buffer that the caller has not sent back into the pool, and sets *buffer to NULL. */
void pool_release(struct pool *p, float **buffer);
/* Makes `message` from the buffer without a copy and sets *buffer to NULL. After PS_ENOMEM, the
 * caller still owns the buffer. */
int pool_send(struct pool *p, float **buffer, zmq_msg_t *message) PS_MUST_CHECK;

#endif
