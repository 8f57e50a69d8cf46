/*
 * production.c - the last rung: the kernels that workers use, through the interface that workers
 * use (kernels/backend.h).
 */
#include <stdlib.h>
#include "common/clock.h"
#include "common/mem.h"
#include "kernels/ladder/ladder.h"

static void production_close(void *self)
{
	struct backend *b = self;
	backend_free(&b);
}

static int production_open(void **self, const struct ladder_task *t, struct err *e)
{
	struct backend_options o = {.device = "cuda", .threads = 1, .max_batch = t->max_batch};
	struct backend *b = NULL;
	*self = NULL;
	int rc = backend_new(&b, t->model, &o, e);
	if (!rc)
		rc = backend_use(b, t->set, e);
	if (rc)
		backend_free(&b);
	*self = b;
	return rc;
}

static int production_step(void *self, const struct ladder_batch *b, float *grad, double *loss,
	struct profile *p, struct err *e)
{
	double begin = clock_seconds();
	int rc = backend_gradient(self, b->params, b->index, b->n, 0, grad, loss);
	profile_add(p, "all", PHASE_HOST, (clock_seconds() - begin) * 1e3);
	return rc ? err_set(e, rc, "backend_gradient: %s", err_text(rc)) : PS_OK;
}

/* One step alone: its sum of gradients is its gradient. */
static int local_step(void *self, const struct ladder_batch *b, float *grad, double *loss,
	struct profile *p, struct err *e)
{
	double begin = clock_seconds();
	int rc = backend_local_start(self, b->params);
	if (!rc)
		rc = backend_local_steps(self, b->index, b->n, 1, 0, 0);
	if (!rc)
		rc = backend_local_finish(self, NULL, grad);
	if (!rc)
		rc = backend_local_wait(self, loss);
	profile_add(p, "all", PHASE_HOST, (clock_seconds() - begin) * 1e3);
	return rc ? err_set(e, rc, "backend_local_steps: %s", err_text(rc)) : PS_OK;
}

static int local_train(void *self, float *params, const uint32_t *index, size_t batch, size_t steps,
	float rate, struct err *e)
{
	int rc = backend_local_start(self, params);
	if (!rc)
		rc = backend_local_steps(self, index, batch, steps, rate, 0);
	if (!rc)
		rc = backend_local_finish(self, params, NULL);
	if (!rc)
		rc = backend_local_wait(self, NULL);
	return rc ? err_set(e, rc, "backend_local_steps: %s", err_text(rc)) : PS_OK;
}

const struct rung rung_production = {
	.name = "production",
	.changes = "The kernels that workers use, through kernels/backend.h.",
	.predicts = "6.4 GFLOP at 60 TFLOP/s are 0.11 ms; 0.13 ms of kernels is the aim (8 ms for "
		    "60,000 images), 0.08 ms of copies stay: 0.21 ms",
	.needs_gpu = 1,
	.open = production_open,
	.step = production_step,
	.close = production_close,
};

const struct rung rung_local = {
	.name = "local",
	.changes = "The same, with the weights kept on the device over an epoch of steps.",
	.predicts = "No copies: 0.13 ms",
	.needs_gpu = 1,
	.open = production_open,
	.step = local_step,
	.train = local_train,
	.close = production_close,
};
