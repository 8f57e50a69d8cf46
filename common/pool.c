/* pool.c - see pool.h. */
#include <pthread.h>
#include <stdlib.h>
#include "common/mem.h"
#include "common/pool.h"

#define KEPT      16   /* buffers that wait; more are freed ... */
#define KEPT_DEAR 2048 /* ... of special memory only beyond what a worker can have out */

struct pool {
	size_t n; /* floats */
	pthread_mutex_t mutex;
	void *(*take)(size_t bytes);
	void (*give)(void *memory);
	size_t waiting, most;
	float **buffer; /* most; the one that came last is taken first: the caches still have it */
};

static void *ordinary(size_t bytes)
{
	return mem_try(bytes, 1);
}

int pool_new(struct pool **out, size_t n)
{
	return pool_new_in(out, n, NULL, NULL);
}

int pool_new_in(
	struct pool **out, size_t n, void *(*take)(size_t bytes), void (*give)(void *memory))
{
	struct pool *p = mem_try(1, sizeof *p);

	*out = NULL;
	if (!p)
		return PS_ENOMEM;
	p->n = n;
	p->take = take ? take : ordinary;
	p->give = take ? give : free;
	p->most = take ? KEPT_DEAR : KEPT;
	p->buffer = mem_try(p->most, sizeof(float *));
	if (!p->buffer || pthread_mutex_init(&p->mutex, NULL)) {
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
	for (size_t i = 0; i < (*p)->waiting; i++)
		(*p)->give((*p)->buffer[i]);
	free((*p)->buffer);
	pthread_mutex_destroy(&(*p)->mutex);
	free(*p);
	*p = NULL;
}

float *pool_take(struct pool *p)
{
	float *buffer = NULL;

	pthread_mutex_lock(&p->mutex);
	if (p->waiting > 0)
		buffer = p->buffer[--p->waiting];
	pthread_mutex_unlock(&p->mutex);
	return buffer ? buffer : p->take(p->n * sizeof(float));
}

/* libzmq's free function, too. */
static void come_back(void *buffer, void *pool)
{
	struct pool *p = pool;

	pthread_mutex_lock(&p->mutex);
	if (p->waiting < p->most) {
		p->buffer[p->waiting++] = buffer;
		buffer = NULL;
	}
	pthread_mutex_unlock(&p->mutex);
	if (buffer)
		p->give(buffer);
}

void pool_give(struct pool *p, float **buffer)
{
	if (*buffer)
		come_back(*buffer, p);
	*buffer = NULL;
}

int pool_send(struct pool *p, float **buffer, zmq_msg_t *message)
{
	if (zmq_msg_init_data(message, *buffer, p->n * sizeof(float), come_back, p))
		return PS_ENOMEM;
	*buffer = NULL;
	return PS_OK;
}
