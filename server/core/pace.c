/* pace.c - see pace.h. */
#include "server/core/pace.h"
#include "common/assert.h"
#include "server/core/batch_ledger.h"
#include "server/core/core_state.h"
#include "server/core/effects.h"
#include "server/core/leases.h"
#include "server/core/ledger.h"
#include "server/core/modes.h"
#include "server/core/rights.h"
#include "server/core/run.h"
#include "server/core/sessions.h"
#include "server/core/store.h"
#include "server/core/workers.h"
#include <string.h>

/* ---- durations ------------------------------------------------------------------------------- */

/* Returns the median. `before` is the median before the newest duration was added. One duration
 * moves the median by at most one place in the order of the durations, so the new median is
 * `before` or one of its two neighbours. No branch of the loop depends on a duration. */
static uint32_t median(const struct recent *r, uint32_t before)
{
	uint32_t below = 0, up_to = 0, lower = 0, higher = UINT32_MAX;

	for (uint32_t i = 0; i < r->n; i++) {
		uint32_t us = r->us[i], low = us < before ? us : 0;
		uint32_t high = us > before ? us : UINT32_MAX;

		below += us < before;
		up_to += us <= before;
		lower = low > lower ? low : lower;
		higher = high < higher ? high : higher;
	}
	return r->n / 2 < below ? lower : r->n / 2 < up_to ? before : higher;
}

static void note(struct recent *r, uint64_t us)
{
	r->us[r->next] = us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
	r->next = (r->next + 1) % PACE_RECENT;
	r->n += r->n < PACE_RECENT;
	r->median_us = median(r, r->median_us);
}

static size_t kind_of(const struct worker *w)
{
	return w->lease.grant.kind == GRANT_EVAL;
}

/* ---- the deadline ---------------------------------------------------------------------------- */

/* Returns the expected number of pieces in the worker's next delivery. After the last piece of its
 * grant, the worker owes a request for more work, which counts as one piece. */
static uint64_t next_pieces(const struct core *c, const struct worker *w)
{
	uint32_t left = w->pace.left ? w->pace.left : 1;

	if (mode_is_exact(c->cfg.training.mode) || left < c->cfg.push.n_push)
		return left;
	return c->cfg.push.n_push;
}

/* Returns the time in microseconds that this worker usually takes for one piece, or 0 if no worker
 * has delivered a piece yet. */
static uint64_t usual_us(const struct core *c, const struct worker *w)
{
	const struct recent *own = &w->pace.recent[kind_of(w)];
	const struct recent *fleet = &c->pace.recent[kind_of(w)];

	if (own->n >= PACE_OWN || own->median_us > fleet->median_us)
		return own->median_us;
	return fleet->median_us;
}

/* Returns the deadline of a worker that usually takes `us` microseconds for one piece. */
static uint64_t deadline_for(const struct core *c, const struct worker *w, uint64_t us)
{
	uint64_t ms = PACE_DEADLINE * next_pieces(c, w) * us / 1000;

	if (c->pace.recent[kind_of(w)].n == 0)
		return c->cfg.leases.first_deadline_ms;
	return ms > PACE_DEADLINE_MS ? ms : PACE_DEADLINE_MS;
}

static uint64_t deadline_ms(const struct core *c, const struct worker *w)
{
	return deadline_for(c, w, usual_us(c, w));
}

/* ---- what a worker owes ---------------------------------------------------------------------- */

static uint32_t pieces_of(const struct msg_grant *g)
{
	return g->kind == GRANT_EVAL ? 1 : g->work.count;
}

static void restart_clock(const struct core *c, struct pace *p)
{
	p->since_ms = c->now_ms;
	p->paused_ms = p->moved_ms = p->moved = 0;
	p->late = 0;
}

/* Stops the clock of a worker that owes nothing from now on, and notes since when it owes
 * nothing. */
static void stop_owing(const struct core *c, struct pace *p)
{
	if (p->since_ms)
		p->moved_ms = c->now_ms;
	p->since_ms = 0;
}

void pace_granted(struct core *c, struct worker *w)
{
	uint64_t moved = w->pace.moved;

	restart_clock(c, &w->pace);
	/* keep `moved`, which restart_clock has set to 0: only a delivery permits new transfers */
	w->pace.moved = moved;
	w->pace.left = pieces_of(&w->lease.grant);
	w->pace.shadow = w->pace.stalled;
}

int pace_is_at_work(const struct worker *w)
{
	int waiting = w->lease.waiting && w->session.peer;

	return w->lease.request > 0 && (waiting || w->pace.since_ms > 0);
}

