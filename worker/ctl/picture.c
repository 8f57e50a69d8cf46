/* picture.c - see picture.h. */
#include <ctype.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* stdio.h must come before jpeglib.h, which needs it */
#include <jpeglib.h>
#include <png.h>
#include "common/assert.h"
#include "common/file.h"
#include "common/mem.h"
#include "worker/ctl/picture.h"

#define MAX_FILE ((size_t)64 << 20)

/* A file that was read into memory. */
struct raw {
	const char *path;
	const unsigned char *data;
	size_t size;
	const struct shape *expected; /* the size that the picture must have; NULL: any size */
};

/* Checks the size of the picture, and allocates its pixels. */
static int make_pixels(struct picture *p, const struct raw *r, size_t channels, size_t width,
	size_t height, struct err *e)
{
	if (width < 1 || height < 1 || width > MODEL_MAX_SIDE || height > MODEL_MAX_SIDE ||
		width * height > PICTURE_MAX_PIXELS)
		return err_set(e, PS_EDATA, "%s: is %zux%zu pixels, must be 1x1 to %zux%zu",
			r->path, width, height, MODEL_MAX_SIDE, MODEL_MAX_SIDE);
	if (r->expected && (width != r->expected->w || height != r->expected->h))
		return err_set(e, PS_EDATA, "%s: is %zux%zu pixels, must be %zux%zu", r->path,
			width, height, r->expected->w, r->expected->h);
	p->shape = (struct shape){channels, height, width};
	p->pixels = mem_try(channels, width * height);
	return p->pixels ? PS_OK : err_set(e, PS_ENOMEM, "%s: no memory for its pixels", r->path);
}

/* How a picture must be turned, in the numbers of EXIF. From TRANSPOSED_MIN on, rows become
 * columns. */
enum { UPRIGHT = 1, TRANSPOSED_MIN = 5, TRANSPOSED_MAX = 8 };

/* Copies the interleaved pixels of row `y` of a file to the planes of the turned picture. */
static void put_pixel_row(struct picture *p, int orientation, size_t y, const uint8_t *row)
{
	const struct shape *s = &p->shape;
	const int o = orientation, transposes = o >= TRANSPOSED_MIN;
	const int to_left = o == 2 || o == 3 || o == 6 || o == 7;
	const int upwards = o == 3 || o == 4 || o == 7 || o == 8;

	for (size_t x = 0; x < (transposes ? s->h : s->w); x++) {
		const size_t column = transposes ? y : x, line = transposes ? x : y;
		const size_t to = (upwards ? s->h - 1 - line : line) * s->w +
				  (to_left ? s->w - 1 - column : column);

		for (size_t c = 0; c < s->c; c++)
			p->pixels[c * s->h * s->w + to] = row[x * s->c + c];
	}
}

/* ---- PGM ------------------------------------------------------------------------------------- */

/* The part of a file's text that the parser has not read yet. */
struct scan {
	const unsigned char *at, *end;
};

/* Skips blanks and comments, which run from '#' to the end of the line. */
static void skip_blanks(struct scan *s)
{
	int comment = 0;

	for (; s->at < s->end && (comment || isspace(*s->at) || *s->at == '#'); s->at++)
		comment = *s->at == '#' || (comment && *s->at != '\n');
}

/* Reads the next number. Returns -1 if there is no number, or if it is greater than 65535. */
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

static int read_ascii(
	const char *path, struct scan *s, long max, uint8_t *pixels, size_t n, struct err *e)
{
	for (size_t i = 0; i < n; i++) {
		long v = scan_number(s);

		if (v < 0 || v > max)
			return err_set(e, PS_EDATA, "%s: pixel %zu is not a number of 0 to %ld",
				path, i, max);
		pixels[i] = to_grey(v, max);
	}
	skip_blanks(s);
	return s->at == s->end ? PS_OK
			       : err_set(e, PS_EDATA, "%s: data follow the last pixel", path);
}

/* If the maximum value of the file is above 255, each value has two bytes, the higher byte
 * first. */
