/*
 * resident.cu - rungs 7 to 14. The data set is on the device as bytes, and a batch is a list of
 * image numbers. Rung 7 uses the kernels of tiled.cu. Rung 8 adds the fc product of staged.cu, rung
 * 9 the backward kernel of dense.cu. Rung 10 pins the caller's memory in the first step, so that
 * parameters and gradient are copied directly from and to it. Rung 11 runs the same work as one
 * CUDA graph per batch size. Rung 12 uses the convolution of tensor.cu, and rung 13 its fc layer.
 * In rung 14 no kernel stores a pooled value.
 *
 * A graph belongs to the `shape` for which it was captured. A step with another shape captures a
 * new graph.
 */
#include <stdlib.h>
#include <string.h>
#include "kernels/ladder/products.cuh"

namespace
{

enum { TILED, STAGED, DENSE, PINNED, GRAPH, TENSOR, FORWARD, RECOMPUTED };

/* The arguments that a captured step depends on. */
struct shape_of_step {
	size_t n;
	const float *params;
	float *grad;
};

struct resident {
	struct ladder_task task;
	struct gpu gpu;
	struct products p;
	struct tensor_conv tensor;
	float *params;   /* the parameters, on the device */
	uint8_t *pixels; /* the pixels of the data set, on the device */
	uint16_t *labels;
	/* image numbers of the batch; host_index and host_loss are pinned memory of the host */
	uint32_t *index, *host_index;
	float *host_loss;
	struct ladder_pins pins;
	/* TILED to RECOMPUTED; each level includes the changes of the levels below it */
	int level;
	cudaGraphExec_t graph; /* NULL before the first capture */
	struct shape_of_step shape;
};

void resident_close(void *self)
{
	struct resident *r = (struct resident *)self;

	if (r->graph)
		(void)cudaGraphExecDestroy(r->graph);
	ladder_unpin(&r->pins);
	gpu_close(&r->gpu);
	free(r);
}

int resident_allocate(struct resident *r, struct err *e)
{
	size_t n = r->task.max_batch, n_set = r->task.set->n;
	int rc = gpu_open(&r->gpu, e);

	if (!rc)
		rc = GPU_ALLOC(&r->gpu, r->params, r->task.model->n_params, GPU_DEVICE, e);
	if (!rc)
		rc = GPU_ALLOC(&r->gpu, r->pixels, n_set * IMAGE_AREA, GPU_DEVICE, e);
	if (!rc)
		rc = GPU_ALLOC(&r->gpu, r->labels, n_set, GPU_DEVICE, e);
	if (!rc)
		rc = GPU_ALLOC(&r->gpu, r->index, n, GPU_DEVICE, e);
	if (!rc)
		rc = GPU_ALLOC(&r->gpu, r->host_index, n, GPU_PINNED, e);
	if (!rc)
		rc = GPU_ALLOC(&r->gpu, r->host_loss, n, GPU_PINNED, e);
	if (!rc)
		rc = products_allocate(&r->gpu, &r->p, &r->task, r->level < RECOMPUTED, e);
	if (!rc && r->level >= TENSOR)
		rc = tensor_allocate(&r->gpu, &r->tensor, &r->p, r->level >= FORWARD, e);
	return rc;
}

int copy_set(struct resident *r, struct err *e)
{
	const struct kx_images *set = r->task.set;

	TRY(cudaMemcpy(r->pixels, set->pixels, set->n * IMAGE_AREA, cudaMemcpyHostToDevice), e);
	TRY(cudaMemcpy(r->labels, set->labels, set->n * sizeof(*r->labels), cudaMemcpyHostToDevice),
		e);
	r->p.k.params = r->params;
	r->p.k.labels = r->labels;
	r->p.pixels = r->pixels;
	r->p.index = r->index;
	return PS_OK;
}

int open_as(void **self, const struct ladder_task *t, int level, struct err *e)
{
	return gpu_rung_open<struct resident>(
		self, t, resident_close,
		[=](struct resident *r) {
			r->level = level;
			int rc = resident_allocate(r, e);
			return rc ? rc : copy_set(r, e);
		},
		e);
}

int tiled_open(void **self, const struct ladder_task *t, struct err *e)
{
	return open_as(self, t, TILED, e);
}

int staged_open(void **self, const struct ladder_task *t, struct err *e)
{
	return open_as(self, t, STAGED, e);
}

int dense_open(void **self, const struct ladder_task *t, struct err *e)
{
	return open_as(self, t, DENSE, e);
}

int pinned_open(void **self, const struct ladder_task *t, struct err *e)
{
	return open_as(self, t, PINNED, e);
}

int graph_open(void **self, const struct ladder_task *t, struct err *e)
{
	return open_as(self, t, GRAPH, e);
}

int open_tensor(void **self, const struct ladder_task *t, struct err *e)
{
	return open_as(self, t, TENSOR, e);
}

int forward_open(void **self, const struct ladder_task *t, struct err *e)
{
	return open_as(self, t, FORWARD, e);
}

int recomputed_open(void **self, const struct ladder_task *t, struct err *e)
{
	return open_as(self, t, RECOMPUTED, e);
}

/* ---- a step ---------------------------------------------------------------------------------- */

int copy_in(struct resident *r, const struct shape_of_step *s, struct err *e)
{
	TRY(cudaMemcpyAsync(r->params, s->params, r->task.model->n_params * sizeof(float),
		    cudaMemcpyHostToDevice, r->gpu.stream),
		e);
	int rc = gpu_mark(&r->gpu, "weights in", PHASE_COPY_IN, e);
	if (rc)
		return rc;
	TRY(cudaMemcpyAsync(r->index, r->host_index, s->n * sizeof(*r->index),
		    cudaMemcpyHostToDevice, r->gpu.stream),
		e);
	return gpu_mark(&r->gpu, "indices in", PHASE_COPY_IN, e);
}

int copy_out(struct resident *r, const struct shape_of_step *s, struct err *e)
{
	TRY(cudaMemcpyAsync(s->grad, r->p.grad, r->task.model->n_params * sizeof(float),
		    cudaMemcpyDeviceToHost, r->gpu.stream),
		e);
	TRY(cudaMemcpyAsync(r->host_loss, r->p.k.loss, s->n * sizeof(float), cudaMemcpyDeviceToHost,
		    r->gpu.stream),
		e);
	return gpu_mark(&r->gpu, "gradients out", PHASE_COPY_OUT, e);
}

/* Computes argmax, d_logits and loss, and below RECOMPUTED also pooled. */
int forward(struct resident *r, size_t n, struct err *e)
{
	if (r->level >= TENSOR)
		return tensor_conv_forward(&r->gpu, &r->p, &r->tensor, n, e);
	int rc = tiled_convolve(&r->gpu, &r->p, n, e);
	if (rc)
		return rc;
	return r->level >= STAGED ? staged_logits(&r->gpu, &r->p, n, e)
				  : products_logits(&r->gpu, &r->p, n, e);
}

/* Submits all work of a step to the stream. */
int enqueue_step(struct resident *r, const struct shape_of_step *s, struct err *e)
{
	int dense = r->level >= DENSE;
	size_t chunks = dense ? dense_chunks(&r->p, s->n) : tiled_chunks(&r->p, s->n);
	int rc = copy_in(r, s, e);

	if (!rc)
		rc = forward(r, s->n, e);
	if (!rc)
		rc = dense ? dense_backward(&r->gpu, &r->p, s->n, chunks, e)
			   : tiled_backward(&r->gpu, &r->p, s->n, chunks, e);
	if (!rc)
		rc = products_mean(&r->gpu, &r->p, s->n, chunks, e);
	return rc ? rc : copy_out(r, s, e);
}

int resident_capture(struct resident *r, const struct shape_of_step *s, struct err *e)
{
	cudaGraph_t graph;

	if (r->graph)
		TRY(cudaGraphExecDestroy(r->graph), e);
	r->graph = NULL;
	TRY(cudaStreamBeginCapture(r->gpu.stream, cudaStreamCaptureModeThreadLocal), e);
	int rc = enqueue_step(r, s, e);
	TRY(cudaStreamEndCapture(r->gpu.stream, &graph), e);
	if (rc)
		return rc;
	cudaError_t status = cudaGraphInstantiate(&r->graph, graph, 0);
	(void)cudaGraphDestroy(graph);
	if (status != cudaSuccess)
		return gpu_failed(status, "cudaGraphInstantiate", e);
	r->shape = *s;
	return PS_OK;
}

int is_captured(const struct resident *r, const struct shape_of_step *s)
{
	return r->graph && r->shape.n == s->n && r->shape.params == s->params &&
	       r->shape.grad == s->grad;
}

int launch_graph(struct resident *r, const struct shape_of_step *s, struct err *e)
{
	int rc = is_captured(r, s) ? PS_OK : resident_capture(r, s, e);

	if (rc)
		return rc;
	TRY(cudaGraphLaunch(r->graph, r->gpu.stream), e);
	return PS_OK;
}

int resident_step(void *self, const struct ladder_batch *b, float *grad, double *loss,
	struct profile *profile, struct err *e)
{
	struct resident *r = (struct resident *)self;
	struct shape_of_step s = {b->n, b->params, grad};
	int rc = r->level >= PINNED
			 ? ladder_pin(&r->pins, b->params, grad, r->task.model->n_params, e)
			 : PS_OK;

