/* test_picture.c - the pixels of pictures for cnn-ctl predict are read exactly. Other files are
 * refused with an error text. */
#include "tests/support/idx_files.h"
#include <jpeglib.h>
#include <png.h>
#include "common/rng.h"
#include "worker/ctl/picture.h"
#include "tests/support/test.h"

static char path[80];
#define PICTURE_SIZE 784
static const struct shape mnist = {1, 28, 28};
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

static int read_picture_blob(const struct blob *b, struct err *e)
{
	temp_file_put(path, b->bytes, b->size);
	memset(pixels, 0xa5, sizeof(pixels));
	return picture_read(path, mnist, pixels, e);
}

static void reads(struct blob b)
{
	struct err e = {0};

	if (read_picture_blob(&b, &e))
		fail_msg("%s", e.text);
	assert_memory_equal(pixels, expected, PICTURE_SIZE);
}

static void assert_picture_refused(struct blob b, const char *words)
{
	struct err e = {0};

	assert_int_equal(read_picture_blob(&b, &e), PS_EDATA);
	if (!strstr(e.text, words) || !strstr(e.text, path) || strchr(e.text, '\n'))
		fail_msg("\"%s\" does not say \"%s\"", e.text, words);
}

TEST(all_forms_give_the_same_pixels)
{
	reads(raw_pgm("P5\n28 28\n255\n"));
	reads(raw_pgm("P5 # by hand\n28\t28 # 255\n255 "));
	reads(ascii_pgm("P2 28 28 255\n"));
	reads(ascii_pgm("P2#no blank\n28 28 255\n# and here\n"));
	reads(png(28, 28, PNG_FORMAT_GRAY));
}

static void jpeg_file(const char *name, int width, int height, int components)
{
	struct jpeg_compress_struct c;
	struct jpeg_error_mgr errors;
	FILE *f = fopen(name, "wb");
	uint8_t row[4 * 64];
	JSAMPROW rows[] = {row};

	assert_non_null(f);
	c.err = jpeg_std_error(&errors);
	jpeg_create_compress(&c);
	jpeg_stdio_dest(&c, f);
	c.image_width = (JDIMENSION)width;
	c.image_height = (JDIMENSION)height;
	c.input_components = components;
	c.in_color_space = components == 4 ? JCS_CMYK : components == 3 ? JCS_RGB : JCS_GRAYSCALE;
	jpeg_set_defaults(&c);
	jpeg_set_quality(&c, 100, TRUE);
	jpeg_start_compress(&c, TRUE);
	for (int i = 0; i < width * components; i++)
		row[i] = (uint8_t)(components == 1 ? 77 : i % 3 == 0 ? 200 : i % 3 == 1 ? 100 : 50);
	for (int y = 0; y < height; y++)
		jpeg_write_scanlines(&c, rows, 1);
	jpeg_finish_compress(&c);
	jpeg_destroy_compress(&c);
	assert_int_equal(fclose(f), 0);
}

TEST(pictures_of_any_size_come_in_planes)
{
	struct picture p;
	struct err e = {0};
	struct blob b = {.size = sizeof(b.bytes)};
	uint8_t rgb[3 * 5 * 2];
	png_image image;

	for (size_t i = 0; i < sizeof(rgb); i++)
		rgb[i] = (uint8_t)(i * 8);
	memset(&image, 0, sizeof(image));
	image.version = PNG_IMAGE_VERSION;
	image.width = 5;
	image.height = 2;
	image.format = PNG_FORMAT_RGB;
	assert_true(png_image_write_to_memory(&image, b.bytes, &b.size, 0, rgb, 0, NULL));
	temp_file_put(path, b.bytes, b.size);
	assert_int_equal(picture_load(&p, path, 0, &e), PS_OK);
	assert_true(p.shape.c == 3 && p.shape.h == 2 && p.shape.w == 5);
	for (size_t i = 0; i < 10; i++)
		for (size_t c = 0; c < 3; c++)
			assert_int_equal(p.pixels[c * 10 + i], rgb[i * 3 + c]);
	picture_release(&p);
	assert_int_equal(picture_load(&p, path, 1, &e), PS_OK);
	assert_int_equal(p.shape.c, 1);
	picture_release(&p);
	b = raw_pgm("P5 28 28 255\n");
	temp_file_put(path, b.bytes, b.size);
	assert_int_equal(picture_load(&p, path, 3, &e), PS_OK);
	assert_int_equal(p.shape.c, 3);
	assert_memory_equal(p.pixels + 2 * PICTURE_SIZE, expected, PICTURE_SIZE);
	picture_release(&p);
	assert_picture_refused(
		from_text("P5 5000 1 255\n"), "is 5000x1 pixels, must be 1x1 to 4096x4096");
}

