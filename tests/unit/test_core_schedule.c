/*
 * Proves the formulas of those schedules (server/core/optim.h) that PyTorch does not have, and that
 * the core passes its count of images to the schedules. (test_core_optim.c tests the schedules of
 * PyTorch.)
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"
#include <math.h>

#define TOTAL  600u /* the number of images that a run trains in all its epochs */
#define EPOCHS 6u

static double factor_at(const struct schedule *s, uint64_t done)
{
	return schedule_factor(s, done, TOTAL, EPOCHS);
}

static void near(double got, double expected)
{
	if (!(fabs(got - expected) < 1e-12))
		fail_msg("%.17g instead of %.17g", got, expected);
}

static double expected_half_wave(double x)
{
	return (1 + cos(3.14159265358979323846 * x)) / 2;
}

TEST(without_a_known_end_the_rate_is_constant)
{
	for (int k = SCHEDULE_CONSTANT; k <= SCHEDULE_ONECYCLE; k++) {
		struct schedule s = {(enum schedule_kind)k, 0.5, 0.1, 1, 0};

		assert_true(schedule_factor(&s, 12345, 0, 0) == 1);
	}
}

TEST(a_warm_up_is_a_line_from_zero)
{
	const struct schedule s = {.kind = SCHEDULE_CONSTANT, .warmup = 0.25};

	for (uint64_t done = 0; done <= TOTAL; done++)
		near(factor_at(&s, done), done < 150 ? (double)done / 150 : 1);
}

TEST(steps_fall_at_whole_epochs)
{
	const struct schedule s = {SCHEDULE_STEP, 0, 0.1, 2, 0},
			      warm = {SCHEDULE_STEP, 0.5, 0.1, 2, 0};

	near(factor_at(&s, 0), 1);
	near(factor_at(&s, 199), 1);
	near(factor_at(&s, 200), 0.1);
	near(factor_at(&s, 399), 0.1);
	near(factor_at(&s, 400), 0.01);
	near(factor_at(&s, 599), 0.01);
	near(factor_at(&s, 600), 0.001);
	/* epochs count from the start of the run, not from the end of the warm-up */
	near(factor_at(&warm, 150), 0.5);
	near(factor_at(&warm, 240), 0.08);
	near(factor_at(&warm, 300), 0.1);
}

TEST(a_cosine_falls_from_the_warm_ups_end_to_the_floor)
{
	const struct schedule s = {SCHEDULE_COSINE, 0.25, 0, 0, 0.2},
			      cold = {SCHEDULE_COSINE, 0, 0, 0, 0};

	near(factor_at(&s, 75), 0.5);
	for (uint64_t done = 150; done <= TOTAL; done++)
		near(factor_at(&s, done),
			0.2 + 0.8 * expected_half_wave((double)(done - 150) / 450));
	near(factor_at(&s, TOTAL), 0.2);
	for (uint64_t done = 0; done <= TOTAL; done++)
		near(factor_at(&cold, done), expected_half_wave((double)done / TOTAL));
}

TEST(one_cycle_rises_from_a_25th_to_one_and_falls_to_the_floor)
{
	const struct schedule s = {SCHEDULE_ONECYCLE, 0.3, 0, 0, 0.001};

	near(factor_at(&s, 0), 1.0 / 25);
	near(factor_at(&s, 90), (1 + 1.0 / 25) / 2);
	near(factor_at(&s, 180), 1);
	near(factor_at(&s, 390), 1.001 / 2);
	near(factor_at(&s, TOTAL), 0.001);
	for (uint64_t done = 0; done < TOTAL; done++)
		assert_true(done < 180 ? factor_at(&s, done) < factor_at(&s, done + 1)
				       : factor_at(&s, done) > factor_at(&s, done + 1));
}

/* The factors are between 0 and 1 even if the warm-up is 0 or the whole run, or if the number of
 * images is not a multiple of the number of epochs. */
TEST(factors_are_between_zero_and_one)
{
	const uint64_t seed = 5;
	struct rng r = rng_seed(seed, RNG_SIM, 0);

	print_message("seed %llu\n", (unsigned long long)seed);
	for (int i = 0; i < 20000; i++) {
		uint32_t epochs = (uint32_t)rng_below(&r, 5);
		uint64_t total = rng_below(&r, 2) ? rng_below(&r, 9) : rng_below(&r, 1ull << 50);
		uint64_t done = rng_below(&r, total + 3);
		const double warmup[] = {0, 1, rng_unit(&r), 1e-300};
		struct schedule s = {(enum schedule_kind)rng_below(&r, 4), warmup[rng_below(&r, 4)],
			rng_unit(&r), 1 + (uint32_t)rng_below(&r, 3),
			rng_below(&r, 3) ? rng_unit(&r) : (double)rng_below(&r, 2)};
		double f = schedule_factor(&s, done, total, epochs);

		if (!(f >= 0 && f <= 1))
			fail_msg("schedule %d: %g", (int)s.kind, f);
	}
}

/* The run has two epochs with batches of 10, 10, 10 and 5 images. The learning rate of a push
 * depends on the images that the core has counted before this push. */
TEST(the_core_asks_with_the_images_it_has_counted)
{
	struct core_config cfg = fixture_training();
	double expected = 0;
	uint64_t images = 0;
	struct core_fixture f;
	struct stamp s;

	cfg.schedule = (struct schedule){.kind = SCHEDULE_COSINE, .floor = 0.1};
	cfg.rate.lr = 0.5;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	for (uint32_t i = 0; i < 4; i++) {
		struct msg m = fixture_push_ones(s, i + 1);

		m.push.base_version = i;
		fixture_work(&m, 0, i, 1);
		expected -= 0.5 * schedule_factor(&cfg.schedule, images, 70, 2);
		images += m.push.images;
		fixture_applied(&f, 9, &m);
		assert_true(fabs((double)core_weights(f.core)[0] - expected) < 1e-6);
	}
	assert_int_equal(images, 35);
	fixture_close(&f);
}
