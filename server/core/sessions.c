/*
 * sessions.c - the sessions of workers: HELLO, liveness, fencing and BYE. A diagram in core.c shows
 * the states.
 *
 * Invariants:
 * (1) an incarnation is on disk before a process receives it, so the server never assigns it twice
 *     (asserted by go_live; welcome_comes_when_the_incarnation_is_on_disk_and_not_before,
 *     mutant welcome-before-disk);
 * (2) messages of an older incarnation change nothing (asserted by on_message in core.c;
 *     a_stamp_is_refused_for_its_run_then_incarnation_then_term_then_state, mutant no-fence);
 * (3) a worker that is silent for dead_ms holds no lease, and no worker waits for it (asserted by
 *     sessions_tick; silence_makes_suspect_then_dead_and_a_message_makes_live).
 *
 * Promises:
 * (1) the table has max_workers slots, however often workers restart
 *     (a_restart_storm_stays_in_the_table_and_repeats_no_incarnation).
 */
#include "server/core/sessions.h"
#include "common/assert.h"
#include "server/core/backups.h"
#include "server/core/batch_ledger.h"
#include "server/core/checkpoints.h"
#include "server/core/core_state.h"
#include "server/core/dataset.h"
#include "server/core/departure.h"
#include "server/core/effects.h"
#include "server/core/lbfgs.h"
#include "server/core/leases.h"
#include "server/core/ledger.h"
#include "server/core/norms.h"
#include "server/core/pace.h"
#include "server/core/quarantine.h"
#include "server/core/run.h"
#include "server/core/sync.h"
#include "server/core/tensors.h"
#include "server/core/workers.h"
#include <string.h>

static int same_run(const struct run_id *a, const struct run_id *b)
{
	return a->hi == b->hi && a->lo == b->lo;
}

static void fence(struct core *c, const struct worker *w, const struct stamp *old, uint32_t peer)
{
	if (!w->session.join_generation)
		effects_refuse_fenced(c, peer, worker_id(c, w), old->incarnation);
}

static void refuse_run(struct core *c, const struct run_id *theirs, uint32_t peer)
{
	say_begin(&c->effects.said, "this server is in another run (");
	say_run(&c->effects.said, &c->cfg.run);
	say_text(&c->effects.said, "; yours was ");
	say_run(&c->effects.said, theirs);
	say_text(&c->effects.said, "): start this worker again to join this run, or start "
				   "the server with the --checkpoint-dir of your run");
	effects_refuse(c, peer, PS_EWRONGRUN, 0, c->effects.said.text);
}

static uint32_t state_bits(const struct worker *w)
{
	return 1u << w->session.state | (w->session.leave == LEAVES ? SESSION_LEAVING : 0);
}

struct worker *sessions_check(struct core *c, const struct stamp *s, uint32_t peer, uint32_t states)
{
	struct worker *w = worker_find(c, s->worker);

	if (!same_run(&s->run, &c->cfg.run))
		refuse_run(c, &s->run, peer);
	else if (w && s->incarnation < w->session.incarnation)
		fence(c, w, s, peer);
	else if (s->term != c->cfg.term)
		effects_refuse(c, peer, PS_ETERM, 0, "the server has restarted: send HELLO again");
	else if (w && w->quarantine.excluded && s->incarnation == w->session.incarnation)
		quarantine_notify(c, w, peer);
	else if (!w || s->incarnation > w->session.incarnation || !(states & state_bits(w)))
		effects_refuse(c, peer, PS_ESTATE, 0, "send HELLO first");
	else
		return w;
	return NULL;
}

/* ---- HELLO ----------------------------------------------------------------------------------- */

