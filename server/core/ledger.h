/*
 * ledger.h - decides every push exactly once; invariants in ledger.c.
 */
#ifndef SERVER_CORE_LEDGER_H
#define SERVER_CORE_LEDGER_H
#include "server/core/core.h"

struct worker;

/* The decision on a push. Each duplicate of the push gets this same decision. */
struct decision {
	uint64_t version;
	uint8_t verdict, reject, superseded;
	/* the code of the ACK (rights.h); no snapshot has it, so it is 0 after a restart */
	uint64_t code;
};

#define PUSH_WAITS UINT64_MAX

/* This struct is the ledger of a worker slot. Every snapshot contains the fields above the first
 * blank line (snapshot.c). */
struct worker_ledger {
	uint64_t last_seq; /* all pushes with a seq up to last_seq are decided */
	/* the decisions on the newest replay_window seqs; the decision on seq is at seq %
	 * replay_window */
	struct decision *decisions;
	uint64_t images; /* number of images of the worker's accepted pushes */

	uint64_t durable_seq;  /* the worker's newest seq in a snapshot on disk; at most last_seq */
	uint64_t snapshot_seq; /* the worker's newest seq in the snapshot that is being written */
	/* the last_seq of the worker's HELLO: the worker replays its pushes up to this seq. While
	 * the push after the `last_seq` of this struct waits for the end of a recovery,
	 * replay_target is PUSH_WAITS instead. */
	uint64_t replay_target;
};

struct ledger {
	/* The next two fields are only for display, begin at 0 at each start of the server, and are
	 * in no snapshot. */
	uint64_t computed; /* number of images of all workers' accepted pushes */
	uint64_t push_ms;  /* time of the newest decision on a push; 0: there was none */

	/* If the push of this step also requests weights, the core notes the push here, and answers
	 * it at the end of the step, when the new weights are current. */
	struct {
		/* the worker that sent the push; NULL: this step has no such push */
		struct worker *worker;
		uint64_t request;
		struct msg_ack ack;
	} pulling;
};

void ledger_on_push(struct core *c, struct worker *w, const struct event *ev);
/* Called when the recovery ends: asks the workers for the pushes that had to wait for its end. */
void ledger_end_recovery(struct core *c);

#endif
