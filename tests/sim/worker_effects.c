/* worker_effects.c - carries out the effects of a worker's session, and ends a worker's process
 * when it is killed or when its session ends. */
#include <string.h>
#include "proto/bf16.h"
#include "tests/sim/sim.h"

uint32_t worker_of_link(const struct sim *s, uint32_t link)
{
	for (uint32_t i = 0; i < SIM_WORKERS + SIM_TWINS; i++) {
		const struct sim_worker *w = &s->worker[i];

		if (((w->bulk == link) | (w->heartbeat == link)) && w->session)
			return i + 1;
	}
	return 0;
}

void worker_compute(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);

	w->computing = 1;
	net_at(&s->net, s->net.now_ms + 1 + net_below(&s->net, s->compute_ms),
		&(struct item){.what = HAPPEN_COMPUTED, .node = node, .process = w->process});
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Called when a process has died and can no longer replay its pushes after `from`. At the end of
 * the run, each of these pushes may be applied or lost. */
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

/* Starts a new process of this node after `in_ms` milliseconds. */
static void start_worker_again(struct sim *s, uint32_t node, uint64_t in_ms)
{
	struct sim_worker *w = worker_at(s, node);

	session_free(&w->session);
	w->process = 0;
	w->done = 0;
	if (node <= SIM_WORKERS)
		net_at(&s->net, s->net.now_ms + in_ms,
			&(struct item){.what = HAPPEN_START, .node = node});
}

/* Returns 1 if a hostile worker has the slot of this honest worker, although the server has not
 * lost the honest one. The server loses a worker if all messages that the worker sent during
 * dead_ms were lost. The slot of the lost worker is then free for any worker. An earlier HELLO of
 * an honest worker, which the network has delayed, can also take its slot. */
static int is_displaced(const struct sim *s, const struct sim_worker *w)
{
	const struct stamp *stamp = &session_welcome(w->session)->stamp;
	struct worker_view v;

	if (!s->server.core || !stamp->worker)
		return 1;
	core_worker(s->server.core, stamp->worker - 1, &v);
	return hostile_is((uint32_t)v.owner[0] - 'a') &&
	       !(s->silenced[stamp->worker - 1] >> (stamp->incarnation % 64) & 1);
}

/* Returns 1 if the name of this process was in quarantine. A replaced process is at one of the last
 * nodes, and has the name of one of the first SIM_WORKERS nodes. */
static int was_quarantined(const struct sim *s, const struct sim_worker *w)
{
	int was = w->was_quarantined;

	for (uint32_t i = 0; i < SIM_WORKERS && w >= &s->worker[SIM_WORKERS]; i++)
		was |= s->worker[i].was_quarantined;
	return was;
}

/* Returns 1 if `status` is a status with which the session may end now. */
static int is_expected(const struct sim *s, const struct sim_worker *w, int status)
{
	switch (status) {
	case PS_OK:
		return w->done || w->back_ms;
	case PS_EFENCED:
		/* a hostile worker must not fence an honest one that the server has not lost */
		return !s->n_hostile || !is_displaced(s, w) || s->twins || s->crashes ||
		       s->worker_crashes || s->drains || s->cuts || s->leaps || s->suspectable ||
		       s->foreign || w->done || w->back_ms;
	case PS_EDONE:
	case PS_ESHUTDOWN:
	/* no slot is free, because the server reserves slots for workers that may return */
	case PS_EFULL:
		return 1;
	case PS_EUNREACHABLE:
		return s->finished || s->refused || w->back_ms;
	/* right only if the server has lost the worker id and given it to another key */
	case PS_EAUTH:
	case PS_EROLLEDBACK:
		return s->disk.broken;
	/* right for a liar, which is outvoted in each repetition of an evaluation */
	case PS_EQUARANTINE:
		return w->broken || was_quarantined(s, w) ||
		       (s->liar && w == &s->worker[s->liar - 1]);
	case PS_EWRONGDATA:
		return w->foreign;
	case PS_EDIVERGED:
		return s->diverged > 0;
	/* right only if no checkpoint was left, so that the server has begun a new run */
	case PS_EWRONGRUN:
		return s->disk.lied;
	default:
		return 0;
	}
}

