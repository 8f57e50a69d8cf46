/*
 * replays.c - what was acknowledged as accepted stays accepted: a push that its worker replays to a
 * restarted server is rejected for one reason only, that its batches have been counted meanwhile.
 * Not in sandblaster, whose passes a crash tears.
 */
#include "server/core/state.h"
#include "tests/sim/sim.h"

/* The worker whose next push this is, if it is a replay of what had been accepted. */
static const struct worker *replayer(const struct core *c, const struct event *ev)
{
	const struct msg_push *p;
	const struct worker *w;

	if (ev->kind != EVENT_MESSAGE || ev->msg->type != MSG_PUSH)
		return NULL;
	p = &ev->msg->push;
	if (p->verdict != VERDICT_OK || p->stamp.worker == 0 ||
		p->stamp.worker > c->cfg.sessions.max_workers)
		return NULL;
	w = &c->worker[p->stamp.worker - 1];
	if (p->stamp.term != c->cfg.term || p->stamp.incarnation != w->incarnation ||
		p->seq != w->last_seq + 1 || p->seq > w->replay_target)
		return NULL;
	return w;
}

void replays_before(struct sim *s, const struct event *ev)
{
	const struct core *c = s->server.core;

	s->replayer =
		c->cfg.training.mode == MODE_SANDBLASTER || s->disk.broken ? NULL : replayer(c, ev);
}

void replays_after(struct sim *s, const struct event *ev)
{
	const struct core *c = s->server.core;
	const struct worker *w = s->replayer;
	const struct msg_push *p;
	const struct decision *d;

	if (!w)
		return;
	p = &ev->msg->push;
	if (w->last_seq != p->seq) /* it was not decided: the server ends */
		return;
	d = &w->decisions[p->seq % c->cfg.sessions.replay_window];
	if (d->verdict != VERDICT_OK && d->reject != REJECT_WORK)
		sim_violation(s, "push %llu of slot %u was accepted before a crash; now reject=%d",
			(unsigned long long)p->seq, p->stamp.worker, d->reject);
}
