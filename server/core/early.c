/* early.c - see early.h. */
#include "server/core/early.h"
#include "common/assert.h"
#include "server/core/state.h"

static int overlap(const struct work *a, const struct work *b)
{
	return a->epoch == b->epoch && a->first < b->first + b->count &&
	       b->first < a->first + a->count;
}

int early_is(const struct core *c, const struct work *work)
{
	return c->cfg.training.epochs && work->epoch > c->leases.epoch;
}

enum reject early_check(const struct core *c, const struct work *work)
{
	const struct early *e = &c->early;

	/* in sandblaster, a gradient of an earlier pass has no meaning for a later pass */
	if (c->cfg.training.mode == MODE_SANDBLASTER || work->epoch >= c->cfg.training.epochs ||
		e->n == EARLY_MAX)
		return REJECT_SHAPE;
	for (uint32_t i = 0; i < e->n; i++)
		if (overlap(&e->work[i], work))
			return REJECT_WORK;
	return REJECT_NONE;
}

void early_note(struct core *c, const struct work *work)
{
	PS_ASSERT(work->epoch > c->leases.epoch && c->early.n < EARLY_MAX); /* invariant 2 */
	c->early.work[c->early.n++] = *work;
}

int early_is_complete(const struct core *c, uint32_t epoch)
{
	uint64_t batches = 0;

	for (uint32_t i = 0; i < c->early.n; i++)
		if (c->early.work[i].epoch == epoch)
			batches += c->early.work[i].count;
	return batches == c->leases.n_batches;
}

int early_take(struct core *c, uint32_t *at, struct work *work)
{
	struct early *e = &c->early;

	while (*at < e->n && e->work[*at].epoch != c->leases.epoch)
		(*at)++;
	if (*at == e->n)
		return 0;
	*work = e->work[*at];
	e->work[*at] = e->work[--e->n];
	return 1;
}
