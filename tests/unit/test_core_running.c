/*
 * Proves that running statistics (common/model.h, batchnorm) are not weights: no optimizer,
 * clipping, norm limit, weight decay, delay compensation, rate or sum changes them, and they change
 * no weight. Each update moves a running statistic by a tenth of its distance to the statistics of
 * the batches in the update, even with a robust rule. The server limits the statistics of a push
 * (server/core/running.h). In a run of vector:N, the names of the tensors decide which statistics
 * have limits. Covers attack A13 of docs/faults.md.
 */
#include "tests/support/core_cluster.h"
#include "common/model.h"
#include "server/core/accumulator.h"
#include "server/core/running.h"
#include "tests/support/test.h"

#define RUNNING 3u
#define TRAINED (FIXTURE_PARAMS - RUNNING)
#define STEPS   60

static struct core_config running_config(void)
{
	struct core_config cfg = fixture_config();

	cfg.n_running = RUNNING;
	cfg.rate.lr = 0.05;
	return cfg;
}

TEST(the_part_is_the_momentum_of_batchnorm)
{
	assert_true(RUNNING_PART >= BATCHNORM_MOMENTUM && RUNNING_PART <= BATCHNORM_MOMENTUM);
	assert_true(RUNNING_EPS >= BATCHNORM_EPS && RUNNING_EPS <= BATCHNORM_EPS);
}

static double next_statistic(double now, double batch)
{
	return (float)(0.9 * now + 0.1 * batch);
}

/* ---- asynchronous pushes --------------------------------------------------------------------- */

/* Run STEPS pushes, with a restart of the server in the middle. The statistics of the pushes are
 * random, or 0 if `plain` is 1. Writes the final weights to `w`, and the statistics of a serial
 * computation to `expected`. */
static void compare_running(
	const struct core_config *cfg, int plain, float w[FIXTURE_PARAMS], double expected[RUNNING])
{
	struct core_fixture f;
	struct rng r = rng_seed(9, RNG_SIM, 1);

	fixture_open(&f, *cfg);
	struct stamp s = fixture_join(&f, 9, "w");
	memset(expected, 0, RUNNING * sizeof(*expected));
	for (uint64_t seq = 1; seq <= STEPS; seq++) {
		struct msg m = fixture_push(s, seq);
		float g[FIXTURE_PARAMS];

		for (size_t i = 0; i < FIXTURE_PARAMS; i++)
			g[i] = (float)(4 * rng_unit(&r) - 2);
		for (size_t i = 0; i < RUNNING; i++) {
			g[TRAINED + i] = plain ? 0 : 1000 * g[TRAINED + i];
			expected[i] = next_statistic(expected[i], (double)g[TRAINED + i]);
		}
		fixture_slice(&m, 0, FIXTURE_PARAMS, g);
		m.push.base_version = seq > 3 ? seq - 3 : 0; /* each push is two versions late */
		fixture_applied(&f, 9, &m);
		(void)fixture_acked(&f, 9, &m); /* the same push again, which must not count */
		if (seq == STEPS / 2) {
			fixture_restart(&f);
			s = fixture_come_back(&f, 9, s, seq);
		}
	}
	memcpy(w, core_weights(f.core), FIXTURE_PARAMS * sizeof(*w));
	fixture_close(&f);
}

static void check_run(const struct core_config *cfg)
{
	float w[FIXTURE_PARAMS], plain[FIXTURE_PARAMS];
	double expected[RUNNING], zero[RUNNING];

	compare_running(cfg, 0, w, expected);
	compare_running(cfg, 1, plain, zero);
	assert_memory_equal(w, plain, TRAINED * sizeof(*w));
	for (size_t i = 0; i < TRAINED; i++)
		assert_true(w[i] > 0 || w[i] < 0);
	for (size_t i = 0; i < RUNNING; i++) {
		assert_true(fabs((double)w[TRAINED + i] - expected[i]) <= 1e-3);
		assert_true(plain[TRAINED + i] == 0);
	}
}

TEST(no_optimizer_or_rule_touches_them)
{
	for (int optim = OPTIM_SGD; optim < OPTIM_LBFGS; optim++)
		for (int dc = DC_NONE; dc <= DC_ADAPTIVE; dc++) {
			struct core_config cfg = running_config();

			cfg.optim.kind = (enum optim_kind)optim;
			cfg.dc.kind = (enum delay_compensation)dc;
			check_run(&cfg);
			cfg.optim.clip_norm = 0.5;
			cfg.optim.weight_decay = 0.01;
			cfg.rate.staleness_scaling = STALE_INVERSE;
			check_run(&cfg);
		}
}

