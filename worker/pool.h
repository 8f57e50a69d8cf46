/*
 * pool.h - gradient buffers that travel and come back: the program fills one, it leaves inside a
 * ZeroMQ message, and when the last reference to that message is dropped, on whatever thread, it
 * waits here for the next gradient.
 *
 * Invariant: a buffer has one owner: the program, a message, or the pool.
 * Thread: pool_take, pool_give, pool_send by one thread; buffers come back from any.
 */
#ifndef WORKER_POOL_H
#define WORKER_POOL_H
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
