/*
 * departure.h - how workers leave: by silence, by BYE, at the end of the run, or excluded because their
 * gradients or losses are not finite (a broken device, or training that has diverged).
 *
 * Exclusion: MAX_STREAK such pushes or evaluations in a row exclude their worker. It loses its
 * leases, counts for nothing, and each of its messages is answered by ERROR PS_EQUARANTINE; its
 * program ends. Only a new process can come back, as a new incarnation. A push that is accepted
 * ends the streak. But if most of the workers (more than half of those that are live, suspected or
 * expected back, the worker itself among them) sent such a push or evaluation last, it is the
 * training that has diverged, and the run ends. A worker alone is most of the workers if a push of
 * its own incarnation was accepted; else it is one that is broken, however often a supervisor starts
 * it again, and the run waits for others. So bad initial weights end the run only when two workers
 * are there at once. Before min_workers have come there is no training that could diverge.
 *
 * Invariants:
 * (1) nobody leaves, and nobody is sent home by a drain, who holds pushes that were acknowledged
 *     before a crash and that the server has lost: they are replayed first, or kept for the
 *     server's next life;
 * (2) whoever leaves is answered when its pushes are durable;
 * (3) what an excluded incarnation sends changes nothing;
 * (4) it is told when all that it was told is taken is durable, for then it forgets its pushes;
 * (5) nothing waits for it.
 */
#ifndef SERVER_CORE_DEPARTURE_H
#define SERVER_CORE_DEPARTURE_H
#include "server/core/core.h"

struct worker;

/* Of a worker slot. In the snapshot. */
struct worker_quarantine {
	uint32_t bad_streak; /* pushes and evaluations in a row that were not finite */
	int excluded;        /* this incarnation, for that */
	int sound;           /* a push of this incarnation was accepted */
};

/* No beat for too long, or excluded. */
void departure_die(struct core *c, struct worker *w, enum worker_change why);
void departure_bye(struct core *c, const struct worker *w, uint32_t peer, int status);
/* The run is over, or this life of the server: BYE, unless the worker holds pushes that were
 * acknowledged before a crash and that we have lost; it keeps those for the next life. */
void departure_part(struct core *c, const struct worker *w, uint32_t peer);
void departure_part_all(struct core *c);
/* A push or an evaluation of w was not finite: that may exclude w, or end the run. */
void quarantine_bad(struct core *c, struct worker *w);
/* A push of w was accepted. */
void quarantine_good(struct worker *w);
/* Tell an excluded worker, if its pushes are durable; until then nothing is said. */
void quarantine_tell(struct core *c, struct worker *w, uint32_t peer);

#endif
