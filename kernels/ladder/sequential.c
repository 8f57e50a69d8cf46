/*
 * sequential.c - rung 1: runs image.h for one image after the other on one CPU core.
 */
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "kernels/ladder/image.h"
#include "kernels/ladder/ladder.h"

struct sequential {
	struct ladder_task task;
	float *space; /* intermediate values of one image */
};

static void sequential_close(void *self)
{
	struct sequential *s = self;

	free(s->space);
	free(s);
}

static int sequential_open(void **self, const struct ladder_task *t, struct err *e)
{
	struct sequential *s = mem_try(1, sizeof(*s));
	float *space = mem_try(image_space_floats(t->filters), sizeof(*space));

	*self = s;
	if (!s || !space) {
		free(s);
		free(space);
		*self = NULL;
		return err_set(e, PS_ENOMEM, "no memory for one image of %zu filters", t->filters);
	}
	*s = (struct sequential){.task = *t, .space = space};
	return PS_OK;
}

static int sequential_step(void *self, const struct ladder_batch *b, float *grad, double *loss,
	struct profile *p, struct err *e)
{
	(void)e;
	struct sequential *s = self;
	const struct kx_images *set = s->task.set;
	size_t filters = s->task.filters, n_params = s->task.model->n_params;
	struct image_space space = image_space_at(s->space, filters);
	double begin = clock_seconds();
	float image[IMAGE_AREA];
	memset(grad, 0, n_params * sizeof(*grad));
	*loss = 0;
	for (size_t n = 0; n < b->n; n++) {
		const uint8_t *pixels = set->pixels + (size_t)b->index[n] * IMAGE_AREA;

		for (size_t i = 0; i < IMAGE_AREA; i++)
			image[i] = (float)pixels[i] / 255.0f;
		*loss += (double)image_gradient(
			b->params, filters, image, set->labels[b->index[n]], space, grad);
	}
	for (size_t i = 0; i < n_params; i++)
		grad[i] /= (float)b->n;
	*loss /= (double)b->n;
	profile_add(p, "all", PHASE_HOST, (clock_seconds() - begin) * 1e3);
	return PS_OK;
}

const struct rung rung_sequential = {
	.name = "sequential",
	.changes =
		"Plain C on one core computes one image after the other, and one value after the "
		"other.",
	.predicts =
		"10 million operations per image, because the backward pass uses every value of "
		"the convolution. Scalar code computes 1 to 2 GFLOP/s: 5 to 10 s for 1000 images "
		"with 256 filters",
	.open = sequential_open,
	.step = sequential_step,
	.close = sequential_close,
};
