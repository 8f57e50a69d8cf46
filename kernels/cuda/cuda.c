/*
 * cuda.c - the cuda device: choice of the GPU, life cycle, data set. See cuda.h.
 */
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <unistd.h>
#include "common/gpu_memory.h"
#include "common/mem.h"
#include "kernels/cuda/choose.h"
#include "kernels/cuda/cuda.h"

/* number of the GPU of the device that was opened last for gradients; share_memory uses this GPU */
static atomic_int sharing_gpu;

#define MIN_INDEX 65536 /* minimum number of entries of the index buffer of local_steps */

/* ---- life cycle ------------------------------------------------------------------------------ */

static int name_device(struct cuda *c, const struct backend_options *o, struct err *e)
{
	static const char *const names[] = {"fp32", "tf32", "bf16", "tf32x3"};
	struct cudaDeviceProp p;
	cudaError_t cu = cudaGetDeviceProperties(&p, c->gpu);

	if (cu)
		return cuda_failed(cu, "the GPU does not start", e);
	snprintf(c->option, sizeof(c->option), "cuda:%d", c->gpu);
	snprintf(c->name, sizeof(c->name), "%s %s %s", c->option, p.name, names[o->precision]);
	return PS_OK;
}

static cudaError_t make_streams(struct cuda *c)
{
	cudaStream_t *const streams[] = {&c->stream, &c->in, &c->out};
	cudaError_t rc = cudaSuccess;

	for (int i = 0; i < 3 && !rc; i++)
		rc = cudaStreamCreateWithFlags(streams[i], cudaStreamNonBlocking);
	for (int i = 0; i < LOCAL_ROUNDS && !rc; i++) {
		struct slot *s = &c->slot[i];
		cudaEvent_t *const events[] = {&s->in, &s->computed, &s->out, &s->hashed};

		for (int k = 0; k < 4 && !rc; k++)
			rc = cudaEventCreateWithFlags(events[k], cudaEventDisableTiming);
	}
	return rc;
}

static void drop_streams(struct cuda *c)
{
	const cudaStream_t streams[] = {c->stream, c->in, c->out};

	for (int i = 0; i < LOCAL_ROUNDS; i++) {
		const cudaEvent_t events[] = {
			c->slot[i].in, c->slot[i].computed, c->slot[i].out, c->slot[i].hashed};

		for (int k = 0; k < 4; k++)
			if (events[k])
				cudaEventDestroy(events[k]);
	}
	for (int i = 0; i < 3; i++)
		if (streams[i])
			cudaStreamDestroy(streams[i]);
}

static int cuda_start(struct cuda *c, const struct backend_options *o, struct err *e)
{
	int rc = name_device(c, o, e);
	cudaError_t cu;

	if (rc)
		return rc;
	if ((cu = make_streams(c)))
		return cuda_failed(cu, "a stream", e);
	if ((rc = cuda_open_path(c, e)))
		return rc;
	if (!c->options.forward_only)
		atomic_store(&sharing_gpu, c->gpu);
	return PS_OK;
}

static void cuda_close(void *self)
{
	struct cuda *c = self;

	cudaSetDevice(c->gpu);
	cudaDeviceSynchronize(); /* because a round may still be in flight */
	cuda_close_path(c);
	cudaFree(c->pixels);
	cudaFree(c->labels);
	cudaFree(c->memory);
	cudaFreeHost(c->pinned);
	drop_streams(c);
	for (int i = 0; i < LOCAL_ROUNDS; i++) {
		free(c->slot[i].log.call);
		free(c->slot[i].log.index);
	}
	free(c);
}

static int no_memory_for(const struct backend_options *o, struct err *e)
{
	return err_set(e, PS_ENOMEM, "no memory for batches of %zu images", o->max_batch);
}

/* The arguments of cuda_open. */
struct opening {
	void **self;
	const struct model *model;
	const struct backend_options *options;
};

static int open_on_gpu(void *arg, int gpu, struct err *e)
{
	const struct opening *a = arg;
	const struct backend_options *o = a->options;
	struct cuda *c = mem_try(1, sizeof(*c));
	int rc;

	if (!c)
		return no_memory_for(o, e);
	c->model = a->model;
	c->gpu = gpu;
	c->options = (struct path_options){.precision = o->precision,
		.images = o->max_batch,
		.forward_only = o->forward_only,
		.fused = o->kernels != KX_KERNELS_GENERAL && kx_fused_runs_here()};
	c->max_batch = o->max_batch;
	c->rounds = o->forward_only ? 1 : o->rounds;
	c->max_index = o->max_batch > MIN_INDEX ? o->max_batch : MIN_INDEX;
	if ((rc = cuda_start(c, o, e)))
		cuda_close(c);
	else
		*a->self = c;
	return rc;
}

static int cuda_open(
	void **self, const struct model *m, const struct backend_options *o, struct err *e)
{
	struct opening a = {self, m, o};

	*self = NULL;
	return o->max_batch > INT_MAX / 2 ? no_memory_for(o, e)
					  : gpu_open_usable(o->device, open_on_gpu, &a, e);
}

static const char *cuda_describe(const void *self)
{
	return ((const struct cuda *)self)->name;
}

