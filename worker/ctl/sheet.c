/* sheet.c - see sheet.h. */
#include "worker/ctl/sheet.h"
#include <ctype.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/file.h"
#include "common/mem.h"

#define COLUMNS 8
#define SIDE    96 /* approximate number of pixels of a picture's longer side */
#define GAP     12
#define PAPER   255
#define INK     32

/* a letter has 5 x 7 dots and is followed by one empty column of dots; a dot has DOT x DOT
 * pixels */
#define DOT       2
#define LETTER    (6 * DOT)
#define LINE      (10 * DOT)
#define FONT_ROWS 7

static const char letters[] = "0123456789%#->ABCDEFGHIJKLMNOPQRSTUVWXYZ";
/* the rows of a letter from the top; bit 4 is its left dot */
static const uint8_t font[sizeof(letters) - 1][FONT_ROWS] = {
	{0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e},
	{0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e},
	{0x0e, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1f},
	{0x1f, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0e},
	{0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02},
	{0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e},
	{0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e},
	{0x1f, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08},
	{0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e},
	{0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c},
	{0x18, 0x19, 0x02, 0x04, 0x08, 0x13, 0x03},
	{0x0a, 0x0a, 0x1f, 0x0a, 0x1f, 0x0a, 0x0a},
	{0x00, 0x00, 0x00, 0x1f, 0x00, 0x00, 0x00},
	{0x08, 0x04, 0x02, 0x01, 0x02, 0x04, 0x08},
	{0x0e, 0x11, 0x11, 0x1f, 0x11, 0x11, 0x11},
	{0x1e, 0x11, 0x11, 0x1e, 0x11, 0x11, 0x1e},
	{0x0e, 0x11, 0x10, 0x10, 0x10, 0x11, 0x0e},
	{0x1c, 0x12, 0x11, 0x11, 0x11, 0x12, 0x1c},
	{0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x1f},
	{0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x10},
	{0x0e, 0x11, 0x10, 0x17, 0x11, 0x11, 0x0f},
	{0x11, 0x11, 0x11, 0x1f, 0x11, 0x11, 0x11},
	{0x0e, 0x04, 0x04, 0x04, 0x04, 0x04, 0x0e},
	{0x07, 0x02, 0x02, 0x02, 0x02, 0x12, 0x0c},
	{0x11, 0x12, 0x14, 0x18, 0x14, 0x12, 0x11},
	{0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x1f},
	{0x11, 0x1b, 0x15, 0x15, 0x11, 0x11, 0x11},
	{0x11, 0x11, 0x19, 0x15, 0x13, 0x11, 0x11},
	{0x0e, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e},
	{0x1e, 0x11, 0x11, 0x1e, 0x10, 0x10, 0x10},
	{0x0e, 0x11, 0x11, 0x11, 0x15, 0x12, 0x0d},
	{0x1e, 0x11, 0x11, 0x1e, 0x14, 0x12, 0x11},
	{0x0f, 0x10, 0x10, 0x0e, 0x01, 0x01, 0x1e},
	{0x1f, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04},
	{0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e},
	{0x11, 0x11, 0x11, 0x11, 0x11, 0x0a, 0x04},
	{0x11, 0x11, 0x11, 0x15, 0x15, 0x15, 0x0a},
	{0x11, 0x11, 0x0a, 0x04, 0x0a, 0x11, 0x11},
	{0x11, 0x11, 0x11, 0x0a, 0x04, 0x04, 0x04},
	{0x1f, 0x01, 0x02, 0x04, 0x08, 0x10, 0x1f},
};

struct sheet {
	struct shape shape;
	size_t zoom, step; /* small pictures are enlarged, large ones reduced: every step-th pixel
	                    * becomes zoom x zoom pixels */
	size_t shown_w, shown_h, tile_w, tile_h;
	size_t width, height;
	uint8_t *rgb;
};

static size_t longer(size_t a, size_t b)
{
	return a > b ? a : b;
}

