/*
 * steps.h - the steps of a plan, forward and backward, over one block of images.
 */
#ifndef KERNELS_CPU_STEPS_H
#define KERNELS_CPU_STEPS_H
#include "kernels/cpu/lane.h"

/* A block of images on its way through a lane. */
struct block {
	const struct batch *batch;
	size_t first, n; /* images of the batch; n <= lane's block */
	int training;    /* dropout drops */
};

/* Values of step i's input plane to values of its output plane. */
void step_forward(struct lane *l, size_t i, const struct block *b);
/* Errors of step i's output plane to errors of its input plane (if anything learns before it), and
 * onto l->grad. Overwrites the errors of the output. */
void step_backward(struct lane *l, size_t i, const struct block *b);

#endif
