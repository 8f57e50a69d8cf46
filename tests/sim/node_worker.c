/* node_worker.c - the workers of the simulator: real sessions in simulated processes that die,
 * stop, leave and return. */
#include <string.h>
#include "tests/sim/sim.h"

#define PATIENCE_MS 30000

static struct sim_worker *at(struct sim *s, uint32_t node)
{
	return &s->worker[node - 1];
}

uint32_t worker_of_link(const struct sim *s, uint32_t link)
{
	for (uint32_t i = 0; i < SIM_WORKERS + SIM_TWINS; i++)
		if (s->worker[i].session &&
			(s->worker[i].bulk == link || s->worker[i].beat == link))
			return i + 1;
	return 0;
}

static struct data_id data_of(const struct sim *s, const struct sim_worker *w)
{
	struct data_id d = {
		.n_train = s->n_train, .n_test = 7, .rows = 1, .cols = 1, .classes = 2, .xxh3 = 1};

	if (w->foreign)
		d = (struct data_id){
			.n_train = 3, .n_test = 1, .rows = 2, .cols = 2, .classes = 2, .xxh3 = 2};
	return s->training ? d : (struct data_id){0};
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* The process that could replay the pushes after `from` has died. So these pushes may or may not
 * have been applied. */
static void orphan(struct sim *s, struct sim_worker *w, uint64_t from)
{
	if (from > w->verdict_seq)
		from = w->verdict_seq; /* the worker was killed before it received the verdict */
	for (uint64_t seq = from + 1; seq <= session_last_seq(w->session); seq++) {
		uint32_t c = w->gradient[seq % SIM_WINDOW].push;

		if (c != SIM_NO_PUSH && s->expected[c] == EXPECT_ONCE)
			s->expected[c] = EXPECT_AT_MOST_ONCE;
	}
}

/* Start a new process of this node after `in_ms`. */
static void again(struct sim *s, uint32_t node, uint64_t in_ms)
{
	struct sim_worker *w = at(s, node);

	session_free(&w->session);
	w->life = 0;
	w->done = 0;
	if (node <= SIM_WORKERS)
		net_at(&s->net, s->net.now_ms + in_ms,
			(struct item){.what = HAPPEN_START, .node = node});
}

/* 1: a session may end with this status now. */
static int is_expected(const struct sim *s, const struct sim_worker *w, int status)
{
	switch (status) {
	case PS_OK:
		return w->done || w->back_ms;
	case PS_EDONE:
	case PS_ESHUTDOWN:
	case PS_EFENCED:
		return 1;
	case PS_EFULL: /* the server keeps slots for workers that may return */
		return 1;
	case PS_EUNREACHABLE:
		return s->finished || s->refused || w->back_ms;
	case PS_EROLLEDBACK:
		return s->disk.broken;
	case PS_EQUARANTINE:
		return w->broken;
	case PS_EWRONGDATA:
		return w->foreign;
	case PS_EDIVERGED:
		return s->diverged > 0;
	case PS_EWRONGRUN: /* no checkpoint was left, so the server has begun a new run */
		return s->disk.lied;
	default:
		return 0;
	}
}

/* The newest push that must have been applied when a session ends with `status`. The server
 * frees a slot, and exits, only after all acknowledged pushes are on the disk. But the worker
 * cannot replay what a crash has lost after that if another process has taken its name, or if
 * the run has ended as diverged. */
static uint64_t safe_seq(const struct sim *s, const struct sim_worker *w, int status)
{
	int final = status == PS_EFENCED || status == PS_EDIVERGED;
	int lost = final && w->born_term != s->cfg.term;

	return status == PS_EUNREACHABLE || lost ? session_durable_seq(w->session)
						 : session_acked_seq(w->session);
}

static void ended(struct sim *s, uint32_t node, int status)
{
	struct sim_worker *w = at(s, node);

	sim_trace(s, "worker %u ends: %s", node, err_name(status));
	s->excluded += status == PS_EQUARANTINE;
	if (!is_expected(s, w, status))
		sim_violation(s, "worker %u ended with %s", node, err_name(status));
	if (s->finished || status == PS_EDONE)
		return;
	if (status == PS_OK && !w->back_ms)
		return;
	orphan(s, w, safe_seq(s, w, status));
	again(s, node, w->back_ms ? w->back_ms : 20 + net_below(&s->net, 1500));
}

void worker_crash(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);