static void place_tiles(struct sheet *s, const struct sheet_tile *tiles, size_t n)
{
	const size_t side = longer(s->shape.h, s->shape.w);
	const size_t columns = n < COLUMNS ? n : COLUMNS;
	size_t text = 0;

	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < 2; k++)
			text = longer(text, strlen(tiles[i].line[k]) * LETTER);
	PS_ASSERT(n > 0 && side > 0);
	s->step = (side + 2 * SIDE - 1) / (2 * SIDE);
	s->zoom = longer(1, SIDE / side);
	s->shown_w = (s->shape.w + s->step - 1) / s->step * s->zoom;
	s->shown_h = (s->shape.h + s->step - 1) / s->step * s->zoom;
	s->tile_w = longer(s->shown_w, text) + GAP;
	s->tile_h = s->shown_h + 2 * LINE + 2 * GAP;
	s->width = columns * s->tile_w + GAP;
	s->height = (n + columns - 1) / columns * s->tile_h + GAP;
}

static void put_pixel(struct sheet *s, size_t x, size_t y, const uint8_t colour[3])
{
	memcpy(s->rgb + (y * s->width + x) * 3, colour, 3);
}

static void put_tile_picture(struct sheet *s, const uint8_t *pixels, size_t left, size_t top)
{
	const size_t plane = s->shape.h * s->shape.w;

	for (size_t y = 0; y < s->shown_h; y++)
		for (size_t x = 0; x < s->shown_w; x++) {
			const uint8_t *p =
				pixels + y / s->zoom * s->step * s->shape.w + x / s->zoom * s->step;
			uint8_t colour[3] = {p[0], p[0], p[0]};

			for (size_t c = 1; c < 3 && s->shape.c == 3; c++)
				colour[c] = p[c * plane];
			put_pixel(s, left + x, top + y, colour);
		}
}

static void put_letters(struct sheet *s, const char *text, size_t left, size_t top)
{
	static const uint8_t ink[3] = {INK, INK, INK};

	for (; *text; text++, left += LETTER) {
		const char *letter = strchr(letters, toupper((unsigned char)*text));

		for (size_t i = 0; letter && i < 5 * DOT * FONT_ROWS * DOT; i++) {
			size_t x = i % (5 * DOT), y = i / (5 * DOT);

			if (font[letter - letters][y / DOT] >> (4 - x / DOT) & 1)
				put_pixel(s, left + x, top + y, ink);
		}
	}
}

static int encode_png(const struct sheet *s, const char *path, struct err *e)
{
	png_alloc_size_t size = 0;
	png_image image;
	uint8_t *bytes = NULL;
	int rc = PS_OK;

	memset(&image, 0, sizeof(image));
	image.version = PNG_IMAGE_VERSION;
	image.width = (png_uint_32)s->width;
	image.height = (png_uint_32)s->height;
	image.format = PNG_FORMAT_RGB;
	if (png_image_write_to_memory(&image, NULL, &size, 0, s->rgb, 0, NULL))
		bytes = mem_try(size, 1);
	if (!bytes || !png_image_write_to_memory(&image, bytes, &size, 0, s->rgb, 0, NULL))
		rc = err_set(e, PS_ENOMEM, "%s: cannot be encoded: %s", path, image.message);
	if (!rc)
		rc = file_replace_path(path, &(struct file_part){bytes, size}, 1, e);
	free(bytes);
	png_image_free(&image);
	return rc;
}

int sheet_write(const char *path, struct shape shape, const struct sheet_tile *tiles, size_t n,
	struct err *e)
{
	struct sheet s = {.shape = shape};
	int rc;

	place_tiles(&s, tiles, n);
	s.rgb = mem_try(s.width * s.height, 3);
	if (!s.rgb)
		return err_set(e, PS_ENOMEM, "%s: no memory for its pixels", path);
	memset(s.rgb, PAPER, s.width * s.height * 3);
	for (size_t i = 0; i < n; i++) {
		const size_t left = GAP + i % COLUMNS * s.tile_w;
		const size_t top = GAP + i / COLUMNS * s.tile_h;

		put_tile_picture(&s, tiles[i].pixels, left, top);
		for (size_t k = 0; k < 2; k++)
			put_letters(
				&s, tiles[i].line[k], left, top + s.shown_h + GAP / 2 + k * LINE);
	}
	rc = encode_png(&s, path, e);
	free(s.rgb);
	return rc;
}
