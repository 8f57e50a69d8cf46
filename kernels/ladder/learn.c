/*
 * learn.c - trains a network on one rung and records its predictions after given times. The clock
 * runs during training steps and stops during evaluation.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/rng.h"
#include "kernels/ladder/ladder.h"

#define SHOWN         12             /* number of test images with CSV rows of their own */
#define EVALUATED     ((size_t)1000) /* number of test images that the accuracy is measured on */
#define CHUNK_SECONDS 0.002          /* training time between two readings of the clock */

struct learner {
	const struct rung *rung;
	void *self;
	const struct ladder_point *point;
	/* memory of ladder_floats; `before`: weights before the last chunk */
	float *params, *before, *grad;
	uint32_t *order; /* image order of the current epoch */
	uint32_t epoch;
	size_t next; /* index in `order` of the next image */
	float rate;
	size_t chunk; /* number of steps per chunk */
	/* number of steps so far, and number of steps before the last chunk */
	size_t steps, counted;
	double seconds; /* training time so far */
	struct backend *evaluator;
	const struct kx_images *test;
};

/* ---- training -------------------------------------------------------------------------------- */

/* Returns the images of up to l->chunk batches and sets *steps to the number of batches. An epoch
 * ends with its last whole batch. */
static const uint32_t *next_images(struct learner *l, size_t *steps)
{
	size_t batch = l->point->task.max_batch, n_set = l->point->task.set->n;

	if (l->next + batch > n_set) {
		rng_order(l->point->seed, ++l->epoch, l->order, n_set);
		l->next = 0;
	}
	size_t left = (n_set - l->next) / batch;
	*steps = l->chunk < left ? l->chunk : left;
	const uint32_t *index = l->order + l->next;
	l->next += *steps * batch;
	return index;
}

/* Runs one step and updates the weights on the host. */
static int train_one(struct learner *l, const uint32_t *index, struct err *e)
{
	struct ladder_batch b = {l->params, index, l->point->task.max_batch};
	double loss;
	int rc = l->rung->step(l->self, &b, l->grad, &loss, NULL, e);

	for (size_t i = 0; !rc && i < l->point->task.model->n_params; i++)
		l->params[i] -= l->rate * l->grad[i];
	return rc;
}

static int advance(struct learner *l, struct err *e)
{
	size_t steps, bytes = l->point->task.model->n_params * sizeof(float);
	const uint32_t *index = next_images(l, &steps);

	memcpy(l->before, l->params, bytes);
	l->counted = l->steps;
	double begin = clock_seconds();
	int rc = l->rung->train ? l->rung->train(l->self, l->params, index,
					  l->point->task.max_batch, steps, l->rate, e)
				: train_one(l, index, e);
	double elapsed = clock_seconds() - begin;
	if (l->rung->train && elapsed < CHUNK_SECONDS / 2)
		l->chunk *= 2;
	l->seconds += elapsed;
	l->steps += steps;
	return rc;
}

/* ---- predictions ----------------------------------------------------------------------------- */

/* Writes the predictions of the weights `before`, because the last chunk ended too late. */
static int print_predictions(struct learner *l, double seconds, struct err *e)
{
	float probability[SHOWN * 10];
	size_t evaluated = l->test->n < EVALUATED ? l->test->n : EVALUATED, right;
	double loss;
	int rc = backend_evaluate(l->evaluator, l->before, 0, evaluated, &right, &loss);

	if (!rc)
		rc = backend_predict(l->evaluator, l->before, 0, SHOWN, probability);
	if (rc)
		return err_set(e, rc, "predictions: %s", err_text(rc));
	for (size_t i = 0; i < SHOWN; i++) {
		const float *p = probability + i * 10;
		size_t best = 0;

		for (size_t c = 1; c < 10; c++)
			best = p[c] > p[best] ? c : best;
		printf("%s,%g,%zu,%.4f,%zu,%d,%zu,%.3f,%.3f\n", l->rung->name, seconds, l->counted,
			(double)right / (double)evaluated, i, l->test->labels[i], best,
			(double)p[best], (double)p[l->test->labels[i]]);
	}
	fflush(stdout);
	return PS_OK;
}

/* Runs one chunk to warm up and discards its results. */
static int warm_up(struct learner *l, struct err *e)
{
	int rc = advance(l, e);

	memcpy(l->params, l->before, l->point->task.model->n_params * sizeof(float));
	l->next = 0;
	l->steps = 0;
	l->seconds = 0;
	return rc;
}

static int learn(struct learner *l, const double *seconds, size_t n, struct err *e)
{
	int rc = warm_up(l, e);

	for (size_t i = 0; !rc && i < n;) {
		rc = advance(l, e);
		for (; !rc && i < n && l->seconds > seconds[i]; i++)
			rc = print_predictions(l, seconds[i], e);
	}
	return rc;
}

/* ---- life cycle ------------------------------------------------------------------------------ */

static int open_evaluator(struct learner *l, struct err *e)
{
	struct backend_options o = {.device = "cpu", .threads = 2, .max_batch = 1};
	int rc = backend_new(&l->evaluator, l->point->task.model, &o, e);

	return rc ? rc : backend_use(l->evaluator, l->test, e);
}

static int learner_init(struct learner *l, struct err *e)
{
	const struct ladder_task *t = &l->point->task;
	size_t n_params = t->model->n_params;

	l->params = ladder_floats(n_params);
	l->before = ladder_floats(n_params);
	l->grad = ladder_floats(n_params);
	l->order = mem_try(t->set->n, sizeof(*l->order));
	if (!l->params || !l->before || !l->grad || !l->order)
		return err_set(e, PS_ENOMEM, "no memory for %zu parameters", n_params);
	memcpy(l->params, l->point->params, n_params * sizeof(float));
	memcpy(l->order, l->point->index, t->set->n * sizeof(*l->order));
	int rc = open_evaluator(l, e);
	return rc ? rc : l->rung->open(&l->self, t, e);
}

static void learner_release(struct learner *l)
{
	if (l->self)
		l->rung->close(l->self);
	backend_free(&l->evaluator);
	free(l->params);
	free(l->before);
	free(l->grad);
	free(l->order);
}

int ladder_train(const struct rung *r, const struct ladder_point *p, const struct kx_images *test,
	double rate, const double *seconds, size_t n, struct err *e)
{
	struct learner l = {.rung = r, .point = p, .test = test, .rate = (float)rate, .chunk = 1};

	if (test->n < SHOWN)
		return err_set(
			e, PS_EUSAGE, "%zu test images: expected %d at least", test->n, SHOWN);
	int rc = learner_init(&l, e);
	if (!rc)
		rc = learn(&l, seconds, n, e);
	learner_release(&l);
	return rc;
}
