/*
 * tensor_net.c - the path cuda_tensor: any model in fp32, tf32 or bf16 (tensor/tensor.h). This file
 * plans tensors and steps, places them in memory, and launches the kernels.
 *
 * Thread: one thread at a time uses a device, as device.h says.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/mem.h"
#include "kernels/cuda/fused/conv1.h"
#include "kernels/cuda/fused/conv2.h"
#include "kernels/cuda/path.h"
#include "kernels/cuda/share.h"
#include "kernels/cuda/tensor/tensor.h"
#include "kernels/cuda/tensor/winograd.h"
#include "kernels/device/device.h"

struct tensor_values {
	struct kx_dense value;
	void *grad; /* gradients of the values, in the same layout */
	int relu;   /* 1: output of a ReLU: the gradient is 0 where the value is not > 0 */
};

struct tensor_step {
	const struct layer *layer;
	size_t number; /* number of the step's first layer */
	int in, out;   /* numbers of the step's input tensor and output tensor */
	/* add: number of its skip's input; skip: number of its add's output; else -1 */
	int other;
	int other_stride; /* skip: stride of its add */
	int relu;         /* 1: a ReLU follows and is fused into this step */
	int pooled;       /* 1: the pool 2x2 after the ReLU is fused, too */
	int needs_dx;     /* 1: an earlier step has weights */
	int layers;       /* number of layers of the step */
	int winograd;     /* 1: the kernels of winograd.h may compute the step's products */

	/* conv and fc. The groups of a convolution are divided into `parts`: each has a product of
	 * its own, over its own channels. */
	int parts;
	/* parameters of the first part; weights_part returns those of the other parts */
	struct kx_layer own;
	size_t workspace_floats; /* number of floats of own.workspace for each part */
	size_t sum_at; /* offset in tensor_net.sums of own.sum, or of the sums of batchnorm */
	/* the windows of a part: `fprop` has the windows of its outputs, which wgrad uses, too;
	 * `dgrad` has the windows of its inputs */
	struct kx_windows fprop, dgrad;
	struct kx_dense full; /* if `pooled`: gradient of the values before the pool */
	/* argmax of the pool that is fused into the step, or that is the step */
	uint8_t *argmax;
	struct kx_drop drop;
	struct cuda_batchnorm batchnorm;
};

struct tensor_net {
	const struct model *model;
	enum kx_type type;
	size_t images; /* number of images of the largest batch */
	int forward_only;
	/* 1: the wgrad of a step runs at the same time as its dgrad, on the stream `side` */
	int beside;
	cudaStream_t side;
	cudaEvent_t dy_ready, wgrad_done;
	struct kx_patches patches;
	int n_tensors, n_steps;
	struct tensor_values tensor[MODEL_MAX_LAYERS + 1];
	struct tensor_step step[MODEL_MAX_LAYERS];
	float *sums;
	size_t n_sums;
	float *loss;      /* loss of each image */
	float *workspace; /* workspace for the kernels of every step, one step after the other */
};

/* ---- plan ------------------------------------------------------------------------------------ */

static size_t pad_octet(size_t n)
{
	return (n + KX_OCTET - 1) / KX_OCTET * KX_OCTET;
}

static int has_weights(const struct tensor_step *s)
{
	return s->layer->kind == LAYER_CONV || s->layer->kind == LAYER_FC;
}

static struct kx_dense dense_of(struct shape s)
{
	return (struct kx_dense){.h = (int)s.h, .w = (int)s.w, .c = (int)pad_octet(s.c)};
}

static size_t pixels_of(const struct kx_dense *p)
{
	return (size_t)p->h * (size_t)p->w;
}

static size_t image_values(const struct kx_dense *p)
{
	return pixels_of(p) * (size_t)p->c;
}

/* Returns the window of an fc layer: one pixel with all inputs as channels. */
static struct kx_windows whole(int inputs)
{
	return (struct kx_windows){.h = 1,
		.w = 1,
		.c = inputs,
		.pitch = inputs,
		.rows = 1,
		.columns = 1,
		.stride = 1,
		.up = 1,
		.size = 1};
}

/* Plans the input of the first layer: patches if this layer has weights, else the image. */
static struct kx_dense plan_patches(struct tensor_net *n)
{
	const struct layer *l = n->model->layer;
	const struct shape in = n->model->input;
	const int conv = l->kind == LAYER_CONV, weights = conv || l->kind == LAYER_FC;
	struct kx_windows w = {.h = (int)in.h, .w = (int)in.w, .stride = 1, .up = 1, .size = 1};
	size_t taps = 1;

	w.rows = (int)(l->kind == LAYER_FC ? 1 : in.h);
	w.columns = (int)(l->kind == LAYER_FC ? 1 : in.w);
	if (conv) {
		w.rows = (int)l->out.h;
		w.columns = (int)l->out.w;
		w.stride = (int)l->stride;
		w.top = (int)l->pad_top;
		w.left = (int)l->pad_left;
		w.size = (int)l->size;
		taps = l->size * l->size;
	} else if (l->kind == LAYER_FC) {
		w.size = (int)in.w;
		taps = in.h * in.w;
	}
	n->patches = (struct kx_patches){.window = w,
		.channels = (int)in.c,
		.taps = (int)taps,
		.columns = (int)pad_octet(taps * in.c + (size_t)weights),
		.ones = weights,
		.whole = weights && !n->model->preprocess.n_norm,
		.norm = cuda_norm(n->model)};
	return (struct kx_dense){.h = w.rows, .w = w.columns, .c = n->patches.columns};
}

/* tiles_fprop, tiles_wgrad and tiles_dgrad return 1 if the kernels of winograd.h compute fprop,
 * wgrad or dgrad of the step, for a batch of `images` images. */