TEST(the_norm_of_a_push_does_not_count_them)
{
	struct core_config cfg = running_config();

	cfg.limits.reject_norm = 10;
	check_run(&cfg);
}

TEST(the_center_of_easgd_does_not_move_them)
{
	struct core_config cfg = running_config();

	cfg.training.mode = MODE_EASGD;
	check_run(&cfg);
}

TEST(a_push_without_them_leaves_them_alone)
{
	struct core_fixture f;
	float g[FIXTURE_PARAMS] = {1, 1, 1, 1, 1, 10, 20, 30};

	fixture_open(&f, running_config());
	struct stamp s = fixture_join(&f, 9, "w");
	struct msg m = fixture_push(s, 1);
	fixture_slice(&m, 0, TRAINED, g);
	fixture_applied(&f, 9, &m);
	assert_true(core_weights(f.core)[TRAINED] == 0);
	m = fixture_push(s, 2);
	/* the slice has two values: one weight and one running statistic */
	fixture_slice(&m, TRAINED - 1, 2, g + TRAINED - 1);
	fixture_applied(&f, 9, &m);
	assert_true(core_weights(f.core)[TRAINED - 1] == -0.1f);
	assert_true(core_weights(f.core)[TRAINED] == 1.0f);
	assert_true(core_weights(f.core)[TRAINED + 1] == 0);
	fixture_close(&f);
}

/* ---- steps of several gradients -------------------------------------------------------------- */

/* Returns a gradient and statistics that are 1 in batch 0, and 2 in all other batches. */
static double by_batch(uint32_t i, const float *w, double *g)
{
	(void)w;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = i == 0 ? 1 : 2;
	return 1;
}

TEST(a_step_takes_the_mean_of_its_gradients)
{
	for (int sum = 0; sum < 2; sum++)
		for (int buffer = 0; buffer < 2; buffer++) {
			struct core_config cfg = fixture_training();
			struct cluster k;

			cfg.n_running = RUNNING;
			cfg.training.mode = buffer ? MODE_DOWNPOUR : MODE_SYNC;
			cfg.push.buffer_size = buffer ? 2 : 1;
			cfg.push.sum = sum ? PUSH_SUM : PUSH_MEAN;
			cfg.durable = 0;
			cfg.rate.lr = 0.25;
			cfg.leases.min_workers = 2;
			cfg.leases.max_batches = 1;
			cluster_open(&k, cfg, 2, 400, by_batch);
			for (uint32_t i = 0; i < 2; i++)
				assert_int_equal(cluster_request(&k, i), 1);
			for (uint32_t i = 0; i < 2; i++)
				assert_int_equal(cluster_push(&k, i), REJECT_NONE);
			assert_int_equal(core_stats(k.f.core)->updates, 1);
			assert_true(core_weights(k.f.core)[0] == (sum ? -0.75f : -0.375f));
			assert_true(core_weights(k.f.core)[TRAINED] == (float)(0.1 * 1.5));
			cluster_close(&k);
		}
}

/* ---- robust rules ---------------------------------------------------------------------------- */

/* The gradient of batch 0 is -10 times that of every other batch. The statistics of batch i are i
 * squared. */
static double one_opposite(uint32_t i, const float *w, double *g)
{
	(void)w;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = j >= TRAINED ? (double)i * i : i == 0 ? -10.0 : 1.0;
	return 1;
}

/* Check that a gradient that is scaled down to a quarter, because its norm is too large, gives its
 * statistics to the buffer as they are. */
static void scale_a_buffered_gradient(enum aggregate_rule rule)
{
	struct core_config cfg = running_config();
	float g[FIXTURE_PARAMS], out[FIXTURE_PARAMS];
	struct core_fixture f;

	cfg.push.buffer_size = 2;
	cfg.push.aggregate = rule;
	fixture_open(&f, cfg);
	struct msg m = fixture_push(fixture_join(&f, 9, "w"), 1);
	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		g[i] = 8;
	fixture_slice(&m, 0, FIXTURE_PARAMS, g);
	if (rule == AGGREGATE_MEAN)
		accumulator_add_weighted(f.core, &m.push.slices, 1, 0.25);
	else
		accumulator_average(f.core, &f.core->worker[0], &m.push.slices, 1, 0.25);
	accumulator_mean(f.core, out);
	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		assert_float_equal(out[i], i < TRAINED ? 2 : 8, 1e-6);
	fixture_close(&f);
}

