/*
 * Proves delay compensation (server/core/downpour.c, backups.c): a gradient g of version v becomes
 * g + lambda g g (w - w_v), with a fixed or adaptive lambda, no matter what the worker has pulled
 * since. If the run compares norms, the added term is at most as large as g. The reference in this
 * file follows the paper and PyTorch's optimizers, computes in double precision, and keeps the
 * weights of every version.
 * Covers attack A13 of docs/faults.md.
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

#define RATE        0.05
#define LAMBDA      0.5
#define STEPS       400
#define VERSIONS    (STEPS + 1)
#define WORKERS     3u
#define MAX_IN_HAND 4u

static struct core_config dc_config(int adaptive)
{
	struct core_config cfg = fixture_config();

	cfg.rate.lr = RATE;
	cfg.dc.lambda = LAMBDA;
	cfg.dc.kind = adaptive ? DC_ADAPTIVE : DC_CONSTANT;
	cfg.durable = 0;
	return cfg;
}

/* ---- the reference --------------------------------------------------------------------------- */

struct twin {
	const struct core_config *cfg;
	uint64_t version;
	uint64_t limited; /* number of values whose correction was limited */
	double w[VERSIONS][FIXTURE_PARAMS], square[FIXTURE_PARAMS], first[FIXTURE_PARAMS],
		second[FIXTURE_PARAMS];
};

static double power(double base, uint64_t n)
{
	double p = 1;

	while (n--)
		p *= base;
	return p;
}

/* Returns the amount by which PyTorch's optimizer changes value j. `d` is the gradient of this
 * value. */
static double twin_update_value(struct twin *t, size_t j, double d)
{
	const struct optim *o = &t->cfg->optim;
	int adam = o->kind == OPTIM_ADAM;
	double m = adam ? o->beta1 : o->momentum, b = adam ? o->beta2 : o->rmsprop_alpha;
	double *v = &t->first[j], *s = &t->second[j];
	uint64_t n = t->version + 1;

	switch (o->kind) {
	case OPTIM_MOMENTUM:
		return *v = m * *v + d;
	case OPTIM_NESTEROV:
		*v = m * *v + d;
		return d + m * *v;
	case OPTIM_ADAGRAD:
		*s += d * d;
		return d / (sqrt(*s) + o->eps);
	case OPTIM_RMSPROP:
		*s = b * *s + (1 - b) * d * d;
		return d / (sqrt(*s) + o->eps);
	case OPTIM_ADAM:
		*v = m * *v + (1 - m) * d;
		*s = b * *s + (1 - b) * d * d;
		return *v / (1 - power(m, n)) / (sqrt(*s / (1 - power(b, n))) + o->eps);
	default:
		return d;
	}
}

/* Make an update of the reference with the gradient `g`. `then`: the version of the weights at
 * which `g` was computed; negative: apply `g` without compensation. */
static void twin_push(struct twin *t, const float *g, int64_t then)
{
	const double *w = t->w[t->version];
	double d[FIXTURE_PARAMS], norm = 0, clip = t->cfg->optim.clip_norm;

	for (size_t j = 0; j < FIXTURE_PARAMS; j++) {
		double x = (double)g[j], lambda = t->cfg->dc.lambda;

		if (t->cfg->dc.kind == DC_ADAPTIVE) {
			t->square[j] = 0.95 * t->square[j] + 0.05 * x * x;
			lambda /= sqrt(t->square[j] + 1e-7);
		}
		double part = then < 0 ? 0 : lambda * x * (w[j] - t->w[then][j]);
		int exceeds = t->cfg->limits.norm_ratio > 0 && fabs(part) > 1;

		t->limited += (uint64_t)exceeds;
		d[j] = x * (1 + (exceeds ? copysign(1, part) : part));
		norm += d[j] * d[j];
	}
	norm = sqrt(norm);
	for (size_t j = 0; j < FIXTURE_PARAMS; j++) {
		double x = clip > 0 && norm > clip ? d[j] * clip / (norm + 1e-6) : d[j];

		x += t->cfg->optim.weight_decay * w[j];
		t->w[t->version + 1][j] = w[j] - t->cfg->rate.lr * twin_update_value(t, j, x);
	}
	t->version++;
}

/* ---- workers --------------------------------------------------------------------------------- */

