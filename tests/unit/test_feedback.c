/* test_feedback.c - proves the invariants of worker/client/feedback.h. */
#include <math.h>
#include <string.h>
#include "common/rng.h"
#include "proto/bf16.h"
#include "tests/support/test.h"
#include "worker/client/feedback.h"

enum { N = 1003, PUSHES = 200 };

static struct feedback feedback;
static float gradient[N], sent[N];
static double given[N], arrived[N];

static int set_up_feedback(void **state)
{
	(void)state;
	memset(given, 0, sizeof(given));
	memset(arrived, 0, sizeof(arrived));
	return feedback_init(&feedback, N, N);
}

static int tear_down_feedback(void **state)
{
	(void)state;
	feedback_release(&feedback);
	return 0;
}

static void round_and_add(size_t offset, size_t n)
{
	unsigned char bytes[N * BF16_BYTES];

	feedback_round(&feedback, gradient + offset, offset, n, bytes);
	(void)bf16_unpack(sent + offset, bytes, n);
	for (size_t i = offset; i < offset + n; i++) {
		given[i] += (double)gradient[i];
		arrived[i] += (double)sent[i];
	}
}

static void draw_gradient(struct rng *dice)
{
	for (size_t i = 0; i < N; i++)
		gradient[i] = (float)((rng_unit(dice) - 0.5) * exp2((double)(i % 40) - 20));
}

TEST_IN(the_sums_differ_by_the_newest_error_only, set_up_feedback, tear_down_feedback)
{
	struct rng dice = rng_seed(2, RNG_SIM, 0);

	for (int p = 0; p < PUSHES; p++) {
		size_t offset = rng_below(&dice, N);

		draw_gradient(&dice);
		round_and_add(offset, 1 + rng_below(&dice, N - offset));
	}
	for (size_t i = 0; i < N; i++) {
		double largest = exp2((double)(i % 40) - 21);

		assert_true(fabs(given[i] - arrived[i] - (double)feedback.error[i]) <
			    PUSHES * largest * 0x1p-24);
		/* the error is at most half of the distance from `largest` to the next bfloat16 */
		assert_true(fabs((double)feedback.error[i]) <= largest * 0x1p-8);
	}
}

/* Without the feedback, this value would always be rounded down, and each push would lose 2^-10. */
TEST_IN(a_value_between_two_neighbours_arrives_in_the_mean, set_up_feedback, tear_down_feedback)
{
	for (size_t i = 0; i < N; i++)
		gradient[i] = 1 + 0x1p-10f;
	for (int p = 0; p < 1024; p++)
		round_and_add(0, N);
	for (size_t i = 0; i < N; i++) {
		assert_true(given[i] == 1025);
		assert_true(fabs(arrived[i] - 1025) <= 0x1p-8);
	}
}

TEST_IN(what_is_not_finite_leaves_no_error, set_up_feedback, tear_down_feedback)
{
	const float bad[] = {NAN, INFINITY, -INFINITY, 3.4e38f};

	for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
		gradient[0] = 1 + 0x1p-10f;
		round_and_add(0, 1);
		assert_true(feedback.error[0] != 0);
		gradient[0] = bad[k];
		round_and_add(0, 1);
		assert_true(!isfinite(sent[0]) && feedback.error[0] == 0);
		assert_int_equal(isnan(sent[0]) != 0, isnan(bad[k]) != 0);
	}
}

/* Each pushed value of a running statistic is a measurement of its own, so an error must not be
 * added to the next value. */
TEST_IN(running_statistics_are_only_rounded, set_up_feedback, tear_down_feedback)
{
	feedback.n_kept = N / 2;
	for (size_t i = 0; i < N; i++)
		gradient[i] = 1 + 0x1p-10f;
	for (int p = 0; p < 3; p++) {
		round_and_add(0, N);
		round_and_add(N - 5, 5);
	}
	for (size_t i = 0; i < N; i++)
		assert_true((feedback.error[i] != 0) == (i < N / 2));
	for (size_t i = N / 2; i < N; i++)
		assert_true(sent[i] == 1);
}

TEST_IN(a_push_as_float32_takes_the_errors_with_it, set_up_feedback, tear_down_feedback)
{
	for (size_t i = 0; i < N; i++)
		gradient[i] = 1 + 0x1p-10f;
	round_and_add(0, N);
	assert_int_equal(feedback_add(&feedback, gradient, 0, N / 2), 1);
	assert_int_equal(feedback_add(&feedback, gradient + N / 2, N / 2, N - N / 2), 1);
	for (size_t i = 0; i < N; i++) {
		assert_true(gradient[i] == 1 + 0x1p-9f);
		assert_true(feedback.error[i] == 0);
	}
	assert_int_equal(feedback_add(&feedback, gradient, 0, N), 1);
	assert_int_equal(feedback_add(&feedback, gradient, 0, N), 0);
}