TEST(a_gradient_that_is_scaled_keeps_its_statistics_in_a_buffer)
{
	scale_a_buffered_gradient(AGGREGATE_MEAN);
	scale_a_buffered_gradient(AGGREGATE_MEDIAN);
}

TEST(no_robust_rule_combines_statistics)
{
	for (int rule = AGGREGATE_MEAN; rule <= AGGREGATE_KRUM; rule++)
		for (int buffer = 0; buffer < 2; buffer++) {
			struct core_config cfg = fixture_training();
			struct cluster k;

			cfg.n_running = RUNNING;
			cfg.training.mode = buffer ? MODE_DOWNPOUR : MODE_SYNC;
			cfg.push.buffer_size = buffer ? 5 : 1;
			cfg.push.aggregate = (enum aggregate_rule)rule;
			cfg.push.bad_workers = 1;
			cfg.durable = 0;
			cfg.rate.lr = 0.25;
			cfg.leases.min_workers = 5;
			cfg.leases.max_batches = 1;
			cluster_open(&k, cfg, 5, 50, one_opposite);
			for (uint32_t i = 0; i < 5; i++)
				assert_int_equal(cluster_request(&k, i), 1);
			for (uint32_t i = 0; i < 5; i++)
				assert_int_equal(cluster_push(&k, i), REJECT_NONE);
			assert_int_equal(core_stats(k.f.core)->updates, 1);
			double w = (double)core_weights(k.f.core)[0];
			assert_true(fabs(w - (rule == AGGREGATE_MEAN ? 0.3 : -0.25)) < 1e-6);
			for (size_t i = TRAINED; i < FIXTURE_PARAMS; i++)
				assert_true(fabs((double)core_weights(k.f.core)[i] - 0.6) < 1e-6);
			cluster_close(&k);
		}
}

/* ---- limits --------------------------------------------------------------------------------- */

#define LIMITED 4u /* two means and two variances: one batchnorm with two channels */
#define FIRST   (FIXTURE_PARAMS - LIMITED)

static float pushed[LIMITED]; /* the statistics that with_pushed gives to every batch */

static double with_pushed(uint32_t i, const float *w, double *g)
{
	(void)i;
	(void)w;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = j < FIRST ? 1 : (double)pushed[j - FIRST];
	return 1;
}

static struct core_config limited_config(enum mode mode, uint32_t n)
{
	struct core_config cfg = fixture_training();

	cfg.n_running = LIMITED;
	cfg.running = (struct running_layout){.n = 1, .norm = {{0, 2}}};
	cfg.limits.statistics_ratio = 2;
	cfg.training.mode = mode;
	cfg.durable = 0;
	cfg.leases.min_workers = n;
	cfg.leases.max_batches = 1;
	return cfg;
}

/* Opens a run of `n` workers, whose running means are 0 and whose running variances are 1. */
static void open_with_limits(struct cluster *k, struct core_config cfg, uint32_t n)
{
	cluster_open(k, cfg, n, 50000, with_pushed);
	for (size_t i = FIRST; i < FIXTURE_PARAMS; i++)
		fixture_set_weight(&k->f, i, i >= FIRST + 2 ? 1.0f : 0.0f);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(cluster_request(k, i), 1);
}

static void open_limited(struct cluster *k, enum mode mode, uint32_t n)
{
	open_with_limits(k, limited_config(mode, n), n);
}

/* Lets worker 0 push these statistics; in mode sync, lets all workers push them. */
static enum reject push_statistics(
	struct cluster *k, float mean_0, float mean_1, float variance_0, float variance_1)
{
	enum reject r = REJECT_NONE;

	memcpy(pushed, (float[]){mean_0, mean_1, variance_0, variance_1}, sizeof(pushed));
	for (uint32_t i = 0; i < (k->f.cfg.training.mode == MODE_SYNC ? k->n : 1); i++)
		r = cluster_push(k, i);
	return r;
}

