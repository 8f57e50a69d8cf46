/*
 * sync.c - synchronous steps with backup workers (Chen 2016, arXiv 1604.00981). A step begins with
 * the next batches in the order of the epoch. Its members are all ready workers: those that are
 * active (workers.h), have the run's data set, and have not become idle (is_idle). The step ends
 * when the gradients that are due have arrived: --sync-workers gradients or, if that option is 0,
 * as many as the step has members minus --backup-workers, but at least 1. The step has one batch
 * for each member, but with --sync-workers N at most N + --backup-workers batches. Therefore up to
 * --backup-workers gradients of a step can arrive after its end. The server drops these late
 * gradients, counts them as superseded, and grants their batches again in the next step. If each
 * key counts once in the rule that combines the gradients, the workers of one key do not get the
 * batches that the step needs for other keys.
 *
 * Invariants:
 * (1) no worker counts twice in a step, except when it replays pushes that were accepted before a
 *     crash of the server (asserted by sync_take; no_worker_counts_twice_in_one_step);
 * (2) each gradient that a step counts is kept until the update, and an update has at least one
 *     (asserted by step; mutant sums-not-saved);
 * (3) replayed steps stay separate steps: a replay of a later step ends the step under way, and a
 *     replay of a later epoch is a step by itself (asserted by sync_take and step;
 *     replayed_steps_stay_steps, mutant steps-merged);
 * (4) the accumulator keeps the gradients in the order of their batches, so the update does not
 *     depend on the order in which they arrived, nor on which worker computed which batch (asserted
 *     by accumulator_keep in accumulator.c; mutant order-of-arrival).
 *
 * Promises:
 * (1) a step waits for every live member, even for one that has not asked for work yet. The wait
 *     ends when the gradients that are due have arrived and come from enough keys (needed_keys), or
 *     when a replay after a server crash ends the step (tests/sim/steps.c, mutant member-left-out);
 * (2) a step never waits for a worker that is not live, that is stalled (pace.h), that joined after
 *     the step began, or that neither works nor asks for work for dead_ms. For these reasons every
 *     step ends (tests/sim/sim.c, mutants barrier-of-the-dead and waits-for-the-stalled);
 * (3) an accepted gradient is in the next update or in the snapshot (tests/sim/verdict.c, mutant
 *     sums-not-saved).
 */
#include "server/core/sync.h"
#include "common/assert.h"
#include "server/core/accumulator.h"
#include "server/core/batch_ledger.h"
#include "server/core/core_state.h"
#include "server/core/later_epochs.h"
#include "server/core/leases.h"
#include "server/core/norms.h"
#include "server/core/pace.h"
#include "server/core/rights.h"
#include "server/core/run.h"
#include "server/core/sessions.h"
#include "server/core/store.h"
#include "server/core/workers.h"

static uint64_t this_step(const struct core *c)
{
	return c->store.version + 1;
}

static int has_answered(const struct core *c, const struct worker *w)
{
	return w->sync.answered == this_step(c);
}

static int is_awaited(const struct core *c, const struct worker *w)
{
	return worker_is_active(w) && w->sync.member == this_step(c) && !has_answered(c, w);
}

static uint32_t count_awaited(const struct core *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_slots; i++)
		n += (uint32_t)is_awaited(c, &c->worker[i]);
	return n;
}

static int is_of_this_step(const struct core *c, const struct work *work)
{
	return c->sync.open && work->count == 1 && c->leases.batch[work->first] != BATCH_SHUT;
}

static enum reject sync_check(
	const struct core *c, const struct worker *w, const struct msg_push *p)
{
	if (rights_of_replay(c, w, p))
		return REJECT_NONE;
	if (!store_is_current(c, p))
		return REJECT_STALE;
	return has_answered(c, w) || !is_of_this_step(c, &p->work) ? REJECT_WORK : REJECT_NONE;
}

