/* core_invariants.c - see core_invariants.h. */
#include "tests/support/core_invariants.h"
#include <float.h>
#include <math.h>
#include <string.h>
#include "common/xxh3.h"
#include "server/core/core_state.h"
#include "server/core/vec.h"
#include "server/core/workers.h"

/* Returns 1 if all values are finite and, if the core has bounds of them, within these bounds. */
static int store_is_bounded(const struct core *c)
{
	const struct store *st = &c->store;
	const struct optim_step next = {c->stats.updates + 1, 0, 1};
	struct optim_reach max = {FLT_MAX, {FLT_MAX, FLT_MAX}, INFINITY}, now;
	const float *state[OPTIM_VECTORS];

	memcpy(state, st->state, sizeof(state));
	optim_measure(&c->cfg.optim, &next, st->weights, state, st->trained, &now);
	if (st->measured)
		max = st->reach;
	for (size_t i = 0; i < OPTIM_VECTORS; i++)
		if (!(now.state[i] <= max.state[i]))
			return 0;
	return now.weight <= max.weight && now.ratio <= max.ratio &&
	       vec_finite(st->weights + st->trained, st->n - st->trained);
}

static uint64_t hash_of_store(const struct core *c)
{
	const struct store *st = &c->store;
	uint64_t hash = XXH3_64bits(st->weights, st->n * sizeof(float));

	for (size_t i = 0; i < OPTIM_VECTORS; i++)
		if (st->state[i])
			hash = 31 * hash + XXH3_64bits(st->state[i], st->trained * sizeof(float));
	return hash;
}

static const char *broken_store(struct core_values *before, const struct core *c)
{
	if (c->cfg.device || c->store.update.pending)
		return NULL;
	const struct core_values now = {
		c, c->store.version, c->store.version_term, hash_of_store(c)};
	int same = before->core == c && before->version == now.version &&
		   before->version_term == now.version_term;
	int changed = before->hash != now.hash;
	*before = now;
	if (same && changed)
		return "store.c (2): a value has changed without a new version";
	return same || store_is_bounded(c) ? NULL
					   : "store.c (3): a value is infinite or above its bound";
}

static const char *broken_leases(const struct core *c)
{
	const struct leases *l = &c->leases;
	uint32_t n_free = 0, n_done = 0;

	if (l->epoch >= c->cfg.training.epochs)
		return NULL;
	for (uint32_t i = 0; i < l->n_batches; i++) {
		n_free += l->batch[i] == BATCH_FREE;
		n_done += l->batch[i] == BATCH_DONE;
	}
	return l->n_free != n_free || l->n_done != n_done
		       ? "batch_ledger.h (2): the batches are counted wrong"
		       : NULL;
}

static const char *broken_later_epochs(const struct core *c)
{
	const struct later_epochs *e = &c->later;

	for (uint32_t i = 0; i < e->n; i++) {
		const struct work *x = &e->work[i];

		if (x->epoch <= c->leases.epoch)
			return "later_epochs.h (2): a noted epoch is not later";
		for (uint32_t j = 0; j < i; j++) {
			const struct work *y = &e->work[j];

			if (x->epoch == y->epoch && x->first < y->first + y->count &&
				y->first < x->first + x->count)
				return "later_epochs.h (3): a batch is noted twice";
		}
	}
	return NULL;
}

static const char *broken_backups(const struct core *c)
{
	static uint32_t refs[WIRE_MAX_WORKERS * BACKUPS_MAX_HELD + 1];
	const struct backups *b = &c->backups;

	if (b->n == 0)
		return NULL;
	if (b->n > sizeof(refs) / sizeof(refs[0]))
		return "backups.c (1): too many copies";
	memset(refs, 0, b->n * sizeof(refs[0]));
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker_backups *w = &c->worker[i].backups;

		for (uint32_t j = 0; j < w->n_held; j++) {
			refs[w->held[j].copy]++;
			if (j > 0 && w->held[j - 1].version > w->held[j].version)
				return "backups.c (2): held versions are not in order";
		}
	}
	for (uint32_t i = 0; i < b->n; i++)
		if (b->copy[i].refs != refs[i])
			return "backups.c (1): the references to a copy are counted wrong";
	return NULL;
}

static int is_same_vote(const struct vote *x, const struct vote *y)
{
	return x->worker == y->worker || workers_same_key(x->owner, y->owner);
}

static const char *broken_checks(const struct core *c)
{
	if (c->checks.n > 0 && !c->leases.evaluating)
		return "checks.h (3): a check is open without an evaluation";
	for (uint32_t n = 0; n < c->checks.n; n++) {
		const struct check *k = &c->checks.check[n];

		for (uint32_t i = 0; i < k->n; i++)
			for (uint32_t j = 0; j < i; j++)
				if (is_same_vote(&k->vote[i], &k->vote[j]))
					return "checks.h (1): two votes of one worker or key";
	}
	return NULL;
}

static const char *broken_quarantine(const struct core *c)
{
	for (uint32_t i = 0; i < c->quarantine.n; i++)
		if (!quarantine_entry_is_valid(&c->quarantine, i))
			return "quarantine.h (1): a worker has two entries, or no exclusion";
	return NULL;
}

static const char *broken_workers(const struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		if (w->ledger.durable_seq > w->ledger.last_seq)
			return "ledger.c (4): durable_seq is above last_seq";
		if (w->quarantine.excluded &&
			(worker_is_active(w) || w->lease.grant.request || w->lease.waiting))
			return "departure.h (5): something waits for an excluded worker";
	}
	return NULL;
}

const char *core_broken_invariant(struct core_values *before, const struct core *c)
{
	const char *broken[] = {broken_store(before, c), broken_leases(c), broken_later_epochs(c),
		broken_backups(c), broken_checks(c), broken_quarantine(c), broken_workers(c)};

	for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++)
		if (broken[i])
			return broken[i];
	return NULL;
}
