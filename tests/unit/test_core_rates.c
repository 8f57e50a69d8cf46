/*
 * Proves --lr-scaling: the factors follow the formulas of Goyal 2017 and Malladi 2022, and the core
 * applies them to a step of n gradients (sync) and to a gradient that is tau versions old
 * (downpour), together with the schedule and the staleness rule. Also proves the rate of a push of
 * fewer than --n-push batches.
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
	cluster_open(&k, cfg, 5, 4000, about_one);
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
	/* a worker that pushes twice in a row has no stale gradient the second time */
	assert_true(fabs(distance_of_push(&k, 4, 1) - 0.25) < 1e-3);
	/* a new worker, or one that has paused, has at most the staleness of all others together */
	for (int pushes = 0; pushes < 20; pushes++)
		(void)distance_of_push(&k, 0, 0);
	assert_true(fabs(distance_of_push(&k, 4, 1) - 0.25 / 4) < 1e-3);
	cluster_close(&k);
}

/* ---- pushes of fewer than --n-push batches --------------------------------------------------- */

static struct core_config config_of_four(enum mode mode)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = mode;
	cfg.ssp.bound = 100;
	cfg.rate.lr = 0.25;
	cfg.push.n_push = cfg.push.n_fetch = 4;
	cfg.leases.max_batches = 12;
	cfg.durable = 0;
	return cfg;
}

/* Pushes the first `count` batches of the grant of worker i, and leaves the others for the next
 * pushes. Returns the amount by which the push changes the first weight. */
static double push_part_of(struct cluster *k, uint32_t i, uint32_t count)
{
	struct work *work = &k->worker[i].grant.work, all = *work;
	float before = core_weights(k->f.core)[0];

	work->count = count;
	assert_int_equal(cluster_push(k, i), REJECT_NONE);
	*work = (struct work){all.epoch, all.first + count, all.count - count};
	return (double)before - (double)core_weights(k->f.core)[0];
}

/* A worker that splits its work into small pushes does not move the weights by more than one that
 * pushes --n-push batches together. */
TEST(a_push_of_fewer_batches_has_a_part_of_the_rate)
{
	static const enum mode modes[] = {MODE_DOWNPOUR, MODE_SSP};

	for (size_t m = 0; m < 2; m++) {
		struct cluster k;

		cluster_open(&k, config_of_four(modes[m]), 1, 400, cluster_ones);
		assert_int_equal(cluster_request(&k, 0), 1);
		assert_true(push_part_of(&k, 0, 4) == 0.25);
		assert_true(push_part_of(&k, 0, 1) == 0.25 / 4);
		assert_true(push_part_of(&k, 0, 2) == 0.25 / 2);
		/* more batches than --n-push have no higher rate */
		assert_true(push_part_of(&k, 0, 5) == 0.25);
		cluster_close(&k);
	}
}

/* An optimizer that keeps a sum or a mean of the gradients applies the gradient of a push in later
 * updates, too, with the rates of the later pushes. So the part multiplies the gradient itself,
 * after clipping. The gradients are ones; each push is clipped to the norm sqrt(8) / 2. */
TEST(later_updates_apply_a_part_of_the_gradient_of_fewer_batches)
{
	static const enum optim_kind kinds[] = {OPTIM_MOMENTUM, OPTIM_NESTEROV, OPTIM_ADAM};
	const double m = 0.9, q = 0.999, one = 0.5 / 4, whole = 0.5; /* the gradients */
	const double v = (1 - m) * (m * one + whole) / (1 - m * m);
	const double squares = (1 - q) * (q * one * one + whole * whole) / (1 - q * q);
	const double changes[][2] = {{0.25 * one, 0.25 * (m * one + whole)},
		{0.25 * (1 + m) * one, 0.25 * (whole + m * (m * one + whole))},
		{0.25 / 4, 0.25 * v / sqrt(squares)}};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct core_config cfg = config_of_four(MODE_DOWNPOUR);
		struct cluster k;

		cfg.optim.kind = kinds[i];
		cfg.optim.clip_norm = sqrt(8) / 2;
		cluster_open(&k, cfg, 1, 400, cluster_ones);
		assert_int_equal(cluster_request(&k, 0), 1);
		assert_float_equal(push_part_of(&k, 0, 1), changes[i][0], 1e-6);
		assert_float_equal(push_part_of(&k, 0, 4), changes[i][1], 1e-6);
		cluster_close(&k);
	}
}

