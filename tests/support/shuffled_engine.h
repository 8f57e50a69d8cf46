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
	/* 1: run the blocks in ascending order, each only when the core waits for it */
	int in_order;
	uint64_t jobs;
	/* how many blocks of the job have run, the number of the block that runs next, and the
	 * distance from the number of a block to that of the block after it */
	size_t ran, at, stride;
};

/* Blocks have `block` values. After this call, the address of *e must not change. */
void shuffled_engine_init(struct shuffled_engine *e, size_t block, int in_order);

#endif
