/*
 * cuda.c - the cuda device: memory, copies, and one graph per batch size.
 *
 * Memory is taken once, at open: one block on the device (the data set is another, at `use`) and
 * pinned buffers on the host. A batch then is: copy parameters and indices in, launch the graph,
 * copy the gradient out, wait.
 *
 * CUDA errors are sticky: the first is logged with its call, and every later call fails too.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "common/mem.h"
#include "kernels/cuda_path.h"
#include "kernels/device.h"

#define MAX_GRAPHS  16
#define LEAST_INDEX 65536 /* local training hands over so many indices at a time */
#define BLOCK_STEPS 10    /* steps of local training in one graph */

/* Kernels for `steps` batches of `batch` images, ready to launch. */
struct graph {
	size_t batch;
	int steps; /* 0: a gradient */
	cudaGraphExec_t exec;
};

struct cuda {
	const struct model *model;
	const struct cuda_path *path;
	void *net; /* the path's own */
	size_t max_batch, max_index;
	int number; /* of the device */
	char name[300];
	cudaStream_t stream;
	void *memory;         /* device */
	float *params, *grad; /* device; n_params, in the manifest's order */
	uint32_t *index;
	struct kx_now *now;
	double *loss;
	/* pinned, the host's side of the copies */
	void *pinned;
	float *host_params, *host_scores;
	uint32_t *host_index;
	struct kx_now *host_now;
	double *host_loss;
	uint8_t *pixels, *labels; /* device: the data set */
	struct graph graph[MAX_GRAPHS];
	int n_graphs;
};

void *arena_take(struct cuda_arena *a, size_t n, size_t size)
{
	const size_t align = 256;
	size_t bytes, at = (a->used + align - 1) / align * align;

	if (__builtin_mul_overflow(n, size, &bytes) ||
		__builtin_add_overflow(at, bytes, &a->used) || a->used > SIZE_MAX / 4) {
		a->overflow = 1;
		a->used = 0;
		return NULL;
	}
	return a->base ? a->base + at : NULL;
}

static int check(cudaError_t rc, const char *call)
{
	if (rc == cudaSuccess)
		return PS_OK;
	log_error("cuda", "error", "call=%s reason=\"%s\"", call, cudaGetErrorString(rc));
	return PS_EDEVICE;
}
#define CHECK(call) check((call), #call)

/* For open and use: what went wrong is said by the caller's struct err. */
static int failed(cudaError_t rc, const char *what, struct err *e)
{
	return err_set(e, rc == cudaErrorMemoryAllocation ? PS_ENOMEM : PS_EDEVICE,
		"device cuda: %s: %s", what, cudaGetErrorString(rc));
}

/* ---- life ------------------------------------------------------------------------------------ */

static int cuda_present(struct err *e)
{
	int n = 0;
	cudaError_t rc = cudaGetDeviceCount(&n);

	if (rc)
		return err_set(e, PS_EDEVICE, "no GPU answers: %s", cudaGetErrorString(rc));
	return n ? PS_OK : err_set(e, PS_EDEVICE, "there is no GPU");
}

/* N of "cuda:N"; 0 without. */
static int device_number(const char *device, int *number, struct err *e)
{
	const char *colon = strchr(device, ':');
	char *end;
	long n;

	*number = 0;
	if (!colon)
		return PS_OK;
	n = strtol(colon + 1, &end, 10);
	if (colon[1] < '0' || colon[1] > '9' || *end || n > 1023)
		return err_set(
			e, PS_EUSAGE, "device \"%s\": expected cuda or cuda:N, N from 0", device);
	*number = (int)n;
	return PS_OK;
}

static int choose_device(struct cuda *c, const char *device, int precision, struct err *e)
{
	struct cudaDeviceProp p;
	int n = 0, rc = device_number(device, &c->number, e);
	cudaError_t cu;

	if (rc || (rc = cuda_present(e)))
		return rc;
	cudaGetDeviceCount(&n);
	if (c->number >= n)
		return err_set(e, PS_EUSAGE, "device \"%s\": this machine has %d GPU%s", device, n,
			n == 1 ? "" : "s");
	if ((cu = cudaSetDevice(c->number)) || (cu = cudaGetDeviceProperties(&p, c->number)))
		return failed(cu, "the GPU does not start", e);
	if (kx_runs_here())
		return err_set(e, PS_EDEVICE,
			"device \"%s\": %s has compute capability %d.%d; this program was built "
			"for another (make SM=%d%d)",
			device, p.name, p.major, p.minor, p.major, p.minor);
	static const char *const names[] = {"fp32", "tf32", "bf16"};
	snprintf(c->name, sizeof c->name, "cuda:%d %s %s", c->number, p.name, names[precision]);
	return PS_OK;
}