static void assert_statistics(const struct cluster *k, const double batch[LIMITED])
{
	const float *w = core_weights(k->f.core) + FIRST;

	for (size_t i = 0; i < LIMITED; i++) {
		double expected = next_statistic(i >= 2, batch[i]);

		assert_true(fabs((double)w[i] - expected) <= 1e-6);
	}
}

TEST(one_push_moves_the_statistics_by_a_limited_part)
{
	for (int sync = 0; sync < 2; sync++) {
		const double d = sqrt(1 + BATCHNORM_EPS), max = 2 + BATCHNORM_EPS;
		struct cluster k;

		open_limited(&k, sync ? MODE_SYNC : MODE_DOWNPOUR, 3);
		assert_int_equal(push_statistics(&k, 1e15f, -1e15f, 1e15f, -0.5f), REJECT_NONE);
		assert_statistics(&k, (double[]){d, -d, max, 0});
		cluster_close(&k);
	}
}

TEST(a_negative_variance_is_rejected)
{
	struct cluster k;

	open_limited(&k, MODE_DOWNPOUR, 3);
	assert_int_equal(push_statistics(&k, 0, 0, 1, -1e15f), REJECT_NORM);
	assert_int_equal(core_stats(k.f.core)->updates, 0);
	cluster_close(&k);
}

TEST(statistics_within_the_limits_are_not_changed)
{
	struct cluster k;

	open_limited(&k, MODE_DOWNPOUR, 3);
	assert_int_equal(push_statistics(&k, 0.7f, -0.9f, 1.9f, 0.01f), REJECT_NONE);
	const float *w = core_weights(k.f.core) + FIRST;
	for (size_t i = 0; i < LIMITED; i++)
		assert_true(w[i] == (float)next_statistic(i >= 2, (double)pushed[i]));
	cluster_close(&k);
}

/* Opens a run of five workers, and lets worker 0 push statistics of 1e15 for `steps` steps, in
 * which the others push means of 0.5 and variances of 1. */
static void attack_statistics(struct cluster *k, enum aggregate_rule rule, int steps)
{
	struct core_config cfg = limited_config(MODE_SYNC, 5);

	cfg.push.aggregate = rule;
	cfg.push.bad_workers = 1;
	open_with_limits(k, cfg, 5);
	for (int i = 0; i < steps; i++) {
		memcpy(pushed, (float[]){1e15f, -1e15f, 1e15f, 0}, sizeof(pushed));
		assert_int_equal(cluster_push(k, 0), REJECT_NONE);
		memcpy(pushed, (float[]){0.5f, 0.5f, 1, 1}, sizeof(pushed));
		for (uint32_t w = 1; w < 5; w++)
			assert_int_equal(cluster_push(k, w), REJECT_NONE);
		for (uint32_t w = 0; w < 5; w++)
			(void)cluster_request(k, w);
	}
}

TEST(one_of_five_cannot_move_the_statistics_far)
{
	for (int rule = AGGREGATE_MEAN; rule <= AGGREGATE_KRUM; rule++) {
		struct cluster k;

		attack_statistics(&k, (enum aggregate_rule)rule, 100);
		assert_int_equal(core_stats(k.f.core)->updates, 100);
		const float *w = core_weights(k.f.core) + FIRST;
		/* the values that an update does not change: m = (4 * 0.5 + m +- sqrt(v)) / 5, and
		 * v = (4 + 2 * v) / 5 or 4 / 5 */
		assert_true(fabs((double)w[0] - (0.5 + sqrt(4 / 3.) / 4)) < 0.01);
		assert_true(fabs((double)w[1] - (0.5 - sqrt(4 / 5.) / 4)) < 0.01);
		assert_true(fabs((double)w[2] - 4 / 3.) < 0.01);
		assert_true(fabs((double)w[3] - 4 / 5.) < 0.01);
		cluster_close(&k);
	}
}

TEST(without_a_ratio_there_are_no_limits)
{
	struct core_config cfg = limited_config(MODE_DOWNPOUR, 3);
	struct cluster k;

	cfg.limits.statistics_ratio = 0;
	cfg.limits.norm_ratio = 4;
	open_with_limits(&k, cfg, 3);
	assert_int_equal(push_statistics(&k, 1e6f, -1e6f, 1e6f, -5), REJECT_NONE);
	assert_true(core_weights(k.f.core)[FIRST] == 1e5f);
	cluster_close(&k);
}

