/*
 * picture.h - reads a picture from a file: PGM (P2, P5), PNG or JPEG.
 *
 * The file is not trusted: the module checks the size of the file, the size of the picture and
 * every value before it allocates memory. The text of a PS_EDATA error names the file and the wrong
 * field. White is 255, and MNIST's digits are white on black. Transparent pixels become white, or
 * black if the other pixels are light. A JPEG is turned as the orientation in its EXIF block says.
 * Thread: any.
 */
#ifndef WORKER_CTL_PICTURE_H
#define WORKER_CTL_PICTURE_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/model.h"

#define PICTURE_MAX_PIXELS ((size_t)1 << 24)

#define PICTURE_CONTRAST 16

#define PICTURE_STDIN "-" /* the path that stands for standard input */

struct picture {
	struct shape shape; /* 1 (grey) or 3 (red, green, blue) channels */
	uint8_t *pixels;    /* shape_count(shape): channels, rows, columns; owned */
};

/* Reads `path` as a picture with `channels` (1 or 3) channels. If `channels` is 0, the picture has
 * as many channels as the file. PS_EDATA, PS_ENOMEM. */
int picture_load(struct picture *p, const char *path, size_t channels, struct err *e) PS_MUST_CHECK;
void picture_release(struct picture *p);
/* Reads a picture of exactly `shape` into pixels[shape_count(shape)]. */
int picture_read(
	const char *path, struct shape shape, uint8_t *pixels, struct err *e) PS_MUST_CHECK;
/* Returns 1 if the picture is blank, that is, if in each channel all pixels differ by less than
 * PICTURE_CONTRAST. */
int picture_is_blank(const uint8_t *pixels, struct shape shape);
/* Returns 1 for a grey picture whose border is lighter than the middle grey and lighter than the
 * pixels inside it. */
int picture_is_dark_on_light(const uint8_t *pixels, struct shape shape);

#endif
