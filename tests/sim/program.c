/*
 * program.c - the program of a simulated worker, which uses the session. Without a data set, the
 * program pushes ledger gradients. In a run with a data set, the program requests leases, pulls
 * weights and pushes batches, as worker/trainer.c does.
 */
#include <math.h>
#include <string.h>
#include "tests/sim/sim.h"

static int program_hangs(const struct sim *s, const struct sim_worker *w)
{
	return s->net.now_ms < w->hangs_until_ms;
}

/* ---- the next step of a worker that computes nothing now ------------------------------------- */

static void ledger_step(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);

	if (w->to_push && s->n_coordinates < SIM_COORDINATES) {
		if (session_can_push(w->session) && !w->computing)
			worker_compute(s, node);
	} else if (session_durable_seq(w->session) == session_last_seq(w->session) && !w->done &&
		   !w->back_ms) {
		w->done = 1;
		session_bye(w->session, sim_clock(s, node));
		worker_run_effects(s, node);
	}
}

static void training_step(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);
	int rc;

	if (w->computing || session_phase(w->session) != PHASE_READY)
		return;
	if (w->foreign && w->grant.kind)
		return;
	if (w->grant.kind == GRANT_TRAIN && w->grant.work.count && w->fetched_for) {
		worker_compute(s, node);
		return;
	}
	if (w->grant.kind == GRANT_TRAIN && w->grant.work.count)
		rc = session_pull(w->session, WEIGHTS_CURRENT, sim_clock(s, node));
	else if (w->grant.kind == GRANT_EVAL && w->grant.eval_count)
		rc = session_pull(w->session, WEIGHTS_EVAL, sim_clock(s, node));
	else
		rc = session_lease(w->session, sim_clock(s, node));
	if (rc == 0)
		worker_run_effects(s, node);
}

void program_step(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);

	if (!w->session || session_phase(w->session) == PHASE_END || program_hangs(s, w))
		return;
	if (s->training)
		training_step(s, node);
	else
		ledger_step(s, node);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Returns the weights that the worker pulled last. Returns NULL if `versions` does not have these
 * weights any more. The server will then reject the push, because these weights are too old. */
static const float *pulled(struct sim *s, const struct sim_worker *w)
{
	const struct sim_version *v = sim_version(s, w->version_term, w->version);

	return v->version == w->version && v->epoch == w->version_term ? v->w : NULL;
}

/* Computes, for L-BFGS, the mean loss and gradient of the portions of a push at the pulled
 * weights. */
static void portions(struct sim *s, struct sim_worker *w, struct msg_push *p, struct gradient *g)
{
	const float *at_w = pulled(s, w);
	double loss = 0;

	g->first = p->work.first;
	for (uint32_t i = 0; at_w && i < g->count; i++) {
		uint32_t n = sim_images(s, g->first + i, 1);
		float x = at_w[g->first + i];

		g->value[i] = (float)(n * (double)serial_gradient(g->first + i, x) / p->images);
		loss += n * serial_loss(g->first + i, x);
	}
	p->loss = (float)(loss / p->images);
}

/* Returns a value by which the final weights of an `ordered` run depend on the order of the
 * additions. In a step of three or more batches, the first batch also adds 2^40 to every second
 * coordinate, and the second batch adds -2^40. The two values cancel, but a sum that contains only
 * one of them loses bits, so the final weights depend on the order. */
static double rough(const struct sim *s, uint32_t batch)
{
	uint32_t n = s->n_workers, place = batch % n, last = batch - place + 1;

	if (!s->ordered || n < 3 || place > 1 ||
		(last + 1) * s->cfg.training.batch_size > s->n_train)
		return 0;
	return place ? -0x1p40 : 0x1p40;
}

/* Computes the gradient of resume runs, in which every value depends on a weight and on the batches
 * of the push. */
