/* test_preprocess.c - proves how norm, shift and flip change the pixels of an image
 * (common/preprocess.h). */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/preprocess.h"
#include "common/rng.h"
#include "tests/support/test.h"

#define C 2
#define H 5
#define W 7

static uint8_t image[C * H * W], out[C * H * W];

static void fill_image(void)
{
	for (size_t i = 0; i < sizeof(image); i++)
		image[i] = (uint8_t)(i + 1);
}

TEST(pixels_are_normalised_by_channel)
{
	const struct preprocess none = {0}, one = {1, {0.5f}, {0.25f}, 0, 0},
				two = {2, {0.5f, 0}, {0.25f, 2}, 0, 0};
	float table[256];

	preprocess_table(&none, 1, table);
	assert_true(table[255] == 1 && table[51] == 51.0f / 255);
	preprocess_table(&one, 1, table);
	assert_true(table[0] == -2 && table[255] == 2);
	preprocess_table(&two, 0, table);
	assert_true(table[0] == -2 && table[255] == 2);
	preprocess_table(&two, 1, table);
	assert_true(table[0] == 0 && table[255] == 0.5f);
}

TEST(without_shift_and_flip_an_image_stays)
{
	const struct preprocess p = {1, {0.5f}, {0.25f}, 0, 0};

	fill_image();
	preprocess_image(&p, 1, 2, 3, C, H, W, image, out);
	assert_memory_equal(out, image, sizeof(image));
	assert_int_equal(preprocess_is_random(&p), 0);
}

/* Compares `out` with a second implementation of the specification in proto/WIRE.md. */
static void expect_preprocessed(const struct preprocess *p, uint32_t epoch, uint32_t n)
{
	struct rng r = rng_seed(9, 6, (uint64_t)epoch << 32 | n);
	int s = (int)p->shift, dy = 0, dx = 0, flip = 0;

	if (s) {
		dy = (int)rng_below(&r, 2 * (uint64_t)s + 1) - s;
		dx = (int)rng_below(&r, 2 * (uint64_t)s + 1) - s;
	}
	if (p->flip)
		flip = rng_below(&r, 2) == 1;
	for (int c = 0; c < C; c++)
		for (int y = 0; y < H; y++)
			for (int x = 0; x < W; x++) {
				int from_y = y - dy, from_x = x - dx;
				int inside = from_y >= 0 && from_y < H && from_x >= 0 && from_x < W;
				int at = (c * H + from_y) * W + (flip ? W - 1 - from_x : from_x);

				assert_int_equal(out[(c * H + y) * W + x], inside ? image[at] : 0);
			}
}

TEST(shift_and_flip_follow_from_seed_epoch_and_image)
{
	const struct preprocess kinds[] = {{0, {0}, {0}, 2, 0}, {0, {0}, {0}, 0, 1},
		{0, {0}, {0}, 3, 1}, {0, {0}, {0}, 4095, 1}};
	size_t same = 0;

	fill_image();
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		assert_int_equal(preprocess_is_random(&kinds[k]), 1);
		for (uint32_t n = 0; n < 200; n++) {
			preprocess_image(&kinds[k], 9, n % 3, n, C, H, W, image, out);
			expect_preprocessed(&kinds[k], n % 3, n);
			same += memcmp(image, out, sizeof(image)) == 0;
		}
	}
	/* flip leaves half of the images unchanged, and shift leaves only few images unchanged */
	assert_in_range(same, 80, 140);
}
