/* voices.c - see voices.h. */
#include "server/core/voices.h"
#include "server/core/accumulator.h"
#include "server/core/batch_ledger.h"
#include "server/core/core_state.h"
#include "server/core/leases.h"
#include "server/core/modes.h"
#include "server/core/pace.h"
#include "server/core/sessions.h"
#include "server/core/workers.h"

int voices_matter(const struct core *c)
{
	return (c->cfg.training.mode == MODE_DOWNPOUR || c->cfg.training.mode == MODE_SSP) &&
	       c->accumulator.part && c->cfg.training.epochs > 0;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Returns `a` - `b`, or 0 if `b` is larger. */
static uint32_t less(uint32_t a, uint32_t b)
{
	return a > b ? a - b : 0;
}

/* ---- the voices in the buffer ---------------------------------------------------------------- */

/* Returns 1 if part `p` has gradients of the worker in the slot of `w`, and not of another key. */
static int is_part_of(const struct core *c, const struct part *p, const struct worker *w)
{
	return p->batch == worker_id(c, w) - 1 &&
	       !workers_differ_in_key(p->owner, w->session.owner);
}

int voices_has(const struct core *c, const struct worker *w)
{
	const struct gradient_accumulator *a = &c->accumulator;
	int keys = a->parts > 0 && w->session.owner[0] && accumulator_merges_keys(c);

	for (uint32_t i = 0; i < a->parts; i++)
		if (is_part_of(c, &a->part[i], w) ||
			(keys && workers_same_key(a->part[i].owner, w->session.owner)))
			return 1;
	return 0;
}

/* Returns the number of gradients of worker `w` in the buffer. */
static uint32_t pushes_of(const struct core *c, const struct worker *w)
{
	const struct gradient_accumulator *a = &c->accumulator;

	for (uint32_t i = 0; i < a->parts; i++)
		if (is_part_of(c, &a->part[i], w))
			return a->part[i].images;
	return 0;
}

/* ---- the voices that can come ---------------------------------------------------------------- */

int voices_is_at_work(const struct worker *w)
{
	return (w->lease.waiting && w->session.peer) || w->pace.since_ms > 0;
}

/* Returns 1 if worker `w` holds a batch that is not done, and that has no copy. A batch with copies
 * does not count, because another worker may deliver it first. */
static int holds_batch(const struct core *c, const struct worker *w)
{
	const struct work *work = &w->lease.grant.work;

	if (!worker_is_active(w) || !batch_ledger_is_training(c, &w->lease.grant))
		return 0;
	for (uint32_t i = work->first; i < work->first + work->count; i++)
		if (batch_ledger_holds(c, w, 0, i) && c->leases.batch[i] != BATCH_DONE &&
			c->leases.copies[i] == 0)
			return 1;
	return 0;
}

/* Returns 1 if worker `w` can deliver a batch of the epoch in training. */
static int can_deliver(const struct core *c, const struct worker *w)
{
	return worker_is_active(w) && worker_is_of_run(c, w) &&
	       (holds_batch(c, w) || (voices_is_at_work(w) && c->rules->may_begin(c, w)));
}

static int is_lacking(const struct core *c, const struct worker *w)
{
	return can_deliver(c, w) && !voices_has(c, w);
}

static int is_lacking_and_holds(const struct core *c, const struct worker *w)
{
	return holds_batch(c, w) && worker_is_of_run(c, w) && !voices_has(c, w);
}

static int are_one_voice(int keys, const struct worker *a, const struct worker *b)
{
	return a == b || (keys && workers_same_key(a->session.owner, b->session.owner));
}

/* Returns 1 if none of the workers before worker `i` that `counts` selects is the same voice as
 * worker `i`. */
static int is_first_of_voice(const struct core *c, int keys, uint32_t i,
	int (*counts)(const struct core *, const struct worker *))
{
	for (uint32_t k = 0; k < i && keys; k++)
		if (are_one_voice(keys, &c->worker[i], &c->worker[k]) && counts(c, &c->worker[k]))
			return 0;
	return 1;
}

/* Returns the number of voices with a worker that `counts` selects, without the voice of `but`,
 * which may be NULL. Returns `max` if there are more. */
static uint32_t count_voices(const struct core *c, const struct worker *but, uint32_t max,
	int (*counts)(const struct core *, const struct worker *))
{
	int keys = accumulator_merges_keys(c);
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_slots && n < max; i++) {
		const struct worker *w = &c->worker[i];

		if (!(but && are_one_voice(keys, w, but)) && counts(c, w))
			n += (uint32_t)is_first_of_voice(c, keys, i, counts);
	}
	return n;
}

