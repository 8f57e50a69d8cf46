/* batch_ledger.c - see batch_ledger.h. */
#include "server/core/batch_ledger.h"
#include "common/assert.h"
#include "server/core/core_state.h"
#include "server/core/later_epochs.h"
#include "server/core/leases.h"
#include "server/core/modes.h"
#include "server/core/pace.h"
#include "server/core/store.h"
#include "server/core/workers.h"
#include <string.h>

uint32_t batch_ledger_ceil_div(uint64_t a, uint64_t b)
{
	return (uint32_t)((a + b - 1) / b);
}

uint32_t batch_ledger_images(const struct core *c, uint32_t first, uint32_t count)
{
	uint64_t from = (uint64_t)first * c->cfg.training.batch_size,
		 to = from + (uint64_t)count * c->cfg.training.batch_size;
	const uint32_t n = core_train_images(c);

	return (uint32_t)((to < n ? to : n) - from);
}

void batch_ledger_window(struct core *c, uint32_t first, uint32_t end)
{
	struct leases *l = &c->leases;

	memset(l->batch + first, BATCH_FREE, end - first);
	memset(l->copies + first, 0, end - first);
	memset(l->batch + end, BATCH_SHUT, l->n_batches - end);
	l->n_done = first;
	l->n_free = end - first;
}

int batch_ledger_is_training(const struct core *c, const struct msg_grant *g)
{
	return g->kind == GRANT_TRAIN && g->work.epoch == c->leases.epoch &&
	       !(mode_is_exact(c->cfg.training.mode) && g->version != c->store.version);
}

static void release_batch(struct core *c, uint32_t i)
{
	struct leases *l = &c->leases;

	if (l->batch[i] != BATCH_LEASED)
		return;
	c->stats.released++;
	if (l->copies[i] > 0) { /* copies[i] other workers still hold the batch */
		l->copies[i]--;
		return;
	}
	l->batch[i] = BATCH_FREE;
	l->n_free++;
}

int batch_ledger_holds(const struct core *c, const struct worker *w, int eval, uint32_t i)
{
	const struct msg_grant *g = &w->lease.grant;
	const struct leases *l = &c->leases;

	if (g->request == 0 || w->pace.shadow)
		return 0;
	if (eval)
		return g->kind == GRANT_EVAL && l->evaluating && g->eval_id == l->epoch &&
		       g->eval_first / l->eval_size == i;
	return batch_ledger_is_training(c, g) && i >= g->work.first &&
	       i - g->work.first < g->work.count;
}

int batch_ledger_in_good_hands(const struct core *c, const struct worker *but, int eval, uint32_t i)
{
	for (uint32_t k = 0; k < c->n_slots; k++) {
		const struct worker *w = &c->worker[k];

		if (w != but && !w->pace.late && batch_ledger_holds(c, w, eval, i))
			return 1;
	}
	return 0;
}

static void release_portion(struct core *c, const struct worker *w, uint32_t i)
{
	uint8_t *state = &c->leases.portion[i];

	c->stats.released += *state == BATCH_LEASED;
	if (*state == BATCH_LEASED && !batch_ledger_in_good_hands(c, w, 1, i))
		*state = BATCH_FREE;
}

void batch_ledger_release(struct core *c, struct worker *w)
{
	struct leases *l = &c->leases;
	const struct msg_grant *g = &w->lease.grant;

	if (g->request == 0)
		return;
	/* keep the other fields: the next lease of the worker preferably begins where this grant
	 * ended */
	w->lease.grant.request = 0;
	if (w->pace.shadow)
		return;
	if (batch_ledger_is_training(c, g))
		for (uint32_t i = 0; i < g->work.count; i++)
			release_batch(c, g->work.first + i);
	else if (g->kind == GRANT_EVAL && l->evaluating && g->eval_id == l->epoch)
		release_portion(c, w, g->eval_first / l->eval_size);
}

enum reject batch_ledger_check(
	const struct core *c, const struct work *work, uint32_t images, int is_replay)
{
	const struct leases *l = &c->leases;
	/* sync.c checks whether a batch belongs to the step under way */
	int is_sync = c->cfg.training.mode == MODE_SYNC;

	if (c->cfg.training.epochs == 0)
		return work->count == 0 ? REJECT_NONE : REJECT_SHAPE;
	if (work->count == 0 || work->first >= l->n_batches ||
		work->count > l->n_batches - work->first)
		return REJECT_SHAPE;
	if (images != batch_ledger_images(c, work->first, work->count))
		return REJECT_SHAPE;
	if (is_replay && later_epochs_contain(c, work))
		return later_epochs_check(c, work);
	if (work->epoch != l->epoch || l->epoch >= c->cfg.training.epochs)
		return work->epoch < l->epoch ? REJECT_WORK : REJECT_SHAPE;
	for (uint32_t i = work->first; i < work->first + work->count; i++)
		if (l->batch[i] == BATCH_DONE || (l->batch[i] == BATCH_SHUT && !is_sync))
			return REJECT_WORK;
	return REJECT_NONE;
}

/* Marks the batches of `work` as done. Some of these batches may already be done, because a bad
 * snapshot can list a batch twice among the batches that were counted before their epoch opened. */
static void mark_done(struct leases *l, const struct work *work)
{
	for (uint32_t i = work->first; i < work->first + work->count; i++) {
		l->n_free -= l->batch[i] == BATCH_FREE;
		l->n_done += l->batch[i] != BATCH_DONE;
		l->batch[i] = BATCH_DONE;
	}
	PS_ASSERT(l->n_done + l->n_free <= l->n_batches); /* invariant 2 */
}

void batch_ledger_mark(struct core *c, const struct work *work)
{
	struct leases *l = &c->leases;
	uint32_t done = l->n_done;

	if (work->epoch > l->epoch) {
		later_epochs_note(c, work);
		return;
	}
	mark_done(l, work);
	PS_ASSERT(l->n_done == done + work->count); /* invariant 1 */
}

void batch_ledger_open(struct core *c)
{
	struct work work;
	uint32_t at = 0;

	batch_ledger_window(c, 0, c->leases.n_batches);
	while (later_epochs_take(c, &at, &work))
		mark_done(&c->leases, &work);
}

void batch_ledger_record(struct core *c, uint32_t epoch, uint64_t images, double loss_sum)
{
	struct epoch_record *r = &c->epoch[epoch];

	r->images += images;
	r->loss_sum += loss_sum;
	c->stats.images += images;
}
