/*
 * sync.c - synchronous steps with spare workers (Chen 2016, arXiv 1604.00981): every worker gets
 * one batch of the same weights; when all but `spares` of them have answered, the mean is applied
 * and the next step begins. Who comes later is too late: its gradient is dropped and counted, its
 * batch leased again.
 *
 * Invariants: (1) a step waits for workers that have a batch of it, live ones, never for a number;
 *             (2) no worker counts twice in a step, except when it replays what had been accepted
 * before a crash of the server; (3) what was accepted is in the next update, or in the snapshot;
 *             (4) steps that are replayed stay steps: a replay of a later one ends the one under
 * way.
 */
#include "server/core/modes.h"
#include "server/core/state.h"

static int has_answered(const struct core *c, const struct worker *w)
{
	return w->answered == c->store.version + 1;
}

static enum reject judge(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	if (p->verdict == VERDICT_OK)
		return REJECT_NONE;
	if (!gather_is_current(c, p))
		return REJECT_STALE;
	return has_answered(c, w) ? REJECT_WORK : REJECT_NONE;
}

static void step(struct core *c)
{
	gather_take(c, c->store.scratch);
	store_step(c, c->store.scratch, store_rate(c));
	c->stats.updates++;
	c->epoch[c->leases.epoch].updates++;
	c->stats.staleness[0]++;
}

static void take(struct core *c, struct worker *w, const struct msg_push *p)
{
	/* only a replay can be of weights that are still to come: it has seen this step end */
	if (p->base_version > c->store.version && c->gather.pushes)
		step(c);
	gather_add(c, p);
	w->answered = c->store.version + 1;
	leases_record(c, p->images, (double)p->loss * p->images);
}

static int is_computing(const struct core *c, const struct worker *w)
{
	const struct msg_grant *g = &w->grant;

	return w->state == SESSION_LIVE && g->request && g->kind == GRANT_TRAIN &&
	       g->version == c->store.version && g->work.epoch == c->leases.epoch &&
	       !has_answered(c, w);
}

/* All but the spares have answered, or nobody has anything to do any more. */
static int is_complete(const struct core *c)
{
	uint32_t answers = 0, computing = 0;

	if (c->gather.pushes == 0)
		return 0;
	if (c->leases.n_done == c->leases.n_batches)
		return 1;
	if (c->recovering) /* replays of this step are to come */
		return 0;
	for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
		answers += (uint32_t)has_answered(c, &c->worker[i]);
		computing += (uint32_t)is_computing(c, &c->worker[i]);
	}
	return answers > 0 && computing <= c->cfg.sync_spares;
}

static void settle(struct core *c)
{
	if (is_complete(c))
		step(c);
}

static uint32_t allow(const struct core *c, const struct worker *w)
{
	return !has_answered(c, w);
}

const struct rules rules_sync = {
	.exact = 1, .judge = judge, .take = take, .allow = allow, .settle = settle};
