/* shrink.h - reduces a failing run to a smaller one (shrink.c). */
#ifndef TESTS_SIM_SHRINK_H
#define TESTS_SIM_SHRINK_H
#include "tests/sim/sim.h"

/* Find limits under which `seed` still fails. `seed` passed under all stricter limits that were
 * tried. At return s->violation is the violation of the run under the returned limits. */
struct sim_limits shrink(struct sim *s, uint64_t seed, const struct sim_limits *failing);

#endif
