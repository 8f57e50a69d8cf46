/*
 * session.c - see session.h. Each call clears the list of effects, changes the state and adds new
 * effects.
 */
#include "worker/client/session.h"
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/mem.h"

/* maximum number of unacknowledged pushes, also if push_window is larger */
#define MAX_IN_FLIGHT 64
#define MAX_EFFECTS   (MAX_IN_FLIGHT + 16)
#define LEAVE_MS      5000 /* time for which the session waits for the answer to BYE */
/* minimum time between two HELLOs that answers of the server cause. The time is REPEAT_MS longer
 * for each acknowledged push that the WELCOME between them requests again, so that a hostile server
 * cannot have the same pushes repeated without end. An honest server requests such pushes only
 * after a crash, which ends the connection. */
#define RESYNC_MS 50
#define REPEAT_MS 1

/* A push that is not durable yet. Push `seq` is at index seq % capacity. */
struct retained_push {
	uint64_t seq; /* 0: no push has been at this index yet */
	uint64_t base_version, base_term;
	struct work work;
	uint32_t images;
	float loss;
	enum verdict verdict; /* NONE until the first ACK */
	enum reject reject;
	uint32_t superseded;
	uint64_t code; /* the code in the first ACK */
	/* the grant that contains `work`; its count is 0 if the grant is unknown */
	struct work granted;
	uint64_t grant_code;
};

/* A request that gets at most one answer. The session sends a RESULT once. It sends a PULL or a
 * LEASE again after each WELCOME until the answer comes. */
struct rpc {
	int open, sent;
	uint64_t number;
};

struct session {
	struct session_config cfg;
	enum session_phase phase;
	struct rng jitter;
	int link_up, welcomed, leaving, bye_sent;
	int end_status; /* status of the end, valid in phase END */
	/* 1: the server had no free slot for this worker; a slot may become free when a worker
	 * dies */
	int full;
	struct msg_welcome welcome;

	uint64_t last_seq;    /* newest sequence number that was assigned to a push */
	uint64_t acked_seq;   /* all pushes up to this seq are decided */
	uint64_t durable_seq; /* all pushes up to this seq are durable and released */
	uint64_t sent_seq;    /* seq of the newest push that was sent since the newest WELCOME */
	/* seq of the newest push that was acknowledged since the newest WELCOME */
	uint64_t confirmed_seq;
	struct retained_push *retained;
	size_t capacity;

	struct rpc pull, lease, result;
	enum weights pull_which;
	uint64_t pull_with; /* seq of the push whose message also carries the pull; 0: none */
	struct msg_result result_msg;
	struct msg_grant grant; /* the newest grant; its kind is 0 before the first grant */

	uint64_t now_ms; /* the newest time that a call has passed */
	/* start_ms: time of session_start; received_ms: time of the newest message of any kind */
	uint64_t start_ms, received_ms;
	/* start of the silence that silence_ms limits: the newest message that is no HEARTBEAT, the
	 * newest movement of bytes, or the oldest open request, whichever came last */
	uint64_t progress_ms;
	/* hello_ms: time of the newest HELLO; hello_wait_ms: maximum wait for its answer */
	uint64_t hello_ms, hello_wait_ms;
	/* hello_wait_ms without its random part; 0 before the first HELLO */
	uint64_t hello_step_ms;
	int resynchronised; /* 1 if an answer on this link has caused a HELLO; see RESYNC_MS */
	/* the number of acknowledged pushes that the newest WELCOME requested again */
	uint64_t repeated;
	uint64_t heartbeat_ms, leave_ms;

	struct session_effect *effect; /* array of MAX_EFFECTS effects */
	size_t n_effects;
};

static struct session_effect *emit(struct session *s, enum session_effect_kind kind)
{
	struct session_effect *e = &s->effect[s->n_effects];

