/*
 * calls.h - where the calls go that the linker turns away from the C library and libuv (Makefile,
 * SIM_CALLS): files to the simulated disk, work for libuv's pool into virtual time, chance to the
 * seed, the log to nowhere. What is linked besides is the server's own code, unchanged.
 *
 * One process simulates one machine at a time: calls_use says which.
 */
#ifndef TESTS_SIM_CALLS_H
#define TESTS_SIM_CALLS_H
#include <stdint.h>
#include <uv.h>
#include "tests/sim/disk.h"

/* Work that was given to the pool. */
struct job {
	uv_work_t *work; /* NULL: none */
	uv_work_cb run;
	uv_after_work_cb after;
};

typedef void job_fn(void *arg, const struct job *job);

/* From now on: this disk; `chance` answers getrandom; jobs are told to `give`. */
void calls_use(struct disk *d, struct rng *chance, job_fn *give, void *arg);

#endif