uint64_t pace_owes_ms(const struct core *c, const struct worker *w)
{
	const struct pace *p = &w->pace;
	uint64_t since = p->since_ms ? c->now_ms - p->since_ms : 0;

	return since > p->paused_ms ? since - p->paused_ms : 0;
}

static void owe(struct pace *p, uint64_t ms)
{
	p->owed_ms = ms < PACE_OWED_MAX - p->owed_ms ? p->owed_ms + ms : PACE_OWED_MAX;
}

/* Returns 1 if one of the worker's newest replay_window pushes was accepted. */
static int has_delivered(const struct core *c, const struct worker *w)
{
	for (uint32_t i = 0; i < c->cfg.sessions.replay_window; i++)
		if (w->ledger.decisions[i].verdict == VERDICT_OK)
			return 1;
	return 0;
}

/* Ends the stalled state of the worker. */
static void end_stall(struct core *c, struct worker *w)
{
	if (w->pace.stalled && w->session.state == SESSION_LIVE)
		effects_add_worker(c, w, WORKER_DELIVERS);
	w->pace.stalled = 0;
}

/* Called when the worker has delivered. */
static void contributed(struct core *c, struct worker *w)
{
	end_stall(c, w);
	w->pace.owed_ms = 0;
}

void pace_gave_back(struct core *c, struct worker *w)
{
	/* the worker owed nothing but a LEASE, and the processes before it were not stalled */
	if (w->lease.request == 0 && w->pace.owed_ms < PACE_OWED_MAX)
		end_stall(c, w);
	if (w->pace.left)
		owe(&w->pace, pace_owes_ms(c, w));
	stop_owing(c, &w->pace);
	w->pace.left = 0;
	w->pace.late = 0;
}

void pace_back(const struct core *c, struct worker *w)
{
	/* 1: the core released the worker's grant while the worker was away */
	int lost = w->session.state == SESSION_AWAY && !w->lease.grant.request;

	restart_clock(c, &w->pace);
	if (lost)
		w->pace.paused_ms = PACE_LOST_MS;
	if (w->lease.waiting || c->cfg.training.epochs == 0)
		stop_owing(c, &w->pace);
}

void pace_expect_lease(const struct core *c, struct worker *w)
{
	restart_clock(c, &w->pace);
	w->pace.left = 0;
	w->pace.owed_ms = 0;
	if (w->lease.waiting)
		stop_owing(c, &w->pace);
}

void pace_restart(const struct core *c, struct worker *w)
{
	w->pace = (struct pace){0};
	if (w->lease.grant.request == 0)
		return;
	restart_clock(c, &w->pace);
	w->pace.left = pieces_of(&w->lease.grant);
}

void pace_replace(const struct core *c, struct worker *w)
{
	uint64_t contact_ms = w->session.last_message_ms + c->cfg.sessions.suspect_ms;
	uint64_t silent_ms = c->now_ms > contact_ms ? c->now_ms - contact_ms : 0;
	uint64_t owes_ms = pace_owes_ms(c, w);
	struct pace old = w->pace;

	owe(&old, old.stalled ? PACE_OWED_MAX : owes_ms > silent_ms ? owes_ms - silent_ms : 0);
	pace_restart(c, w);
	/* before the run has begun, the slot can delay no work, so it owes nothing */
	if (!run_has_begun(c))
		return;
	w->pace.owed_ms = old.owed_ms;
	w->pace.stalled = old.stalled;
}

/* Called after the first delivery of work of `kind`, when the time that such work takes is known:
 * ends the stalled state of each worker that has owed such work for less than its deadline. */
static void recheck_stalled(struct core *c, size_t kind)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];
		uint64_t owed_ms = w->pace.owed_ms + pace_owes_ms(c, w);

		if (w->pace.stalled && w->session.state == SESSION_LIVE && kind_of(w) == kind &&
			w->pace.since_ms && owed_ms <= deadline_ms(c, w)) {
			w->pace.stalled = 0;
			effects_add_worker(c, w, WORKER_DELIVERS);
		}
	}
}

/* Called when the worker has delivered `pieces` pieces of its grant in one message; `counts` says
 * whether the server accepted them. Records how long a piece took, and starts the worker's clock
 * again. If late work does not count, the recorded time is limited, because the worker may have
 * taken long on purpose, to get a longer deadline. */
