/*
 * snapshot_check.c - see snapshot_check.h. Sections that are well formed may still contradict each
 * other, or the options of this start.
 */
#include "server/core/snapshot_check.h"
#include "server/core/accumulator.h"
#include "server/core/backups.h"
#include "server/core/batch_ledger.h"
#include "server/core/checks.h"
#include "server/core/core_state.h"
#include "server/core/dataset.h"
#include "server/core/later_epochs.h"
#include "server/core/lbfgs.h"
#include "server/core/optim.h"
#include "server/core/sandblaster.h"
#include "server/core/store.h"
#include "server/core/sync.h"
#include "server/core/workers.h"
#include <math.h>

const char *snapshot_mismatch(const struct core_config *now, const struct core_config *then)
{
	const struct config_row *row = config_differs(then, now);

	if (then->model_fingerprint != now->model_fingerprint || then->n_params != now->n_params)
		return "it is of another --model";
	return row ? row->mismatch : NULL;
}

static int all_finite(const float *v, size_t n)
{
	float sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += v[i] * 0.0f; /* NaN if v[i] is NaN or infinite, else 0 */
	return sum == 0.0f;
}

static int none_negative(const float *v, size_t n)
{
	int ok = 1;

	for (size_t i = 0; i < n; i++)
		ok &= v[i] >= 0;
	return ok;
}

static int mode_values_are_valid(const struct core *c)
{
	const struct gradient_accumulator *a = &c->accumulator;
	const struct lbfgs *b = &c->lbfgs;
	double sum = a->weight + a->loss_sum + b->f + b->slope + b->step + b->low + b->high + b->yy;
	/* gradients can wait for a step only while an epoch is in training */
	int ok = isfinite(sum) && a->weight >= 0 && (!a->pushes || a->part || a->weight > 0) &&
		 (!a->pushes || c->cfg.training.epochs == 0 ||
			 c->leases.epoch < c->cfg.training.epochs);

	for (size_t i = 0; a->sum && a->pushes && i < c->store.n; i++)
		ok &= isfinite(a->sum[i]) != 0;
	for (uint32_t i = 0; a->part && i < a->parts; i++)
		ok &= (!i || a->part[i].batch > a->part[i - 1].batch) && a->part[i].images &&
		      isfinite(a->part[i].loss) && all_finite(a->part[i].g, c->store.n);
	if (b->known || b->searching)
		ok &= all_finite(b->x, c->store.n) && all_finite(b->g, c->store.n) &&
		      all_finite(b->d, c->store.n);
	return ok;
}

/* Returns 1 if the versions that `w` holds are in the order of its pulls. */
static int held_in_order(const struct worker_backups *w)
{
	for (uint32_t i = 1; i < w->n_held; i++)
		if (w->held[i].version < w->held[i - 1].version)
			return 0;
	return 1;
}

static int backups_are_valid(const struct core *c)
{
	const struct backups *b = &c->backups;
	int ok = 1;

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++)
		ok &= held_in_order(&c->worker[i].backups);

	for (uint32_t i = 0; i < b->n; i++)
		ok &= !b->copy[i].refs || all_finite(backups_values(c, i), c->store.n);
	if (b->n && c->cfg.dc.kind == DC_ADAPTIVE)
		ok &= all_finite(c->store.dc_square, c->store.n) &&
		      none_negative(c->store.dc_square, c->store.n);
	return ok;
}

static int values_are_valid(const struct core *c)
{
	const struct store *st = &c->store;
	enum optim_kind kind = c->cfg.optim.kind;
	int ok = all_finite(st->weights, st->n) &&
		 (!c->leases.evaluating || all_finite(st->eval_weights, st->n));

	for (size_t v = 0; v < optim_vectors(kind); v++)
		ok &= all_finite(st->state[v], st->n) &&
		      (!optim_is_square(kind, v) || none_negative(st->state[v], st->n));
	return ok && mode_values_are_valid(c) && backups_are_valid(c);
}

/* Returns 1 if batch `i` is BATCH_SHUT and the mode allows this. Sandblaster allows it for batches
 * after the window of the step, and sync for batches outside of the step. */
static int is_shut(const struct core *c, uint32_t i)
{
	int of_step = c->sync.open && i >= c->sync.first && i < c->sync.end;

	if (c->leases.batch[i] != BATCH_SHUT)
		return 0;
	return c->cfg.training.mode == MODE_SYNC
		       ? !of_step
		       : c->cfg.training.mode == MODE_SANDBLASTER && i >= c->sandblaster.end;
}

/* Returns 1 if the states of the batches agree with sandblaster's window. All batches before the
 * window must be done, and all batches after the window must be shut. */
static int replay_window_fits(const struct core *c)
{
	const struct sandblaster *s = &c->sandblaster;
	const struct leases *l = &c->leases;

	if (c->cfg.training.mode != MODE_SANDBLASTER || l->n_batches == 0 ||
		l->epoch >= c->cfg.training.epochs)
		return 1;
	if (s->first > s->end || s->end > l->n_batches || (!s->open && s->end < l->n_batches))
		return 0;
	for (uint32_t i = 0; i < l->n_batches; i++)
		if ((i < s->first && l->batch[i] != BATCH_DONE) ||
			(i >= s->end && l->batch[i] != BATCH_SHUT))
			return 0;
	return 1;
}

