/*
 * ladder.h - every step of how the gradient of seed:F became fast, kept behind one interface.
 *
 * seed:F is conv 3x3xF, ReLU, max-pool 2, fc 10 (common/model.h) on images of 28 x 28 bytes. A rung
 * takes parameters from host memory and leaves the batch's mean gradient and mean loss there, as
 * backend_gradient does and with its conventions (kernels/backend.h); what it does in between is
 * its own. The table is in order: each row says what it changes against the row before.
 *
 * A rung measures itself when asked: with a profile it also notes how long its phases took (host
 * clock or CUDA events), which may cost time of its own; without one nothing is noted.
 *
 * Thread: a rung's state belongs to one thread at a time.
 */
#ifndef KERNELS_LADDER_LADDER_H
#define KERNELS_LADDER_LADDER_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "common/err.h"
#include "kernels/backend.h"

enum phase_kind { PHASE_COPY_IN, PHASE_KERNEL, PHASE_COPY_OUT, PHASE_HOST };

struct phase {
	const char *name; /* a constant: phases are compared by text */
	enum phase_kind kind;
	double ms;
};

#define PROFILE_MAX 16

/* Phases of one step in order of their first appearance; a phase that comes again adds its time. */
struct profile {
	size_t n;
	struct phase phase[PROFILE_MAX];
};

void profile_add(struct profile *p, const char *name, enum phase_kind kind, double ms);
/* "copy-in", "kernel", "copy-out", "host" */
const char *phase_kind_name(enum phase_kind kind);

/* What a rung is opened for. */
struct ladder_task {
	const struct model *model;   /* seed:F for 1 x 28 x 28 */
	const struct kx_images *set; /* borrowed until close; indices refer to it */
	size_t filters;              /* F */
	size_t max_batch;            /* most images of a step */
};

/* One step's input. A rung may pin params and the step's grad: both come from ladder_floats, are
 * the same for every step of one state, and outlive it. */
struct ladder_batch {
	const float *params;
	const uint32_t *index; /* of images; all below set->n */
	size_t n;              /* 1 to max_batch */
};

struct rung {
	const char *name;     /* as the CSV has it */
	const char *changes;  /* what it does otherwise than the rung below */
	const char *predicts; /* written before it was first measured */
	int needs_gpu;
	int (*open)(void **self, const struct ladder_task *t, struct err *e);
	/* Mean gradient (model->n_params floats, overwritten) and mean loss; `p` may be NULL. */
	int (*step)(void *self, const struct ladder_batch *b, float *grad, double *loss,
		struct profile *p, struct err *e);
	/*
	 * NULL: training is step after step with the update on the host. Otherwise `steps` steps of
	 * plain SGD, params -= rate * gradient, batch k of them index[k * batch, (k + 1) * batch).
	 */
	int (*train)(void *self, float *params, const uint32_t *index, size_t batch, size_t steps,
		float rate, struct err *e);
	void (*close)(void *self);
};

extern const struct rung *const ladder_rungs[];
extern const size_t ladder_n_rungs;

/* The model text of `filters`: PS_EUSAGE if there is no such seed net. */
int ladder_model(struct model *m, size_t filters, struct err *e) PS_MUST_CHECK;
/* `n` zeroed floats on pages of their own, for free(); NULL: no memory. */
float *ladder_floats(size_t n);
/* 1 if a CUDA device answers; otherwise *why says in a few words what is missing. */
int ladder_has_gpu(const char **why);

/* A step's memory, pinned when a rung first sees it (pins.c; zeroed: not yet) until its close. */
struct ladder_pins {
	void *params, *grad;
};
int ladder_pin(struct ladder_pins *p, const float *params, float *grad, size_t n,
	struct err *e) PS_MUST_CHECK;
void ladder_unpin(struct ladder_pins *p);

/* How a rung did at one point. */
struct ladder_result {
	size_t repetitions;
	double median_ms, least_ms; /* of a step */
	double error;               /* of the gradient: |rung - cpu-ref| / |cpu-ref| */
	double loss_error;          /* likewise, of the loss */
	struct profile profile;     /* ms of a mean step, phases timed */
};

/* At most so far from cpu-ref in single precision, whatever the order of additions. */
#define LADDER_TOLERANCE 1e-5

/* Gradient and loss of cpu-ref: what every rung is compared with. */
struct ladder_truth {
	float *grad; /* ladder_floats */
	double loss;
};

/* The same params and batch for every rung: initial weights of `seed`, the first images of its
 * first epoch. Steps take at most about `seconds` altogether, but for one that is always made. */
struct ladder_point {
	struct ladder_task task;
	uint64_t seed;
	double seconds;
	float *params;   /* ladder_floats */
	uint32_t *index; /* set->n: the epoch's order */
};

int ladder_point_init(struct ladder_point *p, struct model *m, const struct kx_images *set,
	size_t filters, size_t batch, uint64_t seed, double seconds, struct err *e) PS_MUST_CHECK;
void ladder_point_release(struct ladder_point *p);
int ladder_truth_init(
	struct ladder_truth *t, const struct ladder_point *p, struct err *e) PS_MUST_CHECK;
void ladder_truth_release(struct ladder_truth *t);
/* PS_EDEVICE, too, when the gradient is further from the truth than LADDER_TOLERANCE. */
int ladder_measure(struct ladder_result *out, const struct rung *r, const struct ladder_point *p,
	const struct ladder_truth *t, struct err *e) PS_MUST_CHECK;

/*
 * Train from p's weights by plain SGD for the longest of `n` ascending times; what the net of each
 * of them believes of the test images goes to stdout as rows of CSV (see main.c).
 */
int ladder_train(const struct rung *r, const struct ladder_point *p, const struct kx_images *test,
	double rate, const double *seconds, size_t n, struct err *e) PS_MUST_CHECK;

/* Host-device copies, launches and loads, each alone: rows of CSV on stdout. Needs a GPU. */
int ladder_memory(struct err *e) PS_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
