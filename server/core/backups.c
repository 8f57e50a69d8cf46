/*
 * backups.c - delay compensation (Zheng 2017, DC-ASGD) needs the weights with which each gradient
 * was computed. This file keeps copies of these weights, by version.
 *
 * A worker holds a version from the time at which the worker pulls it until the worker pushes a
 * gradient of newer weights. If n_fetch <= n_push, a worker pushes at most one gradient for each
 * pull, so it holds a version only until it pushes a gradient of this version. A worker that
 * leaves, dies or is fenced holds no version any more. Workers that hold the same version share one
 * copy. A worker holds at most BACKUPS_MAX_HELD versions. A worker that prefetches and has three
 * groups of pipelined steps in flight holds four versions. The remaining places of BACKUPS_MAX_HELD
 * are for pulls that the worker repeats. When a worker holds BACKUPS_MAX_HELD versions and pulls
 * another one, the core drops the second oldest version. The core keeps the oldest version, because
 * the next gradient of the worker may be of this version.
 *
 * Invariants:
 * (1) the field `refs` of a copy is the number of held[] entries that name the copy, and a copy
 *     with refs 0 is free (asserted by drop for each copy that a worker gives back;
 *     copies_are_shared_and_released);
 * (2) held[] is in the order of the pulls, so its versions never decrease (asserted by
 *     backups_hold; tests/unit/test_core_dc.c,
 *     every_combination_of_options_is_what_the_formulas_say);
 * (3) a copy never changes while a worker holds it: a new copy overwrites only a free one
 *     (asserted by copy_of_now; each_worker_is_compensated_by_its_own_delay);
 * (4) a gradient is compensated with the weights of the version with which it was computed, or not
 *     at all (asserted by held_values; tests/unit/test_core_dc.c).
 */
#include "server/core/backups.h"
#include "common/assert.h"
#include "server/core/blocks.h"
#include "server/core/core_state.h"
#include "server/core/sessions.h"
#include "server/core/store.h"
#include "server/core/workers.h"
#include <string.h>

float *backups_values(const struct core *c, uint32_t copy)
{
	return c->backups.values + copy * c->backups.stride;
}

double backups_peak(const struct core *c, const float *copy)
{
	return c->backups.copy[(size_t)(copy - c->backups.values) / c->backups.stride].peak;
}

uint32_t backups_take(struct core *c, uint64_t version, uint64_t made)
{
	struct backups *b = &c->backups;
	uint32_t i = 0;

	while (i < b->n && b->copy[i].refs)
		i++;
	if (i < b->n)
		b->copy[i] = (struct backup){.version = version, .made = made, .refs = 1};
	return i;
}

/* Adds a reference to the copy of the current weights, and makes the copy if there is none. Returns
 * the index of the copy. */
static uint32_t copy_of_now(struct core *c)
{
	const struct store *st = &c->store;
	struct backup *newest = &c->backups.copy[c->backups.newest];

	if (newest->refs && newest->version == st->version && newest->made == st->version_term) {
		newest->refs++;
		return c->backups.newest;
	}
	c->backups.newest = backups_take(c, st->version, st->version_term);
	PS_ASSERT(c->backups.newest < c->backups.n); /* invariants 1 and 3: a copy is free */
	store_complete(c);
	blocks_copy(&c->blocks, backups_values(c, c->backups.newest), st->weights, st->n);
	c->backups.copy[c->backups.newest].peak = st->measured ? st->reach.weight : 0;
	return c->backups.newest;
}

/* Returns the number of held[] entries of all workers that refer to copy number `copy`. */
static uint32_t count_refs(const struct core *c, uint32_t copy)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker_backups *b = &c->worker[i].backups;

		for (uint32_t j = 0; j < b->n_held; j++)
			n += b->held[j].copy == copy;
	}
	return n;
}

/* Removes the entries [from, from + count) of the worker's held[]. */
static void drop(struct core *c, struct worker *w, uint32_t from, uint32_t count)
{
	const struct held *held = w->backups.held;

	PS_ASSERT(from + count <= w->backups.n_held && w->backups.n_held <= BACKUPS_MAX_HELD);
	for (uint32_t i = from; i < from + count; i++) /* invariant 1 */
		PS_ASSERT(c->backups.copy[held[i].copy].refs == count_refs(c, held[i].copy));
	for (uint32_t i = from; i < from + count; i++)
		c->backups.copy[held[i].copy].refs--;
	w->backups.n_held -= count;
	memmove(&w->backups.held[from], &w->backups.held[from + count],
		(w->backups.n_held - from) * sizeof(w->backups.held[0]));
}

void backups_hold(struct core *c, struct worker *w)
{
	if (!c->backups.n)
		return;
	if (w->backups.n_held == BACKUPS_MAX_HELD)
		drop(c, w, 1, 1);
	PS_ASSERT(w->backups.n_held == 0 || /* invariant 2 */
		  w->backups.held[w->backups.n_held - 1].version <= c->store.version);
	w->backups.held[w->backups.n_held++] = (struct held){
		.version = c->store.version, .sent = c->cfg.term, .copy = copy_of_now(c)};
}

/* Returns 1 if the run never had another worker or process than `w`. Each version then has the same
 * weights in every term, because the weights depend on the pushes of this worker alone. */
static int is_alone(const struct core *c, const struct worker *w)
{
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (&c->worker[i] != w && c->worker[i].session.state != SESSION_FREE)
			return 0;
	return w->session.incarnation == 1;
}

void backups_hold_replayed(struct core *c, struct worker *w)
{
	if (c->backups.n && is_alone(c, w))
		backups_hold(c, w);
}

/* Drops the versions that no later push of `w` can be based on: all versions older than that of
 * push `p` and, if each pull has at most one push, also the version of `p`. */
void backups_pushed(struct core *c, struct worker *w, const struct msg_push *p)
{
	int spent = c->cfg.push.n_fetch <= c->cfg.push.n_push;
	uint32_t n = 0;

	while (n < w->backups.n_held && w->backups.held[n].version < p->base_version)
		n++;
	if (spent && n < w->backups.n_held && w->backups.held[n].version == p->base_version &&
		w->backups.held[n].sent <= p->base_term)
		n++;
	drop(c, w, 0, n);
}

void backups_release(struct core *c, struct worker *w)
{
	drop(c, w, 0, w->backups.n_held);
}

static int is_current(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	return store_is_current(c, p) || (p->base_version == c->store.version && is_alone(c, w));
}

/* Returns the weights of the version that `h` describes. */
static const float *held_values(const struct core *c, const struct held *h)
{
	const struct backup *copy = &c->backups.copy[h->copy];

	PS_ASSERT(copy->refs > 0 && copy->version == h->version); /* invariant 4 */
	return backups_values(c, h->copy);
}

const float *backups_find(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	const struct held *same_version = NULL;

	if (is_current(c, w, p))
		return c->store.weights;
	for (uint32_t i = 0; i < w->backups.n_held; i++) {
		const struct held *h = &w->backups.held[i];

		if (h->version != p->base_version)
			continue;
		if (h->sent == p->base_term)
			return held_values(c, h);
		same_version = h;
	}
	return same_version && is_alone(c, w) ? held_values(c, same_version) : NULL;
}
