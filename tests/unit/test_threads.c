/*
 * test_threads.c - the engine with threads (common/threads.h): each block runs once, no thread uses
 * a job after its end, and checksums do not depend on the number of threads.
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/threads.h"
#include "proto/wire.h"
#include "tests/support/sanitizer.h"
#include "tests/support/test.h"

#define MAX_BLOCKS 200u

static int stays_awake; /* 1: start_test_threads calls threads_stay_awake */

static struct threads *start_test_threads(size_t n)
{
	struct threads *t;
	struct err e;

	assert_int_equal(threads_new(&t, n, "a thread", &e), PS_OK);
	if (stays_awake)
		threads_stay_awake(t);
	return t;
}

static int stay_awake(void **state)
{
	(void)state;
	stays_awake = 1;
	return 0;
}

static int sleep_at_once(void **state)
{
	(void)state;
	stays_awake = 0;
	return 0;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

struct counts {
	atomic_uint ran[MAX_BLOCKS];
	pthread_t main;
	atomic_int others; /* number of blocks that threads other than `main` ran */
};

/* Counts a block. Threads other than the caller take longer, so that the caller waits for them. */
static void run_counted_block(void *arg, size_t block)
{
	struct counts *w = arg;

	for (volatile int i = 0; i < 3000 && !pthread_equal(pthread_self(), w->main);)
		i = i + 1;
	atomic_fetch_add(&w->ran[block], 1);
	if (!pthread_equal(pthread_self(), w->main))
		atomic_fetch_add(&w->others, 1);
}

TEST(each_block_runs_once)
{
	for (size_t n = 2; n <= 7; n++) {
		struct threads *t = start_test_threads(n);
		const struct engine *e = threads_engine(t);
		struct counts w = {.main = pthread_self()};

		assert_int_equal(e->block, ENGINE_BLOCK);
		for (unsigned round = 1; round <= 300; round++) {
			struct engine_job job = {
				run_counted_block, &w, (round * 37) % MAX_BLOCKS + 1};

			memset(w.ran, 0, sizeof(w.ran));
			engine_begin(e, &job);
			for (size_t i = 0; i < job.n; i++) {
				engine_wait(e, &job, i);
				assert_int_equal(atomic_load(&w.ran[i]), 1);
			}
			for (size_t i = 0; i < MAX_BLOCKS; i++)
				assert_int_equal(atomic_load(&w.ran[i]), i < job.n);
		}
		threads_free(&t);
		assert_null(t);
	}
}
TEST_AGAIN(each_block_runs_once, stay_awake, sleep_at_once)

TEST(short_jobs_run_on_the_callers_thread)
{
	struct threads *t = start_test_threads(4);
	struct counts w = {.main = pthread_self()};
	struct engine_job job = {run_counted_block, &w, 2 * THREADS_GRAIN - 1};

	for (int i = 0; i < 1000; i++)
		engine_run(threads_engine(t), &job);
	assert_int_equal(atomic_load(&w.others), 0);
	threads_free(&t);
}

TEST(long_jobs_use_other_threads)
{
	struct threads *t = start_test_threads(4);
	struct counts w = {.main = pthread_self()};
	struct engine_job job = {run_counted_block, &w, MAX_BLOCKS};

	for (int i = 0; i < 100000 && atomic_load(&w.others) == 0; i++)
		engine_run(threads_engine(t), &job);
	assert_true(atomic_load(&w.others) > 0);
	threads_free(&t);
}
TEST_AGAIN(long_jobs_use_other_threads, stay_awake, sleep_at_once)

/* This test is for ThreadSanitizer and AddressSanitizer: they report a thread that uses the job or
 * the array after the job has ended. */
TEST(no_thread_uses_a_job_after_its_end)
{
	struct threads *t = start_test_threads(7);

	for (int i = 0; i < 2000; i++) {
		struct counts *w = calloc(1, sizeof(*w));
		struct engine_job *job = malloc(sizeof(*job));

		assert_true(w && job);
		w->main = pthread_self();
		*job = (struct engine_job){run_counted_block, w, MAX_BLOCKS};
		engine_run(threads_engine(t), job);
		memset(job, 0, sizeof(*job));
		free(job);
		free(w);
	}
	threads_free(&t);
}
TEST_AGAIN(no_thread_uses_a_job_after_its_end, stay_awake, sleep_at_once)

/* ---- which thread runs which blocks ---------------------------------------------------------- */

struct owners {
	size_t n;
	pthread_t thread[MAX_BLOCKS];
	pthread_t main;
	atomic_uint ran; /* number of blocks that have run */
	atomic_int others,
		/* others: number of blocks that other threads ran; late: 1: such a block waits
		 * until all other blocks have run */
		late;
};

static void note_owner(void *arg, size_t block)
{
	struct owners *o = arg;

	o->thread[block] = pthread_self();
	for (volatile int i = 0; i < 3000; i++)
		;
}

static int is_same(const struct owners *a, const struct owners *b)
{
	int others = 0;

	for (size_t i = 0; i < a->n; i++) {
		if (!pthread_equal(a->thread[i], b->thread[i]))
			return 0;
		others += !pthread_equal(a->thread[i], a->main);
	}
	return others > 0;
}

/* A busy machine can delay a thread, and others then run its blocks. Therefore the test requires
 * only that some of the jobs give each thread the same blocks. */
TEST(jobs_of_one_length_give_a_thread_the_same_blocks)
{
	struct threads *t = start_test_threads(2);
	struct owners o[2] = {{.n = 53, .main = pthread_self()}, {.n = 53, .main = pthread_self()}};
	int found = 0;

	for (unsigned round = 0; round < 20000 && !found; round++) {
		struct engine_job job = {note_owner, &o[round % 2], 53};

		engine_run(threads_engine(t), &job);
		found = round > 0 && is_same(&o[0], &o[1]);
	}
	assert_true(found);
	threads_free(&t);
}
TEST_AGAIN(jobs_of_one_length_give_a_thread_the_same_blocks, stay_awake, sleep_at_once)

static void run_late_block(void *arg, size_t block)
{
	struct owners *o = arg;

	(void)block;
	if (!pthread_equal(pthread_self(), o->main) && atomic_fetch_add(&o->others, 1) == 0) {
		atomic_store(&o->late, 1);
		while (atomic_load(&o->ran) + 1 < o->n)
			sched_yield();
	}
	atomic_fetch_add(&o->ran, 1);
}

TEST(others_run_the_blocks_of_a_late_thread)
{
	for (size_t n = 2; n <= 5; n++) {
		struct threads *t = start_test_threads(n);
		int late = 0;

		for (unsigned round = 0; round < 1000 && late < 3; round++) {
			struct owners o = {.n = 20 + 32 * (round % 3), .main = pthread_self()};
			struct engine_job job = {run_late_block, &o, o.n};

			engine_run(threads_engine(t), &job);
			assert_int_equal(atomic_load(&o.ran), o.n);
			late += atomic_load(&o.late);
		}
		threads_free(&t);
	}
}
TEST_AGAIN(others_run_the_blocks_of_a_late_thread, stay_awake, sleep_at_once)

/* ---- threads --------------------------------------------------------------------------------- */

struct seen {
	pthread_t main;
	atomic_int others, blocked, named;
};

static void look_at_thread(void *arg, size_t block)
{
	struct seen *s = arg;
	char name[16] = "";
	sigset_t set;

	(void)block;
	if (pthread_equal(pthread_self(), s->main))
		return;
	pthread_sigmask(SIG_BLOCK, NULL, &set);
	prctl(PR_GET_NAME, name);
	atomic_fetch_add(&s->others, 1);
	atomic_fetch_add(&s->blocked, sigismember(&set, SIGTERM) && sigismember(&set, SIGHUP));
	atomic_fetch_add(&s->named, strcmp(name, "a thread") == 0);
}

TEST(the_threads_have_a_name_and_no_signals)
{
	struct threads *t = start_test_threads(3);
	struct seen s = {.main = pthread_self()};
	struct engine_job job = {look_at_thread, &s, MAX_BLOCKS};
	sigset_t set;

	for (int i = 0; i < 100000 && atomic_load(&s.others) == 0; i++)
		engine_run(threads_engine(t), &job);
	assert_true(atomic_load(&s.others) > 0);
	assert_int_equal(atomic_load(&s.blocked), atomic_load(&s.others));
	assert_int_equal(atomic_load(&s.named), atomic_load(&s.others));
	pthread_sigmask(SIG_BLOCK, NULL, &set);
	/* the signal mask of the caller has not changed */
	assert_int_equal(sigismember(&set, SIGTERM), 0);
	threads_free(&t);
}

TEST(one_thread_is_no_engine)
{
	struct threads *t = start_test_threads(1);

	assert_null(threads_engine(t));
	threads_free(&t);
	threads_free(&t);
}

TEST(threads_that_the_system_cannot_start_are_undone)
{
#if IS_ASAN || IS_TSAN
	/* the limit of the address space leaves no room for the shadow memory of sanitizers */
	skip();
#endif
	struct rlimit kept, tight;
	struct threads *t;
	struct err e = {0};
	unsigned long pages = 0;
	char line[128] = "";
	FILE *f = fopen("/proc/self/statm", "r");

	assert_non_null(f);
	if (fgets(line, sizeof(line), f))
		pages = strtoul(line, NULL, 10);
	fclose(f);
	assert_int_equal(getrlimit(RLIMIT_AS, &kept), 0);
	tight = kept;
	tight.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)100 << 20);
	assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
	int rc = threads_new(&t, MAX_THREADS, "a thread", &e);
	assert_int_equal(setrlimit(RLIMIT_AS, &kept), 0);
	assert_int_equal(rc, PS_EIO);
	assert_null(t);
	assert_non_null(strstr(e.text, "of 256 does not start"));
}

