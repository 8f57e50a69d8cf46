/*
 * sandblaster.c - batch optimisation (Dean 2012, DistBelief section 4.2). A step covers a window of
 * the epoch's batches, which are called portions here. An idle worker gets a few free portions, if
 * possible those after its previous ones. When no portion is free, an idle worker can get a copy of
 * a portion that another worker computes (--backup-copies), and the first result counts. In one
 * pass, the workers compute all portions of the window with the same weights. A first-order
 * optimizer needs one pass for a step; the line search of L-BFGS needs one pass for each point.
 *
 * Invariants:
 * (1) a push is accepted whole or not at all. It is accepted only if it is of the weights of this
 *     pass and none of its portions is done (asserted by sandblaster_take, and by batch_ledger_mark
 *     in batch_ledger.c; a_sum_that_overlaps_is_refused_whole_and_nothing_is_lost,
 *     a_sum_of_another_pass_is_refused);
 * (2) a pass ends when each of its portions was counted exactly once (asserted by
 *     sandblaster_settle; in_any_order_each_image_counts_once_per_step);
 * (3) the images of a step are recorded once, however many passes the step takes (asserted by
 *     finish_step; in_any_order_each_image_counts_once_per_step).
 */
#include "server/core/sandblaster.h"
#include "common/assert.h"
#include "server/core/accumulator.h"
#include "server/core/batch_ledger.h"
#include "server/core/checkpoints.h"
#include "server/core/core_state.h"
#include "server/core/lbfgs.h"
#include "server/core/norms.h"
#include "server/core/store.h"
#include "server/core/workers.h"

static enum reject sandblaster_check(
	const struct core *c, const struct worker *w, const struct msg_push *p)
{
	(void)w;
	/* a sum at other weights cannot be added to this pass: its portions are computed again */
	return store_is_current(c, p) ? REJECT_NONE : REJECT_STALE;
}

static void sandblaster_take(struct core *c, struct worker *w, const struct msg_push *p)
{
	(void)w;
	PS_ASSERT(store_is_current(c, p)); /* invariant 1 */
	accumulator_add(c, p);
}

/* ---- passes and steps ------------------------------------------------------------------------ */

static uint32_t window_size(const struct core *c)
{
	uint32_t n = c->leases.n_batches;

	uint64_t size =
		((uint64_t)c->cfg.sandblaster.step_images + c->cfg.training.batch_size - 1) /
		c->cfg.training.batch_size;

	return size == 0 || size > n ? n : (uint32_t)size;
}

/* Returns 1 if the window is the whole epoch, so that every step uses the same images. */
static int is_whole(const struct core *c)
{
	return window_size(c) == c->leases.n_batches;
}

static void open_window(struct core *c, uint32_t first)
{
	struct sandblaster *s = &c->sandblaster;
	uint32_t left = c->leases.n_batches - first, size = window_size(c);

	s->first = first;
	s->end = first + (left < size ? left : size);
	s->open = 1;
	s->pass = 1;
	batch_ledger_window(c, s->first, s->end);
	/* If L-BFGS has the gradient of these images already, it publishes the first trial point
	 * now. The workers then compute the portions of the window at this trial point. */
	if (c->cfg.optim.kind == OPTIM_LBFGS && lbfgs_begin(c, is_whole(c)))
		c->checkpoints.dirty = 1;
}

static void sandblaster_open(struct core *c)
{
	open_window(c, 0);
}

static void finish_step(struct core *c, uint64_t images, double loss_sum)
{
	struct sandblaster *s = &c->sandblaster;

	PS_ASSERT(s->open); /* invariant 3: the step ends here */
	batch_ledger_record(c, c->leases.epoch, images, loss_sum);
	c->epoch[c->leases.epoch].updates++;
	c->stats.updates++;
	c->stats.staleness[0]++;
	c->checkpoints.dirty = 1;
	s->open = 0;
	if (s->end < c->leases.n_batches)
		open_window(c, s->end);
}

static void sandblaster_settle(struct core *c)
{
	struct sandblaster *s = &c->sandblaster;
	struct gradient_accumulator *a = &c->accumulator;
	double loss_sum = a->loss_sum;
	uint64_t images = a->images;

	if (!s->open || c->leases.n_done < s->end)
		return;
	PS_ASSERT(c->leases.n_done == s->end); /* invariant 2 */
	norms_end_pass(c);
	accumulator_mean(c, store_scratch(c));
	accumulator_clear(c);
	if (c->cfg.optim.kind != OPTIM_LBFGS) {
		store_step(c, c->store.scratch, store_rate(c));
		finish_step(c, images, loss_sum);
	} else if (lbfgs_pass(c, loss_sum / (double)images, c->store.scratch)) {
		finish_step(c, images, loss_sum);
	} else {
		batch_ledger_window(c, s->first, s->end);
		s->pass++;
		c->checkpoints.dirty = 1;
	}
}

/* Returns a quarter of an equal share of the free portions, but at least 1 and at most
 * --lease-batches. Small grants, which shrink towards the end of a pass, keep a slow worker from
 * holding much work. */
static uint32_t sandblaster_limit(const struct core *c, const struct worker *w)
{
	uint32_t live = core_live_workers(c), each = 4 * (live ? live : 1);
	uint32_t max = (c->leases.n_free + each - 1) / each;

	(void)w;
	if (max > c->cfg.leases.max_batches)
		max = c->cfg.leases.max_batches;
	return max ? max : 1;
}

const struct rules rules_sandblaster = {.check = sandblaster_check,
	.fits = accumulator_fits,
	.take = sandblaster_take,
	.limit = sandblaster_limit,
	.open_epoch = sandblaster_open,
	.settle = sandblaster_settle};
