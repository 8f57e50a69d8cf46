/* memory_plan.c - assigns device memory to the values, parameters and tables of a model. See
 * net.h. */
#include <stdlib.h>
#include "kernels/cuda/net.h"

size_t net_rows(const struct net_step *s)
{
	return (size_t)s->w.taps * (size_t)s->w.c_pad + 1;
}

static struct net_table *const *step_all(struct net_step *s, struct net_table **list)
{
	list[0] = &s->fprop_runs;
	list[1] = &s->fprop_pixels;
	list[2] = &s->dgrad_runs;
	list[3] = &s->dgrad_pixels;
	list[4] = &s->wgrad_positions;
	return list;
}
#define STEP_TABLES 5

void net_release(struct net *n)
{
	struct net_table *list[STEP_TABLES];

	for (int i = 0; i < n->n_steps; i++) {
		step_all(&n->step[i], list);
		for (int t = 0; t < STEP_TABLES; t++)
			free(list[t]->host);
	}
	n->n_steps = 0;
}

/* Returns the number of split-K slices of the sum over images and positions. With this number, the
 * blocks of wgrad fill the GPU. */
static size_t wgrad_slices(const struct net_step *s, size_t images)
{
	const size_t enough = 264, m = (size_t)s->w.taps * (size_t)s->w.c_pad;
	size_t tiles = s->wgrad_positions.n * ((images + KX_K_TILE - 1) / KX_K_TILE);
	size_t blocks = (m / KX_M_TILE + 1) * (((size_t)s->w.f_pad + 63) / 64);
	size_t slices = enough / blocks;

	slices = slices < tiles ? slices : tiles;
	return slices ? slices : 1;
}

int net_slices(const struct net_step *s, size_t images)
{
	switch (s->kind) {
	case NET_CONV1:
		return s->before_conv2 ? kx_conv2_dgrad_slices((int)images) : CONV1_SLICES;
	case NET_CONV2:
		return kx_conv2_wgrad_slices((int)images);
	default:
		return (int)wgrad_slices(s, images);
	}
}

const float *net_biases(const struct net_step *s)
{
	return s->own.value + (net_rows(s) - 1) * (size_t)s->w.f_pad;
}

/* Assigns memory to the parameters of a step. The sums of gradients of all layers are one
 * contiguous vector (net.sums). */
static void own_place(struct net *n, struct net_step *s, struct cuda_arena *a)
{
	const size_t filters = (size_t)s->w.f_pad, values = net_rows(s) * filters;
	size_t slices = (size_t)net_slices(s, n->images);

	/* a batch that is smaller than the largest one may need more slices */
	if (s->before_conv2 && slices < CONV2_DGRAD_SLICES)
		slices = CONV2_DGRAD_SLICES;
	s->own = (struct kx_layer){.w = s->w, .value = arena_take(a, values, sizeof(float))};
	if (n->forward_only)
		return;
	s->own.sum = n->sums ? n->sums + s->sum_at : NULL;
	s->own.workspace =
		arena_take(a, slices * KX_WGRAD_ROWS(net_rows(s) - 1), filters * sizeof(float));
}

static void step_place(const struct net *n, struct net_step *s, struct cuda_arena *a)
{
	struct net_table *list[STEP_TABLES];
	/* in fprop, the classifier head also reads the copy of the weights for dgrad
	 * (kx_layer.dgrad) */
	const int is_hidden = n->has_classifier && s == &n->step[n->n_steps - 2];

	if (s->needs_dx && (!n->forward_only || is_hidden))
		s->own.dgrad = arena_take(a, net_rows(s) * (size_t)s->w.f_pad, sizeof(float));
	step_all(s, list);
	for (int t = 0; t < STEP_TABLES; t++)
		list[t]->device = arena_take(a, list[t]->n, list[t]->size);
}

static void conv1_place(struct net *n, struct net_step *s, struct cuda_arena *a)
{
	struct kx_conv1 *f = &s->conv1;
	size_t filters = (size_t)f->f, positions = shape_count(s->layer[2].out) / filters;

	f->fragments = arena_take(a, kx_conv1_fragments(f->size, f->f), sizeof(uint32_t));
	f->argmax = arena_take(a, n->images * positions, filters);
	f->bias = net_biases(s);
	f->workspace = s->own.workspace;
	f->trouble = n->trouble;
	if (s->before_conv2)
		f->y_hi_lo = arena_take(a, n->images * CONV2_IMAGE, sizeof(uint16_t));
	f->y = n->tensor[s->out].value;
	f->dy = n->tensor[s->out].grad;
	s->own.conv1 = f->fragments;
	s->own.conv1_size = f->size;
}