static int read_raw(
	const char *path, struct scan *s, long max, uint8_t *pixels, size_t n, struct err *e)
{
	const size_t bytes = max > 255 ? 2 : 1;
	size_t left;

	if (s->at < s->end)
		s->at++; /* skip the one blank after the header */
	left = (size_t)(s->end - s->at);
	if (left != bytes * n)
		return err_set(e, PS_EDATA, "%s: has %zu bytes of pixels, must have %zu", path,
			left, bytes * n);
	for (size_t i = 0; i < n; i++) {
		const long v = bytes == 2 ? s->at[2 * i] << 8 | s->at[2 * i + 1] : s->at[i];

		if (v > max)
			return err_set(e, PS_EDATA, "%s: pixel %zu is %ld, must be at most %ld",
				path, i, v, max);
		pixels[i] = to_grey(v, max);
	}
	return PS_OK;
}

static int read_pgm(struct picture *p, const struct raw *r, struct err *e)
{
	struct scan s = {.at = r->data + 2, .end = r->data + r->size};
	long width = scan_number(&s), height = scan_number(&s), max = scan_number(&s);
	int rc;

	if (width < 0 || height < 0)
		return err_set(e, PS_EDATA, "%s: PGM header without width and height", r->path);
	if (max < 1)
		return err_set(e, PS_EDATA, "%s: PGM header's maximum must be 1 to 65535", r->path);
	if ((rc = make_pixels(p, r, 1, (size_t)width, (size_t)height, e)))
		return rc;
	PS_ASSERT(p->pixels);
	return r->data[1] == '2' ? read_ascii(r->path, &s, max, p->pixels, shape_count(p->shape), e)
				 : read_raw(r->path, &s, max, p->pixels, shape_count(p->shape), e);
}

/* ---- PNG ------------------------------------------------------------------------------------- */

/* Reads the header. */
static int begin_png(png_image *image, const struct raw *r, struct err *e)
{
	memset(image, 0, sizeof(*image));
	image->version = PNG_IMAGE_VERSION;
	if (png_image_begin_read_from_memory(image, r->data, r->size)) {
		/* without this flag, libpng takes samples of 16 bits for linear intensities, not
		 * sRGB, if the file has no chunk gAMA */
		image->flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
		return PS_OK;
	}
	return err_set(e, PS_EDATA, "%s: %s", r->path, image->message);
}

/* Chooses the grey that replaces transparent pixels. It is white, so that dark ink stays visible,
 * or black if the mean of the other pixels is light. */
static int choose_ground(
	const struct picture *p, const struct raw *r, uint8_t *ground, struct err *e)
{
	const size_t n = p->shape.h * p->shape.w;
	uint64_t light = 0, opaque = 0;
	uint8_t *pair = mem_try(n, 2); /* grey and opacity of each pixel */
	png_image image;

	if (!pair)
		return err_set(e, PS_ENOMEM, "%s: no memory for its pixels", r->path);
	int rc = begin_png(&image, r, e);
	image.format = PNG_FORMAT_GA;
	if (!rc && !png_image_finish_read(&image, NULL, pair, 0, NULL))
		rc = err_set(e, PS_EDATA, "%s: %s", r->path, image.message);
	png_image_free(&image);
	for (size_t i = 0; i < n && !rc; i++) {
		light += (uint64_t)pair[2 * i] * pair[2 * i + 1];
		opaque += pair[2 * i + 1];
	}
	free(pair);
	*ground = light > 127 * opaque ? 0 : 255;
	return rc;
}

static int decode_png(
	struct picture *p, const struct raw *r, png_image *image, uint8_t ground, struct err *e)
{
	const png_color background = {ground, ground, ground};
	size_t row = p->shape.w * p->shape.c;
	uint8_t *rows = mem_try(p->shape.h, row);
	int ok;

	if (!rows)
		return err_set(e, PS_ENOMEM, "%s: no memory for its pixels", r->path);
	ok = png_image_finish_read(image, &background, rows, (png_int_32)row, NULL);
	for (size_t y = 0; ok && y < p->shape.h; y++)
		put_pixel_row(p, UPRIGHT, y, rows + y * row);
	free(rows);
	return ok ? PS_OK : err_set(e, PS_EDATA, "%s: %s", r->path, image->message);
}

