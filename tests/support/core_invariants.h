/*
 * core_invariants.h - full checks of numbered invariants of server/core. They read all weights and
 * whole tables, which would take too long in each step of a server. The unit tests and the fuzz
 * target `core` make these checks after each step, and the simulator after some of them.
 */
#ifndef TESTS_SUPPORT_CORE_INVARIANTS_H
#define TESTS_SUPPORT_CORE_INVARIANTS_H
#include <stdint.h>

struct core;

/* This struct has a hash of the weights and of the optimizer's state of a version, after the last
 * step of `core`. `core` is NULL before the first step. */
struct core_values {
	const struct core *core;
	uint64_t version, version_term, hash;
};

/* Checks the invariants between two steps of the core. Returns NULL, or a text that names an
 * invariant that does not hold. `before` is about the last step; the function updates it. If a
 * device has the weights, the function does not check them. */
const char *core_broken_invariant(struct core_values *before, const struct core *c);

#endif
