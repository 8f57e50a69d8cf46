/*
 * steps.h - from the batches of a lease to pushes: what a worker does in each mode (proto/WIRE.md,
 * "Modes").
 *
 * Invariants:
 * (1) every batch of a lease that was carried out is in exactly one push, and the pushes come in
 *     batch order; a lease that came too late is left without any;
 * (2) nothing is kept from one lease to the next but the newest view of the weights and, in mode
 *     easgd, the worker's own weights;
 * (3) a push of one batch is made without a copy: the gradient is computed in the buffer that
 *     leaves, at the weights as they came.
 * Thread: the trainer's.
 */
#ifndef WORKER_STEPS_H
#define WORKER_STEPS_H
#include "kernels/backend.h"
#include "worker/data/batch.h"
#include "worker/trainer.h"

struct steps {
	struct cnnps *c;               /* borrowed */
	const struct cnnps_info *info; /* c's */
	struct backend *backend;       /* borrowed; its images are the training set */
	const struct trainer_config *cfg;
	struct trainer_work *work; /* counted here */
	struct batches batches;
	struct cnnps_weights held; /* the newest view; w NULL: none yet */
	int fetched;               /* the newest push brought it: no pull is needed */
	float *own;                /* weights that we move ourselves; NULL until there are some */
	float *velocity;           /* easgd: of `own`; NULL without momentum */
	float *spare;              /* a gradient on its way into a sum; NULL until there is one */
	int has_dropout;           /* the model has */
	int started;               /* easgd: `own` has a history */
};

/* `s` is all zero but for what is borrowed. */
void steps_init(struct steps *s, uint32_t n_train);
void steps_release(struct steps *s);
/* Carry out a TRAIN lease: pull, compute and push. PS_ESHUTDOWN: cfg->stop said so; PS_EPROTO: no
 * such batches; else what libcnnps or the backend say. */
int steps_run(struct steps *s, const struct cnnps_lease *lease) PS_MUST_CHECK;

#endif
