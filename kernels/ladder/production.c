/*
 * production.c - the last rungs: the kernels of workers, called through the interface of workers
 * (kernels/backend.h).
 */
#include <stdlib.h>
#include "common/clock.h"
#include "common/mem.h"
#include "kernels/cuda/fused/seed.h"
#include "kernels/ladder/ladder.h"

struct production {
	struct backend *backend;
	size_t n_params;
	struct ladder_pins pins; /* as in a worker, weights and gradients are pinned */
};

static void production_close(void *self)
{
	struct production *r = self;

	ladder_unpin(&r->pins);
	backend_free(&r->backend);
	free(r);
}

static int open_precision(
	void **self, const struct ladder_task *t, enum kx_precision precision, struct err *e)
{
	struct backend_options o = {.device = "cuda",
		.threads = 1,
		.max_batch = t->max_batch,
		.precision = (int)precision};
	struct production *r = mem_try(1, sizeof(*r));

	*self = NULL;
	if (!r)
		return err_set(e, PS_ENOMEM, "no memory for a rung");
	r->n_params = t->model->n_params;
	int rc = backend_new(&r->backend, t->model, &o, e);
	if (!rc)
		rc = backend_use(r->backend, t->set, e);
	if (rc)
		production_close(r);
	else
		*self = r;
	return rc;
}

static int production_open(void **self, const struct ladder_task *t, struct err *e)
{
	return open_precision(self, t, KX_FP32, e);
}

static int bf16_open(void **self, const struct ladder_task *t, struct err *e)
{
	return open_precision(self, t, KX_BF16, e);
}

static int production_step(void *self, const struct ladder_batch *b, float *grad, double *loss,
	struct profile *p, struct err *e)
{
	struct production *r = self;
	int rc = ladder_pin(&r->pins, b->params, grad, r->n_params, e);

	if (rc)
		return rc;
	double begin = clock_seconds();
	rc = backend_gradient(r->backend, b->params, b->index, b->n, 0, grad, loss);
	profile_add(p, "all", PHASE_HOST, (clock_seconds() - begin) * 1e3);
	return rc ? err_set(e, rc, "backend_gradient: %s", err_text(rc)) : PS_OK;
}

/* Runs a round of one step. The sum of gradients of such a round is the gradient of the step. */
static int ladder_local_step(void *self, const struct ladder_batch *b, float *grad, double *loss,
	struct profile *p, struct err *e)
{
	struct production *r = self;
	int rc = ladder_pin(&r->pins, b->params, grad, r->n_params, e);

	if (rc)
		return rc;
	double begin = clock_seconds();
	rc = backend_local_start(r->backend, b->params);
	if (!rc)
		rc = backend_local_steps(r->backend, b->index, b->n, 1, 0, 0);
	if (!rc)
		rc = backend_local_finish(r->backend, NULL, grad);
	if (!rc)
		rc = backend_local_wait(r->backend, loss);
	profile_add(p, "all", PHASE_HOST, (clock_seconds() - begin) * 1e3);
	return rc ? err_set(e, rc, "backend_local_steps: %s", err_text(rc)) : PS_OK;
}

static int local_train(void *self, float *params, const uint32_t *index, size_t batch, size_t steps,
	float rate, struct err *e)
{
	struct production *r = self;
	int rc = backend_local_start(r->backend, params);

	if (!rc)
		rc = backend_local_steps(r->backend, index, batch, steps, rate, 0);
	if (!rc)
		rc = backend_local_finish(r->backend, params, NULL);
	if (!rc)
		rc = backend_local_wait(r->backend, NULL);
	return rc ? err_set(e, rc, "backend_local_steps: %s", err_text(rc)) : PS_OK;
}

const struct rung rung_production = {
	.name = "production",
	.changes = "The kernels that workers use, through kernels/backend.h. The forward kernel "
		   "stores two bits for each pooled value instead of a byte. In the backward "
		   "kernel a thread handles one filter at two positions, and reads the pixels "
		   "under the argmax from shared memory.",
	.predicts =
		"6.4 GFLOP at 60 TFLOP/s take 0.11 ms. 0.13 ms of kernels are expected (8 ms for "
		"60,000 images), and 0.08 ms of copies remain: 0.21 ms",
	.needs_gpu = 1,
	.open = production_open,
	.step = production_step,
	.close = production_close,
};

const struct rung rung_local = {
	.name = "local",
	.changes = "The same kernels, with the weights on the device for an epoch of steps.",
	.predicts = "No copies: 0.13 ms",
	.needs_gpu = 1,
	.open = production_open,
	.step = ladder_local_step,
	.train = local_train,
	.close = production_close,
};

/* The error of bf16 is about 1e-3. With many filters, the persistent kernel also runs batches
 * between these bounds. */
static const struct rung_bounds large_batches = {
	.min_batch = SEED_PERSISTENT_IMAGES * SEED_PERSISTENT_PASSES + 1,
	.max_batch = SIZE_MAX,
	.tolerance = 2e-2};
static const struct rung_bounds small_batches = {
	.min_batch = 1, .max_batch = SEED_PERSISTENT_IMAGES, .tolerance = 2e-2};

const struct rung rung_bf16 = {
	.name = "bf16",
	.changes = "The same in half precision, for more than 416 images. The products of the "
		   "backward pass run on tensor cores, too.",
	.predicts = "None: these kernels were measured before they became a rung",
	.needs_gpu = 1,
	.bounds = &large_batches,
	.open = bf16_open,
	.step = ladder_local_step,
	.train = local_train,
	.close = production_close,
};

const struct rung rung_persistent = {
	.name = "persistent",
	.changes =
		"Half precision for up to 104 images. One launch runs 60 steps. Each block keeps "
		"its weights on its multiprocessor and exchanges only logits and the gradient of "
		"the convolution with the others.",
	.predicts = "None: this kernel was measured before it became a rung",
	.needs_gpu = 1,
	.bounds = &small_batches,
	.open = bf16_open,
	.step = ladder_local_step,
	.train = local_train,
	.close = production_close,
};
