/* threads.c - see threads.h. */
#include "common/threads.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include "common/assert.h"
#include "common/mem.h"

#define SPINS 200 /* spinning this often takes about 5 us, as long as one block */
/* A thread without a job waits for the next one for this time before it sleeps, because it takes 10
 * and at times 200 us to wake a thread. The jobs of one push follow each other faster. */
#define AWAIT_NS 200000

struct threads {
	struct engine engine;
	char name[16];
	size_t n;          /* number of threads, including the caller's */
	pthread_t *thread; /* the started threads, n - 1 at most */
	size_t started;

	int awaits; /* 1 after threads_stay_awake */
	/* changes when a job begins and when the threads must end */
	atomic_uint news;

	/* the job under way, which a thread reads when it joins */
	pthread_mutex_t mutex;
	pthread_cond_t wake, left;
	/* the job; NULL if there is none, or if no thread may join it */
	const struct engine_job *job;
	uint64_t number; /* number of the newest job, from 1 */
	size_t wanted;   /* number of threads that may still join the job */
	/* number of threads that have joined the job and not left it; changes under the mutex */
	atomic_size_t inside;
	int ends; /* 1 if the threads must end */

	size_t waited;      /* blocks for which the caller has waited */
	int is_shared;      /* 1 if other threads may work on this job */
	atomic_size_t next; /* the lowest block that no thread has taken */
	/* done[i], i < room: the number of the newest job whose block i has run */
	_Atomic uint64_t *done;
	size_t room;
};

/* Takes a block and runs it. Returns 0 if all blocks are taken. */
static int run_next(struct threads *t, const struct engine_job *job, uint64_t number)
{
	size_t block = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);

	if (block >= job->n)
		return 0;
	/* invariant 1 */
	PS_ASSERT(atomic_load_explicit(&t->done[block], memory_order_relaxed) != number);
	job->run(job->arg, block);
	atomic_store_explicit(&t->done[block], number, memory_order_release);
	return 1;
}

/* Returns 1 if the calling thread blocks the signals that end the process. */
static int blocks_signals(void)
{
	sigset_t blocked;

	return pthread_sigmask(SIG_BLOCK, NULL, &blocked) == 0 &&
	       sigismember(&blocked, SIGTERM) == 1 && sigismember(&blocked, SIGINT) == 1;
}

static void spin_once(unsigned spins)
{
	if (spins >= SPINS)
		(void)sched_yield();
#if defined(__x86_64__)
	else
		__builtin_ia32_pause();
#endif
}