TEST(jpeg_is_read_in_grey_and_colours)
{
	struct picture p;
	struct err e = {0};

	jpeg_file(path, 28, 28, 1);
	assert_int_equal(picture_read(path, mnist, pixels, &e), PS_OK);
	for (size_t i = 0; i < PICTURE_SIZE; i++)
		assert_in_range(pixels[i], 76, 78);
	jpeg_file(path, 16, 8, 3);
	assert_int_equal(picture_load(&p, path, 0, &e), PS_OK);
	assert_true(p.shape.c == 3 && p.shape.h == 8 && p.shape.w == 16);
	for (size_t i = 0; i < 128; i++) {
		assert_in_range(p.pixels[i], 197, 203);
		assert_in_range(p.pixels[128 + i], 97, 103);
		assert_in_range(p.pixels[256 + i], 47, 53);
	}
	picture_release(&p);
	assert_int_equal(picture_read(path, mnist, pixels, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "is 16x8 pixels, must be 28x28"));
	jpeg_file(path, 28, 28, 4);
	assert_int_equal(picture_read(path, mnist, pixels, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "in CMYK"));
}

#define BLOCK 8 /* side of a JPEG block in pixels; JPEG stores a block of one grey value exactly */

/* Writes a grey JPEG of 3 x 2 blocks. The first row has the greys a, b, c, and the second row d, e,
 * f. The file has a marker APP1 with the `n` bytes at `exif`. */
static void blocks_file(const void *exif, unsigned n, int components)
{
	struct jpeg_compress_struct c;
	struct jpeg_error_mgr errors;
	FILE *f = fopen(path, "wb");
	uint8_t row[3 * 3 * BLOCK];
	JSAMPROW rows[] = {row};

	assert_non_null(f);
	c.err = jpeg_std_error(&errors);
	jpeg_create_compress(&c);
	jpeg_stdio_dest(&c, f);
	c.image_width = 3 * BLOCK;
	c.image_height = 2 * BLOCK;
	c.input_components = components;
	c.in_color_space = components == 3 ? JCS_RGB : JCS_GRAYSCALE;
	jpeg_set_defaults(&c);
	jpeg_set_quality(&c, 100, TRUE);
	jpeg_start_compress(&c, TRUE);
	jpeg_write_marker(&c, JPEG_APP0 + 1, (const JOCTET *)"http://ns.adobe.com/xap/1.0/", 29);
	if (n)
		jpeg_write_marker(&c, JPEG_APP0 + 1, exif, n);
	for (int y = 0; y < 2 * BLOCK; y++) {
		for (int x = 0; x < 3 * BLOCK; x++)
			memset(row + components * x, 40 * (1 + x / BLOCK + 3 * (y / BLOCK)),
				(size_t)components);
		jpeg_write_scanlines(&c, rows, 1);
	}
	jpeg_finish_compress(&c);
	jpeg_destroy_compress(&c);
	assert_int_equal(fclose(f), 0);
}

/* Asserts that the picture in the file has these blocks, row by row. */
static void assert_blocks(const char *blocks, size_t columns, size_t rows)
{
	struct picture p;
	struct err e = {0};

	if (picture_load(&p, path, 0, &e))
		fail_msg("%s", e.text);
	assert_true(p.shape.h == BLOCK * rows && p.shape.w == BLOCK * columns);
	for (size_t i = 0; i < shape_count(p.shape); i++) {
		const size_t x = i % p.shape.w, y = i / p.shape.w % p.shape.h;
		const char block = blocks[y / BLOCK * columns + x / BLOCK];
		const unsigned grey = 40u * (1u + (unsigned)(block - 'a'));

		assert_in_range(p.pixels[i], grey - 2, grey + 2);
	}
	picture_release(&p);
}

/* The same EXIF block in both byte orders. It has a header and a directory of two entries: the
 * maker "X" and the orientation. The orientation is 0; exif_with sets it. */
