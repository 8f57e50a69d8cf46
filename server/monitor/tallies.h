/*
 * tallies.h - what the shell counts of each worker: decided pushes, their staleness, duplicates,
 * rejections and refusals since this start. The counts come from the messages of a worker and the
 * effects that answer them; nothing depends on them.
 *
 * Thread: the loop's.
 */
#ifndef SERVER_MONITOR_TALLIES_H
#define SERVER_MONITOR_TALLIES_H
#include <stdint.h>
#include "common/err.h"

struct core;
struct effect;
struct event;

struct tally {
	uint64_t pushes, duplicates, rejected, refused;
	uint64_t fresh, staleness_sum; /* pushes with a known staleness, and its sum */
	double staleness;              /* mean over the last seconds; < 0: no push */
	double images_per_s;           /* over the last seconds */
	/* totals at the newest measurement */
	uint64_t fresh_then, staleness_then, images_then;
};

struct tallies {
	struct tally *of; /* of worker i + 1 */
	uint32_t n;
	uint64_t measured_ms;
};

/* PS_ENOMEM */
int tallies_init(struct tallies *t, const struct core *c, uint64_t now_ms) PS_MUST_CHECK;
void tallies_release(struct tallies *t);
/* The core has answered event `ev` with effect `e`. */
void tallies_effect(
	struct tallies *t, const struct core *c, const struct event *ev, const struct effect *e);
/* Measure rates and staleness, once a second. Returns 1 if it did. */
int tallies_tick(struct tallies *t, const struct core *c, uint64_t now_ms);
/* The tally of worker id `worker`; all zero if there is none. `t` may be NULL. */
const struct tally *tallies_of(const struct tallies *t, uint32_t worker);

#endif
