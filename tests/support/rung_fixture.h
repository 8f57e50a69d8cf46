/*
 * rung_fixture.h - compares the gradient of a rung of the ladder (docs/ladder.md) with the gradient
 * of cpu-ref, for random images. The rung may be one for the CPU or one for the GPU.
 */
#ifndef TESTS_SUPPORT_RUNG_FIXTURE_H
#define TESTS_SUPPORT_RUNG_FIXTURE_H
#include "kernels/ladder/ladder.h"
#include "tests/support/gradients.h"

struct rung_fixture {
	struct subject subject; /* subject.grad is the gradient of cpu-ref */
	struct ladder_task task;
	const struct rung *rung;
	void *self;
	/* the parameters and the gradient of the rung, in memory that ladder_floats has
	 * allocated */
	float *params, *grad;
	double loss;
};

/* Open `rung` for the model seed:`filters` with `max_batch` random images. */
void rung_open(struct rung_fixture *l, const struct rung *rung, size_t filters, size_t max_batch);
void rung_close(struct rung_fixture *l);
/* Compute a step over the first `n` images. Before the step, the function fills gradient and loss
 * with NaN. */
void rung_step(struct rung_fixture *l, size_t n);
/* Compute a step over `n` images, and compare it with cpu-ref. The loss and the whole gradient must
 * agree within the rung's tolerance, and each tensor within five times that tolerance. If rounding
 * errors can flip an argmax, the distance may be up to twice the change of cpu-ref's own gradient
 * under such rounding errors. */
void rung_agrees(struct rung_fixture *l, size_t n);
/* Set the parameters so that every value of the feature map is 0.5. Then the four values of each
 * pooling window are equal, and the gradient shows which of the four is the argmax. */
void rung_level(struct rung_fixture *l);

#endif
