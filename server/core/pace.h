/*
 * pace.h - how long work takes, and what follows from it: when work is late, when a grant ends, and
 * when a worker is stalled.
 *
 * A piece of work is a batch (a portion, in sandblaster) or a piece of the test set. The time that
 * a piece takes is measured from its grant, or from the worker's last delivery, to its delivery,
 * and divided by the number of pieces in this delivery. For each worker and for the fleet (all
 * workers), the core keeps two medians of the newest durations: one for training, one for
 * evaluation. The medians of the fleet contain only deliveries that count. If other deliveries
 * entered the medians, a worker could slowly deliver work that other workers have done already, and
 * so extend the deadlines of all workers (work_that_does_not_count_extends_no_other_deadline).
 *
 * Late: a worker is late if it has held the work of its next delivery for more than twice the time
 * that the fleet's median predicts, but at least for PACE_LATE_MS. With --backup-copies late, an
 * idle worker then gets a copy of this work (leases.c). With --backup-copies immediate, lateness
 * matters only for pieces of the test set: an idle worker gets a copy of a batch at once. While no
 * worker has delivered a piece of the test set, such a piece is late after the deadline of a
 * training grant with as many images.
 *
 * Deadline: a worker must make its next delivery within its deadline. The deadline is PACE_DEADLINE
 * times the time that the worker's own median predicts, but at least PACE_DEADLINE_MS. For a worker
 * with fewer than PACE_OWN durations, the larger of its own median and the fleet's median takes the
 * place of its own. While no worker has delivered work of this kind, the deadline is
 * cfg.leases.first_deadline_ms. After the deadline, another worker gets the work. If the first
 * worker's late result still arrives before the other worker's result, the late result counts.
 *
 * Stalled: a worker is stalled if it has delivered nothing for its deadline, or for PACE_STALL_MS
 * if that is longer. A worker with fewer than PACE_OWN durations is not stalled before three times
 * the deadline that follows from the fleet's median, because it may be slower than the others
 * (a_single_slow_delivery_does_not_triple_the_deadline). While no worker has delivered work of this
 * kind, a worker is stalled after its deadline. The first delivery of this kind then ends the
 * stalled state of the workers that have owed such work for less than the deadline that follows
 * from this delivery. A worker for which a buffer has waited in vain is stalled, too
 * (pace_left_behind). A worker that holds no work and asks for none becomes stalled after the same
 * times. No worker waits for a stalled worker (worker_is_active). The grant of a stalled worker is
 * a shadow: the batches stay free, and the other workers get them too. A stalled worker becomes
 * active again when one of its pushes is accepted, or when it asks for its first work. A worker
 * with an accepted push among its newest replay_window pushes also becomes active again when it
 * delivers work of its newest grant that other workers have done already. Heartbeats and later
 * requests for leases do not make a stalled worker active.
 *
 * Processes: what a worker owes is a property of its slot. A new process in the slot owes the time
 * that the processes before it owed since the last delivery of the slot, and it is stalled if the
 * process before it was. In that case not even its first request for work makes it active. If a new
 * process owed nothing, a worker that joins again before each deadline could make the other workers
 * wait for ever. Before the run has begun there is no work, and a new process owes nothing: the run
 * begins when enough workers are active, so none may stay stalled.
 *
 * Delivery: a push that is accepted. A push of the worker's newest grant that is rejected is a
 * delivery only if the work is over: another worker has done it, or its step or epoch has ended.
 * Whether the work is over is decided by the core's tables, not by the version of the weights that
 * the push claims. Therefore a stale push is no delivery while its work is still to be done.
 *
 * Transfers: while bytes move on the worker's connection (EVENT_PROGRESS), the worker's clock for
 * the deadline and for "stalled" stands still, but not the one for "late". The clock stands still
 * at most for the time that the bytes take at PACE_BYTES_PER_S, and only for as many bytes as the
 * worker's next delivery needs. A new grant does not reset the count of these bytes; only a
 * delivery does.
 *
 * Disk: the workers' clocks also stand still while replies wait for the disk (held_ms of
 * EVENT_TICK), because the workers then wait for the server. If bytes move while replies wait for
 * the disk, the core does not deduct this time twice, because the tick comes before the
 * EVENT_PROGRESS of the same moment.
 *
 * Invariants:
 * (1) a delivery adds a duration to the medians only if it is of the worker's own grant, and each
 *     piece of a grant adds at most one duration (asserted by delivered;
 *     the_same_result_again_is_no_delivery);
 * (2) with --backup-copies late, c->pace.n_late is 0 when no late work can be copied, so that the
 *     core does not search for late work at each request (asserted by grant_backup in leases.c).
 *
 * Promises:
 * (1) pace.c reads no clock of the system; its only time is c->now_ms (tests/lint/symbols.sh).
 */
#ifndef SERVER_CORE_PACE_H
#define SERVER_CORE_PACE_H
#include <stdint.h>
#include "proto/msg.h"

#define PACE_RECENT 15u /* number of newest durations whose median is computed */
#define PACE_LATE   2u  /* work is late after PACE_LATE times the median */
/* minimum time, in ms, after which work can be late: the core measures time in ticks, which are not
 * more precise */
#define PACE_LATE_MS 20u
#define PACE_KINDS   2u /* number of kinds of work: training and evaluation */
/* from this number of durations on, the median of the worker itself determines its deadline */
#define PACE_OWN 3u
/* limit for the durations of work that does not count: such a duration enters the worker's median
 * as at most PACE_SLOW times the fleet's median */