	if (rc)
		return rc;
	memcpy(r->host_index, b->index, b->n * sizeof(*b->index));
	rc = gpu_begin(&r->gpu, profile, e);
	if (!rc)
		rc = r->level >= GRAPH && !profile ? launch_graph(r, &s, e)
						   : enqueue_step(r, &s, e);
	if (!rc)
		rc = gpu_end(&r->gpu, e);
	*loss = 0;
	for (size_t n = 0; n < b->n; n++)
		*loss += (double)r->host_loss[n] / (double)b->n;
	return rc;
}

} // namespace

extern "C" const struct rung rung_tiled = {
	.name = "tiled",
	.changes =
		"The data set is on the device as bytes. A block keeps an image in shared memory, "
		"and a thread keeps 16 pixels in registers for 32 filters. One backward kernel "
		"reads each pooled value only once, for both layers.",
	.predicts =
		"Forward: 3.1 GFLOP with 12 multiply-adds per load take 0.12 ms. Backward: 2.4 "
		"GFLOP, and 0.22 GB that are read once: 0.15 ms. fc: 0.08 ms. 0.35 ms of kernels "
		"and 0.3 ms of copies",
	.needs_gpu = 1,
	.open = tiled_open,
	.step = resident_step,
	.train = NULL,
	.bounds = NULL,
	.close = resident_close,
};

