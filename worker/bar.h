/*
 * bar.h - the progress of the run from the view of one worker, as one line on its terminal.
 *
 * Thread: the trainer's.
 */
#ifndef WORKER_BAR_H
#define WORKER_BAR_H
#include <stddef.h>
#include <stdint.h>

struct bar {
	double drawn_s;  /* when the bar was drawn last; 0: never */
	uint64_t images; /* number of trained images when the bar was drawn last */
	double images_per_s;
};

/* The values that the bar shows. */
struct bar_view {
	uint32_t worker, epoch, epochs; /* epoch: from 0 */
	/* batch: number of the next batch; batches: number of batches in an epoch */
	uint32_t batch, batches;
	int evaluates;           /* the lease is for test images */
	uint64_t images, pushes; /* counts of this worker */
};

/* Returns 1 if it is time to draw the bar, which is four times a second on a terminal, and never
 * elsewhere. */
int bar_is_due(const struct bar *b, double now_s);
void bar_draw(struct bar *b, const struct bar_view *v, double now_s);
/* Writes the text of the bar, without a newline. Its percentage is that of the epoch: a worker does
 * not have the rules that may end the run earlier (--max-updates, --stop-at). */
void bar_text(const struct bar *b, const struct bar_view *v, char *out, size_t size);

#endif