	PS_ASSERT(s->n_effects < MAX_EFFECTS);
	s->n_effects++;
	e->kind = kind;
	e->seq = 0;
	e->status = 0;
	return e;
}

static struct msg *send(struct session *s, enum msg_type type)
{
	struct msg *m = &emit(s, DO_SEND)->msg;

	m->type = type;
	return m;
}

static void end_session(struct session *s, int rc)
{
	if (s->phase == PHASE_END)
		return;
	s->phase = PHASE_END;
	s->end_status = rc;
	emit(s, NOTIFY_END)->status = rc;
}

static struct retained_push *retained_push(const struct session *s, uint64_t seq)
{
	PS_ASSERT(seq > s->durable_seq && seq <= s->last_seq); /* invariant (2) */
	return &s->retained[seq % s->capacity];
}

static uint64_t push_window(const struct session *s)
{
	return s->welcome.push_window < MAX_IN_FLIGHT ? s->welcome.push_window : MAX_IN_FLIGHT;
}

/* Checks the order of the sequence numbers, and invariant (4). */
static void assert_invariants(const struct session *s)
{
	PS_ASSERT(s->durable_seq <= s->acked_seq && s->acked_seq <= s->last_seq);
	PS_ASSERT(s->durable_seq <= s->confirmed_seq && s->confirmed_seq <= s->acked_seq);
	PS_ASSERT(s->confirmed_seq <= s->sent_seq && s->sent_seq <= s->last_seq);
	PS_ASSERT(s->sent_seq - s->confirmed_seq <= push_window(s)); /* invariant (4) */
	PS_ASSERT(s->last_seq - s->durable_seq <= s->capacity);
}

/* Takes the time of a call, and forgets the effects of the call before. */
static void take_time(struct session *s, uint64_t now_ms)
{
	PS_ASSERT(now_ms >= s->now_ms); /* invariant (5) */
	s->now_ms = now_ms;
	s->n_effects = 0;
}

/* ---- HELLO, and what is sent again after it ------------------------------------------ */

static void send_hello(struct session *s, uint64_t now_ms)
{
	struct msg_hello *h = &send(s, MSG_HELLO)->hello;
	uint64_t step = 2 * s->hello_step_ms, max = 16 * s->cfg.retry_ms;

	memset(h, 0, sizeof(*h));
	h->role = s->cfg.role;
	memcpy(h->name, s->cfg.name, sizeof(h->name));
	memcpy(h->device, s->cfg.device, sizeof(h->device));
	memcpy(h->host, s->cfg.host, sizeof(h->host));
	h->pid = s->cfg.pid;
	h->data = s->cfg.data;
	memcpy(h->metrics, s->cfg.metrics, sizeof(h->metrics));
	h->tensors = s->cfg.tensors;
	h->wire = s->cfg.wire;
	if (s->welcomed && s->cfg.role == ROLE_WORKER)
		h->resume = s->welcome.stamp;
	h->last_seq = s->last_seq;
	h->durable_seq = s->durable_seq;
	s->hello_ms = now_ms;
	s->hello_step_ms = step == 0 ? s->cfg.retry_ms : step < max ? step : max;
	s->hello_wait_ms = s->hello_step_ms - s->hello_step_ms / 4 +
			   rng_below(&s->jitter, s->hello_step_ms / 2 + 1);
}

static void resynchronise(struct session *s, uint64_t now_ms)
{
	const uint64_t pause = RESYNC_MS + REPEAT_MS * s->repeated;

	if (s->phase != PHASE_READY)
		return;
	s->phase = PHASE_HELLO;
	s->hello_step_ms = 0;
	s->hello_wait_ms = pause;
	if (s->link_up && (!s->resynchronised || now_ms - s->hello_ms >= pause))
		send_hello(s, now_ms);
	s->resynchronised = 1;
}

