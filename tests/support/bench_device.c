/* bench_device.c - see bench_device.h. */
#include "tests/support/bench_device.h"

const char *bench_argument(int argc, char **argv, int i, const char *otherwise)
{
	return argc > i ? argv[i] : otherwise;
}

int bench_load(struct bench *b, struct err *e)
{
	int rc = data_load(&b->data, getenv("CNN_DATA"), e);

	if (rc)
		return rc;
	size_t n = data_train(&b->data).n;
	if ((rc = model_parse(&b->model, b->net, b->data.shape, e)))
		return rc;
	if (b->options.max_batch == 0 || b->options.max_batch > n)
		return err_set(e, PS_EUSAGE, "batch: 1 to %zu", n);
	b->order = mem_must(n, sizeof(*b->order), "bench");
	rng_order(1, 0, b->order, n);
	return PS_OK;
}

static void bench_shut(struct bench *b)
{
	if (b->params)
		b->memory->release(b->params);
	if (b->grad)
		b->memory->release(b->grad);
	b->params = b->grad = NULL;
	backend_free(&b->backend);
}

int bench_open(struct bench *b, struct err *e)
{
	struct kx_images images = data_train(&b->data);
	size_t bytes = b->model.n_params * sizeof(float);

	bench_shut(b);
	int rc = backend_new(&b->backend, &b->model, &b->options, e);
	if (!rc)
		rc = backend_use(b->backend, &images, e);
	if (rc)
		return rc;
	b->memory = backend_memory(b->backend);
	b->params = b->memory->allocate(bytes);
	b->grad = b->memory->allocate(bytes);
	if (!b->params || !b->grad)
		return err_set(e, PS_ENOMEM, "no memory for %zu bytes of parameters", bytes);
	model_init(&b->model, 1, b->params);
	return PS_OK;
}

int bench_end(struct bench *b, const char *program, int rc, const struct err *e)
{
	if (rc)
		fprintf(stderr, "%s: %s\n", program, e->text);
	bench_shut(b);
	data_release(&b->data);
	free(b->order);
	return err_exit_code(rc);
}

static int bench_by_size(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

double bench_median(double *value, size_t n)
{
	qsort(value, n, sizeof(*value), bench_by_size);
	return value[n / 2];
}
