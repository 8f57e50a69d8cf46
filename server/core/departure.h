/*
 * departure.h - how workers leave: by silence, by BYE, at the end of the run, or excluded because
 * their gradients or losses are bad: not finite (a broken device, or training that has diverged),
 * or of another size than those of the other workers (norms.h).
 *
 * Exclusion: MAX_STREAK bad pushes or evaluations in a row exclude their worker. The worker loses
 * its leases and counts for nothing. The server answers each of its messages with ERROR
 * PS_EQUARANTINE, and its program ends. Only a new process can come back, as a new incarnation. An
 * accepted push ends the streak.
 *
 * Divergence: the run ends as diverged if the newest push or evaluation of most workers was bad.
 * Most is more than half of the workers that are live, suspected or expected back, the excluded
 * one included. A run with a single worker diverges only if the server has accepted a push of this
 * incarnation of the worker. Otherwise its device is taken for broken, however often a
 * supervisor restarts its program, and the run waits for other workers. Bad initial weights
 * therefore end the run only if at least two workers are connected at the same time. Before
 * min_workers have come, the run cannot diverge.
 *
 * Invariants:
 * (1) no worker leaves, and a drain ends no worker, while the worker retains pushes that the server
 *     acknowledged before a crash and has lost: the worker replays them first, or keeps them for
 *     the next term (tests/sim/replays.c and node_worker.c check it);
 * (2) a worker that leaves gets its answer when its pushes are durable;
 * (3) messages of an excluded incarnation change nothing;
 * (4) an excluded worker is notified when all its pushes that were acknowledged as accepted are
 *     durable, because it then forgets its pushes;
 * (5) nothing waits for an excluded worker.
 */
#ifndef SERVER_CORE_DEPARTURE_H
#define SERVER_CORE_DEPARTURE_H
#include "server/core/core.h"

struct worker;

/* The quarantine of a worker slot. A snapshot contains it. */
struct worker_quarantine {
	uint32_t bad_streak; /* pushes and evaluations in a row that were bad */
	int excluded;        /* 1: this incarnation is excluded for its streak */
	int sound;           /* 1: a push of this incarnation was accepted */
};

/* End the session of a worker that was silent for too long, or is excluded. */
void departure_die(struct core *c, struct worker *w, enum worker_change why);
void departure_bye(struct core *c, const struct worker *w, uint32_t peer, int status);
/* The run is over, or the server drains: send BYE. A worker gets no BYE if it retains pushes that
 * the server acknowledged before a crash and has lost: it keeps them for the next term. */
void departure_part(struct core *c, const struct worker *w, uint32_t peer);
void departure_part_all(struct core *c);
/* A push or an evaluation of w was bad: that may exclude w, or end the run. */
void quarantine_bad(struct core *c, struct worker *w);
/* A push of w was accepted. */
void quarantine_good(struct worker *w);
/* Send an excluded worker ERROR PS_EQUARANTINE, if its pushes are durable; otherwise do nothing. */
void quarantine_notify(struct core *c, struct worker *w, uint32_t peer);

#endif