static void welcome(struct core *c, struct worker *w, uint32_t peer)
{
	struct msg *welcome =
		w ? effects_send_decided(c, peer, MSG_WELCOME) : effects_send(c, peer, MSG_WELCOME);
	struct msg_welcome *m = &welcome->welcome;
	const struct core_config *cfg = &c->cfg;

	memset(m, 0, sizeof(*m));
	m->stamp = worker_stamp(c, w);
	m->last_seq = w ? w->ledger.last_seq : 0;
	m->durable_seq = w ? worker_durable_seq(c, w) : 0;
	memcpy(m->model, cfg->model, sizeof(m->model));
	m->model_fingerprint = cfg->model_fingerprint;
	m->n_params = cfg->n_params;
	m->needs_images = w && cfg->images.in_text;
	m->validate = w ? cfg->training.validate : 0;
	m->tensors = w ? NULL : c->tensors.list;
/* clang-format off */
#define SENT(to) m->to = (__typeof__(m->to))
#define UNSENT   (void)
#define U32(member, field, name, def, min, max, arg, resume, sent, ...) sent(cfg->member.field);
#define U64  U32
#define REAL U32
#define ENUM(member, field, name, def, tag, names, first, arg, resume, sent, ...) \
	sent(cfg->member.field);
#define FLAG(member, field, name, resume, sent, ...) sent(cfg->member.field);
#include "server/core/options.def"
	/* clang-format on */
}

static void go_live(struct core *c, struct worker *w)
{
	enum session_state before = w->session.state;

	PS_ASSERT(before != SESSION_JOINING || !w->session.join_generation); /* invariant 1 */
	if (before != SESSION_LIVE)
		pace_back(c, w);
	w->session.state = SESSION_LIVE;
	w->session.overdue = 0;
	w->session.last_message_ms = w->sync.active_ms = c->now_ms;
	w->sync.idle = 0;
	/* without a connection, send no WELCOME: the worker will send HELLO on a new connection */
	if (w->session.peer)
		welcome(c, w, w->session.peer);
	if (before != SESSION_LIVE)
		effects_add_worker(c, w,
			before != SESSION_JOINING ? WORKER_BACK
			: w->session.restarted    ? WORKER_RESTARTED
						  : WORKER_JOINED);
}

/* Gives the slot of w to the process on connection `peer`, which has said HELLO. */
static void hold_slot(struct core *c, struct worker *w, uint32_t peer)
{
	struct effect *e = effects_add(c, EFFECT_HELLO, peer);

	if (c->n_slots < worker_id(c, w))
		c->n_slots = worker_id(c, w);
	e->worker = worker_id(c, w);
	e->incarnation = w->session.incarnation;
	w->session.peer = peer;
	w->session.last_message_ms = c->now_ms;
	w->session.lost = 0;
}

/* Lets the process that said HELLO join. The core sends WELCOME when a snapshot on disk contains
 * the incarnation of the process. Without a disk, or with a write-ahead log, the core sends WELCOME
 * at once. */
static void join(struct core *c, struct worker *w)
{
	c->checkpoints.dirty = 1;
	w->session.state = SESSION_JOINING;
	if (!c->cfg.durable || c->cfg.checkpoint.wal) {
		w->session.join_generation = 0;
		go_live(c, w);
		return;
	}
	w->session.join_generation = c->checkpoints.generation + 1;
	c->checkpoints.urgent = 1;
}

/* Returns 1 if a worker with another key opened the session of w. */
static int is_of_another_key(const struct worker *w, const struct msg_hello *h)
{
	return w && workers_differ_in_key(w->session.owner, h->owner);
}

/* Returns the slot whose worker has the name and the key of HELLO `h`. If there is none, returns a
 * slot without a name whose worker is dead, else a slot that no worker ever used, else any slot
 * whose worker is dead. Returns NULL if every slot has a worker that is not dead. */
static struct worker *pick_slot(const struct core *c, const struct msg_hello *h)
{
	struct worker *gone = NULL, *unused = NULL, *named = NULL;

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		struct worker *w = &c->worker[i];

		if (w->session.state == SESSION_FREE)
			unused = unused ? unused : w;
		else if (h->name[0] && !is_of_another_key(w, h) &&
			 strncmp(w->session.name, h->name, sizeof(w->session.name)) == 0)
			return w;
		else if (w->session.state == SESSION_DEAD && !w->session.name[0])
			gone = gone ? gone : w;
		else if (w->session.state == SESSION_DEAD)
			named = named ? named : w;
	}
	return gone ? gone : unused ? unused : named;
}

