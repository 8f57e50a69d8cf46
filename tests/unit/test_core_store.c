/*
 * Proves the invariants numbered in server/core/store.c, and compares sgd and adagrad with a
 * reference in double precision. (test_core_optim.c tests all optimizers, and test_core_reject.c
 * rejected gradients.)
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"
#include <float.h>
#include <math.h>

#define N 67u /* number of weights; not a multiple of any SIMD width */

static struct core_config store_config(enum optim_kind optim)
{
	struct core_config cfg = fixture_config();

	cfg.n_params = N;
	cfg.optim.kind = optim;
	cfg.rate.lr = 0.03;
	cfg.sessions.replay_window = 1000;
	return cfg;
}

static void random_scaled_values(struct rng *r, float *v, size_t n, double scale)
{
	for (size_t i = 0; i < n; i++)
		v[i] = (float)(scale * (2 * rng_unit(r) - 1));
}

/* ---- the vector ----------------------------------------------------------------------------- */

TEST(a_run_begins_with_the_callers_weights)
{
	struct core_config cfg = store_config(OPTIM_ADAGRAD);

	_Alignas(64) float w[N];
	float copy[N];
	void *memory = fixture_memory(&cfg);
	struct rng r = {1};
	struct core *c;

	cfg.optim.adagrad_init = 0.5;
	random_scaled_values(&r, w, N, 1);
	memcpy(copy, w, sizeof(w));
	c = core_init(memory, &cfg, w);
	assert_ptr_equal(core_weights(c), w);
	assert_memory_equal(w, copy, sizeof(copy));
	for (size_t i = 0; i < N; i++)
		assert_true(c->store.state[0][i] == 0.5f);
	free(memory);
}

TEST(the_version_grows_by_one_for_each_gradient_applied)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "");
	for (uint64_t seq = 1; seq <= 5; seq++) {
		/* a push without slices is a gradient of zeros */
		struct msg m = fixture_push(s, seq);

		assert_int_equal(fixture_acked(&f, 9, &m).version, seq);
		assert_int_equal(core_stats(f.core)->version, seq);
		for (size_t i = 0; i < FIXTURE_PARAMS; i++)
			assert_true(core_weights(f.core)[i] == 0.0f);
	}
	fixture_close(&f);
}

TEST(what_slices_leave_out_does_not_move)
{
	const float expected[FIXTURE_PARAMS] = {0, -1, 0, 0, -1, -1, 0, -1};
	struct core_fixture f;
	struct msg m;

	fixture_open(&f, fixture_config());
	m = fixture_push(fixture_join(&f, 9, ""), 1);
	fixture_slice(&m, 1, 1, fixture_ones);
	fixture_slice(&m, 4, 2, fixture_ones);
	fixture_slice(&m, 7, 1, fixture_ones);
	fixture_applied(&f, 9, &m);
	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		assert_true(core_weights(f.core)[i] == expected[i]);
	fixture_close(&f);
}

TEST(pull_gives_the_whole_vector_and_its_version)
{
	struct core_fixture f;
	struct stamp s;
	struct msg m;
	const struct msg_params *p;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "");
	m = fixture_push_ones(s, 1);
	fixture_applied(&f, 9, &m);
	fixture_pull(&f, 9, s, WEIGHTS_CURRENT);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 1);
	p = &fixture_sent(&f, 9, MSG_PARAMS)->params;
	assert_int_equal(p->request, 42);
	assert_int_equal(p->version, 1);
	assert_int_equal(p->which, WEIGHTS_CURRENT);
	assert_int_equal(p->slices.n, 1);
	assert_int_equal(p->slices.slice[0].offset, 0);
	assert_int_equal(p->slices.slice[0].count, FIXTURE_PARAMS);
	assert_int_equal(p->slices.slice[0].encoding, ENCODING_F32);
	/* the core sends no checksum, because the code in proto/ computes it */
	assert_int_equal(p->slices.slice[0].xxh3, 0);
	assert_ptr_equal(p->slices.slice[0].data, core_weights(f.core));
	assert_int_equal(core_stats(f.core)->pulls, 1);
	fixture_close(&f);
}

