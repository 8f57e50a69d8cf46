/* leases.c - see leases.h. */
#include "server/core/leases.h"
#include "common/assert.h"
#include "common/clones.h"
#include "server/core/accumulator.h"
#include "server/core/batch_ledger.h"
#include "server/core/checkpoints.h"
#include "server/core/checks.h"
#include "server/core/core_state.h"
#include "server/core/dataset.h"
#include "server/core/departure.h"
#include "server/core/effects.h"
#include "server/core/ledger.h"
#include "server/core/modes.h"
#include "server/core/pace.h"
#include "server/core/rights.h"
#include "server/core/run.h"
#include "server/core/sandblaster.h"
#include "server/core/sessions.h"
#include "server/core/store.h"
#include "server/core/voices.h"
#include "server/core/workers.h"
#include <math.h>
#include <string.h>

static void open_epoch(struct core *c)
{
	batch_ledger_open(c);
	if (c->rules->open_epoch)
		c->rules->open_epoch(c);
}

int leases_can_open(const struct core *c, const struct data_id *d)
{
	uint64_t max = (uint64_t)c->cfg.training.batch_size * WIRE_MAX_BATCHES;

	return d->n_train > c->cfg.training.validate && d->n_train <= max && d->n_test > 0;
}

void leases_open(struct core *c, const struct data_id *d)
{
	struct leases *l = &c->leases;

	c->dataset.id = *d;
	const uint32_t n_eval = core_eval_images(c);
	l->n_batches = batch_ledger_ceil_div(core_train_images(c), c->cfg.training.batch_size);
	l->eval_size = c->cfg.leases.eval_images;
	if (l->eval_size < batch_ledger_ceil_div(n_eval, WIRE_MAX_BATCHES))
		l->eval_size = batch_ledger_ceil_div(n_eval, WIRE_MAX_BATCHES);
	l->n_portions = batch_ledger_ceil_div(n_eval, l->eval_size);
	open_epoch(c);
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Returns 1 if each of the n batches or portions of `state` is BATCH_DONE. */
static int all_done(const uint8_t *state, uint32_t n)
{
	int ok = 1;

	for (uint32_t i = 0; i < n; i++)
		ok &= state[i] == BATCH_DONE;
	return ok;
}

/* If the training of the epoch is complete and no evaluation is under way: begins its evaluation,
 * and opens the next epoch. */
void leases_advance(struct core *c)
{
	struct leases *l = &c->leases;

	if (l->n_batches == 0 || l->evaluating || l->epoch >= c->cfg.training.epochs ||
		c->accumulator.images > 0 || c->sandblaster.open)
		return;
	PS_ASSERT(l->n_done == l->n_batches && l->n_free == 0);
	/* invariant 1 of leases.h, and invariant 2 of batch_ledger.h */
	PS_ASSERT(all_done(l->batch, l->n_batches));
	c->epoch[l->epoch].end_ms = c->now_ms;
	effects_add_epoch(c, EFFECT_TRAINED, l->epoch);
	c->leases.announced = 0;
	store_freeze(c);
	l->evaluating = 1;
	l->n_evaluated = 0;
	memset(l->portion, BATCH_FREE, l->n_portions);
	l->epoch++;
	checks_open(c);
	if (l->epoch < c->cfg.training.epochs)
		open_epoch(c);
	c->checkpoints.dirty = 1;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

static void evaluated(struct core *c)
{
	struct leases *l = &c->leases;

	PS_ASSERT(all_done(l->portion, l->n_portions) && c->checks.n == 0); /* invariant 2 */
	l->evaluating = 0;
	effects_add_epoch(c, EFFECT_EVALUATED, l->epoch - 1);
	c->checkpoints.dirty = 1;
	if (l->epoch >= c->cfg.training.epochs)
		run_end(c, PS_EDONE);
}

void leases_settle_evaluation(struct core *c)
{
	if (c->leases.evaluating && checks_have_begun(c) && checks_settle(c))
		evaluated(c);
}

static uint32_t portion_images(const struct core *c, uint32_t first)
{
	uint32_t left = core_eval_images(c) - first;

	return left < c->leases.eval_size ? left : c->leases.eval_size;
}

/* Returns 1 if all sums of the epoch stay finite when this result is added. */
static int is_finite_with(const struct epoch_record *e, const struct msg_result *r)
{
	int ok = isfinite(e->eval_loss_sum + r->loss_sum) != 0;

	for (size_t m = 0; m < MAX_METRICS; m++)
		ok &= isfinite(e->metric_sum[m] + r->metric_sum[m]) != 0;
	return ok;
}

static void add_result(struct epoch_record *e, const struct msg_result *r)
{
	e->eval_done += r->eval_count;
	e->eval_correct += r->correct;
	e->eval_loss_sum += r->loss_sum;
	for (size_t m = 0; m < MAX_METRICS; m++)
		e->metric_sum[m] += r->metric_sum[m];
}

/* Counts a result that the core does not use. `delivered` is the return value of pace_evaluated: 1
 * if the result is the first one for the newest grant of its worker. */
static void note_unused(struct core *c, int delivered)
{
	c->stats.superseded += delivered != 0;
	effects_drop(c, delivered == 0);
}

/* Called when a worker was outvoted. Unless every portion is in the sample, drops all results of
 * the evaluation, because the same worker may have computed other results that nobody has checked.
 * All portions are then computed again. */
static void repeat_evaluation(struct core *c)
{
	struct leases *l = &c->leases;
	struct epoch_record *r = &c->epoch[l->epoch - 1];

	/* a worker that has delivered the portion of its grant must not hold this portion again,
	 * nor deliver it again */
	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];

		if (w->lease.grant.kind != GRANT_EVAL || w->pace.left > 0)
			continue;
		batch_ledger_release(c, w);
		if (w->lease.grant.eval_count > 0) /* not given back without a result */
			w->lease.grant.eval_id = 0;
	}
	for (uint32_t i = 0; i < l->n_portions; i++)
		if (l->portion[i] == BATCH_DONE)
			l->portion[i] = BATCH_FREE;
	l->n_evaluated = 0;
	r->eval_done = r->eval_correct = 0;
	r->eval_loss_sum = 0;
	memset(r->metric_sum, 0, sizeof(r->metric_sum));
	checks_open_again(c);
}

