/* bar.c - see bar.h. */
#include "worker/bar.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "common/log.h"

#define BAR_WIDTH 20
#define BAR_S     0.25
/* the rate is a mean over about this time in seconds; over a shorter time it would drop to 0
 * whenever the worker evaluates */
#define SMOOTH_S 2.0

/* The parts that the text omits to fit into the columns of a terminal. Each value also omits the
 * parts that the values before it omit. */
enum leave_out {
	LEAVE_OUT_NOTHING,
	LEAVE_OUT_HALF_OF_BAR,
	LEAVE_OUT_BAR,
	LEAVE_OUT_PUSHES,
};

static void write_text(
	const struct bar *b, const struct bar_view *v, enum leave_out less, char *out, size_t size)
{
	int width = less >= LEAVE_OUT_BAR           ? 0
		    : less >= LEAVE_OUT_HALF_OF_BAR ? BAR_WIDTH / 2
						    : BAR_WIDTH;
	double done = v->batches ? (double)v->batch / v->batches : 0;
	char bar[2 * BAR_WIDTH + 8] = "", pushes[32] = "";

	if (done > 1)
		done = 1;
	int full = (int)(done * width);
	if (width)
		snprintf(bar, sizeof(bar), " [%.*s%.*s]", full, "####################",
			width - full, "....................");
	if (less < LEAVE_OUT_PUSHES)
		snprintf(pushes, sizeof(pushes), "  %llu pushes", (unsigned long long)v->pushes);
	snprintf(out, size, "worker %u  epoch %u/%u: %3d %%%s  %.0f images/s%s%s", v->worker,
		v->epoch + 1, v->epochs, (int)(100 * done), bar, b->images_per_s, pushes,
		v->evaluates ? "  evaluates" : "");
}

void bar_text(struct bar *b, const struct bar_view *v, size_t columns, char *out, size_t size)
{
	if (b->columns != columns)
		b->left_out = LEAVE_OUT_NOTHING;
	b->columns = columns;
	for (;; b->left_out++) {
		write_text(b, v, (enum leave_out)b->left_out, out, size);
		if (strlen(out) <= columns || b->left_out == LEAVE_OUT_PUSHES)
			return;
	}
}

void bar_measure(struct bar *b, uint64_t images, double now_s)
{
	double seconds = now_s - b->drawn_s;

	if (b->drawn_s > 0 && seconds > 0) {
		double rate = (double)(images - b->images) / seconds;
		double part = b->images_per_s > 0 ? 1 - exp(-seconds / SMOOTH_S) : 1;

		b->images_per_s += part * (rate - b->images_per_s);
	}
	b->drawn_s = now_s;
	b->images = images;
}

int bar_is_due(const struct bar *b, double now_s)
{
	return now_s - b->drawn_s >= BAR_S && log_on_terminal();
}

void bar_draw(struct bar *b, const struct bar_view *v, double now_s)
{
	char line[160];

	bar_measure(b, v->images, now_s);
	bar_text(b, v, log_columns(), line, sizeof(line));
	log_progress(line);
}