/* Returns the newest push that must have been applied when a session ends with `status`. Usually
 * this is the newest acknowledged push: before the server exits, or gives a worker's slot to
 * another worker, it waits until all acknowledged pushes are on the disk. In two cases only the
 * durable pushes must have been applied:
 * - The session has given up, because it could not reach the server.
 * - The server crashed, and after the crash another process took the name or the run ended as
 *   diverged. In both cases, the worker could not replay the pushes that the crash lost. */
static uint64_t safe_seq(const struct sim *s, const struct sim_worker *w, int status)
{
	int final = status == PS_EFENCED || status == PS_EDIVERGED;
	int lost = final && w->born_term != s->cfg.term;

	return status == PS_EUNREACHABLE || lost ? session_durable_seq(w->session)
						 : session_acked_seq(w->session);
}

static void worker_ended(struct sim *s, uint32_t node, int status)
{
	struct sim_worker *w = worker_at(s, node);

	sim_trace(s, "worker %u ends: %s", node, err_name(status));
	s->excluded += status == PS_EQUARANTINE;
	if (!is_expected(s, w, status))
		sim_violation(s, "worker %u ended with %s", node, err_name(status));
	if (status == PS_EQUARANTINE && net_chance(&s->net, 300))
		w->to_release = w->quarantined;
	if (s->finished || status == PS_EDONE)
		return;
	if (status == PS_OK && !w->back_ms)
		return;
	orphan(s, w, safe_seq(s, w, status));
	start_worker_again(s, node, w->back_ms ? w->back_ms : 20 + net_below(&s->net, 1500));
}

void worker_crash(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);

	w->kill_in = DISK_NEVER;
	if (!w->session || w->done || session_phase(w->session) == PHASE_END)
		return;
	sim_trace(s, "worker %u dies", node);
	orphan(s, w, session_durable_seq(w->session));
	sim_lane_killed(s, w);
	s->worker_crashes++;
	start_worker_again(s, node, 20 + net_below(&s->net, 2500));
}

/* ---- effects --------------------------------------------------------------------------------- */

static int sends_no_codes(const struct sim *s, uint32_t node)
{
	return s->limits.older && node % 2 == 0;
}