static void place(struct cuda *c, struct cuda_arena *a)
{
	size_t n = c->model->n_params;

	c->params = arena_take(a, n, sizeof(float));
	c->grad = arena_take(a, n, sizeof(float));
	c->index = arena_take(a, c->max_index, sizeof(uint32_t));
	c->now = arena_take(a, 1, sizeof *c->now);
	c->loss = arena_take(a, 1, sizeof *c->loss);
	c->path->place(c->net, a);
}

static void place_pinned(struct cuda *c, struct cuda_arena *a)
{
	size_t width;

	c->path->scores(c->net, &width);
	c->host_params = arena_take(a, c->model->n_params, sizeof(float));
	c->host_scores = arena_take(a, c->max_batch * width, sizeof(float));
	c->host_index = arena_take(a, c->max_index, sizeof(uint32_t));
	c->host_now = arena_take(a, 1, sizeof *c->host_now);
	c->host_loss = arena_take(a, 1, sizeof *c->host_loss);
}

static int allocate(struct cuda *c, struct err *e)
{
	struct cuda_arena device = {0}, host = {0};
	cudaError_t rc;

	place(c, &device);
	place_pinned(c, &host);
	if (device.overflow || host.overflow)
		return err_set(e, PS_ENOMEM, "no memory for batches of %zu images", c->max_batch);
	if ((rc = cudaMalloc(&c->memory, device.used)))
		return failed(rc, "memory on the GPU", e);
	if ((rc = cudaHostAlloc(&c->pinned, host.used, cudaHostAllocDefault)))
		return failed(rc, "pinned memory", e);
	device = (struct cuda_arena){.base = c->memory};
	host = (struct cuda_arena){.base = c->pinned};
	place(c, &device);
	place_pinned(c, &host);
	return PS_OK;
}

static int start(struct cuda *c, const struct backend_options *o, struct err *e)
{
	cudaError_t cu;
	int rc = choose_device(c, o->device, o->precision, e);

	c->path = cuda_seed.fits(c->model) ? &cuda_seed : &cuda_net;
	if (!rc)
		rc = c->path->open(&c->net, c->model, o->precision, o->max_batch, e);
	if (rc)
		return rc;
	if ((cu = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking)))
		return failed(cu, "a stream", e);
	if ((rc = allocate(c, e)))
		return rc;
	if (c->path->fill(c->net, c->stream))
		return failed(cudaGetLastError(), "the first copies", e);
	return PS_OK;
}

static void drop_graphs(struct cuda *c)
{
	while (c->n_graphs)
		cudaGraphExecDestroy(c->graph[--c->n_graphs].exec);
}

static void cuda_close(void *self)
{
	struct cuda *c = self;

	drop_graphs(c);
	cudaFree(c->pixels);
	cudaFree(c->labels);
	cudaFree(c->memory);
	cudaFreeHost(c->pinned);
	if (c->stream)
		cudaStreamDestroy(c->stream);
	if (c->net)
		c->path->close(c->net);
	free(c);
}

static int cuda_open(
	void **self, const struct model *m, const struct backend_options *o, struct err *e)
{
	struct cuda *c = mem_try(1, sizeof *c);
	int rc;

	*self = NULL;
	if (!c || o->max_batch > INT_MAX / 2) {
		free(c);
		return err_set(e, PS_ENOMEM, "no memory for batches of %zu images", o->max_batch);
	}
	c->model = m;
	c->max_batch = o->max_batch;
	c->max_index = o->max_batch > LEAST_INDEX ? o->max_batch : LEAST_INDEX;
	if ((rc = start(c, o, e))) {
		cuda_close(c);
		return rc;
	}
	*self = c;
	return PS_OK;
}

static const char *cuda_describe(const void *self)
{
	return ((const struct cuda *)self)->name;
}

