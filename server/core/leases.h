/*
 * leases.h - grants batches, and portions of the test set, to workers.
 *
 * Invariants:
 * (1) when an epoch ends, all its batches are done (asserted by leases_advance;
 *     an_epoch_ends_when_all_its_batches_are_done_and_only_then);
 * (2) when an evaluation ends, all its portions are done, and no check of a result is open
 *     (asserted by evaluated; a_check_delays_an_evaluation_for_a_bounded_time).
 *
 * Promises:
 * (1) a lease is a right (rights.h), never a lock: several workers may hold a lease of the same
 *     batch, and the first push of this batch counts, so no worker can block an epoch by keeping a
 *     lease (tests/sim/sim.c: every run ends);
 * (2) the evaluation of an epoch runs while the next epoch trains, and ends before the next epoch
 *     ends (the_next_epoch_ends_only_after_the_last_ones_evaluation);
 * (3) in an asynchronous mode without a robust rule (voices.h), the workers for which batches are
 *     free train while one worker evaluates. The first worker that asks evaluates until all
 *     portions have a result. If it leaves, or is silent, stalled or past its deadline, the next
 *     one that asks continues. Others compute only copies of late portions, and the checks of
 *     checks.h (one_worker_evaluates_while_the_others_train,
 *     an_evaluation_goes_on_without_a_hanging_worker; tests/sim/bounds.c).
 */
#ifndef SERVER_CORE_LEASES_H
#define SERVER_CORE_LEASES_H
#include "server/core/core.h"

struct worker;

/* This struct has the lease of a worker slot. Every snapshot contains the fields above the first
 * blank line (snapshot.c). */
struct worker_lease {
	uint64_t request; /* number of the newest LEASE request of the worker */
	/* the work that the worker holds; if grant.request is 0, the worker holds none. An
	 * eval_count of 0 says that the worker gave a piece of the test set back without a
	 * result */
	struct msg_grant grant;

	int waiting; /* 1: the server has not answered the worker's newest LEASE request yet */
	/* number of LEASE requests and of pushes that delivered nothing, since the newest delivery
	 * of granted work; a snapshot does not contain this number */
	uint32_t empty;
	/* number of grants to the worker since the checks of the evaluation began (checks.h) or, if
	 * the worker has voted in them, since its newest vote; a snapshot does not contain this
	 * number */
	uint32_t since_results;
};

/* The maximum number of messages that a worker may send in a row without a delivery: LEASE requests
 * and pushes that delivered nothing, counted together. A correct worker stays below this number, or
 * sends these messages slowly. The server also answers the messages beyond the limit, but counts
 * each as a dropped message (`ignored` of core_stats), and closes the connection of a peer that
 * sends too many of them (server/net/port.h). */
#define MAX_EMPTY_LEASES 64u

void leases_on_lease(struct core *c, struct worker *w, const struct event *ev);
void leases_on_result(struct core *c, struct worker *w, const struct event *ev);
/* Returns 1 if the core can train on a data set of this size. */
int leases_can_open(const struct core *c, const struct data_id *d);
/* Opens the epoch for `d`, which is now the data set of the run. leases_can_open must return 1 for
 * `d`. */
void leases_open(struct core *c, const struct data_id *d);
/* Called at the end of an event when all batches are done. Begins the evaluation of the epoch and
 * the training of the next epoch. Does nothing while gradients wait for an update, or while a step
 * or the evaluation of the previous epoch is under way. */
void leases_advance(struct core *c);
/* Called at the end of an event: ends the evaluation when all portions are done and no check of a
 * result is left. */
void leases_settle_evaluation(struct core *c);
/* Grants work to the workers that wait for it, the one that waits longest first, until no work is
 * left. */
void leases_grant_waiting(struct core *c);
/* Called at each tick: ends the grants that are past their deadline, and updates which workers are
 * stalled or late. */
void leases_tick(struct core *c);

#endif
