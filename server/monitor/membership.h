/*
 * membership.h - one log line for whatever becomes of a worker.
 *
 * The core has no word for it: its table is looked at in every tick and compared with what was
 * there before. Thread: the loop's.
 */
#ifndef SERVER_MONITOR_MEMBERSHIP_H
#define SERVER_MONITOR_MEMBERSHIP_H
#include <stdint.h>

struct core;
struct labels;

struct seen {
	uint32_t incarnation;
	int state, stalled;
};

struct crew {
	struct seen *seen; /* one per slot; owned */
	uint64_t short_at; /* the number of short steps that is logged next */
	uint32_t others;   /* live workers of another data set than the run's */
};

/* Start from the table as it is: nothing of that is logged. */
void crew_init(struct crew *w, const struct core *c);
void crew_release(struct crew *w);
/* Log what has changed since the last call. */
void crew_look(struct crew *w, const struct core *c, const struct labels *labels);

#endif
