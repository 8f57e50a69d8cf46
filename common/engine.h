/*
 * engine.h - runs a function over the blocks of a long vector, possibly on several threads.
 *
 * The owner of the threads (common/threads.h in the server) implements `struct engine`. Code that
 * works on vectors, such as the core of the server, calls the functions below. This code depends
 * neither on the threads that run the blocks nor on the order in which the blocks run. With a NULL
 * engine, the caller's thread runs each block when the caller waits for this block.
 *
 * The division into blocks depends only on the length of the vector. Therefore all engines compute
 * the same bits under two conditions. The function of a job writes only to the values and the
 * result of its block, and the caller combines the results in the order of the blocks.
 *
 * Only one thread at a time may use an engine.
 */
#ifndef COMMON_ENGINE_H
#define COMMON_ENGINE_H
#include <stddef.h>

/* Number of values in a block. The gradient, the weights and the optimizer's state of one block fit
 * the L2 cache of any CPU. */
#define ENGINE_BLOCK ((size_t)8192)

typedef void engine_block_fn(void *arg, size_t block);

/* A job: an engine calls `run` once for each block from 0 to n - 1. The caller owns the struct and
 * leaves it unchanged during the job. */
struct engine_job {
	engine_block_fn *run;
	void *arg;
	size_t n;
};

struct engine {
	/* Starts a job, and may return before its blocks have run. */
	void (*begin)(void *self, const struct engine_job *job);
	/* Returns when `block` has run. The caller waits for every block of the job, in ascending
	 * order. After the wait for the last block, no thread uses the job any more. */
	void (*wait)(void *self, const struct engine_job *job, size_t block);
	void *self;
	/* Number of values in a block: ENGINE_BLOCK or, in tests, fewer, so that a short vector has
	 * several blocks. */
	size_t block;
};

static inline size_t engine_block_values(const struct engine *e)
{
	return e ? e->block : ENGINE_BLOCK;
}

/* Returns the number of blocks of a vector of n values. */
static inline size_t engine_blocks(const struct engine *e, size_t n)
{
	return n / engine_block_values(e) + (n % engine_block_values(e) > 0);
}

static inline void engine_begin(const struct engine *e, const struct engine_job *job)
{
	if (e && job->n > 0)
		e->begin(e->self, job);
}

static inline void engine_wait(const struct engine *e, const struct engine_job *job, size_t block)
{
	if (e)
		e->wait(e->self, job, block);
	else
		job->run(job->arg, block);
}

/* Runs all blocks of a job, and returns when they have run. */
static inline void engine_run(const struct engine *e, const struct engine_job *job)
{
	engine_begin(e, job);
	for (size_t block = 0; block < job->n; block++)
		engine_wait(e, job, block);
}

#endif
