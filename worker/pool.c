/* pool.c - see pool.h. */
#include <stdlib.h>
#include "common/handoff.h"
#include "common/mem.h"
#include "worker/pool.h"

#define KEPT 16 /* buffers that wait; more are freed */

struct pool {
	size_t n; /* floats */
	struct handoff *waiting;
};

int pool_new(struct pool **out, size_t n)
{
	struct pool *p = mem_try(1, sizeof *p);

	*out = NULL;
	if (!p)
		return PS_ENOMEM;
	p->n = n;
	if (handoff_new(&p->waiting, KEPT)) {
		free(p);
		return PS_ENOMEM;
	}
	*out = p;
	return PS_OK;
}

void pool_free(struct pool **p)
{
	void *buffer;

	if (!*p)
		return;
	while (!handoff_take((*p)->waiting, &buffer, 0))
		free(buffer);
	handoff_free(&(*p)->waiting);
	free(*p);
	*p = NULL;
}

float *pool_take(struct pool *p)
{
	void *buffer;

	return handoff_take(p->waiting, &buffer, 0) ? mem_try(p->n, sizeof(float)) : buffer;
}

/* libzmq's free function, too. */
static void come_back(void *buffer, void *pool)
{
	struct pool *p = pool;

	if (handoff_put(p->waiting, &buffer))
		free(buffer);
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
