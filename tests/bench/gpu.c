/*
 * gpu.c - measures epochs of a network on one device, without a server. The program prints CSV, one
 * line for each precision: net,batch,precision,device,local_ms,local_images_per_s,gradient_ms,
 * gradient_images_per_s,loss
 *
 * `local` is one call of backend_local_steps for the whole epoch: forward, backward and SGD update,
 * with the weights on the device. `gradient` is one call of backend_gradient for each batch, as in
 * a worker: the device copies weights from the host and gradients to the host, and makes no update.
 * Times are milliseconds of the median epoch. An epoch leaves out the images that do not fill a
 * batch. `loss` is the mean loss over the local epochs; it shows that the network learns.
 *
 *   gpu [NET [BATCH [PRECISIONS [EPOCHS [DEVICE]]]]]     seed:32 1000 fp32,tf32,bf16 5 cuda
 *
 * Data: $CNN_DATA or the default data directories.
 */
#include <string.h>
#include "tests/support/bench_device.h"

#define RATE       0.01f
#define MAX_EPOCHS 1000

static const char *const precision_names[] = {
	[KX_FP32] = "fp32", [KX_TF32] = "tf32", [KX_BF16] = "bf16", [KX_TF32X3] = "tf32x3"};

struct race {
	struct bench b;
	/* epochs: the number of epochs to measure; batches: the number of batches of an epoch */
	size_t epochs, batches;
	double epoch_ms[MAX_EPOCHS];
	double local_ms, gradient_ms, loss;
};

/* Measure r->epochs epochs, and write the milliseconds of the median epoch to *ms. An additional
 * first epoch warms up the device and is not measured. */
static int median_ms(struct race *r, int (*epoch)(struct race *), double *ms)
{
	for (size_t i = 0; i <= r->epochs; i++) {
		double from = clock_seconds();
		int rc = epoch(r);

		if (rc)
			return rc;
		if (i > 0)
			r->epoch_ms[i - 1] = (clock_seconds() - from) * 1e3;
	}
	*ms = bench_median(r->epoch_ms, r->epochs);
	return PS_OK;
}

static int local_epoch(struct race *r)
{
	struct backend *b = r->b.backend;
	int rc = backend_local_steps(b, r->b.order, r->b.options.max_batch, r->batches, RATE, 1);

	return rc ? rc : backend_local_wait(b, &r->loss);
}

static int gradient_epoch(struct race *r)
{
	const struct bench *b = &r->b;
	size_t batch = b->options.max_batch;
	double loss;
	int rc = PS_OK;

	for (size_t i = 0; i < r->batches && !rc; i++)
		rc = backend_gradient(
			b->backend, b->params, b->order + i * batch, batch, 1, b->grad, &loss);
	return rc;
}

static int measure_race(struct race *r)
{
	struct bench *b = &r->b;
	int rc = backend_local_start(b->backend, b->params);

	if (!rc)
		rc = median_ms(r, local_epoch, &r->local_ms);
	if (!rc)
		rc = backend_local_finish(b->backend, b->params, NULL);
	if (!rc)
		rc = backend_local_wait(b->backend, NULL);
	return rc ? rc : median_ms(r, gradient_epoch, &r->gradient_ms);
}

/* Returns 1 if `name` is one of the names in `list`, which commas separate. */
static int listed(const char *list, const char *name)
{
	const size_t n = strlen(name);

	for (; list; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL)
		if (strncmp(list, name, n) == 0 && (list[n] == ',' || list[n] == '\0'))
			return 1;
	return 0;
}

static int run_race(struct race *r, const char *precisions, struct err *e)
{
	struct bench *b = &r->b;
	int rc = bench_load(b, e);

	if (!rc && (r->epochs == 0 || r->epochs > MAX_EPOCHS))
		rc = err_set(e, PS_EUSAGE, "epochs: 1 to %d", MAX_EPOCHS);
	for (size_t p = 0; p < 4 && !rc; p++) {
		if (!listed(precisions, precision_names[p]))
			continue;
		b->options.precision = (int)p;
		if ((rc = bench_open(b, e)))
			return rc;
		r->batches = data_train(&b->data).n / b->options.max_batch;
		if ((rc = measure_race(r)))
			return err_set(e, rc, "%s: %s %s", precision_names[p], err_text(rc),
				backend_why(b->backend));
		double images = (double)(r->batches * b->options.max_batch) * 1e3;
		printf("%s,%zu,%s,%s,%.3f,%.0f,%.3f,%.0f,%.4f\n", b->net, b->options.max_batch,
			precision_names[p], backend_name(b->backend), r->local_ms,
			images / r->local_ms, r->gradient_ms, images / r->gradient_ms, r->loss);
	}
	return rc;
}

int main(int argc, char **argv)
{
	static struct race r; /* static, because the struct is too large for the stack */
	struct err e = {0};

	r.b.net = bench_argument(argc, argv, 1, "seed:32");
	r.b.options = (struct backend_options){.device = bench_argument(argc, argv, 5, "cuda"),
		.threads = 1,
		.rounds = 1,
		.max_batch = strtoul(bench_argument(argc, argv, 2, "1000"), NULL, 10)};
	r.epochs = strtoul(bench_argument(argc, argv, 4, "5"), NULL, 10);
	printf("net,batch,precision,device,local_ms,local_images_per_s,gradient_ms,"
	       "gradient_images_per_s,loss\n");
	int rc = run_race(&r, bench_argument(argc, argv, 3, "fp32,tf32,bf16"), &e);
	return bench_end(&r.b, "gpu", rc, &e);
}
