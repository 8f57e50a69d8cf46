/*
 * bar.h - the progress of the run, as one worker sees it, in one line on its terminal.
 *
 * Thread: the trainer's.
 */
#ifndef WORKER_BAR_H
#define WORKER_BAR_H
#include <stddef.h>
#include <stdint.h>

struct bar {
	double drawn_s;  /* 0: not yet */
	uint64_t images; /* images trained when the bar was drawn */
	double images_per_s;
};

/* What the bar shows. */
struct bar_view {
	uint32_t worker, epoch, epochs; /* epoch: from 0 */
	uint32_t batch, batches;        /* number of the next batch; batches in an epoch */
	int evaluates;                  /* the lease is for test images */
	uint64_t images, pushes;        /* of this worker */
};

/* Returns 1 if it is time to draw: four times a second, on a terminal. */
int bar_is_due(const struct bar *b, double now_s);
void bar_draw(struct bar *b, const struct bar_view *v, double now_s);
/* Writes the text of the bar, without a newline. */
void bar_text(const struct bar *b, const struct bar_view *v, char *out, size_t size);

#endif
