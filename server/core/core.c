/*
 * core.c - the heart: one event in, effects out. The dispatch table is the protocol's state
 * machine.
 */
#include "server/core/modes.h"
#include "server/core/state.h"
#include <string.h>

#define IN(state) (1u << (state))
#define CONNECTED (IN(SESSION_LIVE) | IN(SESSION_SUSPECT))

/*
 * A row per message type a peer may send. `states` 0: no stamp is asked for, `handler` gets w ==
 * NULL.
 *
 *   FREE --HELLO--> JOINING --durable--> LIVE <--any message-- SUSPECT
 *                                         | ^ ------silence----->  |
 *             AWAY --HELLO (resume)-------' `---HELLO (resume)---. | more silence
 *              `--------- silence ------------> DEAD <-----------'-'   DEAD --HELLO (new)-->
 * JOINING
 */
struct row {
	void (*handler)(struct core *c, struct worker *w, const struct event *ev);
	uint32_t states;
	int observers; /* stamp.worker 0 is allowed */
};

static void on_status(struct core *c, struct worker *w, const struct event *ev);
static void on_admin(struct core *c, struct worker *w, const struct event *ev);

static const struct row rows[MSG_TYPES] = {
	[MSG_HELLO] = {sessions_on_hello, 0, 0},
	[MSG_PULL] = {store_on_pull, CONNECTED, 1},
	[MSG_PUSH] = {ledger_on_push, CONNECTED, 0},
	[MSG_LEASE] = {leases_on_lease, CONNECTED, 0},
	[MSG_RESULT] = {leases_on_result, CONNECTED, 0},
	[MSG_BEAT] = {sessions_on_beat, CONNECTED, 0},
	[MSG_BYE] = {sessions_on_bye, CONNECTED, 0},
	[MSG_STATUS] = {on_status, 0, 0},
	[MSG_ADMIN] = {on_admin, 0, 0},
};

static const struct stamp *stamp_of(const struct msg *m)
{
	switch (m->type) {
	case MSG_PULL:
		return &m->pull.stamp;
	case MSG_PUSH:
		return &m->push.stamp;
	case MSG_LEASE:
		return &m->lease.stamp;
	case MSG_RESULT:
		return &m->result.stamp;
	case MSG_BEAT:
		return &m->beat.stamp;
	case MSG_BYE:
		return &m->bye.stamp;
	default:
		return NULL;
	}
}

/* ---- effects ----------------------------------------------------------------------------------
 */

struct effect *core_emit(struct core *c, enum effect_kind kind, uint32_t peer)
{
	/* max_effects is the worst case of one step; the last place only ever absorbs our own
	 * mistake */
	struct effect *e = &c->effect[c->n_effects];

	if (c->n_effects + 1 < c->max_effects)
		c->n_effects++;
	e->kind = kind;
	e->peer = peer;
	e->generation = 0;
	e->epoch = 0;
	e->status = 0;
	return e;
}

struct msg *core_send(struct core *c, uint32_t peer, enum msg_type type)
{
	struct msg *m = &core_emit(c, EFFECT_SEND, peer)->msg;

	m->type = type;
	return m;
}

void core_refuse(struct core *c, uint32_t peer, int status, uint64_t expected, const char *text)
{
	struct msg *m = core_send(c, peer, MSG_ERROR);

	m->error = (struct msg_error){.status = status, .expected = expected, .text = text};
	c->stats.refused++;
}

const struct effect *core_effect(const struct core *c, size_t i)
{
	return i < c->n_effects ? &c->effect[i] : NULL;
}

/* ---- messages that are about no worker --------------------------------------------------------
 */

static void on_status(struct core *c, struct worker *w, const struct event *ev)
{
	(void)w;
	core_emit(c, EFFECT_STATUS, ev->peer);
}

static void admin_answer(struct core *c, uint32_t peer, enum admin_verb verb, uint64_t generation)
{
	struct msg *m = core_send(c, peer, MSG_ADMIN);

	m->admin = (struct msg_admin){.verb = verb, .reply = 1, .generation = generation};
}