	w->kill_in = DISK_NEVER;
	if (!w->session || w->done || session_phase(w->session) == PHASE_END)
		return;
	sim_trace(s, "worker %u dies", node);
	orphan(s, w, session_durable_seq(w->session));
	s->worker_crashes++;
	again(s, node, 20 + net_below(&s->net, 2500));
}

void worker_leave(struct sim *s, uint32_t node, uint32_t back_ms)
{
	struct sim_worker *w = at(s, node);

	if (!w->session || w->done || session_phase(w->session) == PHASE_END)
		return;
	sim_trace(s, "worker %u leaves", node);
	w->back_ms = back_ms;
	session_bye(w->session, sim_clock(s, node));
	worker_run_effects(s, node);
}

uint32_t worker_twin(struct sim *s, uint32_t node, uint32_t in_ms)
{
	struct sim_worker *w = at(s, node);
	uint32_t twin = SIM_WORKERS + 1;

	while (twin <= SIM_WORKERS + SIM_TWINS && at(s, twin)->session)
		twin++;
	if (!w->session || !w->named || w->done || session_phase(w->session) == PHASE_END ||
		twin > SIM_WORKERS + SIM_TWINS)
		return 0;
	sim_trace(s, "worker %u goes on as %u, another one takes its name", node, twin);
	*at(s, twin) = *w;
	at(s, twin)->to_push = w->to_push / 2;
	w->to_push -= w->to_push / 2;
	w->session = NULL;
	w->life = 0;
	s->awake[twin] = s->awake[node];
	s->ahead_ms[twin] = s->ahead_ms[node];
	memcpy(s->net.lane[twin], s->net.lane[node], sizeof(s->net.lane[node]));
	s->twins++;
	net_at(&s->net, s->net.now_ms + in_ms, (struct item){.what = HAPPEN_START, .node = node});
	return twin;
}

/* ---- effects --------------------------------------------------------------------------------- */

static void say(struct sim *s, uint32_t node, const struct msg *m, uint32_t link)
{
	struct sim_worker *w = at(s, node);

	net_send(&s->net, node, 1,
		(struct item){.node = SIM_SERVER,
			.from = node,
			.from_life = w->life,
			.life = s->server.life,
			.link = link},
		m);
}

static void add_slice(struct slices *to, uint32_t offset, uint32_t count, const float *data)
{
	to->slice[to->n++] = (struct slice){
		.offset = offset, .count = count, .encoding = ENCODING_F32, .data = data};
}

static void fill_slices(const struct sim *s, struct slices *to, const struct gradient *g)
{
	static const float one = 1;

	to->n = 0;
	if (sim_has_elastic_ledger(s))
		add_slice(to, 0, SIM_ELASTIC, g->elastic);
	add_slice(to, g->first, g->count, g->value);
	if (sim_has_elastic_ledger(s) && g->push != SIM_NO_PUSH)
		add_slice(to, sim_first_push(s) + g->push, 1, &one);
}

static void send_push(struct sim *s, uint32_t node, const struct session_effect *e)
{
	struct sim_worker *w = at(s, node);
	const struct gradient *g = &w->gradient[e->seq % SIM_WINDOW];
	struct msg m;

	if (e->seq > session_acked_seq(w->session) + s->cfg.sessions.push_window)
		sim_violation(s, "worker %u sends push %llu of a window of %u from %llu", node,
			(unsigned long long)e->seq, s->cfg.sessions.push_window,
			(unsigned long long)session_acked_seq(w->session));
	m.type = MSG_PUSH;
	memcpy(&m, &e->msg, offsetof(struct msg, push) + offsetof(struct msg_push, slices));
	fill_slices(s, &m.push.slices, g);
	say(s, node, &m, w->bulk);
}

static void acked(struct sim *s, struct sim_worker *w, const struct msg_ack *a)
{
	uint32_t c = w->gradient[a->seq % SIM_WINDOW].push;

	w->verdict_seq = a->seq;
	if (c != SIM_NO_PUSH && a->verdict == VERDICT_REJECTED)
		s->expected[c] = EXPECT_NEVER;
}

