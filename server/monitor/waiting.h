/*
 * waiting.h - reports a run that waits: the reason, the time so far, the time limit, and the
 * command that ends the wait. While the run waits, the module logs the report at growing intervals.
 * The progress bar and the status show a wait from its beginning on.
 *
 * Only the loop's thread may call these functions. The caller passes the time.
 */
#ifndef SERVER_MONITOR_WAITING_H
#define SERVER_MONITOR_WAITING_H
#include <stddef.h>
#include <stdint.h>
#include "common/reminder.h"
#include "server/core/view.h"

#define WAITING_TEXT 512 /* size of a buffer for a report, in bytes */

struct waiting {
	char start[320]; /* the command that starts a worker */
	struct reminder reminder;
	struct hold_up_view view;
	uint64_t data; /* fingerprint of the run's data set */
	uint64_t now_ms;
};

/* Prepares the reports. `endpoint` is the address to which workers connect. `keyed` is 1 if the
 * workers need a key. */
void waiting_init(
	struct waiting *w, const struct core_config *cfg, const char *endpoint, int keyed);
/* Reads the state of the core and logs a report if one is due. */
void waiting_tick(struct waiting *w, const struct core *c, uint64_t now_ms);
/* Writes the report as one line. In this line the command comes last, so that it is the first part
 * that a narrow progress bar cuts off. If the run does not wait, returns 0 and writes "". */
int waiting_text(const struct waiting *w, char out[WAITING_TEXT]);

#endif