static void delivered(struct core *c, struct worker *w, uint32_t pieces, int counts)
{
	const struct recent *fleet = &c->pace.recent[kind_of(w)];
	const uint64_t max_us = (uint64_t)PACE_SLOW * fleet->median_us;
	struct pace *p = &w->pace;
	int is_first = counts && fleet->n == 0;

	PS_ASSERT(pieces > 0 && pieces <= p->left); /* invariant 1 */
	if (p->since_ms) {
		uint64_t us = (c->now_ms - p->since_ms) * 1000 / pieces;

		if (!counts && fleet->n > 0 && us > max_us)
			us = max_us;
		note(&p->recent[kind_of(w)], us);
		if (counts)
			note(&c->pace.recent[kind_of(w)], us);
		if (is_first)
			recheck_stalled(c, kind_of(w));
	}
	restart_clock(c, p);
	p->left -= pieces;
}

/* Returns 1 if all of `work` lies in the worker's newest grant, even if this grant has ended. */
static int is_own(const struct worker *w, const struct work *work)
{
	return w->lease.grant.kind == GRANT_TRAIN && rights_cover(&w->lease.grant.work, work);
}

/* Returns 1 if nobody has to deliver `work` of the worker's newest grant any more, because its step
 * or its epoch has ended, or because it is delivered. The function trusts nothing that the worker
 * says. */
static int is_over(const struct core *c, const struct worker *w, const struct work *work)
{
	int over = 1;

	if (!batch_ledger_is_training(c, &w->lease.grant))
		return 1;
	for (uint32_t i = work->first; i < work->first + work->count; i++)
		over &= c->leases.batch[i] == BATCH_DONE;
	return over;
}

int pace_trained(struct core *c, struct worker *w, const struct work *work, int accepted)
{
	struct pace *p = &w->pace;

	if (accepted)
		contributed(c, w);
	if (!is_own(w, work) || work->count > p->left || (!accepted && !is_over(c, w, work))) {
		if (accepted && p->since_ms && p->left == 0)
			restart_clock(c, p); /* the worker delivers although it holds no grant */
		return 0;
	}
	delivered(c, w, work->count, accepted);
	if (!p->stalled || has_delivered(c, w))
		contributed(c, w);
	return 1;
}

int pace_evaluated(struct core *c, struct worker *w, const struct msg_result *r, int counts)
{
	if (w->lease.grant.kind != GRANT_EVAL || w->lease.grant.eval_id != r->eval_id ||
		w->lease.grant.eval_first != r->eval_first || w->pace.left == 0)
		return 0;
	delivered(c, w, 1, counts);
	contributed(c, w);
	return 1;
}

/* ---- late ------------------------------------------------------------------------------------ */

/* Returns the time in ms after which a piece of the test set is late if none is delivered yet: the
 * deadline of a training grant with as many images. */
static uint64_t first_piece_ms(const struct core *c, const struct worker *w)
{
	uint64_t batches = w->lease.grant.eval_count / c->cfg.training.batch_size + 1;
	uint64_t ms = PACE_DEADLINE * batches * c->pace.recent[0].median_us / 1000;

	return ms > PACE_DEADLINE_MS ? ms : PACE_DEADLINE_MS;
}

static int is_late(const struct core *c, const struct worker *w)
{
	const struct recent *r = &c->pace.recent[kind_of(w)];
	uint64_t limit_ms = PACE_LATE * next_pieces(c, w) * r->median_us / 1000;

	if (!w->pace.since_ms || !w->pace.left || !w->lease.grant.request)
		return 0;
	if (r->n == 0 && kind_of(w) == 1 && c->pace.recent[0].n > 0)
		limit_ms = first_piece_ms(c, w);
	else if (r->n == 0)
		return 0;
	return c->now_ms - w->pace.since_ms > (limit_ms > PACE_LATE_MS ? limit_ms : PACE_LATE_MS);
}

void pace_find_late(struct core *c)
{
	memset(c->pace.n_late, 0, sizeof(c->pace.n_late));
	if (c->cfg.leases.backup_copies == BACKUP_NONE)
		return;
	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];

		w->pace.late = is_late(c, w);
		c->pace.n_late[kind_of(w)] += (uint32_t)w->pace.late;
	}
}

uint32_t pace_share(const struct core *c, const struct worker *w, uint32_t batches)
{
	const struct recent *own = &w->pace.recent[0], *fleet = &c->pace.recent[0];
	uint64_t share = batches;
	/* at least 1 ms, because the clock counts in milliseconds */
	uint32_t usual_us = fleet->median_us > 1000 ? fleet->median_us : 1000;

	if (fleet->n == 0)
		return batches;
	/* if the mode is exact, only one batch: a slow worker might deliver a large first grant too
	 * late */
	if (own->n == 0)
		return mode_is_exact(c->cfg.training.mode) ? 1 : batches;
	if (own->median_us > usual_us)
		share = share * usual_us / own->median_us;
	return share ? (uint32_t)share : 1;
}

