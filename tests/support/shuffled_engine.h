/*
 * shuffled_engine.h - an engine (common/engine.h) without threads that runs the blocks of each job
 * in another order: some when the job begins, and the rest at the first wait.
 */
#ifndef TESTS_SUPPORT_SHUFFLED_ENGINE_H
#define TESTS_SUPPORT_SHUFFLED_ENGINE_H
#include <stdint.h>
#include "common/engine.h"

struct shuffled_engine {
	struct engine engine;
	int in_order; /* 1: run the blocks in ascending order, each at its wait */
	uint64_t jobs;
	/* the blocks of the job that have run, the block of the next one, and the distance from
	 * each block to the next one */
	size_t ran, at, stride;
};

/* Blocks have `block` values. *e must not move after this call. */
void shuffled_engine_init(struct shuffled_engine *e, size_t block, int in_order);

#endif
