/*
 * departure.h - how workers leave: by silence, by BYE, at the end of the run, or excluded because
 * their gradients or losses are bad: not finite (a broken device, or training that has diverged),
 * of a wrong shape (another model), or of another size than the gradients of the other workers
 * (norms.h). A worker is also excluded if other workers have outvoted its evaluation results too
 * often (checks.h, quarantine.h).
 *
 * Exclusion: MAX_STREAK (20) bad pushes or evaluations in a row exclude their worker; while it
 * replays pushes, twice as many. The worker loses its leases, and no worker waits for it. As soon
 * as the pushes of an excluded worker are durable, the server answers each of its messages with
 * ERROR PS_EQUARANTINE, and the worker's program ends. The worker can return only as a new process,
 * which gets a new incarnation, and not after QUARANTINE_AFTER exclusions (quarantine.h). An
 * accepted push ends a worker's series of bad pushes.
 *
 * Divergence: when a worker reaches MAX_STREAK, the run ends as diverged instead if more than half
 * of the workers are bad. A worker is bad if its last BAD_STREAK (3) pushes and evaluations were
 * bad: a single bad push can be an accident, and a hostile worker could otherwise end the run if it
 * waited for such accidents and then sent its own last bad push
 * (a_worker_cannot_use_single_bad_pushes_of_others). For this majority, all workers count that are
 * live, suspect or expected back, including the one that has reached MAX_STREAK. If these workers
 * have three keys or more, the keys count instead: a key is bad if more than half of its workers
 * are. A run with a single worker diverges only if the server has accepted a push of this
 * incarnation of the worker. If the server has accepted none, the cause may be a broken device of
 * the worker. The run then does not end, however often a supervisor restarts the worker's program,
 * but waits for other workers. Bad initial weights therefore end the run only if at least two
 * workers are connected at the same time. Before min_workers workers have been live at the same
 * time, the run cannot diverge.
 *
 * Invariants:
 * (1) no worker leaves, and a drain ends no worker, while the worker retains pushes that the server
 *     acknowledged before a crash and has lost: the worker replays them first, or keeps them for
 *     the next term (asserted by departure_bye; tests/sim/replays.c and node_worker.c check it);
 * (2) a worker that leaves gets its answer when its pushes are durable (asserted by departure_bye;
 *     bye_is_answered_when_all_pushes_are_durable);
 * (3) messages of an excluded incarnation change nothing (asserted by on_message in core.c;
 *     a_restart_keeps_the_exclusion_and_does_not_wait);
 * (4) an excluded worker is notified when all its pushes that were acknowledged as accepted are
 *     durable, because it then forgets its pushes (asserted by quarantine_notify;
 *     an_excluded_worker_is_notified_when_its_pushes_are_durable);
 * (5) nothing waits for an excluded worker (asserted by exclude;
 *     a_sync_step_does_not_wait_for_an_excluded_worker, tests/sim/bounds.c).
 */
#ifndef SERVER_CORE_DEPARTURE_H
#define SERVER_CORE_DEPARTURE_H
#include "server/core/core.h"

#define BAD_STREAK 3u /* bad pushes and evaluations in a row that make a worker bad */

struct worker;

/* This struct has the state of a worker slot that decides about its exclusion. A snapshot contains
 * it. */
struct worker_quarantine {
	uint32_t bad_streak; /* pushes and evaluations in a row that were bad */
	/* length of the series with which earlier processes of this worker ended; bad pushes of
	 * this process continue that series */
	uint32_t earlier;
	int excluded; /* 1: this incarnation is excluded */
	int sound;    /* 1: a push of this incarnation was accepted */
};

/* Ends the session of worker `w`, because the worker was silent for too long, has another data set
 * than the run, or is excluded. `why` is the change that EFFECT_WORKER reports. */
void departure_die(struct core *c, struct worker *w, enum worker_change why);
/* Counts and reports worker `w`, which is AWAY, as lost. The worker keeps its slot and can resume
 * its session. Does nothing if `w` is already counted. */
void departure_miss(struct core *c, struct worker *w);
void departure_bye(struct core *c, const struct worker *w, uint32_t peer, int status);
/* Sends BYE to `w` when the run is over or the server drains. At a drain, a worker gets no BYE if
 * it retains pushes that the server acknowledged before a crash and has lost: the worker keeps
 * these pushes for the next term. */
void departure_part(struct core *c, const struct worker *w, uint32_t peer);
void departure_part_all(struct core *c);
/* Called when a push or an evaluation of w was bad. If w has reached MAX_STREAK: excludes w, or
 * ends the run as diverged. */
void quarantine_bad(struct core *c, struct worker *w);
/* Called when other workers have refuted an evaluation of the worker with this key and name: counts
 * it like an exclusion. If the worker is then in quarantine, excludes its process `w`, unless `w`
 * is NULL. If the process still replays pushes that were acknowledged before a crash, this happens
 * after 2 * QUARANTINE_AFTER exclusions, because the server cannot check whether the pushes
 * exist. */
void quarantine_strike(struct core *c, struct worker *w, const char *owner, const char *name);
/* Called when a push of w was accepted: ends the series of bad pushes of w. */
void quarantine_good(struct worker *w);
/* Called when a new process takes slot `w`, before the slot changes, for each slot `of` of the same
 * worker. Returns the larger of `streak` and the number of bad pushes in a row of `of`. */
uint32_t quarantine_inherit(const struct worker *of, uint32_t streak);
/* Sends the excluded worker `w` ERROR PS_EQUARANTINE if its pushes are durable; otherwise does
 * nothing. If `peer` is 0, the worker has no connection and gets no message. */
void quarantine_notify(struct core *c, struct worker *w, uint32_t peer);

#endif
