/*
 * test_engine.c - every optimizer and every mode computes the same bits with any engine: on
 * one thread, on several threads, and with the blocks in any order; and with a device that has the
 * weights (common/param_device.h). Proves the invariant of server/core/blocks.h.
 */
#include "common/threads.h"
#include "tests/device/store_double.h"
#include "tests/support/core_cluster.h"
#include "tests/support/double_device.h"
#include "tests/support/shuffled_engine.h"
#include "tests/support/test.h"

#define BLOCK 2u /* values in a block: a vector of 64 values has enough blocks for all threads */

/* ---- configurations -------------------------------------------------------------------------- */

static struct core_config basis(enum mode mode, enum optim_kind kind)
{
	struct core_config cfg = fixture_training();

	cfg.n_params = CLUSTER_PARAMS;
	cfg.training.mode = mode;
	cfg.training.batch_size = 5;
	cfg.optim.kind = kind;
	cfg.rate.lr = 0.01;
	cfg.ssp.bound = 3;
	cfg.sessions.max_workers = CLUSTER_WORKERS;
	return cfg;
}

/* Sets combination number `i` of the options for robust rules, buffers and sums. */
static void choose_aggregate(struct core_config *cfg, uint32_t i)
{
	static const enum aggregate_rule rules[] = {
		AGGREGATE_MEAN, AGGREGATE_MEDIAN, AGGREGATE_TRIMMED, AGGREGATE_KRUM};

	if (cfg->training.mode == MODE_SANDBLASTER || cfg->training.mode == MODE_EASGD)
		return;
	cfg->push.aggregate = rules[i % 4];
	cfg->push.bad_workers = 1;
	cfg->push.sum = i / 4 % 2;
	if (cfg->training.mode != MODE_SYNC && i % 4 > 0)
		cfg->push.buffer_size = 3;
	else if (cfg->training.mode != MODE_SYNC)
		cfg->push.buffer_size = 1 + i / 4 % 2 * 2;
}

/* Sets combination number `i` of the options for clipping, norms, delay compensation and running
 * statistics. */
static void refine(struct core_config *cfg, uint32_t i)
{
	cfg->optim.clip_norm = i & 1 && cfg->training.mode != MODE_EASGD ? 0.5 : 0;
	cfg->limits.reject_norm = i & 2 ? 1e6 : 0;
	cfg->limits.norm_ratio = i & 4 ? 10 : 0;
	cfg->n_running = i & 8 && cfg->optim.kind != OPTIM_LBFGS ? 5 : 0;
	if (cfg->training.mode == MODE_DOWNPOUR || cfg->training.mode == MODE_SSP)
		cfg->dc.kind = i % 3 == 0 ? DC_NONE : i % 3 == 1 ? DC_CONSTANT : DC_ADAPTIVE;
}

static struct core_config search_config_at(uint32_t i)
{
	struct core_config cfg = basis(MODE_SANDBLASTER, OPTIM_LBFGS);

	cfg.sandblaster.step_images = i % 2 ? 20 : 0;
	cfg.lbfgs.history = 1 + i % 5;
	cfg.lbfgs.trials = 20;
	cfg.lbfgs.wolfe = 0.5;
	return cfg;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void act_at_random(struct cluster *k, struct rng *r)
{
	if (k->f.saving)
		fixture_durable(&k->f);
	else if (rng_below(r, 20) == 0 || k->f.core->run.ending != END_NOT)
		fixture_tick(&k->f, rng_below(r, 20));
	else
		cluster_act(k, (uint32_t)rng_below(r, 3));
	cluster_receive(k);
}

/* Trains to the end of the run, or for 600 events if workers were excluded. `seed` determines the
 * order in which three workers act. Returns a snapshot of the final state, which the caller
 * drops. */
static struct core_snapshot train_with_engine(
	struct core_config cfg, const struct engine *e, uint64_t seed)
{
	struct rng r = rng_seed(seed, RNG_SIM, 3);
	struct core_snapshot end;
	struct cluster k;

	cfg.engine = e;
	cluster_open(&k, cfg, 3, 35, cluster_bowl);
	for (int i = 0; i < 600 && !fixture_count(&k.f, EFFECT_FINISH); i++)
		act_at_random(&k, &r);
	assert_true(core_stats(k.f.core)->updates > 0);
	end = fixture_save(&k.f);
	cluster_close(&k);
	return end;
}

static void assert_same_sections(const struct core_snapshot *a, const struct core_snapshot *b)
{
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		assert_int_equal(a->size[i], b->size[i]);
		assert_memory_equal(a->data[i], b->data[i], a->size[i]);
	}
}

#define ENGINES 4
static struct threads *pool[ENGINES];
static struct engine engine[ENGINES];
static struct shuffled_engine in_order, shuffled;

static int start_engines(void **state)
{
	static const size_t threads[] = {2, 3, 7};
	struct err e;

	(void)state;
	shuffled_engine_init(&in_order, BLOCK, 1);
	shuffled_engine_init(&shuffled, BLOCK, 0);
	for (size_t i = 0; i < 3; i++) {
		if (threads_new(&pool[i], threads[i], "test", &e))
			return 1;
		engine[i] = *threads_engine(pool[i]);
		engine[i].block = BLOCK;
	}
	engine[3] = shuffled.engine;
	return 0;
}