/* A simulated server and its workers. `ahead`: the number of additional pulls that a worker may
 * make before it pushes the gradient of its oldest pull: 1 with prefetch, 3 with pipelined
 * steps. */
struct dc_run {
	struct core_fixture f;
	struct twin twin;
	uint32_t ahead, pushes_of_each;
	struct dc_worker {
		struct stamp s;
		uint64_t seq, version[MAX_IN_HAND], term[MAX_IN_HAND];
		uint32_t n, pushed;
	} worker[WORKERS];
};

static void dc_run_open(struct dc_run *l, struct core_config cfg)
{
	memset(l, 0, sizeof(*l));
	fixture_open(&l->f, cfg);
	l->twin.cfg = &l->f.cfg;
	l->pushes_of_each = cfg.push.n_fetch / cfg.push.n_push;
	l->ahead = !cfg.push.prefetch                                           ? 0
		   : cfg.push.n_push == cfg.push.n_fetch && cfg.push.n_push > 1 ? 3
										: 1;
	for (uint32_t i = 0; i < WORKERS; i++)
		l->worker[i].s = fixture_join(&l->f, 10 + i, "");
}

static void pull_and_note(struct dc_run *l, uint32_t i)
{
	struct dc_worker *p = &l->worker[i];

	fixture_pull(&l->f, 10 + i, p->s, WEIGHTS_CURRENT);
	p->version[p->n] = fixture_sent(&l->f, 10 + i, MSG_PARAMS)->params.version;
	p->term[p->n++] = p->s.term;
	assert_int_equal(p->version[p->n - 1], l->twin.version);
}

/* Send a push of worker i, with the gradient `g` at the weights `version` of term `term`. */
static void apply_push_of(
	struct dc_run *l, uint32_t i, const float *g, uint64_t version, uint64_t term)
{
	struct msg m = fixture_push(l->worker[i].s, ++l->worker[i].seq);

	m.push.base_version = version;
	m.push.base_term = term;
	fixture_slice(&m, 0, 3, g); /* the push has two slices */
	fixture_slice(&m, 3, FIXTURE_PARAMS - 3, g + 3);
	fixture_applied(&l->f, 10 + i, &m);
}

static void push_to_both(struct dc_run *l, uint32_t i, const float *g)
{
	struct dc_worker *p = &l->worker[i];

	apply_push_of(l, i, g, p->version[0], p->term[0]);
	twin_push(&l->twin, g, (int64_t)p->version[0]);
	if (++p->pushed < l->pushes_of_each)
		return;
	p->pushed = 0;
	p->n--;
	memmove(p->version, p->version + 1, p->n * sizeof(p->version[0]));
	memmove(p->term, p->term + 1, p->n * sizeof(p->term[0]));
}

static double farthest(const struct dc_run *l)
{
	double max = 0;

	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		max = fmax(max,
			fabs((double)core_weights(l->f.core)[j] - l->twin.w[l->twin.version][j]));
	return max;
}

static void come_back(struct dc_run *l)
{
	for (uint32_t i = 0; i < WORKERS; i++) {
		struct dc_worker *p = &l->worker[i];

		p->s = fixture_come_back(&l->f, 10 + i, p->s, p->seq);
	}
}

/* Make pulls, pushes and restarts in random order. Returns the largest difference between a weight
 * of the core and of the reference. Adds the number of limited corrections to *limited. */
static double dc_random_run(uint64_t seed, const struct core_config *cfg, uint64_t *limited)
{
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	static struct dc_run l;
	float g[FIXTURE_PARAMS];
	double max = 0;

	dc_run_open(&l, *cfg);
	while (l.twin.version < STEPS) {
		uint32_t i = (uint32_t)rng_below(&r, WORKERS);

		for (size_t j = 0; j < FIXTURE_PARAMS; j++)
			g[j] = (float)rng_below(&r, 2001) / 1000 - 1;
		if (rng_below(&r, 30) == 0) {
			fixture_restart(&l.f);
			come_back(&l);
		} else if (l.worker[i].n < 1 + l.ahead) {
			pull_and_note(&l, i);
		} else {
			push_to_both(&l, i, g);
		}
		max = fmax(max, farthest(&l));
	}
	assert_int_equal(core_stats(l.f.core)->uncompensated, 0);
	*limited += l.twin.limited;
	fixture_close(&l.f);
	return max;
}

