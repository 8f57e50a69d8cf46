/*
 * core.c - takes one event and makes its effects. The table `rows` is the state machine of the
 * protocol.
 */
#include "server/core/core.h"
#include "common/assert.h"
#include "server/core/accumulator.h"
#include "server/core/backups.h"
#include "server/core/batch_ledger.h"
#include "server/core/checkpoints.h"
#include "server/core/core_state.h"
#include "server/core/dataset.h"
#include "server/core/departure.h"
#include "server/core/downpour.h"
#include "server/core/effects.h"
#include "server/core/leases.h"
#include "server/core/ledger.h"
#include "server/core/modes.h"
#include "server/core/pace.h"
#include "server/core/quarantine.h"
#include "server/core/run.h"
#include "server/core/sessions.h"
#include "server/core/store.h"
#include "server/core/sync.h"
#include "server/core/workers.h"
#include <string.h>

#define IN(state) (1u << (state))
#define CONNECTED (IN(SESSION_LIVE) | IN(SESSION_SUSPECT))

/*
 * The table has a row for each type of message that a peer may send. `states` is the set of session
 * states in which the server takes the message. If `states` is 0, the message needs no valid stamp,
 * and `handler` gets w == NULL. The states of a session are:
 *
 *   FREE --HELLO--> JOINING --durable--> LIVE <---any message--- SUSPECT
 *                                         | ^ `----silence------->  | |
 *   AWAY --HELLO (resume)-----------------' `----HELLO (resume)-----' |
 *     |                                                               | more silence
 *     `--------- silence ---------> DEAD <----------------------------'
 *   DEAD --HELLO--> JOINING
 *
 * The picture does not show these changes:
 *
 * - A new process that says HELLO with the name of a worker gets the slot of this worker, and the
 *   session becomes JOINING, whatever its state was.
 * - BYE or an exclusion makes the session DEAD. A session of a worker with another data set becomes
 *   DEAD when the data set of the run is fixed.
 * - More silence makes a SUSPECT session AWAY instead of DEAD if the worker may have pushes to
 *   replay.
 * - A JOINING session that is silent ends like a SUSPECT one, and so does a LIVE session if no tick
 *   comes within dead_ms after its last message.
 * - A restart of the server makes every session AWAY that is not FREE or DEAD.
 */
struct row {
	void (*handler)(struct core *c, struct worker *w, const struct event *ev);
	uint32_t states;
	int observers; /* 1: an observer (stamp.worker is 0) may send this message, too */
};

static void on_pull(struct core *c, struct worker *w, const struct event *ev);
static void on_status(struct core *c, struct worker *w, const struct event *ev);
static void on_admin(struct core *c, struct worker *w, const struct event *ev);

static const struct row rows[MSG_TYPES] = {
	[MSG_HELLO] = {sessions_on_hello, 0, 0},
	[MSG_PULL] = {on_pull, CONNECTED, 1},
	[MSG_PUSH] = {ledger_on_push, CONNECTED, 0},
	[MSG_LEASE] = {leases_on_lease, CONNECTED, 0},
	[MSG_RESULT] = {leases_on_result, CONNECTED, 0},
	[MSG_HEARTBEAT] = {sessions_on_heartbeat, CONNECTED | SESSION_LEAVING, 0},
	[MSG_BYE] = {sessions_on_bye, CONNECTED | SESSION_LEAVING, 0},
	[MSG_STATUS] = {on_status, 0, 0},
	[MSG_ADMIN] = {on_admin, 0, 0},
};

/* ---- weights out: pulls, and pushes that also pull ------------------------------------------- */

/* Sends the weights `which` to `peer`, as the answer to request `request`. `ack` is the ACK of a
 * push that also asked for these weights, or NULL if the request is a PULL. */
static void send_weights(struct core *c, struct worker *w, uint32_t peer, uint64_t request,
	enum weights which, const struct msg_ack *ack)
{
	int eval = which == WEIGHTS_EVAL;
	struct msg *m;

