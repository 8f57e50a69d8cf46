/*
 * waiting.h - reports why the run waits: for what, how long so far, until when, and the command that
 * ends the wait. In the log at growing intervals, on the progress bar and in the status at once.
 *
 * Thread: the loop's. Time comes in as an argument.
 */
#ifndef SERVER_MONITOR_WAITING_H
#define SERVER_MONITOR_WAITING_H
#include <stddef.h>
#include <stdint.h>
#include "common/reminder.h"
#include "server/core/core.h"

#define WAITING_TEXT 512 /* bytes of a line, with its NUL */

struct waiting {
	char start[320]; /* how to start a worker */
	struct reminder reminder;
	struct hold_up_view view;
	uint64_t data; /* fingerprint of the run's data set */
	uint64_t now_ms;
};

/* Workers connect to `endpoint`, as it was bound; `keyed`: with a key. */
void waiting_init(
	struct waiting *w, const struct core_config *cfg, const char *endpoint, int keyed);
/* Read the state of the core and log a report if one is due. */
void waiting_tick(struct waiting *w, const struct core *c, uint64_t now_ms);
/* One line, with the command last so that a narrow bar cuts it off. 0 and "": the run does not wait. */
int waiting_text(const struct waiting *w, char out[WAITING_TEXT]);

#endif