/* Returns 1 if the worker has sent BYE. */
static int has_said_bye(const struct worker *w)
{
	return w->session.leave != STAYS && !w->quarantine.excluded;
}

/* Answers BYE when all pushes of the worker are durable. */
static void answer_bye(struct core *c, struct worker *w, uint32_t peer)
{
	w->session.peer = peer;
	if (worker_durable_seq(c, w) == w->ledger.last_seq) {
		w->session.leave = HAS_LEFT;
		departure_bye(c, w, peer, PS_OK);
		return;
	}
	w->session.leave = LEAVES;
	c->checkpoints.urgent = 1;
}

/* Returns the worker that has already said HELLO on this connection. A worker repeats its HELLO
 * when the answer is late or was lost. Returns NULL if no worker has said HELLO on this
 * connection. */
static struct worker *hello_again(const struct core *c, uint32_t peer)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];

		if (w->session.peer == peer &&
			(w->session.state == SESSION_JOINING || w->session.state == SESSION_LIVE ||
				w->session.state == SESSION_SUSPECT))
			return w;
	}
	return NULL;
}

static void refuse_full(struct core *c, uint32_t peer)
{
	say_begin(&c->effects.said, "all ");
	say_number(&c->effects.said, c->cfg.sessions.max_workers);
	say_text(&c->effects.said,
		" worker slots are taken: end a worker, or start the server again with a "
		"larger --max-workers");
	effects_refuse(c, peer, PS_EFULL, 0, c->effects.said.text);
}

static void refuse_quarantined(struct core *c, uint32_t peer)
{
	say_begin(&c->effects.said, "in quarantine: this worker or its key was excluded ");
	say_number(&c->effects.said, QUARANTINE_AFTER);
	say_text(&c->effects.said,
		" times in this run; repair it, then an admin ends the quarantine with cnn-ctl "
		"release");
	effects_refuse(c, peer, PS_EQUARANTINE, 0, c->effects.said.text);
}

/* Returns 1 if slot `w` is of the worker that says HELLO `h`: they have the same key or, without
 * keys, the same name. */
static int is_of_same_worker(const struct worker *w, const struct msg_hello *h)
{
	if (w->session.owner[0] || h->owner[0])
		return workers_same_key(w->session.owner, h->owner);
	return h->name[0] && strncmp(w->session.name, h->name, sizeof(w->session.name)) == 0;
}

/* Called when slot `w` gets a new process. This process takes over two faults of the earlier
 * processes of the same worker: bad pushes, and sizes of gradients beyond the limits. It takes over
 * no faults of an excluded process, because these pushes have led to the exclusion. */
static void inherit_faults(struct core *c, struct worker *w, const struct msg_hello *h)
{
	struct worker_norms norms = {0};
	struct worker_quarantine bad = {0};

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		const struct worker *o = &c->worker[i];

		if (o->quarantine.excluded || !is_of_same_worker(o, h))
			continue;
		norms_inherit(c, &norms, &o->norms);
		quarantine_inherit(&bad, o);
	}
	w->norms = norms;
	w->quarantine = bad;
}

