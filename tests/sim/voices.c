/*
 * voices.c - checks each buffer of a robust rule (server/core/voices.h). A voice is a worker, or
 * all workers of one key. An update must have a gradient of each voice that was at work since the
 * previous update. There are two exceptions: the update has fewer gradients than there are such
 * voices, or it has gradients of --buffer-size voices. A voice can also lack a batch to push at the
 * end of an epoch, because another worker has delivered the last batches: after a backup copy of
 * late work, after a grant that ended at its deadline, by a replay, or because the server had
 * granted the batch, before a crash, to a second worker. The module does not check an update during
 * which one of these happened. In ssp and during a warm start a voice can be without a batch, too,
 * so the module does not check these runs.
 */
#include <string.h>
#include "server/core/batch_ledger.h"
#include "server/core/core_state.h"
#include "server/core/voices.h"
#include "server/core/workers.h"
#include "tests/sim/sim.h"

/* Returns 1 if this module checks the run, which is one of downpour. */
static int is_checked_run(const struct sim *s)
{
	return s->cfg.push.aggregate != AGGREGATE_MEAN;
}

static int voice_is_there(const struct core *c, const struct worker *w)
{
	return worker_is_active(w) && worker_is_of_run(c, w) && voices_is_at_work(w);
}

static int is_blind(const struct core *c, const struct event *ev)
{
	const struct msg *m = ev->kind == EVENT_MESSAGE ? ev->msg : NULL;

	return c->run.recovering || !c->run.begun ||
	       (m && m->type == MSG_PUSH && m->push.verdict != VERDICT_NONE);
}

/* Returns 1 if a worker other than the sender of push `p` holds a batch of this push. */
static int another_holds(const struct core *c, const struct msg_push *p)
{
	for (uint32_t k = 0; k < c->n_slots && p->work.epoch == c->leases.epoch; k++) {
		const struct worker *w = &c->worker[k];
		const struct work *own = &w->lease.grant.work;

		if (worker_id(c, w) == p->stamp.worker)
			continue;
		for (uint32_t i = own->first; i < own->first + own->count; i++)
			if (i >= p->work.first && i - p->work.first < p->work.count &&
				batch_ledger_holds(c, w, 0, i))
				return 1;
	}
	return 0;
}

static uint64_t lost_work(const struct core *c)
{
	return c->stats.backups + c->stats.expired;
}

static void begin_buffer(struct sim_voices *v, const struct core *c)
{
	*v = (struct sim_voices){
		.term = c->cfg.term, .updates = c->stats.updates, .lost_work = lost_work(c)};
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (voice_is_there(c, &c->worker[i]))
			v->there[i] = c->worker[i].session.incarnation;
}

/* Returns the number of voices that were at work since the previous update. */
static uint32_t count_there(const struct sim_voices *v, const struct core *c, int keys)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_slots; i++) {
		uint32_t k = 0;

		while (k < i && !(keys && v->there[k] &&
					workers_same_key(c->worker[k].session.owner,
						c->worker[i].session.owner)))
			k++;
		n += v->there[i] && k == i;
	}
	return n;
}

void voices_before(struct sim *s, const struct event *ev)
{
	const struct core *c = s->server.core;
	struct sim_voices *v = &s->voices;
	uint32_t id;

	if (!is_checked_run(s))
		return;
	v->accepted = c->stats.accepted;
	v->voices = accumulator_voices(c, 1);
	v->pushes = c->accumulator.pushes;
	v->keys = accumulator_merges_keys(c);
	v->is_new = 0;
	if (ev->kind != EVENT_MESSAGE || ev->msg->type != MSG_PUSH)
		return;
	v->blind |= another_holds(c, &ev->msg->push);
	id = ev->msg->push.stamp.worker;
	if (id >= 1 && id <= c->cfg.sessions.max_workers)
		v->is_new = !voices_has(c, &c->worker[id - 1]);
}

void voices_after(struct sim *s, const struct event *ev)
{
	const struct core *c = s->server.core;
	struct sim_voices *v = &s->voices;
	uint32_t there, pushes, voices;

	if (!is_checked_run(s))
		return;
	if (v->term != c->cfg.term) {
		begin_buffer(v, c);
		v->blind = 1;
	}
	v->blind |= is_blind(c, ev) || lost_work(c) != v->lost_work ||
		    v->keys != accumulator_merges_keys(c);
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (!voice_is_there(c, &c->worker[i]) ||
			c->worker[i].session.incarnation != v->there[i])
			v->there[i] = 0;
	if (c->stats.updates == v->updates)
		return;
	pushes = v->pushes + (uint32_t)(c->stats.accepted - v->accepted);
	voices = v->voices + (uint32_t)v->is_new;
	there = count_there(v, c, v->keys);
	there = there < s->cfg.push.buffer_size ? there : s->cfg.push.buffer_size;
	if (!v->blind && !c->cfg.leases.warm_start_updates && voices < there && voices < pushes)
		sim_violation(s, "an update of %u gradients has %u voices, and %u were at work",
			pushes, voices, there);
	begin_buffer(v, c);
}