#define EXIF_BYTES       40
#define EXIF_DIRECTORY   10 /* index of the bytes with the offset of the directory */
#define EXIF_ORIENTATION 36 /* index of the two bytes with the value of the orientation */
static const unsigned char exif_little[EXIF_BYTES] =
	"Exif\0\0II*\0\10\0\0\0\2\0\17\1\2\0\1\0\0\0X\0\0\0\x12\1\3\0\1\0\0\0\0\0\0\0";
static const unsigned char exif_big[EXIF_BYTES] =
	"Exif\0\0MM\0*\0\0\0\10\0\2\1\17\0\2\0\0\0\1X\0\0\0\1\x12\0\3\0\0\0\1\0\0\0\0";

/* Writes an EXIF block with the orientation `orientation` to `exif`. */
static void exif_with(unsigned char exif[EXIF_BYTES], int is_big, unsigned orientation)
{
	memcpy(exif, is_big ? exif_big : exif_little, EXIF_BYTES);
	exif[EXIF_ORIENTATION + is_big] = (unsigned char)orientation;
}

TEST(a_jpeg_is_turned_as_its_orientation_says)
{
	static const char *const blocks[] = {"abcdef", "abcdef", "cbafed", "fedcba", "defabc",
		"adbecf", "daebfc", "fcebda", "cfbead", "abcdef"};
	unsigned char exif[EXIF_BYTES];

	blocks_file(NULL, 0, 1);
	assert_blocks("abcdef", 3, 2);
	for (unsigned orientation = 0; orientation <= 9; orientation++)
		for (int is_big = 0; is_big <= 1; is_big++) {
			const int turned = orientation >= 5 && orientation <= 8;

			exif_with(exif, is_big, orientation);
			for (int components = 1; components <= 3; components += 2) {
				blocks_file(exif, sizeof(exif), components);
				assert_blocks(blocks[orientation], turned ? 2 : 3, turned ? 3 : 2);
			}
		}
}

/* If a JPEG must be turned, its size after that, not before, must be the size that the model
 * needs. */
TEST(the_size_of_a_turned_jpeg_is_checked)
{
	static uint8_t turned[3 * BLOCK * 2 * BLOCK];
	unsigned char exif[EXIF_BYTES];
	struct err e = {0};

	exif_with(exif, 0, 6);
	blocks_file(exif, sizeof(exif), 1);
	assert_int_equal(
		picture_read(path, (struct shape){1, 3 * BLOCK, 2 * BLOCK}, turned, &e), PS_OK);
	assert_in_range(turned[0], 4 * 40 - 2, 4 * 40 + 2);
	assert_int_equal(
		picture_read(path, (struct shape){1, 2 * BLOCK, 3 * BLOCK}, turned, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "is 16x24 pixels, must be 24x16"));
}

static void assert_not_turned(const unsigned char exif[EXIF_BYTES], unsigned n)
{
	blocks_file(exif, n, 1);
	assert_blocks("abcdef", 3, 2);
}

/* A JPEG with a damaged EXIF block is read as if it had none. */
TEST(a_damaged_exif_block_turns_nothing)
{
	unsigned char exif[EXIF_BYTES];

	for (int is_big = 0; is_big <= 1; is_big++) {
		exif_with(exif, is_big, 6);
		for (unsigned n = 1; n < EXIF_BYTES; n++)
			assert_not_turned(exif, n);
		for (unsigned byte = 0; byte < EXIF_BYTES; byte++) {
			struct picture p;
			struct err e;

			exif_with(exif, is_big, 6);
			exif[byte] = 0xff;
			blocks_file(exif, EXIF_BYTES, 1);
			assert_int_equal(picture_load(&p, path, 0, &e), PS_OK);
			assert_int_equal(shape_count(p.shape), 6 * BLOCK * BLOCK);
			picture_release(&p);
		}
		exif_with(exif, is_big, 6);
		memset(exif + EXIF_DIRECTORY, 0xff, 4);
		assert_not_turned(exif, EXIF_BYTES);
		exif_with(exif, is_big, 6);
		/* 4 is the type LONG, which an orientation must not have */
		exif[EXIF_ORIENTATION - 6 + is_big] = 4;
		assert_not_turned(exif, EXIF_BYTES);
		exif_with(exif, is_big, 6);
		exif[EXIF_ORIENTATION + !is_big] = 1; /* 256 more */
		assert_not_turned(exif, EXIF_BYTES);
	}
}