TEST(magnitudes_up_to_1e15_are_let_in_and_weights_stay_finite)
{
	const enum optim_kind kinds[] = {OPTIM_SGD, OPTIM_ADAGRAD};
	const float good[] = {1e15f, -1e15f, FLT_MIN, FLT_TRUE_MIN, -FLT_TRUE_MIN, -0.0f};
	const float bad[] = {nextafterf(1e15f, INFINITY), nextafterf(-1e15f, -INFINITY), FLT_MAX};

	for (size_t k = 0; k < 2; k++) {
		struct core_config cfg = store_config(kinds[k]);
		struct core_fixture f;
		struct stamp s;
		uint64_t seq = 0;

		cfg.rate.lr = 1e6;
		fixture_open(&f, cfg);
		s = fixture_join(&f, 9, "");
		for (int i = 0; i < 300; i++) {
			struct msg m = fixture_push(s, ++seq);

			fixture_slice(&m, (uint64_t)i % 6, 1, &good[i % 6]);
			fixture_applied(&f, 9, &m);
			if (i < 3) {
				m = fixture_push(s, ++seq);
				fixture_slice(&m, 9, 1, &bad[i]);
				fixture_rejected(&f, 9, &m, REJECT_NONFINITE);
			}
			if (f.saving)
				fixture_durable(&f);
		}
		for (size_t i = 0; i < N; i++)
			assert_true(isfinite(core_weights(f.core)[i]));
		assert_true(core_weights(f.core)[0] < 0 && core_weights(f.core)[1] > 0);
		fixture_close(&f);
	}
}

/* The core writes all values of the new version to the next buffer, also those that do not change.
 * The buffer of the old version must not change. */
TEST(the_next_buffer_takes_the_next_version)
{
	_Alignas(64) float next[2][FIXTURE_PARAMS];
	struct core_fixture f;
	struct stamp s;

	for (uint64_t offset = 0; offset < FIXTURE_PARAMS; offset++) {
		fixture_open(&f, fixture_config());
		s = fixture_join(&f, 9, "");
		for (uint64_t seq = 1; seq <= 4; seq++) {
			const float *old = core_weights(f.core);
			float *other = next[old == next[0]], *to = seq == 3 ? NULL : other;
			struct msg m = fixture_push(s, seq);

			memset(other, 0xff, sizeof(next[0]));
			f.next_buffer = to;
			fixture_pull(&f, 9, s, WEIGHTS_CURRENT);
			/* a pull writes nothing to the next buffer */
			assert_ptr_equal(core_weights(f.core), old);
			fixture_slice(&m, offset, FIXTURE_PARAMS - offset, fixture_ones);
			fixture_applied(&f, 9, &m);
			assert_ptr_equal(core_weights(f.core), to ? to : old);
			for (size_t i = 0; i < FIXTURE_PARAMS; i++) {
				float was = i < offset ? 0 : -(float)(seq - 1);
				float is = i < offset ? 0 : -(float)seq;

				assert_true(core_weights(f.core)[i] == is);
				assert_true(!to || old[i] == was);
			}
		}
		fixture_close(&f);
	}
}

/* ---- optimizers ----------------------------------------------------------------------------- */

struct reference {
	enum optim_kind optim;
	double w[N], acc[N];
};

static void reference_step(struct reference *f, double eta, const float *g)
{
	for (size_t i = 0; i < N; i++) {
		double gi = (double)g[i];

		f->acc[i] += gi * gi;
		f->w[i] -= f->optim == OPTIM_SGD ? eta * gi : eta * gi / (sqrt(f->acc[i]) + 1e-8);
	}
}

/* Apply 200 random gradients in two or three slices each. The weights may differ from those of the
 * reference only by rounding errors. */
static void follows_the_reference(enum optim_kind optim, uint64_t seed)
{
	struct core_config cfg = store_config(optim);
	struct reference q = {.optim = optim};
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	struct core_fixture f;
	struct stamp s;
	float g[N];

	print_message("seed %llu\n", (unsigned long long)seed);
	cfg.optim.adagrad_init = 0.1;
	for (size_t i = 0; i < N; i++)
		q.acc[i] = 0.1;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	for (uint64_t seq = 1; seq <= 200; seq++) {
		size_t cut = 1 + rng_below(&r, N - 2), rest = 1 + rng_below(&r, N - cut - 1);
		struct msg m = fixture_push(s, seq);

		random_scaled_values(&r, g, N, seq % 3 ? 1 : 0.01);
		fixture_slice(&m, 0, cut, g);
		fixture_slice(&m, cut, rest, g + cut);
		if (cut + rest < N)
			fixture_slice(&m, cut + rest, N - cut - rest, g + cut + rest);
		fixture_applied(&f, 9, &m);
		reference_step(&q, 0.03, g);
		for (size_t i = 0; i < N; i++)
			assert_true(fabs((double)core_weights(f.core)[i] - q.w[i]) < 2e-6);
	}
	fixture_close(&f);
}

TEST(sgd_follows_a_double_precision_reference)
{
	for (uint64_t seed = 11; seed < 14; seed++)
		follows_the_reference(OPTIM_SGD, seed);
}

TEST(adagrad_follows_a_double_precision_reference)
{
	for (uint64_t seed = 21; seed < 24; seed++)
		follows_the_reference(OPTIM_ADAGRAD, seed);
}

/* ---- the rate ------------------------------------------------------------------------------- */

