/*
 * watchdog.h - ends the process if a call of the device does not return. A GPU may hang, and no
 * thread can end a call that hangs. After the end of the process the server gives the worker's
 * lease to another worker.
 *
 * Thread: the trainer's. The watchdog uses ITIMER_REAL, so nothing else in the process may use this
 * timer.
 */
#ifndef WORKER_WATCHDOG_H
#define WORKER_WATCHDOG_H
#include <stdint.h>

#define WATCHDOG_EXIT 13 /* exit status of the process (docs/operations.md) */

/* Sets the time limit of each call of the device, in milliseconds. Without this call there is no
 * limit. */
void watchdog_init(uint64_t ms);
void watchdog_begin(void);
/* Stops the timer of watchdog_begin and returns `rc`. */
int watchdog_end(int rc);

/* Evaluates to the status of a call of the device, which runs under the watchdog. */
#define WATCHED(call) (watchdog_begin(), watchdog_end(call))

#endif