static void hello_new(struct core *c, const struct event *ev)
{
	const struct msg_hello *h = &ev->msg->hello;
	struct worker *w = hello_again(c, ev->peer);

	if (w) {
		hold_slot(c, w, ev->peer);
		if (w->session.state != SESSION_JOINING)
			go_live(c, w);
		return;
	}
	if (quarantine_has(&c->quarantine, h->owner, h->name)) {
		refuse_quarantined(c, ev->peer);
		return;
	}
	w = pick_slot(c, h);
	if (!w) {
		refuse_full(c, ev->peer);
		return;
	}
	if (w->session.incarnation)
		c->stats.rejoins++;
	batch_ledger_release(c, w);
	backups_release(c, w);
	pace_replace(c, w);
	inherit_faults(c, w, h);
	w->session.restarted = w->session.incarnation && h->name[0] &&
			       strncmp(w->session.name, h->name, sizeof(w->session.name)) == 0;
	w->session.incarnation++;
	w->session.born_term = c->cfg.term;
	memcpy(w->session.name, h->name, sizeof(w->session.name));
	memcpy(w->session.device, h->device, sizeof(w->session.device));
	memcpy(w->session.owner, h->owner, sizeof(w->session.owner));
	w->session.data = h->data;
	tensors_joined(c, h);
	hold_slot(c, w, ev->peer);
	w->session.heartbeat_peer = 0;
	w->lease.request = 0;
	/* the new process does not continue the grant of the process before it */
	w->lease.grant = (struct msg_grant){0};
	w->session.leave = STAYS;
	w->lease.waiting = w->sync.idle = 0;
	w->sync.member = 0; /* the step under way does not wait for a new process */
	w->ledger.replay_target = 0;
	join(c, w);
}

/* Returns 1 if the worker claims an incarnation that the server has assigned to another process in
 * a later term. A server that has lost its newest state can assign the same number again. */
static int has_reused_incarnation(const struct worker *w, const struct stamp *claim)
{
	return w && w->session.incarnation == claim->incarnation &&
	       claim->term < w->session.born_term;
}

static void refuse_rollback(
	struct core *c, const struct worker *w, const struct msg_hello *h, uint32_t peer)
{
	say_begin(&c->effects.said, "the server's state has ");
	say_number(&c->effects.said, w ? w->ledger.last_seq : 0);
	say_text(&c->effects.said, " pushes of worker ");
	say_number(&c->effects.said, h->resume.worker);
	say_text(&c->effects.said, ", but ");
	say_number(&c->effects.said, h->durable_seq);
	say_text(&c->effects.said,
		" were acknowledged as durable: give it the newest checkpoint, or start "
		"it with --accept-rollback");
	effects_refuse(c, peer, PS_EROLLEDBACK, 0, c->effects.said.text);
}

/* The incarnation and the seq that a worker claims may exceed those of the server by at most these
 * amounts. A claim beyond these limits is false, because no operator restores a checkpoint that is
 * so old. If the server accepted such a claim, the slot could run out of incarnations and seqs. */
#define ROLLBACK_INCARNATIONS 1000u
#define ROLLBACK_PUSHES       (1ull << 32)

/* Returns 1 if the server may have lost the state that the worker claims. Such a claim is of an
 * earlier term and not too far ahead of the server's state. The slot must have had no worker in
 * this term, so that the server accepts at most one such claim for each slot and term. */
static int may_be_lost(const struct core *c, const struct worker *w, const struct msg_hello *h)
{
	return h->resume.term < c->cfg.term &&
	       (w->session.state == SESSION_AWAY || w->session.state == SESSION_FREE) &&
	       h->resume.incarnation <= w->session.incarnation + ROLLBACK_INCARNATIONS &&
	       h->durable_seq <= w->ledger.last_seq + ROLLBACK_PUSHES;
}

/* Called when a worker's HELLO shows that the server has lost state that had been durable. If the
 * operator gave --accept-rollback and the worker's claim may be true, the function sets the
 * incarnation of the slot to the worker's, raises the last_seq of the slot to the worker's
 * durable_seq, and returns 1. Otherwise it refuses the worker and returns 0. It also refuses a
 * worker in quarantine if no worker has used the slot before. */
