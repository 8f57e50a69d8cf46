/*
 * reminder.h - decides when to report a wait: after a short time, then at growing intervals.
 *
 * The functions read no clock: the caller gives the present time as an argument. A struct reminder
 * belongs to the thread of its caller.
 */
#ifndef COMMON_REMINDER_H
#define COMMON_REMINDER_H
#include <stdint.h>

#define REMINDER_FIRST_MS 1500 /* time from the start of the wait to the first report */
/* time from the first report to the second; each later interval is twice as long */
#define REMINDER_STEP_MS 3000
#define REMINDER_MAX_MS  60000 /* maximum interval between two reports */

/* The state of a wait. A struct of zeros means that there is no wait. */
struct reminder {
	int what; /* the kind of the wait; 0 if the caller does not wait */
	uint64_t since_ms, next_ms, step_ms;
};

/* Returns 1 if the caller must report the wait now. `what` is the present kind of wait, or 0 if the
 * caller does not wait. If `what` differs from the last call, a new wait has begun at
 * `since_ms`. */
int reminder_due(struct reminder *r, int what, uint64_t since_ms, uint64_t now_ms);

#endif
