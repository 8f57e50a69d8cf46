/*
 * ssp.c - stale synchronous parallel (Ho 2013). The server applies gradients as in downpour.c, but
 * a worker may begin a batch only while it is at most --ssp-bound batches ahead of the slowest
 * worker. Each worker has a clock, which counts its batches. With --ssp-bound 0, the workers run in
 * lock step.
 *
 * Invariants:
 * (1) only live workers that ask for work hold the other workers back; during a recovery, absent
 *     workers that the server expects back do so, too (asserted by ssp_limit;
 *     a_silent_worker_delays_no_worker, a_worker_that_evaluates_delays_no_worker).
 *
 * Promises:
 * (1) a worker that joins or returns starts at the clock of the slowest worker, if its own clock is
 *     lower (tests of tests/unit/test_core_ssp.c: a_worker_that_returns_starts_with_the_slowest,
 *     a_worker_that_joins_late_starts_with_the_slowest,
 *     a_worker_that_joins_during_an_evaluation_starts_with_the_evaluator).
 */
#include "server/core/ssp.h"
#include "common/assert.h"
#include "server/core/core_state.h"
#include "server/core/downpour.h"
#include "server/core/leases.h"
#include "server/core/pace.h"
#include "server/core/rights.h"
#include "server/core/run.h"
#include "server/core/sessions.h"
#include "server/core/workers.h"

static int evaluates(const struct worker *w)
{
	return w->lease.grant.request && w->lease.grant.kind == GRANT_EVAL;
}

/* Returns 1 if the other workers must not run too far ahead of w. A worker that evaluates or is
 * away holds no worker back. During a recovery, however, an absent worker holds the other workers
 * back, because the server expects it back at its old clock. */
static int is_racing(const struct core *c, const struct worker *w)
{
	if (c->run.recovering && w->session.state == SESSION_AWAY)
		return w->ssp.racing;
	return worker_is_active(w) && pace_is_at_work(w) && !evaluates(w);
}

/* Returns the lowest clock of the other racing workers, or UINT64_MAX if there are none. */
static uint64_t slowest(const struct core *c, const struct worker *w)
{
	uint64_t min = UINT64_MAX;

	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *o = &c->worker[i];

		if (o != w && o->ssp.racing && o->ssp.clock < min)
			min = o->ssp.clock;
	}
	return min;
}

/* Returns the clock below which w must not start when it joins or returns: the lowest clock of the
 * other racing workers or, if there are none, of those that evaluate, because they will race again.
 * Returns UINT64_MAX if there are none, either. */
static uint64_t lowest_start(const struct core *c, const struct worker *w)
{
	uint64_t min = slowest(c, w);

	if (min != UINT64_MAX)
		return min;
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *o = &c->worker[i];

		if (o != w && worker_is_active(o) && evaluates(o) && o->ssp.clock < min)
			min = o->ssp.clock;
	}
	return min;
}

/* Returns 1 if the others may wait for each worker with `racing`: it is active or, during a
 * recovery, expected back. */
static int race_is_fair(const struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		if (w->ssp.racing && !worker_is_active(w) &&
			!(c->run.recovering && w->session.state == SESSION_AWAY))
			return 0;
	}
	return 1;
}

/* Returns 1 if the clock of w is so far ahead of the slowest worker that w must wait. */
static int is_ahead(const struct core *c, const struct worker *w)
{
	uint64_t min = slowest(c, w);

	return w->ssp.clock > c->cfg.ssp.bound && w->ssp.clock - c->cfg.ssp.bound > min;
}

/* Returns 1 if `work` would set the clock of w further ahead than a grant permits now. This check
 * is needed because a worker that asks for lease after lease, and pushes nothing, has the right to
 * many batches (rights.h). Work of the newest grant is never too far ahead. */
static int is_too_far(const struct core *c, const struct worker *w, const struct work *work)
{
	const struct msg_grant *g = &w->lease.grant;
	uint64_t min = slowest(c, w);

	if (work->count == 0 || (g->kind == GRANT_TRAIN && rights_cover(&g->work, work)))
		return 0;
	return min < w->ssp.clock + work->count - 1 &&
	       w->ssp.clock + work->count - 1 - min > c->cfg.ssp.bound;
}

static enum reject ssp_check(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	enum reject r = downpour_check(c, w, p);

	if (r != REJECT_NONE || rights_of_replay(c, w, p))
		return r;
	return is_too_far(c, w, &p->work) ? REJECT_WORK : REJECT_NONE;
}

static int ssp_may_begin(const struct core *c, const struct worker *w)
{
	return !downpour_holds_back(c, w) && !is_ahead(c, w);
}

/* Returns the size of the next lease of w. By the rule of Ho 2013, a worker may begin batch number
 * `clock` while clock <= slowest + bound. A lease has as many batches as this rule allows, but at
 * most bound + 1, because a worker that joins during this lease can start at the clock of w. */
static uint32_t ssp_limit(const struct core *c, const struct worker *w)
{
	uint64_t min = slowest(c, w), max = c->cfg.leases.max_batches;

	PS_ASSERT(race_is_fair(c)); /* invariant 1 */
	if (min > w->ssp.clock)
		min = w->ssp.clock;
	if (!ssp_may_begin(c, w))
		return 0;
	uint64_t ahead = min + c->cfg.ssp.bound + 1 - w->ssp.clock;
	return (uint32_t)(ahead < max ? ahead : max);
}

static void ssp_take(struct core *c, struct worker *w, const struct msg_push *p)
{
	downpour_take(c, w, p);
	w->ssp.clock += p->work.count;
}

/* Raises the clock of each worker that joins or returns to the clock of the slowest worker. */
static void ssp_settle(struct core *c)
{
	downpour_settle(c);
	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];
		int racing = is_racing(c, w);

		if (racing && !w->ssp.racing) {
			uint64_t min = lowest_start(c, w);

			if (min != UINT64_MAX && w->ssp.clock < min)
				w->ssp.clock = min;
		}
		w->ssp.racing = racing;
	}
}

const struct rules rules_ssp = {.check = ssp_check,
	.fits = downpour_fits,
	.take = ssp_take,
	.limit = ssp_limit,
	.may_begin = ssp_may_begin,
	.settle = ssp_settle};
