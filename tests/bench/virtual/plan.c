/* plan.c - the binary heap of future events (struct plan of virtual.h), ordered by time. */
#include <stdlib.h>
#include "common/err.h"
#include "tests/bench/virtual/virtual.h"

static int plan_earlier(const struct item *a, const struct item *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void plan_grow(struct plan *p)
{
	size_t room = p->room ? 2 * p->room : 1024;
	struct item *heap = realloc(p->heap, room * sizeof(*heap));

	if (!heap)
		abort();
	p->heap = heap;
	p->room = room;
}

void plan_add(struct plan *p, struct item it)
{
	size_t i = p->n++;

	if (i == p->room)
		plan_grow(p);
	it.order = p->orders++;
	for (; i > 0 && plan_earlier(&it, &p->heap[(i - 1) / 2]); i = (i - 1) / 2)
		p->heap[i] = p->heap[(i - 1) / 2];
	p->heap[i] = it;
}

struct item plan_take(struct plan *p)
{
	struct item first = p->heap[0], last = p->heap[--p->n];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < p->n) {
		if (child + 1 < p->n && plan_earlier(&p->heap[child + 1], &p->heap[child]))
			child++;
		if (plan_earlier(&last, &p->heap[child]))
			break;
		p->heap[i] = p->heap[child];
		i = child;
	}
	if (p->n)
		p->heap[i] = last;
	return first;
}