static int read_png(struct picture *p, const struct raw *r, size_t channels, struct err *e)
{
	uint8_t ground = 255;
	png_image image;
	int rc = begin_png(&image, r, e);

	if (rc)
		return rc;
	if (!channels)
		channels = image.format & PNG_FORMAT_FLAG_COLOR ? 3 : 1;
	rc = make_pixels(p, r, channels, image.width, image.height, e);
	if (!rc && (image.format & PNG_FORMAT_FLAG_ALPHA))
		rc = choose_ground(p, r, &ground, e);
	image.format = channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
	if (!rc)
		rc = decode_png(p, r, &image, ground, e);
	png_image_free(&image);
	return rc;
}

/* ---- the orientation of a JPEG --------------------------------------------------------------- */

#define EXIF_MARKER     (JPEG_APP0 + 1)
#define EXIF_MAX        65533u /* maximum bytes of the data of a marker */
#define EXIF_ENTRY      12
#define TAG_ORIENTATION 0x0112
#define TYPE_SHORT      3

/* The TIFF file in an EXIF block. */
struct tiff {
	const unsigned char *data;
	size_t size;
	int is_big; /* 1: numbers have their highest byte first */
};

/* Reads an unsigned number of `bytes` bytes at offset `at`. Returns 0 if it is not in the file. */
static uint32_t tiff_number(const struct tiff *t, size_t at, size_t bytes)
{
	uint32_t v = 0;

	if (at > t->size || bytes > t->size - at)
		return 0;
	for (size_t i = 0; i < bytes; i++)
		v = v << 8 | t->data[at + (t->is_big ? i : bytes - 1 - i)];
	return v;
}

/* Returns the orientation in the first directory of the file, or UPRIGHT if it has none. */
static int tiff_orientation(const struct tiff *t)
{
	const size_t directory = tiff_number(t, 4, 4), n = tiff_number(t, directory, 2);

	if (tiff_number(t, 2, 2) != 42)
		return UPRIGHT;
	for (size_t i = 0, at = directory + 2; i < n; i++, at += EXIF_ENTRY) {
		if (at > t->size || t->size - at < EXIF_ENTRY)
			break;
		if (tiff_number(t, at, 2) == TAG_ORIENTATION &&
			tiff_number(t, at + 2, 2) == TYPE_SHORT && tiff_number(t, at + 4, 4) == 1) {
			const uint32_t v = tiff_number(t, at + 8, 2);

			return v >= UPRIGHT && v <= TRANSPOSED_MAX ? (int)v : UPRIGHT;
		}
	}
	return UPRIGHT;
}

/* Returns the orientation in the first EXIF block of the file. The block is not trusted: a damaged
 * one is ignored. */
static int jpeg_orientation(const struct jpeg_decompress_struct *d)
{
	/* the header is "Exif" and two NULs; the second one is the NUL at the end of the string */
	static const char head[] = "Exif\0";

	for (jpeg_saved_marker_ptr m = d->marker_list; m; m = m->next) {
		if (m->marker != EXIF_MARKER || m->data_length < sizeof(head) + 8 ||
			memcmp(m->data, head, sizeof(head)) != 0)
			continue;
		struct tiff t = {m->data + sizeof(head), m->data_length - sizeof(head), 0};

		t.is_big = !memcmp(t.data, "MM", 2);
		return t.is_big || !memcmp(t.data, "II", 2) ? tiff_orientation(&t) : UPRIGHT;
	}
	return UPRIGHT;
}

/* ---- JPEG ------------------------------------------------------------------------------------ */

/* The state of the JPEG decoder. libjpeg reports errors by longjmp, so the values that must survive
 * the jump are members of this struct and not local variables. */
struct jpeg {
	struct jpeg_decompress_struct d;
	struct jpeg_error_mgr errors;
	jmp_buf failed;
	char why[JMSG_LENGTH_MAX];
	uint8_t *row;
	size_t channels;
	int orientation;
};