TEST(damaged_jpegs_are_read_or_refused)
{
	struct blob whole = {.size = 0};
	struct rng r = rng_seed(8, RNG_SIM, 0);
	FILE *f;

	jpeg_file(path, 28, 28, 3);
	f = fopen(path, "rb");
	assert_non_null(f);
	whole.size = fread(whole.bytes, 1, sizeof(whole.bytes), f);
	assert_int_equal(fclose(f), 0);
	for (size_t n = 0; n < whole.size - 2; n++) {
		struct blob b = whole;

		b.size = n;
		assert_picture_refused(b, "");
	}
	for (int i = 0; i < 2000; i++) {
		struct blob b = whole;
		struct err e = {0};

		for (uint64_t k = 1 + rng_below(&r, 3); k > 0; k--)
			b.bytes[rng_below(&r, b.size)] = (unsigned char)rng_next(&r);
		int rc = read_picture_blob(&b, &e);
		assert_true(!rc || (rc == PS_EDATA && e.text[0]));
	}
}

TEST(a_smaller_maximum_is_scaled)
{
	struct blob b = from_text("P5 28 28 15\n");
	struct err e;

	memset(b.bytes + b.size, 15, PICTURE_SIZE);
	b.bytes[b.size + 1] = 0;
	b.bytes[b.size + 2] = 5;
	b.size += PICTURE_SIZE;
	assert_int_equal(read_picture_blob(&b, &e), PS_OK);
	assert_true(pixels[0] == 255 && pixels[1] == 0 && pixels[2] == 85);
	b.bytes[b.size - 1] = 16;
	assert_picture_refused(b, "pixel 783 is 16, must be at most 15");
}

/* Writes a grey PNG with 16 bits for each of the values `expected`. As most programs do, it writes
 * no chunk that describes the brightness of the values. */
