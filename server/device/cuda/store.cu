/*
 * store.cu - the store module for GPUs of NVIDIA (server/device/module.h).
 *
 * The GPU reads gradients directly from page-locked memory of the host and writes the new weights
 * both to its own memory and to page-locked memory of the host, in one kernel for each piece of
 * PIECE values. Other memory of the host is copied through page-locked buffers, piece by piece,
 * while the GPU works on the previous piece. An event after each piece shows how much is valid.
 *
 * If the server defers the copies of the weights, an update writes only memory of the GPU. Workers
 * then exchange gradients and weights from GPU to GPU: a kernel reads or writes the memory of the
 * other GPU over NVLink, and computes the sums of the checksum, of the norm, and the largest
 * magnitude in the same pass.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <unistd.h>
#include "common/engine.h"
#include "common/gpu_memory.h"
#include "common/xxh3_secret.h"
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
	float *copy;   /* the private copy of a gradient of another process */
	char *results; /* page-locked: the arrays of `pass` */
	struct store_pass pass;
	int reads_host; /* 1: the update under way reads a gradient in memory of the host */
	struct gpu_memory_driver driver;
	char no_import[200]; /* why memory of other processes cannot be mapped; "": it can */
	float *in, *out;     /* page-locked buffers of n values; NULL: not allocated yet */
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

/* Computes `count` values. Each pointer points to its first value. `to` is memory of the host,
 * or NULL. */
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
		if (to)
			to[i] = w;
	}
}

/* ---- a pass over values: copy, sums of XXH3, sum of squares, largest magnitude -----------------
 *
 * A block of PASS_THREADS threads has ENGINE_BLOCK values, which are 32 blocks of XXH3, as pairs of
 * values (words). Warp k has words [256 k, 256 k + 256), and thread t of it every 32nd of them, so
 * that all loads are under way at once. The squares are those of vec_squares (server/core/vec.c):
 * 32 lanes; each lane adds 16 squares as float32, and then their sum as a double. */

constexpr int PASS_THREADS = 512, WARPS = PASS_THREADS / 32;
constexpr int WORDS = (int)ENGINE_BLOCK / 2;   /* of a block of threads */
constexpr int SUM_WORDS = (int)XXH3_BLOCK / 8; /* of a block of XXH3 */
constexpr int ROWS = 16, CHUNK = 32 * ROWS;    /* of vec_squares */
constexpr unsigned ALL = 0xffffffffu;
constexpr size_t TAIL = XXH3_TAIL / sizeof(float);

static_assert(WORDS == WARPS * 2 * SUM_WORDS && CHUNK * WARPS == (int)ENGINE_BLOCK, "see above");

__constant__ const uint64_t secret[XXH3_SECRET_WORDS] = {XXH3_SECRET};

struct pass_results {
	uint64_t *sums; /* NULL: compute no checksum */
	float *tail;
	double *squares;
	uint32_t *peak;
};

/* Writes the sums of a block of XXH3 whose words 32 q + t thread t has in d[q]. */
__device__ __forceinline__ void sum_words(const uint64_t d[4], uint64_t *to)
{
	const int t = threadIdx.x % 32;
	uint64_t product = 0, plain = 0;

	for (int q = 0; q < 4; q++) {
		const int w = 32 * q + t;
		const uint64_t k = d[q] ^ secret[w / 8 + w % 8];

		product += (k & 0xffffffffu) * (k >> 32);
		plain += d[q];
	}
	/* the word of a lane itself counts for its neighbour */
	product += __shfl_xor_sync(ALL, plain, 1);
	product += __shfl_xor_sync(ALL, product, 8);
	product += __shfl_xor_sync(ALL, product, 16);
	if (t < 8)
		to[t] = product;
}

/* Returns the sum of lane t of vec_squares, for the first n values of a block. `chunk` has the sums
 * of the chunks. */
__device__ double lane_squares(const float *v, int n, const float (*chunk)[32], int t)
{
	double sum = 0;
	const int full = n / CHUNK;

	for (int k = 0; k < full; k++)
		sum = __dadd_rn(sum, (double)chunk[k][t]);
	for (int i = full * CHUNK + t; i < n; i += 32) {
		const double x = (double)step_normal(v[i]);

		sum = __dadd_rn(sum, __dmul_rn(x, x));
	}
	return sum;
}

