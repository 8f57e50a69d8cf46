/*
 * gpu.cu - CUDA helpers of the rungs, see gpu.cuh.
 */
#include "kernels/ladder/gpu.cuh"
#include <string.h>

int gpu_failed(cudaError_t status, const char *call, struct err *e)
{
	(void)cudaGetLastError();
	return err_set(e, PS_EDEVICE, "%.80s: %s", call, cudaGetErrorString(status));
}

int gpu_open(struct gpu *g, struct err *e)
{
	memset(g, 0, sizeof(*g));
	TRY(cudaStreamCreate(&g->stream), e);
	for (size_t i = 0; i <= MAX_MARKS; i++)
		TRY(cudaEventCreate(&g->event[i]), e);
	return PS_OK;
}

void gpu_close(struct gpu *g)
{
	for (size_t i = 0; i < g->n_blocks; i++)
		(void)(g->block[i].on_host ? cudaFreeHost(g->block[i].at)
					   : cudaFree(g->block[i].at));
	for (size_t i = 0; i <= MAX_MARKS && g->event[i]; i++)
		(void)cudaEventDestroy(g->event[i]);
	if (g->stream)
		(void)cudaStreamDestroy(g->stream);
	memset(g, 0, sizeof(*g));
}

int gpu_alloc(struct gpu *g, void **out, size_t bytes, enum gpu_place where, struct err *e)
{
	*out = NULL;
	if (g->n_blocks == MAX_ALLOCATIONS)
		return err_set(
			e, PS_ENOMEM, "a rung has at most %d blocks of memory", MAX_ALLOCATIONS);
	cudaError_t status =
		where == GPU_PINNED ? cudaMallocHost(out, bytes) : cudaMalloc(out, bytes);
	if (status != cudaSuccess) {
		(void)cudaGetLastError();
		return err_set(e, PS_ENOMEM, "no room for %zu bytes on the %s: %s", bytes,
			where == GPU_PINNED ? "host (pinned)" : "device",
			cudaGetErrorString(status));
	}
	g->block[g->n_blocks].at = *out;
	g->block[g->n_blocks++].on_host = where == GPU_PINNED;
	return PS_OK;
}

int gpu_begin(struct gpu *g, struct profile *p, struct err *e)
{
	g->profile = p;
	g->n_marks = 0;
	if (p)
		TRY(cudaEventRecord(g->event[0], g->stream), e);
	return PS_OK;
}

int gpu_mark(struct gpu *g, const char *name, enum phase_kind kind, struct err *e)
{
	if (!g->profile)
		return PS_OK;
	if (g->n_marks == MAX_MARKS)
		return err_set(e, PS_ETOOBIG, "a step has at most %d marks", MAX_MARKS);
	g->name[g->n_marks] = name;
	g->kind[g->n_marks] = kind;
	TRY(cudaEventRecord(g->event[++g->n_marks], g->stream), e);
	return PS_OK;
}

int gpu_end(struct gpu *g, struct err *e)
{
	TRY(cudaStreamSynchronize(g->stream), e);
	for (size_t i = 0; g->profile && i < g->n_marks; i++) {
		float ms;

		TRY(cudaEventElapsedTime(&ms, g->event[i], g->event[i + 1]), e);
		profile_add(g->profile, g->name[i], g->kind[i], ms);
	}
	return PS_OK;
}