/* ---- stalled --------------------------------------------------------------------------------- */

static uint64_t stall_ms(const struct core *c, const struct worker *w)
{
	const struct recent *fleet = &c->pace.recent[kind_of(w)];
	uint64_t ms = deadline_ms(c, w), others_ms = 3 * deadline_for(c, w, fleet->median_us);

	if (fleet->n == 0)
		return ms;
	if (w->pace.recent[kind_of(w)].n < PACE_OWN && others_ms > ms)
		ms = others_ms;
	return ms > PACE_STALL_MS ? ms : PACE_STALL_MS;
}

/* Returns 1 if the worker must not push again before the server has saved its earlier pushes.
 * Returns 0 if the core has accepted none of the worker's newest pushes (has_delivered). With a
 * write-ahead log, the function always returns 0, because then the shell holds replies back and
 * reports this time in EVENT_TICK. */
static int waits_for_checkpoint(const struct core *c, const struct worker *w)
{
	return w->ledger.last_seq - worker_durable_seq(c, w) >= c->cfg.sessions.replay_window &&
	       has_delivered(c, w);
}

static void become_stalled(struct core *c, struct worker *w)
{
	c->stats.stalls++;
	w->pace.stalled = 1;
	effects_add_worker(c, w, WORKER_STALLED);
}

void pace_left_behind(struct core *c, struct worker *w)
{
	int testing = w->lease.grant.request && w->lease.grant.kind == GRANT_EVAL;
	int owes = w->pace.since_ms > 0 || c->cfg.training.epochs == 0;

	if (!worker_is_active(w) || !owes || testing)
		return;
	become_stalled(c, w);
	batch_ledger_release(c, w);
}

int pace_check(struct core *c, struct worker *w)
{
	struct pace *p = &w->pace;
	uint64_t owes_ms = pace_owes_ms(c, w);
	int gives_back = 0;

	if (!p->since_ms || w->session.state != SESSION_LIVE)
		return 0;
	if (c->run.recovering) {
		/* unlike restart_clock, keep paused_ms: the time that pace_back has added */
		p->since_ms = c->now_ms;
		return 0;
	}
	if (waits_for_checkpoint(c, w)) {
		restart_clock(c, p);
		return 0;
	}
	if (w->lease.grant.request && owes_ms > deadline_ms(c, w)) {
		c->stats.expired++;
		gives_back = 1;
	}
	if (!p->stalled && p->owed_ms + owes_ms > stall_ms(c, w)) {
		become_stalled(c, w);
		gives_back = 1;
	}
	return gives_back;
}

/* Moves the start *since_ms of a clock forward by `ms` milliseconds, but not past the present
 * time. */
static void stop_clock(const struct core *c, uint64_t *since_ms, uint64_t ms)
{
	uint64_t passed_ms = c->now_ms > *since_ms ? c->now_ms - *since_ms : 0;

	if (*since_ms)
		*since_ms += ms < passed_ms ? ms : passed_ms;
}

void pace_hold(struct core *c, uint64_t ms)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers && ms > 0; i++) {
		stop_clock(c, &c->worker[i].pace.since_ms, ms);
		stop_clock(c, &c->worker[i].pace.moved_ms, ms);
		stop_clock(c, &c->worker[i].sync.active_ms, ms);
	}
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* Returns the maximum number of bytes in the pulls and the push of the worker's next delivery. */
static uint64_t max_bytes(const struct core *c, const struct worker *w)
{
	uint64_t message = c->store.n * sizeof(float) + WIRE_FRAME_SLACK;

	return (next_pieces(c, w) + 2) * message;
}

static void progress(struct core *c, struct worker *w, uint64_t bytes)
{
	struct pace *p = &w->pace;
	uint64_t max = max_bytes(c, w), left = max > p->moved ? max - p->moved : 0;
	uint64_t from = p->moved_ms > p->since_ms ? p->moved_ms : p->since_ms;
	uint64_t ms = c->now_ms - from;

	if (bytes > left)
		bytes = left;
	if (ms > bytes * 1000 / PACE_BYTES_PER_S)
		ms = bytes * 1000 / PACE_BYTES_PER_S;
	p->paused_ms += ms;
	p->moved_ms = c->now_ms;
	p->moved += bytes;
}

void pace_progress(struct core *c, uint32_t peer, uint64_t bytes)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++)
		if (c->worker[i].session.peer == peer && c->worker[i].pace.since_ms)
			progress(c, &c->worker[i], bytes);
}
