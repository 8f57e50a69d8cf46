/*
 * window.h - the window of a conv or pool layer: its padding, its output size, and the nearest size
 * that fits.
 *
 * A window must tile its padded input exactly, because a window that leaves a rest would silently
 * ignore pixels. The functions handle one axis at a time. They are pure, and any thread may call
 * them.
 */
#ifndef COMMON_WINDOW_H
#define COMMON_WINDOW_H
#include <stddef.h>
#include "common/model.h"

#define WINDOW_MAX_SIDE ((size_t)4096) /* maximum size, stride and padding, in pixels */

enum pad_rule {
	PAD_NUMBER, /* `pad` zeros at each end */
	PAD_SAME,   /* the zeros that make the output size the input size / stride, rounded up */
	PAD_AUTO,   /* the fewest zeros that make the window fit */
};

struct window {
	size_t size, stride; /* size and stride in pixels, each in 1..WINDOW_MAX_SIDE */
	size_t pad;          /* number of zeros for PAD_NUMBER; less than `size` */
	enum pad_rule rule;
};

/* Returns the number of zeros to add to `in` pixels, at both ends together. If the number is odd,
 * the right or bottom end gets one zero more than the other end. */
size_t window_pad(const struct window *w, size_t in);
/* Returns the number of output pixels for `in` input pixels, or 0 if the window does not tile the
 * padded input exactly. */
size_t window_out(const struct window *w, size_t in);
/* Returns the size nearest to w->size that fits both axes of `in` and gives output sizes that are
 * multiples of `multiple`. Returns 0 if there is no such size. */
size_t window_nearest(const struct window *w, struct shape in, size_t multiple);

#endif
