/*
 * store.cu - the store module for GPUs of NVIDIA (server/device/module.h).
 *
 * The GPU reads gradients directly from page-locked memory of the host and writes the new weights
 * both to its own memory and to page-locked memory of the host, in one kernel for each piece of
 * PIECE values. Other memory of the host is copied through page-locked buffers, piece by piece,
 * while the GPU works on the previous piece. An event after each piece shows how much is valid.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include "server/device/module.h"
#include "server/device/step.h"

namespace
{

constexpr size_t PIECE = (size_t)128 << 10; /* values */
constexpr int THREADS = 256;

struct gpu {
	int number;
	size_t n, vectors;
	float *weights, *state[PARAM_DEVICE_VECTORS]; /* memory of the GPU */
	float *in, *out; /* page-locked buffers of n values; NULL: not allocated yet */
	cudaStream_t stream;

	/* the update under way */
	float *to, *host; /* host: `to` if `to` is page-locked, else `out` */
	float *device_to; /* the address of `host` for the GPU */
	size_t end;       /* end of the newest part */
	size_t written;   /* number of valid values in `to` */
	size_t pieces, seen;
	size_t room;
	cudaEvent_t *event; /* an event after each piece */
	size_t *piece_end;
	char text[200];
};

/* Returns the text of error `rc`, or NULL if `rc` is no error. Clears an error that does not
 * concern the whole process, so that later calls do not return it. */
const char *text_of(struct gpu *g, const char *what, cudaError_t rc)
{
	if (rc == cudaSuccess)
		return nullptr;
	(void)cudaGetLastError();
	snprintf(g->text, sizeof(g->text), "%s: %s", what, cudaGetErrorString(rc));
	return g->text;
}

/* Computes `count` values. Each pointer points to its first value. `to` is memory of the host. */
__global__ void __launch_bounds__(THREADS) update_kernel(enum device_rule rule,
	struct step_coeff coeff, double running, size_t trained, size_t count,
	float *__restrict__ weights, float *__restrict__ first, float *__restrict__ second,
	const float *__restrict__ gradient, float *__restrict__ to)
{
	const struct step_coeff c = step_constants(coeff);
	const size_t stride = (size_t)gridDim.x * blockDim.x;

	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
		float s = first ? first[i] : 0, q = second ? second[i] : 0, w;

		if (i < trained) {
			w = step_value(rule, c, weights[i], gradient[i], &s, &q);
			if (first)
				first[i] = s;
			if (second)
				second[i] = q;
		} else {
			w = step_running(running, weights[i], gradient[i]);
		}
		weights[i] = w;
		to[i] = w;
	}
}

/* Returns the address of `memory` for the GPU if the memory is page-locked, otherwise NULL. */
const void *mapped(const void *memory)
{
	cudaPointerAttributes a;

	if (cudaPointerGetAttributes(&a, memory) != cudaSuccess) {
		(void)cudaGetLastError();
		return nullptr;
	}
	return a.type == cudaMemoryTypeHost ? a.devicePointer : nullptr;
}

cudaError_t ensure_device_buffer(const struct gpu *g, float **buffer)
{
	return *buffer ? cudaSuccess
		       : cudaHostAlloc((void **)buffer, g->n * sizeof(float), cudaHostAllocDefault);
}

