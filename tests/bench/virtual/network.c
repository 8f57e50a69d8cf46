/* network.c - the clock and the link of virtual.h. */
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/bench/virtual/virtual.h"

#define HEADER_BYTES 100 /* the approximate size of a message without its values */

uint64_t world_ms(const struct world *w)
{
	return w->now_ns / 1000000;
}

static size_t message_bytes(const struct msg *m)
{
	const struct slices *s = m->type == MSG_PUSH     ? &m->push.slices
				 : m->type == MSG_PARAMS ? &m->params.slices
							 : NULL;
	size_t n = HEADER_BYTES;

	for (uint32_t i = 0; s && i < s->n; i++)
		n += s->slice[i].count * sizeof(float);
	return n;
}

/* Send a message over a link that is idle from *free_ns on. Returns the time in ns at which the
 * message arrives, and moves *free_ns to the end of the transmission. */
static uint64_t arrival(const struct world *w, uint64_t *free_ns, const struct msg *m)
{
	uint64_t start = w->now_ns > *free_ns ? w->now_ns : *free_ns;

	*free_ns = start + (uint64_t)(8 * (double)message_bytes(m) / w->cost.gbit);
	return *free_ns + (uint64_t)(1e3 * w->cost.latency_us);
}

static struct parcel *pack_parcel(const struct msg *m)
{
	struct parcel *p = mem_must(1, sizeof(*p), "a message");

	p->msg = *m;
	return p;
}

void world_send(struct world *w, uint32_t peer, const struct msg *m)
{
	plan_add(&w->plan, (struct item){.at_ns = arrival(w, &w->in_free_ns, m),
				   .what = AT_SERVER,
				   .peer = peer,
				   .parcel = pack_parcel(m)});
}

void world_send_to_worker(struct world *w, uint32_t peer, const struct msg *m)
{
	struct parcel *p = pack_parcel(m);

	if (m->type == MSG_PARAMS) {
		struct slices *s = &p->msg.params.slices;
		size_t n = core_config(w->core)->n_params;

		p->values = mem_must(n, sizeof(float), "weights under way");
		for (uint32_t i = 0; i < s->n; i++) {
			float *to = p->values + s->slice[i].offset;

			memcpy(to, s->slice[i].data, s->slice[i].count * sizeof(float));
			s->slice[i].data = to;
		}
	}
	plan_add(&w->plan, (struct item){.at_ns = arrival(w, &w->out_free_ns, m),
				   .what = AT_WORKER,
				   .peer = peer,
				   .parcel = p});
}
