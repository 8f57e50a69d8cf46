/*
 * measure.c - measures one rung at one point: error of the gradient, time of a step, and time of
 * each phase.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/rng.h"
#include "kernels/ladder/ladder.h"

#define MAX_STEPS     2000
#define PROFILE_STEPS 10
/* learning rate of timed steps, so small that the weights stay finite */
#define SMALL_RATE 1e-4f

/* ---- points and reference results ------------------------------------------------------------ */

int ladder_point_init(struct ladder_point *p, struct model *m, const struct kx_images *set,
	size_t filters, size_t batch, uint64_t seed, double seconds, struct err *e)
{
	*p = (struct ladder_point){.seed = seed, .seconds = seconds, .runs = 1};
	int rc = ladder_model(m, filters, e);

	if (rc)
		return rc;
	if (batch == 0 || batch > set->n)
		return err_set(e, PS_EUSAGE, "batch %zu: expected 1 to %zu images", batch, set->n);
	p->task = (struct ladder_task){
		.model = m, .threads = 1, .set = set, .filters = filters, .max_batch = batch};
	p->params = ladder_floats(m->n_params);
	p->index = mem_try(set->n, sizeof(*p->index));
	if (!p->params || !p->index) {
		ladder_point_release(p);
		return err_set(e, PS_ENOMEM, "no memory for %zu parameters", m->n_params);
	}
	model_init(m, seed, p->params);
	rng_order(seed, 0, p->index, set->n);
	return PS_OK;
}

void ladder_point_release(struct ladder_point *p)
{
	free(p->params);
	free(p->index);
	p->params = NULL;
	p->index = NULL;
}

int ladder_truth_init(struct ladder_truth *t, const struct ladder_point *p, struct err *e)
{
	struct backend_options o = {
		.device = "cpu-ref", .threads = 1, .max_batch = p->task.max_batch};
	struct backend *b = NULL;

	t->grad = ladder_floats(p->task.model->n_params);
	if (!t->grad)
		return err_set(e, PS_ENOMEM, "no memory for a gradient");
	int rc = backend_new(&b, p->task.model, &o, e);
	if (!rc)
		rc = backend_use(b, p->task.set, e);
	if (!rc && (rc = backend_gradient(
			    b, p->params, p->index, p->task.max_batch, 0, t->grad, &t->loss)))
		rc = err_set(e, rc, "cpu-ref: %s", err_text(rc));
	backend_free(&b);
	if (rc)
		ladder_truth_release(t);
	return rc;
}

void ladder_truth_release(struct ladder_truth *t)
{
	free(t->grad);
	t->grad = NULL;
}

/* ---- measurement ----------------------------------------------------------------------------- */

struct run {
	const struct rung *rung;
	void *self;
	struct ladder_batch batch;
	float *grad; /* memory of ladder_floats */
	double loss;
};

static int ladder_step(struct run *r, struct profile *p, double *ms, struct err *e)
{
	double begin = clock_seconds();
	int rc = r->rung->step(r->self, &r->batch, r->grad, &r->loss, p, e);

	*ms = (clock_seconds() - begin) * 1e3;
	return rc;
}

/*
 * Times a step as a worker would use the rung. A rung with `train` runs an epoch of steps with the
 * weights on the device; the result is the time per step. Other rungs run a single step.
 */
static int timed(
	struct run *r, const struct ladder_point *p, float *trained, double *ms, struct err *e)
{
	if (!r->rung->train)
		return ladder_step(r, NULL, ms, e);
	size_t steps = p->task.set->n / r->batch.n;
	double begin = clock_seconds();
	int rc = r->rung->train(r->self, trained, p->index, r->batch.n, steps, SMALL_RATE, e);
	*ms = (clock_seconds() - begin) * 1e3 / (double)steps;
	return rc;
}

static double ladder_distance(const float *a, const float *b, size_t n)
{
	double difference = 0, norm = 0;

	for (size_t i = 0; i < n; i++) {
		double d = (double)a[i] - (double)b[i];

		difference += d * d;
		norm += (double)b[i] * (double)b[i];
	}
	return sqrt(difference / norm);
}

/* Runs the first step and checks it. The outputs are NaN before the step and must be close to
 * cpu-ref after it. */
