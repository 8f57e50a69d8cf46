/*
 * pace.h - how long work takes, and what follows from it: when work is late, when a grant ends, and
 * when a worker is stalled.
 *
 * A piece of work is a batch (a portion, in sandblaster) or a piece of the test set. The time that
 * a piece takes is measured from its grant, or from the worker's last delivery, to its delivery,
 * and divided by the pieces that came together. Each worker, and the fleet, has the median of its
 * newest durations of each kind.
 *
 * Late: a worker has held the work of its next delivery for more than twice the fleet's median. An
 * idle worker then gets a copy (leases.c).
 *
 * Deadline: ten times this worker's own median for its next delivery, at least PACE_DEADLINE_MS. A
 * worker with fewer than PACE_OWN durations has the fleet's median, or its own if that is larger;
 * while no worker has delivered anything, the deadline is cfg.leases.first_deadline_ms. After it,
 * another worker gets the work. If the late result still comes first, it counts.
 *
 * Stalled: a worker has delivered nothing for its deadline, at least PACE_STALL_MS; a worker with
 * fewer than PACE_OWN durations has three times its deadline. A worker that holds no work and does
 * not ask for any is stalled after the same time. No worker waits for a stalled one
 * (worker_is_active), and its grants are shadows: the others get the same work. A stalled worker is
 * active again when one of its pushes or results counts, or when it asks for its first work. Its
 * heartbeats and later requests for leases change nothing.
 *
 * Transfers: while the server sees bytes of the worker's connection move (EVENT_PROGRESS), these
 * clocks stand still, but no longer than the bytes take at PACE_BYTES_PER_S, and for no more bytes
 * than the next delivery needs.
 *
 * Disk: these clocks also stand still while the disk holds replies back (held_ms of EVENT_TICK),
 * because the workers then wait for the server. Time is not deducted twice for a transfer meanwhile:
 * the tick comes before the EVENT_PROGRESS of the same moment.
 *
 * Invariants:
 * (1) nothing here reads a clock: c->now_ms decides (tests/lint/symbols.sh);
 * (2) a delivery is a sample only if it is of the worker's own grant, and each piece of a grant
 *     gives at most one sample;
 * (3) c->pace.n_late is 0 when no copy can be given, so that idle workers cost nothing.
 */
#ifndef SERVER_CORE_PACE_H
#define SERVER_CORE_PACE_H
#include <stdint.h>
#include "proto/msg.h"

#define PACE_RECENT      15u /* durations in a median */
#define PACE_LATE        2u  /* times the median: late */
#define PACE_LATE_MS     20u /* ... and at least this: a tick is not more precise */
#define PACE_KINDS       2u  /* training, evaluation */
#define PACE_OWN         3u  /* durations that make a worker's own median */
#define PACE_DEADLINE    10u /* times the median */
#define PACE_DEADLINE_MS 2000u
#define PACE_STALL_MS    6000u
#define PACE_BYTES_PER_S 8192u /* a slower transfer is no progress */

/* The newest durations of one kind, in microseconds for a piece. */
struct recent {
	uint32_t n, next;
	uint32_t us[PACE_RECENT];
	uint32_t median_us;
};

/* The clocks of one worker. */
struct pace {
	uint64_t since_ms; /* its grant, its last delivery or its WELCOME: since then it owes a
			      delivery, or a LEASE if it holds no work; 0: it owes nothing */
	uint32_t left;     /* pieces of its newest grant that it has not delivered */
	int late;
	int stalled;
	int shadow;         /* its grant is not in the tables of leases.c */
	uint64_t owed_ms;   /* it held other grants for so long since its last delivery */
	uint64_t paused_ms; /* of the time since since_ms a transfer took this */
	uint64_t moved_ms;  /* when one was seen last; 0: not since since_ms */
	uint64_t moved;     /* its bytes */
	struct recent recent[PACE_KINDS];
};

/* Of all. */
struct fleet_pace {
	struct recent recent[PACE_KINDS];
	uint32_t n_late[PACE_KINDS]; /* workers of whose work a copy may be given */
};

struct core;
struct worker;

/* Of `batches` that a worker of the fleet's median may have, how many w delivers in the same time; at
 * least 1. */
uint32_t pace_share(const struct core *c, const struct worker *w, uint32_t batches);
/* It got w->grant, now. */
void pace_granted(struct core *c, struct worker *w);
/* It asks for other work: it will not deliver the rest. */
void pace_gave_back(struct core *c, struct worker *w);
/* Its grant, if it had one, is void: from now on it owes a LEASE, unless it waits for a grant. */
void pace_expect_lease(const struct core *c, struct worker *w);
/* It delivered `work`, accepted or in vain; 1: it is of its own grant. */
int pace_trained(struct core *c, struct worker *w, const struct work *work, int accepted);
/* The same of a piece of the test set. */
int pace_evaluated(struct core *c, struct worker *w, const struct msg_result *r);
/* Which workers are late now? */
void pace_look(struct core *c);
/* Bytes of this connection have moved, in either direction. */
void pace_progress(struct core *c, uint32_t peer, uint64_t bytes);
/* Replies have waited for the disk for the last `ms`: they count for no worker. */
void pace_hold(struct core *c, uint64_t ms);
/* Time has passed: note whether it is stalled. 1: it has to give back its grant. */
int pace_check(struct core *c, struct worker *w);
/* It has joined, or is here again after silence; its state is still the old one. Its clock starts
 * anew. It owes nothing if it waits for a grant, if it has lost its grant while it was away, or if
 * the run has no leases. */
void pace_back(const struct core *c, struct worker *w);
/* It asks for work or owes a delivery. */
int pace_is_at_work(const struct worker *w);
/* For how long it owes a delivery; 0: it owes none. */
uint64_t pace_owes_ms(const struct core *c, const struct worker *w);
/* A worker of a snapshot, or a new one in its slot: what it holds counts from now. */
void pace_restart(const struct core *c, struct worker *w);

#endif