extern "C" const struct rung rung_staged = {
	.name = "staged",
	.changes = "The fc product reads its weights through shared memory, for 32 images at once, "
		   "and loads one tile ahead.",
	.predicts =
		"The loads of the fc product waited for each other: 0.18 ms, with a fifth of the "
		"issue slots in use. 227 MB go through the L2 cache at 4 TB/s: 0.06 ms",
	.needs_gpu = 1,
	.open = staged_open,
	.step = resident_step,
	.train = NULL,
	.bounds = NULL,
	.close = resident_close,
};

extern "C" const struct rung rung_dense = {
	.name = "dense push",
	.changes =
		"dY is propagated through all four output pixels of a window, with zero for three "
		"of them. No load depends on the argmax, and a thread has the pixels of a window "
		"in registers for two filters.",
	.predicts =
		"The kernel took 125 instructions for each pooled value, and half of the "
		"shared-memory cycles of its loads at the argmax were bank conflicts. 27 "
		"multiply-adds more, but 80 instructions in all and no conflict: 0.16 ms for the "
		"backward kernel instead of 0.31",
	.needs_gpu = 1,
	.open = dense_open,
	.step = resident_step,
	.train = NULL,
	.bounds = NULL,
	.close = resident_close,
};

extern "C" const struct rung rung_pinned = {
	.name = "pinned",
	.changes = "Weights and gradient are copied from and to pinned memory.",
	.predicts = "3.5 MB at 50 GB/s instead of 13 GB/s: 0.07 ms instead of 0.27",
	.needs_gpu = 1,
	.open = pinned_open,
	.step = resident_step,
	.train = NULL,
	.bounds = NULL,
	.close = resident_close,
};

extern "C" const struct rung rung_graph = {
	.name = "graph",
	.changes = "One CUDA graph per batch size replaces nine calls.",
	.predicts =
		"A call takes 3 us. In a long step the host makes the calls while the device "
		"works. In a short step the device waits for them: a fifth less with 100 images. "
		"With 256 filters and 1000 images the gain is 0.02 ms, which is hard to see",
	.needs_gpu = 1,
	.open = graph_open,
	.step = resident_step,
	.train = NULL,
	.bounds = NULL,
	.close = resident_close,
};

extern "C" const struct rung rung_tensor = {
	.name = "tensor cores",
	.changes =
		"The convolution runs on tensor cores. A pixel is exact in bf16, and a weight is "
		"the sum of three bf16 terms, so the result is as exact as before.",
	.predicts =
		"17 GFLOP in bf16, with the zeros of the patches, at 400 TFLOP/s: 0.04 ms. 0.22 GB "
		"of pooled values and their argmax are written at 4.3 TB/s: 0.05 ms. 0.08 ms for "
		"the forward kernel instead of 0.15",
	.needs_gpu = 1,
	.open = open_tensor,
	.step = resident_step,
	.train = NULL,
	.bounds = NULL,
	.close = resident_close,
};

extern "C" const struct rung rung_forward = {
	.name = "fc in forward",
	.changes =
		"The forward kernel multiplies each pooled value by its fc weights while the value "
		"is in a register. The backward kernel still reads it from memory.",
	.predicts =
		"The fc kernel (0.066 ms) is not needed. The forward kernel computes 0.87 GFLOP "
		"more, on units that are idle while the tensor cores work, and puts 2 MB of "
		"weights into another order: 0.05 ms less",
	.needs_gpu = 1,
	.open = forward_open,
	.step = resident_step,
	.train = NULL,
	.bounds = NULL,
	.close = resident_close,
};

extern "C" const struct rung rung_recomputed = {
	.name = "recomputed backward",
	.changes =
		"The forward kernel stores a byte for each pooled value, its argmax, and not the "
		"value. The backward kernel computes the value again from the nine pixels under "
		"the argmax, which it selects in registers.",
	.predicts = "0.17 GB less to write and to read: 0.04 ms less in each kernel. 21 selections "
		    "and 18 multiply-adds replace the 36 multiply-adds of the backward kernel, so "
		    "computing the values again costs nothing: 0.48 ms",
	.needs_gpu = 1,
	.open = recomputed_open,
	.step = resident_step,
	.train = NULL,
	.bounds = NULL,
	.close = resident_close,
};