static int check_first_step(struct ladder_result *out, struct run *r, size_t n_params,
	const struct ladder_truth *t, struct err *e)
{
	for (size_t i = 0; i < n_params; i++)
		r->grad[i] = NAN;
	r->loss = NAN;
	int rc = ladder_step(r, NULL, &out->median_ms, e);
	if (rc)
		return rc;
	const double tolerance = ladder_bounds(r->rung)->tolerance;
	out->error = ladder_distance(r->grad, t->grad, n_params);
	out->loss_error = fabs(r->loss - t->loss) / fabs(t->loss);
	if (out->error <= tolerance && out->loss_error <= tolerance)
		return PS_OK;
	return err_set(e, PS_EDEVICE,
		"rung \"%s\": the relative error is %.2g for the gradient and %.2g for the loss; "
		"expected at most %.0e",
		r->rung->name, out->error, out->loss_error, tolerance);
}

static int by_size(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Repeats the step as time permits. Without time for a repetition, out->median_ms keeps the time of
 * the checked step. */
static int repeat(struct ladder_result *out, struct run *r, const struct ladder_point *p,
	float *trained, struct err *e)
{
	double ms[MAX_STEPS], begin = clock_seconds() - out->median_ms * 1e-3;
	size_t n = 0;

	ms[0] = out->median_ms;
	while (n < MAX_STEPS && clock_seconds() - begin < p->seconds) {
		int rc = timed(r, p, trained, &ms[n++], e);

		if (rc)
			return rc;
	}
	n = n ? n : 1;
	qsort(ms, n, sizeof(*ms), by_size);
	out->repetitions = n;
	out->median_ms = ms[n / 2];
	out->min_ms = ms[0];
	return PS_OK;
}

/* Computes the mean time of each phase over the steps that fit in `seconds`, at least one. */
static int profile(struct ladder_result *out, struct run *r, double seconds, struct err *e)
{
	double ms, sum = 0;
	size_t n = 0;

	do {
		int rc = ladder_step(r, &out->profile, &ms, e);

		if (rc)
			return rc;
		sum += ms;
		n++;
	} while (n < PROFILE_STEPS && sum < seconds * 1e3 / 4);
	for (size_t i = 0; i < out->profile.n; i++)
		out->profile.phase[i].ms /= (double)n;
	return PS_OK;
}

/* Opens the rung, measures it and closes it. Measures the phases of the rung only if `profiled` is
 * set. */
static int measure_rung(struct ladder_result *out, struct run *r, const struct ladder_point *p,
	const struct ladder_truth *t, float *trained, int profiled, struct err *e)
{
	int rc = r->rung->open(&r->self, &p->task, e);

	*out = (struct ladder_result){0};
	memcpy(trained, p->params, p->task.model->n_params * sizeof(float));
	if (!rc)
		rc = check_first_step(out, r, p->task.model->n_params, t, e);
	if (!rc)
		rc = repeat(out, r, p, trained, e);
	if (!rc && profiled)
		rc = profile(out, r, p->seconds, e);
	if (r->self)
		r->rung->close(r->self);
	r->self = NULL;
	return rc;
}

static int by_median(const void *a, const void *b)
{
	const struct ladder_result *x = a, *y = b;

	return by_size(&x->median_ms, &y->median_ms);
}

/* Measures the rung p->runs times. The first run also measures the phases of a step. */
static int measure_runs(struct ladder_result *out, struct run *r, const struct ladder_point *p,
	const struct ladder_truth *t, float *trained, struct err *e)
{
	struct ladder_result result[LADDER_MAX_RUNS];
	struct profile phases = {0};
	const int n = p->runs < LADDER_MAX_RUNS ? p->runs : LADDER_MAX_RUNS;
	int rc = PS_OK;

	for (int i = 0; i < n && !rc; i++) {
		rc = measure_rung(&result[i], r, p, t, trained, i == 0, e);
		if (i == 0)
			phases = result[0].profile;
	}
	if (rc)
		return rc;
	qsort(result, (size_t)n, sizeof(*result), by_median);
	*out = result[n / 2];
	out->profile = phases;
	out->low_ms = result[0].median_ms;
	out->high_ms = result[n - 1].median_ms;
	return PS_OK;
}

int ladder_measure(struct ladder_result *out, const struct rung *rung, const struct ladder_point *p,
	const struct ladder_truth *t, struct err *e)
{
	size_t n_params = p->task.model->n_params;
	struct run r = {.rung = rung, .batch = {p->params, p->index, p->task.max_batch}};
	float *trained = ladder_floats(n_params);
	int rc;

	*out = (struct ladder_result){0};
	r.grad = ladder_floats(n_params);
	if (trained && r.grad)
		rc = measure_runs(out, &r, p, t, trained, e);
	else
		rc = err_set(e, PS_ENOMEM, "no memory for a gradient");
	free(r.grad);
	free(trained);
	return rc;
}