/* A sum of fewer gradients is smaller by itself. A push of easgd has no gradient. */
TEST(sums_and_elastic_pushes_have_the_whole_rate)
{
	for (int sum = 0; sum < 2; sum++) {
		struct core_config cfg = config_of_four(sum ? MODE_DOWNPOUR : MODE_EASGD);
		struct cluster k;

		cfg.push.sum = sum ? PUSH_SUM : PUSH_MEAN;
		cluster_open(&k, cfg, 1, 400, cluster_ones);
		assert_int_equal(cluster_request(&k, 0), 1);
		assert_true(push_part_of(&k, 0, 1) == (sum ? 0.25 : 1));
		assert_true(push_part_of(&k, 0, 4) == (sum ? 0.25 : 1));
		cluster_close(&k);
	}
}

/* The last push before a crash is not in the snapshot. Its replay has the same rate. */
TEST(a_replay_of_fewer_batches_has_the_same_rate)
{
	struct core_config cfg = config_of_four(MODE_DOWNPOUR);
	struct core_snapshot image;
	struct cluster k;
	float end;

	cluster_open(&k, cfg, 1, 400, cluster_bowl);
	assert_int_equal(cluster_request(&k, 0), 1);
	(void)push_part_of(&k, 0, 4);
	image = fixture_save(&k.f);
	float g[CLUSTER_PARAMS];
	k.worker[0].grant.work.count = 1;
	struct msg again = cluster_gradient(&k, 0, g);
	(void)push_part_of(&k, 0, 1);
	end = core_weights(k.f.core)[0];
	again.push.code = fixture_sent(&k.f, k.worker[0].peer, MSG_ACK)->ack.code;
	fixture_close(&k.f);
	fixture_load(&k.f, k.f.cfg, &image);
	fixture_drop(&image);
	struct msg back = fixture_resume(k.worker[0].s, 2, 1);
	back.hello.data = k.data;
	fixture_message(&k.f, k.worker[0].peer, &back);
	again.push.stamp = fixture_sent(&k.f, k.worker[0].peer, MSG_WELCOME)->welcome.stamp;
	assert_int_equal(fixture_acked(&k.f, k.worker[0].peer, &again).reject, REJECT_NONE);
	assert_true(core_weights(k.f.core)[0] == end);
	fixture_close(&k.f);
}

/* Returns the change of a weight by a buffer of three pushes of these numbers of batches. */
static double buffer_of(enum aggregate_rule rule, const uint32_t count[3])
{
	struct core_config cfg = config_of_four(MODE_DOWNPOUR);
	struct cluster k;
	double change = 0;

	cfg.push.buffer_size = 3;
	cfg.push.aggregate = rule;
	cluster_open(&k, cfg, 3, 400, cluster_ones);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(cluster_request(&k, i), 1);
		change += push_part_of(&k, i, count[i]);
	}
	assert_int_equal(core_stats(k.f.core)->version, 1);
	cluster_close(&k);
	return change;
}

/* The rate of the update is the mean of the parts of its pushes. With a robust rule each worker
 * counts once in an update, whatever its pushes are, and no worker may lower the rate of an update
 * by many small pushes. */
TEST(a_push_of_fewer_batches_has_a_part_of_the_weight_in_a_buffer)
{
	static const uint32_t whole[3] = {4, 4, 4}, single[3] = {1, 1, 1}, mixed[3] = {4, 1, 1};

	assert_float_equal(buffer_of(AGGREGATE_MEAN, whole), 0.25, 1e-7);
	assert_float_equal(buffer_of(AGGREGATE_MEAN, single), 0.25 / 4, 1e-7);
	assert_float_equal(buffer_of(AGGREGATE_MEAN, mixed), 0.25 / 2, 1e-7);
	assert_float_equal(buffer_of(AGGREGATE_MEDIAN, single), 0.25, 1e-7);
}