static double expected_rate(enum staleness_scaling how, double lr, double tau, double live)
{
	double age = how == STALE_CONSTANT ? 0 : how == STALE_RELATIVE ? tau / live : tau;

	return lr / (age > 1 ? age : 1);
}

static void rates_are_exact(enum staleness_scaling how, uint32_t live)
{
	const uint64_t taus[] = {0, 1, 2, 3, 5, 9};
	struct core_config cfg = store_config(OPTIM_SGD);
	struct core_fixture f;
	struct stamp s = {0};
	uint64_t seq = 0;

	cfg.rate.staleness_scaling = how;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < live; i++)
		s = fixture_join(&f, 9 + i, "");
	for (; seq < 9;) {
		struct msg m = fixture_push(s, ++seq);

		fixture_applied(&f, 8 + live, &m);
	}
	for (size_t i = 0; i < sizeof(taus) / sizeof(taus[0]); i++) {
		struct msg m = fixture_push(s, ++seq);

		m.push.base_version = core_stats(f.core)->version - taus[i];
		fixture_slice(&m, i, 1, fixture_ones);
		fixture_applied(&f, 8 + live, &m);
		assert_true(core_weights(f.core)[i] ==
			    -(float)expected_rate(how, cfg.rate.lr, (double)taus[i], (double)live));
	}
	fixture_close(&f);
}

TEST(the_rate_shrinks_with_staleness_as_the_mode_says)
{
	for (uint32_t live = 1; live <= 4; live++) {
		rates_are_exact(STALE_CONSTANT, live);
		rates_are_exact(STALE_RELATIVE, live);
		rates_are_exact(STALE_INVERSE, live);
	}
}

/* ---- an update, block by block --------------------------------------------------------------- */

#define LARGE 20000u /* the number of weights; they fill more than two blocks */

/* Returns a push of a gradient without the first values, some values in the middle, and the last
 * value. */
static struct msg push_with_gaps(struct stamp s, const float *g)
{
	struct msg m = fixture_push(s, 1);

	fixture_slice(&m, 100, 9000, g);
	fixture_slice(&m, 12000, LARGE - 12001, g);
	return m;
}

/* Decide the message, then compute the new weights block by block, as the shell does. */
static void step_in_blocks(struct core_fixture *f, const struct msg *m)
{
	const struct event ev = {
		.kind = EVENT_MESSAGE, .peer = 9, .msg = m, .next_buffer = f->next_buffer};
	const float *values, *end = NULL;
	size_t n, total = 0;

	core_decide(f->core, &ev, f->now_ms);
	while ((n = core_compute(f->core, &values)) > 0) {
		assert_true(total == 0 || values == end);
		end = values + n;
		total += n;
	}
	assert_int_equal(total, LARGE);
	assert_ptr_equal(end, core_weights(f->core) + LARGE);
	assert_int_equal(core_compute(f->core, &values), 0);
}

static void blocks_give_the_same_weights_as_one_step(enum optim_kind optim, int separate)
{
	struct core_config cfg = store_config(optim);
	struct core_fixture whole, blocks;

	_Alignas(64) static float g[LARGE], next[LARGE];
	struct rng r = {3};
	struct msg m;

	cfg.n_params = LARGE;
	fixture_open(&whole, cfg);
	fixture_open(&blocks, cfg);
	random_scaled_values(&r, g, LARGE, 1);
	m = push_with_gaps(fixture_join(&whole, 9, ""), g);
	fixture_applied(&whole, 9, &m);
	m = push_with_gaps(fixture_join(&blocks, 9, ""), g);
	if (separate)
		blocks.next_buffer = next;
	step_in_blocks(&blocks, &m);
	assert_true(!separate || core_weights(blocks.core) == next);
	assert_memory_equal(
		core_weights(blocks.core), core_weights(whole.core), LARGE * sizeof(float));
	for (size_t i = 0; i < optim_vectors(optim); i++)
		assert_memory_equal(blocks.core->store.state[i], whole.core->store.state[i],
			LARGE * sizeof(float));
	assert_true(core_weights(blocks.core)[99] == 0 && core_weights(blocks.core)[100] != 0);
	assert_true(core_weights(blocks.core)[9099] != 0 && core_weights(blocks.core)[9100] == 0);
	assert_true(core_weights(blocks.core)[LARGE - 2] != 0);
	assert_true(core_weights(blocks.core)[LARGE - 1] == 0);
	fixture_close(&whole);
	fixture_close(&blocks);
}

TEST(the_blocks_of_an_update_cover_all_weights_once)
{
	for (enum optim_kind o = OPTIM_SGD; o < OPTIM_KINDS; o++) {
		if (o == OPTIM_LBFGS) /* L-BFGS, whose updates are not computed in blocks */
			continue;
		blocks_give_the_same_weights_as_one_step(o, 0);
		blocks_give_the_same_weights_as_one_step(o, 1);
	}
}
