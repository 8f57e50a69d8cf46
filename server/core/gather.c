/* gather.c - see modes.h. */
#include "server/core/modes.h"
#include "server/core/state.h"
#include <string.h>

int gather_is_current(const struct core *c, const struct msg_push *p)
{
	return p->base_version == c->store.version && p->base_epoch >= c->store.version_epoch &&
	       p->base_epoch <= c->cfg.epoch;
}

void gather_add(struct core *c, const struct msg_push *p)
{
	struct gather *a = &c->gather;
	double weight = c->cfg.push_sum ? 1 : (double)p->images;

	for (uint32_t i = 0; i < p->slices.n; i++) {
		const struct slice *s = &p->slices.slice[i];
		double *sum = a->sum + s->offset;

		for (uint64_t j = 0; j < s->count; j++)
			sum[j] += weight * (double)s->data[j];
	}
	a->weight += weight;
	a->loss_sum += (double)p->loss * p->images;
	a->images += p->images;
	a->pushes++;
}

void gather_take(struct core *c, float *g)
{
	struct gather *a = &c->gather;
	double by = c->cfg.push_sum || a->weight <= 0 ? 1 : 1 / a->weight;

	for (size_t i = 0; i < c->store.n; i++)
		g[i] = (float)(by * a->sum[i]);
	memset(a->sum, 0, c->store.n * sizeof(*a->sum));
	a->weight = a->loss_sum = 0;
	a->images = 0;
	a->pushes = 0;
}