void leases_on_result(struct core *c, struct worker *w, const struct event *ev)
{
	const struct msg_result *r = &ev->msg->result;
	struct leases *l = &c->leases;
	struct epoch_record *rec;
	uint32_t i;

	w->session.peer = ev->peer;
	/* the evaluation of this epoch has ended, so another worker has already delivered this
	 * result */
	if (!l->evaluating || r->eval_id != l->epoch) {
		note_unused(c, pace_evaluated(c, w, r, 0));
		return;
	}
	if (r->eval_first >= core_eval_images(c) || r->eval_first % l->eval_size ||
		r->eval_count != portion_images(c, r->eval_first) || r->correct > r->eval_count) {
		effects_refuse(c, ev->peer, PS_EPROTO, 0,
			"this is not the result of a granted evaluation");
		return;
	}
	/* the server has not granted the portion to this worker */
	if (!rights_to_result(c, w, r)) {
		c->stats.refused++;
		effects_drop(c, 1);
		return;
	}
	w->lease.empty = 0;
	i = r->eval_first / l->eval_size;
	rec = &c->epoch[l->epoch - 1];
	if (l->portion[i] == BATCH_DONE) {
		const uint64_t attempt = rights_attempt(c);
		int delivered = pace_evaluated(c, w, r, 0);

		if (is_finite_with(rec, r) && checks_on_result(c, w, i, r))
			c->checkpoints.dirty = 1;
		else
			note_unused(c, delivered);
		if (rights_attempt(c) != attempt)
			repeat_evaluation(c);
		return;
	}
	/* a sum would not stay finite; the portion becomes free when the worker sends its next
	 * LEASE */
	if (!is_finite_with(rec, r)) {
		quarantine_bad(c, w, REJECT_NONFINITE);
		return;
	}
	(void)pace_evaluated(c, w, r, 1);
	l->portion[i] = BATCH_DONE;
	if (checks_hold(c, i))
		(void)checks_on_result(c, w, i, r);
	else
		add_result(rec, r);
	c->checkpoints.dirty = 1;
	l->n_evaluated++;
	leases_settle_evaluation(c);
}

