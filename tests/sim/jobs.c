/* jobs.c - runs seeds in several processes (jobs.h). */
#include "tests/sim/jobs.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "common/clock.h"

#define CHUNK    64u
#define MAX_JOBS 256u
#define CHECK_MS 20
/* A process counts as hung if this number of checks in a row, which are CHECK_MS apart, find it at
 * the same seed. Usually a seed takes about a millisecond. Checks are counted, not milliseconds, so
 * that a time in which the whole simulator is stopped does not count. */
#define HANG 1000

/* All processes of the simulator share this memory. */
struct board {
	/* next: the next seed that no process has taken; failed: the smallest seed that failed */
	atomic_uint_least64_t next, failed;
	atomic_uint_least64_t now[MAX_JOBS];
	struct totals totals[MAX_JOBS];
};

/* `checks` is the number of times in a row that the parent has found a process at the same seed. */
struct watched {
	uint64_t seed;
	unsigned checks;
};

static void count_run(struct totals *t, const struct sim *s)
{
	t->seeds++;
	t->mode[s->mode]++;
	t->exact += s->exact && (s->crashes || s->ordered);
	t->broken += s->disk.broken != 0;
	t->wal += s->cfg.checkpoint.wal != 0;
	t->events += s->events;
	t->digest += s->digest;
	t->messages += s->net.sent;
	t->crashes += s->crashes;
	t->power_cuts += s->power_cuts;
	t->drains += s->drains;
	t->worker_crashes += s->worker_crashes;
	t->leaps += s->leaps;
	t->lane_pushes += s->lane_pushes;
	t->torn_pushes += s->torn_pushes;
	t->twins += s->twins;
	t->excluded += s->excluded;
	t->quarantines += s->quarantines;
	t->releases += s->releases;
	t->disputes += s->disputes;
	t->outvoted += s->outvoted;
	t->full += s->disk.full;
	t->diverged += s->diverged;
	t->hostile_messages += s->hostile_messages;
	t->hostile_accepted += s->hostile_accepted;
	t->hangs += s->hangs;
	t->cuts += s->cuts;
	t->disk_ops += s->disk.ops;
}

static void note_failure(struct board *b, uint64_t seed)
{
	uint_least64_t lowest = atomic_load(&b->failed);

	while (seed < lowest && !atomic_compare_exchange_weak(&b->failed, &lowest, seed))
		;
}

/* Does the work of one process: takes chunks of seeds and runs them. Returns when no seed is left
 * for it: the processes have taken all seeds or, after a failure, all seeds below the smallest seed
 * that has failed. */
static void work_on_seeds(
	struct board *b, uint32_t job, uint64_t to, const struct sim_limits *limits)
{
	static struct sim s;
	uint64_t first;

	sim_init(&s);
	while ((first = atomic_fetch_add(&b->next, CHUNK)) <= to) {
		uint64_t last = to - first < CHUNK ? to : first + CHUNK - 1;

		for (uint64_t seed = first; seed <= last && seed < atomic_load(&b->failed);
			seed++) {
			atomic_store(&b->now[job], seed);
			if (sim_run(&s, seed, limits, 0))
				note_failure(b, seed);
			else
				count_run(&b->totals[job], &s);
		}
		if (last == to || atomic_load(&b->failed) <= last)
			break;
	}
	sim_release(&s);
}

static void add_totals(struct totals *sum, const struct totals *t)
{
	const uint64_t *from = (const uint64_t *)(const void *)t;
	uint64_t *to = (uint64_t *)(void *)sum;

	for (size_t i = 0; i < sizeof(*t) / sizeof(*from); i++)
		to[i] += from[i];
}

static struct totals total_of_jobs(const struct board *b, uint32_t n)
{
	struct totals sum = {0};

	for (uint32_t i = 0; i < n; i++)
		add_totals(&sum, &b->totals[i]);
	return sum;
}

static void show_seeds(const struct board *b, uint32_t n, uint64_t all, double seconds)
{
	uint64_t done = total_of_jobs(b, n).seeds;

	fprintf(stderr, "\r%llu of %llu seeds, %.0f/s ", (unsigned long long)done,
		(unsigned long long)all, (double)done / (seconds > 0 ? seconds : 1));
}

/* Handles the end of a process. If the process did not end normally, its current seed counts as
 * failed. */
static void reap_job(
	struct board *b, struct jobs_result *r, pid_t *pid, uint32_t n, pid_t gone, int status)
{
	for (uint32_t i = 0; i < n; i++) {
		if (pid[i] != gone)
			continue;
		pid[i] = 0; /* the system may give the id to another process */
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			continue;
		r->died = WIFSIGNALED(status) ? WTERMSIG(status) : -1;
		note_failure(b, atomic_load(&b->now[i]));
	}
}

/* Kills each process that hangs at a seed. The seed at which it hangs then counts as failed. */
static void kill_stuck(const struct board *b, struct watched *w, const pid_t *pid, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t seed = atomic_load(&b->now[i]);

		if (seed != w[i].seed)
			w[i] = (struct watched){.seed = seed};
		else if (pid[i] && ++w[i].checks > HANG)
			kill(pid[i], SIGKILL);
	}
}

static void watch_jobs(struct board *b, struct jobs_result *r, pid_t *pid, uint32_t n, uint64_t all)
{
	const struct timespec interval = {.tv_nsec = CHECK_MS * 1000000L};
	double start = clock_seconds();
	static struct watched watched[MAX_JOBS];
	uint32_t left = n;
	int status;

	memset(watched, 0, sizeof(watched));
	while (left) {
		pid_t gone = waitpid(-1, &status, WNOHANG);

		if (gone > 0) {
			reap_job(b, r, pid, n, gone, status);
			left--;
			continue;
		}
		kill_stuck(b, watched, pid, n);
		if (isatty(STDERR_FILENO))
			show_seeds(b, n, all, clock_seconds() - start);
		nanosleep(&interval, NULL);
	}
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r%40s\r", "");
}

static void fork_all(struct board *b, struct jobs_result *r, uint64_t from, uint64_t to,
	const struct sim_limits *limits, uint32_t n)
{
	pid_t pid[MAX_JOBS];

	for (uint32_t i = 0; i < n; i++) {
		pid[i] = fork();
		if (pid[i] < 0) {
			perror("sim: fork");
			exit(1);
		}
		if (pid[i] == 0) {
			work_on_seeds(b, i, to, limits);
			_exit(0);
		}
	}
	watch_jobs(b, r, pid, n, to - from + 1);
}

void jobs_run(struct jobs_result *r, uint64_t from, uint64_t to, const struct sim_limits *limits,
	uint32_t n)
{
	struct board *b =
		mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	memset(r, 0, sizeof(*r));
	if (b == MAP_FAILED) {
		perror("sim: mmap");
		exit(1);
	}
	n = n < MAX_JOBS ? n : MAX_JOBS;
	atomic_store(&b->next, from);
	atomic_store(&b->failed, UINT64_MAX);
	fork_all(b, r, from, to, limits, n);
	r->totals = total_of_jobs(b, n);
	r->seed = atomic_load(&b->failed);
	r->failed = r->seed != UINT64_MAX;
	munmap(b, sizeof(*b));
}