static void on_admin(struct core *c, struct worker *w, const struct event *ev)
{
	(void)w;
	if (ev->msg->admin.verb == ADMIN_DRAIN) {
		admin_answer(c, ev->peer, ADMIN_DRAIN, 0);
		core_end(c, PS_ESHUTDOWN);
		return;
	}
	if (!c->cfg.durable) {
		core_refuse(c, ev->peer, PS_EUSAGE, 0, "this server runs without --checkpoint-dir");
		return;
	}
	if (c->ending >= END_SAVING) {
		core_refuse(c, ev->peer, c->end_status, 0,
			"the run is over: its last checkpoint has been taken");
		return;
	}
	for (size_t i = 0; i < CORE_MAX_ADMINS; i++) {
		if (c->admin[i].peer)
			continue;
		c->admin[i].peer = ev->peer;
		c->admin[i].generation = c->generation + 1;
		c->urgent = 1;
		return;
	}
	core_refuse(c, ev->peer, PS_EAGAIN, 0, "too many checkpoints are waited for");
}

/* ---- one message ------------------------------------------------------------------------------
 */

static void on_message(struct core *c, const struct event *ev)
{
	const struct row *row = &rows[ev->msg->type];
	const struct stamp *stamp = stamp_of(ev->msg);
	struct worker *w = NULL;

	if (!row->handler) {
		core_refuse(c, ev->peer, PS_EPROTO, 0, "a server does not take this message");
		return;
	}
	if (row->states && !(row->observers && stamp->worker == 0)) {
		w = sessions_check(c, stamp, ev->peer, row->states);
		if (!w)
			return;
		w->heard_ms = c->now_ms;
		if (w->state == SESSION_SUSPECT)
			w->state = SESSION_LIVE;
		if (c->ending == END_OVER) { /* it missed our BYE */
			sessions_bye(c, w, ev->peer, c->end_status);
			return;
		}
	}
	row->handler(c, w, ev);
}

/* ---- snapshots and the end --------------------------------------------------------------------
 */

void core_end(struct core *c, int status)
{
	if (c->ending != END_NOT)
		return;
	c->ending = END_SNAPSHOT;
	c->end_status = status;
}

static void finish(struct core *c)
{
	c->ending = END_OVER;
	sessions_say_bye(c, c->end_status);
	core_emit(c, EFFECT_FINISH, 0)->status = c->end_status;
}

static void snapshot_start(struct core *c)
{
	c->generation++;
	c->saving = 1;
	c->urgent = 0;
	c->dirty = 0;
	c->snapshot_ms = c->now_ms;
	c->stats.snapshots++;
	sessions_snapshot(c);
	core_emit(c, EFFECT_SNAPSHOT, 0)->generation = c->generation;
	if (c->ending == END_SNAPSHOT)
		c->ending = END_SAVING;
}

/* At the end of each step: start a snapshot if one is due, end the run if all is done. */
static void settle(struct core *c)
{
	int failed_lately = c->save_failing && c->now_ms - c->snapshot_ms < c->cfg.checkpoint_ms;
	int due = c->urgent || c->ending == END_SNAPSHOT ||
		  (c->dirty && c->now_ms - c->snapshot_ms >= c->cfg.checkpoint_ms);

	if (!c->cfg.durable) {
		if (c->ending == END_SNAPSHOT)
			finish(c);
		return;
	}
	if (due && !c->saving && c->ending != END_OVER && !failed_lately)
		snapshot_start(c);
}

static void on_durable(struct core *c, uint64_t generation)
{
	c->saving = c->save_failing = 0;
	sessions_durable(c, generation);
	for (size_t i = 0; i < CORE_MAX_ADMINS; i++) {
		if (!c->admin[i].peer || c->admin[i].generation > generation)
			continue;
		admin_answer(c, c->admin[i].peer, ADMIN_CHECKPOINT, generation);
		c->admin[i].peer = 0;
	}
	if (c->ending == END_SAVING)
		finish(c);
}

static void on_save_failed(struct core *c)
{
	c->saving = 0;
	c->save_failing = 1;
	c->dirty = 1;
	c->urgent = 1; /* whoever waited for this one waits for the next */
	c->stats.save_failures++;
	if (c->ending == END_SAVING)
		c->ending = END_SNAPSHOT;
}

/* A restarted server gives no new work before the others are back: their replays come first. */
static void recover(struct core *c)
{
	if (!c->recovering)
		return;
	if (c->now_ms < c->recover_by_ms && !sessions_all_back(c))
		return;
	c->recovering = 0;
	sessions_overdue(c);
}

