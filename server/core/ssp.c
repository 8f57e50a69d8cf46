/*
 * ssp.c - stale synchronous parallel (Ho 2013): gradients are applied as in downpour.c, but a
 * worker begins a batch only while it is at most `ssp_bound` batches ahead of the slowest; a clock
 * counts each worker's batches. Bound 0 is lock step.
 *
 * Invariant: only live workers that ask for work hold the others back; who joins or comes back
 * starts where the slowest is.
 */
#include "server/core/modes.h"
#include "server/core/state.h"

/* Is w one of those that the others must not leave behind? Who is away, or tests, is not; but after
 * a restart of ours everybody is expected back where he was. */
static int is_racing(const struct core *c, const struct worker *w)
{
	if (c->recovering && w->session.state == SESSION_AWAY)
		return w->ssp.racing;
	return worker_is_active(w) && pace_is_at_work(w) &&
	       !(w->lease.grant.request && w->lease.grant.kind == GRANT_EVAL);
}

/* The least clock of the others; UINT64_MAX: there are none. */
static uint64_t slowest(const struct core *c, const struct worker *w)
{
	uint64_t min = UINT64_MAX;

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		const struct worker *o = &c->worker[i];

		if (o != w && o->ssp.racing && o->ssp.clock < min)
			min = o->ssp.clock;
	}
	return min;
}

/* Ho 2013, Stale Synchronous Parallel: batch number `clock` may begin while clock <= slowest +
 * bound. A lease is as long as that allows, and never longer than the bound from where w is:
 * whoever joins while w works on it starts there. */
static uint32_t ssp_limit(const struct core *c, const struct worker *w)
{
	uint64_t min = slowest(c, w), max = c->cfg.leases.max_batches;

	if (min > w->ssp.clock)
		min = w->ssp.clock;
	if (downpour_holds_back(c, w) || w->ssp.clock > min + c->cfg.ssp.bound)
		return 0;
	uint64_t ahead = min + c->cfg.ssp.bound + 1 - w->ssp.clock;
	return (uint32_t)(ahead < max ? ahead : max);
}

static void ssp_take(struct core *c, struct worker *w, const struct msg_push *p)
{
	downpour_take(c, w, p);
	w->ssp.clock += p->work.count;
}

/* Who joins, or comes back from the dead, starts with the slowest. */
static void ssp_settle(struct core *c)
{
	downpour_settle(c);
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		struct worker *w = &c->worker[i];
		int racing = is_racing(c, w);

		if (racing && !w->ssp.racing) {
			uint64_t min = slowest(c, w);

			if (min != UINT64_MAX && w->ssp.clock < min)
				w->ssp.clock = min;
		}
		w->ssp.racing = racing;
	}
}

const struct rules rules_ssp = {.check = downpour_check,
	.fits = downpour_fits,
	.take = ssp_take,
	.limit = ssp_limit,
	.settle = ssp_settle};
