/*
 * joint.h - fc steps with many weights, which the lanes of a team compute together (WAY_JOINT).
 *
 * If each lane computed such a step for its own images, each lane would read all weights and write
 * a gradient of its own, and the team would copy the weights and add up the gradients. These copies
 * and sums would take longer than the products. Instead, the lanes put the values of their images
 * into shared memory, and each lane computes some of the neurons for the images of all lanes. The
 * products read the parameters and write the gradient in the order of the manifest.
 *
 * The bytes of the results do not depend on the number of lanes, unless the lanes need several
 * rounds for a batch (lane.h).
 */
#ifndef KERNELS_CPU_JOINT_H
#define KERNELS_CPU_JOINT_H
#include "kernels/cpu/steps.h"

/* The shared memory of the joint steps of a plan. A matrix has one row per image of a round, in
 * the order of the batch. */
struct joint {
	/* for each joint step: the input values of the images, in the order of the manifest */
	float *input[MODEL_MAX_LAYERS];
	float *d_input; /* the gradients of the input of the step in progress */
	/* the output values of the step in progress, or their gradients */
	float *output;
};

/* Allocates the memory for rounds of up to `rows` images. Call joint_release in the end, also after
 * a failure. PS_ENOMEM. */
int joint_init(struct joint *j, const struct plan *p, size_t rows) PS_MUST_CHECK;
void joint_release(struct joint *j);
/* Returns the number of floats that the joint steps of a plan need in lane.weights. */
size_t joint_weights(const struct plan *p);

/* Computes the output activation of step i of the images of this lane. Every lane of the team must
 * call this function and joint_backward for the same steps, even if the lane has no images. */
void joint_forward(struct lane *l, size_t i, const struct block *b);
/* Adds this round to the gradient of the batch. Also computes the gradients of the input activation
 * of step i, if an earlier layer needs them. */
void joint_backward(struct lane *l, size_t i, const struct block *b);

#endif
