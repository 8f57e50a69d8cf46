/*
 * jobs.h - runs many seeds in one process or in several processes at once.
 *
 * Processes take the seeds in order, a few at a time. After a violation all smaller seeds still run, so
 * that the reported seed is the smallest one that fails, however many processes there are.
 */
#ifndef TESTS_SIM_JOBS_H
#define TESTS_SIM_JOBS_H
#include <stdint.h>
#include "tests/sim/sim.h"

struct totals {
	uint64_t seeds, mode[SIM_MODES], exact, broken, journal;
	uint64_t messages, crashes, power_cuts, drains, worker_crashes, leaps, cuts, twins, hangs,
		excluded, diverged, full, disk_ops;
};

struct jobs_result {
	struct totals totals;
	int failed;
	uint64_t seed; /* the smallest one that failed */
	int died;      /* the simulator itself died, with this signal */
};

/* Run seeds from..to under `limits` in `n` processes; progress to stderr when it is a terminal. */
void jobs_run(struct jobs_result *r, uint64_t from, uint64_t to, const struct sim_limits *limits,
	uint32_t n);

#endif
