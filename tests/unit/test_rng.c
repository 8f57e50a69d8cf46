/* Proves the promises of common/rng.h. The expected numbers come from a Python program that was
 * written from the text of the header, not from the C code. The first vector of expected numbers
 * was published with SplitMix64. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/rng.h"
#include "tests/support/test.h"

TEST(the_generator_is_splitmix64)
{
	struct rng r = {1234567};
	const uint64_t expected[] = {6457827717110365317u, 3203168211198807973u,
		9817491932198370423u, 4593380528125082431u, 16408922859458223821u};

	for (size_t i = 0; i < 5; i++)
		assert_int_equal(rng_next(&r), expected[i]);
	assert_int_equal(rng_mix(1234567), expected[0]);
}

TEST(a_seed_is_mixed_with_stream_and_sub_stream)
{
	assert_int_equal(rng_seed(7, RNG_ORDER, 3).state, 0xab03565edcb53bcfu);
	assert_int_equal(rng_seed(9, RNG_SIM, 4).state, rng_mix(rng_mix(rng_mix(9) ^ 5) ^ 4));
}

TEST(streams_and_sub_streams_do_not_repeat_each_other)
{
	enum { N = 3 * 5 * 7 };
	uint64_t first[N];
	size_t n = 0;
	for (uint64_t seed = 0; seed < 3; seed++)
		for (int stream = RNG_INIT; stream <= RNG_SIM; stream++)
			for (uint64_t sub = 0; sub < 7; sub++)
				first[n++] = rng_seed(seed, (enum rng_stream)stream, sub).state;
	assert_int_equal(n, N);
	for (size_t i = 0; i < N; i++)
		for (size_t j = 0; j < i; j++)
			assert_int_not_equal(first[i], first[j]);
}

TEST(below_is_the_high_half_of_the_product_and_even)
{
	const uint64_t expected[] = {7, 1, 2, 3, 0, 8, 2, 8, 3, 6};
	struct rng r = {42};
	size_t seen[10] = {0};

	for (size_t i = 0; i < 10; i++)
		assert_int_equal(rng_below(&r, 10), expected[i]);
	for (int i = 0; i < 100000; i++) {
		uint64_t v = rng_below(&r, 10);

		assert_true(v < 10);
		seen[v]++;
	}
	/* each of the 10 values should occur 10000 times; the bounds are 5 standard deviations */
	for (size_t i = 0; i < 10; i++)
		assert_in_range(seen[i], 10000 - 475, 10000 + 475);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(rng_below(&r, 1), 0);
	for (int i = 0; i < 1000; i++)
		assert_true(rng_below(&r, UINT64_MAX) < UINT64_MAX);
}

TEST(unit_is_53_bits_in_0_to_1)
{
	struct rng r = rng_seed(7, RNG_INIT, 0);

	assert_true(rng_unit(&r) == 0.19743751642449092);
	assert_true(rng_unit(&r) == 0.8596735762488327);
	assert_true(rng_unit(&r) == 0.48118900885749205);
	double sum = 0;
	for (int i = 0; i < 100000; i++) {
		double u = rng_unit(&r);

		assert_true(u >= 0 && u < 1);
		sum += u;
	}
	assert_true(sum > 49500 && sum < 50500);
}

TEST(the_order_of_images_is_the_one_that_is_specified)
{
	const uint32_t expected[3][10] = {{9, 5, 0, 3, 6, 7, 2, 1, 8, 4},
		{0, 5, 9, 3, 4, 6, 2, 8, 7, 1}, {9, 3, 8, 1, 2, 6, 5, 0, 7, 4}};
	uint32_t order[10];

	rng_order(7, 0, order, 10);
	assert_memory_equal(order, expected[0], sizeof(order));
	rng_order(7, 1, order, 10); /* the order of another epoch */
	assert_memory_equal(order, expected[1], sizeof(order));
	rng_order(8, 0, order, 10); /* the order for another seed */
	assert_memory_equal(order, expected[2], sizeof(order));
}

TEST(the_images_held_back_are_those_that_are_specified)
{
	const uint32_t expected[10] = {1, 6, 8, 2, 9, 0, 4, 5, 3, 7};
	uint32_t order[10];

	rng_hold_back(order, 10);
	assert_memory_equal(order, expected, sizeof(order));
}

TEST(every_order_is_a_permutation)
{
	const size_t sizes[] = {0, 1, 2, 3, 100, 60000};
	static uint32_t order[60001];
	static unsigned char seen[60000];

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		for (uint32_t epoch = 0; epoch < 3; epoch++) {
			size_t n = sizes[s];

			order[n] = 0xabcdef;
			memset(seen, 0, sizeof(seen));
			rng_order(7, epoch, order, n);
			for (size_t i = 0; i < n; i++) {
				assert_true(order[i] < n);
				assert_int_equal(seen[order[i]]++, 0);
			}
			assert_int_equal(order[n], 0xabcdef);
		}
	rng_order(7, 0, order, 60000);
	assert_int_equal(order[0], 26529);
	assert_int_equal(order[4], 38174);
}