static const char *cuda_option(const void *self)
{
	return ((const struct cuda *)self)->option;
}

static void cuda_kernel(const void *self, size_t layer, size_t batch, char *text, size_t size)
{
	const struct cuda *c = self;

	cudaSetDevice(c->gpu);
	c->path->kernel(c->net, layer, batch, text, size);
}

/* Allocates memory for `n` images of the data set. If the memory moves, drops the graphs, because
 * they contain addresses of this memory. */
static cudaError_t hold_images(struct cuda *c, size_t n)
{
	cudaError_t rc;

	if (n <= c->max_images)
		return cudaSuccess;
	cuda_drop_graphs(c);
	cudaFree(c->pixels);
	cudaFree(c->labels);
	c->pixels = NULL;
	c->labels = NULL;
	c->max_images = 0;
	rc = cudaMalloc((void **)&c->pixels, n * shape_count(c->model->input));
	if (!rc)
		rc = cudaMalloc((void **)&c->labels, n * sizeof(*c->labels));
	if (!rc)
		c->max_images = n;
	return rc;
}

static int cuda_use(void *self, const struct kx_images *set, struct err *e)
{
	struct cuda *c = self;
	size_t pixels = set->n * shape_count(c->model->input);
	cudaError_t rc = cudaSetDevice(c->gpu);

	if (!rc)
		rc = hold_images(c, set->n);
	if (!rc && set->n)
		rc = cudaMemcpy(c->pixels, set->pixels, pixels, cudaMemcpyHostToDevice);
	if (!rc && set->n)
		rc = cudaMemcpy(c->labels, set->labels, set->n * sizeof(*c->labels),
			cudaMemcpyHostToDevice);
	return rc ? cuda_failed(rc, "the data set", e) : PS_OK;
}

/* Allocates zeroed memory that is pinned for every GPU (portable). */
static void *pinned_allocate(size_t bytes)
{
	void *memory;

	if (cudaHostAlloc(&memory, bytes, cudaHostAllocPortable)) {
		/* clears the error, which the check of the next launch would report otherwise */
		cudaGetLastError();
		return NULL;
	}
	memset(memory, 0, bytes);
	return memory;
}

static void pinned_release(void *memory)
{
	cudaFreeHost(memory);
}

static int pin_memory(void *memory, size_t bytes, int reads_only)
{
	unsigned flags = cudaHostRegisterPortable | (reads_only ? cudaHostRegisterReadOnly : 0);

	if (!cudaHostRegister(memory, bytes, flags))
		return 1;
	cudaGetLastError();
	return 0;
}

static void unpin_memory(void *memory)
{
	if (cudaHostUnregister(memory))
		cudaGetLastError();
}

/* ---- memory that another process uses, too --------------------------------------------------- */

static struct gpu_memory_driver driver;
static int has_driver;

static void load_driver(void)
{
	has_driver = gpu_memory_load(&driver);
}

static int share_memory(size_t *bytes, void **memory, int *fd)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const int gpu = atomic_load(&sharing_gpu);

	pthread_once(&once, load_driver);
	*memory = NULL;
	*fd = -1;
	if (!has_driver || cudaSetDevice(gpu) ||
		gpu_memory_make(&driver, gpu, bytes, memory, fd) != CUDA_SUCCESS) {
		cudaGetLastError();
		return 0;
	}
	if (!cudaMemset(*memory, 0, *bytes) && !cudaDeviceSynchronize())
		return 1;
	cudaGetLastError();
	close(*fd);
	gpu_memory_unmap(&driver, *memory, *bytes);
	return 0;
}

static void unshare_memory(void *memory, size_t bytes)
{
	gpu_memory_unmap(&driver, memory, bytes);
}

static int is_shared_memory(const void *values)
{
	struct cudaPointerAttributes a;

	if (cudaPointerGetAttributes(&a, values)) {
		cudaGetLastError();
		return 0;
	}
	return a.type == cudaMemoryTypeDevice;
}

static int fetch_memory(void *to, const void *from, size_t bytes)
{
	if (!cudaSetDevice(atomic_load(&sharing_gpu)) &&
		!cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost))
		return 1;
	cudaGetLastError();
	return 0;
}

static const struct backend_memory cuda_memory = {.special = 1,
	.allocate = pinned_allocate,
	.release = pinned_release,
	.pin = pin_memory,
	.unpin = unpin_memory,
	.share = share_memory,
	.unshare = unshare_memory,
	.is_shared = is_shared_memory,
	.fetch = fetch_memory};

static const char *cuda_why(const void *self)
{
	return ((const struct cuda *)self)->why;
}

const struct device device_cuda = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.describe = cuda_describe,
	.option = cuda_option,
	.kernel = cuda_kernel,
	.use = cuda_use,
	.gradient = cuda_gradient,
	.forward = cuda_forward,
	.local_start = cuda_local_start,
	.local_steps = cuda_local_steps,
	.local_finish = cuda_local_finish,
	.local_wait = cuda_local_wait,
	.gradient_start = cuda_gradient_start,
	.hashes = cuda_hashes,
	.start_hash = cuda_start_hash,
	.sum_hash = cuda_sum_hash,
	.memory = &cuda_memory,
	.why = cuda_why,
};
