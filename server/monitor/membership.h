/*
 * membership.h - log lines about each worker that joins, stalls or leaves, about the data set of
 * the run, and about two problems that concern several workers: steps of mode sync that ended with
 * too few gradients (short steps), and workers with another data set than the run. The core counts
 * these steps and workers, for the status, too. This module only decides how often the log repeats
 * the numbers of these steps and workers. For this purpose, membership_check compares them with the
 * numbers at its last log line.
 *
 * A worker that joins and leaves again and again cannot fill the disk of the log: each slot has
 * CHANGES_AT_ONCE lines, and gets one more in CHANGE_MS. Lines that say that a worker was excluded
 * are always written.
 *
 * Thread: the loop's.
 */
#ifndef SERVER_MONITOR_MEMBERSHIP_H
#define SERVER_MONITOR_MEMBERSHIP_H
#include <stdint.h>
#include "server/core/core.h"

#define CHANGES_AT_ONCE 2000u
#define CHANGE_MS       60000u

struct labels;

struct membership {
	/* for each slot: the time until all its lines are forgotten, and the time of its newest
	 * line */
	uint32_t spent_ms[WIRE_MAX_WORKERS];
	uint64_t now_ms[WIRE_MAX_WORKERS];
	uint64_t unlogged;    /* number of changes without a line */
	uint64_t unlogged_at; /* as short_at, for this number */
	/* number of short steps from which on the next log line about them is due */
	uint64_t short_at;
	/* number of live workers with another data set than the run's, at the last call of
	 * membership_check */
	uint32_t others;
};

void membership_init(struct membership *m, const struct core *c);
/* Returns the name of a change of a worker, in the log and in the history. */
const char *membership_name(enum worker_change change);
/* Logs an EFFECT_WORKER, unless the slot of the worker has too many lines. `now_ms` never
 * decreases. */
void membership_log(struct membership *m, const struct effect *e, const struct core *c,
	const struct labels *labels, uint64_t now_ms);
/* Logs EFFECT_DISPUTED. */
void membership_log_dispute(const struct effect *e);
/* Logs the data set of the run, which is fixed now (EFFECT_DATA_FIXED). */
void membership_log_data(const struct core *c);
/* Logs the number of steps of sync that ended with too few gradients, and the number of changes
 * without a line, whenever such a number has doubled. If the number of workers with another data
 * set than the run's has grown since the last call, logs this number. */
void membership_check(struct membership *m, const struct core *c);

#endif