static void carry_out(struct sim *s, uint32_t node, const struct session_effect *e)
{
	struct sim_worker *w = at(s, node);

	switch (e->kind) {
	case DO_SEND:
		say(s, node, &e->msg, w->bulk);
		break;
	case DO_SEND_PUSH:
		send_push(s, node, e);
		break;
	case DO_SEND_BEAT:
		say(s, node, &e->msg, w->beat);
		break;
	case NOTIFY_ACK:
		acked(s, w, &e->msg.ack);
		break;
	case NOTIFY_PARAMS:
		program_params(s, node, &e->msg.params);
		break;
	case NOTIFY_NO_PARAMS:
		w->grant.eval_count = 0;
		break;
	case NOTIFY_GRANT:
		w->grant = e->msg.grant;
		w->fetched_for = 0; /* each lease begins with a pull */
		break;
	case NOTIFY_END:
	case DO_RELEASE:
		break;
	case NOTIFY_READY:
		if (!w->born_term)
			w->born_term = session_welcome(w->session)->stamp.term;
		if (!w->verdict_seq) /* earlier processes of this slot have made these pushes */
			w->verdict_seq = session_acked_seq(w->session);
		break;
	}
}

static int is_killed(struct sim_worker *w)
{
	if (w->kill_in == DISK_NEVER || w->kill_in-- > 0)
		return 0;
	return !w->done && session_phase(w->session) != PHASE_END;
}

void worker_run_effects(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);
	const struct session_effect *e;
	int end = PS_EAGAIN;

	for (size_t i = 0; (e = session_effect(w->session, i)); i++) {
		if (e->kind == NOTIFY_END)
			end = e->status;
		if (is_killed(w)) {
			worker_crash(s, node);
			return;
		}
		carry_out(s, node, e);
	}
	if (end != PS_EAGAIN)
		ended(s, node, end);
}

/* ---- events ---------------------------------------------------------------------------------- */

void worker_message(struct sim *s, uint32_t node, const struct msg *m)
{
	/* as worker/client/net.c: the ACK first */
	if (m->type == MSG_PARAMS && m->params.ack.seq) {
		struct msg ack;

		ack.type = MSG_ACK;
		ack.ack = m->params.ack;
		session_message(at(s, node)->session, &ack, sim_clock(s, node));
		worker_run_effects(s, node);
		/* the worker was killed while it carried out the effects */
		if (!at(s, node)->session)
			return;
	}
	session_message(at(s, node)->session, m, sim_clock(s, node));
	worker_run_effects(s, node);
	program_step(s, node);
}

void worker_tick(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);

	net_at(&s->net, s->net.now_ms + 100,
		(struct item){.what = HAPPEN_TICK, .node = node, .life = w->life});
	if (w->foreign && s->net.now_ms >= s->foreign_ms) { /* an operator corrects its --data */
		worker_crash(s, node);
		return;
	}
	session_tick(w->session, 1, sim_clock(s, node));
	worker_run_effects(s, node);
	program_step(s, node);
}

static void link_up(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);

	w->bulk = (uint32_t)++s->links;
	w->beat = (uint32_t)++s->links;
	session_link_up(w->session, sim_clock(s, node));
	worker_run_effects(s, node);
}

void worker_relink(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);

	if (session_phase(w->session) == PHASE_END)
		return;
	session_link_lost(w->session, sim_clock(s, node));
	worker_run_effects(s, node);
	if (w->session)
		link_up(s, node);
}

void worker_start(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);
	struct session_config cfg = {.role = ROLE_WORKER,
		.seed = rng_next(&s->net.rng),
		.connect_timeout_ms = PATIENCE_MS,
		.disconnect_timeout_ms = PATIENCE_MS,
		.retry_ms = 150,
		.silence_ms = 500};

	if (w->session || s->finished || s->refused)
		return;
	w->foreign = node == s->foreign && s->net.now_ms < s->foreign_ms;
	cfg.data = data_of(s, w);
	if (w->named)
		cfg.name[0] = (char)('a' + node);
	w->life = ++s->lives;
	s->awake[node] = (struct awake){0};
	w->computing = w->done = w->broken = 0;
	w->stopped_until_ms = w->hung_until_ms = 0;
	w->kill_in = DISK_NEVER;
	w->back_ms = 0;
	w->verdict_seq = w->born_term = 0;
	w->version = 0;
	w->fetched_for = 0;
	w->started = 0;
	memset(&w->grant, 0, sizeof(w->grant));
	if (session_new(&w->session, &cfg, s->cfg.sessions.replay_window) != 0) {
		sim_violation(s, "out of memory");
		return;
	}
	sim_trace(s, "worker %u starts life=%llu", node, (unsigned long long)w->life);
	session_start(w->session, sim_clock(s, node));
	net_at(&s->net, s->net.now_ms + 100,
		(struct item){.what = HAPPEN_TICK, .node = node, .life = w->life});
	link_up(s, node);
}