/* ---- grants ---------------------------------------------------------------------------------- */

static void send_grant(struct core *c, const struct worker *w, uint32_t peer)
{
	struct msg_grant *g = &effects_send_decided(c, peer, MSG_GRANT)->grant;

	*g = w->lease.grant;
	g->code = rights_of_grant(c, w, g);
}

static void grant(struct core *c, struct worker *w)
{
	w->lease.waiting = 0;
	w->lease.grant.request = w->lease.request;
	w->lease.since_results = checks_have_begun(c) ? w->lease.since_results + 1 : 0;
	c->stats.leases++;
	pace_granted(c, w);
	effects_begin(c);
	if (w->lease.grant.kind == GRANT_TRAIN && !c->leases.announced) {
		c->leases.announced = 1;
		effects_add_epoch(c, EFFECT_EPOCH_BEGUN, w->lease.grant.work.epoch);
	}
	send_grant(c, w, w->session.peer);
}

/* Returns a portion of the evaluation that only late workers hold, or NULL if there is none. */
static uint8_t *late_portion(struct core *c)
{
	struct leases *l = &c->leases;

	for (uint32_t k = 0; k < c->n_slots && c->pace.n_late[1]; k++) {
		const struct worker *o = &c->worker[k];
		uint32_t i = o->lease.grant.eval_first / l->eval_size;

		if (o->pace.late && batch_ledger_holds(c, o, 1, i) &&
			l->portion[i] == BATCH_LEASED && !batch_ledger_in_good_hands(c, o, 1, i))
			return &l->portion[i];
	}
	c->pace.n_late[1] = 0;
	return NULL;
}

static void grant_portion(struct core *c, struct worker *w, uint32_t i)
{
	w->lease.grant = (struct msg_grant){.kind = GRANT_EVAL, .eval_id = c->leases.epoch};
	w->lease.grant.eval_first = i * c->leases.eval_size;
	w->lease.grant.eval_count = portion_images(c, w->lease.grant.eval_first);
	grant(c, w);
}

/* Returns 1 if the newest grant of `w` was a portion of this evaluation, and `w` has given it back
 * without a result. */
static int has_given_back(const struct core *c, const struct worker *w)
{
	const struct msg_grant *g = &w->lease.grant;

	return g->kind == GRANT_EVAL && g->eval_id == c->leases.epoch && g->eval_count == 0;
}

/* Returns 1 if `w` shall leave the evaluation to the other workers: `w` has given a portion back,
 * and a worker that has not done so is at work. Without this rule, a worker could take the same
 * portion again and again, and no other worker would get it. */
static int leaves_evaluation(const struct core *c, const struct worker *w)
{
	if (!has_given_back(c, w))
		return 0;
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *o = &c->worker[i];

		if (o != w && worker_is_active(o) && worker_is_of_run(c, o) && pace_is_at_work(o) &&
			!has_given_back(c, o))
			return 1;
	}
	return 0;
}

