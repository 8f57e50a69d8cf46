/*
 * tallies.h - for each worker: images per second, the mean staleness of its pushes, and what it
 * spends its time on. Once a second, at the same time as the rates of the whole run (progress.h),
 * these values are computed from the growth of the core's counts since the previous computation.
 * The images/s of all workers therefore add up to the images/s of the run.
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_MONITOR_TALLIES_H
#define SERVER_MONITOR_TALLIES_H
#include <stdint.h>
#include "common/err.h"
#include "server/core/core.h"

/* This is the number of parts in struct time_split. In an array with an element for each part, the
 * elements are in the order of the members of that struct. */
#define TALLY_PARTS 5
extern const char *const tally_part[TALLY_PARTS];
uint64_t tally_part_us(const struct time_split *t, int part);

struct tally {
	/* mean staleness of the worker's pushes in the last second; < 0: there was no push, or the
	 * mode is not asynchronous */
	double staleness;
	double images_per_s; /* images/s between the two newest computations */
	/* Each entry is the share of the worker's time for a part, between its two newest
	 * heartbeats. The sum of the shares is 1, or 0 if the shares are unknown. */
	double share[TALLY_PARTS];
	uint64_t shares_ms; /* time at which `share` was last computed */
	/* the worker's counts in the core at the newest computation */
	uint64_t images;
	struct worker_counts counts;
};

struct tallies {
	struct tally *of; /* of[i]: the tally of worker i + 1 */
	uint32_t n;
};

/* Begins to measure. Error: PS_ENOMEM. */
int tallies_init(struct tallies *t, const struct core *c) PS_MUST_CHECK;
void tallies_release(struct tallies *t);
/* Computes the values at time `now_ms`, over the `seconds` seconds since the previous call. */
void tallies_measure(struct tallies *t, const struct core *c, double seconds, uint64_t now_ms);
/* Returns the tally of worker id `worker`, or a tally of zeros if there is none. `t` may be
 * NULL. */
const struct tally *tallies_of(const struct tallies *t, uint32_t worker);

#endif
