/* node_worker.c - the workers of the simulator: real sessions under a program that pushes ledger
 * gradients. */
#include <string.h>
#include "tests/sim/sim.h"

static struct sim_worker *at(struct sim *s, uint32_t node)
{
	return &s->worker[node - 1];
}

uint32_t worker_of_link(const struct sim *s, uint32_t link)
{
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (s->worker[i].session &&
			(s->worker[i].bulk == link || s->worker[i].beat == link))
			return i + 1;
	return 0;
}

static struct data_id data_of(const struct sim *s)
{
	struct data_id d = {
		.n_train = s->n_train, .n_test = 7, .rows = 1, .cols = 1, .classes = 2, .xxh3 = 1};

	return s->training ? d : (struct data_id){0};
}

/* ---- the program: one step when it is not computing and nothing is asked for --------------------
 */

static void run_effects(struct sim *s, uint32_t node);

static void compute(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);

	w->computing = 1;
	net_at(&s->net, s->net.now_ms + 1 + net_below(&s->net, s->compute_ms),
		(struct item){.what = HAPPEN_COMPUTED, .node = node, .life = w->life});
}

static void ledger_program(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);

	if (w->to_push && s->n_coordinates < SIM_COORDINATES) {
		if (session_can_push(w->session) && !w->computing)
			compute(s, node);
	} else if (session_durable_seq(w->session) == session_last_seq(w->session) && !w->done) {
		w->done = 1;
		session_bye(w->session, s->net.now_ms);
		run_effects(s, node);
	}
}

static void training_program(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);
	int rc;

	if (w->computing || session_phase(w->session) != PHASE_READY)
		return;
	if (w->grant.kind == GRANT_TRAIN && w->grant.work.count)
		rc = session_pull(w->session, WEIGHTS_CURRENT, s->net.now_ms);
	else if (w->grant.kind == GRANT_EVAL && w->grant.eval_count)
		rc = session_pull(w->session, WEIGHTS_EVAL, s->net.now_ms);
	else
		rc = session_lease(w->session, s->net.now_ms);
	if (rc == 0)
		run_effects(s, node);
}

static void program(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);

	if (!w->session || w->paused || session_phase(w->session) == PHASE_END)
		return;
	if (s->training)
		training_program(s, node);
	else
		ledger_program(s, node);
}

static int push(struct sim *s, uint32_t node, const struct msg_push *p, const struct gradient *g)
{
	struct sim_worker *w = at(s, node);
	uint64_t seq = 0;
	int rc = session_push(w->session, p, &seq, s->net.now_ms);

	if (rc != 0)
		return rc;
	w->gradient[seq % SIM_WINDOW] = *g;
	sim_trace(s, "worker %u push seq=%llu coordinates=%u+%u at %llu", node,
		(unsigned long long)seq, g->first, g->count, (unsigned long long)p->base_version);
	run_effects(s, node);
	return 0;
}

static void push_ledger(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);
	struct msg_push p = {.base_version = w->version, .base_epoch = w->version_epoch};
	struct gradient g = {.first = s->n_coordinates, .count = 1, .value = {1}};

	if (s->n_coordinates == SIM_COORDINATES || push(s, node, &p, &g) != 0)
		return;
	s->fate[s->n_coordinates++] = FATE_MUST;
	w->to_push--;
	if (net_chance(&s->net, 300) &&
		session_pull(w->session, WEIGHTS_CURRENT, s->net.now_ms) == 0)
		run_effects(s, node);
}

/* L-BFGS: the mean gradient of the portions at the weights that were pulled. */
static void compute_portions(
	struct sim *s, struct sim_worker *w, struct msg_push *p, struct gradient *g)
{
	const struct sim_version *v = sim_version(s, w->version_epoch, w->version);
	double loss = 0;

