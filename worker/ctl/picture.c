/* picture.c - see picture.h. */
#include <ctype.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include "common/file.h"
#include "worker/ctl/picture.h"

#define MAX_FILE ((size_t)1 << 20)

/* ---- PGM ------------------------------------------------------------------------------------- */

/* The unread rest of a file's text. */
struct scan {
	const unsigned char *at, *end;
};

/* Skip blanks and comments, which run from '#' to the end of the line. */
static void skip_blanks(struct scan *s)
{
	int comment = 0;

	for (; s->at < s->end && (comment || isspace(*s->at) || *s->at == '#'); s->at++)
		comment = *s->at == '#' || (comment && *s->at != '\n');
}

/* Read the next number, at most 65535; -1: no number. */
static long scan_number(struct scan *s)
{
	long v = 0;

	skip_blanks(s);
	if (s->at == s->end || !isdigit(*s->at))
		return -1;
	for (; s->at < s->end && isdigit(*s->at) && v <= 65535; s->at++)
		v = v * 10 + (*s->at - '0');
	return v <= 65535 ? v : -1;
}

static uint8_t to_grey(long value, long max)
{
	return (uint8_t)((value * 255 + max / 2) / max);
}

static int check_picture_size(
	const char *path, unsigned long width, unsigned long height, struct err *e)
{
	if (width == PICTURE_SIDE && height == PICTURE_SIDE)
		return PS_OK;
	return err_set(e, PS_EDATA, "%s: is %lux%lu pixels, must be %ux%u", path, width, height,
		PICTURE_SIDE, PICTURE_SIDE);
}

static int read_ascii(const char *path, struct scan *s, long max, uint8_t *pixels, struct err *e)
{
	for (size_t i = 0; i < PICTURE_SIZE; i++) {
		long v = scan_number(s);

		if (v < 0 || v > max)
			return err_set(e, PS_EDATA, "%s: pixel %zu is not a number of 0 to %ld",
				path, i, max);
		pixels[i] = to_grey(v, max);
	}
	skip_blanks(s);
	return s->at == s->end ? PS_OK
			       : err_set(e, PS_EDATA, "%s: more follows the last pixel", path);
}

static int read_raw(const char *path, struct scan *s, long max, uint8_t *pixels, struct err *e)
{
	size_t left;

	if (s->at < s->end)
		s->at++; /* the one blank after the header */
	left = (size_t)(s->end - s->at);
	if (left != PICTURE_SIZE)
		return err_set(e, PS_EDATA, "%s: has %zu bytes of pixels, must have %u", path, left,
			PICTURE_SIZE);
	for (size_t i = 0; i < PICTURE_SIZE; i++) {
		if (s->at[i] > max)
			return err_set(e, PS_EDATA, "%s: pixel %zu is %d, most is %ld", path, i,
				s->at[i], max);
		pixels[i] = to_grey(s->at[i], max);
	}
	return PS_OK;
}

static int read_pgm(
	const char *path, const unsigned char *data, size_t size, uint8_t *pixels, struct err *e)
{
	struct scan s = {.at = data + 2, .end = data + size};
	long width = scan_number(&s), height = scan_number(&s), max = scan_number(&s);

	if (width < 0 || height < 0)
		return err_set(e, PS_EDATA, "%s: PGM header without width and height", path);
	if (check_picture_size(path, (unsigned long)width, (unsigned long)height, e))
		return PS_EDATA;
	if (max < 1 || max > 255)
		return err_set(e, PS_EDATA, "%s: PGM header's maximum must be 1 to 255", path);
	return data[1] == '2' ? read_ascii(path, &s, max, pixels, e)
			      : read_raw(path, &s, max, pixels, e);
}

/* ---- PNG ------------------------------------------------------------------------------------- */

static int read_png(
	const char *path, const unsigned char *data, size_t size, uint8_t *pixels, struct err *e)
{
	png_color black = {0, 0, 0};
	png_image image;
	int rc;

	memset(&image, 0, sizeof(image));
	image.version = PNG_IMAGE_VERSION;
	if (!png_image_begin_read_from_memory(&image, data, size))
		return err_set(e, PS_EDATA, "%s: %s", path, image.message);
	rc = check_picture_size(path, image.width, image.height, e);
	image.format = PNG_FORMAT_GRAY;
	if (!rc && !png_image_finish_read(&image, &black, pixels, PICTURE_SIDE, NULL))
		rc = err_set(e, PS_EDATA, "%s: %s", path, image.message);
	png_image_free(&image);
	return rc;
}

/* ---- both ------------------------------------------------------------------------------------ */

int picture_read(const char *path, uint8_t *pixels, struct err *e)
{
	static const unsigned char png[4] = {0x89, 'P', 'N', 'G'};
	unsigned char *data;
	void *bytes;
	size_t size;
	int rc = file_read(path, MAX_FILE, &bytes, &size, e);

	if (rc)
		return e->status = PS_EDATA;
	data = bytes;
	if (size >= 4 && !memcmp(data, png, 4))
		rc = read_png(path, data, size, pixels, e);
	else if (size >= 3 && data[0] == 'P' && (data[1] == '2' || data[1] == '5') &&
		 (isspace(data[2]) || data[2] == '#'))
		rc = read_pgm(path, data, size, pixels, e);
	else
		rc = err_set(e, PS_EDATA, "%s: neither PNG nor PGM (P2, P5)", path);
	free(bytes);
	return rc;
}
