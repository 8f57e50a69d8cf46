/* parallel.c - see parallel.h. */
#include "tests/support/parallel.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define MAX_THREADS 64

struct calls {
	void (*call)(void *context, size_t i);
	void *context;
	size_t n;
	atomic_size_t next;
};

static void *make_calls(void *arg)
{
	struct calls *c = arg;

	for (size_t i; (i = atomic_fetch_add(&c->next, 1)) < c->n;)
		c->call(c->context, i);
	return NULL;
}

static size_t cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : (size_t)CPU_COUNT(&set);
}

void parallel(size_t n, void (*call)(void *context, size_t i), void *context)
{
	struct calls c = {.call = call, .context = context, .n = n};
	const size_t wanted = cpus() < n ? cpus() : n;
	pthread_t thread[MAX_THREADS];
	size_t started = 0;

	/* this thread makes calls, too, so it does not matter if a thread cannot be started */
	while (started + 1 < wanted && started < MAX_THREADS &&
		pthread_create(&thread[started], NULL, make_calls, &c) == 0)
		started++;
	make_calls(&c);
	for (size_t i = 0; i < started; i++)
		pthread_join(thread[i], NULL);
}
