/*
 * backend.c - how fast a device computes gradients (forward and backward, no update) of real
 * batches. Prints CSV: net,batch,threads,isa,ms_per_batch,images_per_s (of the median batch) and
 * cpu_ms_per_batch: processor time of all threads, which other programs disturb less.
 *
 *   backend [NET [BATCH [THREADS [SECONDS [DEVICE]]]]]     seed:32 100 2 1 cpu
 *
 * Data: $CNN_DATA or the usual places. CNN_KX_ISA=baseline|avx2|avx512 picks an instruction set.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/rng.h"
#include "worker/data.h"

#define WARM_UP   20
#define MAX_STEPS 100000

struct bench {
	struct model model;
	struct data data;
	struct backend *backend;
	struct backend_options options;
	const char *net;
	double seconds;
	float *params, *grad;
	uint32_t *order;
	double *step_ms;
};

static const char *argument(int argc, char **argv, int i, const char *otherwise)
{
	return argc > i ? argv[i] : otherwise;
}

static int prepare(struct bench *b, struct err *e)
{
	int rc = data_load(&b->data, getenv("CNN_DATA"), e);
	if (rc)
		return rc;
	struct kx_images images = data_train(&b->data);
	struct shape input = {1, b->data.id.rows, b->data.id.cols};
	rc = model_parse(&b->model, b->net, input, e);
	if (!rc)
		rc = backend_new(&b->backend, &b->model, &b->options, e);
	if (!rc)
		rc = backend_use(b->backend, &images, e);
	if (rc)
		return rc;
	if (b->options.max_batch > images.n)
		return err_set(e, PS_EUSAGE, "there are %zu images", images.n);
	b->params = mem_must(b->model.n_params, sizeof(float), "bench");
	b->grad = mem_must(b->model.n_params, sizeof(float), "bench");
	b->order = mem_must(images.n, sizeof *b->order, "bench");
	b->step_ms = mem_must(MAX_STEPS, sizeof *b->step_ms, "bench");
	model_init(&b->model, 1, b->params);
	rng_order(1, 0, b->order, images.n);
	return PS_OK;
}

static int by_size(const void *a, const void *b)
{
	const double *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

static double processor_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Milliseconds of the median batch, and processor time of the mean one. */
static int measure(struct bench *b, double *median_ms, double *cpu_ms)
{
	size_t batch = b->options.max_batch, batches = data_train(&b->data).n / batch, n = 0;
	double loss, begin = clock_seconds(), cpu_begin = 0;
	for (size_t i = 0; n < MAX_STEPS; i++) {
		double from = clock_seconds();
		int rc = backend_gradient(b->backend, b->params, b->order + i % batches * batch,
			batch, i, b->grad, &loss);
		double to = clock_seconds();
		if (rc)
			return rc;
		if (i >= WARM_UP)
			b->step_ms[n++] = (to - from) * 1e3;
		else
			cpu_begin = processor_ms();
		if (n && to - begin > b->seconds)
			break;
	}
	*cpu_ms = (processor_ms() - cpu_begin) / (double)n;
	qsort(b->step_ms, n, sizeof *b->step_ms, by_size);
	*median_ms = b->step_ms[n / 2];
	return PS_OK;
}

/* "cpu 2 threads avx512" -> "avx512"; other devices have no such word. */
static const char *isa(const struct bench *b)
{
	const char *last = strrchr(backend_name(b->backend), ' ');
	return last ? last + 1 : "-";
}

static int run(struct bench *b, struct err *e)
{
	double ms, cpu_ms;
	int rc = prepare(b, e);
	if (rc)
		return rc;
	rc = measure(b, &ms, &cpu_ms);
	if (rc)
		return err_set(e, rc, "gradient: %s", err_text(rc));
	printf("net,batch,threads,isa,ms_per_batch,images_per_s,cpu_ms_per_batch\n"
	       "%s,%zu,%d,%s,%.4f,%.0f,%.4f\n",
		b->net, b->options.max_batch, b->options.threads, isa(b), ms,
		(double)b->options.max_batch / ms * 1e3, cpu_ms);
	return PS_OK;
}

int main(int argc, char **argv)
{
	struct bench b = {.net = argument(argc, argv, 1, "seed:32"),
		.seconds = strtod(argument(argc, argv, 4, "1"), NULL),
		.options = {.device = argument(argc, argv, 5, "cpu"),
			.threads = (int)strtol(argument(argc, argv, 3, "2"), NULL, 10),
			.max_batch = strtoul(argument(argc, argv, 2, "100"), NULL, 10)}};
	struct err e = {0};
	int rc = run(&b, &e);
	if (rc)
		fprintf(stderr, "backend: %s\n", e.text);
	backend_free(&b.backend);
	data_release(&b.data);
	free(b.params);
	free(b.grad);
	free(b.order);
	free(b.step_ms);
	return err_exit_code(rc);
}