void core_step(struct core *c, const struct event *ev, uint64_t now_ms)
{
	c->n_effects = 0;
	c->now_ms = now_ms;
	if (c->recovering && !c->recover_by_ms) {
		c->recover_by_ms = now_ms + c->cfg.recovery_ms;
		sessions_awaited(c);
	}
	switch (ev->kind) {
	case EVENT_MESSAGE:
		on_message(c, ev);
		break;
	case EVENT_PEER_GONE:
		sessions_peer_gone(c, ev->peer);
		break;
	case EVENT_TICK:
		sessions_tick(c);
		break;
	case EVENT_DURABLE:
		on_durable(c, ev->generation);
		break;
	case EVENT_SAVE_FAILED:
		on_save_failed(c);
		break;
	case EVENT_DRAIN:
		core_end(c, PS_ESHUTDOWN);
		break;
	}
	recover(c);
	if (rules_of(c)->settle)
		rules_of(c)->settle(c);
	leases_advance(c);
	if (c->cfg.max_updates && c->stats.updates >= c->cfg.max_updates && c->gather.pushes == 0)
		core_end(c, PS_EDONE);
	leases_grant_waiting(c);
	settle(c);
}

/* ---- birth ------------------------------------------------------------------------------------
 */

struct layout {
	size_t core, workers, decisions, epochs, effects, batches, copies, portions, eval, scratch,
		sum, square, backups, lbfgs, end;
	size_t state[OPTIM_VECTORS];
};

static size_t place(size_t *at, size_t n, size_t size)
{
	size_t here = *at;

	*at += (n * size + 63) / 64 * 64;
	return here;
}

/* The worst step: every worker is answered, granted and told goodbye, and every admin is answered.
 */
static size_t max_effects(const struct core_config *cfg)
{
	return 3 * (size_t)cfg->max_workers + CORE_MAX_ADMINS + 8;
}

static int gathers(const struct core_config *cfg)
{
	return cfg->mode == MODE_SYNC || cfg->mode == MODE_SANDBLASTER;
}

/* Values between one vector and the next of a list. */
static size_t stride(const struct core_config *cfg)
{
	return (cfg->n_params + 15) / 16 * 16;
}

static struct layout layout_of(const struct core_config *cfg)
{
	struct layout l = {0};
	size_t batches = cfg->epochs ? WIRE_MAX_BATCHES : 0, n = stride(cfg);
	int dc = cfg->dc_lambda > 0, search = cfg->optim.kind == OPTIM_LBFGS;

	l.core = place(&l.end, 1, sizeof(struct core));
	l.workers = place(&l.end, cfg->max_workers, sizeof(struct worker));
	l.decisions = place(
		&l.end, (size_t)cfg->max_workers * cfg->replay_window, sizeof(struct decision));
	l.epochs = place(&l.end, cfg->epochs, sizeof(struct epoch_record));
	l.effects = place(&l.end, max_effects(cfg), sizeof(struct effect));
	l.batches = place(&l.end, batches, 1);
	l.copies = place(&l.end, batches, 1);
	l.portions = place(&l.end, batches, 1);
	l.eval = place(&l.end, cfg->epochs ? n : 0, sizeof(float));
	l.scratch = place(&l.end, gathers(cfg) || dc ? n : 0, sizeof(float));
	l.sum = place(&l.end, gathers(cfg) ? n : 0, sizeof(double));
	l.square = place(&l.end, dc && cfg->dc_adaptive ? n : 0, sizeof(float));
	l.backups = place(&l.end, dc ? n * cfg->max_workers : 0, sizeof(float));
	l.lbfgs = place(&l.end, search ? n * lbfgs_vectors(cfg->lbfgs_history) : 0, sizeof(float));
	for (size_t i = 0; i < optim_vectors(cfg->optim.kind); i++)
		l.state[i] = place(&l.end, n, sizeof(float));
	return l;
}

size_t core_bytes(const struct core_config *cfg)
{
	return layout_of(cfg).end;
}

static float *floats_at(void *memory, size_t at)
{
	return (float *)(void *)((unsigned char *)memory + at);
}