/* ---- the end of a step ---------------------------------------------------------------------- */

/* Closes the step. Batches of the step that are not counted wait for the next step. */
static void shut(struct core *c)
{
	struct leases *l = &c->leases;

	for (uint32_t i = c->sync.first; i < c->sync.end; i++) {
		if (l->batch[i] != BATCH_DONE)
			l->batch[i] = BATCH_SHUT;
		l->copies[i] = 0;
	}
	l->n_free = 0;
	c->sync.open = 0;
}

/* Ends the step: makes one update from the accumulated gradients, which are of `epoch`. */
static void step(struct core *c, uint32_t epoch)
{
	struct gradient_accumulator *a = &c->accumulator;

	PS_ASSERT(a->pushes > 0 && a->parts == a->pushes);     /* invariant 2 */
	PS_ASSERT(epoch == c->leases.epoch || a->pushes == 1); /* invariant 3 */
	if (c->cfg.limits.norm_ratio > 0)
		accumulator_limit_norms(c, norms_limit_of_step(c, has_answered));
	accumulator_mean(c, store_scratch(c));
	batch_ledger_record(c, epoch, a->images, accumulator_loss_sum(c));
	store_step(c, c->store.scratch, store_scaled_rate(c, accumulator_gradients(c), 0));
	c->stats.updates++;
	c->epoch[epoch].updates++;
	c->stats.staleness[0]++;
	c->stats.steps_short += c->sync.open && a->pushes < c->sync.due;
	accumulator_clear(c);
	shut(c);
}

/* Returns 1 if the push belongs to a later step, so the step under way ends first. Only a replay
 * can be of later weights or of a later epoch, because before the crash its worker had seen the end
 * of the step that is now under way. Likewise, only a replay can arrive when the accumulator has no
 * room for one more gradient. */
static int ends_the_step(const struct core *c, const struct msg_push *p)
{
	const struct gradient_accumulator *a = &c->accumulator;
	int later = p->base_version > c->store.version || later_epochs_contain(c, &p->work);

	return a->pushes && (later || a->pushes == a->room);
}

/* If the server has lost the first step of the run, no gradient can be compared with an earlier one
 * (norms_limit_of_step). In this case the step must not end before the other workers have replayed
 * their pushes. */
static int sync_must_wait(const struct core *c, const struct msg_push *p)
{
	return ends_the_step(c, p) && norms_need_comparison(c);
}

/* Returns 1 if all values stay finite when the gradient of push `p` is applied. If `p` is of a
 * later step, the function first ends the step under way, so that it checks the gradient with the
 * weights of the later step. The step stays ended even if the server rejects the gradient. */
static int sync_fits(struct core *c, const struct worker *w, const struct msg_push *p)
{
	if (ends_the_step(c, p))
		step(c, c->leases.epoch);
	return accumulator_fits(c, w, p);
}

static void sync_take(struct core *c, struct worker *w, const struct msg_push *p)
{
	PS_ASSERT(!has_answered(c, w) || rights_of_replay(c, w, p)); /* invariant 1 */
	PS_ASSERT(!ends_the_step(c, p));                             /* invariant 3 */
	accumulator_keep(c, w, p);
	w->sync.answered = this_step(c);
	/* a replay of a later epoch is a step by itself: the gradients of the other workers are
	 * still of this epoch and cannot join it */
	if (later_epochs_contain(c, &p->work))
		step(c, p->work.epoch);
}

/* Returns 1 if every batch of the step is counted. If a worker that is not a member has replayed a
 * push, all batches can be counted before all members have delivered. */
static int is_exhausted(const struct core *c)
{
	for (uint32_t i = c->sync.first; i < c->sync.end; i++)
		if (c->leases.batch[i] != BATCH_DONE)
			return 0;
	return 1;
}

static int is_member(const struct core *c, const struct worker *w)
{
	return w->sync.member == this_step(c);
}

