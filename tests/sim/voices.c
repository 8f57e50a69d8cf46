/*
 * voices.c - checks each buffer of a robust rule (server/core/voices.h). An update must have a
 * gradient of each voice that was at work since the previous update, unless the update has fewer
 * gradients than there are such voices, or has --buffer-size voices. Copies of late work, grants
 * that ended at their deadline, and replays can take the last batches of an epoch from a voice, so
 * the module does not check an update during which one of these happened. For the same reason it
 * does not check runs of ssp and runs with a warm start.
 */
#include <string.h>
#include "server/core/state.h"
#include "server/core/voices.h"
#include "server/core/workers.h"
#include "tests/sim/sim.h"

/* Returns 1 if this module checks the run. */
static int is_checked_run(const struct sim *s)
{
	return s->mode == SIM_DOWNPOUR && s->cfg.push.aggregate != AGGREGATE_MEAN;
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

static uint64_t lost_work(const struct core *c)
{
	return core_stats(c)->backups + core_stats(c)->expired;
}

static void begin_buffer(struct sim_voices *v, const struct core *c)
{
	*v = (struct sim_voices){
		.term = c->cfg.term, .updates = core_stats(c)->updates, .lost_work = lost_work(c)};
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++)
		if (voice_is_there(c, &c->worker[i]))
			v->there[i] = c->worker[i].session.incarnation;
}

/* Returns the number of voices that were at work since the previous update. */
static uint32_t count_there(const struct sim_voices *v, const struct core *c, int keys)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
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
	v->accepted = core_stats(c)->accepted;
	v->voices = accumulator_voices(c, 1);
	v->pushes = c->accumulator.pushes;
	v->keys = accumulator_merges_keys(c);
	v->is_new = 0;
	if (ev->kind != EVENT_MESSAGE || ev->msg->type != MSG_PUSH)
		return;
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
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++)
		if (!voice_is_there(c, &c->worker[i]) ||
			c->worker[i].session.incarnation != v->there[i])
			v->there[i] = 0;
	if (core_stats(c)->updates == v->updates)
		return;
	pushes = v->pushes + (uint32_t)(core_stats(c)->accepted - v->accepted);
	voices = v->voices + (uint32_t)v->is_new;
	there = count_there(v, c, v->keys);
	there = there < s->cfg.push.buffer_size ? there : s->cfg.push.buffer_size;
	if (!v->blind && !c->cfg.leases.warm_start_updates && voices < there && voices < pushes)
		sim_violation(s, "an update of %u gradients has %u voices, and %u were at work",
			pushes, voices, there);
	begin_buffer(v, c);
}
