/*
 * aggregate.h - rules that combine several gradients into one and limit the influence of F wrong
 * gradients (F of --aggregate RULE:F). Each rule takes one gradient of each worker, or of each key
 * (accumulator.h), and gives each gradient the same weight:
 *
 *   median    the median of each coordinate (Yin 2018, arXiv 1803.01498); of an even number of
 *             values, the mean of the two in the middle
 *   trimmed   the mean of each coordinate, without its F smallest and F largest values (same paper)
 *   krum      the gradient with the smallest sum of squared distances to its n - F - 2 nearest
 *             other ones (Blanchard 2017, Krum); if several gradients have the smallest sum, the
 *             first of them
 *
 * If there are too few gradients for trimmed (at most 2F) or for krum (fewer than 2F + 3), the
 * function uses the median instead. The result of krum also depends on the order of the gradients
 * in the list, which is the order of their batches or workers. The result of no rule depends on the
 * order in which the gradients arrived.
 *
 * Invariants:
 * (1) each value of a median or of a trimmed mean is the mean of middle values of its coordinate,
 *     and lies within their range. If at most F gradients are bad and more than F are good, the
 *     value therefore lies within the range of the good ones (asserted by trim_block;
 *     bad_gradients_do_not_move_the_result_out_of_the_range_of_good_ones);
 * (2) the result of krum is one of the gradients (asserted by krum;
 *     krum_chooses_the_gradient_with_the_nearest_neighbours).
 */
#ifndef SERVER_CORE_AGGREGATE_H
#define SERVER_CORE_AGGREGATE_H
#include "server/core/blocks.h"
#include "server/core/core.h"

/* Combines the gradients g[0] to g[n - 1] (n >= 1) of `n_values` values each by `rule`, and writes
 * the result to `out`, which must not overlap a gradient. `bad` is F. */
void aggregate(const struct blocks *b, enum aggregate_rule rule, uint32_t bad,
	const float *const *g, uint32_t n, size_t n_values, float *out);

#endif
