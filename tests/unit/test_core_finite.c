/*
 * Proves invariant 3 of server/core/store.c: weights and optimizer state stay finite, no matter
 * what workers push. A push that would violate this invariant is rejected as a whole, and every
 * checkpoint can be read.
 * Covers attack A13 of docs/faults.md.
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

#define PUSHES  200
#define LARGEST 1e15f /* the largest value that a push may have */

struct trial {
	const char *what;
	enum mode mode;
	enum optim_kind kind;
	double lr, decay;
	double lambda; /* the factor lambda of delay compensation */
	int adaptive, sum;
	uint32_t batches; /* the number of batches of an epoch; 0: no data set */
};

static int is_finite(const float *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isfinite(v[i]))
			return 0;
	return 1;
}

static void assert_finite(const struct core_fixture *f, const char *what, int push)
{
	const struct store *st = &f->core->store;
	int finite = is_finite(st->weights, st->n);

	for (size_t i = 0; i < optim_vectors(f->core->cfg.optim.kind); i++)
		finite &= is_finite(st->state[i], st->n);
	if (!finite)
		fail_msg("%s: not finite after push %d", what, push);
}

/* Check that two snapshots differ at most in the ledger of pushes. */
static void assert_weights_untouched(const struct core_snapshot *x, const struct core_snapshot *y)
{
	for (int i = SNAPSHOT_LEASES; i < SNAPSHOT_SESSIONS; i++) {
		assert_int_equal(x->size[i], y->size[i]);
		assert_memory_equal(x->data[i], y->data[i], x->size[i]);
	}
}

static struct core_config config_of(const struct trial *t)
{
	struct core_config cfg = fixture_config();

	cfg.training.mode = t->mode;
	cfg.optim.kind = t->kind;
	cfg.optim.weight_decay = t->decay;
	cfg.rate.lr = t->lr;
	cfg.dc.lambda = t->lambda > 0 ? t->lambda : 1;
	cfg.dc.kind = t->lambda > 0 ? t->adaptive ? DC_ADAPTIVE : DC_CONSTANT : DC_NONE;
	cfg.push.sum = (enum push_kind)t->sum;
	cfg.durable = 0;
	cfg.training.epochs = t->batches ? 1 : 0;
	cfg.lbfgs.history = 5;
	cfg.lbfgs.trials = 20;
	cfg.lbfgs.armijo = 1e-4;
	cfg.lbfgs.wolfe = 0.5;
	cfg.ssp.bound = 1000;
	/* so large that the worker pulls once and makes all its pushes at these weights */
	cfg.push.n_fetch = 1000;
	cfg.leases.max_batches = 1 << 20;
	return cfg;
}

static struct stamp join_trial(struct core_fixture *f, const struct trial *t, uint32_t peer)
{
	struct msg m = fixture_hello("");

	if (t->batches)
		m.hello.data.n_train = 10 * t->batches;
	fixture_message(f, peer, &m);
	assert_non_null(fixture_sent(f, peer, MSG_WELCOME));
	return fixture_sent(f, peer, MSG_WELCOME)->welcome.stamp;
}

/* Draws extreme values of both signs, with ordinary values and zeros between them. */
static void draw_extreme_values(struct rng *r, float g[FIXTURE_PARAMS], int push)
{
	static const float size[] = {LARGEST, 1, 1e12f, 0, 1e-20f, LARGEST};

	for (size_t i = 0; i < FIXTURE_PARAMS; i++) {
		g[i] = push % 4 == 3 ? 0.5f : size[rng_below(r, 6)];
		if (rng_below(r, 2))
			g[i] = -g[i];
	}
}

/* Sends the next push. Returns 1 if the push was applied. */
static int push_once(
	struct core_fixture *f, const struct trial *t, struct stamp s, uint64_t seq, struct rng *r)
{
	struct core_snapshot before = fixture_save(f), after;
	struct msg m = fixture_push(s, seq);
	float g[FIXTURE_PARAMS];
	struct msg_ack a;

	draw_extreme_values(r, g, (int)seq);
	fixture_slice(&m, 0, 3, g);
	fixture_slice(&m, 3, FIXTURE_PARAMS - 3, g + 3);
	if (t->mode != MODE_DOWNPOUR)
		m.push.base_version = core_stats(f->core)->version;
	m.push.base_term = f->cfg.term;
	m.push.images = 10;
	if (t->batches)
		m.push.work = (struct work){0, f->core->leases.n_done, 1};
	a = fixture_acked(f, 9, &m);
	if (a.reject != REJECT_NONE) {
		assert_int_equal(a.reject, REJECT_NONFINITE);
		after = fixture_save(f);
		assert_weights_untouched(&before, &after);
		fixture_drop(&after);
	}
	fixture_drop(&before);
	assert_finite(f, t->what, (int)seq);
	return a.reject == REJECT_NONE;
}