/* ---- checksums ------------------------------------------------------------------------------- */

TEST(checksum_and_peak_do_not_depend_on_the_number_of_threads)
{
	const size_t n = 70 * ENGINE_BLOCK + 13;
	float *from = malloc(n * sizeof(*from)), *to = malloc(n * sizeof(*to));
	struct chunk chunk;
	uint32_t largest;

	assert_true(from && to);
	for (size_t i = 0; i < n; i++)
		from[i] = (float)(i % 1001) - 500.f;
	from[n - 3] = -777.f;
	memcpy(&largest, &(float){777.f}, sizeof(largest));
	for (size_t threads = 1; threads <= 7; threads++) {
		struct threads *t = start_test_threads(threads);

		for (size_t count = n; count > 0; count /= 3) {
			const struct wire_pass pass = {.engine = threads_engine(t)};

			memset(to, 0, n * sizeof(*to));
			wire_copy_chunk(to, from, count, &chunk, &pass);
			assert_memory_equal(to, from, count * sizeof(*to));
			assert_int_equal(chunk.xxh3, wire_checksum(from, count));
			if (count == n)
				assert_int_equal(chunk.peak, largest);
		}
		threads_free(&t);
	}
	free(from);
	free(to);
}
TEST_AGAIN(checksum_and_peak_do_not_depend_on_the_number_of_threads, stay_awake, sleep_at_once)
