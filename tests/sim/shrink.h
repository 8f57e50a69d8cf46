/* shrink.h - reduces a failing run to a smaller one (shrink.c). */
#ifndef TESTS_SIM_SHRINK_H
#define TESTS_SIM_SHRINK_H
#include "tests/sim/sim.h"

/* Finds stricter limits than `failing` under which `seed` still fails. Unless the
 * search ends early, after 2,000 runs, the returned limits are minimal: with any single further
 * restriction that the search can try, the seed passes. On return, s->violation describes the
 * violation under the returned limits. */
struct sim_limits shrink(struct sim *s, uint64_t seed, const struct sim_limits *failing);

#endif
