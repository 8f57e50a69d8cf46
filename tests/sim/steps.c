/*
 * steps.c - checks each step of sync. A step must count only gradients of the weights with which it
 * began. A step with fewer gradients than it needs must not end before the gradient of each live
 * member has arrived. A member is a worker that was live, and not stalled, when the step began.
 * After a crash of the server, the module checks neither the steps that count replays nor the step
 * that a recovery continues.
 */
#include <string.h>
#include "server/core/core_state.h"
#include "server/core/workers.h"
#include "tests/sim/sim.h"

static uint32_t due(const struct sim *s)
{
	const struct sim_steps *t = &s->steps;
	uint32_t all = s->cfg.sync.workers ? s->cfg.sync.workers
		       : t->members > s->cfg.sync.backup_workers
			       ? t->members - s->cfg.sync.backup_workers
			       : 1;

	all = all < t->members ? all : t->members; /* each member has one batch of the step */
	return all < t->left ? all : t->left;
}

static void begin_step(struct sim *s, const struct core *c)
{
	struct sim_steps *t = &s->steps;

	*t = (struct sim_steps){
		.version = c->stats.version, .left = c->leases.n_batches - c->leases.n_done};
	if (!c->run.begun || c->run.recovering || c->accumulator.pushes ||
		c->leases.epoch >= c->cfg.training.epochs)
		return;
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (worker_is_active(&c->worker[i]) && !c->worker[i].sync.idle &&
			worker_is_of_run(c, &c->worker[i])) {
			t->member[i] = c->worker[i].session.incarnation;
			t->members++;
		}
	t->known = t->members > 0;
}

static int is_there(const struct sim_steps *t, const struct core *c, uint32_t i)
{
	const struct worker *w = &c->worker[i];

	return t->member[i] && worker_is_active(w) && w->session.incarnation == t->member[i] &&
	       worker_is_of_run(c, w) && !w->sync.idle;
}

static void check_step(struct sim *s, const struct core *c)
{
	const struct sim_steps *t = &s->steps;

	if (t->taken >= due(s))
		return;
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (is_there(t, c, i) && !t->answered[i])
			sim_violation(s, "step %llu has %u gradients of %u and misses live slot %u",
				(unsigned long long)t->version + 1, t->taken, due(s), i + 1);
}

void steps_before(struct sim *s)
{
	const struct core *c = s->server.core;

	s->steps.recovering = c->run.recovering;
	s->steps.accepted = c->stats.accepted;
}

static int is_replay(const struct event *ev)
{
	return ev->kind == EVENT_MESSAGE && ev->msg->type == MSG_PUSH &&
	       ev->msg->push.verdict == VERDICT_OK;
}

/* If this event has applied a push, records the push. */
static void note_push(struct sim *s, const struct core *c, const struct event *ev)
{
	struct sim_steps *t = &s->steps;

	if (c->stats.accepted == t->accepted)
		return;
	t->taken++;
	t->answered[ev->msg->push.stamp.worker - 1] = 1;
	if (!is_replay(ev) && ev->msg->push.base_version != t->version)
		sim_violation(s, "step %llu counts a gradient of version %llu",
			(unsigned long long)t->version + 1,
			(unsigned long long)ev->msg->push.base_version);
}

void steps_after(struct sim *s, const struct event *ev)
{
	const struct core *c = s->server.core;
	struct sim_steps *t = &s->steps;
	uint32_t there = 0;

	note_push(s, c, ev);
	if (c->stats.version != t->version) {
		if (t->known && !t->recovering && !is_replay(ev) &&
			c->stats.version == t->version + 1)
			check_step(s, c);
		begin_step(s, c);
		return;
	}
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		if (!is_there(t, c, i))
			t->member[i] = 0;
		there += t->member[i] && !t->answered[i];
	}
	if (t->recovering || c->run.recovering || is_replay(ev))
		*t = (struct sim_steps){.version = t->version, .blind = 1};
	else if (!t->blind && (!t->known || (there == 0 && t->taken == 0)))
		begin_step(s, c);
}
