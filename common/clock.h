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
struct awake {
	uint64_t clock_ms, now_ms; /* at the newest look */
};
/* Look: `clock_ms` is clock_ms() or another that never goes back; a look that comes `step_ms` or
 * more after the one before counts as that much. At least every 100 ms. */
uint64_t awake_ms(struct awake *a, uint64_t clock_ms, uint64_t step_ms);
/* Who judges the silence of others looks often, and does not count much of what it slept through:
 * their words wait to be read. Who is to beat must not be late because it was not let run. */
#define AWAKE_JUDGE_MS 200u
#define AWAKE_BEAT_MS  1000u

#endif