static void write_deep_png(void)
{
	FILE *f = fopen(path, "wb");
	png_structp png_file = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
	png_infop info = png_create_info_struct(png_file);

	assert_non_null(f);
	assert_non_null(info);
	png_init_io(png_file, f);
	png_set_IHDR(png_file, info, 28, 28, 16, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
		PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
	png_write_info(png_file, info);
	for (size_t y = 0; y < 28; y++) {
		uint8_t row[2 * 28];

		for (size_t x = 0; x < 28; x++)
			row[2 * x] = row[2 * x + 1] = expected[28 * y + x];
		png_write_row(png_file, row);
	}
	png_write_end(png_file, info);
	png_destroy_write_struct(&png_file, &info);
	assert_int_equal(fclose(f), 0);
}

/* Samples of 16 bits have the same brightness curve as samples of 8 bits. */
TEST(a_png_of_16_bits_has_the_same_pixels)
{
	struct err e = {0};

	write_deep_png();
	if (picture_read(path, mnist, pixels, &e))
		fail_msg("%s", e.text);
	for (size_t i = 0; i < PICTURE_SIZE; i++)
		assert_in_range(pixels[i] + 1, expected[i], expected[i] + 2u);
}

/* A pixel has two bytes, the more significant byte first. */
TEST(a_pgm_of_16_bits_is_scaled)
{
	struct blob raw = from_text("P5 28 28 65535\n"), text = from_text("P2 28 28 65535\n");
	struct err e;

	for (size_t i = 0; i < PICTURE_SIZE; i++) {
		raw.bytes[raw.size++] = expected[i];
		raw.bytes[raw.size++] = expected[i];
		text.size += (size_t)snprintf((char *)text.bytes + text.size,
			sizeof(text.bytes) - text.size, "%d ", 257 * expected[i]);
	}
	reads(raw);
	reads(text);
	raw.size--;
	assert_picture_refused(raw, "has 1567 bytes of pixels, must have 1568");
	raw = from_text("P5 28 28 256\n");
	memset(raw.bytes + raw.size, 1, 2 * PICTURE_SIZE);
	raw.size += 2 * PICTURE_SIZE;
	assert_picture_refused(raw, "pixel 0 is 257, must be at most 256");
	for (size_t i = 0; i < PICTURE_SIZE; i++)
		raw.bytes[raw.size - 2 * PICTURE_SIZE + 2 * i + 1] = 0;
	assert_int_equal(read_picture_blob(&raw, &e), PS_OK);
	assert_int_equal(pixels[0], 255);
}

TEST(other_sizes_and_formats_are_refused)
{
	assert_picture_refused(raw_pgm("P5 28 27 255\n"), "is 28x27 pixels, must be 28x28");
	assert_picture_refused(raw_pgm("P5 99999 28 255\n"), "without width and height");
	assert_picture_refused(raw_pgm("P5 28 28 0\n"), "maximum must be 1 to 65535");
	assert_picture_refused(raw_pgm("P5 28 28 65536\n"), "maximum must be 1 to 65535");
	assert_picture_refused(raw_pgm("P5 28 28 -1\n"), "maximum must be 1 to 65535");
	assert_picture_refused(raw_pgm("P6 28 28 255\n"), "neither PNG nor JPEG nor PGM");
	assert_picture_refused(raw_pgm("P5"), "neither PNG nor JPEG nor PGM");
	assert_picture_refused(png(29, 28, PNG_FORMAT_GRAY), "is 29x28 pixels");
	assert_picture_refused(png(1, 1, PNG_FORMAT_GRAY), "is 1x1 pixels");
	assert_picture_refused(from_text(""), "neither PNG nor JPEG nor PGM");
}

TEST(the_pixels_must_be_there_and_all)
{
	struct blob b = raw_pgm("P5 28 28 255\n");

	b.size--;
	assert_picture_refused(b, "has 783 bytes of pixels, must have 784");
	b.size += 2;
	assert_picture_refused(b, "has 785 bytes of pixels");
	b = ascii_pgm("P2 28 28 255\n");
	b.bytes[b.size++] = '1';
	assert_picture_refused(b, "data follow the last pixel");
	assert_picture_refused(ascii_pgm("P2 28 28 200\n"), "is not a number of 0 to 200");
	assert_picture_refused(from_text("P2 28 28 255\n1 2 3"), "pixel 3 is not a number");
}

TEST(every_truncation_is_refused)
{
	struct blob whole[] = {raw_pgm("P5 28 28 255\n"), png(28, 28, PNG_FORMAT_GRAY)};

	for (size_t k = 0; k < 2; k++)
		/* libpng does not need the last 12 bytes of a PNG file, which mark its end */
		for (size_t n = k ? whole[k].size - 12 : whole[k].size; n-- > 0;) {
			whole[k].size = n;
			assert_picture_refused(whole[k], "");
		}
}

TEST(mutations_are_read_or_refused)
{
	struct blob whole[] = {raw_pgm("P5 28 28 255\n"), ascii_pgm("P2 28 28 255\n"),
		png(28, 28, PNG_FORMAT_GRAY), png(28, 28, PNG_FORMAT_RGBA)};
	uint64_t seed = 4;
	struct rng r = rng_seed(seed, RNG_SIM, 0);

	for (int i = 0; i < 6000; i++) {
		struct blob b = whole[i % 4];
		struct err e = {0};
		int rc;

		for (uint64_t k = 1 + rng_below(&r, 3); k > 0; k--)
			b.bytes[rng_below(&r, i % 8 < 4 ? 64 : b.size)] =
				(unsigned char)rng_next(&r);
		rc = read_picture_blob(&b, &e);
		if (rc && (rc != PS_EDATA || !e.text[0]))
			fail_msg("seed %llu, mutation %d: status %d \"%s\"",
				(unsigned long long)seed, i, rc, e.text);
	}
}

TEST(what_is_no_file_is_refused)
{
	struct err e;

	assert_int_equal(picture_read(temp_dir, mnist, pixels, &e), PS_EDATA);
	assert_int_equal(e.status, PS_EDATA);
	assert_int_equal(picture_read("/dev/zero", mnist, pixels, &e), PS_EDATA);
	assert_int_equal(picture_read("", mnist, pixels, &e), PS_EDATA);
}

static int set_up_picture(void **state)
{
	(void)state;
	temp_dir_make(temp_dir);
	snprintf(path, sizeof(path), "%s/file", temp_dir);
	for (size_t i = 0; i < PICTURE_SIZE; i++)
		expected[i] = (uint8_t)(i * 37);
	return 0;
}

TEST_GROUP(set_up_picture, temp_dir_tear_down)
