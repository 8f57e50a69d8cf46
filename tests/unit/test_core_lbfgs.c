/*
 * Proves the promises of server/core/lbfgs.h. The points of the optimizer equal those of a serial
 * reference in double precision, no matter which workers compute the portions, and even if workers
 * die. L-BFGS converges on the problems for which theory guarantees it. The safeguards that lbfgs.h
 * describes work.
 */
#include "tests/support/serial_lbfgs.h"
#include "tests/support/test.h"

/* Returns a configuration in which each epoch is one step over the whole data set. */
static struct core_config search_config(size_t n_params, uint32_t steps)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = MODE_SANDBLASTER;
	cfg.optim.kind = OPTIM_LBFGS;
	cfg.n_params = n_params;
	cfg.training.epochs = steps;
	cfg.durable = 0;
	cfg.lbfgs.history = 5;
	cfg.lbfgs.trials = 20;
	cfg.lbfgs.armijo = SERIAL_ARMIJO;
	cfg.lbfgs.wolfe = SERIAL_WOLFE;
	cfg.limits.norm_ratio = 4;
	return cfg;
}

/* ---- problems -------------------------------------------------------------------------------- */

#define CLASSES  3u
#define FEATURES 5u

/* Computes softmax regression on ten artificial images of portion i, with 3 classes, 5 features and
 * a bias. */
static double softmax_portion(uint32_t i, const float *w, double *g)
{
	struct rng r = rng_seed(7, RNG_SIM, i);
	double loss = 0;

	for (int image = 0; image < 10; image++) {
		double x[FEATURES + 1], z[CLASSES], sum = 0;
		uint64_t label = rng_below(&r, CLASSES);

		for (size_t j = 0; j < FEATURES; j++)
			x[j] = (double)rng_below(&r, 2001) / 1000 - 1 + (j == label ? 0.8 : 0);
		x[FEATURES] = 1;
		for (size_t c = 0; c < CLASSES; c++) {
			z[c] = 0;
			for (size_t j = 0; j <= FEATURES; j++)
				z[c] += (double)w[c * (FEATURES + 1) + j] * x[j];
			sum += exp(z[c]);
		}
		loss += (log(sum) - z[label]) / 10;
		for (size_t c = 0; c < CLASSES; c++)
			for (size_t j = 0; j <= FEATURES; j++)
				g[c * (FEATURES + 1) + j] +=
					(exp(z[c]) / sum - (c == label)) * x[j] / 10;
	}
	/* this term makes the loss strictly convex */
	for (size_t j = 0; j < CLASSES * (FEATURES + 1); j++) {
		loss += 0.005 * (double)w[j] * (double)w[j];
		g[j] += 0.01 * (double)w[j];
	}
	return loss;
}

/* The slope of this loss is so small that the line search must extend its first step to satisfy the
 * Wolfe condition. */
static double plain_portion(uint32_t i, const float *w, double *g)
{
	double loss = cluster_bowl(i, w, g);

	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] /= 1000;
	return loss / 1000;
}

/* Computes Rosenbrock's function, whose graph is a curved valley. Even portions give the term that
 * grows along the valley, 2 (1 - x)^2. Odd portions give the term that grows towards the sides of
 * the valley, 200 (y - x^2)^2. */
static double valley_portion(uint32_t i, const float *w, double *g)
{
	double x = (double)w[0], y = (double)w[1], wall = y - x * x;

	if (i % 2 == 0) {
		g[0] = -4 * (1 - x);
		return 2 * (1 - x) * (1 - x);
	}
	g[0] = -800 * x * wall;
	g[1] = 400 * wall;
	return 200 * wall * wall;
}

/* ---- the path -------------------------------------------------------------------------------- */

struct walk {
	struct cluster k;
	struct serial_lbfgs q;
	uint64_t steps;
	/* the largest difference of any weight from the reference, over all steps so far */
	double max;
};

/* If the core has ended a step, let the reference make this step, too. The tests call this function
 * after each event. */
static void walk_follow(struct walk *a)
{
	if (core_stats(a->k.f.core)->updates == a->steps)
		return;
	assert_int_equal(core_stats(a->k.f.core)->updates, ++a->steps);
	serial_step(&a->q);
	for (size_t j = 0; j < a->q.n; j++)
		a->max = fmax(a->max, fabs((double)a->k.f.core->lbfgs.x[j] - a->q.x[j]));
}