	if (v->version != w->version || v->epoch != w->version_epoch)
		return; /* long ago: it will be refused */
	for (uint32_t i = 0; i < g->count; i++) {
		uint32_t n = sim_images(s, g->first + i, 1);
		g->value[i] =
			(float)(n * (double)serial_gradient(g->first + i, v->w[g->first + i]) /
				p->images);
		loss += n * serial_loss(g->first + i, v->w[g->first + i]);
	}
	p->loss = (float)(loss / p->images);
}

static void push_batch(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);
	struct work *work = &w->grant.work;
	uint32_t per_epoch = (s->n_train + s->cfg.batch - 1) / s->cfg.batch;
	uint32_t count = w->grant.exact ? work->count : 1;
	struct msg_push p = {.base_version = w->version,
		.base_epoch = w->version_epoch,
		.work = {work->epoch, work->first, count}};
	struct gradient g = {.first = work->epoch * per_epoch + work->first, .count = count};

	for (uint32_t i = 0; i < count; i++)
		g.value[i] = 1;
	p.images = sim_images(s, work->first, count);
	if (s->cfg.optim.kind == OPTIM_LBFGS) {
		g.first = work->first;
		compute_portions(s, w, &p, &g);
	}
	if (push(s, node, &p, &g) == 0) {
		work->first += count;
		work->count -= count;
	}
}

static void report(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);
	struct msg_result r = {.eval_id = w->grant.eval_id,
		.eval_first = w->grant.eval_first,
		.eval_count = w->grant.eval_count,
		.correct = 1};

	if (session_result(w->session, &r, s->net.now_ms) == 0) {
		w->grant.eval_count = 0;
		run_effects(s, node);
	}
}

void worker_computed(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);

	w->computing = 0;
	if (!s->training)
		push_ledger(s, node);
	else if (w->grant.kind == GRANT_EVAL)
		report(s, node);
	else if (w->grant.work.count)
		push_batch(s, node);
	program(s, node);
}

/* ---- the driver -------------------------------------------------------------------------------
 */

static void send(struct sim *s, uint32_t node, const struct msg *m, uint32_t link)
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

static void send_push(struct sim *s, uint32_t node, const struct session_effect *e)
{
	struct sim_worker *w = at(s, node);
	const struct gradient *g = &w->gradient[e->seq % SIM_WINDOW];
	struct msg m;

	m.type = MSG_PUSH;
	memcpy(&m, &e->msg, offsetof(struct msg, push) + offsetof(struct msg_push, slices));
	m.push.slices.n = 1;
	m.push.slices.slice[0] = (struct slice){
		.offset = g->first, .count = g->count, .encoding = ENCODING_F32, .data = g->value};
	send(s, node, &m, w->bulk);
}

/* Pushes newer than `from` are nobody's any more: they may or may not have been applied. */
static void orphan(struct sim *s, struct sim_worker *w, uint64_t from)
{
	for (uint64_t seq = from + 1; seq <= session_last_seq(w->session); seq++) {
		uint32_t c = w->gradient[seq % SIM_WINDOW].first;

		if (!s->training && s->fate[c] == FATE_MUST)
			s->fate[c] = FATE_ORPHAN;
	}
}

static void ended(struct sim *s, uint32_t node, int status)
{
	struct sim_worker *w = at(s, node);

	sim_trace(s, "worker %u ends: %s", node, err_name(status));
	if (status != PS_OK && status != PS_EDONE && status != PS_ESHUTDOWN && status != PS_EFENCED)
		sim_violation(s, "worker %u ended with %s", node, err_name(status));
	if (status != PS_EFENCED)
		return;
	/* its slot was given away only after all that had been acknowledged was on disk */
	orphan(s, w, session_acked_seq(w->session));
	w->done = 0;
	session_free(&w->session);
	w->life = 0;
	net_at(&s->net, s->net.now_ms + 20, (struct item){.what = HAPPEN_START, .node = node});
}

static void acked(struct sim *s, struct sim_worker *w, const struct msg_ack *a)
{
	uint32_t c = w->gradient[a->seq % SIM_WINDOW].first;

	if (!s->training && a->verdict == VERDICT_REJECTED)
		s->fate[c] = FATE_REJECTED;
}