static int cuda_use(void *self, const struct kx_images *set, struct err *e)
{
	struct cuda *c = self;
	size_t pixels = set->n * shape_count(c->model->input);
	cudaError_t rc = cudaSetDevice(c->number);

	drop_graphs(c); /* they know where the old one lay */
	cudaFree(c->pixels);
	cudaFree(c->labels);
	c->pixels = c->labels = NULL;
	if (set->n == 0)
		return PS_OK;
	if (!rc)
		rc = cudaMalloc((void **)&c->pixels, pixels);
	if (!rc)
		rc = cudaMalloc((void **)&c->labels, set->n);
	if (!rc)
		rc = cudaMemcpy(c->pixels, set->pixels, pixels, cudaMemcpyHostToDevice);
	if (!rc)
		rc = cudaMemcpy(c->labels, set->labels, set->n, cudaMemcpyHostToDevice);
	return rc ? failed(rc, "the data set", e) : PS_OK;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static struct kx_batch batch_of(const struct cuda *c, size_t images, int training)
{
	return (struct kx_batch){.pixels = c->pixels,
		.labels = c->labels,
		.index = training ? c->index : NULL,
		.now = c->now,
		.images = (int)images,
		.training = training};
}

/* What a graph does: a gradient from c->params to c->grad and *c->loss, or steps of training. */
static int launch(struct cuda *c, size_t images, int steps)
{
	struct kx_batch batch = batch_of(c, images, 1);
	int rc;

	if (steps)
		return c->path->train(c->net, batch, c->now, steps, c->loss, c->stream);
	rc = c->path->load(c->net, c->params, c->stream);
	return rc ? rc : c->path->gradient(c->net, batch, c->grad, c->loss, c->stream);
}

static int capture(struct cuda *c, size_t images, int steps, cudaGraphExec_t *exec)
{
	cudaGraph_t graph = NULL;
	int rc = CHECK(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal)), end;

	if (rc)
		return rc;
	rc = launch(c, images, steps);
	end = CHECK(cudaStreamEndCapture(c->stream, &graph));
	if (!rc)
		rc = end;
	if (!rc)
		rc = CHECK(cudaGraphInstantiate(exec, graph, 0));
	if (graph)
		cudaGraphDestroy(graph);
	return rc;
}

/* The graph for this size, made when it is first asked for. */
static int run_graph(struct cuda *c, size_t images, int steps)
{
	struct graph *g = c->graph, *end = c->graph + c->n_graphs;

	while (g < end && (g->batch != images || g->steps != steps))
		g++;
	if (g == end) {
		if (c->n_graphs == MAX_GRAPHS) {
			drop_graphs(c);
			g = c->graph;
		}
		int rc = capture(c, images, steps, &g->exec);
		if (rc)
			return rc;
		g->batch = images;
		g->steps = steps;
		c->n_graphs++;
	}
	return CHECK(cudaGraphLaunch(g->exec, c->stream));
}

/* ---- copies ---------------------------------------------------------------------------------- */

static int to_device(struct cuda *c, void *device, const void *host, size_t bytes)
{
	return CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, c->stream));
}

static int to_host(struct cuda *c, void *host, const void *device, size_t bytes)
{
	return CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, c->stream));
}

/* Waits before the pinned buffers are written: nothing may still be on its way from them. */
static int set_params(struct cuda *c, const float *params)
{
	size_t bytes = c->model->n_params * sizeof(float);
	int rc = CHECK(cudaSetDevice(c->number));

	if (!rc)
		rc = CHECK(cudaStreamSynchronize(c->stream));
	if (rc)
		return rc;
	memcpy(c->host_params, params, bytes);
	return to_device(c, c->params, c->host_params, bytes);
}

static int set_now(struct cuda *c, struct kx_now now)
{
	*c->host_now = now;
	return to_device(c, c->now, c->host_now, sizeof now);
}

static int set_index(struct cuda *c, const uint32_t *index, size_t n)
{
	memcpy(c->host_index, index, n * sizeof *index);
	return to_device(c, c->index, c->host_index, n * sizeof *index);
}

static int wait(struct cuda *c)
{
	return CHECK(cudaStreamSynchronize(c->stream));
}

/* ---- work ------------------------------------------------------------------------------------ */