static void walk_open(
	struct walk *a, size_t n_params, uint32_t steps, uint32_t n, cluster_gradient_fn *fn)
{
	struct core_config cfg = search_config(n_params, steps);

	cfg.leases.max_batches = 3;
	cluster_open(&a->k, cfg, n, 115, fn);
	a->q = serial_begin(&a->k);
	a->steps = 0;
	a->max = 0;
}

static void walk_end(struct walk *a, const char *what, double tolerance)
{
	print_message("%s: %llu steps, %llu trials (serial %u), farthest %.1e\n", what,
		(unsigned long long)a->steps, (unsigned long long)core_stats(a->k.f.core)->trials,
		a->q.trials, a->max);
	assert_int_equal(core_stats(a->k.f.core)->trials, a->q.trials);
	assert_true(a->max <= tolerance);
	for (uint32_t e = 0; e < a->k.f.cfg.training.epochs; e++)
		assert_int_equal(core_epoch(a->k.f.core, e)->images, 115);
	cluster_close(&a->k);
}

static void walk_alone(const char *what, size_t n_params, uint32_t steps, cluster_gradient_fn *fn)
{
	struct walk a;

	walk_open(&a, n_params, steps, 1, fn);
	while (!fixture_count(&a.k.f, EFFECT_FINISH)) {
		cluster_act(&a.k, 0);
		walk_follow(&a);
	}
	assert_int_equal(a.steps, steps);
	walk_end(&a, what, 1e-4);
}

TEST(its_path_equals_the_serial_reference)
{
	walk_alone("bowl", FIXTURE_PARAMS, 8, cluster_bowl);
	walk_alone("plain", FIXTURE_PARAMS, 5, plain_portion);
	walk_alone("softmax", CLASSES * (FEATURES + 1), 12, softmax_portion);
}

/* Let five workers act in random order. In the middle of the third step, one of the workers dies
 * and does not return. */
static void walk_together(uint64_t seed, int restarts)
{
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	uint32_t alive = 5;
	struct walk a;

	walk_open(&a, CLASSES * (FEATURES + 1), 10, 5, softmax_portion);
	while (!fixture_count(&a.k.f, EFFECT_FINISH)) {
		if (alive == 5 && a.steps == 2 && a.k.worker[4].grant.work.count &&
			a.k.f.core->accumulator.pushes) {
			alive = 4;
			a.k.f.now_ms += 1200;
			for (uint32_t i = 0; i < 4; i++)
				fixture_heartbeat(&a.k.f, a.k.worker[i].peer + 1, a.k.worker[i].s);
			fixture_tick(&a.k.f, 0);
			cluster_receive(&a.k);
			assert_int_equal(fixture_worker(&a.k.f, 5).state, SESSION_DEAD);
		} else if (restarts && rng_below(&r, 30) == 0) {
			cluster_restart(&a.k, alive);
		} else {
			cluster_act(&a.k, (uint32_t)rng_below(&r, alive));
		}
		walk_follow(&a);
	}
	assert_int_equal(alive, 4);
	walk_end(&a, "softmax, five workers, one killed", 1e-4);
}

TEST(several_workers_go_the_same_way_though_one_is_killed)
{
	for (uint64_t seed = 1; seed <= 10; seed++) {
		print_message("seed %llu\n", (unsigned long long)seed);
		walk_together(seed, 0);
	}
}

TEST(restarts_leave_the_way_as_it_is)
{
	for (uint64_t seed = 1; seed <= 10; seed++) {
		print_message("seed %llu\n", (unsigned long long)seed);
		walk_together(seed, 1);
	}
}

/* With one worker and the same order of events, a restart between any two events changes no bit of
 * the result. A restart in the middle of a pass or a line search changes no bit either. */
TEST(a_restart_in_any_moment_of_a_search_changes_no_bit)
{
	float expected[CLUSTER_PARAMS];

	for (int killed = -1; killed < 200; killed++) {
		struct core_config cfg = search_config(2, 9);
		struct cluster k;

		cluster_open(&k, cfg, 1, 40, valley_portion);
		fixture_set_weight(&k.f, 0, -1.2f);
		fixture_set_weight(&k.f, 1, 1);
		for (int n = 0; !fixture_count(&k.f, EFFECT_FINISH); n++) {
			cluster_act(&k, 0);
			if (n == killed)
				cluster_restart(&k, 1);
			assert_in_range(n, 0, 2000);
		}
		if (killed < 0)
			memcpy(expected, core_weights(k.f.core), 2 * sizeof(float));
		assert_memory_equal(core_weights(k.f.core), expected, 2 * sizeof(float));
		cluster_close(&k);
	}
}

