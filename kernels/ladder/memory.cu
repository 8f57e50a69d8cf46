/*
 * memory.cu - measures the cost of a single copy, launch and load. See ladder_memory.
 *
 * The rows have the columns what,where,bytes,us,gb_per_s:
 *
 * - A copy row has the median time from the call to completion, with pageable or pinned memory.
 * - A launch row has the time from the launch of an empty kernel to its completion.
 * - A load row has the latency of a load that depends on the load before. The loads follow a
 *   ring that links all cache lines of an area of `bytes` bytes in a random order.
 */
#include <stdio.h>
#include <stdlib.h>
#include "kernels/ladder/gpu.cuh"
extern "C" {
#include "common/rng.h"
}

namespace
{

#define REPEATS     31
#define LARGEST     ((size_t)64 << 20)
#define LINE        128
#define CHAIN_STEPS 20000

__global__ void empty_kernel(void)
{
}

/* Follows the chain for `steps` links, from the link where the last walk ended. */
__global__ void chase_kernel(const uint32_t *chain, size_t steps, uint32_t *last)
{
	uint32_t at = *last;

	for (size_t i = 0; i < steps; i++)
		at = chain[at];
	*last = at;
}

int compare_times(const void *a, const void *b)
{
	const double *x = (const double *)a, *y = (const double *)b;

	return (*x > *y) - (*x < *y);
}

double median_us(double *values, size_t n)
{
	qsort(values, n, sizeof(*values), compare_times);
	return values[n / 2];
}

struct copy {
	const char *what, *where;
	void *to;
	const void *from;
};

int measure_copy(const struct copy *c, size_t bytes, struct err *e)
{
	double us[REPEATS];

	for (int i = 0; i < REPEATS; i++) {
		double begin = clock_seconds();

		TRY(cudaMemcpy(c->to, c->from, bytes, cudaMemcpyDefault), e);
		us[i] = (clock_seconds() - begin) * 1e6;
	}
	double middle = median_us(us, REPEATS);
	printf("%s,%s,%zu,%.3f,%.3f\n", c->what, c->where, bytes, middle,
		(double)bytes / middle * 1e-3);
	return PS_OK;
}

int measure_copies(struct gpu *g, struct err *e)
{
	char *device, *pinned, *pageable = (char *)mem_try(LARGEST, 1);

	if (!pageable)
		return err_set(e, PS_ENOMEM, "no memory for copies");
	int rc = GPU_ALLOC(g, device, LARGEST, GPU_DEVICE, e);
	if (!rc)
		rc = GPU_ALLOC(g, pinned, LARGEST, GPU_PINNED, e);
	for (size_t bytes = 4; !rc && bytes <= LARGEST; bytes *= 4) {
		const struct copy copies[] = {
			{"host to device", "pageable", device, pageable},
			{"host to device", "pinned", device, pinned},
			{"device to host", "pageable", pageable, device},
			{"device to host", "pinned", pinned, device},
		};

		for (size_t i = 0; !rc && i < sizeof(copies) / sizeof(copies[0]); i++)
			rc = measure_copy(&copies[i], bytes, e);
	}
	free(pageable);
	return rc;
}

int measure_launch(struct gpu *g, struct err *e)
{
	double us[REPEATS];

	for (int i = 0; i < REPEATS; i++) {
		double begin = clock_seconds();

		empty_kernel<<<1, 1, 0, g->stream>>>();
		LAUNCHED(e);
		TRY(cudaStreamSynchronize(g->stream), e);
		us[i] = (clock_seconds() - begin) * 1e6;
	}
	printf("launch,empty kernel,0,%.3f,0\n", median_us(us, REPEATS));
	return PS_OK;
}

/* Makes a ring through all cache lines in a random order, with one link per line. */
uint32_t *make_chain(size_t bytes)
{
	size_t lines = bytes / LINE, step = LINE / sizeof(uint32_t);
	uint32_t *chain = (uint32_t *)mem_try(bytes, 1);
	uint32_t *order = (uint32_t *)mem_try(lines, sizeof(*order));

	if (chain && order) {
		rng_order(1, 0, order, lines);
		for (size_t i = 0; i < lines; i++)
			chain[order[i] * step] = (uint32_t)(order[(i + 1) % lines] * step);
	}
	free(order);
	return chain;
}

int time_chase(struct gpu *g, const uint32_t *chain, uint32_t *last, size_t steps, double *us,
	struct err *e)
{
	float ms;

	TRY(cudaEventRecord(g->event[0], g->stream), e);
	chase_kernel<<<1, 1, 0, g->stream>>>(chain, steps, last);
	LAUNCHED(e);
	TRY(cudaEventRecord(g->event[1], g->stream), e);
	TRY(cudaStreamSynchronize(g->stream), e);
	TRY(cudaEventElapsedTime(&ms, g->event[0], g->event[1]), e);
	*us = (double)ms * 1e3;
	return PS_OK;
}

/* Times the second walk through the chain. If the chain is shorter than a walk, the first walk has
 * loaded all of it into the caches. If the chain is longer than a walk, the second walk visits
 * links that the caches do not hold. */
int measure_load(struct gpu *g, const char *where, size_t bytes, uint32_t *device, struct err *e)
{
	uint32_t *chain = make_chain(bytes);
	double us;

	if (!chain)
		return err_set(e, PS_ENOMEM, "no memory for a chain of %zu bytes", bytes);
	cudaError_t status = cudaMemcpy(device, chain, bytes, cudaMemcpyHostToDevice);
	free(chain);
	TRY(status, e);
	uint32_t *last = device + bytes / sizeof(*device);
	TRY(cudaMemset(last, 0, sizeof(*last)), e);
	int rc = time_chase(g, device, last, CHAIN_STEPS, &us, e);
	if (!rc)
		rc = time_chase(g, device, last, CHAIN_STEPS, &us, e);
	if (!rc)
		printf("load,%s,%zu,%.4f,0\n", where, bytes, us / CHAIN_STEPS);
	return rc;
}

int measure_loads(struct gpu *g, struct err *e)
{
	const size_t bytes = (size_t)512 << 20;
	uint32_t *device;
	int rc = GPU_ALLOC(g, device, bytes / sizeof(*device) + 1, GPU_DEVICE, e);

	if (!rc)
		rc = measure_load(g, "L1 cache", (size_t)64 << 10, device, e);
	if (!rc)
		rc = measure_load(g, "L2 cache", (size_t)2 << 20, device, e);
	return rc ? rc : measure_load(g, "memory", bytes, device, e);
}

} // namespace

extern "C" int ladder_has_gpu(const char **why)
{
	int n = 0;
	cudaError_t status = cudaGetDeviceCount(&n);

	*why = status == cudaSuccess ? "there is no CUDA device" : cudaGetErrorString(status);
	(void)cudaGetLastError();
	return status == cudaSuccess && n > 0;
}

extern "C" int ladder_memory(struct err *e)
{
	struct gpu g;
	int rc = gpu_open(&g, e);

	printf("what,where,bytes,us,gb_per_s\n");
	if (!rc)
		rc = measure_copies(&g, e);
	if (!rc)
		rc = measure_launch(&g, e);
	if (!rc)
		rc = measure_loads(&g, e);
	gpu_close(&g);
	return rc;
}