static void place_modes(struct core *c, void *memory, const struct layout *l)
{
	const struct core_config *cfg = &c->cfg;
	size_t n = stride(cfg);

	c->store.scratch = floats_at(memory, l->scratch);
	if (gathers(cfg)) {
		c->gather.sum = (double *)(void *)floats_at(memory, l->sum);
		memset(c->gather.sum, 0, cfg->n_params * sizeof(double));
	}
	if (cfg->dc_lambda > 0) {
		for (uint32_t i = 0; i < cfg->max_workers; i++)
			c->worker[i].backup = floats_at(memory, l->backups) + i * n;
		c->store.dc_square = floats_at(memory, l->square);
		if (cfg->dc_adaptive)
			memset(c->store.dc_square, 0, cfg->n_params * sizeof(float));
	}
	if (cfg->optim.kind == OPTIM_LBFGS) {
		float *v = floats_at(memory, l->lbfgs);
		c->lbfgs.x = v;
		c->lbfgs.g = v + n;
		c->lbfgs.d = v + 2 * n;
		for (uint32_t i = 0; i < cfg->lbfgs_history; i++) {
			c->lbfgs.s[i] = v + (3 + 2 * i) * n;
			c->lbfgs.y[i] = v + (4 + 2 * i) * n;
		}
	}
}

struct core *core_place(void *memory, float *weights, const struct core_config *cfg)
{
	struct layout l = layout_of(cfg);
	unsigned char *base = memory;
	struct core *c = memory;
	struct decision *d = (struct decision *)(void *)(base + l.decisions);

	/* effects, batches and portions are written before they are read */
	memset(base, 0, l.effects);
	c->cfg = *cfg;
	c->worker = (struct worker *)(void *)(base + l.workers);
	for (uint32_t i = 0; i < cfg->max_workers; i++)
		c->worker[i].decisions = d + (size_t)i * cfg->replay_window;
	c->epoch = (struct epoch_record *)(void *)(base + l.epochs);
	c->effect = (struct effect *)(void *)(base + l.effects);
	c->max_effects = max_effects(cfg);
	c->leases.batch = base + l.batches;
	c->leases.copies = base + l.copies;
	c->leases.portion = base + l.portions;
	c->store.n = cfg->n_params;
	c->store.weights = weights;
	c->store.eval_weights = floats_at(memory, l.eval);
	for (size_t i = 0; i < optim_vectors(cfg->optim.kind); i++)
		c->store.state[i] = floats_at(memory, l.state[i]);
	place_modes(c, memory, &l);
	c->generation = cfg->generation;
	c->store.version_epoch = cfg->epoch;
	return c;
}

struct core *core_init(void *memory, const struct core_config *cfg, float *weights)
{
	struct core *c = core_place(memory, weights, cfg);

	for (size_t v = 0; v < optim_vectors(cfg->optim.kind); v++)
		for (size_t i = 0; i < cfg->n_params; i++)
			c->store.state[v][i] = optim_first(&cfg->optim, v);
	return c;
}

/* ---- looking in -------------------------------------------------------------------------------
 */

const struct core_config *core_config(const struct core *c)
{
	return &c->cfg;
}

const struct core_stats *core_stats(const struct core *c)
{
	return &c->stats;
}

void core_lend(struct core *c, float *buffer)
{
	c->store.loan = buffer;
}

void core_watch(struct core *c, core_watch_fn *watch, void *arg)
{
	c->store.watch = watch;
	c->store.watch_arg = arg;
}

const float *core_weights(const struct core *c)
{
	return c->store.weights;
}

const struct epoch_record *core_epoch(const struct core *c, uint32_t e)
{
	return e < c->cfg.epochs ? &c->epoch[e] : NULL;
}

uint32_t core_training_epoch(const struct core *c)
{
	return c->leases.epoch;
}

const struct data_id *core_data(const struct core *c)
{
	return &c->data;
}

void core_worker(const struct core *c, uint32_t i, struct worker_view *v)
{
	const struct worker *w = &c->worker[i];

	*v = (struct worker_view){.state = w->state,
		.worker = i + 1,
		.incarnation = w->incarnation,
		.name = w->name,
		.device = w->device,
		.last_seq = w->last_seq,
		.durable_seq = w->durable_seq,
		.images = w->images,
		.heard_ms = w->heard_ms};
}

uint32_t core_live_workers(const struct core *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->cfg.max_workers; i++)
		n += c->worker[i].state == SESSION_LIVE;
	return n;
}
