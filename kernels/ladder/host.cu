/*
 * host.cu - the host side of the first CUDA rungs, see host.cuh.
 */
#include "kernels/ladder/host.cuh"
#include <stdlib.h>

namespace
{

void gather(struct host_batch *h, const struct kx_images *set, const struct ladder_batch *b)
{
	for (size_t n = 0; n < b->n; n++) {
		const uint8_t *pixels = set->pixels + (size_t)b->index[n] * IMAGE_AREA;

		for (size_t i = 0; i < IMAGE_AREA; i++)
			h->images[n * IMAGE_AREA + i] = (float)pixels[i] / 255.0f;
		h->labels[n] = set->labels[b->index[n]];
	}
}

double mean_loss(const struct host_batch *h, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (double)h->loss[i];
	return sum / (double)n;
}

} // namespace

int host_batch_init(
	struct host_batch *h, size_t max_batch, size_t rows, size_t n_params, struct err *e)
{
	h->n_params = n_params;
	h->images = (float *)mem_try(max_batch, IMAGE_AREA * sizeof(*h->images));
	h->labels = (uint16_t *)mem_try(max_batch, sizeof(*h->labels));
	h->loss = (float *)mem_try(max_batch, sizeof(*h->loss));
	h->grads = (float *)mem_try(rows, n_params * sizeof(*h->grads));
	if (h->images && h->labels && h->loss && h->grads)
		return PS_OK;
	host_batch_release(h);
	return err_set(e, PS_ENOMEM, "no memory for the gradients of %zu images", rows);
}

void host_batch_release(struct host_batch *h)
{
	free(h->images);
	free(h->labels);
	free(h->loss);
	free(h->grads);
	*h = (struct host_batch){0, NULL, NULL, NULL, NULL};
}

int host_target_init(
	struct host_target *t, struct gpu *g, size_t max_batch, size_t n_params, struct err *e)
{
	int rc = GPU_ALLOC(g, t->params, n_params, GPU_DEVICE, e);

	if (!rc)
		rc = GPU_ALLOC(g, t->images, max_batch * IMAGE_AREA, GPU_DEVICE, e);
	return rc ? rc : GPU_ALLOC(g, t->labels, max_batch, GPU_DEVICE, e);
}

int host_batch_send(struct host_batch *h, struct gpu *g, const struct ladder_task *t,
	const struct ladder_batch *b, const struct host_target *to, struct profile *p,
	struct err *e)
{
	double begin = clock_seconds();

	gather(h, t->set, b);
	profile_add(p, "gather", PHASE_HOST, (clock_seconds() - begin) * 1e3);
	int rc = gpu_begin(g, p, e);
	if (rc)
		return rc;
	TRY(cudaMemcpyAsync(to->params, b->params, h->n_params * sizeof(float),
		    cudaMemcpyHostToDevice, g->stream),
		e);
	rc = gpu_mark(g, "weights in", PHASE_COPY_IN, e);
	if (rc)
		return rc;
	TRY(cudaMemcpyAsync(to->images, h->images, b->n * IMAGE_AREA * sizeof(float),
		    cudaMemcpyHostToDevice, g->stream),
		e);
	TRY(cudaMemcpyAsync(to->labels, h->labels, b->n * sizeof(*h->labels),
		    cudaMemcpyHostToDevice, g->stream),
		e);
	return gpu_mark(g, "images in", PHASE_COPY_IN, e);
}

int host_batch_sum(struct host_batch *h, struct gpu *g, size_t n, const float *grads,
	const float *losses, float *grad, double *loss, struct err *e)
{
	TRY(cudaMemcpyAsync(h->grads, grads, n * h->n_params * sizeof(float),
		    cudaMemcpyDeviceToHost, g->stream),
		e);
	TRY(cudaMemcpyAsync(h->loss, losses, n * sizeof(float), cudaMemcpyDeviceToHost, g->stream),
		e);
	int rc = gpu_mark(g, "gradients out", PHASE_COPY_OUT, e);
	if (!rc)
		rc = gpu_end(g, e);
	if (rc)
		return rc;
	double begin = clock_seconds();
	for (size_t i = 0; i < h->n_params; i++)
		grad[i] = 0;
	for (size_t row = 0; row < n; row++)
		for (size_t i = 0; i < h->n_params; i++)
			grad[i] += h->grads[row * h->n_params + i];
	for (size_t i = 0; i < h->n_params; i++)
		grad[i] /= (float)n;
	*loss = mean_loss(h, n);
	profile_add(g->profile, "sum on the host", PHASE_HOST, (clock_seconds() - begin) * 1e3);
	return PS_OK;
}

int host_batch_take(struct host_batch *h, struct gpu *g, size_t n, const float *mean,
	const float *losses, float *grad, double *loss, struct err *e)
{
	TRY(cudaMemcpyAsync(
		    grad, mean, h->n_params * sizeof(float), cudaMemcpyDeviceToHost, g->stream),
		e);
	TRY(cudaMemcpyAsync(h->loss, losses, n * sizeof(float), cudaMemcpyDeviceToHost, g->stream),
		e);
	int rc = gpu_mark(g, "gradients out", PHASE_COPY_OUT, e);
	if (!rc)
		rc = gpu_end(g, e);
	*loss = mean_loss(h, n);
	return rc;
}
