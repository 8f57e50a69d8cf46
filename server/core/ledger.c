/*
 * ledger.c - decides every push exactly once. WIRE.md ("Exactly once") specifies the order of the
 * checks of a push. Before this file gets a message, sessions_check has refused messages of another
 * run, of an older incarnation or of another term.
 *
 * Invariants:
 * (1) every seq of a worker is decided once, and in order (asserted by decide;
 *     tests/sim/verdict.c);
 * (2) a snapshot is taken between the steps of the core. One step makes a decision and its effect
 *     on the weights, so both are in the same snapshot or in none (asserted by snapshot_encode in
 *     snapshot.c; tests/sim/verdict.c, mutant ledger-outside-snapshot);
 * (3) a rejected push uses up its seq, but counts no batch and makes no version (asserted by
 *     decide and assert_versions). As the only exception, a replay of a later step of sync ends the
 *     step under way, even if the replay is rejected because its values are too large
 *     (tests/unit/test_core_reject.c, mutant reject-keeps-seq);
 * (4) durable_seq is never above last_seq (asserted by decide;
 *     tests/support/core_invariants.c).
 *
 * Promises:
 * (1) duplicates of a push get the first decision
 *     (a_duplicate_gets_the_first_verdict_and_version_and_is_applied_once, tests/sim/verdict.c).
 */
#include "server/core/ledger.h"
#include "common/assert.h"
#include "common/clones.h"
#include "server/core/backups.h"
#include "server/core/batch_ledger.h"
#include "server/core/checkpoints.h"
#include "server/core/core_state.h"
#include "server/core/dataset.h"
#include "server/core/departure.h"
#include "server/core/effects.h"
#include "server/core/later_epochs.h"
#include "server/core/leases.h"
#include "server/core/modes.h"
#include "server/core/norms.h"
#include "server/core/pace.h"
#include "server/core/rights.h"
#include "server/core/run.h"
#include "server/core/running.h"
#include "server/core/sessions.h"
#include "server/core/store.h"
#include "server/core/vec.h"
#include "server/core/workers.h"
#include <math.h>
#include <string.h>

static struct decision *decision_at(const struct core *c, const struct worker *w, uint64_t seq)
{
	return &w->ledger.decisions[seq % c->cfg.sessions.replay_window];
}

/* Answers push `p` with an ACK. If the push also pulls, answer_push in core.c sends the ACK and the
 * weights in one message at the end of the step. */
static void answer(struct core *c, struct worker *w, const struct msg_push *p,
	const struct decision *d, int duplicate)
{
	const struct msg_ack ack = {.seq = p->seq,
		.verdict = (enum verdict)d->verdict,
		.reject = (enum reject)d->reject,
		.duplicate = (uint32_t)duplicate,
		.version = d->version,
		.durable_seq = worker_durable_seq(c, w),
		.term = c->cfg.term,
		.superseded = d->superseded,
		.code = d->code};

	if (p->pull) {
		c->ledger.pulling.worker = w;
		c->ledger.pulling.request = p->pull;
		c->ledger.pulling.ack = ack;
	} else {
		effects_send_decided(c, w->session.peer, MSG_ACK)->ack = ack;
	}
}

static void answer_duplicate(struct core *c, struct worker *w, const struct msg_push *p)
{
	const struct decision forgotten = {.verdict = VERDICT_REJECTED, .reject = REJECT_UNKNOWN};
	const struct decision *d = decision_at(c, w, p->seq);
	/* the window has no decision for this seq if the snapshot came from a server with a smaller
	 * window, or if a rollback has lost the decision */
	int kept = w->ledger.last_seq - p->seq < c->cfg.sessions.replay_window &&
		   d->verdict != VERDICT_NONE;

	c->stats.duplicates++;
	w->counts.duplicates++;
	answer(c, w, p, kept ? d : &forgotten, 1);
}

/* Checks the run, the data set, the batches and the weights of push `p`. Before the run begins, the
 * core grants no work. A push that arrives at that time can count only if it is a replay of a push
 * that the server accepted before a crash. */