/* Locks the mutex. A thread holds it only for a moment, so the function does not sleep at once. */
static void lock_soon(struct threads *t)
{
	for (unsigned spins = 0; spins < SPINS; spins++) {
		if (pthread_mutex_trylock(&t->mutex) == 0)
			return;
		spin_once(spins);
	}
	pthread_mutex_lock(&t->mutex);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Waits until t->news is no longer `seen`, for at most AWAIT_NS. */
static void await_news(struct threads *t, unsigned seen)
{
	const uint64_t end = now_ns() + AWAIT_NS;

	for (unsigned i = 0; atomic_load_explicit(&t->news, memory_order_relaxed) == seen; i++) {
		spin_once(0);
		if (i % 32 == 31 && now_ns() >= end)
			return;
	}
}

/* Waits until there is a job to join, or until the threads must end. The caller has the mutex. */
static void await_job(struct threads *t, int has_worked)
{
	unsigned seen = atomic_load(&t->news);

	if (t->awaits && has_worked && !t->ends && !(t->job && t->wanted > 0)) {
		pthread_mutex_unlock(&t->mutex);
		await_news(t, seen);
		lock_soon(t);
	}
	while (!t->ends && !(t->job && t->wanted > 0))
		pthread_cond_wait(&t->wake, &t->mutex);
}

static void *thread_main(void *arg)
{
	struct threads *t = arg;
	int has_worked = 0;

	PS_ASSERT(blocks_signals()); /* invariant 3 */
	(void)prctl(PR_SET_NAME, t->name);
	lock_soon(t);
	for (;;) {
		await_job(t, has_worked);
		if (t->ends)
			break;
		const struct engine_job *job = t->job;
		uint64_t number = t->number;

		t->wanted--;
		atomic_fetch_add(&t->inside, 1);
		pthread_mutex_unlock(&t->mutex);
		while (run_next(t, job, number))
			;
		has_worked = 1;
		lock_soon(t);
		if (atomic_fetch_sub(&t->inside, 1) == 1)
			pthread_cond_signal(&t->left);
	}
	pthread_mutex_unlock(&t->mutex);
	return NULL;
}

/* Returns 1 if t->done has room for `n` blocks. No thread uses it between two jobs. */
static int has_room(struct threads *t, size_t n)
{
	if (n <= t->room)
		return 1;
	free((void *)t->done);
	t->done = mem_try(n, sizeof(*t->done));
	t->room = t->done ? n : 0;
	return t->done != NULL;
}

static void begin_blocks(void *self, const struct engine_job *job)
{
	struct threads *t = self;
	size_t helpers = job->n / (t->awaits ? THREADS_AWAKE_GRAIN : THREADS_GRAIN);

	PS_ASSERT(t->waited == 0);
	t->is_shared = helpers >= 2 && has_room(t, job->n);
	if (!t->is_shared)
		return;
	helpers = helpers < t->n ? helpers - 1 : t->n - 1;
	atomic_store_explicit(&t->next, 0, memory_order_relaxed);
	lock_soon(t);
	PS_ASSERT(!t->job && atomic_load(&t->inside) == 0); /* invariant 2 */
	t->job = job;
	t->number++;
	t->wanted = helpers;
	atomic_fetch_add(&t->news, 1);
	pthread_mutex_unlock(&t->mutex);
	for (; helpers > 0; helpers--)
		pthread_cond_signal(&t->wake);
}

/* Waits until no thread uses the job. A thread that has not joined yet does not join any more. */
static void end_blocks(struct threads *t)
{
	lock_soon(t);
	t->job = NULL;
	t->wanted = 0;
	pthread_mutex_unlock(&t->mutex);
	for (unsigned spins = 0; spins < 2 * SPINS && atomic_load(&t->inside) > 0; spins++)
		spin_once(spins);
	lock_soon(t);
	while (atomic_load(&t->inside) > 0)
		pthread_cond_wait(&t->left, &t->mutex);
	pthread_mutex_unlock(&t->mutex);
}

static void wait_shared(struct threads *t, const struct engine_job *job, size_t block)
{
	unsigned spins = 0;

	while (atomic_load_explicit(&t->done[block], memory_order_acquire) != t->number)
		if (!run_next(t, job, t->number))
			spin_once(spins++);
	if (block + 1 == job->n)
		end_blocks(t);
}

static void wait_for_block(void *self, const struct engine_job *job, size_t block)
{
	struct threads *t = self;

	PS_ASSERT(block == t->waited && block < job->n); /* invariant 1 */
	if (t->is_shared)
		wait_shared(t, job, block);
	else
		job->run(job->arg, block);
	t->waited = block + 1 < job->n ? block + 1 : 0;
}

static int start_threads(struct threads *t, struct err *e)
{
	sigset_t all, before;
	int failed = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (!failed && t->started < t->n - 1) {
		failed = pthread_create(&t->thread[t->started], NULL, thread_main, t);
		t->started += !failed;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return failed ? err_set(e, PS_EIO, "thread %zu of %zu does not start: %s", t->started + 2,
				t->n, strerror(failed))
		      : PS_OK;
}

int threads_new(struct threads **out, size_t n, const char *name, struct err *e)
{
	struct threads *t = mem_try(1, sizeof(*t));

	*out = NULL;
	PS_ASSERT(n >= 1 && n <= MAX_THREADS);
	if (t)
		t->thread = mem_try(n, sizeof(*t->thread));
	if (!t || !t->thread) {
		free(t);
		return err_set(e, PS_ENOMEM, "no memory for %zu threads", n);
	}
	t->engine = (struct engine){
		.begin = begin_blocks, .wait = wait_for_block, .self = t, .block = ENGINE_BLOCK};
	snprintf(t->name, sizeof(t->name), "%s", name);
	t->n = n;
	pthread_mutex_init(&t->mutex, NULL);
	pthread_cond_init(&t->wake, NULL);
	pthread_cond_init(&t->left, NULL);
	*out = t;
	int rc = start_threads(t, e);
	if (rc)
		threads_free(out);
	return rc;
}

void threads_free(struct threads **out)
{
	struct threads *t = *out;

	if (!t)
		return;
	pthread_mutex_lock(&t->mutex);
	PS_ASSERT(!t->job); /* invariant 2 */
	t->ends = 1;
	atomic_fetch_add(&t->news, 1);
	pthread_cond_broadcast(&t->wake);
	pthread_mutex_unlock(&t->mutex);
	for (size_t i = 0; i < t->started; i++)
		pthread_join(t->thread[i], NULL);
	pthread_cond_destroy(&t->wake);
	pthread_cond_destroy(&t->left);
	pthread_mutex_destroy(&t->mutex);
	free((void *)t->done);
	free(t->thread);
	free(t);
	*out = NULL;
}

void threads_stay_awake(struct threads *t)
{
	lock_soon(t);
	t->awaits = 1;
	pthread_mutex_unlock(&t->mutex);
}

const struct engine *threads_engine(const struct threads *t)
{
	return t->n > 1 ? &t->engine : NULL;
}
