/*
 * picture.h - reads a grey picture of 28 x 28 pixels from a file: PGM (P2, P5) or PNG.
 *
 * The file is not trusted: its size, the picture's size and every value are checked; PS_EDATA names
 * the file and the field. White is 255; MNIST's digits are white on black. Thread: any.
 */
#ifndef WORKER_CTL_PICTURE_H
#define WORKER_CTL_PICTURE_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define PICTURE_SIDE 28u
#define PICTURE_SIZE (PICTURE_SIDE * PICTURE_SIDE)

/* Read `path` into pixels[PICTURE_SIZE], row by row. */
int picture_read(const char *path, uint8_t *pixels, struct err *e) PS_MUST_CHECK;

#endif