static enum reject check_work(struct core *c, const struct worker *w, const struct msg_push *p)
{
	int replay = rights_of_replay(c, w, p);
	enum reject r = run_has_begun(c) || replay ? REJECT_NONE : REJECT_WORK;

	if (r == REJECT_NONE && !worker_is_of_run(c, w))
		r = dataset_check(c, w, p);
	if (r == REJECT_NONE)
		r = batch_ledger_check(c, &p->work, p->images, replay);
	if (r == REJECT_NONE && !replay && !rights_to_push(c, w, p))
		r = REJECT_WORK;
	return r == REJECT_NONE ? c->rules->check(c, w, p) : r;
}

static int has_wild_statistics(struct core *c, const struct msg_push *p)
{
	return c->cfg.running.n > 0 && running_is_wild(c, &p->slices);
}

/* Checks push `p`. The function checks the values even if the work is late or already done, because
 * a push with values that are not finite shows a broken device, and departure.c counts each such
 * push. */
static enum reject reject_of(struct core *c, struct worker *w, const struct msg_push *p)
{
	enum reject r, values;

	/* the push is a replay, and the server rejected it before a crash */
	if (rights_verdict(c, w, p) == VERDICT_REJECTED)
		return p->reject == REJECT_NONE ? REJECT_UNKNOWN : p->reject;
	r = check_work(c, w, p);
	if (r == REJECT_SHAPE)
		return r;
	values = isfinite(p->loss) ? store_check(c, &p->slices) : REJECT_NONFINITE;
	if (r != REJECT_NONE && values != REJECT_NONFINITE)
		return r;
	if (values == REJECT_NONE && (norms_check(c, w, p) || has_wild_statistics(c, p)) &&
		!rights_of_replay(c, w, p))
		values = REJECT_NORM;
	if (values != REJECT_NONE)
		return values;
	return c->rules->fits(c, w, p) ? REJECT_NONE : REJECT_NONFINITE;
}

/* Returns the factor, at most 1, by which the gradient of push `p` is scaled. */
static double find_scale(struct core *c, const struct worker *w, const struct msg_push *p)
{
	double scale = norms_scale(c, p), max = rights_norm(c, w, p);
	double norm = isfinite(max) ? store_norm(c, &p->slices) : 0;

	return norm > max ? vec_smaller(scale, max / norm) : scale;
}

/* Returns the norm with which the gradient of push `p` moves the weights, for the code of the
 * decision. Returns infinity if the push is rejected, or if the run compares no norms. */
static double norm_in_code(const struct core *c, const struct msg_push *p, enum reject r)
{
	return r == REJECT_NONE && c->cfg.limits.norm_ratio > 0
		       ? norms_permitted(c, store_norm(c, &p->slices))
		       : (double)INFINITY;
}

static void accept_push(struct core *c, struct worker *w, const struct msg_push *p)
{
	double loss = (double)p->loss;
	PS_UNINITIALIZED struct msg_push limited;

	/* invariant 2 of dataset.c */
	PS_ASSERT(c->cfg.training.epochs == 0 || worker_is_of_run(c, w));
	c->stats.loss =
		c->stats.accepted++ == 0 ? loss : c->stats.loss + 0.02 * (loss - c->stats.loss);
	if (w->quarantine.bad + w->quarantine.earlier + w->quarantine.shapes > 0 ||
		!w->quarantine.sound)
		quarantine_good(w);
	if (!c->dataset.fixed && c->cfg.training.epochs > 0)
		dataset_contributed(c);
	if (c->cfg.training.epochs > 0) {
		/* invariant 1 of later_epochs.h */
		PS_ASSERT(!later_epochs_contain(c, &p->work) || rights_of_replay(c, w, p));
		c->run.begun = 1; /* a replay proves that the run had begun before a crash */
		batch_ledger_mark(c, &p->work);
	}
	w->ledger.images += p->images;
	c->ledger.computed += p->images;
	c->store.permitted = find_scale(c, w, p);
	c->rules->take(c, w, c->cfg.running.n > 0 ? running_limit(c, p, &limited) : p);
}