static void send_push(struct session *s, uint64_t seq)
{
	const struct retained_push *k = retained_push(s, seq);
	struct session_effect *e = emit(s, DO_SEND_PUSH);
	struct msg_push *p = &e->msg.push;

	e->seq = seq;
	e->msg.type = MSG_PUSH;
	memset(p, 0, offsetof(struct msg_push, slices));
	p->stamp = s->welcome.stamp;
	p->seq = seq;
	p->base_version = k->base_version;
	p->work = k->work;
	p->images = k->images;
	p->loss = k->loss;
	p->base_term = k->base_term;
	p->verdict = k->verdict;
	p->reject = k->reject;
	p->superseded = k->superseded;
	p->code = k->code;
	p->grant_first = k->granted.first;
	p->grant_count = k->granted.count;
	p->grant_code = k->grant_code;
	p->slices.n = 0;
	/* invariant (3): pushes are sent in order, and none twice */
	PS_ASSERT(seq == s->sent_seq + 1);
	s->sent_seq = seq;
	if (seq == s->pull_with && s->pull.open && !s->pull.sent) {
		p->pull = s->pull.number;
		s->pull.sent = 1;
	}
}

/* Sends the pushes that the window allows, then the open requests. Pushes go first, so that the
 * server applies them before it answers the requests. */
static void pump(struct session *s)
{
	const struct stamp *stamp = &s->welcome.stamp;

	if (s->phase != PHASE_READY)
		return;
	while (s->sent_seq < s->last_seq && s->sent_seq - s->confirmed_seq < push_window(s))
		send_push(s, s->sent_seq + 1);
	if (s->sent_seq < s->last_seq)
		return;
	PS_ASSERT(s->sent_seq == s->last_seq); /* invariant (3): pushes first */
	if (s->result.open) {
		send(s, MSG_RESULT)->result = s->result_msg;
		s->effect[s->n_effects - 1].msg.result.stamp = *stamp;
		/* A RESULT has no answer. If it is lost, the server grants the same part of the
		 * evaluation again. */
		s->result.open = 0;
	}
	if (s->lease.open && !s->lease.sent) {
		send(s, MSG_LEASE)->lease =
			(struct msg_lease){.stamp = *stamp, .request = s->lease.number};
		s->lease.sent = 1;
	}
	if (s->pull.open && !s->pull.sent) {
		send(s, MSG_PULL)->pull = (struct msg_pull){
			.stamp = *stamp, .request = s->pull.number, .which = s->pull_which};
		s->pull.sent = 1;
	}
	if (s->leaving && !s->bye_sent) {
		send(s, MSG_BYE)->bye = (struct msg_bye){.stamp = *stamp};
		s->bye_sent = 1;
	}
}

static void release_durable(struct session *s, uint64_t durable)
{
	/* do not release a push before its NOTIFY_ACK, nor one that the server has lost in a crash
	 * and has not decided again */
	if (durable > s->confirmed_seq)
		durable = s->confirmed_seq;
	if (durable <= s->durable_seq)
		return;
	s->durable_seq = durable;
	emit(s, DO_RELEASE)->seq = durable;
}

static int same_incarnation(const struct stamp *a, const struct stamp *b)
{
	return a->run.hi == b->run.hi && a->run.lo == b->run.lo && a->worker == b->worker &&
	       a->incarnation == b->incarnation;
}

