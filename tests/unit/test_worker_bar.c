/* test_worker_bar.c - the text of a worker's progress bar, and the rate that it shows. */
#include <string.h>
#include "worker/bar.h"
#include "tests/support/test.h"

static const struct bar_view half = {
	.worker = 3, .epoch = 11, .epochs = 500, .batch = 50, .batches = 100, .pushes = 12345};

/* Returns the text for a terminal of this number of columns. */
static const char *line_of(
	struct bar *b, const struct bar_view *v, double images_per_s, size_t columns)
{
	static char line[160];

	b->images_per_s = images_per_s;
	bar_text(b, v, columns, line, sizeof(line));
	return line;
}

TEST(a_bar_leaves_out_what_does_not_fit)
{
	static const char *const want[] = {
		"worker 3  epoch 12/500:  50 % [##########..........]  1500 images/s  12345 pushes",
		"worker 3  epoch 12/500:  50 % [#####.....]  1500 images/s  12345 pushes",
		"worker 3  epoch 12/500:  50 %  1500 images/s  12345 pushes",
		"worker 3  epoch 12/500:  50 %  1500 images/s"};

	for (size_t i = 0; i < 4; i++)
		for (int less = 0; less < (i < 3 ? 2 : 1); less++) {
			struct bar b = {0};
			size_t columns = less ? strlen(want[i + 1]) : strlen(want[i]);

			assert_string_equal(
				line_of(&b, &half, 1500, columns), want[i + (size_t)less]);
		}
}

TEST(a_bar_gets_longer_only_with_the_terminal)
{
	struct bar b = {0};

	assert_non_null(strstr(line_of(&b, &half, 9351, 82), "[##########..........]"));
	assert_non_null(strstr(line_of(&b, &half, 154194, 82), "[#####.....]"));
	assert_non_null(strstr(line_of(&b, &half, 9351, 82), "[#####.....]"));
	assert_non_null(strstr(line_of(&b, &half, 9351, 120), "[##########..........]"));
	assert_non_null(strstr(line_of(&b, &half, 9351, 82), "[##########..........]"));
}

/* A worker trains 100,000 images/s for half a second, and nothing for the next half. */
TEST(the_rate_of_a_worker_that_pauses_is_a_mean)
{
	struct bar b = {0};
	uint64_t images = 0;

	for (int i = 0; i < 80; i++) {
		bar_measure(&b, images, 100 + 0.25 * i);
		images += i % 4 < 2 ? 25000 : 0;
		if (i >= 40)
			assert_true(b.images_per_s > 40000 && b.images_per_s < 60000);
	}
}

TEST(the_rate_begins_with_the_first_images_and_ends_with_the_last)
{
	struct bar b = {0};

	bar_measure(&b, 0, 10);
	bar_measure(&b, 0, 11);
	assert_float_equal(b.images_per_s, 0, 1e-9);
	bar_measure(&b, 250, 11.25);
	assert_float_equal(b.images_per_s, 1000, 1e-9);
	bar_measure(&b, 500, 11.5);
	assert_float_equal(b.images_per_s, 1000, 1e-9);
	bar_measure(&b, 500, 31.5);
	assert_true(b.images_per_s < 1);
}
