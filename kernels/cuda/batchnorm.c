/* batchnorm.c - plans and places a batchnorm. See path.h. */
#include "common/assert.h"
#include "kernels/cuda/path.h"

#define ROWS 2 /* number of rows in own[0] ("weights") and in own[1] ("biases") */

static struct kx_weights row_pair(
	const struct model *m, int tensor, const struct layer *l, int channels)
{
	return (struct kx_weights){.f = (int)l->in.c,
		.c = 1,
		.taps = 1,
		.f_pad = channels,
		.c_pad = 1,
		.groups = 1,
		.weight = m->tensor[tensor].offset,
		.bias = m->tensor[tensor + 1].offset};
}

void cuda_batchnorm_plan(
	struct cuda_batchnorm *b, const struct model *m, const struct layer *l, int channels)
{
	PS_ASSERT(l->bias == l->weight + 1);
	*b = (struct cuda_batchnorm){.kernel = {.eps = BATCHNORM_EPS}};
	b->own[0].w = row_pair(m, l->weight, l, channels);
	b->own[1].w = row_pair(m, l->running, l, channels);
	b->own[1].fixed = 1;
	b->own[0].slices = b->own[1].slices = 1;
}

size_t cuda_batchnorm_sums(const struct cuda_batchnorm *b)
{
	return 2 * ROWS * (size_t)b->own[0].w.f_pad;
}

void cuda_batchnorm_place(
	struct cuda_batchnorm *b, float *sums, int forward_only, struct cuda_arena *a)
{
	const size_t channels = (size_t)b->own[0].w.f_pad;

	for (int i = 0; i < 2; i++) {
		struct kx_layer *own = &b->own[i];

		own->value = arena_take(a, ROWS * channels, sizeof(float));
		if (forward_only)
			continue;
		own->sum = sums ? sums + (size_t)i * ROWS * channels : NULL;
		own->workspace = arena_take(a, KX_WGRAD_ROWS(1) * channels, sizeof(float));
	}
	b->kernel.weight = b->own[0].value;
	b->kernel.running = b->own[1].value;
	b->kernel.grad = b->own[0].workspace;
	b->kernel.statistics = b->own[1].workspace;
	b->kernel.mean = arena_take(a, channels, sizeof(float));
	b->kernel.scale = arena_take(a, channels, sizeof(float));
	if (!forward_only)
		b->kernel.chunks =
			arena_take(a, (size_t)KX_BATCHNORM_CHUNKS * 2 * channels, sizeof(double));
}

int cuda_batchnorm_append(const struct cuda_batchnorm *b, struct kx_layers *all)
{
	if (all->n + 2 > KX_LAYERS)
		return 0;
	all->layer[all->n++] = b->own[0];
	all->layer[all->n++] = b->own[1];
	return 1;
}
