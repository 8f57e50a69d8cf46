/*
 * clock.h - the monotonic clock. Logic takes `now_ms` as an argument; only loops, trainers and
 * benchmarks call this. Thread: any.
 */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H
#include <stdint.h>

uint64_t clock_ms(void);    /* CLOCK_MONOTONIC, milliseconds */
double clock_seconds(void); /* the same clock, seconds with nanosecond resolution */

#endif