/* Measures the values of a block. Only the first `trained` values count for the squares. */
__device__ void measure_block(const float *v, int trained, double *squares, uint32_t *peak)
{
	__shared__ float chunk[WARPS][32];
	__shared__ double lane[32];
	__shared__ uint32_t peaks[WARPS];
	const int k = threadIdx.x / 32, t = threadIdx.x % 32;
	uint32_t largest = 0;
	float sum = 0;

	for (int row = 0; row < ROWS; row++) {
		const float raw = v[k * CHUNK + row * 32 + t], x = step_normal(raw);

		largest = max(largest, __float_as_uint(raw) & 0x7fffffffu);
		sum = step_add(sum, step_mul(x, x));
	}
	chunk[k][t] = sum;
	largest = __reduce_max_sync(ALL, largest);
	if (t == 0)
		peaks[k] = largest;
	__syncthreads();
	if (k == 0)
		lane[t] = lane_squares(v, trained, chunk, t);
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	double total = 0;
	for (int i = 0; i < 32; i++)
		total = __dadd_rn(total, lane[i]);
	for (int i = 1; i < WARPS; i++)
		largest = max(largest, peaks[i]);
	*squares = total;
	*peak = largest;
}

/* Copies word `w` of n values to the copy of the last TAIL values, if it belongs to them. */
__device__ __forceinline__ void copy_tail(size_t w, uint64_t word, size_t n, float *tail)
{
	const size_t first = n - TAIL, i = 2 * w;

	if (i >= first && i < n)
		tail[i - first] = __uint_as_float((uint32_t)word);
	if (i + 1 >= first && i + 1 < n)
		tail[i + 1 - first] = __uint_as_float((uint32_t)(word >> 32));
}

/* Copies `n` values, and computes their sums. Each value of `from`, which another process may be
 * changing, is read once. The buffers have room for whole words. */
template <bool MEASURES>
__global__ void __launch_bounds__(PASS_THREADS) pass_kernel(const uint64_t *from, uint64_t *to,
	size_t n, size_t trained, size_t sums, struct pass_results out)
{
	__shared__ uint64_t block[MEASURES ? WORDS : 1];
	const size_t words = (n + 1) / 2, begin = (size_t)blockIdx.x * WORDS;
	const size_t first = begin + (size_t)(threadIdx.x / 32) * 2 * SUM_WORDS;
	uint64_t d[2][4];

	if (n == 0)
		return;
	for (int b = 0; b < 2; b++)
		for (int q = 0; q < 4; q++) {
			const size_t w = first + b * SUM_WORDS + q * 32 + threadIdx.x % 32;

			d[b][q] = w < words ? __ldcv((const unsigned long long *)from + w) : 0;
			if (w + 1 == words && n % 2)
				d[b][q] &= 0xffffffffu;
		}
	for (int b = 0; b < 2; b++)
		for (int q = 0; q < 4; q++) {
			const size_t w = first + b * SUM_WORDS + q * 32 + threadIdx.x % 32;

			if (w < words)
				to[w] = d[b][q];
			if (MEASURES)
				block[w - begin] = d[b][q];
			if (out.sums)
				copy_tail(w, d[b][q], n, out.tail);
		}
	for (int b = 0; b < 2 && out.sums; b++) {
		const size_t number = first / SUM_WORDS + b;

		if (number < sums) /* the same for all threads of a warp */
			sum_words(d[b], out.sums + number * XXH3_LANES);
	}
	if (!MEASURES)
		return;
	__syncthreads();
	const size_t left = trained > 2 * begin ? trained - 2 * begin : 0;
	measure_block((const float *)block, left < ENGINE_BLOCK ? (int)left : (int)ENGINE_BLOCK,
		&out.squares[blockIdx.x], &out.peak[blockIdx.x]);
}

size_t blocks_of(size_t n)
{
	return (n + ENGINE_BLOCK - 1) / ENGINE_BLOCK;
}

/* Makes room for the results of a pass over all values, and for the private copy. */
cudaError_t allocate_pass(struct gpu *g)
{
	const size_t sums = (xxh3_blocks(g->n * sizeof(float)) + 1) * sizeof(struct xxh3_sum);
	const size_t tail = (XXH3_TAIL + 255) / 256 * 256;
	const size_t squares = (blocks_of(g->n) + 1) * sizeof(double);
	const size_t peaks = (blocks_of(g->n) + 1) * sizeof(uint32_t);
	cudaError_t rc = cudaMalloc((void **)&g->copy, (g->n + 64) * sizeof(float));

	if (rc == cudaSuccess)
		rc = cudaHostAlloc(
			(void **)&g->results, sums + tail + squares + peaks, cudaHostAllocMapped);
	if (rc != cudaSuccess)
		return rc;
	g->pass.sums = (const struct xxh3_sum *)g->results;
	g->pass.end = g->results + sums + XXH3_TAIL;
	g->pass.squares = (const double *)(g->results + sums + tail);
	g->pass.peak = (const uint32_t *)(g->results + sums + tail + squares);
	return rc;
}