static void run_effects(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);
	const struct session_effect *e;
	int end = PS_EAGAIN;

	for (size_t i = 0; (e = session_effect(w->session, i)); i++) {
		switch (e->kind) {
		case DO_SEND:
			send(s, node, &e->msg, w->bulk);
			break;
		case DO_SEND_PUSH:
			send_push(s, node, e);
			break;
		case DO_SEND_BEAT:
			send(s, node, &e->msg, w->beat);
			break;
		case TELL_ACK:
			acked(s, w, &e->msg.ack);
			break;
		case TELL_PARAMS:
			w->version = e->msg.params.version;
			w->version_epoch = session_welcome(w->session)->stamp.epoch;
			if (w->grant.kind == GRANT_TRAIN && w->grant.exact &&
				w->version != w->grant.version)
				w->grant.work.count = 0; /* too late: ask for another */
			else if (s->training && !w->computing)
				compute(s, node);
			break;
		case TELL_NO_PARAMS:
			w->grant.eval_count = 0;
			break;
		case TELL_GRANT:
			w->grant = e->msg.grant;
			break;
		case TELL_END:
			end = e->status;
			break;
		case DO_RELEASE:
		case TELL_READY:
			break;
		}
	}
	if (end != PS_EAGAIN)
		ended(s, node, end);
}

void worker_message(struct sim *s, uint32_t node, const struct msg *m)
{
	session_message(at(s, node)->session, m, s->net.now_ms);
	run_effects(s, node);
	if (at(s, node)->session)
		program(s, node);
}

void worker_tick(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);

	net_at(&s->net, s->net.now_ms + 100,
		(struct item){.what = HAPPEN_TICK, .node = node, .life = w->life});
	session_tick(w->session, 1, s->net.now_ms);
	run_effects(s, node);
	if (w->session)
		program(s, node);
}

void worker_relink(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);

	if (!w->session || session_phase(w->session) == PHASE_END)
		return;
	w->bulk = (uint32_t)++s->links;
	w->beat = (uint32_t)++s->links;
	session_link_lost(w->session, s->net.now_ms);
	run_effects(s, node);
	session_link_up(w->session, s->net.now_ms);
	run_effects(s, node);
}

void worker_start(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);
	struct session_config cfg = {.role = ROLE_WORKER,
		.data = data_of(s),
		.seed = rng_next(&s->net.rng),
		.first_ms = 100000,
		.patience_ms = 100000,
		.retry_ms = 150,
		.silence_ms = 500};

	if (w->named)
		cfg.name[0] = (char)('a' + node);
	w->life = ++s->lives;
	w->computing = w->done = w->paused = 0;
	w->version = 0;
	memset(&w->grant, 0, sizeof(w->grant));
	if (session_new(&w->session, &cfg, s->cfg.replay_window) != 0) {
		sim_violation(s, "out of memory");
		return;
	}
	sim_trace(s, "worker %u starts life=%llu", node, (unsigned long long)w->life);
	session_start(w->session, s->net.now_ms);
	w->bulk = (uint32_t)++s->links;
	w->beat = (uint32_t)++s->links;
	session_link_up(w->session, s->net.now_ms);
	run_effects(s, node);
	net_at(&s->net, s->net.now_ms + 100,
		(struct item){.what = HAPPEN_TICK, .node = node, .life = w->life});
}

void worker_crash(struct sim *s, uint32_t node)
{
	struct sim_worker *w = at(s, node);

	if (!w->session || w->done)
		return;
	sim_trace(s, "worker %u dies", node);
	orphan(s, w, session_durable_seq(w->session));
	session_free(&w->session);
	w->life = 0;
	s->worker_crashes++;
	net_at(&s->net, s->net.now_ms + 20 + net_below(&s->net, 2500),
		(struct item){.what = HAPPEN_START, .node = node});
}
