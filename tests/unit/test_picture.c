/* test_picture.c - pictures for cnn-ctl predict: read exactly, or refused in words. */
#include "tests/support/idx_files.h"
#include <png.h>
#include "common/rng.h"
#include "worker/ctl/picture.h"

static char dir[64];
static char path[80];
static uint8_t pixels[PICTURE_SIZE], expected[PICTURE_SIZE];

static struct blob from_text(const char *header)
{
	struct blob b = {.size = strlen(header)};

	memcpy(b.bytes, header, b.size);
	return b;
}

static void append_expected(struct blob *b)
{
	memcpy(b->bytes + b->size, expected, PICTURE_SIZE);
	b->size += PICTURE_SIZE;
}

static struct blob raw_pgm(const char *header)
{
	struct blob b = from_text(header);

	append_expected(&b);
	return b;
}

static struct blob ascii_pgm(const char *header)
{
	struct blob b = from_text(header);

	for (size_t i = 0; i < PICTURE_SIZE; i++)
		b.size += (size_t)snprintf((char *)b.bytes + b.size, sizeof(b.bytes) - b.size,
			"%d%c", expected[i], i % 28 == 27 ? '\n' : ' ');
	return b;
}

static struct blob png(unsigned width, unsigned height, unsigned format)
{
	static uint8_t canvas[4 * 64 * 64];
	struct blob b = {.size = sizeof(b.bytes)};
	png_image image;

	memset(&image, 0, sizeof(image));
	image.version = PNG_IMAGE_VERSION;
	image.width = width;
	image.height = height;
	image.format = format;
	memcpy(canvas, expected, PICTURE_SIZE);
	assert_true(png_image_write_to_memory(&image, b.bytes, &b.size, 0, canvas, 0, NULL));
	return b;
}

static int read_blob(const struct blob *b, struct err *e)
{
	temp_file_put(path, b->bytes, b->size);
	memset(pixels, 0xa5, sizeof(pixels));
	return picture_read(path, pixels, e);
}

static void reads(struct blob b)
{
	struct err e = {0};

	if (read_blob(&b, &e))
		fail_msg("%s", e.text);
	assert_memory_equal(pixels, expected, PICTURE_SIZE);
}

static void refused(struct blob b, const char *words)
{
	struct err e = {0};

	assert_int_equal(read_blob(&b, &e), PS_EDATA);
	if (!strstr(e.text, words) || !strstr(e.text, path) || strchr(e.text, '\n'))
		fail_msg("\"%s\" does not say \"%s\"", e.text, words);
}

static void all_forms_give_the_same_pixels(void **state)
{
	(void)state;
	reads(raw_pgm("P5\n28 28\n255\n"));
	reads(raw_pgm("P5 # by hand\n28\t28 # 255\n255 "));
	reads(ascii_pgm("P2 28 28 255\n"));
	reads(ascii_pgm("P2#no blank\n28 28 255\n# and here\n"));
	reads(png(28, 28, PNG_FORMAT_GRAY));
}

static void a_smaller_maximum_is_scaled(void **state)
{
	struct blob b = from_text("P5 28 28 15\n");
	struct err e;

	(void)state;
	memset(b.bytes + b.size, 15, PICTURE_SIZE);
	b.bytes[b.size + 1] = 0;
	b.bytes[b.size + 2] = 5;
	b.size += PICTURE_SIZE;
	assert_int_equal(read_blob(&b, &e), PS_OK);
	assert_true(pixels[0] == 255 && pixels[1] == 0 && pixels[2] == 85);
	b.bytes[b.size - 1] = 16;
	refused(b, "pixel 783 is 16, most is 15");
}