/* Returns 1 if the state of sync is possible: only batches of the step under way are open, and each
 * gradient that the step keeps is of a counted batch. In the other modes, the function returns 1 if
 * no step of sync is open. */
static int step_fits(const struct core *c)
{
	const struct leases *l = &c->leases;
	const struct gradient_accumulator *a = &c->accumulator;
	const struct sync *s = &c->sync;
	int training = l->n_batches && l->epoch < c->cfg.training.epochs;
	uint64_t images = 0;

	if (c->cfg.training.mode != MODE_SYNC)
		return !s->open;
	if (s->first > s->end || s->end > l->n_batches || (a->pushes && !training))
		return 0;
	for (uint32_t i = 0; training && i < l->n_batches; i++)
		if (l->batch[i] != BATCH_DONE && l->batch[i] != BATCH_SHUT &&
			!(s->open && i >= s->first && i < s->end))
			return 0;
	for (uint32_t i = 0; i < a->pushes; i++) {
		const struct part *p = &a->part[i];

		if (p->batch >= l->n_batches || l->batch[p->batch] != BATCH_DONE ||
			p->images == 0 || (i && p->batch <= a->part[i - 1].batch))
			return 0;
		images += p->images;
	}
	return images == a->images && a->weight == (double)(c->cfg.push.sum ? a->pushes : images);
}

/* Recomputes the counts of the batch ledger. Returns 0 if a batch has an impossible state. Also
 * returns 0 if no portion of an evaluation is left to do, because such an evaluation would never
 * end. An epoch without a batch that is left to do is no error: the next step begins the evaluation
 * of the epoch. */
static int count_leases(struct core *c)
{
	struct leases *l = &c->leases;
	int training = l->epoch < c->cfg.training.epochs;

	l->n_done = l->n_free = l->n_evaluated = 0;
	for (uint32_t i = 0; i < l->n_batches && training; i++) {
		if (l->batch[i] > BATCH_DONE && !is_shut(c, i))
			return 0;
		l->n_done += l->batch[i] == BATCH_DONE;
		l->n_free += l->batch[i] == BATCH_FREE;
	}
	for (uint32_t i = 0; i < l->n_portions && l->evaluating; i++) {
		if (l->portion[i] > BATCH_DONE)
			return 0;
		l->n_evaluated += l->portion[i] == BATCH_DONE;
	}
	if (l->evaluating)
		return l->n_evaluated < l->n_portions || c->checks.n > 0;
	return l->n_batches > 0 || l->epoch == 0;
}

/* Returns 1 if every grant lies inside the data set. */
static int grants_fit(const struct core *c)
{
	const struct leases *l = &c->leases;

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		const struct msg_grant *grant = &c->worker[i].lease.grant;
		const struct work *g = &grant->work;

		if (grant->kind == GRANT_TRAIN &&
			(g->first > l->n_batches || g->count > l->n_batches - g->first))
			return 0;
		if (grant->kind == GRANT_EVAL && grant->eval_first >= core_eval_images(c))
			return 0;
	}
	return 1;
}

/* Returns 1 if the noted pushes are of later epochs and lie inside the data set. */
static int later_epochs_fit(const struct core *c)
{
	for (uint32_t i = 0; i < c->later.n; i++) {
		const struct work *w = &c->later.work[i];

		if (w->epoch <= c->leases.epoch || w->first > c->leases.n_batches ||
			w->count > c->leases.n_batches - w->first)
			return 0;
	}
	return 1;
}

/* Returns 1 if the data set is fixed, or if no batch is counted and L-BFGS has no gradient yet. */
static int data_is_fixed_in_time(const struct core *c)
{
	const struct leases *l = &c->leases;

	return c->dataset.fixed ||
	       (l->n_done == 0 && l->epoch == 0 && !l->evaluating && c->later.n == 0 &&
		       !c->lbfgs.known && !c->lbfgs.searching);
}

/* Returns 1 if all values stay finite when a step applies the gradients that wait for it. The core
 * has checked this before it accepted them. With --store, the values are not on the host yet. */
static int waiting_step_holds(struct core *c)
{
	return c->accumulator.pushes == 0 || c->cfg.device || accumulator_holds(c, 0, 0);
}

int snapshot_is_consistent(struct core *c)
{
	return values_are_valid(c) && waiting_step_holds(c) && replay_window_fits(c) &&
	       step_fits(c) && count_leases(c) && checks_fit(c) && data_is_fixed_in_time(c) &&
	       grants_fit(c) && later_epochs_fit(c);
}

int snapshot_sessions_are_consistent(const struct core *c)
{
	const struct leases *l = &c->leases;
	uint32_t done = 0, free = 0, evaluated = 0;

	for (uint32_t i = 0; i < l->n_batches; i++) {
		done += l->batch[i] == BATCH_DONE;
		free += l->batch[i] == BATCH_FREE;
	}
	for (uint32_t i = 0; i < l->n_portions && l->evaluating; i++)
		evaluated += l->portion[i] == BATCH_DONE;
	return l->n_done + l->n_free <= l->n_batches &&
	       (!l->evaluating || l->n_evaluated == evaluated) &&
	       (l->epoch >= c->cfg.training.epochs || (l->n_done == done && l->n_free == free));
}
