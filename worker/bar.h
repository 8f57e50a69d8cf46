/*
 * bar.h - the progress of one worker in the run, as one line on the terminal of this worker.
 *
 * Thread: the trainer's.
 */
#ifndef WORKER_BAR_H
#define WORKER_BAR_H
#include <stddef.h>
#include <stdint.h>

struct bar {
	double drawn_s;      /* time at which the bar was last drawn, in seconds; 0: never */
	uint64_t images;     /* number of trained images when the bar was drawn last */
	double images_per_s; /* smoothed; 0: not measured yet */
	size_t columns;      /* number of columns for which the text was written last */
	int left_out;        /* the parts that the text omits, see bar_text */
};

/* The values that the bar shows. */
struct bar_view {
	/* worker: id of the worker; epoch: number of the epoch, from 0; epochs: number of all
	 * epochs */
	uint32_t worker, epoch, epochs;
	/* batch: number of the next batch; batches: number of batches in an epoch */
	uint32_t batch, batches;
	int evaluates; /* 1: the lease is for test images */
	/* images: number of images that this worker has trained; pushes: number of its pushes */
	uint64_t images, pushes;
};

/* Returns 1 if it is time to draw the bar, which is four times a second on a terminal, and never
 * elsewhere. */
int bar_is_due(const struct bar *b, double now_s);
void bar_draw(struct bar *b, const struct bar_view *v, double now_s);
/* Notes the number of trained images, and measures the rate as a mean over about 2 s. */
void bar_measure(struct bar *b, uint64_t images, double now_s);
/* Writes the text of the bar, without a newline. The percentage is that of the epoch, and not of
 * the run, because the server does not send the options that may end the run earlier
 * (--max-updates, --stop-at) to a worker. If the text has more than `columns` characters, it gets a
 * shorter bar, then no bar, then no number of pushes either. The function omits a part that it has
 * omitted once until `columns` changes. Otherwise the part would come and go with the number of
 * digits of the rate. */
void bar_text(struct bar *b, const struct bar_view *v, size_t columns, char *out, size_t size);

#endif
