/* snapshot_sessions.c - see snapshot_sessions.h. */
#include "server/core/snapshot_sessions.h"
#include "server/core/snapshot.h"
#include "server/core/state.h"

/* ---- configuration ------------------------------------------------------------------------ */

/* An enum in [least, most]. */
static uint32_t choice(struct cursor *k, uint32_t v, uint32_t min, uint32_t max)
{
	u32(k, &v);
	if (v < min)
		spoil(k, MALFORMED);
	refuse_over(k, v, max);
	return k->bad ? min : v;
}

void live_put_config(struct cursor *k, struct core_config *cfg)
{
	uint64_t n = cfg->n_params;

	u64(k, &cfg->run.hi);
	u64(k, &cfg->run.lo);
	u64(k, &cfg->term);
	u64(k, &cfg->generation);
	flag(k, &cfg->durable);
	text(k, cfg->model, sizeof(cfg->model));
	u64(k, &cfg->model_fingerprint);
	u64(k, &n);
	refuse_over(k, n, WIRE_MAX_PARAMS);
	cfg->n_params = k->bad ? 0 : (size_t)n;
	u64(k, &cfg->data_id);
	flag(k, &cfg->data_id_given);
	config_put(k, cfg);
}

int image_config(const unsigned char *live, size_t size, struct core_config *cfg)
{
	struct cursor k = {.in = live, .size = size};

	live_put_config(&k, cfg);
	return k.bad ? PS_ECHECKPOINT : PS_OK;
}

/* ---- state -------------------------------------------------------------------------------- */

static void put_recent(struct cursor *k, struct recent *r)
{
	u32(k, &r->n);
	u32(k, &r->next);
	refuse_over(k, r->n, PACE_RECENT);
	refuse_over(k, r->next, PACE_RECENT - 1);
	for (uint32_t i = 0; i < PACE_RECENT; i++)
		u32(k, &r->us[i]);
	u32(k, &r->median_us);
}

static void put_pace(struct cursor *k, struct pace *p)
{
	u64(k, &p->since_ms);
	u32(k, &p->left);
	flag(k, &p->late);
	flag(k, &p->stalled);
	flag(k, &p->shadow);
	u64(k, &p->owed_ms);
	u64(k, &p->paused_ms);
	u64(k, &p->moved_ms);
	u64(k, &p->moved);
	for (size_t i = 0; i < PACE_KINDS; i++)
		put_recent(k, &p->recent[i]);
}

static void put_fleet(struct cursor *k, struct fleet_pace *p)
{
	for (size_t i = 0; i < PACE_KINDS; i++) {
		put_recent(k, &p->recent[i]);
		u32(k, &p->n_late[i]);
	}
}

static void put_session_data(struct cursor *k, struct data_id *d)
{
	u32(k, &d->n_train);
	u32(k, &d->n_test);
	u32(k, &d->rows);
	u32(k, &d->cols);
	u32(k, &d->classes);
	u64(k, &d->xxh3);
}

static void put_session(struct cursor *k, struct worker *w)
{
	uint32_t state = choice(k, (uint32_t)w->session.state, SESSION_FREE, SESSION_DEAD);

	/* a slot is in the ledger or in neither section */
	if ((state == SESSION_FREE) != (w->session.state == SESSION_FREE))
		spoil(k, MALFORMED);
	w->session.state = (enum session_state)state;
	u32(k, &w->session.peer);
	u32(k, &w->session.beat_peer);
	u64(k, &w->session.last_message_ms);
	u64(k, &w->sync.active_ms);
	flag(k, &w->sync.idle);
	u64(k, &w->ledger.durable_seq);
	u64(k, &w->ledger.snapshot_seq);
	u64(k, &w->ledger.replay_target);
	u64(k, &w->session.join_generation);
	refuse_over(k, w->ledger.durable_seq, w->ledger.last_seq);
	refuse_over(k, w->ledger.snapshot_seq, w->ledger.last_seq);
	flag(k, &w->session.leaving);
	flag(k, &w->lease.waiting);
	put_session_data(k, &w->session.data);
	put_pace(k, &w->pace);
}

/* Copies that were given out of batches, and counts that the states do not tell. */
static void put_copies(struct cursor *k, struct core *c)
{
	struct leases *l = &c->leases;
	uint64_t n_test = c->data.n_test;

	u32(k, &l->eval_size);
	if (l->n_batches &&
		(l->eval_size == 0 || n_test > (uint64_t)l->eval_size * WIRE_MAX_BATCHES)) {
		spoil(k, MALFORMED);
		return;
	}
	l->n_portions = l->n_batches ? (uint32_t)((n_test + l->eval_size - 1) / l->eval_size) : 0;
	u32(k, &l->n_done);
	u32(k, &l->n_free);
	u32(k, &l->n_evaluated);
	refuse_over(k, l->n_done, l->n_batches);
	refuse_over(k, l->n_free, l->n_batches);
	bytes(k, l->copies, l->n_batches);
}

static void put_snapshots(struct cursor *k, struct core *c)
{
	u64(k, &c->generation);
	flag(k, &c->saving);
	flag(k, &c->save_failing);
	flag(k, &c->urgent);
	flag(k, &c->dirty);
	u64(k, &c->snapshot_ms);
	for (size_t i = 0; i < CORE_MAX_ADMINS; i++) {
		u32(k, &c->admin[i].peer);
		u64(k, &c->admin[i].generation);
	}
}

static void put_life(struct cursor *k, struct core *c)
{
	uint32_t end_status = (uint32_t)-c->end_status;

	u64(k, &c->step.begin_ms);
	flag(k, &c->recovering);
	u64(k, &c->recover_by_ms);
	c->ending = (enum ending)choice(k, (uint32_t)c->ending, END_NOT, END_OVER);
	u32(k, &end_status);
	c->end_status = -(int)(end_status & INT32_MAX);
	u64(k, &c->now_ms);
}

void live_put_state(struct cursor *k, struct core *c)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers && !k->bad; i++)
		put_session(k, &c->worker[i]);
	put_fleet(k, &c->pace);
	if (!k->bad)
		put_copies(k, c);
	put_snapshots(k, c);
	put_life(k, c);
}
