/*
 * sync.h - synchronous steps with backup workers. Rules and invariants are in sync.c.
 */
#ifndef SERVER_CORE_SYNC_H
#define SERVER_CORE_SYNC_H
#include "server/core/modes.h"

/* This struct has the state of a worker slot in mode sync. Every snapshot contains the fields above
 * the blank line; those below it are for the replay of a log (snapshot.c). The number of a step is
 * the version of the weights that the step produces. */
struct worker_sync {
	uint64_t answered; /* the newest step that has a gradient of this worker */
	uint64_t member;   /* the step that waits for this worker; 0: no step does */

	uint64_t active_ms; /* time of the worker's newest message other than a heartbeat */
	int idle;           /* 1: the worker sends only heartbeats, so no step waits for it */
};

/* This struct describes the step under way. */
struct sync {
	int open;
	/* the step's batches lie in [first, end); all other batches of this range are done */
	uint32_t first, end;
	uint32_t due; /* the step ends when it has this number of gradients */
	uint64_t begin_ms;
};

extern const struct rules rules_sync;

#endif
