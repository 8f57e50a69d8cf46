/*
 * steps_impl.h - what steps.c and pipeline.c share. Included by these alone.
 */
#ifndef WORKER_STEPS_IMPL_H
#define WORKER_STEPS_IMPL_H
#include "worker/steps.h"

/* What the next push is made of. */
struct sum {
	float *g; /* libcnnps's buffer; NULL: nothing yet */
	struct cnnps_work work;
	double loss;      /* over all images */
	uint64_t version; /* of the weights that it began with */
};

/* Batch i of the lease: its images and its dropout seed. PS_ESHUTDOWN: it is not to be. */
int steps_take(struct steps *s, const struct cnnps_lease *l, uint32_t i, const uint32_t **index,
	uint32_t *images, uint64_t *seed);
/* `count` batches from i on are computed, `images` of mean loss `loss`: into the push to come. */
void steps_note(struct steps *s, const struct cnnps_lease *l, uint32_t i, uint32_t count,
	uint32_t images, double loss, struct sum *sum);
/* The newest weights into s->held, if the push before did not bring them. */
int steps_hold(struct steps *s);
/* What a push of several batches' gradients is divided by. */
uint32_t steps_divisor(const struct steps *s, const struct sum *sum);
void steps_divide(float *g, float divisor, size_t n);
/* Hand the sum in, divided by `divisor`, as computed at `version`. `and_fetch`: bring the weights
 * after it, in the same request. */
int steps_deliver(
	struct steps *s, struct sum *sum, uint64_t version, uint32_t divisor, int and_fetch);

/* pipeline.c: a lease of pushes of n_push batches, one after the other ... */
int bursts_run(struct steps *s, const struct cnnps_lease *l);
/* ... or with the next ones' weights under way. */
int bursts_run_ahead(struct steps *s, const struct cnnps_lease *l);

#endif
