/*
 * backups.c - delay compensation (Zheng 2017, DC-ASGD): the weights that each worker's gradients
 * were computed at, kept by version.
 *
 * A worker holds a version from the pull that sent it until it pushes a gradient of newer weights
 * (with n_fetch == n_push: until it pushes one of that version, for then each pull has one push),
 * or until it leaves, dies or is fenced. Workers that hold the same version share one copy. A
 * worker holds at most BACKUPS_MAX_HELD versions: a prefetching one with three bursts under way has
 * four, the others are for repeated pulls. Beyond that the second oldest is dropped, for the oldest
 * may be the one in use.
 *
 * Invariants:
 * (1) refs of a copy is the number of held[] entries that name it, and a copy without any is free;
 * (2) held[] is in the order of the pulls;
 * (3) a copy never changes while it is held;
 * (4) a gradient is compensated with the weights it was computed at or not at all
 *     (tests/unit/test_core_dc.c).
 */
#include "common/assert.h"
#include "server/core/state.h"
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

/* A reference to a copy of the current weights. */
static uint32_t copy_of_now(struct core *c)
{
	const struct store *st = &c->store;
	struct backup *newest = &c->backups.copy[c->backups.newest];

	if (newest->refs && newest->version == st->version && newest->made == st->version_term) {
		newest->refs++;
		return c->backups.newest;
	}
	c->backups.newest = backups_take(c, st->version, st->version_term);
	PS_ASSERT(c->backups.newest < c->backups.n); /* invariants 1 and 3: a free one */
	store_complete(c);
	memcpy(backups_values(c, c->backups.newest), st->weights, st->n * sizeof(float));
	c->backups.copy[c->backups.newest].peak = st->measured ? st->reach.weight : 0;
	return c->backups.newest;
}

/* Forget entries [from, from + count). */
static void drop(struct core *c, struct worker *w, uint32_t from, uint32_t count)
{
	PS_ASSERT(from + count <= w->backups.n_held && w->backups.n_held <= BACKUPS_MAX_HELD);
	for (uint32_t i = from; i < from + count; i++) {
		PS_ASSERT(c->backups.copy[w->backups.held[i].copy].refs > 0); /* invariant 1 */
		c->backups.copy[w->backups.held[i].copy].refs--;
	}
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
	w->backups.held[w->backups.n_held++] = (struct held){
		.version = c->store.version, .sent = c->cfg.term, .copy = copy_of_now(c)};
}

/* The run never had another worker: then a version has the same weights in every life of the
 * server, for they follow from this worker's pushes alone. */
static int is_alone(const struct core *c, const struct worker *w)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++)
		if (&c->worker[i] != w && c->worker[i].session.state != SESSION_FREE)
			return 0;
	return w->session.incarnation == 1;
}

void backups_hold_replayed(struct core *c, struct worker *w)
{
	if (c->backups.n && is_alone(c, w))
		backups_hold(c, w);
}

/* Pulls of older versions have no push any more; if each has just one, this one's is over, too. */
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
			return backups_values(c, h->copy);
		same_version = h;
	}
	return same_version && is_alone(c, w) ? backups_values(c, same_version->copy) : NULL;
}
