/* later_epochs.c - see later_epochs.h. */
#include "server/core/later_epochs.h"
#include "common/assert.h"
#include "server/core/batch_ledger.h"
#include "server/core/core_state.h"

static int overlap(const struct work *a, const struct work *b)
{
	return a->epoch == b->epoch && a->first < b->first + b->count &&
	       b->first < a->first + a->count;
}

int later_epochs_contain(const struct core *c, const struct work *work)
{
	return c->cfg.training.epochs && work->epoch > c->leases.epoch;
}

enum reject later_epochs_check(const struct core *c, const struct work *work)
{
	const struct later_epochs *e = &c->later;

	/* in sandblaster, a gradient of an earlier pass has no meaning for a later pass */
	if (c->cfg.training.mode == MODE_SANDBLASTER || work->epoch >= c->cfg.training.epochs ||
		e->n == MAX_LATER_EPOCHS)
		return REJECT_SHAPE;
	for (uint32_t i = 0; i < e->n; i++)
		if (overlap(&e->work[i], work))
			return REJECT_WORK;
	return REJECT_NONE;
}

void later_epochs_note(struct core *c, const struct work *work)
{
	PS_ASSERT(work->epoch > c->leases.epoch); /* invariant 2 */
	/* invariant 3, and the array has room for one more entry */
	PS_ASSERT(later_epochs_check(c, work) == REJECT_NONE);
	c->later.work[c->later.n++] = *work;
}

int later_epochs_is_complete(const struct core *c, uint32_t epoch)
{
	uint64_t batches = 0;

	for (uint32_t i = 0; i < c->later.n; i++)
		if (c->later.work[i].epoch == epoch)
			batches += c->later.work[i].count;
	return batches == c->leases.n_batches;
}

int later_epochs_take(struct core *c, uint32_t *at, struct work *work)
{
	struct later_epochs *e = &c->later;

	for (; *at < e->n && e->work[*at].epoch != c->leases.epoch; (*at)++)
		PS_ASSERT(e->work[*at].epoch > c->leases.epoch); /* invariant 2 */
	if (*at == e->n)
		return 0;
	*work = e->work[*at];
	e->work[*at] = e->work[--e->n];
	return 1;
}
