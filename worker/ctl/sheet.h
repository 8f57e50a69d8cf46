/*
 * sheet.h - a contact sheet: pictures in rows with two lines of text under each, as a PNG file.
 *
 * Thread: main.
 */
#ifndef WORKER_CTL_SHEET_H
#define WORKER_CTL_SHEET_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/model.h"

#define SHEET_TEXT 24 /* with its NUL; draws only 0-9, %, #, -, > and blank, all others as blanks */

struct sheet_tile {
	const uint8_t *
		pixels; /* channels, rows, columns; in colour if there are 3 channels, else the first one */
	char line[2][SHEET_TEXT];
};

/* Writes n >= 1 pictures of `shape` to `path` atomically. PS_EIO, PS_ENOMEM. */
int sheet_write(const char *path, struct shape shape, const struct sheet_tile *tiles, size_t n,
	struct err *e) PS_MUST_CHECK;

#endif
