/* shrink.h - see shrink.c. */
#ifndef TESTS_SIM_SHRINK_H
#define TESTS_SIM_SHRINK_H
#include "tests/sim/sim.h"

/* Limits under which `seed` still fails, and under no smaller ones that were tried; s->violation is
 * theirs. */
struct sim_limits shrink(struct sim *s, uint64_t seed, const struct sim_limits *failing);

#endif
