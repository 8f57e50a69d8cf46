/*
 * timings.h - histograms for /metrics. The histograms show how long the server takes to handle a
 * PULL, a PUSH and any event of the core, and how long it takes to write a checkpoint and a group
 * of the log. Bucket i of a histogram counts times of at most 4^i microseconds; the last bucket has
 * no upper bound.
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_MONITOR_TIMINGS_H
#define SERVER_MONITOR_TIMINGS_H
#include <stdint.h>
#include <stdio.h>

enum timing { TIMING_PULL, TIMING_PUSH, TIMING_APPLY, TIMING_CHECKPOINT, TIMING_WAL, TIMINGS };
#define TIMING_BUCKETS 13

struct timings {
	struct {
		uint64_t bucket[TIMING_BUCKETS];
		double sum;
	} of[TIMINGS];
};

void timings_add(struct timings *t, enum timing what, double seconds);
/* Writes the histograms in the text format of Prometheus. */
void timings_print(const struct timings *t, FILE *f);

#endif