static void dense(struct sim *s, struct sim_worker *w, struct msg_push *p, struct gradient *g)
{
	const float *at_w = pulled(s, w);
	uint32_t images[SIM_PORTIONS];

	if (!at_w)
		sim_violation(s, "weights %llu are not remembered", (unsigned long long)w->version);
	g->first = 0;
	g->count = SIM_PORTIONS;
	for (uint32_t k = 0; k < p->work.count; k++)
		images[k] = sim_images(s, p->work.first + k, 1);
	for (uint32_t i = 0; at_w && i < g->count; i++) {
		double factor = 0;

		for (uint32_t k = 0; k < p->work.count; k++)
			factor += images[k] * (1 + (p->work.first + k + 1) * (i + 3) % 11);
		factor /= 64.0 * p->images;
		g->value[i] = (float)(factor * (double)serial_gradient(i, at_w[i]));
		if (i % 2)
			g->value[i] += (float)rough(s, p->work.first);
	}
}

/* Makes, for EASGD, one local step on the worker's own weights for each batch, and then an elastic
 * update with the centre `at_w`. Writes the negative change of the centre to `e`. */
static void step_elastic(const struct sim *s, const struct sim_worker *w, struct own *own,
	const struct work *work, const float *at_w, float *e, uint32_t n)
{
	float m = (float)s->cfg.easgd.momentum, rate = (float)s->cfg.push.local_lr;

	for (uint32_t i = 0; i < n; i++) {
		float x = w->started ? w->own.x[i] : at_w[i], v = w->started ? w->own.v[i] : 0;

		for (uint32_t b = work->first; b < work->first + work->count; b++) {
			float g = serial_gradient(i + b, x + m * v);

			v = m * v - rate * g;
			x += v;
		}
		e[i] = -(float)w->part * (x - at_w[i]);
		own->x[i] = x + e[i];
		own->v[i] = v;
	}
}

/* Computes the gradient of a push of EASGD, and writes the worker's own weights after the push to
 * `own`. */
static void elastic(struct sim *s, const struct sim_worker *w, struct msg_push *p,
	struct gradient *g, struct own *own)
{
	const float *at_w = pulled(s, w);
	float *e = s->exact ? g->value : g->elastic;
	uint32_t n = s->exact ? SIM_PORTIONS : SIM_ELASTIC;

	*own = w->own;
	if (at_w)
		step_elastic(s, w, own, &p->work, at_w, e, n);
	else /* any values, because the server will reject the push */
		memset(e, 0, n * sizeof(*e));
	if (s->exact) {
		g->first = 0;
		g->count = SIM_PORTIONS;
	} else if (sim_first_push(s) + s->n_coordinates < SIM_COORDINATES) {
		g->push = s->n_coordinates;
		for (uint32_t i = 0; i < SIM_ELASTIC; i++)
			s->moved[g->push][i] = -e[i];
	}
}

/* Records a push of EASGD after the worker has passed it to its session. */
static void note_exchange(
	struct sim *s, struct sim_worker *w, const struct gradient *g, const struct own *own)
{
	w->own = *own;
	w->started = 1;
	/* another worker may push the same batches, so this push counts at most once */
	if (g->push != SIM_NO_PUSH)
		s->expected[s->n_coordinates++] = EXPECT_AT_MOST_ONCE;
}

/* ---- pushes ---------------------------------------------------------------------------------- */

/* Writes the head of a push whose gradient belongs to the weights that the worker pulled last. The
 * push has no slices yet, so their array is not cleared. */
static void begin_push(const struct sim_worker *w, struct msg_push *p)
{
	memset(p, 0, offsetof(struct msg_push, slices.slice));
	p->base_version = w->version;
	p->base_term = w->version_term;
}

/* Passes a push to the session. If `asks` is 1, the push also requests the next weights, unless the
 * session does not allow a request now. */
static int push_gradient_of(
	struct sim *s, uint32_t node, struct msg_push *p, const struct gradient *g, int asks)
{
	struct sim_worker *w = worker_at(s, node);
	uint64_t seq = 0, now = sim_clock(s, node);

