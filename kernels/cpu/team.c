/*
 * team.c - one barrier serves three purposes: members wait in it for a job, synchronise during a
 * job, and wait in it for the end of the job.
 */
#include "kernels/cpu/team.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/subnormals.h"

#define SPINS 2000 /* number of iterations of a busy wait, which take about 50 us */

struct member {
	struct team *team;
	size_t number;
	pthread_t thread;
};

struct team {
	atomic_size_t n; /* number of members that must arrive at a barrier before it opens */
	size_t started;  /* number of members that exist, including member 0 */
	struct member *member;
	atomic_size_t arrived;
	atomic_uint phase; /* incremented whenever all members have arrived */
	pthread_mutex_t mutex;
	pthread_cond_t next_phase;
	/* written by member 0 before the barrier that starts a job, read by the others after it */
	team_job *job; /* the function to run; NULL tells the thread to exit */
	void *arg;
};

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

void team_barrier(struct team *t)
{
	unsigned phase = atomic_load(&t->phase);

	if (atomic_fetch_add(&t->arrived, 1) + 1 == atomic_load(&t->n)) {
		atomic_store(&t->arrived, 0);
		pthread_mutex_lock(&t->mutex);
		atomic_store(&t->phase, phase + 1);
		pthread_cond_broadcast(&t->next_phase);
		pthread_mutex_unlock(&t->mutex);
		return;
	}
	for (int i = 0; i < SPINS; i++) {
		if (atomic_load(&t->phase) != phase)
			return;
		relax();
	}
	pthread_mutex_lock(&t->mutex);
	while (atomic_load(&t->phase) == phase)
		pthread_cond_wait(&t->next_phase, &t->mutex);
	pthread_mutex_unlock(&t->mutex);
}

/* Runs the current job as member `number`. */
static void run(const struct team *t, size_t number)
{
	struct subnormals before = subnormals_are_0();

	t->job(t->arg, number);
	subnormals_restore(before);
}

static void *member_main(void *arg)
{
	struct member *m = arg;

	for (;;) {
		team_barrier(m->team);
		if (!m->team->job)
			return NULL;
		run(m->team, m->number);
		team_barrier(m->team);
	}
}

void team_run(struct team *t, team_job *job, void *arg)
{
	t->job = job;
	t->arg = arg;
	team_barrier(t);
	run(t, 0);
	team_barrier(t);
}

int team_new(struct team **out, size_t n, struct err *e)
{
	struct team *t = mem_try(1, sizeof(*t));
	struct member *member = mem_try(n, sizeof(*member));

	*out = NULL;
	if (!t || !member) {
		free(t);
		free(member);
		return err_set(e, PS_ENOMEM, "no memory for %zu threads", n);
	}
	atomic_init(&t->n, n);
	t->started = 1; /* counts member 0, which has no thread of its own */
	t->member = member;
	pthread_mutex_init(&t->mutex, NULL);
	pthread_cond_init(&t->next_phase, NULL);
	for (; t->started < n; t->started++) {
		struct member *m = &member[t->started];
		*m = (struct member){.team = t, .number = t->started};
		int failed = pthread_create(&m->thread, NULL, member_main, m);

		if (failed) {
			err_set(e, PS_EDEVICE, "thread %zu of %zu does not start: %s",
				t->started + 1, n, strerror(failed));
			team_free(&t);
			return PS_EDEVICE;
		}
	}
	*out = t;
	return PS_OK;
}

void team_free(struct team **team)
{
	struct team *t = *team;

	if (!t)
		return;
	t->job = NULL;
	/* `started` is smaller than n if team_new could not start all threads */
	atomic_store(&t->n, t->started);
	team_barrier(t);
	for (size_t i = 1; i < t->started; i++)
		pthread_join(t->member[i].thread, NULL);
	pthread_cond_destroy(&t->next_phase);
	pthread_mutex_destroy(&t->mutex);
	free(t->member);
	free(t);
	*team = NULL;
}