static int grant_evaluation(struct core *c, struct worker *w)
{
	struct leases *l = &c->leases;
	uint8_t *p = l->evaluating ? memchr(l->portion, BATCH_FREE, l->n_portions) : NULL;
	uint32_t i;

	if (l->evaluating && leaves_evaluation(c, w))
		return 0;
	if (!p && l->evaluating && !w->pace.stalled && checks_find(c, w, &i)) {
		grant_portion(c, w, i);
		return 1;
	}
	if (!p && l->evaluating) {
		p = late_portion(c);
		c->stats.backups += p != NULL;
	}
	if (!p)
		return 0;
	if (!w->pace.stalled)
		*p = BATCH_LEASED;
	grant_portion(c, w, (uint32_t)(p - l->portion));
	return 1;
}

/* Returns 1 if a worker other than `w` evaluates: it is active and has a portion of this
 * evaluation. It has the portion until its next LEASE, also after it has delivered the result. */
static int another_evaluates(const struct core *c, const struct worker *w)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *o = &c->worker[i];
		uint32_t portion = o->lease.grant.eval_first / c->leases.eval_size;

		if (o != w && worker_is_active(o) && batch_ledger_holds(c, o, 1, portion))
			return 1;
	}
	return 0;
}

/* Returns 1 if `w` shall leave the free portions to the worker that evaluates, and train. No worker
 * does so in an exact mode, where no step ends without the worker that evaluates, nor in a run with
 * a robust rule, whose buffers would lack the gradients of this worker (voices.h). */
static int trains_first(const struct core *c, const struct worker *w)
{
	const struct leases *l = &c->leases;

	if (mode_is_exact(c->cfg.training.mode) || voices_matter(c))
		return 0;
	return l->evaluating && l->n_free > 0 && memchr(l->portion, BATCH_FREE, l->n_portions) &&
	       another_evaluates(c, w);
}

static int is_free(const struct leases *l, uint32_t i)
{
	return i < l->n_batches && l->batch[i] == BATCH_FREE;
}

/* Returns the batch at which the next lease of w begins. The function tries these batches in order
 * and returns the first free one: in an exact mode, the first batch of the worker's last lease; the
 * batch after this lease, for locality; the batches from the beginning of the worker's share of the
 * epoch; all other batches. */
static uint8_t *free_batch_for(const struct core *c, const struct worker *w)
{
	const struct leases *l = &c->leases;
	const struct work *last = &w->lease.grant.work;
	int here = w->lease.grant.kind == GRANT_TRAIN && last->epoch == l->epoch;
	uint32_t start, live = 0, before = 0;
	uint8_t *p;

	if (here && mode_is_exact(c->cfg.training.mode) && is_free(l, last->first))
		return &l->batch[last->first];
	if (here && is_free(l, last->first + last->count))
		return &l->batch[last->first + last->count];
	for (uint32_t i = 0; i < c->n_slots; i++) {
		live += (uint32_t)worker_is_active(&c->worker[i]);
		before += worker_is_active(&c->worker[i]) && &c->worker[i] < w;
	}
	start = (uint32_t)((uint64_t)l->n_batches * before / (live ? live : 1));
	p = memchr(l->batch + start, BATCH_FREE, l->n_batches - start);
	return p ? p : memchr(l->batch, BATCH_FREE, start);
}

/* Among the batches that workers hold, returns the one with the fewest backup copies. If several
 * batches have the fewest copies, returns the first of them. Returns NULL if no worker holds a
 * batch. */
static uint8_t *with_fewest_copies(const struct leases *l)
{
	uint8_t *best = NULL;

	for (uint8_t *p = l->batch; p < l->batch + l->n_batches; p++)
		if (*p == BATCH_LEASED &&
			(!best || l->copies[p - l->batch] < l->copies[best - l->batch]))
			best = p;
	return best;
}

/* Returns the batch with the fewest copies among the batches that only late workers hold. If
 * several batches of a lease have the fewest copies, the function prefers the last of them, because
 * the late worker computes the batches of its lease from the first to the last. Returns NULL if no
 * batch is held by late workers alone. */
