/* departure.c - see departure.h. */
#include "server/core/departure.h"
#include "common/assert.h"
#include "server/core/backups.h"
#include "server/core/batch_ledger.h"
#include "server/core/checkpoints.h"
#include "server/core/core_state.h"
#include "server/core/effects.h"
#include "server/core/leases.h"
#include "server/core/ledger.h"
#include "server/core/quarantine.h"
#include "server/core/run.h"
#include "server/core/sessions.h"
#include "server/core/workers.h"

void departure_die(struct core *c, struct worker *w, enum worker_change why)
{
	w->session.state = SESSION_DEAD;
	w->lease.waiting = 0;
	batch_ledger_release(c, w);
	backups_release(c, w);
	c->stats.deaths += !w->session.lost;
	if (!w->session.lost || why != WORKER_GONE)
		effects_add_worker(c, w, why);
	w->session.lost = 0;
}

void departure_miss(struct core *c, struct worker *w)
{
	if (w->session.lost)
		return;
	w->session.lost = 1;
	c->stats.deaths++;
	effects_add_worker(c, w, WORKER_GONE);
}

void departure_bye(struct core *c, const struct worker *w, uint32_t peer, int status)
{
	/* invariant 1, for the answer to BYE and for the BYE of a drain */
	PS_ASSERT(!w || (status != PS_OK && status != PS_ESHUTDOWN) || !worker_may_return(w));
	/* invariant 2: all pushes of the worker are durable when its own BYE is answered */
	PS_ASSERT(!w || status != PS_OK || worker_durable_seq(c, w) == w->ledger.last_seq);
	/* The run has met a stop rule. It is drained, because it can continue without the rule. But
	 * the BYE of a drain would make a supervisor start the worker again, although the worker
	 * has nothing more to do. */
	if (status == PS_ESHUTDOWN && c->run.rule_met)
		status = PS_EDONE;
	effects_send_decided(c, peer, MSG_BYE)->bye =
		(struct msg_bye){.stamp = worker_stamp(c, w), .status = status};
}

void departure_part(struct core *c, const struct worker *w, uint32_t peer)
{
	if (c->run.end_status != PS_ESHUTDOWN || !worker_may_return(w))
		departure_bye(c, w, peer, c->run.end_status);
}

void departure_part_all(struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];

		if (w->session.state != SESSION_FREE && w->session.state != SESSION_DEAD &&
			w->session.peer)
			departure_part(c, w, w->session.peer);
	}
}

/* ---- exclusion ------------------------------------------------------------------------------- */

#define MAX_BAD 20
/* a third push of a wrong shape exceeds MAX_SHAPES if fewer than WRONG_SHAPE pushes were accepted
 * since the first one */
#define WRONG_SHAPE 100
#define MAX_SHAPES  (2 * WRONG_SHAPE)
/* if the workers have at least this number of keys, keys vote; otherwise workers vote */
#define KEYS_THAT_VOTE 3

/* Returns 1 if the worker counts in the decision whether the run has diverged. A worker counts if
 * it is live, suspect, or still expected back after a restart. A silent worker is bad if it was bad
 * after its newest push. */
static int counts(const struct worker *w)
{
	return w->session.state == SESSION_LIVE || w->session.state == SESSION_SUSPECT ||
	       (w->session.state == SESSION_AWAY && !w->session.overdue);
}

static void exclude(struct core *c, struct worker *w, enum worker_change why)
{
	departure_die(c, w, why);
	/* invariant 5 */
	PS_ASSERT(!worker_is_active(w) && !w->lease.waiting && !w->lease.grant.request);
	w->quarantine.excluded = 1;
	w->session.leave = LEAVES;
	c->stats.excluded++;
	c->checkpoints.urgent = 1;
	quarantine_notify(c, w, w->session.peer);
}

static int is_bad(const struct worker *w)
{
	return w->quarantine.bad >= FEW_BAD;
}

/* Returns 1 if no earlier slot that counts has the key of slot `i`. */
static int is_first_of_key(const struct core *c, uint32_t i)
{
	for (uint32_t k = 0; k < i; k++)
		if (counts(&c->worker[k]) &&
			workers_same_key(c->worker[k].session.owner, c->worker[i].session.owner))
			return 0;
	return 1;
}

/* Returns 1 if more than half of the workers of this key that count are bad. */
static int key_is_bad(const struct core *c, const char *owner)
{
	uint32_t all = 0, bad = 0;

	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		if (!counts(w) || !workers_same_key(w->session.owner, owner))
			continue;
		all++;
		bad += (uint32_t)is_bad(w);
	}
	return 2 * bad > all;
}

