/*
 * gpu.c - training epochs of a net on one device, without a server. Prints CSV, one line per
 * precision: net,batch,precision,device,local_ms,local_images_per_s,gradient_ms,
 * gradient_images_per_s,loss
 *
 * local: backend_local_steps, the whole epoch in one call: forward, backward and SGD update with
 * the weights on the device. gradient: backend_gradient batch by batch, weights from and gradients
 * to the host, as a worker does it; no update. Milliseconds of the median epoch (whole batches
 * only); loss: mean over the last local epoch, a sign that it learns.
 *
 *   gpu [NET [BATCH [PRECISIONS [EPOCHS [DEVICE]]]]]     seed:32 1000 fp32,tf32,bf16 5 cuda
 *
 * Data: $CNN_DATA or the usual places.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/rng.h"
#include "worker/data.h"

#define RATE       0.01f
#define MAX_EPOCHS 1000

static const char *const precision_names[] = {
	[KX_FP32] = "fp32", [KX_TF32] = "tf32", [KX_BF16] = "bf16"};

struct bench {
	struct model model;
	struct data data;
	struct backend *backend;
	struct backend_options options;
	const char *net;
	size_t epochs, batches; /* batches of an epoch */
	float *params, *grad;
	uint32_t *order;
	double *epoch_ms;
};

static int load(struct bench *b, struct err *e)
{
	int rc = data_load(&b->data, getenv("CNN_DATA"), e);
	if (rc)
		return rc;
	struct kx_images images = data_train(&b->data);
	struct shape input = {1, b->data.id.rows, b->data.id.cols};
	rc = model_parse(&b->model, b->net, input, e);
	if (rc)
		return rc;
	if (b->options.max_batch == 0 || b->options.max_batch > images.n || b->epochs == 0 ||
		b->epochs > MAX_EPOCHS)
		return err_set(
			e, PS_EUSAGE, "batch: 1 to %zu; epochs: 1 to %d", images.n, MAX_EPOCHS);
	b->batches = images.n / b->options.max_batch;
	b->params = mem_must(b->model.n_params, sizeof(float), "bench");
	b->grad = mem_must(b->model.n_params, sizeof(float), "bench");
	b->order = mem_must(images.n, sizeof *b->order, "bench");
	b->epoch_ms = mem_must(b->epochs, sizeof *b->epoch_ms, "bench");
	rng_order(1, 0, b->order, images.n);
	return PS_OK;
}

static int open_in(struct bench *b, enum kx_precision precision, struct err *e)
{
	struct kx_images images = data_train(&b->data);
	b->options.precision = (int)precision;
	backend_free(&b->backend);
	int rc = backend_new(&b->backend, &b->model, &b->options, e);
	if (!rc)
		rc = backend_use(b->backend, &images, e);
	model_init(&b->model, 1, b->params);
	return rc;
}

static int by_size(const void *a, const void *b)
{
	const double *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

/* The median epoch; the first one warms up and does not count. */
static int median_ms(struct bench *b, int (*epoch)(struct bench *), double *ms)
{
	for (size_t i = 0; i <= b->epochs; i++) {
		double from = clock_seconds();
		int rc = epoch(b);
		if (rc)
			return rc;
		if (i > 0)
			b->epoch_ms[i - 1] = (clock_seconds() - from) * 1e3;
	}
	qsort(b->epoch_ms, b->epochs, sizeof *b->epoch_ms, by_size);
	*ms = b->epoch_ms[b->epochs / 2];
	return PS_OK;
}

static int local_epoch(struct bench *b)
{
	return backend_local_steps(
		b->backend, b->order, b->options.max_batch, b->batches, RATE, 1, NULL);
}

static int gradient_epoch(struct bench *b)
{
	size_t batch = b->options.max_batch;
	double loss;
	int rc = PS_OK;
	for (size_t i = 0; i < b->batches && !rc; i++)
		rc = backend_gradient(
			b->backend, b->params, b->order + i * batch, batch, 1, b->grad, &loss);
	return rc;
}

static int measure(struct bench *b, double *local_ms, double *gradient_ms, double *loss)
{
	int rc = backend_local_start(b->backend, b->params);
	if (!rc)
		rc = median_ms(b, local_epoch, local_ms);
	if (!rc)
		rc = backend_local_steps(
			b->backend, b->order, b->options.max_batch, b->batches, RATE, 1, loss);
	if (!rc)
		rc = backend_local_finish(b->backend, b->params, NULL);
	return rc ? rc : median_ms(b, gradient_epoch, gradient_ms);
}

static int run(struct bench *b, const char *precisions, struct err *e)
{
	int rc = load(b, e);
	for (size_t p = 0; p < 3 && !rc; p++) {
		double local, gradient, loss;
		if (!strstr(precisions, precision_names[p]))
			continue;
		if ((rc = open_in(b, (enum kx_precision)p, e)))
			return rc;
		if ((rc = measure(b, &local, &gradient, &loss)))
			return err_set(e, rc, "%s: %s", precision_names[p], err_text(rc));
		double images = (double)(b->batches * b->options.max_batch) * 1e3;
		printf("%s,%zu,%s,%s,%.3f,%.0f,%.3f,%.0f,%.4f\n", b->net, b->options.max_batch,
			precision_names[p], backend_name(b->backend), local, images / local,
			gradient, images / gradient, loss);
	}
	return rc;
}

static const char *argument(int argc, char **argv, int i, const char *otherwise)
{
	return argc > i ? argv[i] : otherwise;
}

int main(int argc, char **argv)
{
	struct bench b = {.net = argument(argc, argv, 1, "seed:32"),
		.epochs = strtoul(argument(argc, argv, 4, "5"), NULL, 10),
		.options = {.device = argument(argc, argv, 5, "cuda"),
			.threads = 1,
			.max_batch = strtoul(argument(argc, argv, 2, "1000"), NULL, 10)}};
	struct err e = {0};
	printf("net,batch,precision,device,local_ms,local_images_per_s,gradient_ms,"
	       "gradient_images_per_s,loss\n");
	int rc = run(&b, argument(argc, argv, 3, "fp32,tf32,bf16"), &e);
	if (rc)
		fprintf(stderr, "gpu: %s\n", e.text);
	backend_free(&b.backend);
	data_release(&b.data);
	free(b.params);
	free(b.grad);
	free(b.order);
	free(b.epoch_ms);
	return err_exit_code(rc);
}
