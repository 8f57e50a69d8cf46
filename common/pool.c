/* pool.c - see pool.h. */
#include <pthread.h>
#include <stdlib.h>
#include "common/assert.h"
#include "common/mem.h"
#include "common/pool.h"

#define MAX_FREE 16 /* maximum number of free buffers that the pool keeps */
/* If the memory comes from the caller's allocator, the pool keeps at most this number of free
 * buffers. MAX_FREE_SPECIAL exceeds the number of all buffers of a worker, because the pool never
 * frees a buffer of this kind. */
#define MAX_FREE_SPECIAL 2048
/* The pool takes slabs of several buffers from the caller's allocator, because a call of this
 * allocator may take 1 ms (CUDA). */
#define SLAB_BYTES   ((size_t)4 << 20)
#define SLAB_BUFFERS 32

struct pool {
	size_t n; /* number of floats in a buffer */
	pthread_mutex_t mutex;
	/* the caller's allocator; if NULL, the pool uses ordinary memory and no slabs */
	void *(*allocate)(size_t bytes);
	void (*release)(void *memory);
	size_t per_slab, slabs; /* per_slab: number of buffers in a slab; slabs: number of slabs */
	void **slab;
	size_t n_free, max_free;
	/* the free buffers, with room for max_free of them; a stack, because the caches still hold
	 * the buffer that was returned last */
	float **buffer;
};

/* Returns the number of bytes from the start of a buffer in a slab to the start of the next one.
 * The distance between two buffers is a multiple of 64, so each buffer is aligned like the slab. */
static size_t pitch(const struct pool *p)
{
	return (p->n * sizeof(float) + 63) / 64 * 64;
}

static size_t slab_of(const struct pool *p)
{
	size_t n = SLAB_BYTES / pitch(p);

	return n < 1 ? 1 : n > SLAB_BUFFERS ? SLAB_BUFFERS : n;
}

int pool_new(struct pool **out, size_t n)
{
	return pool_new_in(out, n, NULL, NULL);
}

int pool_new_in(
	struct pool **out, size_t n, void *(*allocate)(size_t bytes), void (*release)(void *memory))
{
	struct pool *p = mem_try(1, sizeof(*p));

	*out = NULL;
	if (!p)
		return PS_ENOMEM;
	p->n = n;
	p->allocate = allocate;
	p->release = release;
	p->max_free = allocate ? MAX_FREE_SPECIAL : MAX_FREE;
	p->per_slab = slab_of(p);
	p->slab = mem_try(p->max_free, sizeof(void *));
	p->buffer = mem_try(p->max_free, sizeof(float *));
	if (!p->buffer || !p->slab || pthread_mutex_init(&p->mutex, NULL)) {
		free(p->slab);
		free(p->buffer);
		free(p);
		return PS_ENOMEM;
	}
	*out = p;
	return PS_OK;
}

void pool_free(struct pool **p)
{
	if (!*p)
		return;
	for (size_t i = 0; i < (*p)->n_free && !(*p)->allocate; i++)
		free((*p)->buffer[i]);
	for (size_t i = 0; i < (*p)->slabs; i++)
		(*p)->release((*p)->slab[i]);
	free((*p)->slab);
	free((*p)->buffer);
	pthread_mutex_destroy(&(*p)->mutex);
	free(*p);
	*p = NULL;
}

/* Allocates a slab, unless all slabs together would then have more buffers than max_free. The
 * caller holds the mutex. */
static void add_slab(struct pool *p)
{
	char *slab = NULL;

	if ((p->slabs + 1) * p->per_slab <= p->max_free)
		slab = p->allocate(p->per_slab * pitch(p));
	if (!slab)
		return;
	PS_ASSERT(p->n_free + p->per_slab <= p->max_free); /* invariant 2 */
	p->slab[p->slabs++] = slab;
	for (size_t i = p->per_slab; i-- > 0;)
		p->buffer[p->n_free++] = (float *)(void *)(slab + i * pitch(p));
}

float *pool_acquire(struct pool *p)
{
	float *buffer = NULL;

	pthread_mutex_lock(&p->mutex);
	if (p->allocate && p->n_free == 0)
		add_slab(p);
	if (p->n_free > 0)
		buffer = p->buffer[--p->n_free];
	pthread_mutex_unlock(&p->mutex);
	return buffer || p->allocate ? buffer : mem_try(p->n, sizeof(*buffer));
}

/* Returns 1 if `buffer` is one of the MAX_FREE buffers that came back last. */
static int came_back(const struct pool *p, const float *buffer)
{
	size_t first = p->n_free > MAX_FREE ? p->n_free - MAX_FREE : 0;

	for (size_t i = first; i < p->n_free; i++)
		if (p->buffer[i] == buffer)
			return 1;
	return 0;
}

/* Returns a buffer to its pool. pool_release calls this function, and libzmq calls it for a message
 * that it frees. */
static void return_buffer(void *buffer, void *pool)
{
	struct pool *p = pool;

	pthread_mutex_lock(&p->mutex);
	PS_ASSERT(!came_back(p, buffer)); /* invariant 1 */
	/* invariant 2: there is room, because a buffer of a slab cannot be freed alone */
	PS_ASSERT(!p->allocate || p->n_free < p->max_free);
	if (p->n_free < p->max_free) {
		p->buffer[p->n_free++] = buffer;
		buffer = NULL;
	}
	pthread_mutex_unlock(&p->mutex);
	free(buffer);
}

void pool_release(struct pool *p, float **buffer)
{
	if (*buffer)
		return_buffer(*buffer, p);
	*buffer = NULL;
}

int pool_send(struct pool *p, float **buffer, zmq_msg_t *message)
{
	if (zmq_msg_init_data(message, *buffer, p->n * sizeof(float), return_buffer, p))
		return PS_ENOMEM;
	*buffer = NULL;
	return PS_OK;
}
