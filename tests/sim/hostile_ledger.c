/*
 * hostile_ledger.c - records what the server has granted to the hostile workers (hostile.c). Checks
 * that the server accepts nothing else from them, and gives them no worker id of another key.
 */
#include <string.h>
#include "server/core/core_state.h"
#include "server/core/workers.h"
#include "tests/sim/sim.h"

static struct hostile *hostile_at(struct sim *s, uint32_t node)
{
	return &s->hostile[node - SIM_FIRST_HOSTILE];
}

int hostile_has_link(const struct hostile_session *h, uint32_t link)
{
	return link && (h->link == link || h->heartbeat == link);
}

uint32_t hostile_of_link(const struct sim *s, uint32_t link)
{
	for (uint32_t i = 0; i < s->n_hostile; i++)
		for (uint32_t k = 0; k < HOSTILE_SESSIONS; k++)
			if (hostile_has_link(&s->hostile[i].session[k], link))
				return SIM_FIRST_HOSTILE + i;
	return 0;
}

void hostile_key(char *key, uint32_t node)
{
	memset(key, 'a' + (int)node, KEY_TEXT - 1);
	key[KEY_TEXT - 1] = '\0';
}

void hostile_server_started(struct sim *s)
{
	if (!s->n_hostile)
		return;
	roles_free(&s->roles);
	s->roles = roles_new(SIM_SLOTS);
	if (!s->roles)
		sim_violation(s, "out of memory");
}

/* ---- verdicts -------------------------------------------------------------------------------- */

uint32_t hostile_batches(const struct sim *s)
{
	return (s->n_train + s->cfg.training.batch_size - 1) / s->cfg.training.batch_size;
}

static uint32_t batch_number(const struct sim *s, uint32_t epoch, uint32_t first)
{
	return epoch * hostile_batches(s) + first;
}

void hostile_assigned(struct sim *s, const struct effect *e)
{
	if (s->n_hostile)
		roles_assign(s->roles, e->peer, e->worker, e->incarnation);
}

/* Returns the hostile worker whose slot has connection `link` and grant `g` in the server, or 0.
 * The worker itself may already use another connection than `link`. */
static uint32_t hostile_with_grant(const struct sim *s, uint32_t link, const struct msg_grant *g)
{
	const struct core *c = s->server.core;

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		const struct worker *w = &c->worker[i];
		uint32_t node = (uint32_t)w->session.owner[0] - 'a';

		if (w->session.peer == link && w->lease.grant.request == g->request &&
			hostile_is(node))
			return node;
	}
	return 0;
}

void hostile_sent(struct sim *s, uint32_t link, const struct msg *m)
{
	uint32_t node;

	if (!s->n_hostile)
		return;
	node = hostile_of_link(s, link);
	if (!node && m->type == MSG_GRANT)
		node = hostile_with_grant(s, link, &m->grant);
	if (!node)
		return;
	if (m->type == MSG_WELCOME) {
		const struct worker *w = &s->server.core->worker[m->welcome.stamp.worker - 1];
		char key[KEY_TEXT];

		hostile_key(key, node);
		if (strcmp(w->session.owner, key) != 0)
			sim_violation(s, "hostile worker %u gets worker id %u of another key", node,
				m->welcome.stamp.worker);
	}
	if (m->type != MSG_GRANT || m->grant.kind != GRANT_TRAIN)
		return;
	for (uint32_t i = 0; i < m->grant.work.count; i++)
		hostile_at(s, node)
			->granted[batch_number(s, m->grant.work.epoch, m->grant.work.first + i)] =
			1;
}

uint32_t hostile_sender(const struct sim *s, const struct event *ev)
{
	const struct core *c = s->server.core;
	uint32_t id;

	if (!s->n_hostile || ev->kind != EVENT_MESSAGE || ev->msg->type != MSG_PUSH)
		return 0;
	id = ev->msg->push.stamp.worker;
	if (id == 0 || id > c->cfg.sessions.max_workers)
		return 0;
	id = (uint32_t)c->worker[id - 1].session.owner[0] - 'a';
	return hostile_is(id) ? id : 0;
}

void hostile_before(struct sim *s)
{
	s->accepted_before = core_stats(s->server.core)->accepted;
}

void hostile_after(struct sim *s, const struct event *ev)
{
	uint32_t node = hostile_sender(s, ev);
	const struct msg_push *p;

	if (!node || core_stats(s->server.core)->accepted == s->accepted_before)
		return;
	s->hostile_accepted++;
	p = &ev->msg->push;
	for (uint32_t i = 0; i < p->work.count; i++) {
		uint32_t b = batch_number(s, p->work.epoch, p->work.first + i);

		if (!hostile_at(s, node)->granted[b])
			sim_violation(
				s, "hostile worker %u delivers batch %u without a grant", node, b);
		s->foreign_batch[b] = 1;
	}
}

int hostile_delivered(const struct sim *s, uint32_t batch)
{
	return s->n_hostile && s->foreign_batch[batch];
}