/* Runs a pass and waits for it. Fewer than TAIL values have no checksum. */
template <bool MEASURES>
cudaError_t run_pass(
	struct gpu *g, const void *from, void *to, size_t n, size_t trained, int hashes)
{
	const size_t sums = xxh3_blocks(n * sizeof(float));
	struct pass_results out = {};

	if (hashes && n >= TAIL) {
		out.sums = (uint64_t *)g->results;
		out.tail = (float *)(g->pass.end - XXH3_TAIL);
	}
	out.squares = (double *)g->pass.squares;
	out.peak = (uint32_t *)g->pass.peak;
	pass_kernel<MEASURES><<<(unsigned)blocks_of(n), PASS_THREADS, 0, g->stream>>>(
		(const uint64_t *)from, (uint64_t *)to, n, trained, sums, out);
	cudaError_t rc = cudaGetLastError();
	return rc == cudaSuccess ? cudaStreamSynchronize(g->stream) : rc;
}

const char *module_take(void *self, const void *from, size_t n, size_t trained, const float **copy,
	struct store_pass *pass)
{
	struct gpu *g = (struct gpu *)self;

	*copy = g->copy;
	*pass = g->pass;
	return text_of(g, "copy of a gradient",
		run_pass<true>(g, from, g->copy, n, trained < n ? trained : n, 1));
}

const char *module_give(void *self, void *to, struct store_pass *pass)
{
	struct gpu *g = (struct gpu *)self;

	if (pass)
		*pass = g->pass;
	return text_of(
		g, "copy of weights", run_pass<false>(g, g->weights, to, g->n, 0, pass != nullptr));
}

/* ---- memory of other processes --------------------------------------------------------------- */

/* Makes, exports and maps memory of each GPU once, so that the driver opens all files for this
 * before the server enters its sandbox. */
void warm_up_import(struct gpu *g, int count)
{
	for (int i = 0; i < count; i++) {
		void *made = nullptr, *taken = nullptr;
		size_t bytes = 1;
		int fd = -1;
		CUresult rc = gpu_memory_make(&g->driver, i, &bytes, &made, &fd);

		if (rc == CUDA_SUCCESS) {
			rc = gpu_memory_take(&g->driver, fd, g->number, bytes, &taken);
			close(fd);
			gpu_memory_unmap(&g->driver, made, bytes);
		}
		if (rc == CUDA_SUCCESS)
			gpu_memory_unmap(&g->driver, taken, bytes);
		else if (i == g->number)
			snprintf(g->no_import, sizeof(g->no_import),
				"the driver cannot share memory of the GPU (error %d)", (int)rc);
	}
}

const char *module_import(void *self, int fd, size_t bytes, void **memory)
{
	struct gpu *g = (struct gpu *)self;

	*memory = nullptr;
	if (g->no_import[0])
		return g->no_import;
	CUresult rc = gpu_memory_take(&g->driver, fd, g->number, bytes, memory);
	if (rc == CUDA_SUCCESS)
		return nullptr;
	snprintf(g->text, sizeof(g->text),
		"the server's GPU cannot map the memory of the worker's GPU (error %d)", (int)rc);
	return g->text;
}

void module_drop(void *self, void *memory, size_t bytes)
{
	struct gpu *g = (struct gpu *)self;

	(void)cudaStreamSynchronize(g->stream);
	gpu_memory_unmap(&g->driver, memory, bytes);
}

/* ---- memory of this process ------------------------------------------------------------------ */

/* Returns the address of `memory` for the GPU if the memory is page-locked or of this GPU,
 * otherwise NULL. */
