/*
 * steps.h - the steps of a plan, forward and backward, over one block of images.
 */
#ifndef KERNELS_CPU_STEPS_H
#define KERNELS_CPU_STEPS_H
#include "kernels/cpu/lane.h"

/* A block of images that a lane computes together. */
struct block {
	const struct batch *batch;
	/* images [first, first + n) of the batch; n is at most the `block` or `eval_block` of the
	 * lane */
	size_t first, n;
	/* In a round, each lane computes one block. Together, the blocks of the lanes have `rows`
	 * images, and those before this block have `row` images. */
	size_t round, row, rows;
	int training; /* 1: apply dropout and the statistics of the batch */
};

/* Computes the output activation of step i from its input activation. */
void step_forward(struct lane *l, size_t i, const struct block *b);
/* Computes the gradients of step i's input activation from the gradients of its output activation,
 * if a layer before step i has weights. Adds the gradient of the step's weights to l->grad.
 * Overwrites the gradients of the output activation. */
void step_backward(struct lane *l, size_t i, const struct block *b);

#endif
