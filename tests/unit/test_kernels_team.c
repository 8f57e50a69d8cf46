/* test_kernels_team.c - every thread of a team runs every job once, barriers work, and a team
 * that cannot start all its threads ends the threads that it has started. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/resource.h>
#include "kernels/cpu/team.h"
#include "tests/support/sanitizer.h"
#include "tests/support/test.h"

#define MEMBERS 5
#define JOBS    2000

struct work {
	struct team *team;
	size_t done[MEMBERS], seen[MEMBERS];
};

static void count_call(void *arg, size_t member)
{
	struct work *w = arg;

	w->done[member]++;
}

TEST(every_member_does_every_job_once)
{
	for (size_t n = 1; n <= MEMBERS; n++) {
		struct work w = {0};
		struct err e = {0};

		assert_int_equal(team_new(&w.team, n, &e), PS_OK);
		for (size_t job = 1; job <= JOBS; job++) {
			team_run(w.team, count_call, &w);
			for (size_t i = 0; i < MEMBERS; i++)
				assert_int_equal(w.done[i], i < n ? job : 0);
		}
		team_free(&w.team);
		assert_null(w.team);
	}
}

/* Multiplies two normal numbers whose product is subnormal. Sets the element of `seen` for this
 * member of the team to 1 if the computed product is 0, that is, if this thread treats subnormal
 * results as 0. Otherwise sets the element to 0. */
static void multiply_small(void *arg, size_t member)
{
	volatile float x = 1e-20f;
	struct work *w = arg;

	w->seen[member] = x * x == 0;
}

#if defined(__x86_64__) || defined(__aarch64__)
TEST(subnormal_numbers_count_as_0_inside_jobs_only)
{
	struct work w = {0};
	struct err e = {0};

	assert_int_equal(team_new(&w.team, MEMBERS, &e), PS_OK);
	team_run(w.team, multiply_small, &w);
	for (size_t i = 0; i < MEMBERS; i++)
		assert_int_equal(w.seen[i], 1);
	multiply_small(&w, 0);
	assert_int_equal(w.seen[0], 0);
	team_free(&w.team);
}
#endif

/* Writes a number before a barrier, and reads the numbers of all threads after it. After the
 * barrier, each thread must see what all other threads wrote before the barrier. */
static void count_then_look(void *arg, size_t member)
{
	struct work *w = arg;

	w->done[member]++;
	team_barrier(w->team);
	w->seen[member] = 0;
	for (size_t i = 0; i < MEMBERS; i++)
		w->seen[member] += w->done[i];
	team_barrier(w->team);
}

TEST(after_a_barrier_everybody_has_come)
{
	struct work w = {0};
	struct err e = {0};

	assert_int_equal(team_new(&w.team, MEMBERS, &e), PS_OK);
	for (size_t job = 1; job <= JOBS; job++) {
		team_run(w.team, count_then_look, &w);
		for (size_t i = 0; i < MEMBERS; i++)
			assert_int_equal(w.seen[i], job * MEMBERS);
	}
	team_free(&w.team);
}

static size_t address_space(void)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	assert_non_null(f);
	char line[128];
	if (fgets(line, sizeof(line), f))
		pages = strtoul(line, NULL, 10);
	fclose(f);
	return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* The test limits the address space to 100 MB more than the present size. The stacks of 1000
 * threads need more than this limit. */
TEST(a_team_that_the_system_cannot_start_is_undone)
{
#if IS_ASAN || IS_TSAN
	skip(); /* the shadow memory of sanitizers does not fit under this limit */
#endif
	struct rlimit kept, tight;
	struct team *t;
	struct err e = {0};
	assert_int_equal(getrlimit(RLIMIT_AS, &kept), 0);
	tight = kept;
	tight.rlim_cur = address_space() + ((size_t)100 << 20);
	assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
	int rc = team_new(&t, 1000, &e);
	assert_int_equal(setrlimit(RLIMIT_AS, &kept), 0);
	assert_int_equal(rc, PS_EDEVICE);
	assert_null(t);
	assert_non_null(strstr(e.text, "of 1000 does not start"));
	assert_int_equal(team_new(&t, 3, &e), PS_OK);
	team_free(&t);
	team_free(&t);
}