/* This struct says what the buffer needs from all voices but that of one worker. */
struct need {
	uint32_t voices; /* number of voices that the buffer lacks */
	uint32_t keep;   /* number of free batches that are kept for these voices */
};

static struct need need_of_others(const struct core *c, const struct worker *w)
{
	uint32_t room = less(c->cfg.push.buffer_size, accumulator_voices(c, 1));
	uint32_t own = !voices_has(c, w), voices;

	if (room <= own)
		return (struct need){0, 0};
	voices = count_voices(c, w, room - own, is_lacking);
	return (struct need){voices, voices - count_voices(c, w, voices, is_lacking_and_holds)};
}

/* ---- the rules ------------------------------------------------------------------------------- */

uint32_t voices_limit(const struct core *c, const struct worker *w)
{
	const uint32_t n_push = c->cfg.push.n_push;
	uint32_t left, pushes;
	struct need need;

	if (!voices_matter(c) || !count_voices(c, w, 1, can_deliver))
		return UINT32_MAX;
	need = need_of_others(c, w);
	left = less(c->leases.n_free, need.keep);
	if (!voices_has(c, w))
		return left ? smaller(left, VOICE_PUSHES * n_push) : 1;
	/* if the buffer lacks no other voice, the gradients may also go to the next buffer */
	if (!need.voices)
		return VOICE_PUSHES * n_push;
	pushes = pushes_of(c, w);
	return smaller(left, less(VOICE_PUSHES, pushes) * n_push);
}

/* Returns 1 if a worker other than `but` holds batch `i`, and its voice is lacking. */
static int voice_is_awaited(const struct core *c, const struct worker *but, uint32_t i)
{
	for (uint32_t k = 0; k < c->n_slots; k++) {
		const struct worker *w = &c->worker[k];

		if (w != but && batch_ledger_holds(c, w, 0, i) && is_lacking(c, w))
			return 1;
	}
	return 0;
}

int voices_permit(const struct core *c, const struct worker *w, const struct work *work)
{
	uint32_t pushes, left;
	struct need need;

	if (!voices_matter(c))
		return 1;
	if (work->count > c->cfg.push.n_push) /* correct workers push n_push batches at most */
		return 0;
	need = need_of_others(c, w);
	pushes = pushes_of(c, w);
	/* as in voices_limit, a lacking voice that holds no batch may take one in any case */
	left = less(c->leases.n_free, need.keep);
	if (!left && !voices_has(c, w) && !holds_batch(c, w))
		left = 1;
	for (uint32_t i = work->first; i < work->first + work->count && need.voices; i++) {
		if (batch_ledger_holds(c, w, 0, i))
			continue;
		/* the worker does not hold this batch now, but may deliver it because of an older
		 * grant */
		if (pushes >= VOICE_PUSHES || voice_is_awaited(c, w, i))
			return 0;
		if (c->leases.batch[i] == BATCH_FREE && left-- == 0)
			return 0;
	}
	return 1;
}

int voices_can_refill(const struct core *c)
{
	const struct leases *l = &c->leases;
	uint32_t needed;

	if (!voices_matter(c) || l->n_done == l->n_batches)
		return 1;
	needed = count_voices(c, NULL, c->cfg.push.buffer_size, can_deliver);
	return count_voices(c, NULL, needed, holds_batch) + l->n_free >= needed;
}