static const struct {
	uint32_t n_push, n_fetch;
	int prefetch;
} schedules[] = {{1, 1, 0}, {1, 1, 1}, {2, 2, 0}, {2, 2, 1}, {1, 3, 0}, {1, 3, 1}, {2, 4, 1}};

static struct core_config combination(size_t schedule, int number)
{
	struct core_config cfg = dc_config(number & 1);

	cfg.training.mode = number & 2 ? MODE_SSP : MODE_DOWNPOUR;
	cfg.optim.clip_norm = number & 4 ? 0.9 : 0;
	cfg.optim.weight_decay = number & 4 ? 0.01 : 0;
	cfg.push.n_push = schedules[schedule].n_push;
	cfg.push.n_fetch = schedules[schedule].n_fetch;
	cfg.push.prefetch = schedules[schedule].prefetch;
	return cfg;
}

/* Make a run with every combination of options and a strength of `lambda`. No weight may differ
 * from that of the reference by more than `tolerance`. Returns the number of limited
 * corrections. */
static uint64_t all_combinations(double lambda, double norm_ratio, double tolerance)
{
	const size_t n = sizeof(schedules) / sizeof(schedules[0]);
	uint64_t limited = 0;
	double max = 0;

	for (size_t i = 0; i < n * 8 * OPTIM_LBFGS; i++) {
		struct core_config cfg = combination(i % n, (int)(i / n % 8));
		double d;

		cfg.optim.kind = (enum optim_kind)(i / n / 8);
		cfg.dc.lambda = lambda;
		cfg.limits.norm_ratio = norm_ratio;
		d = dc_random_run(1 + i, &cfg, &limited);
		if (d > tolerance)
			fail_msg("optimizer %d, combination %zu, schedule %zu: %g",
				(int)cfg.optim.kind, i / n % 8, i % n, d);
		max = fmax(max, d);
	}
	print_message("largest difference of a weight: %.1e\n", max);
	return limited;
}

TEST(every_combination_of_options_is_what_the_formulas_say)
{
	assert_int_equal(all_combinations(LAMBDA, 0, 1e-4), 0);
}

/* Norms that differ by less than a factor of 100 are not scaled, so only corrections are limited.
 * The larger strength enlarges rounding errors, too. */
TEST(with_a_norm_ratio_every_combination_limits_its_corrections)
{
	assert_true(all_combinations(4 * LAMBDA, 100, 1e-3) > 1000);
}

/* ---- the benefit ---------------------------------------------------------------------------- */

/* Returns the largest magnitude of a weight in the last 100 of 400 pushes. Four workers take turns,
 * so each gradient is three versions old. The loss is w^2 / 2, and the rate is too large for this
 * delay: without compensation the weights oscillate with growing amplitude. */
static double swing(enum delay_compensation kind)
{
	struct core_config cfg = fixture_config();
	float then[4][FIXTURE_PARAMS];
	struct stamp s[4];
	uint64_t version[4];
	double max = 0;
	struct core_fixture f;

	cfg.dc.kind = kind;
	cfg.dc.lambda = 0.3;
	cfg.rate.lr = 0.5;
	cfg.durable = 0;
	fixture_open(&f, cfg);
	for (uint32_t j = 0; j < FIXTURE_PARAMS; j++)
		fixture_weights(f.memory, &cfg)[j] = (float)(1 + j) / 10;
	for (uint32_t i = 0; i < 4; i++)
		s[i] = fixture_join(&f, 10 + i, "");
	for (uint32_t n = 0; n < 404; n++) {
		uint32_t i = n % 4;
		struct msg m = fixture_push(s[i], n / 4);

		if (n >= 4) { /* a worker only pulls at first */
			m.push.base_version = version[i];
			m.push.base_term = s[i].term;
			fixture_slice(&m, 0, FIXTURE_PARAMS, then[i]);
			fixture_applied(&f, 10 + i, &m);
		}
		fixture_pull(&f, 10 + i, s[i], WEIGHTS_CURRENT);
		version[i] = fixture_sent(&f, 10 + i, MSG_PARAMS)->params.version;
		memcpy(then[i], core_weights(f.core), sizeof(then[i]));
		for (uint32_t j = 0; j < FIXTURE_PARAMS && n >= 304; j++)
			max = fmax(max, fabs((double)then[i][j]));
	}
	fixture_close(&f);
	return max;
}