const void *mapped(const void *memory)
{
	cudaPointerAttributes a;

	if (cudaPointerGetAttributes(&a, memory) != cudaSuccess) {
		(void)cudaGetLastError();
		return nullptr;
	}
	return a.type == cudaMemoryTypeHost || a.type == cudaMemoryTypeDevice ? a.devicePointer
									      : nullptr;
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
	(void)cudaFree(g->copy);
	(void)cudaFreeHost(g->results);
	g->weights = g->in = g->out = g->copy = nullptr;
	g->results = nullptr;
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

/* Runs the kernels once, so that the driver loads them. */
cudaError_t warm_up_update(struct gpu *g)
{
	update_kernel<<<1, THREADS, 0, g->stream>>>(
		DEVICE_SGD, {}, 0, 0, 0, nullptr, nullptr, nullptr, nullptr, nullptr);
	pass_kernel<true><<<1, PASS_THREADS, 0, g->stream>>>(nullptr, nullptr, 0, 0, 0, {});
	pass_kernel<false><<<1, PASS_THREADS, 0, g->stream>>>(nullptr, nullptr, 0, 0, 0, {});
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
	if (gpu_memory_load(&g->driver))
		warm_up_import(g, count);
	else
		snprintf(g->no_import, sizeof(g->no_import), "the driver is too old");
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
	if (rc == cudaSuccess)
		rc = allocate_pass(g);
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
	if (g->end >= end || !g->to)
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
	g->device_to = to ? (float *)mapped(to) : nullptr;
	g->reads_host = 0;
	if (to && !g->device_to) {
		rc = ensure_device_buffer(g, &g->out);
		g->host = g->out;
		g->device_to = rc == cudaSuccess ? (float *)mapped(g->out) : nullptr;
	}
	g->end = g->written = g->pieces = g->seen = 0;
	return text_of(g, "update", rc);
}

/* Starts the kernel for the values [at, at + n), whose gradient is at `from`. */
cudaError_t launch_update(
	struct gpu *g, const struct device_step *s, size_t at, size_t n, const float *from)
{
	update_kernel<<<(unsigned)((n + THREADS - 1) / THREADS), THREADS, 0, g->stream>>>(s->rule,
		s->coeff, s->running, s->trained > at ? s->trained - at : 0, n, g->weights + at,
		g->state[0] ? g->state[0] + at : nullptr, g->state[1] ? g->state[1] + at : nullptr,
		from, g->device_to ? g->device_to + at : nullptr);
	return cudaGetLastError();
}

const char *module_step(void *self, const struct device_step *s)
{
	struct gpu *g = (struct gpu *)self;

	if (!g->to && s->gradient == g->copy)
		return text_of(g, "update", launch_update(g, s, s->offset, s->count, s->gradient));
	g->reads_host = 1;
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

		if (!direct)
			memcpy(g->in + at, s->gradient + done, n * sizeof(float));
		rc = launch_update(g, s, at, n, from);
		if (rc == cudaSuccess)
			rc = end_piece(g, at + n);
	}
	return text_of(g, "update", rc);
}

const char *module_wait(void *self, size_t n)
{
	struct gpu *g = (struct gpu *)self;

	if (!g->to) {
		const int waits = g->reads_host;

		g->reads_host = 0;
		return waits ? text_of(g, "update", cudaStreamSynchronize(g->stream)) : nullptr;
	}
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

const char *module_weights(void *self, float *to)
{
	struct gpu *g = (struct gpu *)self;
	cudaError_t rc = cudaMemcpyAsync(
		to, g->weights, g->n * sizeof(float), cudaMemcpyDeviceToHost, g->stream);

	if (rc == cudaSuccess)
		rc = cudaStreamSynchronize(g->stream);
	return text_of(g, "copy of weights", rc);
}

const char *module_readable(void *self, const float **values, size_t n)
{
	struct gpu *g = (struct gpu *)self;

	if (*values != g->copy)
		return nullptr;
	cudaError_t rc = ensure_device_buffer(g, &g->in);
	if (rc == cudaSuccess)
		rc = cudaMemcpyAsync(
			g->in, g->copy, n * sizeof(float), cudaMemcpyDeviceToHost, g->stream);
	if (rc == cudaSuccess)
		rc = cudaStreamSynchronize(g->stream);
	*values = g->in;
	return text_of(g, "copy of a gradient", rc);
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
	module_begin, module_step, module_wait, module_fetch, module_weights, module_readable,
	module_import, module_drop, module_take, module_give, module_pin, module_unpin,
	store_allocate_host, store_release_host, module_close};

} // namespace

extern "C" __attribute__((visibility("default"))) const struct store_module *cnnps_store_module(
	void)
{
	return &module;
}