/* Returns 1 if push `p` is correct but came too late: another worker has delivered the same work,
 * or the step ended without this push. */
static int was_superseded(
	const struct core *c, const struct worker *w, const struct msg_push *p, enum reject r)
{
	if (rights_verdict(c, w, p) == VERDICT_REJECTED)
		return (int)p->superseded;
	if (r == REJECT_WORK)
		return batch_ledger_check(c, &p->work, p->images, rights_of_replay(c, w, p)) ==
		       REJECT_WORK;
	return r == REJECT_STALE && mode_is_exact(c->cfg.training.mode) &&
	       p->base_version < c->store.version;
}

/* Returns 1 if a push that is rejected for reason `r` is a bad push. Too many bad pushes exclude
 * the worker (departure.h). A push that is rejected because it is of a later epoch is not bad: the
 * server may have lost its newest state. */
static int counts_as_bad(const struct core *c, const struct msg_push *p, enum reject r)
{
	int shape = r == REJECT_SHAPE && p->work.epoch <= c->leases.epoch;
	int compares = c->cfg.limits.norm_ratio > 0;

	return r == REJECT_NONFINITE || (compares && r == REJECT_NORM) ||
	       (shape && (compares || rights_have_key(c)));
}

/* Checks the number of versions that push `p` has made, if `r` is its decision. */
static void assert_versions(const struct core *c, const struct worker *w, const struct msg_push *p,
	enum reject r, uint64_t made)
{
	const enum mode mode = c->cfg.training.mode;
	int is_applied = r == REJECT_NONE;
	/* a replay in mode sync can end the step under way, and then be a step by itself */
	int may_end_a_step = mode == MODE_SYNC && (is_applied || r == REJECT_NONFINITE) &&
			     rights_of_replay(c, w, p);
	/* the update waits for other gradients, or is the end of a step */
	int may_wait = mode_is_exact(mode) || c->cfg.push.buffer_size > 1;

	/* invariant 3 of this file, and invariants 1 and 2 of store.c */
	PS_ASSERT(made <= (uint64_t)(is_applied + may_end_a_step));
	PS_ASSERT(made >= (uint64_t)(is_applied && !may_wait));
}

/* Counts a push that is neither accepted nor a delivery of granted work. If more than
 * MAX_EMPTY_LEASES such pushes and requests for leases come in a row, the core counts each further
 * one as a message that it drops. */
static void note_wasted(struct core *c, struct worker *w)
{
	w->lease.empty += w->lease.empty <= MAX_EMPTY_LEASES;
	effects_drop(c, w->lease.empty > MAX_EMPTY_LEASES);
}