/* ---- convergence ----------------------------------------------------------------------------- */

TEST(the_valley_leads_to_its_end)
{
	struct core_config cfg = search_config(2, 60);
	struct cluster k;

	cluster_open(&k, cfg, 3, 40, valley_portion);
	fixture_set_weight(&k.f, 0, -1.2f);
	fixture_set_weight(&k.f, 1, 1);
	struct rng r = rng_seed(4, RNG_SIM, 0);
	cluster_run(&k, 3, &r);
	print_message("(%.7f, %.7f) after %llu trials\n", (double)core_weights(k.f.core)[0],
		(double)core_weights(k.f.core)[1],
		(unsigned long long)core_stats(k.f.core)->trials);
	assert_float_equal(core_weights(k.f.core)[0], 1, 1e-4);
	assert_float_equal(core_weights(k.f.core)[1], 1, 1e-4);
	cluster_close(&k);
}

/* At the minimum of a strictly convex problem, the norm of the gradient is nearly 0. */
TEST(softmax_regression_converges)
{
	struct core_config cfg = search_config(CLASSES * (FEATURES + 1), 40);
	double x[CLUSTER_PARAMS], g[CLUSTER_PARAMS];
	struct cluster k;

	cluster_open(&k, cfg, 1, 200, softmax_portion);
	struct serial_lbfgs q = serial_begin(&k);
	double before = sqrt(serial_dot(q.g, q.g, q.n));
	cluster_run(&k, 1, NULL);
	for (size_t j = 0; j < q.n; j++)
		x[j] = (double)core_weights(k.f.core)[j];
	q = (struct serial_lbfgs){.k = &k, .n = q.n};
	(void)serial_loss(&q, x, g);
	print_message("|g| %.3g -> %.3g\n", before, sqrt(serial_dot(g, g, q.n)));
	assert_true(sqrt(serial_dot(g, g, q.n)) < 1e-4 * before);
	cluster_close(&k);
}

/* ---- wrong gradients ------------------------------------------------------------------------- */

static double factor; /* the gradients of the worker that acts now are multiplied by this number */

static double scaled_portion(uint32_t i, const float *w, double *g)
{
	double loss = softmax_portion(i, w, g);

	for (size_t j = 0; j < CLASSES * (FEATURES + 1); j++)
		g[j] *= factor;
	return loss;
}

/* Let four correct workers train with a fifth one, whose gradients are multiplied by `wrong`.
 * Return the loss with the final weights. */
static double train_with_wrong_gradients(double wrong, double ratio, uint32_t *states)
{
	struct core_config cfg = search_config(CLASSES * (FEATURES + 1), 40);
	double x[CLUSTER_PARAMS], g[CLUSTER_PARAMS];
	struct rng r = rng_seed(3, RNG_SIM, 0);
	struct cluster k;

	cfg.leases.max_batches = 3;
	cfg.limits.norm_ratio = ratio;
	cluster_open(&k, cfg, 5, 115, scaled_portion);
	for (int n = 0; !fixture_count(&k.f, EFFECT_FINISH); n++) {
		uint32_t i = (uint32_t)rng_below(&r, 5);

		factor = i == 4 ? wrong : 1;
		if (fixture_worker(&k.f, i + 1).state != SESSION_DEAD)
			cluster_act(&k, i);
		assert_in_range(n, 0, 100000);
	}
	*states = 0;
	for (uint32_t i = 0; i < 5; i++)
		*states |= (uint32_t)(fixture_worker(&k.f, i + 1).state == SESSION_DEAD) << i;
	factor = 1;
	struct serial_lbfgs q = serial_begin(&k);
	for (size_t j = 0; j < q.n; j++)
		x[j] = (double)core_weights(k.f.core)[j];
	double loss = serial_loss(&q, x, g);
	cluster_close(&k);
	return loss;
}

TEST(a_worker_with_gradients_of_another_size_is_excluded)
{
	uint32_t excluded;
	double best = train_with_wrong_gradients(1, 4, &excluded);

	assert_int_equal(excluded, 0);
	for (double wrong = -10; wrong < 2000; wrong += 1010) {
		double loss = train_with_wrong_gradients(wrong, 4, &excluded);

		print_message("%.0f times: loss %.5f, %.5f without\n", wrong, loss, best);
		assert_int_equal(excluded, 1u << 4);
		assert_true(loss < 1.001 * best);
	}
	double loss = train_with_wrong_gradients(-10, 0, &excluded);

	assert_int_equal(excluded, 0);
	assert_true(loss > 1.1 * best);
}

