/*
 * dataset.c - which data set the run is of.
 *
 * Rules: (1) with --data-id, a worker of another fingerprint is refused. (2) The first push of
 * batches that is accepted fixes the data set of its worker, for all later starts too; workers of
 * any other one are refused. (3) Until then workers of any data set may join, and the run is of the
 * data set that most live workers have; if as many have another, it stays what it is. A stalled
 * worker votes only while every live worker is stalled. Only workers of the run's data set get work, and only they count for --min-workers. Before
 * so many have come no push is accepted.
 *
 * Invariants:
 * (1) a HELLO fixes nothing; after a restart without a contribution the data set of the checkpoint
 *     has no vote, so the first worker with another one replaces it;
 * (2) what was accepted is of one data set;
 * (3) a replay of what was accepted before a crash fixes the data set as it did then
 *     (tests/sim/replays.c).
 */
#include "server/core/dataset.h"
#include "server/core/departure.h"
#include "server/core/leases.h"
#include "server/core/state.h"

/* ---- refusals -------------------------------------------------------------------------------- */

static void say_data(struct say *s, const struct data_id *d)
{
	say_hex(s, d->xxh3);
	say_text(s, " (");
	say_number(s, d->n_train);
	say_text(s, " train, ");
	say_number(s, d->n_test);
	say_text(s, " test, ");
	say_number(s, d->rows);
	say_text(s, "x");
	say_number(s, d->cols);
	say_text(s, ", ");
	say_number(s, d->classes);
	say_text(s, " classes)");
}

static void refuse_data(struct core *c, const struct data_id *d, uint32_t peer)
{
	struct say *s = &c->said;

	say_begin(s, "data set ");
	say_data(s, d);
	if (c->data_fixed) {
		say_text(s, " is not the run's ");
		say_data(s, &c->data);
	} else {
		say_text(s, " is not the server's --data-id ");
		say_hex(s, c->cfg.data_id);
	}
	say_text(s, ": give --data the run's files, or begin a new run with --data-id ");
	say_hex(s, d->xxh3);
	effects_refuse(c, peer, PS_EWRONGDATA, 0, s->text);
}

int dataset_admits(struct core *c, const struct data_id *d, uint32_t peer)
{
	if (c->cfg.training.epochs == 0)
		return 1;
	if (!leases_can_open(c, d)) {
		effects_refuse(c, peer, PS_EWRONGDATA, 0,
			"this run needs a data set: train and test images, at most 2^20 batches an "
			"epoch");
		return 0;
	}
	if (c->data_fixed ? workers_same_data(d, &c->data)
			  : !c->cfg.data_id_given || d->xxh3 == c->cfg.data_id)
		return 1;
	refuse_data(c, d, peer);
	return 0;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static int may_vote(const struct worker *w, int all_are_stalled)
{
	return all_are_stalled ? w->session.state == SESSION_LIVE : worker_is_active(w);
}

static uint32_t votes(const struct core *c, const struct data_id *d, int all_are_stalled)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++)
		n += may_vote(&c->worker[i], all_are_stalled) &&
		     workers_same_data(&c->worker[i].session.data, d);
	return n;
}

/* Nothing of the data set before was counted. Every grant of it is void. */
static void adopt(struct core *c, const struct data_id *d)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		struct worker *w = &c->worker[i];

		batch_ledger_release(c, w);
		w->lease.grant = (struct msg_grant){0};
		if (!w->lease.waiting)
			w->lease.request = 0;
		pace_expect_lease(c, w);
	}
	leases_open(c, d);
}

static int is_contested(const struct core *c, int all_are_stalled)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++)
		if (may_vote(&c->worker[i], all_are_stalled) &&
			!workers_same_data(&c->worker[i].session.data, &c->data))
			return 1;
	return 0;
}

void dataset_choose(struct core *c)
{
	struct data_id best = c->data;
	int all_are_stalled;

	all_are_stalled = core_live_workers(c) == 0;
	if (!is_contested(c, all_are_stalled))
		return;
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		const struct worker *w = &c->worker[i];

		if (may_vote(w, all_are_stalled) && votes(c, &w->session.data, all_are_stalled) >
							    votes(c, &best, all_are_stalled))
			best = w->session.data;
	}
	if (!workers_same_data(&best, &c->data))
		adopt(c, &best);
}

enum reject dataset_check(struct core *c, const struct worker *w, const struct msg_push *p)
{
	int replay = p->verdict == VERDICT_OK && p->seq <= w->ledger.replay_target;

	if (c->data_fixed || !replay)
		return REJECT_WORK;
	adopt(c, &w->session.data);
	return REJECT_NONE;
}

/* A worker of another one says HELLO again and is refused. */
void dataset_contributed(struct core *c)
{
	c->data_fixed = 1;
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		struct worker *w = &c->worker[i];

		if (w->session.state == SESSION_JOINING || w->session.state == SESSION_LIVE ||
			w->session.state == SESSION_SUSPECT)
			if (!workers_same_data(&w->session.data, &c->data))
				departure_die(c, w, WORKER_GONE);
	}
}
