/*
 * handoff.c - a ring of pointers under one mutex; takers wait on a condition.
 */
#include "common/handoff.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include "common/mem.h"

struct handoff {
	pthread_mutex_t mutex;
	pthread_cond_t filled; /* an item came, or closed */
	size_t capacity, first, count;
	int closed;
	void **item; /* ring: items first .. first + count, modulo capacity */
};

/* The condition waits on the monotonic clock, so that a clock jump cannot stretch a time-out. */
static int init_condition(pthread_cond_t *c)
{
	pthread_condattr_t a;
	if (pthread_condattr_init(&a))
		return PS_ENOMEM;
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	int rc = pthread_cond_init(c, &a) ? PS_ENOMEM : PS_OK;
	pthread_condattr_destroy(&a);
	return rc;
}

int handoff_new(struct handoff **out, size_t capacity)
{
	*out = NULL;
	if (capacity == 0)
		return PS_EUSAGE;
	struct handoff *q = mem_try(1, sizeof *q);
	if (!q)
		return PS_ENOMEM;
	q->capacity = capacity;
	q->item = mem_try(capacity, sizeof *q->item);
	if (!q->item)
		goto no_items;
	if (pthread_mutex_init(&q->mutex, NULL))
		goto no_mutex;
	if (init_condition(&q->filled))
		goto no_condition;
	*out = q;
	return PS_OK;
no_condition:
	pthread_mutex_destroy(&q->mutex);
no_mutex:
	free(q->item);
no_items:
	free(q);
	return PS_ENOMEM;
}

void handoff_free(struct handoff **q)
{
	if (!*q)
		return;
	pthread_cond_destroy(&(*q)->filled);
	pthread_mutex_destroy(&(*q)->mutex);
	free((*q)->item);
	free(*q);
	*q = NULL;
}

int handoff_put(struct handoff *q, void **item)
{
	int rc = PS_OK;
	pthread_mutex_lock(&q->mutex);
	if (q->closed) {
		rc = PS_ESHUTDOWN;
	} else if (q->count == q->capacity) {
		rc = PS_EAGAIN;
	} else {
		q->item[(q->first + q->count++) % q->capacity] = *item;
		*item = NULL;
		pthread_cond_signal(&q->filled);
	}
	pthread_mutex_unlock(&q->mutex);
	return rc;
}

static struct timespec deadline_after(uint64_t ms)
{
	const uint64_t year_ms =
		(uint64_t)366 * 24 * 3600 * 1000; /* "for ever", without overflow */
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	if (ms > year_ms)
		ms = year_ms;
	t.tv_sec += (time_t)(ms / 1000);
	t.tv_nsec += (long)(ms % 1000) * 1000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	return t;
}

/* Wait, with the mutex held, until there is an item, the queue is closed or the time is up. */
static void wait_filled(struct handoff *q, uint64_t timeout_ms)
{
	struct timespec deadline = deadline_after(timeout_ms);
	while (q->count == 0 && !q->closed)
		if (pthread_cond_timedwait(&q->filled, &q->mutex, &deadline) == ETIMEDOUT)
			return;
}

int handoff_take(struct handoff *q, void **item, uint64_t timeout_ms)
{
	int rc = PS_OK;
	pthread_mutex_lock(&q->mutex);
	if (timeout_ms)
		wait_filled(q, timeout_ms);
	if (q->count) {
		*item = q->item[q->first];
		q->first = (q->first + 1) % q->capacity;
		q->count--;
	} else {
		rc = q->closed ? PS_ESHUTDOWN : PS_EAGAIN;
	}
	pthread_mutex_unlock(&q->mutex);
	return rc;
}

void handoff_close(struct handoff *q)
{
	pthread_mutex_lock(&q->mutex);
	q->closed = 1;
	pthread_cond_broadcast(&q->filled);
	pthread_mutex_unlock(&q->mutex);
}