static int accept_rollback(
	struct core *c, struct worker *w, const struct msg_hello *h, uint32_t peer)
{
	if (!w || !c->cfg.sessions.accept_rollback || !may_be_lost(c, w, h)) {
		refuse_rollback(c, w, h, peer);
		return 0;
	}
	/* a worker that claims a slot that nobody has used gets a new session here, so quarantine
	 * applies to it as to a worker that joins */
	if (w->session.state == SESSION_FREE && quarantine_has(&c->quarantine, h->owner, h->name)) {
		refuse_quarantined(c, peer);
		return 0;
	}
	backups_release(c, w);
	w->session.incarnation = h->resume.incarnation;
	w->session.born_term = h->resume.term;
	w->quarantine.excluded = w->quarantine.sound = 0;
	w->quarantine.bad = w->quarantine.shapes = 0;
	if (h->durable_seq > w->ledger.last_seq) {
		w->ledger.last_seq = h->durable_seq;
		/* the server has lost its decisions on the pushes up to last_seq */
		worker_forget_decisions(c, w);
	}
	c->checkpoints.dirty = 1;
	return 1;
}

/* Returns 1 if the session of `w` has ended. A worker that resumes an ended session joins like a
 * new worker. */
static int has_ended(const struct worker *w)
{
	return w->session.state == SESSION_DEAD || w->session.state == SESSION_FREE;
}

/* Returns the seq of the newest push that the worker may still have to replay. A worker retains at
 * most WIRE_MAX_WINDOW pushes after those that are durable, so the function ignores a larger
 * claim. */
static uint64_t last_replay(const struct worker *w, const struct msg_hello *h)
{
	uint64_t max = w->ledger.last_seq + WIRE_MAX_WINDOW;

	return h->last_seq < max ? h->last_seq : max;
}

static void hello_resume(struct core *c, const struct event *ev)
{
	const struct msg_hello *h = &ev->msg->hello;
	/* the server never assigns incarnation 0 */
	struct worker *w = h->resume.incarnation ? worker_find(c, h->resume.worker) : NULL;

	if (!same_run(&h->resume.run, &c->cfg.run)) {
		refuse_run(c, &h->resume.run, ev->peer);
		return;
	}
	if (w && w->session.incarnation > h->resume.incarnation) {
		fence(c, w, &h->resume, ev->peer);
		return;
	}
	if (is_of_another_key(w, h)) {
		effects_refuse(c, ev->peer, PS_EAUTH, 0, "that worker id belongs to another key");
		return;
	}
	if (w && has_reused_incarnation(w, &h->resume) && c->cfg.sessions.accept_rollback) {
		fence(c, w, &h->resume, ev->peer);
		return;
	}
	if (!w || w->session.incarnation < h->resume.incarnation ||
		w->ledger.last_seq < h->durable_seq || has_reused_incarnation(w, &h->resume)) {
		if (!accept_rollback(c, w, h, ev->peer))
			return;
	} else if (w->quarantine.excluded) {
		quarantine_notify(c, w, ev->peer);
		return;
	} else if (has_ended(w) && quarantine_has(&c->quarantine, h->owner, h->name)) {
		refuse_quarantined(c, ev->peer);
		return;
	} else if (h->last_seq < w->ledger.last_seq) {
		/* ignore a delayed HELLO: the worker has sent pushes since it sent this one */
		return;
	} else if (has_said_bye(w) && h->last_seq == w->ledger.last_seq) {
		/* The answer to its BYE is lost, or still under way: a HEARTBEAT that arrived after
		 * the BYE, on the other connection, got PS_ESTATE, and so the worker sent HELLO. If
		 * the session continued, the server would wait for a process that has ended. */
		answer_bye(c, w, ev->peer);
		return;
	}
	if (w->session.state != SESSION_LIVE)
		c->stats.rejoins++;
	memcpy(w->session.name, h->name, sizeof(w->session.name));
	memcpy(w->session.device, h->device, sizeof(w->session.device));
	memcpy(w->session.owner, h->owner, sizeof(w->session.owner));
	w->session.data = h->data;
	tensors_joined(c, h);
	hold_slot(c, w, ev->peer);
	w->session.leave = STAYS;
	w->ledger.replay_target = last_replay(w, h);
	backups_hold_replayed(c, w);
	if (has_ended(w))
		join(c, w);
	else if (w->session.state != SESSION_JOINING)
		go_live(c, w);
}

/* Returns the slot that a process gets with HELLO `h` on connection `peer`, or NULL if there is no
 * slot for it. */
