/*
 * departure.h - how workers leave: by silence, by BYE, at the end of the run, or by exclusion. A
 * worker is excluded if its gradients or losses are bad: not finite (a broken device, or training
 * that has diverged), of a wrong shape (another model), or of another size than the gradients of
 * the other workers (norms.h). A worker is also excluded if other workers have outvoted its
 * evaluation results too often (checks.h, quarantine.h).
 *
 * Exclusion: a bad push or evaluation counts against its worker, and an accepted push makes up for
 * one of them. A worker is excluded when MAX_BAD (20) of them count, for example after 20 in a row.
 * So a worker whose gradients overflow now and then stays, and an accepted push now and then does
 * not save a worker that is mostly bad. The limit is twice as high while the worker still has to
 * replay acknowledged pushes, because its exclusion would lose these pushes. No honest worker sends
 * a push of a wrong shape, so the third one excludes its worker if the server has accepted fewer
 * than 100 pushes of the worker since the first one (WRONG_SHAPE). A replayed push does not count
 * here: a server that has lost its newest state may not know its work. An excluded worker loses its
 * leases, and no other worker waits for it. As soon as the pushes of an excluded worker are
 * durable, the server answers each of its messages with ERROR PS_EQUARANTINE, and the worker's
 * program ends. The worker can return only as a new process, which gets a new incarnation. After
 * QUARANTINE_AFTER exclusions it cannot return at all, unless an admin releases it (quarantine.h).
 *
 * Divergence: when a worker reaches MAX_BAD, the run ends as diverged instead if more than half of
 * the workers are bad. A worker is bad while at least FEW_BAD (3) bad pushes and evaluations count
 * against it. MAX_BAD is so much larger because in a run that diverges, a fast worker sends many
 * bad pushes before the slow ones have sent FEW_BAD of them. A single bad push does not make a
 * worker bad, because it can be an accident: a hostile worker could wait for such accidents of
 * other workers, and then end the run with its own last bad push
 * (a_worker_cannot_use_single_bad_pushes_of_others). All workers that are live, suspect or expected
 * back count for this majority, including the worker that has reached MAX_BAD. If these workers
 * have three keys or more, the keys count instead: a key is bad if more than half of its workers
 * are. A run with a single worker diverges only if the server has accepted a push of this
 * incarnation of the worker. If the server has accepted none, the cause may be a broken device of
 * the worker. In this case the run waits for other workers and does not end, however often a
 * supervisor restarts the worker's program. Bad initial weights therefore end the run only if at
 * least two workers are connected at the same time. Before min_workers workers have been live at
 * the same time, the run cannot diverge.
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
 *     a_sync_step_does_not_wait_for_an_excluded_worker, tests/support/core_invariants.c).
 */
#ifndef SERVER_CORE_DEPARTURE_H
#define SERVER_CORE_DEPARTURE_H
#include "server/core/core.h"

#define FEW_BAD 3u /* number of bad pushes and evaluations that make a worker bad */

struct worker;

/* This struct has the fields of a worker slot that determine whether its worker is excluded. A
 * snapshot contains this struct. */
struct worker_quarantine {
	/* number of bad pushes and evaluations of this process that count: a bad one adds 1, and an
	 * accepted push takes 1 away */
	uint32_t bad;
	/* such a number with which the earlier processes of this worker ended; if `bad` is 0, an
	 * accepted push takes 1 away from this number */
	uint32_t earlier;
	/* WRONG_SHAPE for each push of a wrong shape of this worker, minus 1 for each push that was
	 * accepted since */
	uint32_t shapes;
	int excluded; /* 1: this incarnation is excluded */
	int sound;    /* 1: a push of this incarnation was accepted */
};

/* Ends the session of worker `w`, because the worker was silent for too long, has another data set
 * than the run, or is excluded. `why` is the change that EFFECT_WORKER reports. */
void departure_die(struct core *c, struct worker *w, enum worker_change why);
/* Counts worker `w`, whose session is SESSION_AWAY, as lost and emits EFFECT_WORKER. The worker
 * keeps its slot and can resume its session. Does nothing if `w` is already counted. */
void departure_miss(struct core *c, struct worker *w);
/* Sends BYE on connection `peer`, to worker `w` or, if `w` is NULL, to a process without a session.
 * `status` is PS_OK if the BYE answers another one, otherwise the status with which the run
 * ends. */
void departure_bye(struct core *c, const struct worker *w, uint32_t peer, int status);
/* Sends BYE to `w` when the run is over or the server drains. At a drain, a worker gets no BYE if
 * it retains pushes that the server acknowledged before a crash and has lost: the worker keeps
 * these pushes for the next term. */
void departure_part(struct core *c, const struct worker *w, uint32_t peer);
void departure_part_all(struct core *c);
/* Called when a push or an evaluation of w was bad for reason `why`. If too many of them count:
 * excludes w, or ends the run as diverged. */
void quarantine_bad(struct core *c, struct worker *w, enum reject why);
/* Called when other workers have refuted an evaluation of the worker with this key and name: counts
 * it like an exclusion. If the worker is then in quarantine, excludes its process `w`, unless `w`
 * is NULL. A process that claims to replay pushes that were acknowledged before a crash is excluded
 * only after 2 * QUARANTINE_AFTER exclusions, because its exclusion would lose these pushes. But
 * the server cannot check whether the pushes exist, so the process is not exempt for ever. */
void quarantine_strike(struct core *c, struct worker *w, const char *owner, const char *name);
/* Called when a push of w was accepted: makes up for one bad push of w. */
void quarantine_good(struct worker *w);
/* Called when a new process takes a slot, before that slot changes, once for each slot `of` of the
 * same worker. Raises the numbers in `to` of bad pushes and evaluations of earlier processes to
 * those that count in slot `of`. */
void quarantine_inherit(struct worker_quarantine *to, const struct worker *of);
/* Sends the excluded worker `w` ERROR PS_EQUARANTINE if its pushes are durable; otherwise does
 * nothing. If `peer` is 0, the worker has no connection and gets no message. */
void quarantine_notify(struct core *c, struct worker *w, uint32_t peer);

#endif