static void send_from_worker(struct sim *s, uint32_t node, const struct msg *m, uint32_t link)
{
	struct sim_worker *w = worker_at(s, node);

	net_send(&s->net, node, 1,
		&(struct item){.node = SIM_SERVER,
			.from = node,
			.from_process = w->process,
			.process = s->server.process,
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

/* Encodes as bfloat16 each slice whose values bfloat16 can represent exactly. The write-ahead log
 * then has slices of both encodings, and its replay must give the same weights. */
static void use_bf16(struct slices *s)
{
	for (uint32_t i = 0; i < s->n; i++) {
		uint64_t exact = 0;

		while (exact < s->slice[i].count &&
			bf16_float(bf16_of(s->slice[i].data[exact])) == s->slice[i].data[exact])
			exact++;
		if (exact == s->slice[i].count)
			s->slice[i].encoding = ENCODING_BF16;
	}
}

static void send_worker_push(struct sim *s, uint32_t node, const struct session_effect *e)
{
	struct sim_worker *w = worker_at(s, node);
	const struct gradient *g = &w->gradient[e->seq % SIM_WINDOW];
	struct msg m;

	if (e->seq > session_acked_seq(w->session) + s->cfg.sessions.push_window)
		sim_violation(s, "worker %u sends push %llu of a window of %u from %llu", node,
			(unsigned long long)e->seq, s->cfg.sessions.push_window,
			(unsigned long long)session_acked_seq(w->session));
	m.type = MSG_PUSH;
	memcpy(&m, &e->msg, offsetof(struct msg, push) + offsetof(struct msg_push, slices));
	fill_slices(s, &m.push.slices, g);
	sim_lane_push(s, w, &m.push);
	if (!m.push.lane_slot && node % 2)
		use_bf16(&m.push.slices);
	if (sends_no_codes(s, node))
		m.push.grant_code = m.push.code = m.push.grant_first = m.push.grant_count = 0;
	send_from_worker(s, node, &m, w->bulk);
}

/* Sends a message other than PUSH. */
static void send_other(struct sim *s, uint32_t node, const struct msg *m, uint32_t link)
{
	struct msg result;

	if (m->type != MSG_RESULT || !sends_no_codes(s, node)) {
		send_from_worker(s, node, m, link);
		return;
	}
	result.type = MSG_RESULT;
	result.result = m->result;
	result.result.code = 0;
	send_from_worker(s, node, &result, link);
}

static void acked(struct sim *s, uint32_t node, const struct msg_ack *a)
{
	struct sim_worker *w = worker_at(s, node);
	uint32_t c = w->gradient[a->seq % SIM_WINDOW].push;

	w->verdict_seq = a->seq;
	if (c != SIM_NO_PUSH && a->verdict == VERDICT_REJECTED)
		/* without a code, a server that has lost the rejection can accept the replay */
		s->expected[c] = sends_no_codes(s, node) ? EXPECT_AT_MOST_ONCE : EXPECT_NEVER;
}

void worker_lost_push(struct sim *s, uint32_t link, uint64_t seq)
{
	uint32_t node = worker_of_link(s, link);
	uint32_t c = node ? worker_at(s, node)->gradient[seq % SIM_WINDOW].push : SIM_NO_PUSH;

	if (c != SIM_NO_PUSH)
		s->expected[c] = EXPECT_AT_MOST_ONCE;
}

/* Checks that `part` is beta / N for a number N of members that is possible. */
static void check_part(struct sim *s, double part)
{
	double expected = 0;

	for (uint32_t n = 1; n <= SIM_SLOTS && s->mode == SIM_EASGD; n++)
		if (part == s->cfg.easgd.beta / n)
			expected = part;
	if (part != expected)
		sim_violation(s, "the elastic part is %g", part);
}

static void take_params(struct sim *s, uint32_t node, const struct msg_params *p)
{
	struct sim_worker *w = worker_at(s, node);

	w->version = p->version;
	w->version_term = session_welcome(w->session)->stamp.term;
	w->fetched_for = s->cfg.push.n_fetch;
	w->part = p->elastic;
	check_part(s, p->elastic);
	if (w->grant.kind == GRANT_TRAIN && w->grant.exact && w->version != w->grant.version)
		/* the weights are newer than this grant requires: drop the grant and request
		 * another */
		w->grant.work.count = 0;
	else if (s->training && !w->computing)
		worker_compute(s, node);
}

static void carry_out_worker_effect(struct sim *s, uint32_t node, const struct session_effect *e)
{
	struct sim_worker *w = worker_at(s, node);

	switch (e->kind) {
	case DO_SEND:
		send_other(s, node, &e->msg, w->bulk);
		break;
	case DO_SEND_PUSH:
		send_worker_push(s, node, e);
		break;
	case DO_SEND_HEARTBEAT:
		send_from_worker(s, node, &e->msg, w->heartbeat);
		break;
	case NOTIFY_ACK:
		acked(s, node, &e->msg.ack);
		break;
	case NOTIFY_PARAMS:
		take_params(s, node, &e->msg.params);
		break;
	case NOTIFY_NO_PARAMS:
		w->grant.eval_count = 0;
		break;
	case NOTIFY_GRANT:
		w->grant = e->msg.grant;
		w->fetched_for = 0; /* each lease begins with a pull */
		break;
	case DO_RELEASE:
		sim_lane_release(w, e->seq);
		break;
	case NOTIFY_END:
		break;
	case NOTIFY_READY:
		sim_lane_welcomed(s, w);
		if (!w->born_term)
			w->born_term = session_welcome(w->session)->stamp.term;
		/* the pushes up to this one are from earlier processes of this slot */
		if (!w->verdict_seq)
			w->verdict_seq = session_acked_seq(w->session);
		break;
	}
}

static int is_worker_killed(struct sim_worker *w)
{
	if (w->kill_in == DISK_NEVER || w->kill_in-- > 0)
		return 0;
	return !w->done && session_phase(w->session) != PHASE_END;
}

void worker_run_effects(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);
	const struct session_effect *e;
	int end = PS_EAGAIN;

	for (size_t i = 0; (e = session_effect(w->session, i)); i++) {
		if (e->kind == NOTIFY_END)
			end = e->status;
		if (is_worker_killed(w)) {
			worker_crash(s, node);
			return;
		}
		carry_out_worker_effect(s, node, e);
	}
	if (end != PS_EAGAIN)
		worker_ended(s, node, end);
}