static const struct worker *slot_of_hello(
	const struct core *c, uint32_t peer, const struct msg_hello *h)
{
	if (h->resume.run.hi | h->resume.run.lo)
		return worker_find(c, h->resume.worker);
	const struct worker *w = hello_again(c, peer);
	return w ? w : pick_slot(c, h);
}

/* The key needs no further slot if the process gets a slot in which a worker of the same key may
 * still return. A connection alone proves nothing: if the worker of a slot is away, its process can
 * send HELLO as a new worker on the same connection, and then it gets another slot. Nor does a
 * name: several slots of a key can have the same name, and the process gets the first of them, also
 * if the worker there is dead. */
int core_needs_slot(const struct core *c, uint32_t peer, const struct msg_hello *h, uint32_t *used)
{
	const struct worker *own = slot_of_hello(c, peer, h);

	*used = 0;
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		*used += !has_ended(w) && strcmp(w->session.owner, h->owner) == 0;
	}
	return !own || has_ended(own) || strcmp(own->session.owner, h->owner) != 0;
}

/* Answers a HELLO that arrives after the end of the run. */
static void hello_too_late(struct core *c, const struct event *ev)
{
	const struct msg_hello *h = &ev->msg->hello;
	struct worker *w = worker_find(c, h->resume.worker);
	int ours = w && h->resume.run.hi == c->cfg.run.hi && h->resume.run.lo == c->cfg.run.lo;

	if (ours && h->resume.incarnation < w->session.incarnation)
		fence(c, w, &h->resume, ev->peer);
	else if (ours && w->session.incarnation == h->resume.incarnation &&
		 w->ledger.last_seq < h->last_seq && worker_may_return(w))
		departure_part(c, w, ev->peer);
	else
		departure_bye(c, NULL, ev->peer, c->run.end_status);
}

void sessions_on_hello(struct core *c, struct worker *none, const struct event *ev)
{
	const struct msg_hello *h = &ev->msg->hello;
	int data_fixed = c->dataset.fixed;

	(void)none;
	c->stats.hellos++;
	if (h->role == ROLE_OBSERVER)
		welcome(c, NULL, ev->peer);
	else if (!tensors_admit(c, h, ev->peer) || !dataset_admits(c, h, ev->peer))
		return; /* a worker with another model or data set is refused after the end, too */
	else if (c->run.ending == END_OVER)
		hello_too_late(c, ev);
	else if (h->resume.run.hi | h->resume.run.lo)
		hello_resume(c, ev);
	else if (c->run.ending == END_NOT)
		hello_new(c, ev);
	else if (c->run.end_status == PS_ESHUTDOWN)
		/* in a drain: BYE at once, because a new worker has no pushes to replay */
		departure_bye(c, NULL, ev->peer, c->run.end_status);
	PS_ASSERT(c->dataset.fixed == data_fixed); /* invariant 1 of dataset.c */
}

/* ---- liveness -------------------------------------------------------------------------------- */

static void send_heartbeat(struct core *c, const struct worker *w, uint32_t peer)
{
	effects_send(c, peer, MSG_HEARTBEAT)->heartbeat =
		(struct msg_heartbeat){.stamp = worker_stamp(c, w),
			.last_seq = w->ledger.last_seq,
			.durable_seq = w->ledger.durable_seq};
}

void sessions_on_heartbeat(struct core *c, struct worker *w, const struct event *ev)
{
	w->session.heartbeat_peer = ev->peer;
	w->counts.time = ev->msg->heartbeat.time;
	send_heartbeat(c, w, ev->peer);
}

void sessions_on_bye(struct core *c, struct worker *w, const struct event *ev)
{
	if (w->ledger.replay_target == PUSH_WAITS)
		/* send no answer now: a push of the worker waits for the end of the recovery */
		return;
	if (w->ledger.last_seq <
		w->ledger.replay_target) { /* the worker must finish its replays before it leaves */
		if (!run_is_closed(c))     /* send nothing in a closed run: it answers no replay */
			effects_refuse(c, ev->peer, PS_EGAP, w->ledger.last_seq + 1,
				"pushes before this are missing");
		return;
	}
	batch_ledger_release(c, w);
	backups_release(c, w);
	w->session.state = SESSION_DEAD;
	w->lease.waiting = 0;
	effects_add_worker(c, w, WORKER_GONE);
	answer_bye(c, w, ev->peer);
}

