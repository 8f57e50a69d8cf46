/* cores.c - the CPU kernels of workers, for the curve of the time against the number of threads. */
#include <stdlib.h>
#include "common/clock.h"
#include "kernels/ladder/ladder.h"

static void cores_close(void *self)
{
	struct backend *b = self;

	backend_free(&b);
}

static int cores_open(void **self, const struct ladder_task *t, struct err *e)
{
	struct backend_options o = {
		.device = "cpu", .threads = t->threads, .max_batch = t->max_batch};
	struct backend *b = NULL;
	int rc = backend_new(&b, t->model, &o, e);

	if (!rc)
		rc = backend_use(b, t->set, e);
	if (rc)
		backend_free(&b);
	*self = b;
	return rc;
}

static int cores_step(void *self, const struct ladder_batch *b, float *grad, double *loss,
	struct profile *p, struct err *e)
{
	double begin = clock_seconds();
	int rc = backend_gradient(self, b->params, b->index, b->n, 0, grad, loss);

	profile_add(p, "all", PHASE_HOST, (clock_seconds() - begin) * 1e3);
	return rc ? err_set(e, rc, "backend_gradient: %s", err_text(rc)) : PS_OK;
}

const struct rung ladder_cores = {
	.name = "cpu",
	.changes = "The CPU kernels of workers, on several threads.",
	.predicts = "-",
	.open = cores_open,
	.step = cores_step,
	.close = cores_close,
};
