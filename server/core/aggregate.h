/*
 * aggregate.h - rules that make one gradient of several, when some of them may be wrong. Each rule
 * takes one gradient of each worker, and gives each of them the same weight:
 *
 *   median    the median of each coordinate (Yin 2018, arXiv 1803.01498); of an even number of
 *             values, the mean of the two in the middle
 *   trimmed   the mean of each coordinate, without its F smallest and F largest values (same paper)
 *   krum      the gradient with the smallest sum of squared distances to its n - F - 2 nearest
 *             other ones (Blanchard 2017, Krum); the first of equal ones
 *
 * If there are too few gradients for the rule (trimmed: at most 2F; krum: fewer than 2F + 3), the
 * median takes its place. The result depends on the gradients and, for krum, on their order, which
 * is that of batches or workers. No rule depends on the order of arrival.
 *
 * Invariant: a rule of F bad gradients, with enough good ones, stays within the range of the good
 * ones in each coordinate (krum: equals one gradient) (tests/unit/test_core_aggregate.c).
 */
#ifndef SERVER_CORE_AGGREGATE_H
#define SERVER_CORE_AGGREGATE_H
#include "server/core/core.h"

/* Computes values [0, n_values) of `out` from `n` gradients, n >= 1. `out` is no gradient of g. */
void aggregate(enum aggregate_rule rule, uint32_t bad, const float *const *g, uint32_t n,
	size_t n_values, float *out);

#endif
