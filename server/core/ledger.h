/*
 * ledger.h - every push is decided exactly once; invariants in ledger.c.
 */
#ifndef SERVER_CORE_LEDGER_H
#define SERVER_CORE_LEDGER_H
#include "server/core/core.h"

struct worker;

/* What was decided about a push, for its duplicates. */
struct decision {
	uint64_t version;
	uint8_t verdict, reject, superseded;
};

/* Of a worker slot. The first group is in the snapshot (snapshot.c). */
struct worker_ledger {
	uint64_t last_seq;          /* every seq up to here is decided */
	struct decision *decisions; /* of the newest replay_window seqs, at seq % replay_window */
	uint64_t images;            /* counted from this worker */

	uint64_t durable_seq;   /* in a snapshot on disk; at most last_seq */
	uint64_t snapshot_seq;  /* in the snapshot under way */
	uint64_t replay_target; /* last_seq that its HELLO promised to replay up to */
};

void ledger_on_push(struct core *c, struct worker *w, const struct event *ev);

#endif