/* Check that a run can continue from a snapshot of the present state. */
static void assert_saved_well(struct core_fixture *f, const char *what)
{
	struct core_snapshot img = fixture_save(f);
	struct core_config cfg = f->cfg;
	const char *why = NULL;
	struct core_fixture again;

	cfg.term++;
	if (fixture_read(&again, cfg, &img, &why) != PS_OK)
		fail_msg("%s: the checkpoint is refused: %s", what, why);
	fixture_close(&again);
	fixture_drop(&img);
}

static void run_trial(const struct trial *t)
{
	struct rng r = rng_seed(7, RNG_SIM, 0);
	struct core_fixture f;
	struct stamp s;
	int taken = 0;

	fixture_open(&f, config_of(t));
	s = join_trial(&f, t, 9);
	fixture_pull(&f, 9, s, WEIGHTS_CURRENT);
	for (int i = 1; i <= PUSHES && f.core->run.ending == END_NOT; i++)
		taken += push_once(&f, t, s, (uint64_t)i, &r);
	assert_true(taken > 0);
	assert_saved_well(&f, t->what);
	fixture_close(&f);
}

TEST(no_optimizer_leaves_the_numbers)
{
	static const struct trial trials[] = {
		{.what = "sgd", .kind = OPTIM_SGD, .lr = 1e6},
		{.what = "sgd, decay", .kind = OPTIM_SGD, .lr = 1e6, .decay = 1},
		{.what = "momentum, decay", .kind = OPTIM_MOMENTUM, .lr = 1e6, .decay = 1},
		{.what = "nesterov, decay", .kind = OPTIM_NESTEROV, .lr = 1e6, .decay = 1},
		{.what = "adagrad, decay", .kind = OPTIM_ADAGRAD, .lr = 1e6, .decay = 1},
		{.what = "rmsprop, decay", .kind = OPTIM_RMSPROP, .lr = 1e6, .decay = 1},
		{.what = "adam, decay", .kind = OPTIM_ADAM, .lr = 1e6, .decay = 1},
		{.what = "easgd", .mode = MODE_EASGD, .kind = OPTIM_SGD, .lr = 1, .decay = 1},
		{.what = "ssp", .mode = MODE_SSP, .kind = OPTIM_SGD, .lr = 1e6, .decay = 1},
		{.what = "sync",
			.mode = MODE_SYNC,
			.kind = OPTIM_SGD,
			.lr = 1e6,
			.decay = 1,
			.batches = PUSHES + 1},
		{.what = "sync, adam",
			.mode = MODE_SYNC,
			.kind = OPTIM_ADAM,
			.lr = 1e6,
			.decay = 1,
			.sum = 1,
			.batches = PUSHES + 1},
	};

	for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]); i++) {
		struct trial t = trials[i];

		t.mode = t.mode ? t.mode : MODE_DOWNPOUR;
		run_trial(&t);
	}
}

TEST(delay_compensation_does_not_leave_the_numbers)
{
	static const enum optim_kind kinds[] = {OPTIM_SGD, OPTIM_MOMENTUM, OPTIM_NESTEROV,
		OPTIM_ADAGRAD, OPTIM_RMSPROP, OPTIM_ADAM};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		for (int adaptive = 0; adaptive < 2; adaptive++)
			run_trial(&(struct trial){
				.what = adaptive ? "adaptive compensation" : "compensation",
				.mode = MODE_DOWNPOUR,
				.kind = kinds[i],
				.lr = 0.1,
				.lambda = 1e6,
				.adaptive = adaptive});
}

/* Push the gradient of one batch, in a mode in which the core applies the sum of a step's
 * gradients. The push goes to the core directly, because fixture_message would count all of the
 * many batches of the epoch after each push. */
static void push_batch_of(
	struct core_fixture *f, struct stamp s, uint64_t seq, uint32_t i, const float *g)
{
	struct msg m = fixture_push(s, seq);

	fixture_slice(&m, 0, FIXTURE_PARAMS, g);
	m.push.work = (struct work){0, i, 1};
	m.push.images = 10;
	m.push.base_version = core_stats(f->core)->version;
	m.push.base_term = f->cfg.term;
	core_step(f->core, &(struct event){.kind = EVENT_MESSAGE, .peer = 9, .msg = &m}, f->now_ms);
}

