/*
 * waiting.h - a run that is held up says so: what it waits for, for how long, until when, and the
 * command that ends the wait. On the log at growing intervals, on the bar and in the status at
 * once.
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
	char start[320]; /* the command that starts a worker, or what else does */
	struct reminder reminder;
	struct hold_up_view view;
	uint64_t data; /* fingerprint of the run's data set */
	uint64_t now_ms;
};

/* Workers dial `endpoint`, as it was bound; `keyed`: with a key. */
void waiting_init(
	struct waiting *w, const struct core_config *cfg, const char *endpoint, int keyed);
/* Time passed: read the core, log what is due. */
void waiting_tick(struct waiting *w, const struct core *c, uint64_t now_ms);
/* The wait in one line, its begin first so that a narrow bar cuts the command. 0 and "": none. */
int waiting_text(const struct waiting *w, char out[WAITING_TEXT]);

#endif
