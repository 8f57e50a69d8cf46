/*
 * steps.h - what a worker does with the batches of a lease in each mode (proto/WIRE.md, "Modes").
 *
 * Modes downpour and ssp are four verbs, which trainer.c calls for each batch: pull, batch,
 * gradient, push. The other modes, and pushes of several batches that the device computes without
 * the host, are one call per lease.
 *
 * Invariants:
 * (1) every batch of a lease that was carried out is in exactly one push, and the pushes are in
 *     batch order; a lease that came too late has no push;
 * (2) nothing is carried over from one lease to the next but the newest view of the weights and, in
 *     mode easgd, the worker's own weights;
 * (3) a push of one batch is made without a copy: the gradient is computed in the buffer that is
 *     sent, at the weights as they were received.
 * PS_ASSERT checks the order of (1) in every build.
 * Thread: the trainer's.
 */
#ifndef WORKER_STEPS_H
#define WORKER_STEPS_H
#include "kernels/backend.h"
#include "worker/data/batch.h"
#include "worker/trainer.h"

/* The push that gradients are being added to. */
struct next_push {
	float *g;               /* libcnnps's buffer; NULL: empty */
	struct cnnps_work work; /* the batches in it */
	double loss;            /* over all images */
	uint64_t version;       /* of the weights of its first batch */
};

struct steps {
	struct cnnps *c;               /* borrowed */
	const struct cnnps_info *info; /* of c */
	struct backend *backend;       /* borrowed; uses the training set */
	const struct trainer_config *cfg;
	struct trainer_work *work; /* counted here */
	struct batches batches;
	struct cnnps_weights held; /* the newest view; w NULL: none yet */
	int has_pulled;            /* the newest push returned `held`: no pull is needed */
	float *own;                /* weights of local steps; NULL until needed */
	float *velocity;           /* easgd: of `own`; NULL without momentum */
	float *spare;              /* a gradient to be added to a push; NULL until needed */
	int has_dropout;           /* the model has */
	int started;               /* easgd: `own` is initialised */

	const struct cnnps_lease *lease; /* steps_begin: carried out now */
	const float *w;                  /* the weights of the next batch */
	struct next_push push;
};

/* One batch of a lease. */
struct batch {
	uint32_t i; /* in the lease, from 0 */
	const uint32_t *index;
	uint32_t images;
	uint64_t dropout_seed;
};

/* Set the fields that are borrowed; all others are zero. */
void steps_init(struct steps *s, uint32_t n_train);
void steps_release(struct steps *s);

/* All calls return PS_ESHUTDOWN when cfg->stop says so, PS_EPROTO when the lease names batches that
 * do not exist, else what libcnnps or the backend returns. */

/* Modes downpour and ssp: the lease that the four calls after it are about. */
void steps_begin(struct steps *s, const struct cnnps_lease *lease);
/* The weights for batch i: from the server for every n_fetch-th batch, else after a local step. */
int steps_pull(struct steps *s, uint32_t i) PS_MUST_CHECK;
/* The images of batch i and its dropout seed. */
int steps_batch(struct steps *s, uint32_t i, struct batch *b) PS_MUST_CHECK;
/* Compute the gradient of `b` and add it to the next push. */
int steps_gradient(struct steps *s, const struct batch *b) PS_MUST_CHECK;
/* Push after n_push batches, and after the last batch of the lease. */
int steps_push(struct steps *s, uint32_t i) PS_MUST_CHECK;

/* Modes sync and sandblaster: one push for the whole lease, at exactly the weights it names. */
int steps_run_exact(struct steps *s, const struct cnnps_lease *l) PS_MUST_CHECK;
/* Mode easgd: local steps, and the elastic update every n_push batches. */
int steps_run_easgd(struct steps *s, const struct cnnps_lease *l) PS_MUST_CHECK;
/* Downpour and ssp with n_push == n_fetch > 1: the device computes all batches of a push without
 * the host. */
int steps_are_pipelined(const struct steps *s);
int steps_run_pipelined(struct steps *s, const struct cnnps_lease *l) PS_MUST_CHECK;

#endif