void sessions_tick(struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];
		uint64_t silence;

		if (w->session.state == SESSION_FREE || w->session.state == SESSION_DEAD)
			continue;
		silence = c->now_ms - w->session.last_message_ms;
		if (silence >
			(worker_may_return(w) ? c->cfg.sessions.ttl_ms : c->cfg.sessions.dead_ms)) {
			departure_die(c, w, WORKER_GONE);
		} else if (silence > c->cfg.sessions.dead_ms) {
			w->session.state = SESSION_AWAY;
			batch_ledger_release(c, w);
			departure_miss(c, w);
		} else if (w->session.state == SESSION_LIVE &&
			   silence > c->cfg.sessions.suspect_ms) {
			w->session.state = SESSION_SUSPECT;
			batch_ledger_release(c, w);
			effects_add_worker(c, w, WORKER_SILENT);
		}
		/* invariant 3 */
		PS_ASSERT(silence <= c->cfg.sessions.dead_ms ||
			  (!w->lease.grant.request && !worker_is_active(w)));
	}
}

void sessions_peer_gone(struct core *c, uint32_t peer)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		struct worker *w = &c->worker[i];

		if (w->session.peer == peer)
			w->session.peer = 0;
		if (w->session.heartbeat_peer == peer)
			w->session.heartbeat_peer = 0;
	}
}

void sessions_awaited(struct core *c)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		c->worker[i].session.last_message_ms = c->now_ms;
		pace_restart(c, &c->worker[i]);
	}
}

void sessions_overdue(struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots; i++)
		c->worker[i].session.overdue = c->worker[i].session.state == SESSION_AWAY;
}

int sessions_all_back(const struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		if (w->session.state == SESSION_AWAY && !w->session.overdue)
			return 0;
		if (w->session.state == SESSION_LIVE &&
			w->ledger.last_seq < w->ledger.replay_target &&
			w->ledger.replay_target != PUSH_WAITS)
			return 0;
	}
	return 1;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

static void say_unsaved(struct core *c, uint32_t peer)
{
	effects_refuse(c, peer, PS_EAGAIN, 0,
		"the server's checkpoints cannot be written (its log and status say why); it "
		"welcomes workers again when the disk works");
}

void sessions_save_failed(struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (c->worker[i].session.state == SESSION_JOINING && c->worker[i].session.peer)
			say_unsaved(c, c->worker[i].session.peer);
}

void sessions_snapshot(struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots; i++)
		c->worker[i].ledger.snapshot_seq = c->worker[i].ledger.last_seq;
}

void sessions_durable(struct core *c, uint64_t generation)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];
		int news = w->ledger.durable_seq < w->ledger.snapshot_seq;

		if (news)
			w->ledger.durable_seq = w->ledger.snapshot_seq;
		if (w->session.join_generation <= generation)
			w->session.join_generation = 0;
		if (w->session.state == SESSION_JOINING && !w->session.join_generation) {
			go_live(c, w);
		} else if (w->session.leave == LEAVES &&
			   w->ledger.durable_seq == w->ledger.last_seq) {
			w->session.leave = w->quarantine.excluded ? STAYS : HAS_LEFT;
			if (w->quarantine.excluded)
				quarantine_notify(c, w, w->session.peer);
			else if (w->session.peer)
				departure_bye(c, w, w->session.peer, PS_OK);
		} else if (w->session.state == SESSION_LIVE && news) {
			uint32_t peer = w->session.heartbeat_peer ? w->session.heartbeat_peer
								  : w->session.peer;

			if (peer)
				send_heartbeat(c, w, peer);
		}
	}
}
