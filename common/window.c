/*
 * window.c - see window.h.
 */
#include "common/window.h"

size_t window_pad(const struct window *w, size_t in)
{
	size_t out, need;

	switch (w->rule) {
	case PAD_NUMBER:
		return 2 * w->pad;
	case PAD_SAME:
		out = (in + w->stride - 1) / w->stride;
		need = (out - 1) * w->stride + w->size;
		return need > in ? need - in : 0;
	case PAD_AUTO:
		if (in < w->size)
			return w->size - in;
		out = (in - w->size) % w->stride;
		return out ? w->stride - out : 0;
	}
	return 0;
}

size_t window_out(const struct window *w, size_t in)
{
	size_t padded = in + window_pad(w, in);

	if (padded < w->size || (padded - w->size) % w->stride != 0)
		return 0;
	return (padded - w->size) / w->stride + 1;
}

static int window_fits(const struct window *w, struct shape in, size_t multiple)
{
	size_t h = window_out(w, in.h), width = window_out(w, in.w);

	return h && width && h % multiple == 0 && width % multiple == 0;
}

size_t window_nearest(const struct window *w, struct shape in, size_t multiple)
{
	struct window other = *w;
	const size_t min = w->rule == PAD_NUMBER ? w->pad + 1 : 1;

	for (size_t d = 1; d < WINDOW_MAX_SIDE; d++) {
		other.size = w->size + d;
		if (other.size <= WINDOW_MAX_SIDE && window_fits(&other, in, multiple))
			return other.size;
		other.size = w->size - d;
		if (d + min <= w->size && window_fits(&other, in, multiple))
			return other.size;
	}
	return 0;
}
