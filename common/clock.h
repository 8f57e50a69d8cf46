/*
 * clock.h - the monotonic clock, and the time that a loop was awake. Logic takes `now_ms` as an
 * argument; only loops, trainers and benchmarks call this. Thread: any; a struct awake is its
 * loop's.
 */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H
#include <stdint.h>

uint64_t clock_ms(void);    /* CLOCK_MONOTONIC, milliseconds */
double clock_seconds(void); /* the same clock, seconds with nanosecond resolution */

/*
 * A clock that stands still while its process does (SIGSTOP, a suspended machine, a clock that
 * leaps ahead): who could not listen has not been kept waiting, so nobody is declared dead and
 * nothing is given up for it. Zeroed, it begins with the first look.
 */
#define AWAKE_STEP_MS 1000u /* a look that comes so late or later counts as this much */
struct awake {
	uint64_t clock_ms, now_ms; /* at the newest look */
};
/* Look: `clock_ms` is clock_ms() or another that never goes back. At least every 100 ms. */
uint64_t awake_ms(struct awake *a, uint64_t clock_ms);

#endif
