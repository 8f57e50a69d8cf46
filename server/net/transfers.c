/* transfers.c - see transfers.h. */
#include "server/net/transfers.h"
#include <stdlib.h>
#include "common/mem.h"

#define POLL_EVERY_MS 100

void transfers_init(struct transfers *t, const struct core *c)
{
	*t = (struct transfers){0};
	t->slot = mem_must(core_config(c)->sessions.max_workers, sizeof(*t->slot), "transfers");
}

void transfers_release(struct transfers *t)
{
	free(t->slot);
	t->slot = NULL;
}

void transfers_note(struct transfers *t, uint32_t worker, uint32_t peer, struct frames *f)
{
	struct transfer *s = &t->slot[worker - 1];

	if (s->peer == peer)
		return;
	s->peer = peer;
	watched_begin(&s->connection, zmq_msg_get(&f->frame[0], ZMQ_SRCFD));
}

void transfers_poll(struct transfers *t, const struct core *c, struct router *r, uint64_t now_ms,
	transfers_report_fn *report, void *arg)
{
	if (now_ms - t->polled_ms < POLL_EVERY_MS)
		return;
	t->polled_ms = now_ms;
	for (uint32_t i = 0; i < core_config(c)->sessions.max_workers; i++) {
		struct transfer *s = &t->slot[i];
		struct event ev = {.kind = EVENT_PROGRESS, .peer = s->peer};
		struct worker_view w;

		core_worker(c, i, &w);
		if (!s->peer || w.peer != s->peer)
			continue;
		if (w.owes_ms < TRANSFERS_POLL_MS) {
			s->connection.bytes = 0;
			(void)router_sides_moved(r, s->peer);
			continue;
		}
		ev.bytes = watched_moved(&s->connection) + router_sides_moved(r, s->peer);
		if (ev.bytes)
			report(arg, &ev);
	}
}