TEST(it_damps_the_swings_that_delay_causes)
{
	double none = swing(DC_NONE), constant = swing(DC_CONSTANT), adaptive = swing(DC_ADAPTIVE);

	print_message("none %g, constant %g, adaptive %g\n", none, constant, adaptive);
	assert_true(none > 1000);
	assert_true(constant < 0.8);
	assert_true(adaptive < 0.4);
}

/* ---- single cases ---------------------------------------------------------------------------- */

/* In this test worker 0 prefetches: it pulls version 1 before it has pushed the gradient of version
 * 0. */
TEST(a_prefetch_does_not_change_what_a_gradient_is_compensated_with)
{
	struct core_config cfg = dc_config(0);
	static struct dc_run l;
	float before, step;

	cfg.push.prefetch = 1;
	dc_run_open(&l, cfg);
	pull_and_note(&l, 0);
	apply_push_of(&l, 1, fixture_ones, 0, l.worker[1].s.term);
	twin_push(&l.twin, fixture_ones, 0);
	pull_and_note(&l, 0);
	apply_push_of(&l, 1, fixture_ones, 1, l.worker[1].s.term);
	twin_push(&l.twin, fixture_ones, 1);
	before = core_weights(l.f.core)[4];
	push_to_both(&l, 0, fixture_ones);
	step = (before - core_weights(l.f.core)[4]) / (float)RATE;
	print_message("the step is %.4f of the gradient\n", (double)step);
	assert_float_equal(step, 0.950f, 1e-5);
	assert_true(farthest(&l) < 1e-6);
	fixture_close(&l.f);
}

/* Each gradient is compensated with the weights that its own worker has pulled, not with a version
 * common to all workers. */
TEST(each_worker_is_compensated_by_its_own_delay)
{
	static struct dc_run l;

	dc_run_open(&l, dc_config(0));
	pull_and_note(&l, 0);
	pull_and_note(&l, 1);
	/* the gradient was computed at the current weights, so the core does not change it */
	push_to_both(&l, 1, fixture_ones);
	assert_float_equal(core_weights(l.f.core)[4], (float)-RATE, 1e-7);
	pull_and_note(&l, 1);
	push_to_both(&l, 1, fixture_ones); /* at current weights, too, so not changed */
	assert_float_equal(core_weights(l.f.core)[4], (float)(-2 * RATE), 1e-7);
	/* computed at weights two versions old, so compensated */
	push_to_both(&l, 0, fixture_ones);
	assert_float_equal(core_weights(l.f.core)[4],
		(float)(-2 * RATE - RATE * (1 - LAMBDA * 2 * RATE)), 1e-7);
	assert_int_equal(core_stats(l.f.core)->uncompensated, 0);
	fixture_close(&l.f);
}

/* If the core has no copy of the version of a gradient, it applies the gradient without
 * compensation. */
TEST(a_gradient_of_weights_that_are_not_held_is_applied_as_it_is_and_counted)
{
	static struct dc_run l;
	uint64_t term;

	dc_run_open(&l, dc_config(1));
	term = l.worker[0].s.term;
	for (uint64_t version = 0; version < 3; version++) {
		/* the weights are current, so no compensation is needed */
		apply_push_of(&l, 0, fixture_ones, version, term);
		twin_push(&l.twin, fixture_ones, (int64_t)version);
	}
	assert_int_equal(core_stats(l.f.core)->uncompensated, 0);
	pull_and_note(&l, 1);
	/* not compensated, because no worker has pulled version 1 */
	apply_push_of(&l, 0, fixture_ones, 1, term);
	twin_push(&l.twin, fixture_ones, -1);
	apply_push_of(
		/* not compensated, because only another worker has pulled version 3 */
		&l, 0, fixture_ones, 3, term);
	twin_push(&l.twin, fixture_ones, -1);
	assert_int_equal(core_stats(l.f.core)->uncompensated, 2);
	push_to_both(&l, 1, fixture_ones);
	assert_int_equal(core_stats(l.f.core)->uncompensated, 2);
	assert_true(farthest(&l) < 1e-6);
	fixture_close(&l.f);
}

