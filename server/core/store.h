/*
 * store.h - the weights and the only code that changes them; invariants in store.c.
 */
#ifndef SERVER_CORE_STORE_H
#define SERVER_CORE_STORE_H
#include "server/core/core.h"

/* maximum magnitude of a value of a gradient. The limit is low enough that the square of such a
 * value is a finite float32, because adagrad adds up squares. */
#define STORE_MAX_VALUE 1e15

/* This struct describes an update of the weights that the core has decided. store_compute computes
 * the new weights later, block by block. */
struct update {
	/* 1: store_compute has not returned all blocks to its caller yet */
	int pending;
	/* number of blocks that store_compute has returned; above 0: the job is under way */
	size_t done;
	struct engine_job job; /* the job that computes all blocks of the update */
	const float *from;
	float *to; /* memory for the new weights; may be equal to `from` */
	struct optim_step step;
	struct slices slices; /* the gradient; it must not change until the update is computed */
};

/* BATCHNORM_MOMENTUM of common/model.h, which the core does not include: an update moves each
 * running statistic by this part of its distance towards the new value */
#define RUNNING_PART 0.1

struct store {
	size_t n, trained; /* values [trained, n) are running statistics */
	uint64_t version;
	uint64_t version_term; /* term in which this version was made */
	/* the version with which this term began; UINT64_MAX while the log of an earlier release is
	 * replayed, because that release did not store this number */
	uint64_t first_version;
	float *weights;
	/* 1: the device has the weights, and only the device has the current state of the
	 * optimizer */
	int on_device;
	int defers;   /* the value of `defers` in the event of this step */
	int deferred; /* 1: `weights` are older than those of the device */
	/* the next_buffer of this step's event until an update has used it; NULL: the next version
	 * overwrites the present one */
	float *next_buffer;
	/* the weights at the end of the epoch under evaluation or evaluated last */
	float *eval_weights;
	/* 1: eval_weights is set; a snapshot has these weights only during an evaluation */
	int has_eval;
	uint64_t eval_version;
	/* the optimizer's state vectors; NULL: the optimizer does not need this one */
	float *state[OPTIM_VECTORS];
	float *scratch; /* memory for one gradient, used within one step of the core */
	/* running.c: limited statistics of a push, used within one step of the core */
	float *running;
	/* adaptive delay compensation: mean squares of the gradients */
	float *dc_square;
	/* upper bounds of the magnitudes of weights and state (store_holds) */
	struct optim_reach reach;
	struct optim_reach planned; /* these bounds after the step that store_holds has accepted */
	/* measured: 1 if `reach` is valid; is_planned: 1 if `planned` is valid; no snapshot has
	 * these two */
	int measured, is_planned;
	struct update update; /* the update of this step of the core */
	/* the slices of this step's push if `squares` is their sum of squares, so that the core
	 * computes the sum only once; no snapshot has these two members */
	const struct slices *checked;
	double squares;
	/* factor by which the core scales this step's push (norms.h) if it accepts the push */
	double permitted;
};

/* Returns 1 if an option needs the norms of pushes. */
int store_needs_squares(const struct core_config *cfg);
/* Checks the positions of a push's slices, the magnitudes of its values, and its norm. Returns
 * REJECT_NONE, REJECT_SHAPE, REJECT_NONFINITE or REJECT_NORM, and changes neither weights nor
 * optimizer. */
enum reject store_check(struct core *c, const struct slices *s);
/* Returns the L2 norm of the gradient that all slices together form. */
double store_norm(const struct core *c, const struct slices *s);
/* Returns a number that is equal for equal slices, and almost always different for others. */
uint64_t store_print(const struct core *c, const struct slices *s);
/* Returns the largest magnitude in a push that store_check has accepted. */
double store_peak(const struct core *c, const struct slices *s);
/* Returns 1 if a step at rate `eta` or lower, with a gradient of magnitude at most `peak`, leaves
 * every weight and every value of the optimizer finite. The caller must call this function before
 * each step of the optimizer. */
int store_holds(struct core *c, double peak, double eta);
/* Decides an update at rate `eta` with the gradient `s`, which store_check has accepted. The update
 * multiplies the gradient by `scale` or by the factor of --clip-norm, whichever is smaller. The
 * values of `s` from number st->trained on are not gradients, but statistics of batches. Each
 * running statistic moves by RUNNING_PART of its distance towards the value in `s`; the optimizer,
 * the clipping and the rate do not matter for it. The version grows by one. store_compute computes
 * the new values later, so a caller that reads weights in the same step must call store_complete
 * first. */
void store_apply(struct core *c, const struct slices *s, double eta, double scale);
/* Calls store_apply with the gradient `g`, which has a value for each weight. */
void store_step(struct core *c, const float *g, double eta);
/* Computes the next block of the pending update. Sets *values to the first value of the block and
 * returns the number of values. Returns 0 if no update is pending. The values do not depend on the
 * size of the blocks. */
size_t store_compute(struct core *c, const float **values);
/* See core_update_blocks, core_compute_block and core_end_update. */
size_t store_update_blocks(const struct core *c);
void store_compute_block(struct core *c, size_t block);
void store_end_update(struct core *c);
/* Computes the rest of the pending update, if there is one. */
void store_complete(struct core *c);
/* Completes the pending update, and copies the weights to st->weights if only a device has them. */
void store_fetch_weights(struct core *c);
/* Does the same as store_fetch_weights, and copies the state of the optimizer to st->state if a
 * device has it. */
void store_fetch(struct core *c);
/* Returns 1 if the device of the core keeps the present weights and the state of the optimizer, so
 * that the device's function `kept` can return them later (param_device.h). The caller ensures that
 * no update is pending. */
int store_keep(const struct core *c);
/* Returns the scratch buffer, which has room for one gradient of all values. Completes the pending
 * update first, because the update may still read the buffer. */
float *store_scratch(struct core *c);
/* Returns the learning rate now: cfg.rate.lr times the factor of its schedule. */
double store_rate(const struct core *c);
/* Returns the learning rate now for an update from `gradients` gradients that are tau versions old,
 * scaled by cfg.rate.scaling. */
double store_scaled_rate(const struct core *c, double gradients, double tau);
/* Returns the factor by which store_scaled_rate multiplies the learning rate. */
double store_scale(const struct core *c, double gradients, double tau);
/* store_next returns the buffer for the next version of the weights, which may be the buffer of the
 * present version. store_publish makes the weights in `next` the current version. */
float *store_next(struct core *c);
void store_publish(struct core *c, float *next);
void store_freeze(struct core *c); /* copies the current weights to eval_weights */
/* Returns the number of values of slice `s` that are values of a gradient. The values after them
 * are running statistics. */
uint64_t store_n_trained(const struct core *c, const struct slice *s);
/* Returns 1 if the gradient of `p` is of the current weights, bit for bit. The base term of `p` may
 * be any term from the one that made this version to the present term. */
int store_is_current(const struct core *c, const struct msg_push *p);

#endif
