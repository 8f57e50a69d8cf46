/*
 * backend.c - measures how fast a device computes gradients (forward and backward, no update) of
 * batches of real images. The program prints CSV:
 * net,batch,threads,isa,ms_per_batch,images_per_s,cpu_ms_per_batch. ms_per_batch and images_per_s
 * are those of the median batch. cpu_ms_per_batch is the CPU time of all threads, which depends
 * less on other running programs.
 *
 *   backend [NET [BATCH [THREADS [SECONDS [DEVICE]]]]]     seed:32 100 2 1 cpu
 *
 * Data: $CNN_DATA or the default data directories. CNN_KX_ISA=baseline|avx2|avx512 selects an
 * instruction set.
 */
#include <string.h>
#include <time.h>
#include "tests/support/bench_device.h"

#define WARM_UP   20
#define MAX_STEPS 100000

static double step_ms[MAX_STEPS];

static double processor_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Measure batches for `seconds`. Writes the milliseconds of the median batch, and the mean CPU time
 * of a batch in milliseconds. */
static int measure_backend(struct bench *b, double seconds, double *median_ms, double *cpu_ms)
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
			step_ms[n++] = (to - from) * 1e3;
		else
			cpu_begin = processor_ms();
		if (n && to - begin > seconds)
			break;
	}
	*cpu_ms = (processor_ms() - cpu_begin) / (double)n;
	*median_ms = bench_median(step_ms, n);
	return PS_OK;
}

/* Returns the instruction set in the name of a device: "avx512" for "cpu 2 threads avx512". Only
 * the names of "cpu" devices have an instruction set. */
static const char *isa(const struct bench *b)
{
	const char *last = strrchr(backend_name(b->backend), ' ');

	return last ? last + 1 : "-";
}

static int run_backend(struct bench *b, double seconds, struct err *e)
{
	double ms, cpu_ms;
	int rc = bench_load(b, e);

	if (!rc)
		rc = bench_open(b, e);
	if (rc)
		return rc;
	rc = measure_backend(b, seconds, &ms, &cpu_ms);
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
	struct bench b = {.net = bench_argument(argc, argv, 1, "seed:32"),
		.options = {.device = bench_argument(argc, argv, 5, "cpu"),
			.threads = (int)strtol(bench_argument(argc, argv, 3, "2"), NULL, 10),
			.max_batch = strtoul(bench_argument(argc, argv, 2, "100"), NULL, 10)}};
	struct err e = {0};
	int rc = run_backend(&b, strtod(bench_argument(argc, argv, 4, "1"), NULL), &e);

	return bench_end(&b, "backend", rc, &e);
}
