/*
 * random_workers.h - three workers that send random messages to a core. The workers push their own
 * work and the work of other workers, repeat requests, fall silent and resume sessions. Sometimes a
 * snapshot fails, or the server is killed. Equal seeds give equal sequences.
 */
#ifndef TESTS_SUPPORT_RANDOM_WORKERS_H
#define TESTS_SUPPORT_RANDOM_WORKERS_H
#include "tests/support/core_fixture.h"

#define RANDOM_WORKERS 3u

struct random_workers {
	struct core_fixture f;
	struct rng r;
	struct stamp s[RANDOM_WORKERS];
	uint64_t request[RANDOM_WORKERS];
	struct msg_grant grant[RANDOM_WORKERS];
};

/* Let all three workers join. Before this call, the caller opens k->f and seeds k->r. */
void random_join(struct random_workers *k);
/* Send one random event to the core. */
void random_step(struct random_workers *k);

#endif
