/*
 * bench.h - what the programs that time a device share: a net with its weights, the training images
 * in a mixed order, a device, and memory that the device copies quickly from and to.
 */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H
#include <stdio.h>
#include <stdlib.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/rng.h"
#include "worker/data/dataset.h"

struct bench {
	const char *net;
	struct backend_options options;
	struct model model;
	struct data data;
	struct backend *backend;
	const struct backend_memory *memory;
	float *params, *grad;
	uint32_t *order;
};

/* argv[i], or `otherwise` where there are not so many. */
static inline const char *argument(int argc, char **argv, int i, const char *otherwise)
{
	return argc > i ? argv[i] : otherwise;
}

static inline int bench_load(struct bench *b, struct err *e)
{
	int rc = data_load(&b->data, getenv("CNN_DATA"), e);
	if (rc)
		return rc;
	struct shape input = {1, b->data.id.rows, b->data.id.cols};
	size_t n = data_train(&b->data).n;
	if ((rc = model_parse(&b->model, b->net, input, e)))
		return rc;
	if (b->options.max_batch == 0 || b->options.max_batch > n)
		return err_set(e, PS_EUSAGE, "batch: 1 to %zu", n);
	b->order = mem_must(n, sizeof(*b->order), "bench");
	rng_order(1, 0, b->order, n);
	return PS_OK;
}

static inline void bench_shut(struct bench *b)
{
	if (b->params)
		b->memory->give(b->params);
	if (b->grad)
		b->memory->give(b->grad);
	b->params = b->grad = NULL;
	backend_free(&b->backend);
}

/* The device of b->options, with the images; fresh weights. */
static inline int bench_open(struct bench *b, struct err *e)
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
	b->params = b->memory->take(bytes);
	b->grad = b->memory->take(bytes);
	if (!b->params || !b->grad)
		return err_set(e, PS_ENOMEM, "no memory for %zu bytes of parameters", bytes);
	model_init(&b->model, 1, b->params);
	return PS_OK;
}

/* Says what went wrong, if something did; the exit code. */
static inline int bench_end(struct bench *b, const char *program, int rc, const struct err *e)
{
	if (rc)
		fprintf(stderr, "%s: %s\n", program, e->text);
	bench_shut(b);
	data_release(&b->data);
	free(b->order);
	return err_exit_code(rc);
}

static inline int bench_by_size(const void *a, const void *b)
{
	const double *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

static inline double median(double *value, size_t n)
{
	qsort(value, n, sizeof(*value), bench_by_size);
	return value[n / 2];
}

#endif
