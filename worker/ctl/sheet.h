/*
 * sheet.h - writes a contact sheet, a PNG file with rows of pictures and two lines of text under
 * each picture.
 *
 * Thread: main.
 */
#ifndef WORKER_CTL_SHEET_H
#define WORKER_CTL_SHEET_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/model.h"

/* bytes of a text with its NUL; the sheet has letters for A-Z, 0-9, %, #, - and >, draws small
 * letters as capitals, and other characters as blanks */
#define SHEET_TEXT 24

struct sheet_tile {
	/* channels, rows, columns; the picture is in colour if it has 3 channels, else the first
	 * channel is drawn */
	const uint8_t *pixels;
	char line[2][SHEET_TEXT];
};

/* Writes n >= 1 pictures of `shape` to `path` atomically. PS_EIO, PS_ENOMEM. */
int sheet_write(const char *path, struct shape shape, const struct sheet_tile *tiles, size_t n,
	struct err *e) PS_MUST_CHECK;

#endif
