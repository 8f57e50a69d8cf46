/* pool.c - see pool.h. */
#include <pthread.h>
#include <stdlib.h>
#include "common/mem.h"
#include "common/pool.h"

#define KEPT      16   /* buffers that wait; more are freed */
#define KEPT_DEAR 2048 /* of special memory, which is not: more than a worker can have out */
/* Special memory is taken in slabs of several buffers: a call may take a millisecond (CUDA). */
#define SLAB_BYTES   ((size_t)4 << 20)
#define SLAB_BUFFERS 32

struct pool {
	size_t n; /* floats */
	pthread_mutex_t mutex;
	void *(*take)(size_t bytes); /* NULL: ordinary memory, and no slabs */
	void (*give)(void *memory);
	size_t per_slab, slabs; /* buffers in one; how many there are */
	void **slab;
	size_t waiting, most;
	float **buffer; /* most; the one that came last is taken first: the caches still have it */
};

/* Bytes from buffer to buffer of a slab: each is aligned as the slab is. */
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
	struct pool **out, size_t n, void *(*take)(size_t bytes), void (*give)(void *memory))
{
	struct pool *p = mem_try(1, sizeof *p);

	*out = NULL;
	if (!p)
		return PS_ENOMEM;
	p->n = n;
	p->take = take;
	p->give = give;
	p->most = take ? KEPT_DEAR : KEPT;
	p->per_slab = slab_of(p);
	p->slab = mem_try(p->most, sizeof(void *));
	p->buffer = mem_try(p->most, sizeof(float *));
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
	for (size_t i = 0; i < (*p)->waiting && !(*p)->take; i++)
		free((*p)->buffer[i]);
	for (size_t i = 0; i < (*p)->slabs; i++)
		(*p)->give((*p)->slab[i]);
	free((*p)->slab);
	free((*p)->buffer);
	pthread_mutex_destroy(&(*p)->mutex);
	free(*p);
	*p = NULL;
}

/* Another slab's buffers wait, if there is one. The mutex is held. */
static void add_slab(struct pool *p)
{
	char *slab = NULL;

	if ((p->slabs + 1) * p->per_slab <= p->most)
		slab = p->take(p->per_slab * pitch(p));
	if (!slab)
		return;
	p->slab[p->slabs++] = slab;
	for (size_t i = p->per_slab; i-- > 0;)
		p->buffer[p->waiting++] = (float *)(void *)(slab + i * pitch(p));
}

float *pool_take(struct pool *p)
{
	float *buffer = NULL;

	pthread_mutex_lock(&p->mutex);
	if (p->take && p->waiting == 0)
		add_slab(p);
	if (p->waiting > 0)
		buffer = p->buffer[--p->waiting];
	pthread_mutex_unlock(&p->mutex);
	return buffer || p->take ? buffer : mem_try(p->n, sizeof *buffer);
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
	free(buffer); /* ordinary memory: of a slab there is always room */
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
