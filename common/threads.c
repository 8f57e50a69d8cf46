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

#define SPINS 200 /* iterations of a busy wait of about 5 us, the time for one block */
/* A thread that has run its own blocks runs blocks of a late thread after this number of spins. */
#define LATE_SPINS SPINS
/* A thread without a job waits for the next one for this time before it sleeps, because waking a
 * thread takes 10 us, and at times 200 us. The jobs of one push follow each other after shorter
 * pauses. */
#define AWAIT_NS 200000
/* The caller combines the results of all blocks, which takes about as long as 1/16 of the blocks.
 * So the caller gets fewer blocks than each of the other threads, by 1/CALLERS_PART of all
 * blocks. */
#define CALLERS_PART 16u

/* The states of a thread. The ticket of a thread is the number of a job times STATES, plus one of
 * these states. */
enum { OUTSIDE, OFFERED, INSIDE, STATES = 4 };

/* A thread and its blocks of the job. Member 0 is the caller. The struct has two cache lines: the
 * owner changes the second line for each block, and other threads seldom read it. */
struct member {
	_Alignas(64) _Atomic uint64_t ticket;
	atomic_int sleeps; /* 1 if the thread waits for `wake` */
	pthread_cond_t wake;
	struct threads *threads;
	pthread_t thread;
	/* the thread has blocks block_of(0) to block_of(n - 1); `next` is the first one that no
	 * thread has taken */
	_Alignas(64) atomic_size_t next;
	size_t n;
};

/* This struct has a line of the caches of its own, because a store to a line that another CPU reads
 * takes long. */
struct cell {
	_Alignas(64) _Atomic uint64_t done; /* number of the newest job whose block has run */
};

struct threads {
	struct engine engine;
	char name[16];
	size_t n;              /* number of threads, including the caller's */
	struct member *member; /* array of `n` members */
	size_t started;        /* number of threads that have been started */
	atomic_int awaits;     /* 1 after threads_stay_awake */
	atomic_int ends;       /* 1 if the threads must end */
	pthread_mutex_t mutex; /* a thread locks it to go to sleep or to wake another thread */

	/* the job under way, which a thread reads after it has joined */
	const struct engine_job *job;
	uint64_t number; /* number of the newest job, from 1 */
	size_t members;  /* number of members that may work on the job */
	size_t callers;  /* number of blocks of the caller */

	size_t waited;     /* number of blocks for which the caller has waited */
	int is_shared;     /* 1 if other threads may work on this job */
	struct cell *cell; /* `room` cells, at least one for each block of the job */
	size_t room;
};

/* ---- the blocks of a member ------------------------------------------------------------------ */

/* Returns how many of `n` blocks the caller gets. */
static size_t callers_blocks(size_t n, size_t members)
{
	size_t parts = CALLERS_PART + 1 > members ? CALLERS_PART + 1 - members : 0;

	return (n * parts + CALLERS_PART * members / 2) / (CALLERS_PART * members);
}

/* Of the blocks of member `i`, returns the number of block `at`, counted from 0. The blocks of all
 * members alternate, so that the results of the lowest blocks are there first. */
static size_t block_of(const struct threads *t, size_t i, size_t at)
{
	const size_t n = t->job->n, mine = t->callers, others = n - mine;

	if (i == 0)
		return at * n / mine;
	/* number of the block among the blocks of all members except the caller */
	size_t rank = i - 1 + at * (t->members - 1);
	return rank + ((rank + 1) * mine + others - 1) / others;
}

static size_t count_blocks(const struct threads *t, size_t i)
{
	const size_t others = t->job->n - t->callers;

	return i == 0 ? t->callers : (others + t->members - 1 - i) / (t->members - 1);
}

/* Takes a block of member `i` and runs it. Returns 0 if all blocks of this member are taken. */
static int run_next(struct threads *t, size_t i)
{
	struct member *m = &t->member[i];

	if (atomic_load_explicit(&m->next, memory_order_relaxed) >= m->n)
		return 0;
	size_t at = atomic_fetch_add_explicit(&m->next, 1, memory_order_relaxed);
	if (at >= m->n)
		return 0;
	size_t block = block_of(t, i, at);
	struct cell *cell = &t->cell[block];
	/* invariant 1 */
	PS_ASSERT(atomic_load_explicit(&cell->done, memory_order_relaxed) != t->number);
	t->job->run(t->job->arg, block);
	atomic_store_explicit(&cell->done, t->number, memory_order_release);
	return 1;
}

