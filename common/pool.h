/*
 * pool.h - buffers of floats that travel and come back: somebody fills one, it leaves inside a
 * ZeroMQ message, and when the last reference to that message is dropped, on whatever thread, it
 * waits here to be filled again.
 *
 * Invariant: a buffer has one owner: who took it, a message, or the pool.
 * Thread: pool_take, pool_give, pool_send by one thread; buffers come back from any.
 */
#ifndef COMMON_POOL_H
#define COMMON_POOL_H
#include <stddef.h>
#include <zmq.h>
#include "common/err.h"

struct pool; /* opaque, see pool.c */

/* Buffers of `n` floats. PS_ENOMEM. */
int pool_new(struct pool **out, size_t n) PS_MUST_CHECK;
/* Frees and nulls *p; every message must be closed. NULL is fine. */
void pool_free(struct pool **p);
/* A buffer aligned to 64 bytes, zero or as it was when it left; NULL: no memory. */
float *pool_take(struct pool *p);
/* Give back one that was not sent; nulls *buffer. */
void pool_give(struct pool *p, float **buffer);
/* Make `message` of the buffer, without a copy; nulls *buffer. PS_ENOMEM leaves it. */
int pool_send(struct pool *p, float **buffer, zmq_msg_t *message) PS_MUST_CHECK;

#endif