static void on_welcome(struct session *s, const struct msg_welcome *w, uint64_t now_ms)
{
	uint64_t decided = w->last_seq;

	if (s->phase != PHASE_HELLO)
		return; /* ignore a second WELCOME: the HELLO was sent twice */
	if (s->welcomed && s->cfg.role == ROLE_WORKER &&
		!same_incarnation(&w->stamp, &s->welcome.stamp))
		return; /* a late answer to a HELLO that was sent before the first WELCOME */
	if (w->durable_seq > decided)
		/* ignore this WELCOME: no correct server reports more pushes as durable than as
		 * decided */
		return;
	if (!s->welcomed)
		s->last_seq = s->acked_seq = s->durable_seq = decided;
	if (decided < s->durable_seq || decided > s->last_seq)
		return; /* an old WELCOME that the network delayed */
	if (s->welcomed && w->stamp.term != s->welcome.stamp.term)
		/* give the pull a new number, so that a PARAMS of the server's previous term cannot
		 * answer it */
		s->pull.number++;
	s->welcome = *w;
	s->welcomed = 1;
	s->phase = PHASE_READY;
	/* Send again the pushes whose verdict this worker has not received, and the pushes that the
	 * server lost in a crash. */
	s->sent_seq = s->confirmed_seq = decided < s->acked_seq ? decided : s->acked_seq;
	s->repeated = s->acked_seq - s->sent_seq;
	s->pull.sent = s->lease.sent = s->bye_sent = 0;
	s->pull_with = 0; /* a replay carries no pull */
	s->progress_ms = now_ms;
	release_durable(s, w->durable_seq);
	emit(s, NOTIFY_READY);
	pump(s);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void on_ack(struct session *s, const struct msg_ack *a, uint64_t now_ms)
{
	if (a->term != s->welcome.stamp.term || a->seq > s->sent_seq || a->seq <= s->durable_seq)
		return; /* ignore an ACK of an earlier term, or from before the newest WELCOME */
	if (a->seq > s->acked_seq + 1) {
		/* an earlier ACK was lost, and with it the verdict of its push */
		resynchronise(s, now_ms);
		return;
	}
	struct retained_push *k = retained_push(s, a->seq);
	k->verdict = a->verdict;
	k->reject = a->reject;
	k->superseded = a->superseded;
	k->code = a->code;
	if (a->seq > s->confirmed_seq)
		s->confirmed_seq = a->seq;
	if (a->seq == s->acked_seq + 1) {
		struct session_effect *e = emit(s, NOTIFY_ACK);

		s->acked_seq = a->seq;
		e->seq = a->seq;
		e->msg.type = MSG_ACK;
		e->msg.ack = *a;
	}
	release_durable(s, a->durable_seq);
	pump(s);
}

/* Copies only the slices in use, because struct msg has room for 64. */
static void notify_params(struct session *s, const struct msg_params *p)
{
	struct msg *m = &emit(s, NOTIFY_PARAMS)->msg;

	m->type = MSG_PARAMS;
	memcpy(&m->params, p, offsetof(struct msg_params, slices));
	m->params.slices.n = p->slices.n;
	memcpy(m->params.slices.slice, p->slices.slice, p->slices.n * sizeof(p->slices.slice[0]));
}

static void notify_grant(struct session *s, const struct msg_grant *g)
{
	struct msg *m = &emit(s, NOTIFY_GRANT)->msg;

	m->type = MSG_GRANT;
	m->grant = *g;
}

static void on_error(struct session *s, const struct msg_error *e, uint64_t now_ms)
{
	switch (e->status) {
	case PS_ETERM:
	case PS_EGAP:
	case PS_ESTATE:
		resynchronise(s, now_ms);
		break;
	case PS_EAGAIN:
		if (s->pull.open && s->pull_which == WEIGHTS_EVAL && !e->notice) {
			s->pull.open = 0;
			emit(s, NOTIFY_NO_PARAMS)->status = PS_EAGAIN;
		}
		break;
	case PS_EFULL:
		s->full = 1;
		break;
	case PS_EUSAGE:
		break; /* an ADMIN was refused: requests.c ends the request */
	default:
		end_session(s, e->status);
	}
}

void session_message(struct session *s, const struct msg *m, uint64_t now_ms)
{
	take_time(s, now_ms);
	if (s->phase == PHASE_END)
		return;
	s->received_ms = now_ms;
	if (m->type != MSG_HEARTBEAT)
		s->progress_ms = now_ms;
	switch (m->type) {
	case MSG_WELCOME:
		on_welcome(s, &m->welcome, now_ms);
		break;
	case MSG_ACK:
		on_ack(s, &m->ack, now_ms);
		break;
	case MSG_PARAMS:
		if (s->pull.open && m->params.request == s->pull.number) {
			s->pull.open = 0;
			notify_params(s, &m->params);
		}
		break;
	case MSG_GRANT:
		if (s->lease.open && m->grant.request == s->lease.number) {
			s->lease.open = 0;
			s->grant = m->grant;
			notify_grant(s, &m->grant);
		}
		break;
	case MSG_HEARTBEAT:
		if (s->welcomed && same_incarnation(&m->heartbeat.stamp, &s->welcome.stamp) &&
			m->heartbeat.stamp.term == s->welcome.stamp.term) {
			release_durable(s, m->heartbeat.durable_seq);
			pump(s);
		}
		break;
	case MSG_BYE:
		if (s->leaving || m->bye.status != PS_OK)
			end_session(s, s->leaving ? PS_OK : m->bye.status);
		break;
	case MSG_ERROR:
		on_error(s, &m->error, now_ms);
		break;
	default:
		break; /* a worker ignores messages of all other types */
	}
	assert_invariants(s);
}

/* ---- time and links -------------------------------------------------------------------------- */

void session_start(struct session *s, uint64_t now_ms)
{
	take_time(s, now_ms);
	s->start_ms = s->received_ms = s->progress_ms = now_ms;
}

void session_link_up(struct session *s, uint64_t now_ms)
{
	take_time(s, now_ms);
	if (s->phase == PHASE_END)
		return;
	s->link_up = 1;
	s->resynchronised = 0;
	s->phase = PHASE_HELLO;
	s->hello_step_ms = 0;
	send_hello(s, now_ms);
}

void session_link_lost(struct session *s, uint64_t now_ms)
{
	take_time(s, now_ms);
	s->link_up = 0;
	if (s->phase == PHASE_READY)
		s->phase = PHASE_HELLO;
}

void session_progress(struct session *s, uint64_t now_ms)
{
	take_time(s, now_ms);
	s->progress_ms = now_ms;
}

static int awaits_reply(const struct session *s)
{
	return s->confirmed_seq < s->sent_seq || s->pull.open || s->lease.open;
}

uint64_t session_waiting_ms(const struct session *s, uint64_t now_ms)
{
	PS_ASSERT(now_ms >= s->now_ms); /* invariant (5) */
	if (s->phase != PHASE_HELLO)
		return 0;
	return now_ms - (s->welcomed ? s->received_ms : s->start_ms);
}

/* Returns the time without contact after which the session gives up. The server reserves a worker's
 * slot only for session_ttl_ms, so a longer wait is useless. */
static uint64_t timeout_ms(const struct session *s)
{
	uint64_t ms = s->cfg.disconnect_timeout_ms;

	if (!s->welcomed)
		return s->cfg.connect_timeout_ms;
	return s->cfg.role == ROLE_WORKER && s->welcome.session_ttl_ms < ms
		       ? s->welcome.session_ttl_ms
		       : ms;
}

uint64_t session_remaining_ms(const struct session *s, uint64_t now_ms)
{
	uint64_t waiting = session_waiting_ms(s, now_ms);

	return waiting < timeout_ms(s) ? timeout_ms(s) - waiting : 0;
}

static void check_contact(struct session *s, uint64_t now_ms)
{
	if (s->phase == PHASE_HELLO && session_remaining_ms(s, now_ms) == 0)
		end_session(s, s->full && !s->welcomed ? PS_EFULL : PS_EUNREACHABLE);
}

void session_tick(struct session *s, int alive, uint64_t now_ms)
{
	take_time(s, now_ms);
	if (s->phase == PHASE_END)
		return;
	if (s->leaving && now_ms - s->leave_ms >= LEAVE_MS) {
		/* fail if a push may not be durable */
		end_session(s, s->durable_seq < s->last_seq ? PS_EUNREACHABLE : PS_OK);
		return;
	}
	if (s->phase == PHASE_READY) {
		if (now_ms - s->received_ms >= s->cfg.silence_ms ||
			(awaits_reply(s) && now_ms - s->progress_ms >= s->cfg.silence_ms)) {
			s->progress_ms = now_ms;
			resynchronise(s, now_ms);
		}
	} else if (s->link_up && now_ms - s->hello_ms >= s->hello_wait_ms) {
		send_hello(s, now_ms);
	}
	if (s->phase == PHASE_READY && s->cfg.role == ROLE_WORKER && alive &&
		now_ms - s->heartbeat_ms >= s->welcome.heartbeat_ms / 2) {
		struct session_effect *e = emit(s, DO_SEND_HEARTBEAT);

		e->msg.type = MSG_HEARTBEAT;
		e->msg.heartbeat = (struct msg_heartbeat){.stamp = s->welcome.stamp,
			.last_seq = s->last_seq,
			.durable_seq = s->durable_seq};
		s->heartbeat_ms = now_ms;
	}
	check_contact(s, now_ms);
	assert_invariants(s);
}

/* ---- requests of the program ----------------------------------------------------------------- */

static int check_ready(const struct session *s)
{
	if (s->phase == PHASE_END)
		return s->end_status ? s->end_status : PS_ESTATE;
	return s->phase == PHASE_READY && !s->leaving ? PS_OK : PS_EAGAIN;
}

/* Begins to measure the silence of the server, unless an older request already waits for an
 * answer. */
static void begin_wait(struct session *s, uint64_t now_ms)
{
	if (!awaits_reply(s))
		s->progress_ms = now_ms;
}

static uint64_t replay_window(const struct session *s)
{
	return s->welcome.replay_window < s->capacity ? s->welcome.replay_window : s->capacity;
}

int session_can_push(const struct session *s)
{
	return s->phase == PHASE_READY && !s->leaving &&
	       s->last_seq - s->durable_seq < replay_window(s);
}

static void open_rpc(struct rpc *r)
{
	r->open = 1;
	r->sent = 0;
	r->number++;
}

/* Returns PS_OK if a push is possible now. */
static int check_push(struct session *s, uint64_t now_ms)
{
	int rc = check_ready(s);

	take_time(s, now_ms);
	return rc == PS_OK && !session_can_push(s) ? PS_EAGAIN : rc;
}

/* Records the grant that contains the work of push `k`. If the push is sent again after a crash,
 * the server needs this grant. */
static void note_grant(const struct session *s, struct retained_push *k)
{
	const struct work *own = &s->grant.work, *work = &k->work;

	if (s->grant.kind != GRANT_TRAIN || own->epoch != work->epoch || work->first < own->first ||
		work->first + work->count > own->first + own->count)
		return;
	k->granted = *own;
	k->grant_code = s->grant.code;
}

static uint64_t add_push(struct session *s, const struct msg_push *meta, uint64_t now_ms)
{
	uint64_t seq = ++s->last_seq;
	struct retained_push *k = retained_push(s, seq);

	PS_ASSERT(seq - s->durable_seq <= replay_window(s)); /* invariant (4) */
	PS_ASSERT(k->seq < seq); /* invariant (1): the earlier push at this index has a lower seq */
	begin_wait(s, now_ms);
	*k = (struct retained_push){.seq = seq,
		.base_version = meta->base_version,
		.base_term = meta->base_term,
		.work = meta->work,
		.images = meta->images,
		.loss = meta->loss};
	note_grant(s, k);
	return seq;
}

int session_push(struct session *s, const struct msg_push *meta, uint64_t *seq, uint64_t now_ms)
{
	int rc = check_push(s, now_ms);

	if (rc != PS_OK)
		return rc;
	*seq = add_push(s, meta, now_ms);
	pump(s);
	return PS_OK;
}

int session_push_pull(
	struct session *s, const struct msg_push *meta, uint64_t *seq, uint64_t now_ms)
{
	int rc = check_push(s, now_ms);

	if (rc == PS_OK && s->pull.open)
		rc = PS_EAGAIN;
	if (rc != PS_OK)
		return rc;
	*seq = add_push(s, meta, now_ms);
	open_rpc(&s->pull);
	s->pull_which = WEIGHTS_CURRENT;
	s->pull_with = *seq;
	pump(s);
	return PS_OK;
}

static int start_rpc(struct session *s, struct rpc *r, uint64_t now_ms)
{
	int rc = check_ready(s);

	if (rc == PS_OK && r->open)
		rc = PS_EAGAIN;
	if (rc != PS_OK)
		return rc;
	begin_wait(s, now_ms);
	open_rpc(r);
	pump(s);
	return PS_OK;
}

int session_pull(struct session *s, enum weights which, uint64_t now_ms)
{
	take_time(s, now_ms);
	if (!s->pull.open)
		s->pull_which = which;
	return start_rpc(s, &s->pull, now_ms);
}

int session_lease(struct session *s, uint64_t now_ms)
{
	take_time(s, now_ms);
	return start_rpc(s, &s->lease, now_ms);
}

int session_result(struct session *s, const struct msg_result *r, uint64_t now_ms)
{
	take_time(s, now_ms);
	if (!s->result.open) {
		s->result_msg = *r;
		if (s->grant.kind == GRANT_EVAL && s->grant.eval_id == r->eval_id &&
			s->grant.eval_first == r->eval_first)
			s->result_msg.code = s->grant.code;
	}
	return start_rpc(s, &s->result, now_ms);
}

void session_bye(struct session *s, uint64_t now_ms)
{
	take_time(s, now_ms);
	if (s->phase == PHASE_END || s->leaving)
		return;
	if (!s->welcomed || s->cfg.role != ROLE_WORKER) {
		end_session(s, PS_OK);
		return;
	}
	s->leaving = 1;
	s->leave_ms = now_ms;
	s->pull.open = s->lease.open = 0;
	pump(s);
}

/* ---- accessors ------------------------------------------------------------------------------- */

const struct session_effect *session_effect(const struct session *s, size_t i)
{
	return i < s->n_effects ? &s->effect[i] : NULL;
}

enum session_phase session_phase(const struct session *s)
{
	return s->phase;
}

const struct msg_welcome *session_welcome(const struct session *s)
{
	return &s->welcome;
}

uint64_t session_last_seq(const struct session *s)
{
	return s->last_seq;
}

uint64_t session_acked_seq(const struct session *s)
{
	return s->acked_seq;
}

uint64_t session_confirmed_seq(const struct session *s)
{
	return s->confirmed_seq;
}

uint64_t session_durable_seq(const struct session *s)
{
	return s->durable_seq;
}

/* ---- life cycle ------------------------------------------------------------------------------ */

int session_new(struct session **out, const struct session_config *cfg, size_t replay_max)
{
	struct session *s = NULL;

	*out = NULL;
	if (replay_max >= 1 && replay_max <= WIRE_MAX_WINDOW)
		s = mem_try(1, sizeof(*s));
	if (!s)
		return PS_ENOMEM;
	s->retained = mem_try(replay_max, sizeof(*s->retained));
	s->effect = mem_try(MAX_EFFECTS, sizeof(*s->effect));
	if (!s->retained || !s->effect) {
		session_free(&s);
		return PS_ENOMEM;
	}
	s->cfg = *cfg;
	s->capacity = replay_max;
	s->jitter = rng_seed(cfg->seed, RNG_BACKOFF, 0);
	*out = s;
	return PS_OK;
}

void session_free(struct session **s)
{
	if (!*s)
		return;
	free((*s)->retained);
	free((*s)->effect);
	free(*s);
	*s = NULL;
}
