/*
 * jobs.h - runs many seeds in one process or in several processes at once.
 *
 * The processes take the seeds in ascending order, a few at a time. If a seed has a violation, all
 * smaller seeds still run. The reported seed is therefore always the smallest failing seed,
 * whatever the number of processes is.
 */
#ifndef TESTS_SIM_JOBS_H
#define TESTS_SIM_JOBS_H
#include <stdint.h>
#include "tests/sim/sim.h"

struct totals {
	uint64_t seeds, mode[SIM_MODES], exact, broken, wal;
	uint64_t messages, crashes, power_cuts, drains, worker_crashes, leaps, cuts, twins, hangs,
		excluded, diverged, quarantines, releases, disputes, outvoted, full, disk_ops,
		lane_pushes, torn_pushes, hostile_messages, hostile_accepted, events;
	uint64_t digest; /* the sum of the digests of all runs, so their order does not matter */
};

struct jobs_result {
	struct totals totals;
	int failed;
	uint64_t seed; /* the smallest seed that failed */
	/* the signal that killed the simulator's process at that seed; 0: none; -1: the process
	 * exited with an error */
	int died;
};

/* Runs the seeds `from` to `to` under `limits` in `n` processes. If stderr is a terminal, prints
 * the progress there. */
void jobs_run(struct jobs_result *r, uint64_t from, uint64_t to, const struct sim_limits *limits,
	uint32_t n);

#endif
