/*
 * accumulator.h - the gradients of a step. Sandblaster adds them as they come, in double precision,
 * so that their order hardly matters; so do the asynchronous modes with a buffer, each gradient
 * with a weight of its own. Sync keeps one gradient of each batch and adds them in the order of the
 * batches when the step ends, so that their order of arrival does not matter at all. That takes
 * n_params floats for each gradient of a step; memory is touched by those that came.
 */
#ifndef SERVER_CORE_ACCUMULATOR_H
#define SERVER_CORE_ACCUMULATOR_H
#include "server/core/core.h"

struct worker;

struct part {
	uint32_t batch, images;
	float loss;
	float *g; /* n_params */
};
struct gradient_accumulator {
	double *sum;       /* n_params; NULL: no running sum */
	struct part *part; /* room for `room`, `pushes` in use, by batch; NULL: none are kept */
	uint32_t room;
	double weight, loss_sum; /* loss_sum: of the running sum */
	uint64_t images;         /* of the epoch in training */
	uint32_t pushes;
	double peak;  /* bound of the magnitudes in sum */
	int measured; /* peak is valid; never saved */
};
/* 1: the step that takes the sum with `p` in it leaves all finite. */
int accumulator_fits(struct core *c, const struct worker *w, const struct msg_push *p);
void accumulator_add(struct core *c, const struct msg_push *p);
/* Only the gradient, `weight` times. */
void accumulator_add_weighted(struct core *c, const struct slices *s, double weight);
/* Its images and loss: they are recorded with the sum, in the epoch in training. */
void accumulator_count(struct core *c, const struct msg_push *p);
/* 1: the step with a gradient of at most `peak` in magnitude more leaves all finite. */
int accumulator_holds(struct core *c, double weight, double peak);
void accumulator_keep(struct core *c, const struct msg_push *p);
/* The weighted mean of what was gathered into `g` (n_params floats); with cfg.push.sum the sum. */
void accumulator_mean(const struct core *c, float *g);
double accumulator_loss_sum(const struct core *c);
void accumulator_clear(struct core *c);

#endif
