/*
 * Proves delay compensation in server/core/downpour.c: g + lambda g g (w - backup), with a backup
 * for each worker of what it pulled last, and lambda fixed or adapted; against formulas of our own
 * in double precision.
 */
#include "tests/unit/core_modes.h"

#define RATE   0.05
#define LAMBDA 0.5

static struct core_config dc_config(int adaptive)
{
	struct core_config cfg = bench_config();

	cfg.lr = RATE;
	cfg.dc_lambda = LAMBDA;
	cfg.dc_adaptive = adaptive;
	cfg.durable = 0;
	return cfg;
}

/* Three workers and what the formulas say of them. */
struct lesson {
	struct bench b;
	struct stamp s[3];
	uint64_t seq[3];
	double w[BENCH_PARAMS], backup[3][BENCH_PARAMS], square[BENCH_PARAMS];
	int pulled[3];
};

static void lesson_open(struct lesson *l, struct core_config cfg)
{
	memset(l, 0, sizeof(*l));
	bench_open(&l->b, cfg);
	for (uint32_t i = 0; i < 3; i++)
		l->s[i] = bench_join(&l->b, 10 + i, "");
}

static void pull(struct lesson *l, uint32_t i)
{
	bench_pull(&l->b, 10 + i, l->s[i], WEIGHTS_CURRENT);
	memcpy(l->backup[i], l->w, sizeof(l->w));
	l->pulled[i] = 1;
}

static void push(struct lesson *l, uint32_t i, const float *g)
{
	struct msg m = bench_push(l->s[i], ++l->seq[i]);

	bench_slice(&m, 0, 3, g); /* in two parts, as any push may be */
	bench_slice(&m, 3, BENCH_PARAMS - 3, g + 3);
	bench_applied(&l->b, 10 + i, &m);
	for (size_t j = 0; j < BENCH_PARAMS; j++) {
		double x = (double)g[j], lambda = LAMBDA, late = l->w[j] - l->backup[i][j];

		if (l->b.cfg.dc_adaptive && l->pulled[i]) {
			l->square[j] = 0.95 * l->square[j] + 0.05 * x * x;
			lambda /= sqrt(l->square[j] + 1e-7);
		}
		l->w[j] -= RATE * (x + (l->pulled[i] ? lambda * x * x * late : 0));
	}
}

static double farthest(const struct lesson *l)
{
	double most = 0;

	for (size_t j = 0; j < BENCH_PARAMS; j++)
		most = fmax(most, fabs((double)core_weights(l->b.core)[j] - l->w[j]));
	return most;
}

static void lesson_restart(struct lesson *l)
{
	bench_restart(&l->b);
	for (uint32_t i = 0; i < 3; i++) {
		struct msg m = bench_resume(l->s[i], l->seq[i], l->seq[i]);

		bench_message(&l->b, 10 + i, &m);
		l->s[i] = bench_sent(&l->b, 10 + i, MSG_WELCOME)->welcome.stamp;
	}
}

/* Pulls, pushes and restarts in any order. */
static double lesson_run(uint64_t seed, int adaptive)
{
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	struct lesson l;
	float g[BENCH_PARAMS];
	double most = 0;

	lesson_open(&l, dc_config(adaptive));
	for (int n = 0; n < 400; n++) {
		uint32_t i = (uint32_t)rng_below(&r, 3);
		uint64_t dice = rng_below(&r, 30);

		for (size_t j = 0; j < BENCH_PARAMS; j++)
			g[j] = (float)rng_below(&r, 2001) / 1000 - 1;
		if (dice == 0)
			lesson_restart(&l);
		else if (dice < 10)
			pull(&l, i);
		else
			push(&l, i, g);
		most = fmax(most, farthest(&l));
	}
	bench_close(&l.b);
	return most;
}

static void a_run_equals_a_serial_one(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 10; seed++)
		for (int adaptive = 0; adaptive < 2; adaptive++) {
			double most = lesson_run(seed, adaptive);

			print_message("seed %llu, adaptive %d: %.1e\n", (unsigned long long)seed,
				adaptive, most);
			assert_true(most < 2e-5);
		}
}

/* Not one backup for all: each worker's delay is its own. */
static void each_worker_is_compensated_by_its_own_delay(void **state)
{
	struct lesson l;

	(void)state;
	lesson_open(&l, dc_config(0));
	pull(&l, 0);
	push(&l, 1, bench_ones); /* it never pulled: as it is */
	assert_float_equal(core_weights(l.b.core)[4], (float)-RATE, 1e-7);
	pull(&l, 1);
	push(&l, 1, bench_ones); /* fresh: as it is */
	assert_float_equal(core_weights(l.b.core)[4], (float)(-2 * RATE), 1e-7);
	push(&l, 0, bench_ones); /* two versions late */
	assert_float_equal(core_weights(l.b.core)[4],
		(float)(-2 * RATE - RATE * (1 - LAMBDA * 2 * RATE)), 1e-7);
	assert_true(farthest(&l) < 1e-6);
	bench_close(&l.b);
}

/* After a crash its replays come without the pulls that lay between them. */
static void a_gradient_of_the_current_weights_is_not_compensated(void **state)
{
	struct lesson l;

	(void)state;
	lesson_open(&l, dc_config(0));
	pull(&l, 0);
	for (uint64_t version = 0; version < 3; version++) {
		struct msg m = bench_push_ones(l.s[0], version + 1);

		m.push.base_version = version;
		bench_applied(&l.b, 10, &m);
		assert_float_equal(
			core_weights(l.b.core)[4], (float)(-RATE * (double)(version + 1)), 1e-7);
	}
	bench_close(&l.b);
}

static void without_it_there_is_no_backup(void **state)
{
	struct core_config cfg = dc_config(0);
	struct lesson l;

	(void)state;
	cfg.dc_lambda = 0;
	lesson_open(&l, cfg);
	pull(&l, 0);
	push(&l, 1, bench_ones);
	push(&l, 0, bench_ones);
	assert_null(l.b.core->worker[0].backup);
	assert_float_equal(core_weights(l.b.core)[4], (float)(-2 * RATE), 1e-7);
	bench_close(&l.b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_run_equals_a_serial_one),
		cmocka_unit_test(each_worker_is_compensated_by_its_own_delay),
		cmocka_unit_test(a_gradient_of_the_current_weights_is_not_compensated),
		cmocka_unit_test(without_it_there_is_no_backup),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
