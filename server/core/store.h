/*
 * store.h - the weights and the only code that changes them; invariants in store.c.
 */
#ifndef SERVER_CORE_STORE_H
#define SERVER_CORE_STORE_H
#include "server/core/core.h"

/* The largest magnitude in a gradient: its square is a finite float32, for adagrad. */
#define STORE_MAX_VALUE 1e15

/* An update of the weights that was decided, and whose values are computed block by block. */
struct update {
	int pending; /* values [done, n) of `to` are not computed yet */
	size_t done;
	const float *from;
	float *to; /* may be `from` */
	struct optim_step step;
	struct slices slices; /* the gradient; its values must not change until all is computed */
};

struct store {
	size_t n;
	uint64_t version;
	uint64_t version_term; /* term in which these weights came about */
	float *weights;
	float *loan;         /* where the next version goes; NULL: in place */
	float *eval_weights; /* as they were when the epoch in evaluation ended */
	uint64_t eval_version;
	float *state[OPTIM_VECTORS]; /* the optimizer's; NULL where it has none */
	float *scratch;              /* a gradient under way inside one step of the core */
	float *dc_square;            /* adaptive delay compensation: mean squares */
	struct optim_reach reach;    /* of weights and state; see store_holds */
	struct optim_reach planned;  /* ... after the step that was found possible */
	int measured, is_planned;    /* reach and planned are valid; never saved */
	struct update update;        /* of this step */
};

/* REJECT_NONE, REJECT_SHAPE, REJECT_NONFINITE or REJECT_NORM; reads every value once, changes
 * nothing. */
enum reject store_check(const struct core *c, const struct slices *s);
/* The largest magnitude in a push, which store_check has found sound. */
double store_peak(const struct slices *s);
/* 1: a step at rate `eta`, or a lower one, with a gradient of at most `peak` in magnitude leaves
 * every weight and every value of the optimizer finite. It must be asked before each step. */
int store_holds(struct core *c, double peak, double eta);
/* w -= eta * ...; the version grows by one. `s` was checked. The new values are computed later, by
 * store_compute: whoever reads weights in the same step calls store_complete first. */
void store_apply(struct core *c, const struct slices *s, double eta);
/* The same with one gradient of all values. */
void store_step(struct core *c, const float *g, double eta);
/* Compute the next values of the update: sets *values to the first and returns their number. 0: no
 * update is pending. The values do not depend on the size of the blocks. */
size_t store_compute(struct core *c, const float **values);
/* Compute all of them. */
void store_complete(struct core *c);
/* Room for one gradient of all values: no pending update reads it any more. */
float *store_scratch(struct core *c);
/* The rate of now: cfg.rate.lr by its schedule. */
double store_rate(const struct core *c);
/* The same for an update from `gradients` gradients that are tau versions old, by cfg.rate.scaling.
 */
double store_scaled_rate(const struct core *c, double gradients, double tau);
/* The factor alone. */
double store_scale(const struct core *c, double gradients, double tau);
/* Where the next version of the weights is to be written (may be the present one's place), and: it
 * is there. */
float *store_next(struct core *c);
void store_publish(struct core *c, float *next);
void store_freeze(struct core *c); /* weights -> eval_weights */
/* Are these the weights that are current, bit for bit? Also those of an earlier term, if this one
 * began with them. */
int store_is_current(const struct core *c, const struct msg_push *p);

#endif
