/*
 * session_close.c - how workers are sent home, or not: a server that ends, a worker that leaves.
 *
 * Invariants:
 * (1) nobody leaves, and nobody is sent home by a drain, who holds pushes that were acknowledged
 *     before a crash and that the server has lost: they are replayed first, or kept for the
 *     server's next life;
 * (2) whoever leaves is answered when its pushes are durable.
 */
#include "server/core/state.h"

void sessions_bye(struct core *c, const struct worker *w, uint32_t peer, int status)
{
	core_send_decided(c, peer, MSG_BYE)->bye =
		(struct msg_bye){.stamp = sessions_stamp(c, w), .status = status};
}

int sessions_may_return(const struct worker *w)
{
	return w->state == SESSION_AWAY || w->last_seq < w->replay_target;
}

void sessions_part(struct core *c, const struct worker *w, uint32_t peer)
{
	if (c->end_status != PS_ESHUTDOWN || !sessions_may_return(w))
		sessions_bye(c, w, peer, c->end_status);
}

void sessions_part_all(struct core *c)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		struct worker *w = &c->worker[i];

		if (w->state != SESSION_FREE && w->state != SESSION_DEAD && w->peer)
			sessions_part(c, w, w->peer);
	}
}

void sessions_hello_too_late(struct core *c, const struct event *ev)
{
	const struct msg_hello *h = &ev->msg->hello;
	struct worker *w = sessions_worker(c, h->resume.worker);
	int ours = w && h->resume.run.hi == c->cfg.run.hi && h->resume.run.lo == c->cfg.run.lo;

	if (ours && h->resume.incarnation < w->incarnation)
		sessions_fence(c, w, ev->peer);
	else if (ours && w->incarnation == h->resume.incarnation && w->last_seq < h->last_seq &&
		 sessions_may_return(w))
		sessions_part(c, w, ev->peer);
	else
		sessions_bye(c, NULL, ev->peer, c->end_status);
}

void sessions_on_bye(struct core *c, struct worker *w, const struct event *ev)
{
	if (w->last_seq < w->replay_target) { /* it may not go before its replays are here */
		if (!ledger_is_closed(c))     /* else they are not answered either */
			core_refuse(c, ev->peer, PS_EGAP, w->last_seq + 1,
				"pushes before this are missing");
		return;
	}
	leases_release(c, w);
	backups_release(c, w);
	w->state = SESSION_DEAD;
	w->waiting = 0;
	w->peer = ev->peer;
	core_emit_worker(c, w, WORKER_GONE);
	if (sessions_durable_seq(c, w) == w->last_seq) {
		sessions_bye(c, w, ev->peer, PS_OK);
		return;
	}
	w->leaving = 1;
	c->urgent = 1;
}