void release_memory(struct gpu *g)
{
	(void)cudaFree(g->weights);
	for (size_t i = 0; i < PARAM_DEVICE_VECTORS; i++) {
		(void)cudaFree(g->state[i]);
		g->state[i] = nullptr;
	}
	(void)cudaFreeHost(g->in);
	(void)cudaFreeHost(g->out);
	g->weights = g->in = g->out = nullptr;
	for (size_t i = 0; i < g->room; i++)
		(void)cudaEventDestroy(g->event[i]);
	free(g->event);
	free(g->piece_end);
	g->event = nullptr;
	g->piece_end = nullptr;
	g->room = 0;
	g->to = nullptr;
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Runs the kernel once, so that the driver loads it. */
cudaError_t warm_up_update(struct gpu *g)
{
	update_kernel<<<1, THREADS, 0, g->stream>>>(
		DEVICE_SGD, {}, 0, 0, 0, nullptr, nullptr, nullptr, nullptr, nullptr);
	cudaError_t rc = cudaGetLastError();

	return rc == cudaSuccess ? cudaStreamSynchronize(g->stream) : rc;
}

const char *module_open(void **self, int number, char name[STORE_MODULE_NAME])
{
	static struct gpu the_gpu, no_gpu; /* no_gpu: its text */
	struct gpu *g = &the_gpu;
	cudaDeviceProp prop;
	int count = 0;
	const char *why = text_of(&no_gpu, "the CUDA driver", cudaGetDeviceCount(&count));

	*self = nullptr;
	if (why)
		return why;
	if (number >= count) {
		snprintf(no_gpu.text, sizeof(no_gpu.text), "no such GPU: this machine has %d",
			count);
		return no_gpu.text;
	}
	*g = {};
	g->number = number;
	why = text_of(g, "the GPU", cudaSetDevice(number));
	if (!why)
		why = text_of(g, "the GPU", cudaGetDeviceProperties(&prop, number));
	if (!why)
		why = text_of(
			g, "the GPU", cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking));
	if (!why)
		why = text_of(g, "the kernel", warm_up_update(g));
	if (why)
		return why;
	snprintf(name, STORE_MODULE_NAME, "%.*s", STORE_MODULE_NAME - 1, prop.name);
	*self = g;
	return nullptr;
}

const char *module_allocate(void *self, size_t n, size_t vectors)
{
	struct gpu *g = (struct gpu *)self;
	/* a part of an update begins a new piece, and so does the gap before it */
	const size_t room = n / PIECE + 64;

	release_memory(g);
	g->n = n;
	g->vectors = vectors;
	cudaError_t rc = cudaMalloc((void **)&g->weights, n * sizeof(float));
	for (size_t i = 0; rc == cudaSuccess && i < vectors; i++)
		rc = cudaMalloc((void **)&g->state[i], n * sizeof(float));
	g->event = (cudaEvent_t *)calloc(room, sizeof(*g->event));
	g->piece_end = (size_t *)calloc(room, sizeof(*g->piece_end));
	if (rc == cudaSuccess && (!g->event || !g->piece_end))
		rc = cudaErrorMemoryAllocation;
	for (; rc == cudaSuccess && g->room < room; g->room++)
		rc = cudaEventCreateWithFlags(&g->event[g->room], cudaEventDisableTiming);
	return text_of(g, "allocation", rc);
}

/* ---- updates --------------------------------------------------------------------------------- */

const char *module_load(void *self, const float *weights, float *const state[PARAM_DEVICE_VECTORS])
{
	struct gpu *g = (struct gpu *)self;
	const size_t bytes = g->n * sizeof(float);
	cudaError_t rc = cudaMemcpy(g->weights, weights, bytes, cudaMemcpyHostToDevice);

	for (size_t i = 0; rc == cudaSuccess && i < g->vectors; i++)
		rc = cudaMemcpy(g->state[i], state[i], bytes, cudaMemcpyHostToDevice);
	if (rc == cudaSuccess)
		rc = cudaDeviceSynchronize();
	return text_of(g, "load", rc);
}

/* Notes that everything up to value `end` is under way. */
cudaError_t end_piece(struct gpu *g, size_t end)
{
	if (g->pieces == g->room)
		return cudaErrorInvalidValue;
	g->piece_end[g->pieces] = end;
	g->end = end;
	return cudaEventRecord(g->event[g->pieces++], g->stream);
}

/* Copies the weights up to value `end`, which no part of the update changes. */
cudaError_t copy_gap(struct gpu *g, size_t end)
{
	if (g->end >= end)
		return cudaSuccess;
	cudaError_t rc = cudaMemcpyAsync(g->host + g->end, g->weights + g->end,
		(end - g->end) * sizeof(float), cudaMemcpyDeviceToHost, g->stream);
	return rc == cudaSuccess ? end_piece(g, end) : rc;
}

const char *module_begin(void *self, float *to)
{
	struct gpu *g = (struct gpu *)self;
	cudaError_t rc = cudaSuccess;

	g->to = g->host = to;
	g->device_to = (float *)mapped(to);
	if (!g->device_to) {
		rc = ensure_device_buffer(g, &g->out);
		g->host = g->out;
		g->device_to = rc == cudaSuccess ? (float *)mapped(g->out) : nullptr;
	}
	g->end = g->written = g->pieces = g->seen = 0;
	return text_of(g, "update", rc);
}