static void jpeg_fail(j_common_ptr common)
{
	struct jpeg *j = common->client_data;

	common->err->format_message(common, j->why);
	longjmp(j->failed, 1);
}

/* Treats a warning as an error, because it means that the data are damaged. If a warning were
 * ignored, libjpeg would fill the rest of the picture with grey. */
static void jpeg_warn(j_common_ptr common, int level)
{
	if (level < 0)
		jpeg_fail(common);
}

static int decode_jpeg(struct jpeg *j, struct picture *p, const struct raw *r, struct err *e)
{
	int rc, transposes;

	if (setjmp(j->failed))
		return err_set(e, PS_EDATA, "%s: %s", r->path, j->why);
	jpeg_create_decompress(&j->d);
	jpeg_mem_src(&j->d, r->data, r->size);
	jpeg_save_markers(&j->d, EXIF_MARKER, EXIF_MAX);
	(void)jpeg_read_header(&j->d, TRUE);
	j->orientation = jpeg_orientation(&j->d);
	if (j->d.num_components == 4)
		return err_set(e, PS_EDATA,
			"%s: a JPEG in CMYK, the colours of printers: save it as RGB or grey",
			r->path);
	if (!j->channels)
		j->channels = j->d.num_components == 1 ? 1 : 3;
	j->d.out_color_space = j->channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
	transposes = j->orientation >= TRANSPOSED_MIN;
	rc = make_pixels(p, r, j->channels, transposes ? j->d.image_height : j->d.image_width,
		transposes ? j->d.image_width : j->d.image_height, e);
	if (rc)
		return rc;
	j->row = mem_try(j->d.image_width, p->shape.c);
	if (!j->row)
		return err_set(e, PS_ENOMEM, "%s: no memory for its pixels", r->path);
	(void)jpeg_start_decompress(&j->d);
	while (j->d.output_scanline < j->d.output_height) {
		JSAMPROW row = j->row;
		size_t y = j->d.output_scanline;

		(void)jpeg_read_scanlines(&j->d, &row, 1);
		put_pixel_row(p, j->orientation, y, j->row);
	}
	(void)jpeg_finish_decompress(&j->d);
	return PS_OK;
}

static int read_jpeg(struct picture *p, const struct raw *r, size_t channels, struct err *e)
{
	struct jpeg *j = mem_try(1, sizeof(*j));
	int rc;

	if (!j)
		return err_set(e, PS_ENOMEM, "%s: no memory to read it", r->path);
	j->d.err = jpeg_std_error(&j->errors);
	j->d.client_data = j;
	j->errors.error_exit = jpeg_fail;
	j->errors.emit_message = jpeg_warn;
	j->channels = channels;
	rc = decode_jpeg(j, p, r, e);
	jpeg_destroy_decompress(&j->d);
	free(j->row);
	free(j);
	return rc;
}

/* ---- files of any format --------------------------------------------------------------------- */

static int begins_with(const struct raw *r, const void *bytes, size_t n)
{
	return r->size >= n && memcmp(r->data, bytes, n) == 0;
}

static int is_pgm(const struct raw *r)
{
	return r->size >= 3 && r->data[0] == 'P' && (r->data[1] == '2' || r->data[1] == '5') &&
	       (isspace(r->data[2]) || r->data[2] == '#');
}

/* Turns a grey picture into one with three equal channels. */
static int spread(struct picture *p, struct err *e)
{
	size_t n = p->shape.h * p->shape.w;
	uint8_t *pixels = mem_try(3, n);

	PS_ASSERT(p->pixels);
	if (!pixels)
		return err_set(e, PS_ENOMEM, "no memory for the pixels of a picture");
	for (size_t c = 0; c < 3; c++)
		memcpy(pixels + c * n, p->pixels, n);
	free(p->pixels);
	p->pixels = pixels;
	p->shape.c = 3;
	return PS_OK;
}

void picture_release(struct picture *p)
{
	free(p->pixels);
	*p = (struct picture){.pixels = NULL};
}