	if (w && !eval && c->backups.n > 0)
		backups_hold(c, w);
	c->stats.pulls++;
	c->effects.sends_weights |= !eval;
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

/* If the push that this step decided also asks for weights, sends a PARAMS message that contains
 * the weights and the ACK of the push. */
static void answer_push(struct core *c)
{
	struct worker *w = c->ledger.pulling.worker;

	if (w)
		send_weights(c, w, w->session.peer, c->ledger.pulling.request, WEIGHTS_CURRENT,
			&c->ledger.pulling.ack);
	c->ledger.pulling.worker = NULL;
}

static void on_pull(struct core *c, struct worker *w, const struct event *ev)
{
	const struct msg_pull *p = &ev->msg->pull;

	if (p->which == WEIGHTS_EVAL && !c->leases.evaluating) {
		effects_refuse(c, ev->peer, PS_EAGAIN, 0, "nothing is under evaluation");
		return;
	}
	if (w)
		w->session.peer = ev->peer;
	send_weights(c, w, ev->peer, p->request, p->which, NULL);
}

/* ---- messages that concern no worker --------------------------------------------------------- */

static void on_status(struct core *c, struct worker *w, const struct event *ev)
{
	(void)w;
	effects_add(c, EFFECT_STATUS, ev->peer)->max_text = ev->msg->status.max_text;
}

/* Releases a worker from quarantine. */
static void on_release(struct core *c, const struct event *ev)
{
	struct msg *m;

	if (!quarantine_release(&c->quarantine, ev->msg->admin.worker)) {
		effects_refuse(c, ev->peer, PS_EUSAGE, 0,
			"no worker in quarantine has this name or key: see cnn-ctl status");
		return;
	}
	c->checkpoints.urgent = 1;
	m = effects_send_decided(c, ev->peer, MSG_ADMIN);
	m->admin = ev->msg->admin;
	m->admin.reply = 1;
	effects_add(c, EFFECT_RELEASED, ev->peer)->msg.admin = ev->msg->admin;
}

static void on_admin(struct core *c, struct worker *w, const struct event *ev)
{
	(void)w;
	if (ev->msg->admin.verb == ADMIN_DRAIN) {
		checkpoints_answer(c, ev->peer, ADMIN_DRAIN, 0);
		run_drain(c, 0);
	} else if (ev->msg->admin.verb == ADMIN_CHECKPOINT) {
		checkpoints_request(c, ev->peer);
	} else if (ev->msg->admin.verb == ADMIN_RELEASE) {
		on_release(c, ev);
	} /* all other verbs need nothing here, because the shell carries them out */
}

/* ---- one message ----------------------------------------------------------------------------- */

static void on_message(struct core *c, const struct event *ev)
{
	const struct row *row = &rows[ev->msg->type];
	const struct stamp *stamp = msg_stamp(ev->msg);
	struct worker *w = NULL;

	if (!row->handler) {
		effects_refuse(c, ev->peer, PS_EPROTO, 0, "a server does not take this message");
		return;
	}
	if (row->states && !(row->observers && stamp->worker == 0)) {
		w = sessions_check(c, stamp, ev->peer, row->states);
		if (!w)
			return;
		/* invariant 2 of sessions.c; invariant 3 of departure.h */
		PS_ASSERT(stamp->incarnation == w->session.incarnation && !w->quarantine.excluded);
		w->session.last_message_ms = c->now_ms;
		if (w->session.state == SESSION_SUSPECT) {
			w->session.state = SESSION_LIVE;
			pace_back(c, w);
			effects_add_worker(c, w, WORKER_BACK);
		}
		if (ev->msg->type != MSG_HEARTBEAT) {
			w->sync.active_ms = c->now_ms;
			w->sync.idle = 0;
		}
		/* the run is over, and the worker has not received the server's BYE: send it
		 * again */
		if (c->run.ending == END_OVER) {
			departure_part(c, w, ev->peer);
			return;
		}
	}
	uint64_t refused = c->stats.refused;
	row->handler(c, w, ev);
	if (w)
		w->counts.refused += c->stats.refused - refused;
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Ends the recovery when all workers are back or the recovery time is over. During the recovery the
 * server grants no new work, because the workers of the snapshot first replay their pushes. */
static void recover(struct core *c)
{
	if (!c->run.recovering)
		return;
	if (c->now_ms < c->run.recover_by_ms && !sessions_all_back(c))
		return;
	c->run.recovering = 0;
	sessions_overdue(c);
	ledger_end_recovery(c);
}

void core_decide(struct core *c, const struct event *ev, uint64_t now_ms)
{
	const int evaluating = c->leases.evaluating;

	PS_ASSERT(!c->store.update.pending);
	c->store.checked = NULL;
	c->store.next_buffer = ev->next_buffer;
	c->store.defers = ev->defers;
	c->effects.n = 0;
	c->effects.commits = c->effects.sends_weights = c->effects.dropped = 0;
	c->effects.versions = 0;
	c->effects.requester = 0;
	(void)effects_add(c, EFFECT_COMMIT, 0);
	c->now_ms = now_ms;
	if (c->run.recovering && !c->run.recover_by_ms) {
		c->run.recover_by_ms = now_ms + c->cfg.sessions.recovery_ms;
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
		pace_hold(c, ev->held_ms);
		leases_tick(c);
		break;
	case EVENT_DURABLE:
		checkpoints_durable(c, ev->generation);
		break;
	case EVENT_SAVE_FAILED:
		checkpoints_failed(c);
		break;
	case EVENT_SAVE:
		c->checkpoints.urgent = 1;
		break;
	case EVENT_PROGRESS:
		pace_progress(c, ev->peer, ev->bytes);
		break;
	case EVENT_DRAIN:
		run_drain(c, ev->rule_met);
		break;
	}
	recover(c);
	if (!c->dataset.fixed && c->cfg.training.epochs > 0)
		dataset_choose(c);
	if (c->rules->settle)
		c->rules->settle(c);
	leases_settle_evaluation(c);
	/* After a step that ends an evaluation, the server may copy the evaluated weights. So the
	 * next evaluation begins in a later step. */
	if (c->leases.n_done == c->leases.n_batches && evaluating == c->leases.evaluating)
		leases_advance(c);
	if (c->cfg.training.max_updates && c->stats.updates >= c->cfg.training.max_updates &&
		c->accumulator.pushes == 0)
		run_end(c, PS_EDONE);
	leases_grant_waiting(c);
	answer_push(c);
	checkpoints_settle(c);
}

int core_needs_squares(const struct core_config *cfg)
{
	return store_needs_squares(cfg);
}

size_t core_compute(struct core *c, const float **values)
{
	return store_compute(c, values);
}

size_t core_update_blocks(const struct core *c)
{
	return store_update_blocks(c);
}

void core_compute_block(struct core *c, size_t block)
{
	store_compute_block(c, block);
}

void core_end_update(struct core *c)
{
	store_end_update(c);
}

void core_step(struct core *c, const struct event *ev, uint64_t now_ms)
{
	core_decide(c, ev, now_ms);
	if (c->store.update.pending)
		store_complete(c);
}

/* ---- queries --------------------------------------------------------------------------------- */

const struct core_config *core_config(const struct core *c)
{
	return &c->cfg;
}

const struct core_stats *core_stats(const struct core *c)
{
	return &c->stats;
}

const float *core_evaluated_weights(const struct core *c)
{
	return c->store.has_eval && !c->leases.evaluating ? c->store.eval_weights : NULL;
}

void core_fetch_weights(struct core *c)
{
	store_fetch_weights(c);
}

const float *core_weights(const struct core *c)
{
	return c->store.weights;
}

const struct epoch_record *core_epoch(const struct core *c, uint32_t e)
{
	return e < c->cfg.training.epochs ? &c->epoch[e] : NULL;
}

int core_is_evaluated(const struct core *c, uint32_t epoch)
{
	const struct epoch_record *r = core_epoch(c, epoch);

	return r && r->eval_done && r->eval_done == core_eval_images(c) &&
	       !(c->leases.evaluating && epoch + 1 == c->leases.epoch);
}

uint32_t core_training_epoch(const struct core *c)
{
	return c->leases.epoch;
}

const struct data_id *core_data(const struct core *c)
{
	return &c->dataset.id;
}

int core_data_is_fixed(const struct core *c)
{
	return c->dataset.fixed;
}

void core_worker(const struct core *c, uint32_t i, struct worker_view *v)
{
	const struct worker *w = &c->worker[i];

	*v = (struct worker_view){.state = w->session.state,
		.excluded = w->quarantine.excluded,
		.quarantined = w->quarantine.excluded &&
			       quarantine_has(&c->quarantine, w->session.owner, w->session.name),
		.in_session =
			!w->quarantine.excluded &&
			(w->session.state == SESSION_JOINING || w->session.state == SESSION_LIVE ||
				w->session.state == SESSION_SUSPECT),
		.worker = i + 1,
		.incarnation = w->session.incarnation,
		.name = w->session.name,
		.device = w->session.device,
		.owner = w->session.owner,
		.last_seq = w->ledger.last_seq,
		.durable_seq = w->ledger.durable_seq,
		.images = w->ledger.images,
		.last_message_ms = w->session.last_message_ms,
		.stalled = w->session.state == SESSION_LIVE && w->pace.stalled,
		.peer = w->session.peer,
		.owes_ms = pace_owes_ms(c, w),
		.counts = w->counts};
}