static void decide(struct core *c, struct worker *w, const struct msg_push *p)
{
	const uint64_t version = c->store.version;
	const uint32_t done = c->leases.n_done;
	enum reject r = reject_of(c, w, p);
	int superseded = was_superseded(c, w, p, r), delivers = 0;
	struct decision *d;

	PS_ASSERT(p->seq == w->ledger.last_seq + 1); /* invariant 1 */
	w->ledger.last_seq = p->seq;
	c->stats.pushes++;
	w->counts.pushes++;
	c->ledger.push_ms = c->now_ms;
	if (c->cfg.training.epochs == 0)
		effects_begin(c);
	c->checkpoints.dirty = 1;
	if (r == REJECT_NONE || r == REJECT_STALE || superseded)
		delivers = pace_trained(c, w, &p->work, r == REJECT_NONE);
	if (r == REJECT_NONE || delivers)
		w->lease.empty = 0;
	else
		note_wasted(c, w);
	if (r == REJECT_NONE) {
		accept_push(c, w, p);
	} else {
		c->stats.rejected[r] += !superseded;
		w->counts.rejected += !superseded;
		c->stats.superseded += (uint64_t)superseded;
		if (mode_is_exact(c->cfg.training.mode))
			/* release the rest of the worker's grant, which the worker does not need
			 * any more */
			batch_ledger_release(c, w);
	}
	if (c->backups.n > 0)
		backups_pushed(c, w, p);
	d = decision_at(c, w, p->seq);
	d->verdict = r == REJECT_NONE ? VERDICT_OK : VERDICT_REJECTED;
	d->reject = (uint8_t)r;
	d->superseded = (uint8_t)superseded;
	d->version = c->store.version;
	d->code = rights_of_decision(c, w, p, d, norm_in_code(c, p, r));
	if (!c->cfg.durable)
		w->ledger.durable_seq = w->ledger.last_seq;
	else if (!c->cfg.checkpoint.wal &&
		 w->ledger.last_seq - w->ledger.durable_seq >= c->cfg.sessions.replay_window / 2)
		/* take a snapshot now, so that the worker does not have to wait for one later */
		c->checkpoints.urgent = 1;
	assert_versions(c, w, p, r, c->store.version - version);
	PS_ASSERT(r == REJECT_NONE || c->leases.n_done == done); /* invariant 3 */
	PS_ASSERT(w->ledger.durable_seq <= w->ledger.last_seq);  /* invariant 4 */
	answer(c, w, p, d, 0);
	if (counts_as_bad(c, p, r))
		quarantine_bad(c, w, r);
}

/* Returns 1 if the core must not decide push `p` before the recovery ends. Until then, every worker
 * can replay the pushes that the server had accepted before the crash. A push that the server had
 * not decided, for example because a second worker has computed the same batch, must not take the
 * place of a replay.
 */
static int precedes_replays(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	if (!c->run.recovering || c->cfg.training.epochs == 0)
		return 0;
	return rights_verdict(c, w, p) == VERDICT_NONE ||
	       (c->rules->must_wait && c->rules->must_wait(c, p));
}

/* Notes that push `seq` must wait for the end of the recovery. Returns 0 if there is nothing to
 * wait for, because all workers are back and have replayed, or if an earlier push is missing. */
static int waits(struct core *c, struct worker *w, uint64_t seq)
{
	const uint64_t target = w->ledger.replay_target;

	if (seq == w->ledger.last_seq + 1)
		w->ledger.replay_target = PUSH_WAITS;
	if (w->ledger.replay_target == PUSH_WAITS && !sessions_all_back(c))
		return 1;
	w->ledger.replay_target = target;
	return 0;
}

void ledger_end_recovery(struct core *c)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		struct worker *w = &c->worker[i];

		if (w->ledger.replay_target != PUSH_WAITS)
			continue;
		w->ledger.replay_target = w->ledger.last_seq;
		if (w->session.peer)
			effects_send(c, w->session.peer, MSG_ERROR)->error =
				(struct msg_error){.status = PS_EGAP,
					.expected = w->ledger.last_seq + 1,
					.text = "the recovery has ended: pushes since this one "
						"must be sent again"};
	}
}

void ledger_on_push(struct core *c, struct worker *w, const struct event *ev)
{
	const struct msg_push *p = &ev->msg->push;

	w->session.peer = ev->peer;
	if (p->seq == 0) {
		effects_refuse(c, ev->peer, PS_EPROTO, 0, "seq counts from 1");
		return;
	}
	if (c->run.ending != END_NOT && p->seq > w->ledger.last_seq && run_is_closed(c))
		/* no answer: the server reports no decision before the last snapshot is on disk */
		return;
	if (p->seq > w->ledger.last_seq && precedes_replays(c, w, p) && waits(c, w, p->seq))
		/* send no answer: after the recovery, ledger_end_recovery asks the worker to send
		 * this push again */
		return;
	if (p->seq > w->ledger.last_seq + 1) {
		c->stats.gaps++;
		effects_refuse(c, ev->peer, PS_EGAP, w->ledger.last_seq + 1,
			"a push before this one is missing");
		return;
	}
	if (p->seq <= w->ledger.last_seq)
		answer_duplicate(c, w, p);
	else
		decide(c, w, p);
}
