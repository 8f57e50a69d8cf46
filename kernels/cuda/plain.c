/* plain.c - launches the kernels of plain_layers.cu and elementwise.cu for a layer of a model. See
 * path.h. */
#include "kernels/cuda/path.h"

static int axis_covered(size_t in, size_t out, const struct layer *l, size_t before, size_t behind)
{
	return before + behind < l->size && out * l->size == in + before + behind;
}

int cuda_pool_covers(const struct layer *l)
{
	return l->kind == LAYER_POOL && l->stride == l->size &&
	       axis_covered(l->in.h, l->out.h, l, l->pad_top, l->pad_bottom) &&
	       axis_covered(l->in.w, l->out.w, l, l->pad_left, l->pad_right);
}

int cuda_pool_2x2(const struct layer *l)
{
	return cuda_pool_covers(l) && l->size == 2 && !l->pad_top && !l->pad_left &&
	       !l->pad_bottom && !l->pad_right;
}

static struct kx_pooling pooling_of(const struct layer *l)
{
	if (l->kind == LAYER_CHANNELS)
		return (struct kx_pooling){
			.rows = (int)l->in.h, .columns = (int)l->in.w, .stride = 1};
	return (struct kx_pooling){.rows = (int)l->size,
		.columns = (int)l->size,
		.stride = (int)l->stride,
		.top = (int)l->pad_top,
		.left = (int)l->pad_left};
}

static struct kx_curve curve_of(const struct layer *l)
{
	return (struct kx_curve){.sigmoid = l->kind == LAYER_SIGMOID, .channels = (int)l->in.c};
}

static struct kx_lrn lrn_of(const struct layer *l)
{
	return (struct kx_lrn){.size = (int)l->size,
		.channels = (int)l->in.c,
		.alpha = l->alpha,
		.beta = l->beta,
		.k = l->k};
}

int cuda_plain_fprop(const struct plain_layer *p, cudaStream_t stream)
{
	const struct kx_tensor none = {.value = NULL};
	const struct layer *l = p->layer;

	switch (l->kind) {
	case LAYER_POOL:
		return kx_max_pool(
			p->x, p->y, pooling_of(l), p->argmax, p->images, p->bf16, stream);
	case LAYER_RELU:
		return kx_relu(p->x, p->y, p->images, p->bf16, stream);
	case LAYER_AVGPOOL:
	case LAYER_CHANNELS:
		return kx_mean_pool(p->x, p->y, pooling_of(l), p->images, p->bf16, stream);
	case LAYER_TANH:
	case LAYER_SIGMOID:
		return kx_curve(p->x, p->y, curve_of(l), p->images, p->bf16, stream);
	case LAYER_LRN:
		return kx_lrn(p->x, p->y, lrn_of(l), p->images, p->bf16, stream);
	case LAYER_SKIP:
		return kx_add(p->x, none, p->y, 1, 0, p->images, p->bf16, stream);
	case LAYER_ADD:
		return kx_add(
			p->x, p->other, p->y, (int)l->stride, p->relu, p->images, p->bf16, stream);
	default:
		return PS_EDEVICE;
	}
}

int cuda_plain_dgrad(const struct plain_layer *p, cudaStream_t stream)
{
	const struct kx_tensor none = {.value = NULL};
	const struct layer *l = p->layer;

	switch (l->kind) {
	case LAYER_POOL:
		return kx_max_pool_dgrad(p->x, p->dx, p->dy, pooling_of(l), p->argmax, p->mask,
			p->images, p->bf16, stream);
	case LAYER_RELU:
		return kx_relu_dgrad(p->x, p->dx, p->dy, p->mask, p->images, p->bf16, stream);
	case LAYER_AVGPOOL:
	case LAYER_CHANNELS:
		return kx_mean_pool_dgrad(
			p->dx, p->dy, pooling_of(l), p->mask, p->images, p->bf16, stream);
	case LAYER_TANH:
	case LAYER_SIGMOID:
		return kx_curve_dgrad(
			p->y, p->dx, p->dy, curve_of(l), p->mask, p->images, p->bf16, stream);
	case LAYER_LRN:
		return kx_lrn_dgrad(
			p->x, p->dx, p->dy, lrn_of(l), p->mask, p->images, p->bf16, stream);
	case LAYER_SKIP:
		return kx_add_dgrad(p->dx, p->dy, p->other, p->other_stride, p->mask, p->images,
			p->bf16, stream);
	case LAYER_ADD:
		return kx_add_dgrad(p->dx, p->dy, none, 1, p->mask, p->images, p->bf16, stream);
	default:
		return PS_EDEVICE;
	}
}
