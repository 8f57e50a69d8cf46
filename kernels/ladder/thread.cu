/*
 * thread.cu - rung 2: the sequential code with one thread per image. Images are copied to the
 * device as floats. The gradients of all images are copied to the host, which adds them up.
 */
#include <stdlib.h>
#include "kernels/ladder/gpu.cuh"
#include "kernels/ladder/host.cuh"

namespace
{

#define THREADS 128

struct thread_rung {
	struct ladder_task task;
	struct gpu gpu;
	struct host_batch host;
	struct host_target input;
	/* on the device, for each image: intermediate values, gradient and loss */
	float *space, *grad, *loss;
};

__global__ void image_kernel(const float *params, size_t filters, size_t n_params,
	const float *images, const uint16_t *labels, size_t n, float *space, float *grad,
	float *loss)
{
	size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

	if (i >= n)
		return;
	struct image_space s = image_space_at(space + i * image_space_floats(filters), filters);
	loss[i] = image_gradient(
		params, filters, images + i * IMAGE_AREA, labels[i], s, grad + i * n_params);
}

void thread_close(void *self)
{
	struct thread_rung *r = (struct thread_rung *)self;

	gpu_close(&r->gpu);
	host_batch_release(&r->host);
	free(r);
}

int thread_allocate(struct thread_rung *r, struct err *e)
{
	size_t n = r->task.max_batch, n_params = r->task.model->n_params;
	int rc = gpu_open(&r->gpu, e);

	if (!rc)
		rc = host_batch_init(&r->host, n, n, n_params, e);
	if (!rc)
		rc = host_target_init(&r->input, &r->gpu, n, n_params, e);
	if (!rc)
		rc = GPU_ALLOC(
			&r->gpu, r->space, n * image_space_floats(r->task.filters), GPU_DEVICE, e);
	if (!rc)
		rc = GPU_ALLOC(&r->gpu, r->grad, n * n_params, GPU_DEVICE, e);
	return rc ? rc : GPU_ALLOC(&r->gpu, r->loss, n, GPU_DEVICE, e);
}

int thread_open(void **self, const struct ladder_task *t, struct err *e)
{
	return gpu_rung_open<struct thread_rung>(
		self, t, thread_close, [=](struct thread_rung *r) { return thread_allocate(r, e); },
		e);
}

int thread_launch(struct thread_rung *r, size_t n, struct err *e)
{
	size_t n_params = r->task.model->n_params;
	cudaStream_t stream = r->gpu.stream;

	TRY(cudaMemsetAsync(r->grad, 0, n * n_params * sizeof(float), stream), e);
	image_kernel<<<(unsigned)((n + THREADS - 1) / THREADS), THREADS, 0, stream>>>(
		r->input.params, r->task.filters, n_params, r->input.images, r->input.labels, n,
		r->space, r->grad, r->loss);
	LAUNCHED(e);
	return gpu_mark(&r->gpu, "one thread per image", PHASE_KERNEL, e);
}

int thread_step(void *self, const struct ladder_batch *b, float *grad, double *loss,
	struct profile *p, struct err *e)
{
	struct thread_rung *r = (struct thread_rung *)self;
	int rc = host_batch_send(&r->host, &r->gpu, &r->task, b, &r->input, p, e);

	if (!rc)
		rc = thread_launch(r, b->n, e);
	if (!rc)
		rc = host_batch_sum(&r->host, &r->gpu, b->n, r->grad, r->loss, grad, loss, e);
	return rc;
}

} // namespace

extern "C" const struct rung rung_thread = {
	.name = "thread per image",
	.changes = "The same code on the GPU, with one thread per image. The host adds up the "
		   "gradients of the images.",
	.predicts =
		"1000 threads are 0.4 % of the threads that the GPU can run at a time. "
		"Neighbouring threads read 1.7 MB apart, so that a load takes 32 sectors, and too "
		"few warps hide its latency: 0.3 s for the kernel. 1.74 GB of gradients come back "
		"at 5 GB/s: 0.35 s. To add them up reads as many bytes: 0.3 s. 1 s in all",
	.needs_gpu = 1,
	.open = thread_open,
	.step = thread_step,
	.train = NULL,
	.bounds = NULL,
	.close = thread_close,
};