/* The sum of 20,000 gradients of 1e15 is 2e19, and its square exceeds the range of a float. */
TEST(sums_do_not_leave_the_numbers)
{
	static const enum optim_kind kinds[] = {
		OPTIM_ADAGRAD, OPTIM_RMSPROP, OPTIM_ADAM, OPTIM_LBFGS};
	float g[FIXTURE_PARAMS];

	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		g[i] = i % 2 ? LARGEST : -LARGEST;
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		struct trial t = {.what = "sums",
			.mode = MODE_SANDBLASTER,
			.kind = kinds[k],
			.lr = 1,
			.sum = 1,
			.batches = 40000};
		struct core_fixture f;

		fixture_open(&f, config_of(&t));
		struct stamp s = join_trial(&f, &t, 9);
		uint64_t seq = 0;
		for (uint32_t i = 0; i < t.batches; i++) {
			/* each push of zeros makes up for one bad push, so the worker is not
			 * excluded */
			if (i % 2 == 1)
				push_batch_of(&f, s, ++seq, i, (const float[FIXTURE_PARAMS]){0});
			else
				push_batch_of(&f, s, ++seq, i, g);
		}
		for (uint32_t i = 0; i < t.batches && f.core->leases.n_done < t.batches; i++)
			push_batch_of(&f, s, ++seq, i, (const float[FIXTURE_PARAMS]){0});
		fixture_tick(&f, 0); /* at this tick the core counts the batches */
		assert_true(core_stats(f.core)->version > 0);
		assert_finite(&f, t.what, (int)seq);
		assert_saved_well(&f, t.what);
		fixture_close(&f);
	}
}

/* Make updates of `n` gradients each, with a learning rate that is n times as large. The weights
 * grow with every update. */
static void scaled_run(enum mode mode, enum optim_kind kind, uint32_t n, double lr)
{
	struct core_config cfg = fixture_training();
	int taken = 0, rejected = 0;
	struct cluster k;

	cfg.training.mode = mode;
	cfg.optim.kind = kind;
	cfg.optim.weight_decay = 1;
	cfg.rate.lr = lr;
	cfg.rate.scaling = LR_SCALING_LINEAR;
	cfg.push.buffer_size = mode == MODE_SYNC ? 1 : n;
	cfg.leases.min_workers = mode == MODE_SYNC ? n : 2;
	cfg.leases.max_batches = 1;
	cfg.durable = 0;
	cluster_open(&k, cfg, cfg.leases.min_workers, 100000, cluster_ones);
	while (!rejected) {
		for (uint32_t i = 0; i < k.n; i++)
			cluster_request(&k, i);
		for (uint32_t i = 0; i < k.n && !rejected; i++) {
			rejected = cluster_push(&k, i) != REJECT_NONE;
			assert_finite(&k.f, "scaled rate", ++taken);
		}
	}
	assert_int_equal(core_stats(k.f.core)->rejected[REJECT_NONFINITE], 1);
	assert_true(core_stats(k.f.core)->updates > 3);
	assert_saved_well(&k.f, "scaled rate");
	cluster_close(&k);
}

TEST(a_scaled_rate_does_not_leave_the_numbers)
{
	static const enum optim_kind kinds[] = {OPTIM_SGD, OPTIM_MOMENTUM, OPTIM_NESTEROV};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		for (double lr = 0.5; lr < 100; lr *= 2) {
			scaled_run(MODE_SYNC, kinds[i], 8, lr);
			scaled_run(MODE_DOWNPOUR, kinds[i], 20, lr);
		}
}

/* Each decision of the core depends only on state that a snapshot contains. Therefore a core that
 * continues from a snapshot accepts and rejects the same pushes. */
TEST(a_restart_decides_the_same)
{
	static const struct trial t = {.what = "restart",
		.mode = MODE_DOWNPOUR,
		.kind = OPTIM_NESTEROV,
		.lr = 1e3,
		.decay = 1};
	struct rng r = rng_seed(11, RNG_SIM, 0), again = r;
	struct core_fixture f, twin;
	struct stamp s, other;

	fixture_open(&f, config_of(&t));
	fixture_open(&twin, config_of(&t));
	s = join_trial(&f, &t, 9);
	other = join_trial(&twin, &t, 9);
	for (uint64_t i = 1; i <= 100; i++) {
		int taken = push_once(&f, &t, s, i, &r);

		fixture_restart(&twin);
		other = fixture_come_back(&twin, 9, other, i - 1);
		assert_int_equal(push_once(&twin, &t, other, i, &again), taken);
		if (!taken)
			break;
	}
	assert_memory_equal(
		core_weights(f.core), core_weights(twin.core), FIXTURE_PARAMS * sizeof(float));
	assert_true(core_stats(f.core)->rejected[REJECT_NONFINITE] == 1);
	fixture_close(&f);
	fixture_close(&twin);
}

