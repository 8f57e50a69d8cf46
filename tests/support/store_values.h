/*
 * store_values.h - values that show whether two implementations of an optimizer give the same bits.
 * The values have all magnitudes, and include subnormal numbers and zeros of both signs.
 */
#ifndef TESTS_SUPPORT_STORE_VALUES_H
#define TESTS_SUPPORT_STORE_VALUES_H
#include "common/rng.h"
#include "server/core/optim.h"

void store_values(struct rng *r, float *v, size_t n);
/* Fills the state vectors of the optimizer. A vector of squares gets no negative values. */
void store_state(struct rng *r, const struct optim *o, float *const state[OPTIM_VECTORS], size_t n);

#endif