static int read_any(struct picture *p, const struct raw *r, size_t channels, struct err *e)
{
	int rc;

	if (begins_with(r, "\x89PNG", 4))
		return read_png(p, r, channels, e);
	if (begins_with(r, "\xff\xd8\xff", 3))
		return read_jpeg(p, r, channels, e);
	if (!is_pgm(r))
		return err_set(e, PS_EDATA, "%s: neither PNG nor JPEG nor PGM (P2, P5)", r->path);
	rc = read_pgm(p, r, e);
	return !rc && channels == 3 ? spread(p, e) : rc;
}

#define FIRST_READ ((size_t)64 << 10)

/* Reads standard input to its end. */
static int read_stdin(void **data, size_t *size, struct err *e)
{
	size_t room = 0, used = 0, got = 0;
	unsigned char *bytes = NULL;

	do {
		used += got;
		if (used == room) {
			unsigned char *larger = mem_try(room ? 2 * room : FIRST_READ, 1);

			if (larger && used)
				memcpy(larger, bytes, used);
			free(bytes);
			bytes = larger;
			room = room ? 2 * room : FIRST_READ;
		}
		if (!bytes)
			return err_set(e, PS_ENOMEM, "standard input: no memory to read it");
		got = fread(bytes + used, 1, room - used, stdin);
	} while (got && used + got <= MAX_FILE);
	if (got || ferror(stdin)) {
		free(bytes);
		return err_set(e, PS_EDATA, "standard input: %s",
			got ? "too large for a picture" : "cannot be read");
	}
	*data = bytes;
	*size = used;
	return PS_OK;
}

static int picture_load_as(struct picture *p, const char *path, size_t channels,
	const struct shape *expected, struct err *e)
{
	const int from_stdin = strcmp(path, PICTURE_STDIN) == 0;
	struct raw r = {.path = from_stdin ? "standard input" : path, .expected = expected};
	void *bytes = NULL;
	int rc = from_stdin ? read_stdin(&bytes, &r.size, e)
			    : file_read(path, MAX_FILE, &bytes, &r.size, e);

	*p = (struct picture){.pixels = NULL};
	if (rc)
		return e->status = PS_EDATA;
	r.data = bytes;
	rc = read_any(p, &r, channels, e);
	free(bytes);
	if (rc)
		picture_release(p);
	return rc;
}

int picture_load(struct picture *p, const char *path, size_t channels, struct err *e)
{
	return picture_load_as(p, path, channels, NULL, e);
}

int picture_is_blank(const uint8_t *pixels, struct shape s)
{
	const size_t n = s.h * s.w;

	for (size_t c = 0; c < s.c; c++) {
		uint8_t low = 255, high = 0;

		for (const uint8_t *at = pixels + c * n; at < pixels + (c + 1) * n; at++) {
			low = *at < low ? *at : low;
			high = *at > high ? *at : high;
		}
		if (high - low >= PICTURE_CONTRAST)
			return 0;
	}
	return 1;
}

int picture_is_dark_on_light(const uint8_t *pixels, struct shape s)
{
	size_t border = 0, n_border = 0, all = 0;

	if (s.c != 1)
		return 0;
	for (size_t y = 0; y < s.h; y++)
		for (size_t x = 0; x < s.w; x++) {
			const size_t v = pixels[y * s.w + x];

			all += v;
			if (y == 0 || x == 0 || y == s.h - 1 || x == s.w - 1) {
				border += v;
				n_border++;
			}
		}
	return border > 128 * n_border && border * s.h * s.w > all * n_border;
}

int picture_read(const char *path, struct shape shape, uint8_t *pixels, struct err *e)
{
	struct picture p;
	int rc;

	if (shape.c != 1 && shape.c != 3)
		return err_set(e, PS_EDATA,
			"%s: a picture has 1 or 3 channels, the images of the model have %zu", path,
			shape.c);
	rc = picture_load_as(&p, path, shape.c, &shape, e);
	if (!rc) {
		PS_ASSERT(p.pixels);
		memcpy(pixels, p.pixels, shape_count(shape));
	}
	picture_release(&p);
	return rc;
}