static int tiles_fprop(const struct tensor_step *s, size_t images)
{
	return s->winograd && kx_winograd_faster(s->fprop, s->own.w.f_pad, images);
}

static int tiles_wgrad(const struct tensor_step *s)
{
	return s->winograd && kx_winograd_wgrad_faster(s->fprop, s->own.w.f_pad);
}

static int tiles_dgrad(const struct tensor_step *s, size_t images)
{
	return s->winograd && s->needs_dx && kx_winograd_faster(s->dgrad, s->fprop.c, images);
}

#define MAX_PARTS 8 /* maximum number of parts, at most KX_LAYERS */
/* minimum number of channels of a part: the columns of the smallest tile of a product */
#define MIN_PART_CHANNELS 32

static int fits_part(size_t channels, int parts)
{
	const size_t own = channels / (size_t)parts;

	return own >= MIN_PART_CHANNELS && own % KX_OCTET == 0;
}

/* Returns the number of parts into which the groups of a convolution are divided. A part can have
 * several groups; the weights between channels and filters of different groups are then stored as
 * zeros. The first layer has one part, because its patches have no groups. */
static int parts_of(const struct layer *l, int first)
{
	for (int parts = MAX_PARTS; parts > 1 && l->kind == LAYER_CONV && !first; parts--)
		if (l->groups % (size_t)parts == 0 && fits_part(l->in.c, parts) &&
			fits_part(l->out.c, parts))
			return parts;
	return 1;
}

static void plan_weights(struct tensor_net *n, struct tensor_step *s)
{
	const struct layer *l = s->layer;
	const struct kx_dense *in = &n->tensor[s->in].value;
	const int conv = l->kind == LAYER_CONV, first = s->number == 0;
	const int parts = parts_of(l, first), filters = (int)pad_octet(l->out.c);
	struct kx_weights *w = &s->own.w;

	s->parts = parts;
	w->f = (int)l->out.c / parts;
	w->c = (int)l->in.c / parts;
	w->f_pad = filters / parts;
	w->c_pad = (int)(first ? l->in.c : pad_octet(l->in.c)) / parts;
	w->taps = (int)(conv ? l->size * l->size : l->in.h * l->in.w);
	w->groups = conv ? (int)l->groups / parts : 1;
	w->weight = n->model->tensor[l->weight].offset;
	w->bias = n->model->tensor[l->bias].offset;
	s->full = dense_of(l->out);
	s->fprop = whole((int)image_values(in));
	s->dgrad = whole(w->f_pad);
	if (!conv)
		return;
	s->fprop = (struct kx_windows){.h = in->h,
		.w = in->w,
		.c = in->c / parts,
		.pitch = in->c,
		.rows = (int)l->out.h,
		.columns = (int)l->out.w,
		.stride = first ? 1 : (int)l->stride,
		.up = 1,
		.top = first ? 0 : (int)l->pad_top,
		.left = first ? 0 : (int)l->pad_left,
		.size = first ? 1 : (int)l->size};
	s->dgrad = (struct kx_windows){.h = (int)l->out.h,
		.w = (int)l->out.w,
		.c = w->f_pad,
		.pitch = filters,
		.rows = (int)l->in.h,
		.columns = (int)l->in.w,
		.stride = 1,
		.up = (int)l->stride,
		.top = (int)l->size - 1 - (int)l->pad_top,
		.left = (int)l->size - 1 - (int)l->pad_left,
		.size = (int)l->size};
}

static int fuses_pool(const struct layer *l, size_t left)
{
	return left >= 3 && l[0].kind == LAYER_CONV && l[1].kind == LAYER_RELU &&
	       cuda_pool_2x2(&l[2]);
}

/* Returns 1 if the step of layer l[0] can apply the ReLU that follows. */
static int fuses_relu(const struct layer *l, size_t left)
{
	return left >= 2 && l[1].kind == LAYER_RELU &&
	       (l->kind == LAYER_CONV || l->kind == LAYER_FC || l->kind == LAYER_BATCHNORM ||
		       l->kind == LAYER_ADD);
}

static void plan_step(struct tensor_net *n, size_t number, int needs_dx)
{
	const struct model *m = n->model;
	const struct layer *l = &m->layer[number];
	struct tensor_step *s = &n->step[n->n_steps++];

	*s = (struct tensor_step){.layer = l,
		.number = number,
		.in = n->n_tensors - 1,
		.out = n->n_tensors,
		.other = -1,
		.relu = fuses_relu(l, m->n_layers - number),
		.pooled = fuses_pool(l, m->n_layers - number),
		.needs_dx = needs_dx};
	s->layers = 1 + s->relu + s->pooled;
	if (has_weights(s)) {
		plan_weights(n, s);
		s->winograd =
			n->type == KX_TYPE_FP32 && l->kind == LAYER_CONV && s->own.w.groups == 1;
	}
	if (l->kind == LAYER_BATCHNORM) {
		cuda_batchnorm_plan(&s->batchnorm, m, l, (int)pad_octet(l->in.c));
		s->batchnorm.kernel.relu = s->relu;
	}
	if (l->kind == LAYER_DROPOUT)
		s->drop = (struct kx_drop){.layer = (int)number,
			.channels = (int)l->in.c,
			.threshold = dropout_threshold(l->drop),
			.scale = 1 / (1 - l->drop)};
	for (int i = 0; i < n->n_steps && l->kind == LAYER_ADD; i++)
		if (n->step[i].number == l->partner) {
			s->other = n->step[i].in;
			n->step[i].other = s->out;
			n->step[i].other_stride = (int)l->stride;
		}
	n->tensor[n->n_tensors++] =
		(struct tensor_values){.value = dense_of(l[s->layers - 1].out), .relu = s->relu};
}

static size_t rows_of(const struct tensor_step *s)
{
	return (size_t)s->own.w.taps * (size_t)s->own.w.c_pad + 1;
}

