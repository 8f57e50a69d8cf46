/*
 * blocks.h - vector operations of the core, block by block on the engine that the caller of
 * core_init has provided (common/engine.h). A sum adds the results of the blocks in their order,
 * so every engine gives the same bits.
 *
 * Promises:
 * (1) the state of the core does not depend on the engine, nor on the order in which the engine
 *     runs the blocks (tests/unit/test_engine.c).
 */
#ifndef SERVER_CORE_BLOCKS_H
#define SERVER_CORE_BLOCKS_H
#include <stddef.h>
#include "common/engine.h"

struct blocks {
	const struct engine *engine; /* NULL: the calling thread computes all blocks */
	/* the result of each block; the array has room for the blocks of n_params values */
	double *result;
};

/* Computes values [from, from + n) and returns the result of this block. The function
 * writes to no other values. `arg` is the same for all blocks, which may run at the same time. */
typedef double blocks_fn(const void *arg, size_t from, size_t n);

/* Run `fn` for the blocks of a vector of n values, n <= n_params. blocks_sum returns the sum of the
 * results, and blocks_max the largest result (0 if none is above 0). */
void blocks_each(const struct blocks *b, size_t n, blocks_fn *fn, const void *arg);
double blocks_sum(const struct blocks *b, size_t n, blocks_fn *fn, const void *arg);
double blocks_max(const struct blocks *b, size_t n, blocks_fn *fn, const void *arg);

/* The functions of vec.h with the same names, for vectors of n values, n <= n_params. */
double blocks_dot(const struct blocks *b, const float *x, const float *y, size_t n);
double blocks_squares(const struct blocks *b, const float *v, size_t n);
void blocks_copy(const struct blocks *b, float *to, const float *from, size_t n);
void blocks_scale(const struct blocks *b, float *v, double by, size_t n);
void blocks_axpy(const struct blocks *b, float *y, double a, const float *x, size_t n);
void blocks_add(const struct blocks *b, float *to, const float *x, double a, const float *d,
	size_t n); /* to = x + a * d */
int blocks_finite(const struct blocks *b, const float *v, size_t n);

#endif
