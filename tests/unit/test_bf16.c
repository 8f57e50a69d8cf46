/* test_bf16.c - rounding to bfloat16 is correct for every value and every tie. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "common/rng.h"
#include "proto/bf16.h"
#include "tests/support/test.h"

static float float_of(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static uint32_t float_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static int is_nan(uint32_t half)
{
	return (half & 0x7fff) > 0x7f80;
}

TEST(all_65536_values_survive)
{
	for (uint32_t half = 0; half < 0x10000; half++) {
		assert_int_equal(float_bits(bf16_float((uint16_t)half)), half << 16);
		assert_int_equal(bf16_of_bits(half << 16), half);
	}
}

/* Rounds numbers between each value and the next one of the same sign: below the middle, in the
 * middle and above it. */
TEST(every_tie_goes_to_the_even_neighbour)
{
	for (uint32_t half = 0; half < 0x10000; half++) {
		uint32_t next = half + 1;

		if ((half & 0x7fff) >= 0x7f80)
			continue;
		assert_int_equal(bf16_of_bits(half << 16 | 1), half);
		assert_int_equal(bf16_of_bits(half << 16 | 0x7fff), half);
		assert_int_equal(bf16_of_bits(half << 16 | 0x8000), half & 1 ? next : half);
		assert_int_equal(bf16_of_bits(half << 16 | 0x8001), next);
		assert_int_equal(bf16_of_bits(half << 16 | 0xffff), next);
	}
}

TEST(too_large_is_infinite_and_subnormal_values_are_rounded)
{
	assert_int_equal(bf16_of(float_of(0x7f7f7fff)), 0x7f7f); /* the largest bfloat16 */
	assert_int_equal(bf16_of(float_of(0x7f7f8000)), 0x7f80);
	assert_int_equal(bf16_of(float_of(0xff7fffff)), 0xff80);
	assert_int_equal(bf16_of(INFINITY), 0x7f80);
	assert_int_equal(bf16_of(-INFINITY), 0xff80);
	assert_int_equal(bf16_of_bits(0x00000001), 0);
	assert_int_equal(bf16_of_bits(0x00008001), 1); /* the smallest subnormal bfloat16 */
	assert_int_equal(bf16_of_bits(0x80008001), 0x8001);
	assert_int_equal(bf16_of_bits(0x007fffff), 0x0080); /* the result is a normal number */
	assert_int_equal(bf16_of_bits(0x80000000), 0x8000); /* -0 */
}

TEST(a_nan_keeps_its_sign_and_the_upper_bits_of_its_payload)
{
	for (uint32_t low = 0; low < 0x10000; low += 0x101)
		for (uint32_t half = 0x7f80; half < 0x10000; half++) {
			uint32_t bits = half << 16 | low, rounded = bf16_of_bits(bits);

			if ((bits & 0x7fffffff) <= 0x7f800000)
				continue;
			assert_true(is_nan(rounded));
			assert_int_equal(rounded | 0x40, half | 0x40);
			assert_int_equal(rounded & 0x8000, half & 0x8000);
		}
}

/* The functions for vectors may use other instruction sets than the functions for single values, so
 * their results are compared. */
TEST(vectors_are_converted_like_values_at_any_alignment)
{
	enum { N = 1003 };
	static float from[N], back[N];
	static unsigned char bytes[N * BF16_BYTES + 4];
	struct rng dice = rng_seed(1, RNG_SIM, 0);

	for (size_t shift = 0; shift < 4; shift++) {
		uint32_t peak = 0;

		for (size_t i = 0; i < N; i++)
			from[i] = float_of((uint32_t)rng_next(&dice));
		bf16_pack(bytes + shift, from, N);
		uint32_t got = bf16_unpack(back, bytes + shift, N);
		for (size_t i = 0; i < N; i++) {
			uint32_t bits = (uint32_t)bf16_of(from[i]) << 16;
			uint32_t size = bits & 0x7fffffff;

			assert_int_equal(float_bits(back[i]), bits);
			peak = size > peak ? size : peak;
		}
		assert_int_equal(got, peak);
	}
	assert_int_equal(bf16_unpack(back, bytes, 0), 0);
}