	if (w->broken)
		p->loss = NAN;
	int rc = asks ? session_push_pull(w->session, p, &seq, now) : PS_EAGAIN;
	if (rc == PS_EAGAIN)
		rc = session_push(w->session, p, &seq, now);
	if (rc != 0)
		return rc;
	w->gradient[seq % SIM_WINDOW] = *g;
	sim_trace(s, "worker %u push seq=%llu coordinates=%u+%u at %llu", node,
		(unsigned long long)seq, g->first, g->count, (unsigned long long)p->base_version);
	return 0;
}

static void push_ledger(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);
	struct msg_push p;
	struct gradient g = {
		.first = s->n_coordinates, .count = 1, .value = {1}, .push = s->n_coordinates};

	begin_push(w, &p);
	if (s->n_coordinates == SIM_COORDINATES ||
		push_gradient_of(s, node, &p, &g, net_chance(&s->net, 300)) != 0)
		return;
	s->expected[s->n_coordinates++] = EXPECT_ONCE;
	w->to_push--;
	worker_run_effects(s, node);
	if (w->session && net_chance(&s->net, 300) &&
		session_pull(w->session, WEIGHTS_CURRENT, sim_clock(s, node)) == 0)
		worker_run_effects(s, node);
}

static void push_next_batch(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);
	struct work *work = &w->grant.work;

	uint32_t per_epoch =
		(s->n_train + s->cfg.training.batch_size - 1) / s->cfg.training.batch_size;
	uint32_t n_push = s->mode == SIM_EASGD ? s->cfg.push.n_push : 1;
	uint32_t count = w->grant.exact || work->count < n_push ? work->count : n_push;
	struct msg_push p;
	struct gradient g = {.first = sim_first_batch(s) + work->epoch * per_epoch + work->first,
		.count = count,
		.push = SIM_NO_PUSH};
	struct own own;

	for (uint32_t i = 0; i < count; i++)
		g.value[i] = 1;
	begin_push(w, &p);
	p.work = (struct work){work->epoch, work->first, count};
	p.images = sim_images(s, work->first, count);
	if (s->mode == SIM_LBFGS)
		portions(s, w, &p, &g);
	else if (s->mode == SIM_EASGD)
		elastic(s, w, &p, &g, &own);
	else if (s->exact)
		dense(s, w, &p, &g);
	int asks = work->count > count && net_chance(&s->net, 500) && w->fetched_for <= 1;
	if (push_gradient_of(s, node, &p, &g, asks) != 0)
		return;
	if (s->mode == SIM_EASGD)
		note_exchange(s, w, &g, &own);
	work->first += count;
	work->count -= count;
	w->fetched_for -= w->fetched_for > 0;
	worker_run_effects(s, node);
}

static void report_evaluation(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);
	/* the losses that the devices of honest workers compute differ by up to 4 % */
	double loss = node == s->liar && s->lies_in_loss ? 4 : 1 + node / 100.0;
	struct msg_result r = {.eval_id = w->grant.eval_id,
		.eval_first = w->grant.eval_first,
		.eval_count = w->grant.eval_count,
		.correct = node == s->liar && !s->lies_in_loss ? w->grant.eval_count : 1,
		.loss_sum = w->broken ? (double)NAN : w->grant.eval_count * loss,
		.metric_sum = {w->grant.eval_count}};

	if (session_result(w->session, &r, sim_clock(s, node)) == 0) {
		w->grant.eval_count = 0;
		worker_run_effects(s, node);
	}
}

void program_computed(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);

	if (program_hangs(s, w)) {
		if (w->hangs_until_ms != UINT64_MAX)
			net_at(&s->net, w->hangs_until_ms,
				&(struct item){.what = HAPPEN_COMPUTED,
					.node = node,
					.process = w->process});
		return;
	}
	w->computing = 0;
	if (!s->training)
		push_ledger(s, node);
	else if (w->grant.kind == GRANT_EVAL)
		report_evaluation(s, node);
	else if (w->grant.work.count)
		push_next_batch(s, node);
	program_step(s, node);
}
