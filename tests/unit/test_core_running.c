/*
 * Proves that running statistics (common/model.h, batchnorm) are not weights: no optimizer,
 * clipping, norm limit, weight decay, delay compensation, rate or sum changes them, and they change
 * no weight. Each update moves a running statistic by a tenth of its distance to the statistics of
 * the batches in the update.
 */
#include "tests/support/core_cluster.h"
#include "common/model.h"
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
		(void)fixture_acked(&f, 9, &m); /* the same push again */
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
	/* the slice has one weight and one running statistic */
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
