/*
 * window.h - where a conv's or pool's window fits: padding, output size, and what would fit
 * instead.
 *
 * Windows must tile their padded input exactly: nothing is cut off in silence. One axis at a time.
 * Pure. Thread: any.
 */
#ifndef COMMON_WINDOW_H
#define COMMON_WINDOW_H
#include <stddef.h>
#include "common/model.h"

#define WINDOW_MAX_SIDE ((size_t)4096) /* size, stride, padding; pixels */

enum pad_rule {
	PAD_NUMBER, /* `pad` zeros at both ends */
	PAD_SAME,   /* so many that out = in / stride, rounded up */
	PAD_AUTO,   /* the fewest that make it fit */
};

struct window {
	size_t size, stride; /* 1..WINDOW_MAX_SIDE */
	size_t pad;          /* PAD_NUMBER: below size */
	enum pad_rule rule;
};

/* Zeros to add to `in` pixels, both ends together; the far end gets the odd one. */
size_t window_pad(const struct window *w, size_t in);
/* Pixels that leave the window, or 0 if it does not tile `in` and its padding exactly. */
size_t window_out(const struct window *w, size_t in);
/* The size nearest to w->size that fits both axes of `in` and leaves a multiple of `multiple`; 0:
 * there is none. */
size_t window_nearest(const struct window *w, struct shape in, size_t multiple);

#endif