/* Delay compensation could double the values of a gradient that the server has scaled down to the
 * limit of its norm. Therefore a scaled gradient is not compensated. */
TEST(a_gradient_that_is_scaled_is_not_compensated)
{
	struct core_config cfg = dc_config(0);
	struct core_fixture f;
	struct stamp a, b;
	float g[FIXTURE_PARAMS];

	cfg.limits.norm_ratio = 4;
	fixture_open(&f, cfg);
	a = fixture_join(&f, 9, "");
	b = fixture_join(&f, 10, "");
	fixture_pull(&f, 9, a, WEIGHTS_CURRENT);
	fixture_pull(&f, 10, b, WEIGHTS_CURRENT);
	struct msg m = fixture_push_ones(b, 1);
	fixture_applied(&f, 10, &m);
	f.core->norms.yardstick = 1;
	for (size_t k = 0; k < FIXTURE_PARAMS; k++)
		g[k] = -1e6f;
	float before = core_weights(f.core)[0];
	m = fixture_push(a, 1);
	m.push.base_term = a.term;
	fixture_slice(&m, 0, FIXTURE_PARAMS, g);
	fixture_applied(&f, 9, &m);
	/* the norm of the 8 values is 4 */
	assert_float_equal(core_weights(f.core)[0] - before, (float)(4 * RATE / sqrt(8)), 1e-6);
	fixture_close(&f);
}

/* The weights move by -1 while worker 0 computes a gradient of `g` in each value. Returns the
 * change of a weight by this gradient, divided by the change without compensation. */
static double enlargement(struct core_config cfg, float g)
{
	static struct dc_run l;
	float values[FIXTURE_PARAMS];

	cfg.rate.lr = 1;
	dc_run_open(&l, cfg);
	pull_and_note(&l, 0);
	apply_push_of(&l, 1, fixture_ones, 0, l.worker[1].s.term);
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		values[j] = g;
	apply_push_of(&l, 0, values, 0, l.worker[0].s.term);
	double change = -1 - (double)core_weights(l.f.core)[4];
	fixture_close(&l.f);
	return change / (double)g;
}

/* A worker with a large value that waits until the weights have moved could otherwise multiply the
 * value by any factor, although --norm-ratio limits the norm of its gradient. */
TEST(with_a_norm_ratio_a_correction_at_most_doubles_a_value)
{
	/* without compensation, and with the formula of the paper: 1 - lambda * g */
	static const float tried[] = {0.5f, 1.5f, -1, -1.5f, 1000, -1000};

	for (size_t i = 0; i < sizeof(tried) / sizeof(tried[0]); i++) {
		struct core_config cfg = dc_config(0);
		double g = (double)tried[i], paper = 1 - LAMBDA * g;

		assert_float_equal(enlargement(cfg, tried[i]), paper, (float)(1e-5 * fabs(paper)));
		cfg.limits.norm_ratio = 1e4;
		assert_float_equal(enlargement(cfg, tried[i]), fmin(fmax(paper, 0), 2), 1e-3);
		cfg.dc.kind = DC_ADAPTIVE;
		cfg.dc.lambda = 1e6;
		assert_float_equal(enlargement(cfg, tried[i]), g > 0 ? 0 : 2, 1e-3);
	}
}

/* A correction that is smaller than its value keeps its bits. */
TEST(a_norm_ratio_does_not_change_small_corrections)
{
	for (int adaptive = 0; adaptive < 2; adaptive++) {
		struct core_config cfg = dc_config(adaptive);

		for (int i = -100; i <= 100; i++) {
			float g = (float)i / 101 + 0.003f;

			cfg.dc.lambda = adaptive ? 0.2 : 0.99;
			cfg.limits.norm_ratio = 0;
			double paper = enlargement(cfg, g);
			assert_true(paper > 0 && paper < 2);
			cfg.limits.norm_ratio = 100;
			assert_true(enlargement(cfg, g) == paper);
		}
	}
}

/* The magnitudes of compensated gradients are at most twice those of the gradients, so a large
 * gradient is not rejected for the size that the formula without a limit would give it. */
