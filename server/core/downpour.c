/*
 * downpour.c - asynchronous stochastic gradient descent (Dean 2012, DistBelief): each gradient is
 * applied when it comes, however old its weights are, within a bound. With it: the rate that sees
 * staleness (Zhang 2016, arXiv 1511.05950), the warm start by one worker alone, delay compensation
 * (Zheng 2017, DC-ASGD), and EASGD's centre (Zhang 2015), whose "gradients" are distances.
 */
#include "server/core/modes.h"
#include "server/core/state.h"
#include <math.h>

#define DC_DECAY 0.95 /* of the mean square in adaptive delay compensation */
#define DC_EPS   1e-7

uint64_t downpour_staleness(const struct core *c, const struct msg_push *p)
{
	/* after a restart from a snapshot a worker may have seen versions that are still to come
	 * again */
	return p->base_version < c->store.version ? c->store.version - p->base_version : 0;
}

static uint64_t max_staleness(const struct core *c)
{
	uint64_t bound = 8 * (uint64_t)core_live_workers(c);

	if (c->cfg.max_staleness)
		return c->cfg.max_staleness;
	if (c->cfg.mode == MODE_SSP)
		return UINT64_MAX; /* its clocks bound it */
	return bound < 16 ? 16 : bound;
}

enum reject downpour_judge(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	(void)w;
	/* what had been accepted before a crash is not too old after it */
	if (p->verdict == VERDICT_OK || downpour_staleness(c, p) <= max_staleness(c))
		return REJECT_NONE;
	return REJECT_STALE;
}

/* See enum stale_rate. */
double downpour_rate(const struct core *c, uint64_t tau)
{
	double live = core_live_workers(c);
	double age = (double)tau;

	if (c->cfg.mode == MODE_EASGD)
		return 1;
	if (c->cfg.stale_rate == STALE_CONSTANT)
		return store_rate(c);
	if (c->cfg.stale_rate == STALE_RELATIVE)
		age /= live > 1 ? live : 1;
	return store_rate(c) / (age > 1 ? age : 1);
}

static void count_staleness(struct core *c, uint64_t tau)
{
	size_t bin = 0;

	for (uint64_t t = tau; t && bin < 15; t >>= 1)
		bin++;
	c->stats.staleness[bin]++;
	c->stats.staleness_sum += tau;
}

/* ---- delay compensation: g + lambda * g * g * (w - what w was when this worker pulled it) -----
 */

/* A gradient of the current weights needs no compensation, whatever this worker has pulled: after a
 * crash its replays are not preceded by their pulls. */
static void compensate(struct core *c, struct worker *w, uint64_t tau, struct slice *s, float *out)
{
	const float *now = c->store.weights + s->offset;
	const float *then = tau ? w->backup + s->offset : now;
	float *square = c->store.dc_square + s->offset;

	for (uint64_t i = 0; i < s->count; i++) {
		double g = (double)s->data[i], lambda = c->cfg.dc_lambda;

		if (c->cfg.dc_adaptive) {
			square[i] = (float)(DC_DECAY * (double)square[i] + (1 - DC_DECAY) * g * g);
			lambda /= sqrt((double)square[i] + DC_EPS);
		}
		out[i] = (float)(g + lambda * g * g * ((double)now[i] - (double)then[i]));
	}
	s->data = out;
}

void downpour_take(struct core *c, struct worker *w, const struct msg_push *p)
{
	uint64_t tau = downpour_staleness(c, p);
	double rate = downpour_rate(c, tau);

	count_staleness(c, tau);
	if (c->cfg.dc_lambda > 0 && w->backed_up) {
		struct slices s = p->slices;

		for (uint32_t i = 0; i < s.n; i++)
			compensate(c, w, tau, &s.slice[i], c->store.scratch + s.slice[i].offset);
		store_apply(c, &s, rate);
	} else {
		store_apply(c, &p->slices, rate);
	}
	c->stats.updates++;
	if (p->work.count) {
		leases_record(c, p->images, (double)p->loss * p->images);
		c->epoch[c->leases.epoch].updates++;
	}
}

/* Warm start: one worker alone, until the weights have left their random beginning. */
int downpour_holds_back(const struct core *c, const struct worker *w)
{
	if (c->store.version >= c->cfg.warm_updates)
		return 0;
	for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
		const struct worker *o = &c->worker[i];

		if (o != w && o->state == SESSION_LIVE && o->grant.request &&
			o->grant.kind == GRANT_TRAIN && o->grant.work.epoch == c->leases.epoch)
			return 1;
	}
	return 0;
}

static uint32_t allow(const struct core *c, const struct worker *w)
{
	return downpour_holds_back(c, w) ? 0 : c->cfg.lease_batches;
}

const struct rules rules_downpour = {
	.judge = downpour_judge, .take = downpour_take, .allow = allow};
