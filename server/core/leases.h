/*
 * leases.h - who is asked to compute which batches and which pieces of the test set.
 *
 * Invariants:
 * (1) a lease is a hint, never a lock: whoever pushes first wins, so no lease can block an epoch
 *     (tests/sim/bounds.c: every run ends);
 * (2) an epoch ends when all its batches are done, and only then; its evaluation runs while the
 *     next epoch trains, and ends before that one does.
 */
#ifndef SERVER_CORE_LEASES_H
#define SERVER_CORE_LEASES_H
#include "server/core/core.h"

struct worker;

/* Of a worker slot. The first group is in the snapshot (snapshot.c). */
struct worker_lease {
	uint64_t request;       /* newest LEASE request seen */
	struct msg_grant grant; /* what it holds; request 0: nothing */

	int waiting; /* asked for a lease and was not answered yet */
};

void leases_on_lease(struct core *c, struct worker *w, const struct event *ev);
void leases_on_result(struct core *c, struct worker *w, const struct event *ev);
/* 1: a run of this data set is within the limits. */
int leases_can_open(const struct core *c, const struct data_id *d);
/* The run is of this data set, which can be opened: the epoch begins. */
void leases_open(struct core *c, const struct data_id *d);
/* All batches are done. At the end of an event: the next epoch, if nothing of this one is under way. */
void leases_advance(struct core *c);
/* Answer whoever waits, if there is something to give. */
void leases_grant_waiting(struct core *c);
/* Time has passed: end grants that are past their deadline, note who is stalled or late. */
void leases_tick(struct core *c);

#endif
