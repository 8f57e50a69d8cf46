/*
 * leases.c - the batch ledger: which batches of the epoch are counted, and who is asked to do the
 * others.
 *
 * Invariants: (1) a batch is counted once per epoch: leases_judge lets a push in only if none of
 * its batches is done, leases_count marks them in the same step as the weights change; (2) a lease
 * is a hint, never a lock: whoever pushes first wins, so no lease can block an epoch; (3) n_free
 * and n_done count the states in batch[] exactly; (4) an epoch ends when all its batches are done,
 * and only then; its evaluation runs while the next epoch trains, and ends before that one does.
 */
#include "server/core/state.h"
#include <math.h>
#include <string.h>

static uint32_t ceil_div(uint64_t a, uint64_t b)
{
	return (uint32_t)((a + b - 1) / b);
}

uint32_t leases_images(const struct core *c, uint32_t first, uint32_t count)
{
	uint64_t from = (uint64_t)first * c->cfg.batch, to = from + (uint64_t)count * c->cfg.batch;

	return (uint32_t)((to < c->data.n_train ? to : c->data.n_train) - from);
}

static void open_epoch(struct leases *l)
{
	l->n_done = 0;
	l->n_free = l->n_batches;
	memset(l->batch, BATCH_FREE, l->n_batches);
}

int leases_open(struct core *c, const struct data_id *d)
{
	struct leases *l = &c->leases;
	uint64_t most = (uint64_t)c->cfg.batch * WIRE_MAX_BATCHES;

	if (d->n_train == 0 || d->n_train > most || d->n_test == 0)
		return PS_EWRONGDATA;
	c->data = *d;
	l->n_batches = ceil_div(d->n_train, c->cfg.batch);
	l->eval_size = c->cfg.eval_images;
	if (l->eval_size < ceil_div(d->n_test, WIRE_MAX_BATCHES))
		l->eval_size = ceil_div(d->n_test, WIRE_MAX_BATCHES);
	l->n_portions = ceil_div(d->n_test, l->eval_size);
	open_epoch(l);
	return PS_OK;
}

/* ---- giving back ------------------------------------------------------------------------------
 */

static void release_range(
	struct core *c, uint8_t *state, uint32_t first, uint32_t count, uint32_t *n_free)
{
	for (uint32_t i = first; i < first + count; i++) {
		if (state[i] != BATCH_LEASED)
			continue;
		state[i] = BATCH_FREE;
		c->stats.released++;
		if (n_free)
			(*n_free)++;
	}
}

void leases_release(struct core *c, struct worker *w)
{
	struct leases *l = &c->leases;
	const struct msg_grant *g = &w->grant;

	if (g->request == 0)
		return;
	if (g->kind == GRANT_TRAIN && g->work.epoch == l->epoch)
		release_range(c, l->batch, g->work.first, g->work.count, &l->n_free);
	else if (g->kind == GRANT_EVAL && l->evaluating && g->eval_id == l->epoch)
		release_range(c, l->portion, g->eval_first / l->eval_size, 1, NULL);
	w->grant.request =
		0; /* the rest stays: its next lease prefers to begin where this one ended */
}

/* ---- counting ---------------------------------------------------------------------------------
 */

enum reject leases_judge(const struct core *c, const struct work *work, uint32_t images)
{
	const struct leases *l = &c->leases;

	if (c->cfg.epochs == 0)
		return work->count == 0 ? REJECT_NONE : REJECT_SHAPE;
	if (work->count == 0 || work->first >= l->n_batches ||
		work->count > l->n_batches - work->first)
		return REJECT_SHAPE;
	if (images != leases_images(c, work->first, work->count))
		return REJECT_SHAPE;
	if (work->epoch != l->epoch || l->epoch >= c->cfg.epochs)
		return work->epoch < l->epoch ? REJECT_WORK : REJECT_SHAPE;
	if (memchr(l->batch + work->first, BATCH_DONE, work->count))
		return REJECT_WORK;
	return REJECT_NONE;
}

/* The epoch's training is complete and no evaluation is under way: evaluate it, train the next. */
static void next_epoch(struct core *c)
{
	struct leases *l = &c->leases;
	struct effect *e;

	if (l->n_batches == 0 || l->n_done < l->n_batches || l->evaluating ||
		l->epoch >= c->cfg.epochs)
		return;
	c->epoch[l->epoch].end_ms = c->now_ms;
	e = core_emit(c, EFFECT_EPOCH, 0);
	e->epoch = l->epoch;
	store_freeze(c);
	l->evaluating = 1;
	l->n_evaluated = 0;
	memset(l->portion, BATCH_FREE, l->n_portions);
	l->epoch++;
	if (l->epoch < c->cfg.epochs)
		open_epoch(l);
	c->dirty = 1;
}

void leases_count(struct core *c, struct worker *w, const struct msg_push *p)
{
	struct leases *l = &c->leases;
	struct epoch_record *r;

	if (p->work.count == 0)
		return;
	r = &c->epoch[l->epoch];
	for (uint32_t i = p->work.first; i < p->work.first + p->work.count; i++) {
		if (l->batch[i] == BATCH_FREE)
			l->n_free--;
		l->batch[i] = BATCH_DONE;
	}
	l->n_done += p->work.count;
	r->updates++;
	r->images += p->images;
	r->loss_sum += (double)p->loss * p->images;
	c->stats.images += p->images;
	w->images += p->images;
	next_epoch(c);
}

/* ---- evaluation -------------------------------------------------------------------------------
 */