/* Requires that conv1_place has run for the previous step. */
static void conv2_place(struct net *n, struct net_step *s, struct cuda_arena *a)
{
	const struct net_tensor *out = &n->tensor[s->out];

	s->conv2 = (struct kx_conv2){
		.w_fprop = arena_take(a, CONV2_TERMS * CONV2_WEIGHTS, sizeof(uint16_t)),
		.w_dgrad = arena_take(a, CONV2_WEIGHTS, sizeof(uint16_t)),
		.bias = net_biases(s),
		.x = s[-1].conv1.y_hi_lo,
		.x_argmax = s[-1].conv1.argmax,
		.y = out->value,
		.argmax = arena_take(a, n->images, out->value.image),
		.dy = out->grad,
		.dy_amax = arena_take(a, (n->images + 7) / 8, sizeof(float))};
	s->own.conv2_fprop = s->conv2.w_fprop;
	s->own.conv2_dgrad = s->conv2.w_dgrad;
	s->own.trouble = n->trouble;
}

/* Describes the last two steps as one classifier head. */
static void classifier_place(struct net *n)
{
	const struct net_step *s = &n->step[n->n_steps - 2];
	const struct net_tensor *in = &n->tensor[s[0].in], *hidden = &n->tensor[s[0].out];
	const struct net_tensor *out = &n->tensor[s[1].out];

	n->classifier = (struct kx_classifier){.inputs = (int)in->value.image,
		.classes = s[1].w.f,
		.width = (int)out->value.image,
		.x = in->value.value,
		.mask = in->relu ? in->value.value : NULL,
		.weight = s[0].own.value,
		.transposed = s[0].own.dgrad,
		.bias = net_biases(&s[0]),
		.class_weight = s[1].own.value,
		.class_bias = net_biases(&s[1]),
		.hidden = hidden->value.value,
		.d_hidden = hidden->grad,
		.logits = out->value.value,
		.d_logits = out->grad,
		.loss = n->loss,
		.dx = in->grad};
}

static void tensors_place(struct net *n, struct cuda_arena *a)
{
	for (int i = 0; i < n->n_tensors; i++) {
		struct net_tensor *p = &n->tensor[i];
		size_t image = p->value.image * sizeof(float);

		p->value.value = arena_take(a, n->images, image);
		if (i > 0 && !n->forward_only)
			p->grad = arena_take(a, n->images, image);
	}
}

void net_place(struct net *n, struct cuda_arena *a)
{
	tensors_place(n, a);
	if (!n->forward_only)
		n->sums = arena_take(a, n->n_sums, sizeof(float));
	for (int i = 0; i < n->n_steps; i++) {
		struct net_step *s = &n->step[i];

		if (s->w.taps)
			own_place(n, s, a);
		if (s->kind == NET_BATCHNORM)
			cuda_batchnorm_place(&s->batchnorm, n->sums ? n->sums + s->sum_at : NULL,
				n->forward_only, a);
		if (s->kind == NET_WEIGHTS)
			step_place(n, s, a);
		if (s->kind == NET_CONV1)
			conv1_place(n, s, a);
		if (s->kind == NET_CONV2)
			conv2_place(n, s, a);
	}
	n->loss = arena_take(a, n->images, sizeof(float));
	if (n->has_classifier)
		classifier_place(n);
}

static int tables_copy(struct net_step *s, cudaStream_t stream)
{
	struct net_table *list[STEP_TABLES];

	step_all(s, list);
	for (int t = 0; t < STEP_TABLES; t++)
		if (list[t]->n &&
			cudaMemcpyAsync(list[t]->device, list[t]->host, list[t]->n * list[t]->size,
				cudaMemcpyHostToDevice, stream))
			return PS_EDEVICE;
	return PS_OK;
}

static int step_fill(struct net_step *s, cudaStream_t stream)
{
	const struct kx_conv1 *f = &s->conv1;

	if (s->kind == NET_CONV1 &&
		cudaMemsetAsync(f->fragments, 0,
			kx_conv1_fragments(f->size, f->f) * sizeof(uint32_t), stream))
		return PS_EDEVICE;
	return s->kind == NET_WEIGHTS ? tables_copy(s, stream) : PS_OK;
}

int net_fill(struct net *n, cudaStream_t stream)
{
	for (int i = 0; i < n->n_steps; i++)
		if (step_fill(&n->step[i], stream))
			return PS_EDEVICE;
	for (int i = 0; i < n->n_tensors; i++) {
		size_t bytes = n->images * n->tensor[i].value.image * sizeof(float);

		if (cudaMemsetAsync(n->tensor[i].value.value, 0, bytes, stream))
			return PS_EDEVICE;
		if (n->tensor[i].grad && cudaMemsetAsync(n->tensor[i].grad, 0, bytes, stream))
			return PS_EDEVICE;
	}
	return cudaStreamSynchronize(stream) ? PS_EDEVICE : PS_OK;
}