/* Returns the number of different keys from which a step needs gradients, if a robust rule gets one
 * gradient of each key: the number of keys of the members minus --backup-workers, but at least 1,
 * and at most the number of gradients that are due. Returns 0 if no rule gets one gradient of each
 * key. */
static uint32_t needed_keys(const struct core *c)
{
	uint32_t backup = c->cfg.sync.backup_workers, keys, needed;

	if (!accumulator_merges_keys(c))
		return 0;
	keys = workers_count_keys(c, is_member);
	needed = keys > backup ? keys - backup : 1;
	return needed < c->sync.due ? needed : c->sync.due;
}

/* Returns 1 if the gradients that have arrived come from at least needed_keys keys. */
static int has_keys(const struct core *c)
{
	uint32_t needed = needed_keys(c);

	return !needed || accumulator_voices(c, 1) >= needed;
}

static int is_complete(const struct core *c)
{
	uint32_t pushes = c->accumulator.pushes;

	if (pushes == 0)
		return 0;
	if (c->leases.n_done == c->leases.n_batches)
		return 1;
	if (c->run.recovering) /* more replays of this step may arrive */
		return 0;
	return (c->sync.open && ((pushes >= c->sync.due && has_keys(c)) || is_exhausted(c))) ||
	       count_awaited(c) == 0;
}

/* ---- the beginning of a step ---------------------------------------------------------------- */

/* Opens the first `n` batches of the epoch that are not counted, or fewer if fewer are left.
 * Returns the number of opened batches. */
static uint32_t open_batches(struct core *c, uint32_t n)
{
	struct leases *l = &c->leases;
	struct sync *s = &c->sync;
	uint32_t opened = 0;

	for (s->end = s->first; s->end < l->n_batches && opened < n; s->end++) {
		if (l->batch[s->end] == BATCH_DONE) {
			s->first += opened == 0;
			continue;
		}
		l->batch[s->end] = BATCH_FREE;
		l->copies[s->end] = 0;
		opened++;
	}
	l->n_free = opened;
	return opened;
}

static int somebody_is_live(const struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (c->worker[i].session.state == SESSION_LIVE)
			return 1;
	return 0;
}

static int is_ready(const struct core *c, const struct worker *w)
{
	return worker_is_active(w) && !w->sync.idle && worker_is_of_run(c, w);
}

static int somebody_is_ready(const struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (is_ready(c, &c->worker[i]))
			return 1;
	return 0;
}

/* Makes each ready worker that has not delivered a gradient for this step a member of the step. If
 * no worker is ready, makes stalled workers the members of the step. Returns the number of
 * members. */
static uint32_t call_members(struct core *c)
{
	uint32_t n = 0;
	int all = !somebody_is_ready(c);

	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];
		int here = worker_is_active(w) || (all && w->session.state == SESSION_LIVE);
		int called = here && !w->sync.idle && !has_answered(c, w) && worker_is_of_run(c, w);

		w->sync.member = called ? this_step(c) : 0;
		n += (uint32_t)called;
	}
	return n;
}

/* Begins a step if no step is open and a batch is left. Replays that arrived before the step began
 * count as its gradients. */
static void begin(struct core *c)
{
	const struct core_config *cfg = &c->cfg;
	uint32_t taken = c->accumulator.pushes, all, max, n;

	/* while a snapshot is decoded, no worker is live, so the step under way keeps the members
	 * that the snapshot has */
	if (c->sync.open || !somebody_is_live(c) || !run_gives_work(c) ||
		c->leases.epoch >= cfg->training.epochs || c->leases.n_done == c->leases.n_batches)
		return;
	n = call_members(c);
	if (n == 0)
		return;
	all = n + taken;
	max = cfg->sync.workers ? cfg->sync.workers + cfg->sync.backup_workers : all;
	c->sync.due = cfg->sync.workers                ? cfg->sync.workers
		      : all > cfg->sync.backup_workers ? all - cfg->sync.backup_workers
						       : 1;
	n = open_batches(c, all < max ? n : max > taken ? max - taken : 0);
	if (c->sync.due > taken + n && c->sync.end == c->leases.n_batches)
		/* fewer gradients are due, because the epoch has no more batches */
		c->sync.due = taken + n;
	c->sync.open = 1;
	c->sync.begin_ms = c->now_ms;
}