/* ---- the bounds of a step ------------------------------------------------------------------- */

#define VALUES 64u

/* Returns 10^x with x uniform in [from, to). */
static double power_between(struct rng *r, double from, double to)
{
	return pow(10, from + (to - from) * (double)rng_below(r, 1 << 20) / (1 << 20));
}

static struct optim draw_optim(struct rng *r)
{
	struct optim o = {.kind = (enum optim_kind)rng_below(r, OPTIM_LBFGS),
		.eps = power_between(r, -12, 0),
		.momentum = rng_below(r, 4) ? 1 - power_between(r, -6, 0) : 0,
		.beta2 = rng_below(r, 4) ? 1 - power_between(r, -6, 0) : 0,
		.weight_decay = rng_below(r, 2) ? power_between(r, -6, 0) : 0};

	o.beta1 = o.momentum;
	o.rmsprop_alpha = o.beta2;
	return o;
}

struct values {
	float w[VALUES], vector[OPTIM_VECTORS][VALUES];
	float *state[OPTIM_VECTORS];
};

static void assert_below(const float *v, double bound, const char *what)
{
	for (size_t i = 0; i < VALUES; i++)
		if (!(fabs((double)v[i]) <= bound))
			fail_msg("%s: %g is over its bound %g", what, (double)v[i], bound);
}

/* Apply a step to the values [from, from + n), as for a push without a gradient of the others. */
static void apply_to_part(const struct optim *o, const struct optim_step *s, struct values *v,
	const float *g, size_t from, size_t n)
{
	float *state[OPTIM_VECTORS];

	for (size_t i = 0; i < OPTIM_VECTORS; i++)
		state[i] = v->state[i] + from;
	optim_apply(o, s, v->w + from, v->w + from, g + from, state, n);
}

/* Make steps with one optimizer until the next step would make a value that is not finite. Returns
 * the number of steps. */
static int walk_optim(struct rng *r)
{
	const struct optim o = draw_optim(r);
	struct values v = {.state = {NULL}};
	const float *seen[OPTIM_VECTORS];
	double rate = power_between(r, -6, 6);
	struct optim_step s = {1, rate, 1};
	struct optim_reach reach;

	for (size_t i = 0; i < OPTIM_VECTORS; i++)
		seen[i] = v.state[i] = v.vector[i];
	optim_measure(&o, &s, v.w, seen, VALUES, &reach);
	for (; s.step <= 300; s.step++) {
		float g[VALUES];
		double peak = power_between(r, -30, 15);

		for (size_t i = 0; i < VALUES; i++)
			g[i] = (float)(peak * (2 * (double)rng_below(r, 1 << 20) / (1 << 20) - 1));
		if (rng_below(r, 50) == 0)
			optim_measure(&o, &s, v.w, seen, VALUES, &reach);
		if (!optim_advance(&o, &s, peak, &reach))
			break;
		size_t from = rng_below(r, 2) ? rng_below(r, VALUES) : 0;
		apply_to_part(&o, &s, &v, g, from, VALUES - from);
		assert_below(v.w, reach.weight, "weight");
		for (size_t i = 0; i < optim_vectors(o.kind); i++)
			assert_below(v.state[i], reach.state[i], "state");
	}
	return (int)s.step;
}

TEST(adam_with_both_betas_0_takes_steps)
{
	const struct optim o = {.kind = OPTIM_ADAM, .eps = 1e-8};
	struct optim_reach reach = {.weight = 0};

	for (uint64_t step = 1; step <= 3; step++)
		assert_true(optim_advance(&o, &(struct optim_step){step, 0.1, 1}, 1, &reach));
	assert_true(reach.weight >= 0.3 && reach.weight < 1);
}

TEST(bounds_hold_for_any_optimizer)
{
	struct rng r = rng_seed(3, RNG_SIM, 1);
	int steps = 0;

	for (int i = 0; i < 3000; i++)
		steps += walk_optim(&r);
	assert_true(steps > 3000 * 100);
}