static void other_sizes_and_formats_are_refused(void **state)
{
	(void)state;
	refused(raw_pgm("P5 28 27 255\n"), "is 28x27 pixels, must be 28x28");
	refused(raw_pgm("P5 99999 28 255\n"), "without width and height");
	refused(raw_pgm("P5 28 28 0\n"), "maximum must be 1 to 255");
	refused(raw_pgm("P5 28 28 65535\n"), "maximum must be 1 to 255");
	refused(raw_pgm("P5 28 28 -1\n"), "maximum must be 1 to 255");
	refused(raw_pgm("P6 28 28 255\n"), "neither PNG nor PGM");
	refused(raw_pgm("P5"), "neither PNG nor PGM");
	refused(png(29, 28, PNG_FORMAT_GRAY), "is 29x28 pixels");
	refused(png(1, 1, PNG_FORMAT_GRAY), "is 1x1 pixels");
	refused(from_text(""), "neither PNG nor PGM");
}

static void the_pixels_must_be_there_and_all(void **state)
{
	struct blob b = raw_pgm("P5 28 28 255\n");

	(void)state;
	b.size--;
	refused(b, "has 783 bytes of pixels, must have 784");
	b.size += 2;
	refused(b, "has 785 bytes of pixels");
	b = ascii_pgm("P2 28 28 255\n");
	b.bytes[b.size++] = '1';
	refused(b, "more follows the last pixel");
	refused(ascii_pgm("P2 28 28 200\n"), "is not a number of 0 to 200");
	refused(from_text("P2 28 28 255\n1 2 3"), "pixel 3 is not a number");
}

static void every_truncation_is_refused(void **state)
{
	struct blob whole[] = {raw_pgm("P5 28 28 255\n"), png(28, 28, PNG_FORMAT_GRAY)};

	(void)state;
	for (size_t k = 0; k < 2; k++)
		/* the last 12 bytes of a PNG say that it ends; libpng can do without */
		for (size_t n = k ? whole[k].size - 12 : whole[k].size; n-- > 0;) {
			whole[k].size = n;
			refused(whole[k], "");
		}
}

static void mutations_are_read_or_refused(void **state)
{
	struct blob whole[] = {raw_pgm("P5 28 28 255\n"), ascii_pgm("P2 28 28 255\n"),
		png(28, 28, PNG_FORMAT_GRAY), png(28, 28, PNG_FORMAT_RGBA)};
	uint64_t seed = 4;
	struct rng r = rng_seed(seed, RNG_SIM, 0);

	(void)state;
	for (int i = 0; i < 6000; i++) {
		struct blob b = whole[i % 4];
		struct err e = {0};
		int status;

		for (uint64_t k = 1 + rng_below(&r, 3); k > 0; k--)
			b.bytes[rng_below(&r, i % 8 < 4 ? 64 : b.size)] =
				(unsigned char)rng_next(&r);
		status = read_blob(&b, &e);
		if (status && (status != PS_EDATA || !e.text[0]))
			fail_msg("seed %llu, mutation %d: status %d \"%s\"",
				(unsigned long long)seed, i, status, e.text);
	}
}

static void what_is_no_file_is_refused(void **state)
{
	struct err e;

	(void)state;
	assert_int_equal(picture_read(dir, pixels, &e), PS_EDATA);
	assert_int_equal(e.status, PS_EDATA);
	assert_int_equal(picture_read("/dev/zero", pixels, &e), PS_EDATA);
	assert_int_equal(picture_read("", pixels, &e), PS_EDATA);
}

static int make_dir(void **state)
{
	(void)state;
	temp_dir_make(dir);
	snprintf(path, sizeof(path), "%s/file", dir);
	for (size_t i = 0; i < PICTURE_SIZE; i++)
		expected[i] = (uint8_t)(i * 37);
	return 0;
}

static int remove_dir(void **state)
{
	(void)state;
	temp_dir_remove(dir);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_forms_give_the_same_pixels),
		cmocka_unit_test(a_smaller_maximum_is_scaled),
		cmocka_unit_test(other_sizes_and_formats_are_refused),
		cmocka_unit_test(the_pixels_must_be_there_and_all),
		cmocka_unit_test(every_truncation_is_refused),
		cmocka_unit_test(mutations_are_read_or_refused),
		cmocka_unit_test(what_is_no_file_is_refused),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