/* ---- safeguards ----------------------------------------------------------------------------- */

/* Computes a loss without a minimum. The slope of this loss becomes steeper and steeper. */
static double hill_portion(uint32_t i, const float *w, double *g)
{
	(void)i;
	g[0] = -(double)w[0] - 1;
	return -(double)w[0] * (double)w[0] / 2 - (double)w[0];
}

TEST(a_pair_without_curvature_is_not_kept)
{
	struct core_config cfg = search_config(1, 3);
	struct cluster k;

	cfg.lbfgs.trials = 4;
	cluster_open(&k, cfg, 1, 10, hill_portion);
	cluster_run(&k, 1, NULL);
	assert_int_equal(core_stats(k.f.core)->updates, 3);
	assert_int_equal(k.f.core->lbfgs.pairs, 0);
	/* the loss has decreased although L-BFGS has kept no pair */
	assert_true(core_weights(k.f.core)[0] > 1);
	cluster_close(&k);
	cfg.n_params = FIXTURE_PARAMS;
	cluster_open(&k, cfg, 1, 10, cluster_bowl);
	cluster_run(&k, 1, NULL);
	assert_int_equal(k.f.core->lbfgs.pairs, 3);
	cluster_close(&k);
}

/* Make two steps. The third step begins when worker 1 has evaluated its portion. */
static void pause_after_two_steps(struct cluster *k)
{
	while (core_stats(k->f.core)->updates < 1)
		cluster_act(k, 0);
	cluster_request(k, 1);
	assert_int_equal(k->worker[1].grant.kind, GRANT_EVAL);
	while (core_stats(k->f.core)->updates < 2)
		cluster_act(k, 0);
	assert_int_equal(k->f.core->lbfgs.searching, 0);
	assert_int_equal(k->f.core->lbfgs.pairs, 2);
}

TEST(a_direction_that_goes_up_drops_the_history)
{
	struct core_config cfg = search_config(FIXTURE_PARAMS, 9);
	double slope = 0;
	struct lbfgs *b;
	struct cluster k;

	cluster_open(&k, cfg, 2, 30, cluster_bowl);
	b = &k.f.core->lbfgs;
	pause_after_two_steps(&k);
	/* change the sign of y^T s in both pairs, so that the direction goes uphill */
	for (uint32_t i = 0; i < 2; i++)
		b->ys[i] = -b->ys[i];
	cluster_evaluate(&k, 1);
	assert_int_equal(b->searching, 1);
	assert_int_equal(b->pairs, 0);
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		slope -= (double)b->g[j] * (double)b->g[j];
	assert_float_equal((float)b->slope, (float)slope, 1e-6);
	cluster_close(&k);
}

/* Computes the loss of cluster_bowl, and a gradient with the wrong sign. */
static double wrong_sign_portion(uint32_t i, const float *w, double *g)
{
	double loss = cluster_bowl(i, w, g);

	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = -g[j];
	return loss;
}

TEST(a_search_that_finds_nothing_ends_where_it_began)
{
	struct core_config cfg = search_config(FIXTURE_PARAMS, 5);
	float here[FIXTURE_PARAMS];
	struct cluster k;

	cfg.lbfgs.trials = 6;
	cluster_open(&k, cfg, 2, 30, cluster_bowl);
	pause_after_two_steps(&k);
	memcpy(here, k.f.core->lbfgs.x, sizeof(here));
	uint64_t trials = core_stats(k.f.core)->trials;
	k.fn = wrong_sign_portion; /* from now on, new gradients have the wrong sign */
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		k.f.core->lbfgs.g[j] = -k.f.core->lbfgs.g[j];
	cluster_evaluate(&k, 1);
	cluster_run(&k, 1, NULL);
	assert_int_equal(core_stats(k.f.core)->updates, 5);
	assert_int_equal(k.f.core->lbfgs.pairs, 0);
	/* four line searches have failed: one along the direction d, and then three along the
	 * gradient */
	assert_int_equal(core_stats(k.f.core)->trials - trials, 4 * 6);
	assert_memory_equal(core_weights(k.f.core), here, sizeof(here));
	cluster_close(&k);
}
