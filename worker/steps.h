/*
 * steps.h - the steps of a worker with the batches of a lease, in each mode (proto/WIRE.md,
 * "Modes").
 *
 * In modes downpour and ssp, trainer.c calls four functions for each batch: pull, batch, gradient,
 * push. In the other modes, and if the device computes a push without the host, trainer.c makes one
 * call per lease.
 *
 * Invariants:
 * (1) the batches of a push are consecutive batches of the lease, in their order (asserted by
 *     note_batches).
 *
 * Promises:
 * (1) every batch of a completed lease is in exactly one push, and the pushes have the order of the
 *     batches (every_rhythm_of_pushes_and_pulls_is_the_references); a lease for a step that is
 *     already over leads to no push;
 * (2) only the newest pulled weights and, in mode easgd, the worker's own weights are kept from one
 *     lease to the next (every_rhythm_of_pushes_and_pulls_is_the_references,
 *     easgd_ties_its_own_weights_to_the_centre). Local steps do not change the running statistics:
 *     a push has the mean of its batches' statistics;
 * (3) the gradient of a push of one batch is computed at the weights as they were received, and in
 *     the buffer that is sent, without a copy (one_batch_is_one_push_at_fresh_weights).
 *
 * Thread: the trainer's.
 */
#ifndef WORKER_STEPS_H
#define WORKER_STEPS_H
#include "kernels/backend.h"
#include "worker/data/batch.h"
#include "worker/data/loader.h"
#include "worker/trainer.h"

/* The push under construction. */
struct next_push {
	/* sum of the gradients, in a buffer of libcnnps; NULL if the push is empty */
	float *g;
	struct cnnps_work work; /* the batches in the push */
	double loss;            /* sum of the losses of all images */
	uint64_t version;       /* version of the weights for the first batch of the push */
	uint64_t xxh3;          /* checksum of `g`; 0: the device has not computed it */
	/* checksum of the weights, which the device must confirm; 0: the weights are already
	 * checked */
	uint64_t weights_xxh3;
};

struct steps {
	struct cnnps *c;               /* the connection, borrowed */
	const struct cnnps_info *info; /* the result of cnnps_info for `c` */
	struct backend *backend;       /* borrowed; uses the training set */
	/* Borrowed. The loader provides the images of each batch. It is NULL if the backend has the
	 * whole training set */
	struct loader *loader;
	struct err *e; /* borrowed; receives the reason if the loader fails */
	const struct trainer_config *cfg;
	/* function that computes the pictures of show.h; it is called with the newest weights,
	 * between two batches, when the server has asked for pictures */
	void (*show)(void *arg, const float *weights);
	void *show_arg;
	struct trainer_work *work; /* the module counts the completed work here */
	struct batches batches;
	struct {
		/* next: the next batch to take from the loader; asked: the next batch to request
		 * from it */
		uint32_t epoch, next, asked;
	} loading;
	/* the numbers 0, 1, 2, ... as indices of the images of a loaded batch */
	uint32_t *identity;
	struct cnnps_pull held; /* the newest weights; `weights` is NULL before the first pull */
	/* 1 if the answer to the newest push had the weights `held`, so that no pull is needed */
	int has_pulled;
	float *own;      /* the worker's weights for local steps; NULL until needed */
	float *velocity; /* easgd: velocity of `own`; NULL without momentum */
	/* the gradient of a batch that is to be added to a push; NULL until needed */
	float *spare;
	size_t n_trained;  /* number of parameters without running statistics (common/model.h) */
	float *statistics; /* easgd: sum of the statistics of the batches of the next push */
	int has_dropout;   /* 1: the model has dropout layers */
	int started;       /* easgd: 1 after `own` was set to the weights of the server */

	const struct cnnps_lease *lease; /* the lease that steps_begin has received */
	const float *w;                  /* the weights of the next batch */
	struct next_push push;
};

/* One batch of a lease. */
struct batch {
	uint32_t i; /* index in the lease, from 0 */
	const uint32_t *index;
	uint32_t images;
	uint64_t dropout_seed;
};

/* Initialises `s`. The caller must have set the borrowed fields, and all other fields must be zero.
 * PS_ENOMEM. */
int steps_init(struct steps *s, uint32_t n_train) PS_MUST_CHECK;
void steps_release(struct steps *s);

/* The calls below return PS_ESHUTDOWN if cfg->stop returns nonzero, and PS_EPROTO if the lease
 * names batches that do not exist. In all other cases they return the status of libcnnps or the
 * backend. */

/* Begins a lease in mode downpour or ssp. The functions from steps_pull to steps_push_rest work on
 * this lease. */
void steps_begin(struct steps *s, const struct cnnps_lease *lease);
/* Gets the weights for batch i. For every n_fetch-th batch they come from the server; for the other
 * batches they are the result of a local step. */
int steps_pull(struct steps *s, uint32_t i) PS_MUST_CHECK;
/* Gets the images of batch i and its dropout seed. */
int steps_batch(struct steps *s, uint32_t i, struct batch *b) PS_MUST_CHECK;
/* Computes the gradient of `b` and adds it to the next push. */
int steps_gradient(struct steps *s, const struct batch *b) PS_MUST_CHECK;
/* Pushes if batch i completes n_push batches or is the last batch of the lease. */
int steps_push(struct steps *s, uint32_t i) PS_MUST_CHECK;
/* Pushes the batches that are computed and not pushed yet, if there are any. */
int steps_push_rest(struct steps *s) PS_MUST_CHECK;

/* Makes one push for the whole lease, in mode sync or sandblaster. Its gradient is computed at the
 * weights of the version that the lease names. */
int steps_run_exact(struct steps *s, const struct cnnps_lease *l) PS_MUST_CHECK;
/* Makes local steps in mode easgd, and an elastic update every n_push batches. */
int steps_run_easgd(struct steps *s, const struct cnnps_lease *l) PS_MUST_CHECK;
/* For mode downpour or ssp: returns 1 if the device computes all batches of a push without the
 * host. The caller must then call steps_run_pipelined for each lease. The device can do this only
 * if n_push == n_fetch, and if there is no loader. In addition, either n_push must be above 1, or
 * pushes of one batch must overlap: they do so if the run has prefetch and the device computes
 * while the caller does other work. */
int steps_are_pipelined(const struct steps *s);
int steps_run_pipelined(struct steps *s, const struct cnnps_lease *l) PS_MUST_CHECK;

#endif
