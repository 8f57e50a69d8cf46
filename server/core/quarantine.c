/*
 * quarantine.c - workers that send gradients or losses that are not finite, one after another: a
 * broken device, say, or training that has diverged.
 *
 * The rule: MAX_STREAK such pushes or evaluations in a row exclude their worker. It loses its
 * leases, counts for nothing, and each of its messages is answered by ERROR PS_EQUARANTINE; its
 * program ends. Only a new process can come back, as a new incarnation. A push that is accepted
 * ends the streak. But if most of the workers (more than half of those that are live, suspected or
 * expected back, the worker itself among them) sent such a push or evaluation last, it is the
 * training that has diverged, and the run ends. A worker alone is most of the workers if a push of
 * its own incarnation was accepted; else it is one that is broken, and the run waits for others.
 * But where no push of anybody was ever accepted, that holds for the first only: from the second on
 * it is the weights that the run began with. Before min_workers have come there is no training that
 * could diverge.
 *
 * Invariants:
 * (1) what an excluded incarnation sends changes nothing;
 * (2) it is told when all that it was told is taken is durable, for then it forgets its pushes;
 * (3) nothing waits for it.
 */
#include "server/core/state.h"

#define MAX_STREAK 20

/* Those that are silent for a while, or still expected after a restart, are as sound as they were.
 */
static int counts(const struct worker *w)
{
	return w->state == SESSION_LIVE || w->state == SESSION_SUSPECT ||
	       (w->state == SESSION_AWAY && !w->overdue);
}

/* It alone may be what is broken: others could train, or nobody else has tried. */
static int is_suspect(const struct core *c, const struct worker *w)
{
	return !w->sound && (c->stats.accepted > 0 || c->stats.excluded == 0);
}

static int has_diverged(const struct core *c, const struct worker *bad_one)
{
	uint32_t all = 0, bad = 0;

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		const struct worker *w = &c->worker[i];

		all += (uint32_t)counts(w);
		bad += (uint32_t)(counts(w) && w->bad_streak > 0);
	}
	if (!core_has_begun(c) || (all == 1 && is_suspect(c, bad_one)))
		return 0;
	return 2 * bad > all;
}

void quarantine_bad(struct core *c, struct worker *w)
{
	/* what was acknowledged before a crash is replayed first */
	if (++w->bad_streak < MAX_STREAK || w->last_seq < w->replay_target)
		return;
	if (has_diverged(c, w)) {
		core_end(c, PS_EDIVERGED);
		return;
	}
	sessions_die(c, w, WORKER_EXCLUDED);
	w->excluded = 1;
	w->leaving = 1;
	c->stats.excluded++;
	c->urgent = 1;
	quarantine_tell(c, w, w->peer);
}

void quarantine_good(struct worker *w)
{
	w->bad_streak = 0;
	w->sound = 1;
}

void quarantine_tell(struct core *c, struct worker *w, uint32_t peer)
{
	if (sessions_durable_seq(c, w) < w->last_seq)
		return;
	w->leaving = 0;
	if (peer)
		core_refuse(c, peer, PS_EQUARANTINE, 0,
			"excluded: too many losses or gradients of this worker in a row were not "
			"finite: check its device and its data");
}
