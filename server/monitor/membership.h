/*
 * membership.h - log lines about each worker that joins, stalls or leaves, about the data set of
 * the run, and about two problems that concern several workers: steps of mode sync that ended with
 * too few gradients (short steps), and workers with another data set than the run. The core counts
 * these steps and workers, because the status shows the numbers, too. This module only decides how
 * often the log repeats the numbers of these steps and workers. For this purpose, membership_check
 * compares them with the numbers at its last log line.
 *
 * The number of log lines about each worker slot is limited (line_budget.h). If a worker with a key
 * is excluded, the line about this is always written, because quarantine ends the exclusions of a
 * key. Without keys, a worker can join under a new name after each exclusion.
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_MONITOR_MEMBERSHIP_H
#define SERVER_MONITOR_MEMBERSHIP_H
#include <stdint.h>
#include "server/core/core.h"

struct labels;
struct line_budget;

struct membership {
	struct line_budget *lines; /* the number of lines that each slot may still log; borrowed */
	/* number of left-out lines from which on the next log line about them is due */
	uint64_t left_out_at;
	/* number of short steps from which on the next log line about them is due */
	uint64_t short_at;
	/* number of live workers with another data set than the run's, at the last call of
	 * membership_check */
	uint32_t others;
};

void membership_init(struct membership *m, const struct core *c, struct line_budget *lines);
/* Returns the name of a change of a worker, in the log and in the history. */
const char *membership_name(enum worker_change change);
/* Logs an EFFECT_WORKER, unless the slot of the worker has no line left. */
void membership_log(struct membership *m, const struct effect *e, const struct core *c,
	const struct labels *labels);
/* Logs EFFECT_DISPUTED. */
void membership_log_dispute(const struct effect *e);
/* Logs the data set of the run, which is fixed now (EFFECT_DATA_FIXED). */
void membership_log_data(const struct core *c);
/* Logs the number of steps of sync that ended with too few gradients, and the number of lines that
 * were left out, whenever such a number has doubled. If the number of workers with another data
 * set than the run's has grown since the last call, logs this number. */
void membership_check(struct membership *m, const struct core *c);

#endif
