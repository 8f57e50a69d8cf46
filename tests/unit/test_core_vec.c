/* Proves vec_squares (server/core/vec.h): its result agrees with a sum that is computed in long
 * double. */
#include <math.h>
#include <stdlib.h>
#include "common/rng.h"
#include "server/core/vec.h"
#include "tests/support/test.h"

#define LONGEST 5000u

static double exact_sum_of_squares(const float *v, size_t n)
{
	long double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (long double)v[i] * (long double)v[i];
	return (double)sum;
}

TEST(squares_agree_with_a_sum_of_long_doubles)
{
	static const float scales[] = {1e15f, 1, 1e-6f, 1e-15f};
	static float v[LONGEST];
	struct rng r = rng_seed(7, RNG_ORDER, 0);

	for (size_t s = 0; s < sizeof(scales) / sizeof(scales[0]); s++)
		for (size_t n = 0; n <= LONGEST; n += n < 1100 ? 1 : 97) {
			for (size_t i = 0; i < n; i++)
				v[i] = scales[s] * (float)(2 * rng_unit(&r) - 1);
			double right = exact_sum_of_squares(v, n);

			assert_true(fabs(vec_squares(v, n) - right) <= 2e-6 * right);
		}
}

/* The squares of these values are subnormal numbers, with which a CPU computes slowly. */
TEST(squares_of_tiny_values_are_0_or_exact)
{
	static float v[LONGEST];

	for (size_t i = 0; i < LONGEST; i++)
		v[i] = 1e-21f;
	assert_true(vec_squares(v, LONGEST) <= exact_sum_of_squares(v, LONGEST));
	v[LONGEST / 2] = 1;
	assert_true(fabs(vec_squares(v, LONGEST) - 1) <= 2e-6);
}