/* Returns the number of parameters of a part, with their padding. */
static size_t weights_part_values(const struct tensor_step *s)
{
	return rows_of(s) * (size_t)s->own.w.f_pad;
}

/* Returns part number `part` of the parameters of a step. */
static struct kx_layer weights_part(const struct tensor_step *s, int part)
{
	struct kx_layer own = s->own;
	const size_t number = (size_t)part, at = number * weights_part_values(s);

	own.value += at;
	own.sum = own.sum ? own.sum + at : NULL;
	own.bf16 = own.bf16 ? own.bf16 + at : NULL;
	own.workspace = own.workspace ? own.workspace + number * s->workspace_floats : NULL;
	own.w.weight +=
		number * (size_t)own.w.f * (size_t)(own.w.c / own.w.groups) * (size_t)own.w.taps;
	own.w.bias += number * (size_t)own.w.f;
	return own;
}

static size_t value_size(const struct tensor_net *n)
{
	return n->type == KX_TYPE_BF16 ? sizeof(uint16_t) : sizeof(float);
}

/* Returns the address of channel `channel` of the values at `value`. */
static void *channel_at(const struct tensor_net *n, void *value, int channel)
{
	return (char *)value + (size_t)channel * value_size(n);
}

/* Returns the number of floats that the sums of the step's gradients take. */
static size_t sums_of(const struct tensor_step *s)
{
	if (s->layer->kind == LAYER_BATCHNORM)
		return cuda_batchnorm_sums(&s->batchnorm);
	return has_weights(s) ? (size_t)s->parts * weights_part_values(s) : 0;
}

static int tensor_too_large(const struct tensor_net *n, struct err *e)
{
	return err_set(e, PS_ENOMEM,
		"model \"%s\" is too large for device cuda with batches of %zu images: a layer "
		"must have fewer than 2^31 values per image and 2^31 pixels per batch",
		n->model->text, n->images);
}

/* Returns 1 if indices in the kernels would overflow for a tensor like `p`. */
static int overflows(const struct tensor_net *n, const struct kx_dense *p)
{
	size_t image, pixels;

	return __builtin_mul_overflow(pixels_of(p), (size_t)p->c, &image) || image > INT_MAX / 2 ||
	       __builtin_mul_overflow(pixels_of(p), n->images, &pixels) || pixels > INT_MAX / 2;
}

/* Limits of tensor_bytes up to which wgrad runs at the same time as dgrad. Above the limit, a
 * single kernel already fills the GPU. The limit of fp32 is higher, because dgrad in fp32 may use
 * Winograd's tiles. Their transforms mostly wait for memory, and wgrad can compute during this
 * time. */
#define BESIDE_BYTES      ((size_t)100 << 20)
#define BESIDE_BYTES_FP32 ((size_t)500 << 20)

/* Returns the bytes of all tensors and their gradients if they do not share memory. */
static size_t tensor_bytes(const struct tensor_net *n)
{
	size_t values = 0;

	for (int i = 0; i < n->n_tensors; i++)
		values += 2 * image_values(&n->tensor[i].value);
	for (int i = 0; i < n->n_steps; i++)
		values += n->step[i].pooled ? image_values(&n->step[i].full) : 0;
	return values * n->images * value_size(n);
}

/* Returns 1 if wgrad of the step runs on the side stream. Winograd's wgrad does not, because all
 * steps share its workspace. */
static int runs_beside(const struct tensor_net *n, const struct tensor_step *s)
{
	return n->beside && has_weights(s) && s->needs_dx && !tiles_wgrad(s);
}

static int any_beside(const struct tensor_net *n)
{
	for (int i = 0; i < n->n_steps; i++)
		if (runs_beside(n, &n->step[i]))
			return 1;
	return 0;
}

