/*
 * sheet.h - writes a contact sheet, a PNG file with rows of pictures and lines of text under each
 * picture. The sheet draws small letters as capitals, and a character that is not ASCII as a blank.
 *
 * Thread: main.
 */
#ifndef WORKER_CTL_SHEET_H
#define WORKER_CTL_SHEET_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/model.h"

#define SHEET_TEXT  24 /* bytes of a line of text with its NUL */
#define SHEET_LINES 3  /* maximum number of lines of text under a picture */

struct sheet_tile {
	/* channels, rows, columns; the picture is in colour if it has 3 channels, else the first
	 * channel is drawn */
	const uint8_t *pixels;
	char line[SHEET_LINES][SHEET_TEXT]; /* empty lines at the end take no room */
};

/* Returns 1 if the sheet has a letter for each character of `text`. */
int sheet_can_write(const char *text);
/* Writes n >= 1 pictures of `shape` to `path` atomically. PS_EIO, PS_ENOMEM. */
int sheet_write(const char *path, struct shape shape, const struct sheet_tile *tiles, size_t n,
	struct err *e) PS_MUST_CHECK;

#endif
