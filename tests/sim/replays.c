/*
 * replays.c - checks that an acknowledged and accepted push stays accepted. When a worker replays
 * such a push to a restarted server, the server may reject the push only if another push has
 * counted one of its batches meanwhile. The module does not check runs of sandblaster, in which a
 * crash can lose the acknowledged pushes of the pass that it interrupts. With --older, some workers
 * have protocol version 6 and replay pushes without a code; the server may reject each such replay.
 */
#include "server/core/core_state.h"
#include "server/core/workers.h"
#include "tests/sim/sim.h"

/* If the event is the replay of an accepted push, and the push has the sequence number that the
 * ledger expects next, returns its worker. Otherwise returns NULL. */
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
	if (p->stamp.term != c->cfg.term || p->stamp.incarnation != w->session.incarnation ||
		p->seq != w->ledger.last_seq + 1 || p->seq > w->ledger.replay_target)
		return NULL;
	return w;
}

static int works_overlap(const struct work *a, const struct work *b)
{
	return a->epoch == b->epoch && a->first < b->first + b->count &&
	       b->first < a->first + a->count;
}

/* Returns 1 if the ledger has already counted a batch of this work. The work may be of an epoch
 * that has ended, of the current epoch, or of a later one. */
static int is_counted(const struct core *c, const struct work *work)
{
	const struct leases *l = &c->leases;

	for (uint32_t i = 0; i < c->later.n; i++)
		if (works_overlap(&c->later.work[i], work))
			return 1;
	if (c->cfg.training.epochs == 0 || work->epoch > l->epoch)
		return 0;
	for (uint32_t i = work->first; work->epoch == l->epoch && i < work->first + work->count;
		i++)
		if (l->batch[i] == BATCH_DONE)
			return 1;
	return work->epoch < l->epoch;
}

void replays_before(struct sim *s, const struct event *ev)
{
	const struct core *c = s->server.core;

	s->replayer =
		c->cfg.training.mode == MODE_SANDBLASTER || s->disk.broken || hostile_sender(s, ev)
			? NULL
			: replayer(c, ev);
	s->replay_is_late = s->replayer && is_counted(c, &ev->msg->push.work);
}

void replays_after(struct sim *s, const struct event *ev)
{
	const struct core *c = s->server.core;
	const struct worker *w = s->replayer;
	const struct msg_push *p;
	const struct decision *d;

	p = &ev->msg->push;
	/* the server has made no decision on the push, because the server is ending */
	if (w->ledger.last_seq != p->seq)
		return;
	d = &w->ledger.decisions[p->seq % c->cfg.sessions.replay_window];
	if (d->verdict != VERDICT_OK && s->limits.older && !p->code)
		worker_lost_push(s, ev->peer, p->seq);
	else if (d->verdict != VERDICT_OK && !(s->replay_is_late && d->reject == REJECT_WORK))
		sim_violation(s, "push %llu of slot %u was accepted before a crash; now reject=%d",
			(unsigned long long)p->seq, p->stamp.worker, d->reject);
}
