/*
 * clock.h - the monotonic clock, and a clock that stops while its process is suspended. Only loops,
 * trainers and benchmarks read a clock; all other code takes `now_ms` as an argument. Any thread
 * may call these functions, but a struct awake belongs to one loop.
 */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H
#include <stdint.h>

uint64_t clock_ms(void);    /* CLOCK_MONOTONIC, milliseconds */
uint64_t clock_us(void);    /* CLOCK_MONOTONIC, microseconds */
double clock_seconds(void); /* CLOCK_MONOTONIC, seconds with nanosecond resolution */
/* CLOCK_BOOTTIME, milliseconds: like CLOCK_MONOTONIC, but it also runs while the machine is
 * suspended. */
uint64_t clock_boot_ms(void);
/* Returns the processor time that this thread has used, in seconds. Each call makes a system
 * call. */
double clock_thread_seconds(void);

/*
 * A clock that follows clock_ms, but stops while its process is suspended (by SIGSTOP, or with the
 * machine) and ignores forward jumps of clock_ms. A suspended process receives nothing, so the time
 * of a suspension must not count as silence of its peers, and must not count for any other timeout.
 * A struct of zeros is valid: the clock starts with the first reading.
 */
struct awake {
	uint64_t clock_ms, now_ms; /* argument `clock_ms` and result of the last call of awake_ms */
};
/* Reads the clock. `clock_ms` is the present time of clock_ms() or of another clock that never goes
 * back. The result is larger than the previous one by the time that has passed since the previous
 * call, but by at most `step_ms`. Call awake_ms at least every 100 ms. */
uint64_t awake_ms(struct awake *a, uint64_t clock_ms, uint64_t step_ms);
/* The values of `step_ms` in the server (AWAKE_DECIDE_MS) and in a worker (AWAKE_HEARTBEAT_MS). The
 * server uses a small step, because it decides which peers are silent. After a suspension of the
 * server, messages of the peers still wait in its queue, so the time of the suspension must not
 * count as silence of the peers. A worker uses a larger step, because its clock decides when it
 * sends heartbeats, and a heartbeat must not be late when the scheduler has delayed the worker. */
#define AWAKE_DECIDE_MS    200u
#define AWAKE_HEARTBEAT_MS 1000u

#endif