/* Counts the workers, or the keys if the workers have at least three keys. Sets *bad to the number
 * of bad workers or bad keys. */
static uint32_t count_voters(const struct core *c, uint32_t *bad)
{
	uint32_t workers = 0, keys = 0, bad_workers = 0, bad_keys = 0;

	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		if (!counts(w))
			continue;
		workers++;
		bad_workers += (uint32_t)is_bad(w);
		if (!w->session.owner[0] || !is_first_of_key(c, i))
			continue;
		keys++;
		bad_keys += (uint32_t)key_is_bad(c, w->session.owner);
	}
	*bad = keys >= KEYS_THAT_VOTE ? bad_keys : bad_workers;
	return keys >= KEYS_THAT_VOTE ? keys : workers;
}

static int has_diverged(const struct core *c, const struct worker *bad_one)
{
	uint32_t bad, all = count_voters(c, &bad);

	if (!run_has_begun(c) || (all == 1 && !bad_one->quarantine.sound))
		return 0;
	return 2 * bad > all;
}

/* Returns 1 if the worker still has to replay pushes that were acknowledged before a crash. If the
 * core excludes the worker before the worker has replayed them, these pushes are lost. */
static int is_replaying(const struct worker *w)
{
	return w->ledger.last_seq < w->ledger.replay_target;
}

void quarantine_bad(struct core *c, struct worker *w, enum reject why)
{
	struct worker_quarantine *q = &w->quarantine;
	/* the limit is twice as high for a worker that still has to replay acknowledged pushes */
	uint32_t max = is_replaying(w) ? 2 * MAX_BAD : MAX_BAD;
	int has_wrong_shapes;

	q->bad++;
	/* no strike for a replay: a server that has lost its newest state may not know its work */
	if (why == REJECT_SHAPE && w->ledger.last_seq > w->ledger.replay_target)
		q->shapes += WRONG_SHAPE;
	has_wrong_shapes = q->shapes > MAX_SHAPES;
	if (q->bad + q->earlier < max && !has_wrong_shapes)
		return;
	if (!has_wrong_shapes && has_diverged(c, w)) {
		run_end(c, PS_EDIVERGED);
		return;
	}
	exclude(c, w,
		quarantine_count(&c->quarantine, w->session.owner, w->session.name) >=
				QUARANTINE_AFTER
			? WORKER_QUARANTINED
			: WORKER_EXCLUDED);
}

void quarantine_strike(struct core *c, struct worker *w, const char *owner, const char *name)
{
	uint32_t exclusions = quarantine_count(&c->quarantine, owner, name);
	uint32_t enough = w && is_replaying(w) ? 2 * QUARANTINE_AFTER : QUARANTINE_AFTER;

	c->checkpoints.urgent = 1;
	if (w && exclusions >= enough)
		exclude(c, w, WORKER_QUARANTINED);
}

void quarantine_good(struct worker *w)
{
	struct worker_quarantine *q = &w->quarantine;

	q->sound = 1;
	if (q->bad > 0)
		q->bad--;
	else if (q->earlier > 0)
		q->earlier--;
	if (q->shapes > 0)
		q->shapes--;
}

static uint32_t larger_count(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

void quarantine_inherit(struct worker_quarantine *to, const struct worker *of)
{
	const struct worker_quarantine *q = &of->quarantine;
	uint32_t bad = q->bad + q->earlier;

	/* below the limit, so that the new process is excluded only if it is bad itself */
	to->earlier = larger_count(to->earlier, bad < MAX_BAD ? bad : MAX_BAD - 1);
	to->shapes = larger_count(to->shapes, q->shapes < MAX_SHAPES ? q->shapes : MAX_SHAPES);
}

void quarantine_notify(struct core *c, struct worker *w, uint32_t peer)
{
	if (worker_durable_seq(c, w) < w->ledger.last_seq)
		return;
	PS_ASSERT(worker_durable_seq(c, w) == w->ledger.last_seq); /* invariant 4 */
	w->session.leave = STAYS;
	if (peer)
		effects_refuse(c, peer, PS_EQUARANTINE, 0,
			"excluded: too many losses or gradients of this worker were not finite, of "
			"a wrong shape, or of another size than those of the other workers, or its "
			"evaluations were outvoted: check its device, its data and its version");
}
