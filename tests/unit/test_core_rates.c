/*
 * Proves --lr-scaling: the factors follow the formulas of Goyal 2017 and Malladi 2022, and the core
 * applies them to a step of n gradients (sync) and to a gradient that is tau versions old
 * (downpour), together with the schedule and the staleness rule.
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

static const enum lr_scaling rules_tried[] = {LR_SCALING_NONE, LR_SCALING_SQRT, LR_SCALING_LINEAR};

static double expected_factor(enum lr_scaling how, double ratio)
{
	return how == LR_SCALING_NONE ? 1 : how == LR_SCALING_SQRT ? sqrt(ratio) : ratio;
}

TEST(factors_follow_the_formula)
{
	for (size_t i = 0; i < 3; i++)
		for (double ratio = 1.0 / 64; ratio <= 64; ratio *= 2)
			assert_true(lr_scaling_factor(rules_tried[i], ratio, 0, 0) ==
				    expected_factor(rules_tried[i], ratio));
}

TEST(a_factor_above_one_rises_on_a_line)
{
	for (uint64_t done = 0; done < 20; done++) {
		double part = done < 10 ? (double)done / 10 : 1;

		assert_true(fabs(lr_scaling_factor(LR_SCALING_LINEAR, 8, done, 10) -
				    (1 + 7 * part)) < 1e-12);
		assert_true(lr_scaling_factor(LR_SCALING_LINEAR, 0.125, done, 10) == 0.125);
	}
}

/* Check that a step of sync with n gradients of ones moves each weight by lr times the factor of
 * n. */
static void a_step_of_n_gradients(enum lr_scaling how, uint32_t n)
{
	struct core_config cfg = fixture_training();
	struct cluster k;

	cfg.training.mode = MODE_SYNC;
	cfg.durable = 0;
	cfg.rate.lr = 0.25;
	cfg.rate.scaling = how;
	cfg.leases.min_workers = n;
	cluster_open(&k, cfg, n, 400, cluster_ones);
	for (uint32_t i = 0; i < n; i++)
		cluster_request(&k, i);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(cluster_push(&k, i), REJECT_NONE);
	assert_int_equal(core_stats(k.f.core)->updates, 1);
	assert_true(core_weights(k.f.core)[3] == -(float)(0.25 * expected_factor(how, n)));
	cluster_close(&k);
}

TEST(a_sync_step_scales_with_its_gradients)
{
	for (size_t i = 0; i < 3; i++)
		for (uint32_t n = 1; n <= CLUSTER_WORKERS; n++)
			a_step_of_n_gradients(rules_tried[i], n);
}

/* Check the learning rate of pushes that are `tau` versions old when they arrive. */
static void an_old_gradient(enum lr_scaling how, enum staleness_scaling stale, uint64_t tau)
{
	struct core_config cfg = fixture_config();
	double rate = 0.5 * expected_factor(how, 1 / (1 + (double)tau));
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	cfg.rate.lr = 0.5;
	cfg.rate.scaling = how;
	cfg.rate.staleness_scaling = stale;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	for (uint64_t seq = 1; seq <= 9; seq++) {
		m = fixture_push(s, seq);
		fixture_applied(&f, 9, &m);
	}
	m = fixture_push(s, 10);
	m.push.base_version = core_stats(f.core)->version - tau;
	fixture_slice(&m, 0, 1, fixture_ones);
	fixture_applied(&f, 9, &m);
	if (stale == STALE_INVERSE && tau > 1)
		rate /= (double)tau;
	assert_true(core_weights(f.core)[0] == -(float)rate);
	fixture_close(&f);
}

TEST(a_stale_gradient_scales_with_its_staleness)
{
	for (size_t i = 0; i < 3; i++)
		for (uint64_t tau = 0; tau < 10; tau++) {
			an_old_gradient(rules_tried[i], STALE_CONSTANT, tau);
			an_old_gradient(rules_tried[i], STALE_INVERSE, tau);
		}
}

/* Gives batch i a gradient of about 1, because a worker must not send the same gradient again and
 * again. */
static double about_one(uint32_t i, const float *w, double *g)
{
	(void)w;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = 1 + 1e-6 * i;
	return 1;
}

/* Let worker i push a gradient, and request its next work. If `claims` is 1, the push names
 * the newest version. Return by how much the push has moved a weight. */
static double distance_of_push(struct cluster *k, uint32_t i, int claims)
{
	double before = (double)core_weights(k->f.core)[3];

	if (claims)
		k->worker[i].version = core_stats(k->f.core)->version;
	assert_int_equal(cluster_push(k, i), REJECT_NONE);
	double distance = before - (double)core_weights(k->f.core)[3];

	cluster_request(k, i);
	return distance;
}

/* A worker that pulls just before it pushes, or names a version that it does not have, pushes with
 * a staleness of 0. Its gradients must not count more than those of the other workers. */
TEST(new_weights_just_before_a_push_give_no_more_weight)
{
	struct core_config cfg = fixture_training();
	double honest = 0, liar = 0;
	struct cluster k;

	cfg.durable = 0;
	cfg.rate.lr = 0.25;
	cfg.rate.staleness_scaling = STALE_INVERSE;
	cfg.limits.norm_ratio = 4;
	cfg.leases.max_batches = 1;
	cluster_open(&k, cfg, 5, 16000, about_one);
	for (uint32_t i = 0; i < 5; i++)
		cluster_request(&k, i);
	for (int round = 0; round < 5; round++)
		for (uint32_t i = 0; i < 5; i++) {
			double distance = distance_of_push(&k, i, i == 4);

			if (i == 4)
				liar = distance;
			else
				honest = distance;
		}
	assert_true(fabs(honest - 0.25 / 4) < 1e-3);
	assert_true(fabs(liar - honest) < 1e-3);
	/* a new worker, or one that has paused, has at most the staleness of all others together */
	for (int pushes = 0; pushes < 20; pushes++)
		(void)distance_of_push(&k, 0, 0);
	assert_true(fabs(distance_of_push(&k, 4, 1) - honest) < 1e-3);
	cluster_close(&k);
}
