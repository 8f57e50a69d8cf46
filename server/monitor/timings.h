/*
 * timings.h - histograms for /metrics. The histograms show the time that the server takes for a
 * PULL, for a PUSH and for each event, and the time of writes to the disk. Bucket i counts times up
 * to 1 us * 4^i; the last bucket has no bound.
 *
 * Thread: the loop's.
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