/* Runs a block of another member. If `any` is 0, takes only blocks of members that have not joined
 * the job. Returns 0 if there is no such block. */
static int run_another(struct threads *t, size_t self, int any)
{
	for (size_t k = 1; k < t->members; k++) {
		size_t i = (self + k) % t->members;
		uint64_t ticket = atomic_load_explicit(&t->member[i].ticket, memory_order_relaxed);

		if ((any || ticket % STATES == OFFERED) && run_next(t, i))
			return 1;
	}
	return 0;
}

static int has_blocks(const struct threads *t)
{
	for (size_t i = 0; i < t->members; i++) {
		const struct member *m = &t->member[i];

		if (atomic_load_explicit(&m->next, memory_order_relaxed) < m->n)
			return 1;
	}
	return 0;
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

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Joins the job that the caller offers to member `m`. Returns 0 if the caller offers none. */
static int join_job(struct member *m)
{
	uint64_t ticket = atomic_load_explicit(&m->ticket, memory_order_relaxed);

	return ticket % STATES == OFFERED &&
	       atomic_compare_exchange_strong(&m->ticket, &ticket, ticket - OFFERED + INSIDE);
}

/* Waits for a job for at most AWAIT_NS. Returns 1 if the thread has joined a job. */
static int await_job(struct threads *t, struct member *m)
{
	const uint64_t end = now_ns() + AWAIT_NS;

	for (unsigned i = 0; !atomic_load_explicit(&t->ends, memory_order_relaxed); i++) {
		if (join_job(m))
			return 1;
		spin_once(0);
		if (i % 32 == 31 && now_ns() >= end)
			break;
	}
	return 0;
}

/* Sleeps until there is a job, or until the threads must end. Returns 1 if the thread has joined
 * a job. */
static int sleep_for_job(struct threads *t, struct member *m)
{
	int joined = 0;

	pthread_mutex_lock(&t->mutex);
	atomic_store(&m->sleeps, 1);
	while (!atomic_load(&t->ends) && !(joined = join_job(m)))
		pthread_cond_wait(&m->wake, &t->mutex);
	atomic_store(&m->sleeps, 0);
	pthread_mutex_unlock(&t->mutex);
	return joined;
}

/* Runs the blocks of member `self`, and then those that another member is late to run. */
static void work_on_job(struct threads *t, size_t self)
{
	unsigned spins = 0;

	while (run_next(t, self))
		;
	while (has_blocks(t)) {
		if (run_another(t, self, spins >= LATE_SPINS))
			continue;
		for (unsigned i = 0; i < 32; i++, spins++)
			spin_once(0);
	}
}

static void *thread_main(void *arg)
{
	struct member *m = arg;
	struct threads *t = m->threads;
	int has_worked = 0;

	PS_ASSERT(blocks_signals()); /* invariant 3 */
	(void)prctl(PR_SET_NAME, t->name);
	for (;;) {
		int awaits = has_worked && atomic_load_explicit(&t->awaits, memory_order_relaxed);

		if (!(awaits && await_job(t, m)) && !sleep_for_job(t, m))
			return NULL;
		work_on_job(t, (size_t)(m - t->member));
		atomic_fetch_sub_explicit(&m->ticket, INSIDE - OUTSIDE, memory_order_release);
		has_worked = 1;
	}
}

/* Makes room for `n` cells, one for each block of a job. This is safe between two jobs, when no
 * thread uses the cells. Returns 0 if there is no memory. */
static int has_room(struct threads *t, size_t n)
{
	if (n <= t->room)
		return 1;
	free(t->cell);
	t->cell = mem_try(n, sizeof(*t->cell));
	t->room = t->cell ? n : 0;
	return t->cell != NULL;
}

/* Offers the job to member `i`. */
static void offer_job(struct threads *t, size_t i)
{
	struct member *m = &t->member[i];

	/* invariant 2 */
	PS_ASSERT(atomic_load_explicit(&m->ticket, memory_order_relaxed) % STATES == OUTSIDE);
	atomic_store(&m->ticket, t->number * STATES + OFFERED);
}

static void wake_member(struct threads *t, struct member *m)
{
	if (!atomic_load(&m->sleeps))
		return;
	pthread_mutex_lock(&t->mutex);
	pthread_cond_signal(&m->wake);
	pthread_mutex_unlock(&t->mutex);
}

static void begin_blocks(void *self, const struct engine_job *job)
{
	struct threads *t = self;
	size_t members = job->n / (atomic_load(&t->awaits) ? THREADS_AWAKE_GRAIN : THREADS_GRAIN);

	PS_ASSERT(t->waited == 0);
	t->is_shared = members >= 2 && has_room(t, job->n);
	if (!t->is_shared)
		return;
	t->job = job;
	t->number++;
	t->members = members < t->n ? members : t->n;
	t->callers = callers_blocks(job->n, t->members);
	for (size_t i = 0; i < t->members; i++) {
		atomic_store_explicit(&t->member[i].next, 0, memory_order_relaxed);
		t->member[i].n = count_blocks(t, i);
	}
	for (size_t i = 1; i < t->members; i++)
		offer_job(t, i);
	for (size_t i = 1; i < t->members; i++)
		wake_member(t, &t->member[i]);
}

/* Waits until no thread uses the job. A thread that has not joined the job yet can no longer join
 * it. */
static void end_blocks(struct threads *t)
{
	for (size_t i = 1; i < t->members; i++) {
		struct member *m = &t->member[i];
		uint64_t offered = t->number * STATES + OFFERED;
		unsigned spins = 0;

		if (atomic_compare_exchange_strong(&m->ticket, &offered, t->number * STATES))
			continue;
		while (atomic_load_explicit(&m->ticket, memory_order_acquire) % STATES == INSIDE)
			spin_once(spins++);
	}
	t->job = NULL;
}

static void wait_shared(struct threads *t, size_t block)
{
	const struct cell *cell = &t->cell[block];
	unsigned spins = 0;

	while (atomic_load_explicit(&cell->done, memory_order_acquire) != t->number) {
		if (run_next(t, 0))
			continue;
		if (spins % 32 == 0 && run_another(t, 0, spins >= LATE_SPINS))
			continue;
		spin_once(spins++);
	}
	if (block + 1 == t->job->n)
		end_blocks(t);
}

static void wait_for_block(void *self, const struct engine_job *job, size_t block)
{
	struct threads *t = self;

	PS_ASSERT(block == t->waited && block < job->n); /* invariant 1 */
	t->waited = block + 1 < job->n ? block + 1 : 0;
	if (t->is_shared)
		wait_shared(t, block);
	else
		job->run(job->arg, block);
}

static int start_threads(struct threads *t, struct err *e)
{
	sigset_t all, before;
	int failed = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (!failed && t->started < t->n - 1) {
		struct member *m = &t->member[t->started + 1];

		failed = pthread_create(&m->thread, NULL, thread_main, m);
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
		t->member = mem_try(n, sizeof(*t->member));
	if (!t || !t->member) {
		free(t);
		return err_set(e, PS_ENOMEM, "no memory for %zu threads", n);
	}
	t->engine = (struct engine){
		.begin = begin_blocks, .wait = wait_for_block, .self = t, .block = ENGINE_BLOCK};
	snprintf(t->name, sizeof(t->name), "%s", name);
	t->n = n;
	pthread_mutex_init(&t->mutex, NULL);
	for (size_t i = 0; i < n; i++) {
		t->member[i].threads = t;
		pthread_cond_init(&t->member[i].wake, NULL);
	}
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
	PS_ASSERT(!t->job); /* invariant 2 */
	pthread_mutex_lock(&t->mutex);
	atomic_store(&t->ends, 1);
	for (size_t i = 1; i <= t->started; i++)
		pthread_cond_signal(&t->member[i].wake);
	pthread_mutex_unlock(&t->mutex);
	for (size_t i = 1; i <= t->started; i++)
		pthread_join(t->member[i].thread, NULL);
	for (size_t i = 0; i < t->n; i++)
		pthread_cond_destroy(&t->member[i].wake);
	pthread_mutex_destroy(&t->mutex);
	free(t->cell);
	free(t->member);
	free(t);
	*out = NULL;
}

void threads_stay_awake(struct threads *t)
{
	atomic_store(&t->awaits, 1);
}

const struct engine *threads_engine(const struct threads *t)
{
	return t->n > 1 ? &t->engine : NULL;
}
