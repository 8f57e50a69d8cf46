/*
 * ladder.h - the optimisation steps of the gradient of seed:F, from a sequential loop to the
 * production kernels, behind one interface. Each of these optimisation steps is a rung;
 * docs/ladder.md calls it a stage.
 *
 * seed:F is conv 3x3xF, ReLU, max-pool 2, fc 10 (common/model.h) on images of 28 x 28 bytes. A rung
 * reads parameters from host memory and writes the mean gradient and the mean loss of a batch to
 * host memory, with the conventions of backend_gradient (kernels/backend.h). The table of rungs
 * (ladder_rungs) is in order: each rung says how it differs from the rung before it.
 *
 * With a profile, a rung also records how long its phases take, by the host clock or by CUDA
 * events. The recording can make a step slower. Without a profile a rung records no times.
 *
 * Thread: one thread at a time uses the state of a rung.
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
	const char *name; /* a string constant; equal text means the same phase */
	enum phase_kind kind;
	double ms;
};

#define MAX_PHASES 16

/* The phases of one step, in the order of their first appearance. If a phase occurs again,
 * its time is added to its entry. */
struct profile {
	size_t n;
	struct phase phase[MAX_PHASES];
};

/* Adds `ms` to the phase `name`, or appends this phase. Does nothing if `p` is NULL or has no room
 * for a new phase. */
void profile_add(struct profile *p, const char *name, enum phase_kind kind, double ms);
/* Returns "copy-in", "kernel", "copy-out" or "host". */
const char *phase_kind_name(enum phase_kind kind);

/* The arguments of rung.open. */
struct ladder_task {
	const struct model *model;   /* seed:F for images of 1 x 28 x 28 */
	int threads;                 /* number of threads of ladder_cores */
	const struct kx_images *set; /* borrowed until close; indices refer to it */
	size_t filters;              /* the number of filters F */
	size_t max_batch;            /* maximum number of images of a step */
};

/* The input of a step. A rung may pin params and the grad of the step, because both come from
 * ladder_floats, are the same in every step of one state, and outlive the state. */
struct ladder_batch {
	const float *params;
	const uint32_t *index; /* image numbers, all below set->n */
	size_t n;              /* number of images, 1 to max_batch */
};

struct rung_bounds {
	size_t min_batch, max_batch;
	double tolerance; /* maximum relative error of gradient and loss against cpu-ref */
};

struct rung {
	const char *name;     /* the name of the rung in the CSV files */
	const char *changes;  /* how it differs from the rung before it */
	const char *predicts; /* a prediction, written before the first measurement */
	int needs_gpu;
	int (*open)(void **self, const struct ladder_task *t, struct err *e);
	/* Computes the mean gradient of the batch, which replaces the model->n_params floats of
	 * `grad`, and sets *loss to the mean loss. `p` may be NULL. */
	int (*step)(void *self, const struct ladder_batch *b, float *grad, double *loss,
		struct profile *p, struct err *e);
	/*
	 * Runs `steps` steps of plain SGD, params -= rate * gradient. Batch k has the images
	 * index[k * batch, (k + 1) * batch). If `train` is NULL, the caller calls
	 * `step` and updates the weights on the host.
	 */
	int (*train)(void *self, float *params, const uint32_t *index, size_t batch, size_t steps,
		float rate, struct err *e);
	/* the bounds of the rung's errors; if NULL, ladder_exact */
	const struct rung_bounds *bounds;
	void (*close)(void *self);
};

extern const struct rung *const ladder_rungs[];
extern const size_t ladder_n_rungs;

/* A rung with the production kernels of the CPU and task.threads threads. This rung is not in
 * ladder_rungs. */
extern const struct rung ladder_cores;

/* Sets *m to seed:filters. PS_EUSAGE: there is no seed network with this number of filters. */
int ladder_model(struct model *m, size_t filters, struct err *e) PS_MUST_CHECK;
/* Returns `n` zeroed floats on pages of their own, or NULL if there is not enough memory. The
 * caller frees them with free(). */
float *ladder_floats(size_t n);
/* Bounds that allow every batch size, with a tolerance that single precision meets in any order of
 * additions. */
extern const struct rung_bounds ladder_exact;
const struct rung_bounds *ladder_bounds(const struct rung *r);
/* Returns 1 if the rung runs steps of `batch` images. */
int ladder_runs(const struct rung *r, size_t batch);
/* Returns 1 if a CUDA device works. Otherwise *why says in a few words what is missing. */
int ladder_has_gpu(const char **why);

/* The memory that a rung has pinned, from the first step until close. The pointers are NULL before
 * the first step. */
struct ladder_pins {
	void *params, *grad;
};
int ladder_pin(struct ladder_pins *p, const float *params, float *grad, size_t n,
	struct err *e) PS_MUST_CHECK;
void ladder_unpin(struct ladder_pins *p);

/* The measurements of a rung at one point (struct ladder_point). */
struct ladder_result {
	size_t repetitions;
	double median_ms, min_ms; /* median and minimum of the time of a step */
	double low_ms, high_ms;   /* the lowest and the highest median of the runs */
	double error;             /* relative error of the gradient: |rung - cpu-ref| / |cpu-ref| */
	double loss_error;        /* relative error of the loss */
	struct profile profile;   /* mean ms of the phases of a step */
};

/* Gradient and loss of cpu-ref, the reference for every rung. */
struct ladder_truth {
	float *grad; /* memory of ladder_floats */
	double loss;
};

#define LADDER_MAX_RUNS 99

/* A point of measurement: params and a batch, equal for every rung. params are the initial weights
 * for `seed`, and the batch has the first images of the first epoch. A rung is opened and measured
 * `runs` times. The steps of a run take about `seconds` in all; at least one step runs. */
struct ladder_point {
	struct ladder_task task;
	uint64_t seed;
	double seconds;
	int runs;
	float *params;   /* memory of ladder_floats */
	uint32_t *index; /* set->n image numbers: the order of the images in the epoch */
};

/* Initialises a point with one thread and one run. */
int ladder_point_init(struct ladder_point *p, struct model *m, const struct kx_images *set,
	size_t filters, size_t batch, uint64_t seed, double seconds, struct err *e) PS_MUST_CHECK;
void ladder_point_release(struct ladder_point *p);
int ladder_truth_init(
	struct ladder_truth *t, const struct ladder_point *p, struct err *e) PS_MUST_CHECK;
void ladder_truth_release(struct ladder_truth *t);
/* Checks and measures a rung and writes the run with the median time to *out. Returns PS_EDEVICE
 * also if the error of the gradient or of the loss exceeds the tolerance of the rung. */
int ladder_measure(struct ladder_result *out, const struct rung *r, const struct ladder_point *p,
	const struct ladder_truth *t, struct err *e) PS_MUST_CHECK;

/*
 * Trains by plain SGD from the weights of `p` for seconds[n - 1] seconds; `seconds` ascends. At
 * each of the n times, writes the predictions for the test images to stdout as CSV rows (see
 * tests/bench/ladder.c).
 */
int ladder_train(const struct rung *r, const struct ladder_point *p, const struct kx_images *test,
	double rate, const double *seconds, size_t n, struct err *e) PS_MUST_CHECK;

/* Measures host-device copies, launches and loads one by one and writes CSV rows to stdout. Needs a
 * GPU. */
int ladder_memory(struct err *e) PS_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