TEST(two_workers_have_no_limits)
{
	struct cluster k;

	open_limited(&k, MODE_DOWNPOUR, 2);
	assert_int_equal(push_statistics(&k, 1e6f, -1e6f, 1e6f, 0.5f), REJECT_NONE);
	assert_true(core_weights(k.f.core)[FIRST] == 1e5f);
	cluster_close(&k);
}

/* ---- the batchnorms in a run of the model vector:N ------------------------------------------- */

static const char names[] = "fc.weight F32 2x2\n"
			    "bn.running_mean F32 2\n"
			    "bn.running_var F32 2\n"
			    "bn.num_batches_tracked I64 scalar 0\n";

/* Returns the number of batchnorms in a run of vector:8:running=4 with this list of tensors. */
static uint32_t count_batchnorms(const char *list)
{
	struct core_config cfg = limited_config(MODE_DOWNPOUR, 3);
	struct core_fixture f;
	size_t line;

	cfg.running.n = 0;
	fixture_open(&f, cfg);
	assert_null(core_name_tensors(f.core, list, &line));
	uint32_t n = f.core->cfg.running.n;
	fixture_close(&f);
	return n;
}

TEST(names_say_which_statistics_have_limits)
{
	assert_int_equal(count_batchnorms(names), 1);
	assert_int_equal(count_batchnorms("a F32 4\nrunning_mean F32 2\nrunning_var F32 2\n"), 1);
	assert_int_equal(count_batchnorms("a F32 4\n1.running_mean F32 1\n1.running_var F32 1\n"
					  "2.running_mean F32 1\n2.running_var F32 1\n"),
		2);
	/* no batchnorm: a mean and a variance of different names, in another order, of different
	 * sizes, or among the trained values */
	assert_int_equal(
		count_batchnorms("a F32 4\n1.running_mean F32 2\n2.running_var F32 2\n"), 0);
	assert_int_equal(
		count_batchnorms("a F32 4\n1.running_var F32 2\n1.running_mean F32 2\n"), 0);
	assert_int_equal(
		count_batchnorms("a F32 4\n1.running_mean F32 1\n1.running_var F32 3\n"), 0);
	assert_int_equal(
		count_batchnorms("1.running_mean F32 2\n1.running_var F32 2\na F32 4\n"), 0);
	assert_int_equal(count_batchnorms("a F32 2\n1.running_mean F32 2\n1.running_var F32 2\n"
					  "b F32 2\n"),
		0);
}

TEST(named_statistics_have_limits_also_after_a_restart)
{
	struct core_config cfg = limited_config(MODE_DOWNPOUR, 3);
	const double d = sqrt(1 + BATCHNORM_EPS), max = 2 + BATCHNORM_EPS;
	struct cluster k;
	size_t line;

	cfg.running.n = 0;
	open_with_limits(&k, cfg, 3);
	assert_null(core_name_tensors(k.f.core, names, &line));
	cluster_restart(&k, 3);
	assert_int_equal(push_statistics(&k, 1e15f, -1e15f, 1e15f, -0.5f), REJECT_NONE);
	assert_statistics(&k, (double[]){d, -d, max, 0});
	cluster_close(&k);
}

/* The limits do not depend on how a push is divided into slices. */
TEST(a_slice_of_any_length_has_the_same_limits)
{
	for (uint64_t length = 1; length <= FIXTURE_PARAMS; length++) {
		float g[CLUSTER_PARAMS];
		struct cluster k;

		open_limited(&k, MODE_DOWNPOUR, 3);
		memcpy(pushed, (float[]){9, -9, 9, 0.5f}, sizeof(pushed));
		struct msg m = cluster_gradient(&k, 0, g);
		m.push.slices.n = 0;
		for (uint64_t at = 0; at < FIXTURE_PARAMS; at += length) {
			uint64_t left = FIXTURE_PARAMS - at;

			fixture_slice(&m, at, left < length ? left : length, g + at);
		}
		fixture_applied(&k.f, k.worker[0].peer, &m);
		assert_statistics(&k, (double[]){sqrt(1 + BATCHNORM_EPS), -sqrt(1 + BATCHNORM_EPS),
					      2 + BATCHNORM_EPS, 0.5});
		for (size_t i = 0; i < FIRST; i++)
			assert_true(core_weights(k.f.core)[i] < 0);
		cluster_close(&k);
	}
}