static void evaluated(struct core *c)
{
	struct leases *l = &c->leases;

	l->evaluating = 0;
	core_emit(c, EFFECT_EPOCH, 0)->epoch = l->epoch - 1;
	c->dirty = 1;
	if (l->epoch >= c->cfg.epochs)
		core_end(c, PS_EDONE);
	else
		next_epoch(c);
}

static uint32_t portion_images(const struct core *c, uint32_t first)
{
	uint32_t left = c->data.n_test - first;

	return left < c->leases.eval_size ? left : c->leases.eval_size;
}

void leases_on_result(struct core *c, struct worker *w, const struct event *ev)
{
	const struct msg_result *r = &ev->msg->result;
	struct leases *l = &c->leases;
	struct epoch_record *rec;
	uint32_t i;

	w->peer = ev->peer;
	if (!l->evaluating || r->eval_id != l->epoch)
		return; /* another worker was faster */
	if (r->eval_first >= c->data.n_test || r->eval_first % l->eval_size ||
		r->eval_count != portion_images(c, r->eval_first) || r->correct > r->eval_count ||
		!isfinite(r->loss_sum)) {
		core_refuse(c, ev->peer, PS_EPROTO, 0,
			"this is not the result of a granted evaluation");
		return;
	}
	i = r->eval_first / l->eval_size;
	if (l->portion[i] == BATCH_DONE)
		return;
	l->portion[i] = BATCH_DONE;
	rec = &c->epoch[l->epoch - 1];
	rec->eval_done += r->eval_count;
	rec->eval_correct += r->correct;
	rec->eval_loss_sum += r->loss_sum;
	c->dirty = 1;
	if (++l->n_evaluated == l->n_portions)
		evaluated(c);
}

/* ---- giving out -------------------------------------------------------------------------------
 */

static void grant(struct core *c, struct worker *w)
{
	w->waiting = 0;
	w->grant.request = w->lease_request;
	c->stats.leases++;
	core_send(c, w->peer, MSG_GRANT)->grant = w->grant;
}

static int grant_evaluation(struct core *c, struct worker *w)
{
	struct leases *l = &c->leases;
	uint8_t *p = l->evaluating ? memchr(l->portion, BATCH_FREE, l->n_portions) : NULL;

	if (!p)
		return 0;
	*p = BATCH_LEASED;
	w->grant = (struct msg_grant){.kind = GRANT_EVAL, .eval_id = l->epoch};
	w->grant.eval_first = (uint32_t)(p - l->portion) * l->eval_size;
	w->grant.eval_count = portion_images(c, w->grant.eval_first);
	grant(c, w);
	return 1;
}

/* Warm start: one worker alone, until the weights have left their random beginning. */
static int held_back(const struct core *c, const struct worker *w)
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

/* Where w's next lease begins: after its last one (locality), else at its share of the epoch, else
 * anywhere. */
static uint8_t *free_batch_for(const struct core *c, const struct worker *w)
{
	const struct leases *l = &c->leases;
	uint32_t start = w->grant.work.first + w->grant.work.count, live = 0, before = 0;
	uint8_t *p;

	if (w->grant.kind == GRANT_TRAIN && w->grant.work.epoch == l->epoch &&
		start < l->n_batches && l->batch[start] == BATCH_FREE)
		return &l->batch[start];
	for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
		live += c->worker[i].state == SESSION_LIVE;
		before += c->worker[i].state == SESSION_LIVE && &c->worker[i] < w;
	}
	start = (uint32_t)((uint64_t)l->n_batches * before / (live ? live : 1));
	p = memchr(l->batch + start, BATCH_FREE, l->n_batches - start);
	return p ? p : memchr(l->batch, BATCH_FREE, start);
}

static void grant_training(struct core *c, struct worker *w)
{
	struct leases *l = &c->leases;
	uint32_t live = core_live_workers(c), most, n = 0;
	uint8_t *p;

	if (l->epoch >= c->cfg.epochs || l->n_free == 0 || held_back(c, w))
		return;
	/* small leases at the end of an epoch, so that nobody waits for a long one */
	most = ceil_div(l->n_free, 2 * (uint64_t)(live ? live : 1));
	if (most > c->cfg.lease_batches)
		most = c->cfg.lease_batches;
	p = free_batch_for(c, w);
	w->grant = (struct msg_grant){.kind = GRANT_TRAIN, .work = {.epoch = l->epoch}};
	w->grant.work.first = (uint32_t)(p - l->batch);
	while (n < most && w->grant.work.first + n < l->n_batches && p[n] == BATCH_FREE)
		p[n++] = BATCH_LEASED;
	w->grant.work.count = n;
	l->n_free -= n;
	grant(c, w);
}

static int may_grant(struct core *c)
{
	if (!c->started && core_live_workers(c) >= c->cfg.min_workers)
		c->started = 1;
	return c->started && !c->recovering && c->ending == END_NOT && c->leases.n_batches;
}

void leases_grant_waiting(struct core *c)
{
	if (!may_grant(c))
		return;
	for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
		struct worker *w = &c->worker[i];

		if (w->waiting && w->state == SESSION_LIVE && w->peer && !grant_evaluation(c, w))
			grant_training(c, w);
	}
}

void leases_on_lease(struct core *c, struct worker *w, const struct event *ev)
{
	uint64_t request = ev->msg->lease.request;

	w->peer = ev->peer;
	if (request < w->lease_request || request == 0)
		return; /* an old one that the network kept */
	if (request == w->lease_request) {
		if (w->grant.request == request)
			core_send(c, ev->peer, MSG_GRANT)->grant = w->grant;
		else
			w->waiting = 1;
		return;
	}
	leases_release(c, w);
	w->lease_request = request;
	w->waiting = 1;
}