TEST(with_a_norm_ratio_a_large_gradient_keeps_its_limits)
{
	for (int limited = 0; limited < 2; limited++) {
		struct core_config cfg = dc_config(0);
		static struct dc_run l;
		static const float large[FIXTURE_PARAMS] = {-4e14f};
		const float weight = limited ? 8e8f : -1e-6f;

		cfg.rate.lr = 1e-6;
		cfg.dc.lambda = 1e6;
		cfg.limits.norm_ratio = limited ? 1e6 : 0;
		dc_run_open(&l, cfg);
		pull_and_note(&l, 0);
		apply_push_of(&l, 1, fixture_ones, 0, l.worker[1].s.term);
		struct msg m = fixture_push(l.worker[0].s, 1);
		m.push.base_term = l.worker[0].s.term;
		fixture_slice(&m, 0, FIXTURE_PARAMS, large);
		assert_int_equal(fixture_acked(&l.f, 10, &m).reject,
			limited ? REJECT_NONE : REJECT_NONFINITE);
		assert_float_equal(core_weights(l.f.core)[0], weight, 1e3);
		fixture_close(&l.f);
	}
}

/* A crash loses version 2, and the next term makes another version 2. The server holds only the
 * second version 2, so a gradient of the lost version is not compensated. */
TEST(weights_of_a_lost_term_are_not_held)
{
	static struct dc_run l;
	static const float twos[FIXTURE_PARAMS] = {2, 2, 2, 2, 2, 2, 2, 2};
	struct core_config cfg = dc_config(0);
	struct core_snapshot image;
	uint64_t term;

	dc_run_open(&l, cfg);
	term = l.worker[0].s.term;
	apply_push_of(&l, 1, fixture_ones, 0, term);
	image = fixture_save(&l.f);
	apply_push_of(&l, 1, fixture_ones, 1, term);
	/* worker 0 gets version 2 of the old term */
	fixture_pull(&l.f, 10, l.worker[0].s, WEIGHTS_CURRENT);
	fixture_close(&l.f);
	fixture_load(&l.f, cfg, &image);
	fixture_drop(&image);
	l.worker[1].seq = 1; /* the snapshot contains only the first push of this worker */
	come_back(&l);
	apply_push_of(&l, 1, twos, 1, l.worker[1].s.term);
	/* worker 0 gets version 2 of the new term, whose weights differ */
	fixture_pull(&l.f, 10, l.worker[0].s, WEIGHTS_CURRENT);
	apply_push_of(&l, 1, twos, 2, l.worker[1].s.term);
	apply_push_of(&l, 0, fixture_ones, 2, term);
	assert_float_equal(core_weights(l.f.core)[4], (float)(-6 * RATE), 1e-7);
	assert_int_equal(core_stats(l.f.core)->uncompensated, 1);
	/* compensated, because worker 0 has pulled version 2 of the new term */
	apply_push_of(&l, 0, fixture_ones, 2, l.worker[0].s.term);
	assert_float_equal(core_weights(l.f.core)[4],
		(float)(-6 * RATE - RATE * (1 - LAMBDA * 3 * RATE)), 1e-6);
	assert_int_equal(core_stats(l.f.core)->uncompensated, 1);
	fixture_close(&l.f);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static uint32_t copies(const struct dc_run *l)
{
	const struct backups *b = &l->f.core->backups;
	uint32_t used = 0, refs = 0, held = 0;

	for (uint32_t i = 0; i < b->n; i++) {
		used += b->copy[i].refs > 0;
		refs += b->copy[i].refs;
	}
	for (uint32_t i = 0; i < l->f.cfg.sessions.max_workers; i++)
		held += l->f.core->worker[i].backups.n_held;
	assert_int_equal(refs, held);
	return used;
}

TEST(copies_are_shared_and_released)
{
	static struct dc_run l;
	struct msg hello = fixture_hello("");

	dc_run_open(&l, dc_config(0));
	assert_int_equal(copies(&l), 0);
	for (uint32_t i = 0; i < WORKERS; i++)
		pull_and_note(&l, i);
	assert_int_equal(copies(&l), 1); /* three workers hold the same version and share a copy */
	push_to_both(&l, 0, fixture_ones);
	pull_and_note(&l, 0);
	assert_int_equal(copies(&l), 2);
	push_to_both(&l, 1, fixture_ones);
	push_to_both(&l, 2, fixture_ones);
	assert_int_equal(copies(&l), 1);
	pull_and_note(&l, 1);
	pull_and_note(&l, 2);
	assert_int_equal(copies(&l), 2);
	fixture_bye(&l.f, 11, l.worker[1].s); /* the worker leaves */
	assert_int_equal(copies(&l), 2);
	/* so long that worker 2, which sends nothing, becomes dead */
	for (uint32_t t = 0; t < 12; t++) {
		fixture_tick(&l.f, 100);
		fixture_heartbeat(&l.f, 10, l.worker[0].s);
	}
	assert_int_equal(fixture_worker(&l.f, 3).state, SESSION_DEAD);
	assert_int_equal(copies(&l), 1);
	fixture_bye(&l.f, 10, l.worker[0].s);
	assert_int_equal(copies(&l), 0);
	fixture_message(&l.f, 20, &hello);
	assert_int_equal(copies(&l), 0);
	fixture_close(&l.f);
}

TEST(a_fenced_worker_holds_nothing)
{
	static struct dc_run l;
	struct core_config cfg = dc_config(0);

	memset(&l, 0, sizeof(l));
	fixture_open(&l.f, cfg);
	l.worker[0].s = fixture_join(&l.f, 10, "a");
	fixture_pull(&l.f, 10, l.worker[0].s, WEIGHTS_CURRENT);
	assert_int_equal(copies(&l), 1);
	(void)fixture_join(&l.f, 11, "a");
	assert_int_equal(copies(&l), 0);
	fixture_close(&l.f);
}

/* For each worker, the core keeps copies of a bounded number of versions. The oldest version stays,
 * because the worker may still compute with it. */
TEST(pulls_without_pushes_hold_a_bounded_number_of_versions)
{
	static struct dc_run l;
	struct core_config cfg = dc_config(0);

	cfg.push.n_fetch = 1000;
	dc_run_open(&l, cfg);
	for (uint64_t version = 0; version < 50; version++) {
		for (uint32_t i = 0; i < WORKERS; i++)
			fixture_pull(&l.f, 10 + i, l.worker[i].s, WEIGHTS_CURRENT);
		apply_push_of(&l, 2, fixture_ones, version, l.worker[2].s.term);
		twin_push(&l.twin, fixture_ones, (int64_t)version);
	}
	assert_true(copies(&l) <= BACKUPS_MAX_HELD + 1);
	assert_int_equal(l.f.core->worker[0].backups.n_held, BACKUPS_MAX_HELD);
	apply_push_of(&l, 0, fixture_ones, 0, l.worker[0].s.term);
	twin_push(&l.twin, fixture_ones, 0);
	apply_push_of(&l, 0, fixture_ones, 49, l.worker[0].s.term);
	twin_push(&l.twin, fixture_ones, 49);
	assert_int_equal(core_stats(l.f.core)->uncompensated, 0);
	/* not compensated, because the server has dropped version 20 */
	apply_push_of(&l, 1, fixture_ones, 20, l.worker[1].s.term);
	twin_push(&l.twin, fixture_ones, -1);
	assert_int_equal(core_stats(l.f.core)->uncompensated, 1);
	assert_true(farthest(&l) < 1e-5);
	fixture_close(&l.f);
}

/* ---- restarts -------------------------------------------------------------------------------- */

#define LONE_PUSHES 12u

/* Send push i of a single worker with prefetch. The gradient was computed at version i - 2, or at
 * version 0 for the first push. */
static void lone_push(struct core_fixture *f, struct stamp s, uint64_t i, uint64_t term)
{
	struct msg m = fixture_push(s, i);
	float g[FIXTURE_PARAMS];

	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = (float)((i * 7 + j * 3) % 11) / 5 - 1;
	m.push.base_version = i > 1 ? i - 2 : 0;
	m.push.base_term = term;
	fixture_slice(&m, 0, FIXTURE_PARAMS, g);
	fixture_applied(f, 9, &m);
}

/* Run a single worker. Unless `saved` is LONE_PUSHES, the server is killed after all pushes, and
 * starts again from a snapshot that contains only the first `saved` pushes. After the start the
 * worker replays the remaining pushes, but not the pulls between the pushes. Writes the final
 * weights to `end`. */
static void lone_run(uint64_t saved, float *end)
{
	struct core_config cfg = dc_config(1);
	struct core_snapshot image = {0};
	struct stamp s;
	struct core_fixture f;

	cfg.push.prefetch = 1;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	fixture_pull(&f, 9, s, WEIGHTS_CURRENT);
	for (uint64_t i = 1; i <= LONE_PUSHES; i++) {
		if (i == saved + 1)
			image = fixture_save(&f);
		fixture_pull(&f, 9, s, WEIGHTS_CURRENT);
		lone_push(&f, s, i, s.term);
	}
	if (saved < LONE_PUSHES) {
		uint64_t term = s.term;

		fixture_close(&f);
		fixture_load(&f, cfg, &image);
		fixture_drop(&image);
		s = fixture_come_back(&f, 9, s, LONE_PUSHES);
		for (uint64_t i = saved + 1; i <= LONE_PUSHES; i++)
			lone_push(&f, s, i, term);
		/* the worker pulled the weights of this push in the old term */
		lone_push(&f, s, LONE_PUSHES + 1, term);
	} else {
		lone_push(&f, s, LONE_PUSHES + 1, s.term);
	}
	assert_int_equal(core_stats(f.core)->uncompensated, 0);
	memcpy(end, core_weights(f.core), FIXTURE_PARAMS * sizeof(*end));
	fixture_close(&f);
}

TEST(a_lone_worker_replays_to_the_same_bits)
{
	float expected[FIXTURE_PARAMS], end[FIXTURE_PARAMS];

	lone_run(LONE_PUSHES, expected);
	for (uint64_t saved = 0; saved < LONE_PUSHES; saved++) {
		lone_run(saved, end);
		assert_memory_equal(end, expected, sizeof(end));
	}
}

/* A snapshot that contains a copy with weights that are not finite is refused. */
TEST(a_copy_that_is_not_finite_is_refused)
{
	static struct dc_run l;
	struct core_snapshot image;
	const char *why = NULL;

	dc_run_open(&l, dc_config(0));
	pull_and_note(&l, 0);
	backups_values(l.f.core, 0)[3] = NAN;
	image = fixture_save(&l.f);
	fixture_close(&l.f);
	assert_int_equal(fixture_read(&l.f, l.f.cfg, &image, &why), PS_ECHECKPOINT);
	fixture_drop(&image);
	fixture_close(&l.f);
}

/* Makes a snapshot in which worker 1 holds versions `first` and `second`, and decodes it. */
static int read_with_held(uint64_t first, uint64_t second)
{
	static struct dc_run l;
	const char *why = NULL;

	dc_run_open(&l, dc_config(0));
	struct core *c = l.f.core;
	struct worker_backups *b = &c->worker[0].backups;
	c->store.version = c->stats.version = 5;
	for (uint32_t i = 0; i < 2; i++) {
		c->backups.copy[i] =
			(struct backup){.version = i ? second : first, .made = 1, .refs = 1};
		b->held[i] = (struct held){c->backups.copy[i].version, 1, i};
	}
	b->n_held = 2;
	struct core_snapshot image = fixture_save(&l.f);
	fixture_close(&l.f);
	int rc = fixture_read(&l.f, l.f.cfg, &image, &why);
	fixture_drop(&image);
	fixture_close(&l.f);
	return rc;
}

TEST(versions_out_of_the_order_of_pulls_are_refused)
{
	assert_int_equal(read_with_held(3, 5), PS_OK);
	/* refused: a worker cannot hold version 6, which is newer than the weights */
	assert_int_equal(read_with_held(3, 6), PS_ECHECKPOINT);
	assert_int_equal(read_with_held(4, 3), PS_ECHECKPOINT);
}

TEST(without_it_there_is_no_backup)
{
	struct core_config cfg = dc_config(0);
	static struct dc_run l;

	cfg.dc.kind = DC_NONE;
	dc_run_open(&l, cfg);
	pull_and_note(&l, 0);
	apply_push_of(&l, 1, fixture_ones, 0, l.worker[1].s.term);
	apply_push_of(&l, 0, fixture_ones, 0, l.worker[0].s.term);
	assert_int_equal(l.f.core->backups.n, 0);
	assert_int_equal(l.f.core->worker[0].backups.n_held, 0);
	assert_int_equal(core_stats(l.f.core)->uncompensated, 0);
	assert_float_equal(core_weights(l.f.core)[4], (float)(-2 * RATE), 1e-7);
	fixture_close(&l.f);
}
