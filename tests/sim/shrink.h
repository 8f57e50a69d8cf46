/* shrink.h - reduces a failing run to a smaller one (shrink.c). */
#ifndef TESTS_SIM_SHRINK_H
#define TESTS_SIM_SHRINK_H
#include "tests/sim/sim.h"

/* Finds stricter limits than `failing` under which `seed` still fails. When the search ends, the
 * seed passes with each single further restriction that the search can try. On return, s->violation
 * belongs to the returned limits. */
struct sim_limits shrink(struct sim *s, uint64_t seed, const struct sim_limits *failing);

#endif
