/*
 * calls.h - the functions that replace calls of the C library and libuv in the simulator. The
 * linker redirects these calls (Makefile, SIM_CALLS). File calls use the simulated disk, jobs for
 * libuv's thread pool run in virtual time, random numbers come from the seed, and log lines are
 * discarded. Source files of the server make these calls; the simulator links the object files of
 * the server unchanged.
 *
 * One process simulates one machine at a time. calls_use selects the machine.
 */
#ifndef TESTS_SIM_CALLS_H
#define TESTS_SIM_CALLS_H
#include <stdint.h>
#include <uv.h>
#include "tests/sim/disk.h"

/* This struct is a job for the simulated thread pool. */
struct job {
	uv_work_t *work; /* NULL: no job */
	uv_work_cb run;
	uv_after_work_cb after;
};

typedef void job_fn(void *arg, const struct job *job);

/* Selects the simulated machine. From now on, file calls use disk `d`, getrandom draws from
 * `chance`, and the function `give` gets each new job of the thread pool, with `arg`. */
void calls_use(struct disk *d, struct rng *chance, job_fn *give, void *arg);

#endif