static int tensor_plan(struct tensor_net *n, struct err *e)
{
	int needs_dx = 0;

	n->tensor[0] = (struct tensor_values){.value = plan_patches(n)};
	n->n_tensors = 1;
	if (overflows(n, &n->tensor[0].value) ||
		n->images * image_values(&n->tensor[0].value) / KX_OCTET > INT_MAX / 2)
		return tensor_too_large(n, e);
	for (size_t l = 0; l < n->model->n_layers;) {
		struct tensor_step *s = &n->step[n->n_steps];

		plan_step(n, l, needs_dx);
		l += (size_t)s->layers;
		if (overflows(n, &n->tensor[s->out].value) || overflows(n, &s->full))
			return tensor_too_large(n, e);
		s->sum_at = n->n_sums;
		n->n_sums += sums_of(s);
		needs_dx |= n->n_sums > 0;
	}
	n->beside = !n->forward_only &&
		    tensor_bytes(n) <= (n->type == KX_TYPE_FP32 ? BESIDE_BYTES_FP32 : BESIDE_BYTES);
	n->beside = any_beside(n);
	return PS_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Returns the number of split-K slices of wgrad for a batch of `images` images. */
static int tensor_slices(const struct tensor_net *n, const struct tensor_step *s, size_t images)
{
	if (tiles_wgrad(s))
		return 1;
	return kx_product_slices(s->fprop, (int)rows_of(s), s->own.w.f_pad,
		(long long)images * (long long)pixels_of(&s->full), n->type);
}

/* Returns the maximum number of slices over all batch sizes: a smaller batch may have more
 * slices. */
static size_t tensor_max_slices(const struct tensor_net *n, const struct tensor_step *s)
{
	int max = 0;

	for (size_t images = 1; images <= n->images; images++) {
		const int slices = tensor_slices(n, s, images);

		max = slices > max ? slices : max;
	}
	return (size_t)max;
}

static void tensor_step_place(struct tensor_net *n, struct tensor_step *s, struct cuda_arena *a)
{
	const size_t parts = (size_t)s->parts, values = parts * weights_part_values(s);

	s->own.value = arena_take(a, values, sizeof(float));
	s->own.bf16 = n->type == KX_TYPE_BF16 ? arena_take(a, values, sizeof(uint16_t)) : NULL;
	if (n->forward_only)
		return;
	s->own.sum = n->sums ? n->sums + s->sum_at : NULL;
	s->workspace_floats =
		tensor_max_slices(n, s) * KX_WGRAD_ROWS(rows_of(s) - 1) * (size_t)s->own.w.f_pad;
	s->own.workspace = arena_take(a, parts * s->workspace_floats, sizeof(float));
}

/* Returns the number of floats of the workspace that winograd.h and products in fp32 need for a
 * step, for any batch. */
static size_t workspace_floats(const struct tensor_net *n, const struct tensor_step *s)
{
	const int c = s->fprop.c, f = s->own.w.f_pad, dgrad = !n->forward_only && s->needs_dx;
	size_t max = 0, floats;

	if (n->type == KX_TYPE_FP32 && dgrad)
		max = kx_product_fp32_ordered(s->dgrad, c);
	for (size_t images = 1; images <= n->images; images++) {
		floats = tiles_fprop(s, images) ? kx_winograd_floats(s->fprop, f, images) : 0;
		max = floats > max ? floats : max;
		if (n->forward_only)
			continue;
		floats = tiles_dgrad(s, images) ? kx_winograd_floats(s->dgrad, c, images) : 0;
		max = floats > max ? floats : max;
	}
	floats = tiles_wgrad(s) && !n->forward_only
			 ? kx_winograd_wgrad_floats(s->fprop, f, n->images)
			 : 0;
	return floats > max ? floats : max;
}

/* Returns 1 if the step is a pool that stores the places of its maxima for the backward pass. */
static int stores_argmax(const struct tensor_step *s)
{
	return s->layer->kind == LAYER_POOL && s->layer->size * s->layer->size <= UINT8_MAX + 1;
}

/* Returns 1 if the backward pass of a step reads the values of its input. */
static int needs_input(const struct tensor_net *n, const struct tensor_step *s)
{
	if (n->tensor[s->in].relu)
		return 1; /* dgrad uses the input as the mask of the ReLU before this step */
	return !(stores_argmax(s) || s->layer->kind == LAYER_ADD || s->layer->kind == LAYER_SKIP ||
		 s->layer->kind == LAYER_DROPOUT);
}

/* The buffers of a batch: values and gradients of tensor i, and the gradient of the output of step
 * i before its pool. */
#define TENSORS        (MODEL_MAX_LAYERS + 1)
#define TENSOR_BUFFERS (2 * TENSORS + MODEL_MAX_LAYERS)
struct tensor_buffers {
	struct cuda_buffer all[TENSOR_BUFFERS];
	struct cuda_buffer *value, *grad, *full; /* pointers into `all` */
};

/* Sets the instants of the buffers (struct cuda_buffer). The patches are written at instant 0, and
 * fprop of step i runs at instant 1 + i. The loss and the backward passes follow, from the last
 * step to the first. */
static void plan_times(const struct tensor_net *n, struct tensor_buffers *b)
{
	const int loss = n->n_steps + 1, last = n->n_tensors - 1, end = 2 * loss;

	b->value = b->all;
	b->grad = b->value + TENSORS;
	b->full = b->grad + TENSORS;
	for (int i = 0; i < TENSOR_BUFFERS; i++)
		b->all[i] = (struct cuda_buffer){.first = INT_MAX, .last = -1};
	cuda_buffer_use(&b->value[0], 0);
	/* kept, because the logits may be copied to the host */
	cuda_buffer_use(&b->value[last], end);
	cuda_buffer_use(&b->grad[last], loss);
	for (int i = 0; i < n->n_steps; i++) {
		const struct tensor_step *s = &n->step[i];
		const int backward = end - 1 - i;

		cuda_buffer_use(&b->value[s->in], 1 + i);
		cuda_buffer_use(&b->value[s->out], 1 + i);
		if (s->layer->kind == LAYER_ADD && s->other >= 0)
			cuda_buffer_use(&b->value[s->other], 1 + i);
		if (n->forward_only)
			continue;
		if (needs_input(n, s))
			cuda_buffer_use(&b->value[s->in], backward);
		if (s->layer->kind == LAYER_TANH || s->layer->kind == LAYER_SIGMOID)
			cuda_buffer_use(&b->value[s->out], backward);
		cuda_buffer_use(&b->grad[s->in], backward);
		cuda_buffer_use(&b->grad[s->out], backward);
		cuda_buffer_use(&b->full[i], backward);
		/* keep these buffers until the streams join, because the side stream uses them */
		if (runs_beside(n, s)) {
			cuda_buffer_use(&b->value[s->in], end);
			cuda_buffer_use(&b->grad[s->out], end);
			cuda_buffer_use(&b->full[i], end);
		}
		if (s->layer->kind == LAYER_SKIP && s->other >= 0)
			cuda_buffer_use(&b->grad[s->other], backward);
	}
}

/* Assigns memory to the tensors. Tensors that no kernel needs at the same time share memory. */
static void place_tensors(struct tensor_net *n, struct cuda_arena *a)
{
	struct tensor_buffers b;
	char *memory;

	plan_times(n, &b);
	for (int i = 0; i < n->n_tensors; i++) {
		const size_t values = n->images * image_values(&n->tensor[i].value);

		/* the last tensor has the logits, in fp32 */
		b.value[i].bytes = values * (i == n->n_tensors - 1 ? sizeof(float) : value_size(n));
		if (i > 0 && !n->forward_only)
			b.grad[i].bytes = values * value_size(n);
	}
	for (int i = 0; i < n->n_steps && !n->forward_only; i++)
		if (n->step[i].pooled)
			b.full[i].bytes =
				n->images * image_values(&n->step[i].full) * value_size(n);
	memory = arena_take(a, cuda_share(b.all, TENSOR_BUFFERS), 1);
	if (!memory)
		return;
	for (int i = 0; i < n->n_tensors; i++) {
		n->tensor[i].value.value = memory + b.value[i].at;
		n->tensor[i].grad = b.grad[i].bytes ? memory + b.grad[i].at : NULL;
	}
	for (int i = 0; i < n->n_steps; i++) {
		struct tensor_step *s = &n->step[i];

		s->full.value = s->pooled ? memory + b.full[i].at : n->tensor[s->out].grad;
	}
}

static void tensor_place(void *self, struct cuda_arena *a, uint32_t *trouble)
{
	struct tensor_net *n = self;
	size_t workspace = 0;

	(void)trouble;
	place_tensors(n, a);
	if (!n->forward_only)
		n->sums = arena_take(a, n->n_sums, sizeof(float));
	for (int i = 0; i < n->n_steps; i++) {
		struct tensor_step *s = &n->step[i];

		if (s->pooled || (stores_argmax(s) && !n->forward_only))
			s->argmax =
				arena_take(a, n->images, image_values(&n->tensor[s->out].value));
		if (has_weights(s)) {
			const size_t floats = workspace_floats(n, s);

			tensor_step_place(n, s, a);
			workspace = floats > workspace ? floats : workspace;
		}
		if (s->layer->kind == LAYER_BATCHNORM)
			cuda_batchnorm_place(&s->batchnorm, n->sums ? n->sums + s->sum_at : NULL,
				n->forward_only, a);
	}
	n->workspace = arena_take(a, workspace, sizeof(float));
	n->loss = arena_take(a, n->images, sizeof(float));
}

/* Fills nothing, because kernels write every value before any kernel reads it. Only waits for the
 * stream. */
static int tensor_fill(void *self, cudaStream_t stream)
{
	(void)self;
	return cudaStreamSynchronize(stream) ? PS_EDEVICE : PS_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Returns the factor of a step's products: 1 / 255 in the first layer if its pixels are integers,
 * else 1. */
static float scale_of(const struct tensor_net *n, const struct tensor_step *s)
{
	return s->number == 0 && n->patches.whole ? 1 / 255.0f : 1;
}

/* Returns the weights in the type that the matrix products read: the bf16 copy if there is one,
 * otherwise the fp32 values. */
static const void *weights_of(const struct kx_layer *own)
{
	return own->bf16 ? (const void *)own->bf16 : own->value;
}

static const float *biases_of(const struct kx_layer *own)
{
	return own->value + (size_t)own->w.taps * (size_t)own->w.c_pad * (size_t)own->w.f_pad;
}

static int winograd_fprop(const struct tensor_net *n, const struct tensor_step *s, int part,
	int images, cudaStream_t stream)
{
	const struct kx_layer own = weights_part(s, part);
	const int filter = part * own.w.f_pad;
	struct kx_winograd g = {.x = channel_at(n, n->tensor[s->in].value.value, part * s->fprop.c),
		.weights = own.value,
		.bias = biases_of(&own),
		.y = channel_at(n, n->tensor[s->out].value.value, filter),
		.workspace = n->workspace,
		.argmax = s->argmax ? s->argmax + filter : NULL,
		.window = s->fprop,
		.n = own.w.f_pad,
		.y_pitch = s->dgrad.pitch,
		.relu = s->relu,
		.pooled = s->pooled,
		.images = images};

	return kx_winograd(g, stream);
}

static int product_fprop(const struct tensor_net *n, const struct tensor_step *s, int part,
	int images, cudaStream_t stream)
{
	const struct kx_dense *out = &n->tensor[s->out].value;
	const struct kx_layer own = weights_part(s, part);
	const int filter = part * own.w.f_pad;
	struct kx_product g = {.a = channel_at(n, n->tensor[s->in].value.value, part * s->fprop.c),
		.b = weights_of(&own),
		.bias = biases_of(&own),
		.d = channel_at(n, out->value, filter),
		.argmax = s->argmax ? s->argmax + filter : NULL,
		.window = s->fprop,
		.by_image = kx_divisor((int)pixels_of(out)),
		.by_row = kx_divisor(out->w),
		.rows = (long long)images * (long long)pixels_of(&s->full),
		.n = own.w.f_pad,
		.b_rows = (int)rows_of(s) - 1,
		.pitch = own.w.f_pad,
		.d_pitch = s->dgrad.pitch,
		.relu = s->relu,
		.pooled = s->pooled,
		.wide = s->out == n->n_tensors - 1,
		.scale = scale_of(n, s)};

	return kx_product(g, n->type, stream);
}

static int weights_fprop_parts(
	const struct tensor_net *n, const struct tensor_step *s, int images, cudaStream_t stream)
{
	const int tiles = tiles_fprop(s, (size_t)images);
	int rc = PS_OK;

	for (int part = 0; part < s->parts && !rc; part++)
		rc = tiles ? winograd_fprop(n, s, part, images, stream)
			   : product_fprop(n, s, part, images, stream);
	return rc;
}

/* Returns dense tensor `d` with the values at `value`, for the layers of both general paths. */
static struct kx_tensor view_of(struct kx_dense d, void *value)
{
	return (struct kx_tensor){.value = value,
		.h = d.h,
		.w = d.w,
		.c = d.c,
		.row = d.w * d.c,
		.image = image_values(&d)};
}

/* Returns the values of the tensor s->other or, if `grad`, their gradients. */
static struct kx_tensor other_view(
	const struct tensor_net *n, const struct tensor_step *s, int grad)
{
	const struct tensor_values *t = &n->tensor[s->other < 0 ? 0 : s->other];

	if (s->other < 0)
		return (struct kx_tensor){.value = NULL};
	return view_of(t->value, grad ? t->grad : t->value.value);
}

static int tensor_step_fprop(const struct tensor_net *n, const struct tensor_step *s,
	const struct kx_batch *batch, cudaStream_t stream)
{
	const struct layer *l = s->layer;
	const struct kx_dense in = n->tensor[s->in].value, out = n->tensor[s->out].value;
	const struct kx_tensor x = view_of(in, in.value), y = view_of(out, out.value);
	const int bf16 = n->type == KX_TYPE_BF16;

	switch (l->kind) {
	case LAYER_CONV:
	case LAYER_FC:
		return weights_fprop_parts(n, s, batch->images, stream);
	case LAYER_DROPOUT:
		return kx_dropout(x, y, s->drop, NULL, *batch, bf16, stream);
	case LAYER_BATCHNORM:
		return kx_batchnorm(
			s->batchnorm.kernel, x, y, batch->images, batch->training, bf16, stream);
	default:
		break;
	}
	return cuda_plain_fprop(&(struct plain_layer){.layer = l,
					.x = x,
					.y = y,
					.other = other_view(n, s, 0),
					.argmax = s->argmax,
					.relu = s->relu,
					.images = batch->images,
					.bf16 = bf16},
		stream);
}

static int tensor_forward(void *self, struct kx_batch batch, cudaStream_t stream)
{
	const struct tensor_net *n = self;
	int rc = kx_patches(batch, n->patches, n->tensor[0].value.value, n->type, stream);

	for (int i = 0; i < n->n_steps && !rc; i++)
		rc = tensor_step_fprop(n, &n->step[i], &batch, stream);
	return rc;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Returns the mask of the gradient of the step's input, from channel `channel` on, or NULL. */
static const void *mask_of(const struct tensor_net *n, const struct tensor_step *s, int channel)
{
	const struct tensor_values *in = &n->tensor[s->in];

	return in->relu ? channel_at(n, in->value.value, channel) : NULL;
}

static struct kx_dense tensor_grad(const struct tensor_values *t)
{
	struct kx_dense e = t->value;

	e.value = t->grad;
	return e;
}

static int winograd_wgrad(const struct tensor_net *n, const struct tensor_step *s, int part,
	int images, cudaStream_t stream)
{
	const struct kx_layer own = weights_part(s, part);
	struct kx_winograd_wgrad g = {
		.x = channel_at(n, n->tensor[s->in].value.value, part * s->fprop.c),
		.dy = channel_at(n, s->full.value, part * own.w.f_pad),
		.gradients = own.workspace,
		.workspace = n->workspace,
		.window = s->fprop,
		.n = own.w.f_pad,
		.dy_pitch = s->dgrad.pitch,
		.images = images};

	return kx_winograd_wgrad(g, stream);
}

static int winograd_dgrad(const struct tensor_net *n, const struct tensor_step *s, int part,
	int images, cudaStream_t stream)
{
	const struct kx_layer own = weights_part(s, part);
	struct kx_winograd g = {.x = channel_at(n, s->full.value, part * own.w.f_pad),
		.weights = own.value,
		.mask = mask_of(n, s, part * s->fprop.c),
		.y = channel_at(n, n->tensor[s->in].grad, part * s->fprop.c),
		.workspace = n->workspace,
		.window = s->dgrad,
		.n = s->fprop.c,
		.y_pitch = s->fprop.pitch,
		.dgrad = 1,
		.images = images};

	return kx_winograd(g, stream);
}

static int product_wgrad(const struct tensor_net *n, const struct tensor_step *s, int part,
	int images, cudaStream_t stream)
{
	const struct kx_layer own = weights_part(s, part);
	struct kx_product_wgrad g = {
		.a = channel_at(n, n->tensor[s->in].value.value, part * s->fprop.c),
		.b = channel_at(n, s->full.value, part * own.w.f_pad),
		.workspace = own.workspace,
		.window = s->fprop,
		.by_image = kx_divisor((int)pixels_of(&s->full)),
		.by_row = kx_divisor(s->full.w),
		.pixels = (long long)images * (long long)pixels_of(&s->full),
		.m = (int)rows_of(s),
		.n = own.w.f_pad,
		.b_pitch = s->dgrad.pitch,
		.ones = s->number > 0,
		.slices = tensor_slices(n, s, (size_t)images),
		.stride_rows = KX_WGRAD_ROWS(rows_of(s) - 1),
		.scale = scale_of(n, s),
		.joins = stream == n->side};

	return kx_product_wgrad(g, n->type, stream);
}

/* Makes the kernels that are launched on `then` after this call wait for those that were launched
 * on `first` before it. */
static int stream_waits(cudaStream_t first, cudaEvent_t event, cudaStream_t then)
{
	return cudaEventRecord(event, first) || cudaStreamWaitEvent(then, event, 0) ? PS_EDEVICE
										    : PS_OK;
}

/* Launches wgrad of a step, on the side stream if it can run there beside dgrad. */
static int tensor_wgrad(
	const struct tensor_net *n, const struct tensor_step *s, int images, cudaStream_t stream)
{
	const int beside = runs_beside(n, s), tiles = tiles_wgrad(s);
	cudaStream_t on = beside ? n->side : stream;
	int rc = beside ? stream_waits(stream, n->dy_ready, n->side) : PS_OK;

	for (int part = 0; part < s->parts && !rc; part++)
		rc = tiles ? winograd_wgrad(n, s, part, images, on)
			   : product_wgrad(n, s, part, images, on);
	return rc;
}

static int product_dgrad(const struct tensor_net *n, const struct tensor_step *s, int part,
	int images, cudaStream_t stream)
{
	const struct tensor_values *in = &n->tensor[s->in];
	const struct kx_layer own = weights_part(s, part);
	const int conv = s->layer->kind == LAYER_CONV, channel = part * s->fprop.c;
	const int pixels = conv ? (int)pixels_of(&in->value) : 1;
	struct kx_product g = {.a = channel_at(n, s->full.value, part * own.w.f_pad),
		.b = weights_of(&own),
		.mask = mask_of(n, s, channel),
		.d = channel_at(n, in->grad, channel),
		.window = s->dgrad,
		.by_image = kx_divisor(pixels),
		.by_row = kx_divisor(conv ? in->value.w : 1),
		.rows = (long long)images * pixels,
		.n = s->fprop.c,
		.pitch = own.w.f_pad,
		.d_pitch = s->fprop.pitch,
		.dgrad = 1,
		.ordered = n->workspace,
		.scale = 1};

	return kx_product(g, n->type, stream);
}

static int weights_dgrad_parts(
	const struct tensor_net *n, const struct tensor_step *s, int images, cudaStream_t stream)
{
	const int tiles = tiles_dgrad(s, (size_t)images);
	int rc = PS_OK;

	for (int part = 0; part < s->parts && !rc; part++)
		rc = tiles ? winograd_dgrad(n, s, part, images, stream)
			   : product_dgrad(n, s, part, images, stream);
	return rc;
}

static int tensor_step_backward(const struct tensor_net *n, const struct tensor_step *s,
	const struct kx_batch *batch, cudaStream_t stream)
{
	const struct layer *l = s->layer;
	const struct tensor_values *in = &n->tensor[s->in], *out = &n->tensor[s->out];
	const void *mask = mask_of(n, s, 0);
	const struct kx_tensor x = view_of(in->value, in->value.value);
	const struct kx_tensor dx = view_of(in->value, s->needs_dx ? in->grad : NULL);
	const struct kx_tensor dy = view_of(out->value, out->grad);
	const int bf16 = n->type == KX_TYPE_BF16;
	int rc = PS_OK;

	if (s->pooled)
		rc = kx_unpool(
			tensor_grad(out), s->argmax, s->full, batch->images, n->type, stream);
	if (!rc && has_weights(s))
		rc = tensor_wgrad(n, s, batch->images, stream);
	if (l->kind == LAYER_BATCHNORM)
		return kx_batchnorm_backward(
			s->batchnorm.kernel, x, dx, dy, mask, batch->images, bf16, stream);
	if (rc || !s->needs_dx)
		return rc;
	switch (l->kind) {
	case LAYER_CONV:
	case LAYER_FC:
		return weights_dgrad_parts(n, s, batch->images, stream);
	case LAYER_DROPOUT:
		return kx_dropout(dy, dx, s->drop, mask, *batch, bf16, stream);
	default:
		break;
	}
	return cuda_plain_dgrad(&(struct plain_layer){.layer = l,
					.x = x,
					.y = view_of(out->value, out->value.value),
					.dx = dx,
					.dy = dy,
					.other = other_view(n, s, 1),
					.other_stride = s->other_stride,
					.argmax = s->argmax,
					.mask = mask,
					.images = batch->images,
					.bf16 = bf16},
		stream);
}

/* Runs the forward and the backward pass, from the pixels to the split-K slices of the gradient. */
static int forward_backward(struct tensor_net *n, struct kx_batch batch, cudaStream_t stream)
{
	const struct tensor_values *last = &n->tensor[n->n_tensors - 1];
	int rc = tensor_forward(n, batch, stream);

	if (!rc)
		rc = kx_dense_loss(last->value.value, last->grad, n->loss, (int)n->model->classes,
			last->value.c, batch, n->type, stream);
	for (int i = n->n_steps; i-- > 0 && !rc;)
		rc = tensor_step_backward(n, &n->step[i], &batch, stream);
	return rc || !n->beside ? rc : stream_waits(n->side, n->wgrad_done, stream);
}

/* Collects the layers with weights from step *step on, at most KX_LAYERS, and advances *step. */
static struct kx_layers tensor_layers_from(const struct tensor_net *n, int *step, size_t images)
{
	struct kx_layers all = {.n = 0};

	for (; *step < n->n_steps && all.n < KX_LAYERS; ++*step) {
		const struct tensor_step *s = &n->step[*step];

		if (s->layer->kind == LAYER_BATCHNORM &&
			!cuda_batchnorm_append(&s->batchnorm, &all))
			break;
		if (!has_weights(s))
			continue;
		if (all.n + s->parts > KX_LAYERS)
			break;
		for (int part = 0; part < s->parts; part++) {
			all.layer[all.n] = weights_part(s, part);
			all.layer[all.n++].slices = tensor_slices(n, s, images);
		}
	}
	return all;
}

static int tensor_gradient(
	void *self, struct kx_batch batch, float *grad, double *loss, cudaStream_t stream)
{
	struct tensor_net *n = self;
	struct kx_losses losses = {.loss = n->loss, .sum = loss, .images = batch.images};
	int rc = forward_backward(n, batch, stream);

	for (int i = 0; i < n->n_steps && !rc; losses.loss = NULL) {
		struct kx_layers all = tensor_layers_from(n, &i, (size_t)batch.images);

		all.joins = n->beside;
		rc = kx_reduce_gradient(all, losses, grad, stream);
	}
	return rc;
}

/* ---- local training -------------------------------------------------------------------------- */

static int tensor_load(void *self, const float *params, cudaStream_t stream)
{
	const struct tensor_net *n = self;
	int rc = PS_OK;

	for (int i = 0; i < n->n_steps && !rc;)
		rc = kx_pack(tensor_layers_from(n, &i, 1), params, stream);
	return rc;
}

static int tensor_start(void *self, cudaStream_t stream)
{
	const struct tensor_net *n = self;

	return cudaMemsetAsync(n->sums, 0, n->n_sums * sizeof(float), stream) ? PS_EDEVICE : PS_OK;
}

static int tensor_train(void *self, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream)
{
	struct tensor_net *n = self;
	int rc = PS_OK;

	for (int i = 0; i < steps && !rc; i++) {
		struct kx_losses losses = {
			.loss = n->loss, .sum = loss, .images = batch.images, .add = 1};

		rc = forward_backward(n, batch, stream);
		for (int l = 0; l < n->n_steps && !rc; losses.loss = NULL) {
			struct kx_layers all = tensor_layers_from(n, &l, (size_t)batch.images);

			all.joins = n->beside;
			rc = kx_product_sgd(all, losses, now, stream);
		}
	}
	return rc;
}

static int tensor_save_one(const struct tensor_net *n, int sums, float *to, cudaStream_t stream)
{
	int rc = PS_OK;

	for (int i = 0; i < n->n_steps && to && !rc;)
		rc = kx_unpack(tensor_layers_from(n, &i, 1), sums, to, stream);
	return rc;
}

static int tensor_save(void *self, float *params, float *sum, cudaStream_t stream)
{
	int rc = tensor_save_one(self, 0, params, stream);

	return rc ? rc : tensor_save_one(self, 1, sum, stream);
}

/* ---- struct cuda_path ------------------------------------------------------------------------ */

/* Returns 1 if the model begins with the two convolutions that conv1.h and conv2.h fuse. */
static int fused_pair(const struct model *m)
{
	const struct layer *l = m->layer;

	return m->n_layers > 6 && !m->preprocess.n_norm && fuses_pool(l, m->n_layers) &&
	       fuses_pool(l + 3, m->n_layers - 3) && l[0].in.c == 1 && l[0].in.h == CONV1_SIDE &&
	       l[0].in.w == CONV1_SIDE && l[0].size == CONV2_SIZE && l[0].stride == 1 &&
	       l[0].out.c == CONV2_CHANNELS && l[0].out.h == 2 * CONV2_IN &&
	       l[3].size == CONV2_SIZE && l[3].stride == 1 && l[3].groups == 1 &&
	       l[3].out.c == CONV2_FILTERS && l[3].out.h == CONV2_OUT;
}

static int tensor_fits(const struct model *m, const struct path_options *o)
{
	return o->precision != KX_TF32X3 && m->layer[m->n_layers - 1].kind == LAYER_FC &&
	       !(o->fused && fused_pair(m));
}

static const enum kx_type type_for[] = {
	[KX_FP32] = KX_TYPE_FP32, [KX_TF32] = KX_TYPE_TF32, [KX_BF16] = KX_TYPE_BF16};

static int open_side(struct tensor_net *n, struct err *e)
{
	cudaError_t rc = cudaStreamCreateWithFlags(&n->side, cudaStreamNonBlocking);

	if (!rc)
		rc = cudaEventCreateWithFlags(&n->dy_ready, cudaEventDisableTiming);
	if (!rc)
		rc = cudaEventCreateWithFlags(&n->wgrad_done, cudaEventDisableTiming);
	return rc ? err_set(e, PS_EDEVICE, "device cuda: a stream: %s", cudaGetErrorString(rc))
		  : PS_OK;
}

static void tensor_close(void *self)
{
	struct tensor_net *n = self;

	if (n->side)
		cudaStreamDestroy(n->side);
	if (n->dy_ready)
		cudaEventDestroy(n->dy_ready);
	if (n->wgrad_done)
		cudaEventDestroy(n->wgrad_done);
	free(n);
}

static int tensor_open(
	void **self, const struct model *m, const struct path_options *o, struct err *e)
{
	struct tensor_net *n = mem_try(1, sizeof(*n));
	int rc;

	*self = NULL;
	if (!n)
		return err_set(e, PS_ENOMEM, "no memory for model \"%s\"", m->text);
	n->model = m;
	n->type = type_for[o->precision];
	n->images = o->images;
	n->forward_only = o->forward_only;
	rc = tensor_plan(n, e);
	if (!rc && n->beside)
		rc = open_side(n, e);
	if (rc) {
		tensor_close(n);
		return rc;
	}
	*self = n;
	return PS_OK;
}

static void tensor_kernel(const void *self, size_t layer, size_t batch, char *text, size_t size)
{
	const struct tensor_net *n = self;
	static const char *const names[] = {
		[KX_TYPE_FP32] = "ffma", [KX_TYPE_TF32] = "tf32", [KX_TYPE_BF16] = "bf16"};
	const char *math = names[n->type], *tiles = "winograd";

	for (int i = 0; i < n->n_steps; i++) {
		const struct tensor_step *s = &n->step[i];

		if (s->number != layer)
			continue;
		snprintf(text, size, "tensor:%s/%s/%s", tiles_fprop(s, batch) ? tiles : math,
			tiles_wgrad(s) ? tiles : math,
			tiles_dgrad(s, batch) ? tiles
			: s->needs_dx         ? math
					      : "none");
	}
}

static const float *tensor_logits(const void *self, size_t *width)
{
	const struct tensor_net *n = self;
	const struct kx_dense *last = &n->tensor[n->n_tensors - 1].value;

	*width = (size_t)last->c;
	return last->value;
}

const struct cuda_path cuda_tensor = {
	.fits = tensor_fits,
	.open = tensor_open,
	.close = tensor_close,
	.place = tensor_place,
	.fill = tensor_fill,
	.load = tensor_load,
	.kernel = tensor_kernel,
	.forward = tensor_forward,
	.logits = tensor_logits,
	.gradient = tensor_gradient,
	.start = tensor_start,
	.train = tensor_train,
	.save = tensor_save,
};
