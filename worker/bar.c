/* bar.c - see bar.h. */
#include "worker/bar.h"
#include <stdio.h>
#include "common/log.h"

#define BAR_WIDTH 20
#define BAR_S     0.25

void bar_text(const struct bar *b, const struct bar_view *v, char *out, size_t size)
{
	double done = v->batches ? (double)v->batch / v->batches : 0;
	int full = (int)(done * BAR_WIDTH);

	if (done > 1)
		done = 1;
	if (full > BAR_WIDTH)
		full = BAR_WIDTH;
	snprintf(out, size,
		"worker %u  epoch %u/%u: %3d %% [%.*s%.*s]  %.0f images/s  %llu pushes%s",
		v->worker, v->epoch + 1, v->epochs, (int)(100 * done), full, "####################",
		BAR_WIDTH - full, "....................", b->images_per_s,
		(unsigned long long)v->pushes, v->evaluates ? "  evaluates" : "");
}

int bar_is_due(const struct bar *b, double now_s)
{
	return now_s - b->drawn_s >= BAR_S && log_on_terminal();
}

void bar_draw(struct bar *b, const struct bar_view *v, double now_s)
{
	char line[160];

	if (b->drawn_s > 0)
		b->images_per_s = (double)(v->images - b->images) / (now_s - b->drawn_s);
	b->drawn_s = now_s;
	b->images = v->images;
	bar_text(b, v, line, sizeof(line));
	log_progress(line);
}
