/*
 * line_budget.h - the number of lines that each worker slot may still cause in the log. A worker
 * that joins and leaves, replaces its processes, or opens its lane or side connections again and
 * again cannot fill the disk of the log: each slot has SLOT_LINES lines, and gets one more in
 * SLOT_LINE_MS. The log reports the number of lines that were left out (membership_check).
 *
 * The lines of a slot are those of all workers that use the slot in turn. If each key had its own
 * lines, two keys that take turns in a slot could fill the log. So a worker that gets a slot whose
 * lines are used up has only one line in each SLOT_LINE_MS.
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_NET_LINE_BUDGET_H
#define SERVER_NET_LINE_BUDGET_H
#include <stdint.h>
#include "proto/msg.h"

#define SLOT_LINES   2000u
#define SLOT_LINE_MS 60000u

/* In a struct of zeros, all slots may still write all their lines. The entries with index 0 are for
 * lines about several workers, and those with index `i` for lines about worker id `i`. */
struct line_budget {
	uint64_t now_ms; /* time of the newest line_budget_tick */
	/* spent_ms: time until the lines written so far are forgotten, counted from taken_ms;
	 * taken_ms: time of the newest call of line_budget_take for this entry */
	uint32_t spent_ms[WIRE_MAX_WORKERS + 1];
	uint64_t taken_ms[WIRE_MAX_WORKERS + 1];
	/* number of lines that were not written because a slot had no lines left */
	uint64_t left_out;
};

/* Sets the time. `now_ms` never decreases. */
void line_budget_tick(struct line_budget *b, uint64_t now_ms);
/* Takes a line of worker id `worker`, or of all workers if `worker` is 0. Returns 0 if there is no
 * line left: the caller must not write the line. */
int line_budget_take(struct line_budget *b, uint32_t worker);

#endif