static uint8_t *late_batch(struct core *c)
{
	struct leases *l = &c->leases;
	uint8_t *best = NULL;

	for (uint32_t k = 0; k < c->n_slots && c->pace.n_late[0]; k++) {
		const struct worker *o = &c->worker[k];
		const struct work *work = &o->lease.grant.work;

		if (!o->pace.late || o->pace.shadow ||
			!batch_ledger_is_training(c, &o->lease.grant))
			continue;
		for (uint32_t i = work->first + work->count; i-- > work->first;) {
			if (l->batch[i] != BATCH_LEASED || batch_ledger_in_good_hands(c, o, 0, i))
				continue;
			if (!best || l->copies[i] < l->copies[best - l->batch])
				best = &l->batch[i];
		}
	}
	if (!best)
		c->pace.n_late[0] = 0;
	return best;
}

/* Returns the batch that `w` shall compute although another worker holds it, or NULL if there is
 * none. */
static uint8_t *batch_to_copy(struct core *c, const struct worker *w)
{
	/* a stalled worker gets a copy of any batch. The grant is a shadow (pace.h), and the worker
	 * is active again when it delivers the batch */
	if (w->pace.stalled)
		return with_fewest_copies(&c->leases);
	switch (c->cfg.leases.backup_copies) {
	case BACKUP_LATE:
		return late_batch(c);
	case BACKUP_IMMEDIATE:
		return with_fewest_copies(&c->leases);
	case BACKUP_NONE:
		break;
	}
	return NULL;
}

/* Called when no batch is free: grants `w` a copy of a granted batch. The first result for this
 * batch that arrives counts. Returns 0 if there is no batch to copy. */
static int grant_backup(struct core *c, struct worker *w)
{
	struct leases *l = &c->leases;
	uint8_t *p = batch_to_copy(c, w);

	/* invariant 2 of pace.h */
	PS_ASSERT(p || w->pace.stalled || c->cfg.leases.backup_copies != BACKUP_LATE ||
		  c->pace.n_late[0] == 0);
	if (!p)
		return 0;
	if (l->copies[p - l->batch] < UINT8_MAX && !w->pace.stalled)
		l->copies[p - l->batch]++;
	w->lease.grant = (struct msg_grant){.kind = GRANT_TRAIN,
		.work = {.epoch = l->epoch, .first = (uint32_t)(p - l->batch), .count = 1},
		.exact = (uint32_t)mode_is_exact(c->cfg.training.mode),
		.version = c->store.version};
	c->stats.backups++;
	grant(c, w);
	return 1;
}

/* Grants `w` up to `max` free batches, beginning with `p`. The grant ends before the first batch
 * that is not free. */
static void grant_free(struct core *c, struct worker *w, uint8_t *p, uint32_t max)
{
	struct leases *l = &c->leases;
	uint32_t n = 0, first = (uint32_t)(p - l->batch);

	while (n < max && first + n < l->n_batches && p[n] == BATCH_FREE)
		n++;
	/* batches that a stalled worker gets stay free for the other workers */
	if (!w->pace.stalled) {
		memset(p, BATCH_LEASED, n);
		l->n_free -= n;
	}
	w->lease.grant = (struct msg_grant){.kind = GRANT_TRAIN,
		.work = {.epoch = l->epoch, .first = first, .count = n},
		.exact = (uint32_t)mode_is_exact(c->cfg.training.mode),
		.version = c->store.version};
	grant(c, w);
}