static void sync_open(struct core *c)
{
	c->sync = (struct sync){.end = c->leases.n_batches};
	shut(c);
	c->sync.end = 0;
	begin(c);
}

/* ---- members that are not waited for any more ----------------------------------------------- */

/* Returns 1 if the worker has sent only heartbeats for more than dead_ms, and neither works nor
 * waits for work. A worker that has closed its connection waits for no work. */
static int is_idle(const struct core *c, const struct worker *w)
{
	uint64_t since =
		w->sync.active_ms > c->sync.begin_ms ? w->sync.active_ms : c->sync.begin_ms;
	const struct msg_grant *g = &w->lease.grant;
	int testing = g->request && g->kind == GRANT_EVAL && c->leases.evaluating &&
		      g->eval_id == c->leases.epoch;
	int working = g->request && g->kind == GRANT_TRAIN && g->version == c->store.version;

	int waiting = w->lease.waiting && w->session.peer;

	return !waiting && !testing && !working && c->now_ms - since > c->cfg.sessions.dead_ms;
}

static void drop_members(struct core *c)
{
	if (c->run.recovering) {
		/* no member is idle during a recovery, because the server expects the absent
		 * workers back */
		c->sync.begin_ms = c->now_ms;
		return;
	}
	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];

		if (is_awaited(c, w) && is_idle(c, w))
			w->sync.idle = 1;
		if (!worker_is_active(w) || w->sync.idle)
			w->sync.member = 0;
	}
}

static void sync_settle(struct core *c)
{
	drop_members(c);
	if (c->sync.open && !c->run.recovering && c->accumulator.pushes == 0 &&
		count_awaited(c) == 0 && somebody_is_ready(c))
		/* no gradient can come any more, so a new step begins with the ready workers */
		shut(c);
	begin(c);
	if (is_complete(c)) {
		step(c, c->leases.epoch);
		begin(c);
	}
}

/* Returns 1 if the worker computes a batch of this step, or has delivered one. */
static int has_batch(const struct core *c, const struct worker *w)
{
	const struct msg_grant *g = &w->lease.grant;

	return has_answered(c, w) ||
	       (is_member(c, w) && g->request && batch_ledger_is_training(c, g));
}

static int key_has_batch(const struct core *c, const struct worker *w)
{
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (workers_same_key(c->worker[i].session.owner, w->session.owner) &&
			has_batch(c, &c->worker[i]))
			return 1;
	return 0;
}

/* With --sync-workers, a step can have fewer batches than members. Returns 1 if the key of `w`
 * already has a batch, and the free batches are for other keys that the step needs. */
static int is_for_other_keys(const struct core *c, const struct worker *w)
{
	uint32_t needed = c->cfg.sync.workers && c->leases.n_free ? needed_keys(c) : 0;

	if (needed < c->leases.n_free || !key_has_batch(c, w))
		return 0;
	return c->leases.n_free + workers_count_keys(c, has_batch) <= needed;
}

static uint32_t sync_limit(const struct core *c, const struct worker *w)
{
	/* a stalled worker gets one batch to show that it works */
	int trial = w->pace.stalled && !has_answered(c, w);

	return c->sync.open && (trial || (is_awaited(c, w) && !is_for_other_keys(c, w)));
}

const struct rules rules_sync = {.check = sync_check,
	.fits = sync_fits,
	.take = sync_take,
	.must_wait = sync_must_wait,
	.limit = sync_limit,
	.open_epoch = sync_open,
	.settle = sync_settle};
