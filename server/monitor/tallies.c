/* tallies.c - see tallies.h. */
#include "server/monitor/tallies.h"
#include <stdlib.h>
#include "common/mem.h"
#include "server/core/core.h"

#define MEASURE_MS 1000

int tallies_init(struct tallies *t, const struct core *c, uint64_t now_ms)
{
	*t = (struct tallies){.n = core_config(c)->sessions.max_workers, .measured_ms = now_ms};
	t->of = mem_try(t->n, sizeof(*t->of));
	if (!t->of)
		return PS_ENOMEM;
	for (uint32_t i = 0; i < t->n; i++) {
		struct worker_view v;

		core_worker(c, i, &v);
		t->of[i] = (struct tally){.staleness = -1, .images_then = v.images};
	}
	return PS_OK;
}

void tallies_release(struct tallies *t)
{
	free(t->of);
	*t = (struct tallies){0};
}

/* Count the ACK of a push. */
static void count_push(
	struct tally *t, const struct core *c, const struct msg_push *p, const struct msg_ack *a)
{
	if (a->duplicate) {
		t->duplicates++;
		return;
	}
	t->pushes++;
	t->rejected += a->verdict == VERDICT_REJECTED && !a->superseded;
	if (p->base_term == core_config(c)->term && a->version >= p->base_version) {
		uint64_t own = a->verdict == VERDICT_OK && a->version > p->base_version;

		t->fresh++; /* the push's own update does not make it stale */
		t->staleness_sum += a->version - p->base_version - own;
	}
}

void tallies_effect(
	struct tallies *t, const struct core *c, const struct event *ev, const struct effect *e)
{
	const struct stamp *s = NULL;

	if (e->kind != EFFECT_SEND || ev->kind != EVENT_MESSAGE || e->peer != ev->peer)
		return;
	s = msg_stamp(ev->msg);
	if (!s || s->worker == 0 || s->worker > t->n)
		return;
	if (e->msg.type == MSG_ERROR && !e->msg.error.notice)
		t->of[s->worker - 1].refused++;
	else if (ev->msg->type == MSG_PUSH && e->msg.type == MSG_ACK)
		count_push(&t->of[s->worker - 1], c, &ev->msg->push, &e->msg.ack);
	else if (ev->msg->type == MSG_PUSH && e->msg.type == MSG_PARAMS && e->msg.params.ack.seq)
		count_push(&t->of[s->worker - 1], c, &ev->msg->push, &e->msg.params.ack);
}

static void measure(struct tally *t, uint64_t images, double seconds)
{
	uint64_t fresh = t->fresh - t->fresh_then;

	t->images_per_s = (double)(images - t->images_then) / seconds;
	t->staleness = fresh ? (double)(t->staleness_sum - t->staleness_then) / (double)fresh : -1;
	t->images_then = images;
	t->fresh_then = t->fresh;
	t->staleness_then = t->staleness_sum;
}

int tallies_tick(struct tallies *t, const struct core *c, uint64_t now_ms)
{
	if (now_ms < t->measured_ms + MEASURE_MS)
		return 0;
	for (uint32_t i = 0; i < t->n; i++) {
		struct worker_view v;

		core_worker(c, i, &v);
		if (v.images < t->of[i].images_then) /* another worker has the slot now */
			t->of[i] = (struct tally){.images_then = 0};
		measure(&t->of[i], v.images, (double)(now_ms - t->measured_ms) / 1000);
	}
	t->measured_ms = now_ms;
	return 1;
}

const struct tally *tallies_of(const struct tallies *t, uint32_t worker)
{
	static const struct tally none = {.staleness = -1};

	return t && worker >= 1 && worker <= t->n ? &t->of[worker - 1] : &none;
}