/* Returns 1 if `w` gets a training lease. */
static int grant_training(struct core *c, struct worker *w)
{
	struct leases *l = &c->leases;
	uint32_t live, max, allowed, voices;
	uint8_t *first;

	if (l->epoch >= c->cfg.training.epochs)
		return 0;
	allowed = c->rules->limit(c, w);
	voices = voices_limit(c, w);
	allowed = allowed < voices ? allowed : voices;
	if (allowed == 0)
		return 0;
	if (l->n_free == 0)
		return grant_backup(c, w);
	/* Leases are small at the end of an epoch, so that no worker waits for a long lease of
	 * another worker. If only one worker is live, no other worker waits, so its leases are as
	 * large as the mode allows. Larger leases also mean fewer pushes, because each lease ends
	 * in a push. */
	live = core_live_workers(c);
	max = live > 1 ? batch_ledger_ceil_div(l->n_free, 2 * (uint64_t)live) : l->n_free;
	max = pace_share(c, w, max < allowed ? max : allowed);
	first = free_batch_for(c, w);
	PS_ASSERT(first); /* n_free > 0: invariant 2 of batch_ledger.h */
	grant_free(c, w, first, max);
	return 1;
}

/* Returns 1 if the worker waits for work, and can get an answer. */
static int waits_for_work(const struct worker *w)
{
	return w->lease.waiting && w->session.state == SESSION_LIVE && w->session.peer;
}

/* Lists the workers that wait for work, the one that waits longest first. Returns their number. */
static uint32_t find_waiting(struct core *c, struct worker *waiting[WIRE_MAX_WORKERS])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];
		uint32_t at = n;

		if (!waits_for_work(w) || !worker_is_of_run(c, w))
			continue;
		for (; at > 0 && waiting[at - 1]->pace.moved_ms > w->pace.moved_ms; at--)
			waiting[at] = waiting[at - 1];
		waiting[at] = w;
		n++;
	}
	return n;
}

/* Write NOINLINE before a function with a large frame that its caller rarely calls. */
#define NOINLINE __attribute__((noinline))

/* Grants work to the workers that wait for it. */
static NOINLINE void grant_to_all(struct core *c)
{
	PS_UNINITIALIZED struct worker *waiting[WIRE_MAX_WORKERS];
	uint32_t n = find_waiting(c, waiting);

	for (uint32_t i = 0; i < n; i++) {
		struct worker *w = waiting[i];

		if (trains_first(c, w) && grant_training(c, w))
			continue;
		if (!grant_evaluation(c, w))
			(void)grant_training(c, w);
	}
}

void leases_grant_waiting(struct core *c)
{
	if (!run_gives_work(c))
		return;
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (waits_for_work(&c->worker[i])) {
			grant_to_all(c);
			return;
		}
}

void leases_on_lease(struct core *c, struct worker *w, const struct event *ev)
{
	uint64_t request = ev->msg->lease.request;

	c->effects.requester = worker_id(c, w);
	w->session.peer = ev->peer;
	w->lease.empty += w->lease.empty <= MAX_EMPTY_LEASES;
	effects_drop(c, w->lease.empty > MAX_EMPTY_LEASES);
	if (request < w->lease.request || request == 0)
		return; /* ignore this request: a newer one has arrived before it */
	if (request == w->lease.request) {
		if (w->lease.grant.request == request) {
			send_grant(c, w, ev->peer);
			return;
		}
		w->lease.waiting = 1;
		pace_gave_back(c, w);
		if (is_free(&c->leases, w->lease.grant.work.first))
			/* the batches of the grant are free again, so the worker must not compute
			 * them */
			w->lease.grant.work.count = 0;
		return;
	}
	if (w->ledger.replay_target == PUSH_WAITS)
		/* A push of the worker waits for the end of the recovery, and may need the newest
		 * grant as a proof. After this push, the worker sends this request again. */
		return;
	batch_ledger_release(c, w);
	if (w->lease.grant.kind == GRANT_EVAL && w->pace.left)
		w->lease.grant.eval_count = 0;
	pace_gave_back(c, w);
	if (c->leases.n_free == 0)
		pace_find_late(c);
	w->lease.request = request;
	w->lease.waiting = 1;
}

void leases_tick(struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots && c->run.ending == END_NOT; i++)
		if (pace_check(c, &c->worker[i]))
			batch_ledger_release(c, &c->worker[i]);
	checks_tick(c);
	pace_find_late(c);
}