static int cuda_gradient(void *self, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss)
{
	struct cuda *c = self;
	size_t bytes = c->model->n_params * sizeof(float);
	int rc = set_params(c, params);

	if (!rc)
		rc = set_now(c, (struct kx_now){.dropout_seed = dropout_seed});
	if (!rc)
		rc = set_index(c, index, batch);
	if (!rc)
		rc = run_graph(c, batch, 0);
	if (!rc)
		rc = to_host(c, c->host_params, c->grad, bytes);
	if (!rc)
		rc = to_host(c, c->host_loss, c->loss, sizeof *c->loss);
	if (!rc)
		rc = wait(c);
	if (rc)
		return rc;
	memcpy(grad, c->host_params, bytes);
	*loss = *c->host_loss;
	return PS_OK;
}

static int cuda_forward(void *self, const float *params, size_t first, size_t n, float *scores)
{
	struct cuda *c = self;
	size_t width, classes = c->model->classes;
	const float *from = c->path->scores(c->net, &width);
	int rc = set_params(c, params);

	if (!rc)
		rc = set_now(c, (struct kx_now){.first = (uint32_t)first});
	if (!rc)
		rc = c->path->load(c->net, c->params, c->stream);
	if (!rc)
		rc = c->path->forward(c->net, batch_of(c, n, 0), c->stream);
	if (!rc)
		rc = to_host(c, c->host_scores, from, n * width * sizeof(float));
	if (!rc)
		rc = wait(c);
	for (size_t i = 0; i < n && !rc; i++)
		memcpy(scores + i * classes, c->host_scores + i * width, classes * sizeof(float));
	return rc;
}

/* ---- local training -------------------------------------------------------------------------- */

static int cuda_local_start(void *self, const float *params)
{
	struct cuda *c = self;
	int rc = set_params(c, params);

	if (!rc)
		rc = c->path->load(c->net, c->params, c->stream);
	if (!rc)
		rc = c->path->start(c->net, c->stream);
	return rc ? rc : wait(c);
}

/* As many steps as fit in the index buffer. */
static int local_chunk(struct cuda *c, const uint32_t *index, size_t batch, size_t steps,
	struct kx_now now, double *loss)
{
	int rc = set_now(c, now);

	if (!rc)
		rc = set_index(c, index, batch * steps);
	if (!rc)
		rc = CHECK(cudaMemsetAsync(c->loss, 0, sizeof *c->loss, c->stream));
	for (size_t i = 0, n; i < steps && !rc; i += n) {
		n = steps - i >= BLOCK_STEPS ? BLOCK_STEPS : 1;
		rc = run_graph(c, batch, (int)n);
	}
	if (!rc)
		rc = to_host(c, c->host_loss, c->loss, sizeof *c->loss);
	if (!rc)
		rc = wait(c);
	*loss += rc ? 0 : *c->host_loss;
	return rc;
}

static int cuda_local_steps(void *self, const uint32_t *index, size_t batch, size_t steps,
	float rate, uint64_t dropout_seed, double *loss)
{
	struct cuda *c = self;
	const size_t most = c->max_index / batch;
	double sum = 0;
	int rc = CHECK(cudaSetDevice(c->number));

	for (size_t i = 0; i < steps && !rc;) {
		size_t n = steps - i < most ? steps - i : most;
		struct kx_now now = {.dropout_seed = dropout_seed + i, .rate = rate};
		rc = local_chunk(c, index + i * batch, batch, n, now, &sum);
		i += n;
	}
	if (!rc && loss)
		*loss = sum / (double)steps;
	return rc;
}

static int cuda_local_finish(void *self, float *params, float *sum)
{
	struct cuda *c = self;
	size_t bytes = c->model->n_params * sizeof(float);
	int rc = CHECK(cudaSetDevice(c->number));

	if (!rc)
		rc = c->path->save(c->net, c->params, c->grad, c->stream);
	if (!rc && params)
		rc = to_host(c, params, c->params, bytes);
	if (!rc && sum)
		rc = to_host(c, sum, c->grad, bytes);
	return rc ? rc : wait(c);
}

const struct device device_cuda = {
	.name = "cuda",
	.present = cuda_present,
	.open = cuda_open,
	.close = cuda_close,
	.describe = cuda_describe,
	.use = cuda_use,
	.gradient = cuda_gradient,
	.forward = cuda_forward,
	.local_start = cuda_local_start,
	.local_steps = cuda_local_steps,
	.local_finish = cuda_local_finish,
};