static int end_engines(void **state)
{
	(void)state;
	for (size_t i = 0; i < ENGINES; i++)
		threads_free(&pool[i]);
	return 0;
}

TEST_GROUP(start_engines, end_engines)

/* Trains with a device instead of an engine. If `defers` is 1, only the device has the new
 * weights. */
static void compare_device(
	struct core_config cfg, uint64_t seed, const struct core_snapshot *expected, int defers)
{
	struct double_device d;

	double_device_open(
		&d, cnnps_store_module(), 0, cfg.n_params, optim_vectors(cfg.optim.kind));
	cfg.device = &d.device;
	d.device.defers = defers && !core_reads_gradients(&cfg);
	struct core_snapshot other = train_with_engine(cfg, &in_order.engine, seed);
	assert_same_sections(expected, &other);
	fixture_drop(&other);
	double_device_close(&d);
}

static void compare_engines(struct core_config cfg, uint64_t seed)
{
	struct core_snapshot one = train_with_engine(cfg, &in_order.engine, seed);

	for (size_t i = 0; i < ENGINES; i++) {
		struct core_snapshot other = train_with_engine(cfg, &engine[i], seed);

		assert_same_sections(&one, &other);
		fixture_drop(&other);
	}
	for (int defers = 0; defers < 2 && cfg.optim.kind != OPTIM_LBFGS; defers++)
		compare_device(cfg, seed, &one, defers);
	fixture_drop(&one);
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(every_optimizer_and_mode_gives_the_same_bits_with_any_engine)
{
	static const enum mode modes[] = {
		MODE_DOWNPOUR, MODE_SSP, MODE_SYNC, MODE_SANDBLASTER, MODE_EASGD};
	uint32_t i = 0;

	for (size_t m = 0; m < 5; m++)
		for (int kind = 0; kind < OPTIM_LBFGS; kind++, i++) {
			struct core_config cfg = basis(modes[m], (enum optim_kind)kind);

			if (modes[m] == MODE_EASGD && kind != OPTIM_SGD)
				/* a push of easgd has a distance, not a gradient, and the server
				 * applies it without the optimizer, so one optimizer is enough */
				continue;
			for (uint32_t v = 0; v < 4; v++) {
				choose_aggregate(&cfg, i + v);
				refine(&cfg, i + 5 * v);
				compare_engines(cfg, i);
			}
		}
}

TEST(lbfgs_gives_the_same_bits_with_any_engine)
{
	for (uint32_t i = 0; i < 10; i++)
		compare_engines(search_config_at(i), i);
}

/* A sum of squares is computed as a sum of one sum per block, so the size of the blocks affects the
 * rounding of the result. The number of threads must not. */
TEST(vectors_of_several_blocks_have_the_same_sums_with_any_number_of_threads)
{
	const size_t n = 40 * ENGINE_BLOCK + 7;
	float *a = malloc(n * sizeof(*a)), *b = malloc(n * sizeof(*b));
	double *result = malloc(41 * sizeof(*result));
	struct rng r = rng_seed(1, RNG_SIM, 3);
	struct blocks blocks = {.result = result};

	assert_true(a && b && result);
	for (size_t i = 0; i < n; i++) {
		a[i] = (float)(rng_unit(&r) - 0.5);
		b[i] = (float)(rng_unit(&r) - 0.5);
	}
	const double dot = blocks_dot(&blocks, a, b, n);
	assert_true(fabs(dot) > 0);
	for (size_t i = 0; i < 3; i++) {
		blocks.engine = threads_engine(pool[i]);
		for (int again = 0; again < 50; again++) {
			double other = blocks_dot(&blocks, a, b, n);

			assert_memory_equal(&dot, &other, sizeof(dot));
		}
		assert_int_equal(blocks_finite(&blocks, a, n), 1);
		a[n - 1] = INFINITY;
		assert_int_equal(blocks_finite(&blocks, a, n), 0);
		a[n - 1] = 0.5f;
		a[3] = NAN;
		assert_int_equal(blocks_finite(&blocks, a, n), 0);
		a[3] = 0.25f;
		blocks_copy(&blocks, b, a, n);
		assert_memory_equal(a, b, n * sizeof(*a));
		blocks.engine = NULL;
		for (size_t j = 0; j < n; j++)
			b[j] = (float)(rng_unit(&r) - 0.5);
		double before = blocks_dot(&blocks, a, b, n);
		blocks.engine = threads_engine(pool[i]);
		double after = blocks_dot(&blocks, a, b, n);
		assert_memory_equal(&before, &after, sizeof(after));
		if (i < 2) { /* restore a and b for the next round of the loop over i */
			struct rng again = rng_seed(1, RNG_SIM, 3);

			for (size_t j = 0; j < n; j++) {
				a[j] = (float)(rng_unit(&again) - 0.5);
				b[j] = (float)(rng_unit(&again) - 0.5);
			}
		}
	}
	free(a);
	free(b);
	free(result);
}
