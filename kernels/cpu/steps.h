/*
 * steps.h - the steps of a plan, forward and backward, over one block of images.
 */
#ifndef KERNELS_CPU_STEPS_H
#define KERNELS_CPU_STEPS_H
#include "kernels/cpu/lane.h"

/* A block of images that a lane computes together. */
struct block {
	const struct batch *batch;
	size_t first, n; /* images of the batch; n <= lane's block */
	int training;    /* 1: apply dropout */
};

/* Computes the output plane of step i from its input plane. */
void step_forward(struct lane *l, size_t i, const struct block *b);
/* Computes the errors of step i's input plane from the errors of its output plane, unless no layer
 * before it has weights. Adds the gradient of its weights to l->grad. Overwrites the errors of the
 * output plane. */
void step_backward(struct lane *l, size_t i, const struct block *b);

#endif
