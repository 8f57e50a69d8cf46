/*
 * reminder.h - when to report a wait: after a short while, then at growing intervals.
 *
 * Thread: the caller's. Time comes in as an argument.
 */
#ifndef COMMON_REMINDER_H
#define COMMON_REMINDER_H
#include <stdint.h>

#define REMINDER_FIRST_MS 1500  /* before the first report */
#define REMINDER_STEP_MS  3000  /* to the second one, then doubled ... */
#define REMINDER_MAX_MS   60000 /* ... up to this */

/* All zero: nothing is awaited. */
struct reminder {
	int what; /* is awaited; 0: nothing */
	uint64_t since_ms, next_ms, step_ms;
};

/* `what` is awaited now (0: nothing), and was since `since_ms` if it is new. 1: report it. */
int reminder_due(struct reminder *r, int what, uint64_t since_ms, uint64_t now_ms);

#endif