#define PACE_SLOW        20u
#define PACE_DEADLINE    10u /* the deadline is PACE_DEADLINE times the median */
#define PACE_DEADLINE_MS 2000u
#define PACE_STALL_MS    6000u
/* a worker that lost its grant while it was away may still compute the granted work for this time,
 * in ms, before it owes a LEASE */
#define PACE_LOST_MS  10000u
#define PACE_OWED_MAX (1ull << 40) /* maximum of owed_ms; it is longer than any deadline */
/* minimum rate of a transfer that fully stops a worker's clock, in bytes per second */
#define PACE_BYTES_PER_S 8192u

/* This struct has the newest durations of one kind of work, each in microseconds per piece. */
struct recent {
	uint32_t n, next;
	uint32_t us[PACE_RECENT];
	uint32_t median_us;
};

/* This struct has the clocks of one worker. The session section of a snapshot contains it. */
struct pace {
	/* time of the worker's grant, last delivery or WELCOME. Since then the worker owes a
	 * delivery, or a LEASE if it holds no work. 0: it owes nothing */
	uint64_t since_ms;
	uint32_t left; /* number of pieces of the newest grant that the worker has not delivered */
	int late;
	int stalled;
	/* 1: the worker was stalled when it got its grant, so the batches stay free for others */
	int shadow;
	/* time in ms for which the worker has held earlier grants since its last delivery. The
	 * number includes the time that the earlier processes of the slot owed. PACE_OWED_MAX: an
	 * earlier process was stalled, and none has delivered since */
	uint64_t owed_ms;
	/* the part of the time since since_ms that does not count for deadline and "stalled", for
	 * example the time that a transfer took */
	uint64_t paused_ms;
	/* time at which bytes last moved; 0: none moved since since_ms. While since_ms is 0: time
	 * since which the worker owes nothing. The core grants work first to the worker that has
	 * waited longest */
	uint64_t moved_ms;
	uint64_t moved; /* number of bytes that moved since the last delivery */
	struct recent recent[PACE_KINDS];
};

/* This struct has the newest durations of all workers together. */
struct fleet_pace {
	struct recent recent[PACE_KINDS];
	/* number of late workers for each kind of work; idle workers get copies of this work */
	uint32_t n_late[PACE_KINDS];
};

struct core;
struct worker;

/* Returns the number of batches that worker `w` delivers in the time in which a worker of the
 * fleet's median speed delivers `batches` batches; at least 1, at most `batches`. */
uint32_t pace_share(const struct core *c, const struct worker *w, uint32_t batches);
/* Called when the core has just granted w->lease.grant: starts the worker's clock. */
void pace_granted(struct core *c, struct worker *w);
/* Called when the worker asks for other work and thereby gives up the rest of its grant. From then
 * on the worker owes no delivery until it gets a grant. */
void pace_gave_back(struct core *c, struct worker *w);
/* Called after the core has ended the worker's grant. From then on the worker owes a LEASE request,
 * unless it already waits for a grant. */
void pace_expect_lease(const struct core *c, struct worker *w);
/* Called when the worker has pushed `work`; `accepted` says whether the push was accepted.
 * Returns 1 if the work belongs to the worker's newest grant, and the worker delivers it for the
 * first time. */
int pace_trained(struct core *c, struct worker *w, const struct work *work, int accepted);
/* Called when the worker has delivered result `r` of a piece of the test set; `counts` says whether
 * it is the first result of this piece. Returns 1 if the piece belongs to the worker's newest
 * grant, and the worker delivers it for the first time. */
int pace_evaluated(struct core *c, struct worker *w, const struct msg_result *r, int counts);
/* Updates w->pace.late of all workers, and c->pace.n_late. */
void pace_find_late(struct core *c);
/* Called when `bytes` bytes of connection `peer` have moved, in either direction: stops the
 * worker's clock for the time that these bytes took. */
void pace_progress(struct core *c, uint32_t peer, uint64_t bytes);
/* Called when replies have waited for the disk for the last `ms` milliseconds: excludes this time
 * from every worker's clock. */
void pace_hold(struct core *c, uint64_t ms);
/* Called at each tick: marks the worker as stalled if it has delivered nothing for too long.
 * Returns 1 if the worker has passed its deadline or becomes stalled now; the caller must then
 * release its grant. */
int pace_check(struct core *c, struct worker *w);
/* Called when the other workers wait no longer for a worker that has not delivered: marks the
 * worker as stalled if it is active and owes training or a LEASE. In a run without leases, marks it
 * as stalled if it is active. */
void pace_left_behind(struct core *c, struct worker *w);
/* Called when the worker has joined, or has returned after silence: starts the worker's clock
 * again. For a worker that was away, session.state must still be SESSION_AWAY. The worker owes
 * nothing if it waits for a grant, or if the run has no leases. If it lost its grant while it was
 * away, its clock begins only after PACE_LOST_MS. */
void pace_back(const struct core *c, struct worker *w);
/* Returns 1 if the worker has asked for work and now waits for it, or owes a delivery or a LEASE. A
 * worker that has closed its connection waits for no work. */
int pace_is_at_work(const struct worker *w);
/* Returns how long, in ms, the worker has owed a delivery or a LEASE, or 0 if it owes nothing. */
uint64_t pace_owes_ms(const struct core *c, const struct worker *w);
/* Called when the slot's worker comes from a snapshot: clears the worker's clocks. If the worker
 * holds a grant, the time for its delivery counts from now. */
void pace_restart(const struct core *c, struct worker *w);
/* Called when a new process takes the slot, before the fields of its session change: clears the
 * clocks, but the new process owes what the old one owed, and is stalled if the old one was. */
void pace_replace(const struct core *c, struct worker *w);

#endif