const char *module_step(void *self, const struct device_step *s)
{
	struct gpu *g = (struct gpu *)self;
	const float *gradient = (const float *)mapped(s->gradient);
	cudaError_t rc = copy_gap(g, s->offset);
	const int direct = gradient != nullptr;

	if (rc == cudaSuccess && !direct) {
		rc = ensure_device_buffer(g, &g->in);
		gradient = rc == cudaSuccess ? (const float *)mapped(g->in) : nullptr;
	}
	for (size_t done = 0; rc == cudaSuccess && done < s->count; done += PIECE) {
		const size_t left = s->count - done, n = left < PIECE ? left : PIECE;
		const size_t at = s->offset + done;
		/* the buffer has a place for each weight, so the parts do not collide */
		const float *from = gradient + (direct ? done : at);
		const size_t trained = s->trained > at ? s->trained - at : 0;

		if (!direct)
			memcpy(g->in + at, s->gradient + done, n * sizeof(float));
		update_kernel<<<(unsigned)((n + THREADS - 1) / THREADS), THREADS, 0, g->stream>>>(
			s->rule, s->coeff, s->running, trained, n, g->weights + at,
			g->state[0] ? g->state[0] + at : nullptr,
			g->state[1] ? g->state[1] + at : nullptr, from, g->device_to + at);
		rc = cudaGetLastError();
		if (rc == cudaSuccess)
			rc = end_piece(g, at + n);
	}
	return text_of(g, "update", rc);
}

const char *module_wait(void *self, size_t n)
{
	struct gpu *g = (struct gpu *)self;
	cudaError_t rc = copy_gap(g, g->n);

	/* the events of a stream happen in order: only the piece that has value n - 1 counts */
	while (g->seen < g->pieces && (g->seen ? g->piece_end[g->seen - 1] : 0) < n) {
		if (rc == cudaSuccess && g->piece_end[g->seen] >= n)
			rc = cudaEventSynchronize(g->event[g->seen]);
		g->seen++;
	}
	if (rc == cudaSuccess && g->host != g->to && n > g->written)
		memcpy(g->to + g->written, g->host + g->written, (n - g->written) * sizeof(float));
	g->written = n;
	return text_of(g, "update", rc);
}

const char *module_fetch(void *self, float *const state[PARAM_DEVICE_VECTORS])
{
	struct gpu *g = (struct gpu *)self;
	cudaError_t rc = cudaStreamSynchronize(g->stream);

	for (size_t i = 0; rc == cudaSuccess && i < g->vectors; i++)
		rc = cudaMemcpy(
			state[i], g->state[i], g->n * sizeof(float), cudaMemcpyDeviceToHost);
	return text_of(g, "fetch", rc);
}

/* ---- memory of the host ---------------------------------------------------------------------- */

void module_pin(void *self, void *memory, size_t bytes)
{
	(void)self;
	if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) != cudaSuccess)
		(void)cudaGetLastError(); /* the memory is copied through a buffer instead */
}

void module_unpin(void *self, void *memory)
{
	(void)self;
	if (cudaHostUnregister(memory) != cudaSuccess)
		(void)cudaGetLastError();
}

void *store_allocate_host(size_t bytes)
{
	void *memory = nullptr;

	if (cudaHostAlloc(&memory, bytes, cudaHostAllocDefault) != cudaSuccess) {
		(void)cudaGetLastError();
		return nullptr;
	}
	return memset(memory, 0, bytes);
}

void store_release_host(void *memory)
{
	(void)cudaFreeHost(memory);
}

void module_close(void *self)
{
	struct gpu *g = (struct gpu *)self;

	release_memory(g);
	(void)cudaStreamDestroy(g->stream);
	*g = {};
}

const struct store_module module = {STORE_MODULE_ABI, module_open, module_allocate, module_load,
	module_begin, module_step, module_wait, module_fetch, module_pin, module_unpin,
	store_allocate_host, store_release_host, module_close};

} // namespace

extern "C" __attribute__((visibility("default"))) const struct store_module *cnnps_store_module(
	void)
{
	return &module;
}
