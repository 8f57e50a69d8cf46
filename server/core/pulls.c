/* pulls.c - see pulls.h. */
#include "server/core/pulls.h"
#include "server/core/modes.h"
#include "server/core/state.h"

/* `ack`: of the push that pulls them; or NULL. */
static void send_weights(struct core *c, struct worker *w, uint32_t peer, uint64_t request,
	enum weights which, const struct msg_ack *ack)
{
	int eval = which == WEIGHTS_EVAL;
	struct msg *m;

	if (w && !eval)
		backups_hold(c, w);
	c->stats.pulls++;
	m = ack ? effects_send_decided(c, peer, MSG_PARAMS)
		: effects_send_committed(c, peer, MSG_PARAMS);
	m->params.request = request;
	m->params.which = which;
	m->params.elastic = c->cfg.training.mode == MODE_EASGD ? easgd_part(c) : 0;
	m->params.version = eval ? c->store.eval_version : c->store.version;
	m->params.ack = ack ? *ack : (struct msg_ack){.seq = 0};
	m->params.slices.n = 1;
	m->params.slices.slice[0] = (struct slice){.offset = 0,
		.count = c->store.n,
		.encoding = ENCODING_F32,
		.xxh3 = 0,
		.data = eval ? c->store.eval_weights : c->store.weights};
}

void pulls_answer_push(struct core *c)
{
	struct worker *w = c->pulling.worker;

	if (w)
		send_weights(c, w, w->peer, c->pulling.request, WEIGHTS_CURRENT, &c->pulling.ack);
	c->pulling.worker = NULL;
}

void pulls_on_pull(struct core *c, struct worker *w, const struct event *ev)
{
	const struct msg_pull *p = &ev->msg->pull;

	if (p->which == WEIGHTS_EVAL && !c->leases.evaluating) {
		effects_refuse(c, ev->peer, PS_EAGAIN, 0, "nothing is under evaluation");
		return;
	}
	if (w)
		w->peer = ev->peer;
	send_weights(c, w, ev->peer, p->request, p->which, NULL);
}
