/* memory_plan.c - see net.h: where a model's values, parameters and tables lie. */
#include <stdlib.h>
#include "kernels/cuda/net.h"

size_t net_rows(const struct net_step *s)
{
	return (size_t)s->w.taps * (size_t)s->w.c_pad + 1;
}

static struct net_table *const *step_all(struct net_step *s, struct net_table **list)
{
	list[0] = &s->taps;
	list[1] = &s->cells;
	list[2] = &s->back_taps;
	list[3] = &s->back_cells;
	list[4] = &s->spots;
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

/* How many shares the sum over images and spots is cut into: enough to fill the GPU. */
static size_t outer_splits(const struct net_step *s, size_t images)
{
	const size_t enough = 264, m = (size_t)s->w.taps * (size_t)s->w.c_pad;
	size_t tiles = s->spots.n * ((images + KX_K_TILE - 1) / KX_K_TILE);
	size_t blocks = (m / KX_ROW_TILE + 1) * (((size_t)s->w.f_pad + 63) / 64);
	size_t splits = enough / blocks;

	splits = splits < tiles ? splits : tiles;
	return splits ? splits : 1;
}

int net_splits(const struct net_step *s, size_t images)
{
	switch (s->kind) {
	case NET_FIRST:
		return s->before_second ? kx_second_error_parts((int)images) : FIRST_PARTS;
	case NET_SECOND:
		return kx_second_parts((int)images);
	default:
		return (int)outer_splits(s, images);
	}
}

const float *net_biases(const struct net_step *s)
{
	return s->own.value + (net_rows(s) - 1) * (size_t)s->w.f_pad;
}

/* The sums of all layers lie one behind the other. */
static void own_place(struct net *n, struct net_step *s, struct cuda_arena *a)
{
	const size_t filters = (size_t)s->w.f_pad, values = net_rows(s) * filters;
	size_t splits = (size_t)net_splits(s, n->images);

	if (s->before_second && splits < SECOND_FEW_PARTS) /* smaller batches may have more */
		splits = SECOND_FEW_PARTS;
	s->own = (struct kx_layer){.w = s->w,
		.value = arena_take(a, values, sizeof(float)),
		.sum = n->sums ? n->sums + s->sum_at : NULL,
		.partial = arena_take(
			a, splits * KX_OUTER_ROWS(net_rows(s) - 1), filters * sizeof(float))};
}

static void step_place(struct net_step *s, struct cuda_arena *a)
{
	struct net_table *list[STEP_TABLES];

	if (s->learns)
		s->own.backward = arena_take(a, net_rows(s) * (size_t)s->w.f_pad, sizeof(float));
	step_all(s, list);
	for (int t = 0; t < STEP_TABLES; t++)
		list[t]->device = arena_take(a, list[t]->n, list[t]->size);
}

static void first_place(struct net *n, struct net_step *s, struct cuda_arena *a)
{
	struct kx_first *f = &s->first;
	size_t filters = (size_t)f->f, positions = shape_count(s->layer[2].out) / filters;

	f->fragments = arena_take(a, kx_first_fragments(f->size, f->f), sizeof(uint32_t));
	f->winner = arena_take(a, n->images * positions, filters);
	f->bias = net_biases(s);
	f->partial = s->own.partial;
	if (s->before_second)
		f->pieces = arena_take(a, n->images * SECOND_IMAGE, sizeof(uint16_t));
	f->out = n->plane[s->out].value;
	f->error = n->plane[s->out].error;
	s->own.first = f->fragments;
	s->own.first_size = f->size;
}

/* Behind first_place of the step before. */
static void second_place(struct net *n, struct net_step *s, struct cuda_arena *a)
{
	const struct net_plane *out = &n->plane[s->out];

	s->second = (struct kx_second){
		.forward = arena_take(a, SECOND_PIECES * SECOND_WEIGHTS, sizeof(uint16_t)),
		.backward = arena_take(a, SECOND_WEIGHTS, sizeof(uint16_t)),
		.bias = net_biases(s),
		.in = s[-1].first.pieces,
		.in_winner = s[-1].first.winner,
		.out = out->value,
		.winner = arena_take(a, n->images, out->value.image),
		.out_error = out->error,
		.most = arena_take(a, (n->images + 7) / 8, sizeof(float))};
	s->own.second = s->second.forward;
	s->own.second_backward = s->second.backward;
}

/* What the last two steps are, as one. */
static void head_place(struct net *n)
{
	const struct net_step *s = &n->step[n->n_steps - 2];
	const struct net_plane *in = &n->plane[s[0].in], *hidden = &n->plane[s[0].out];
	const struct net_plane *out = &n->plane[s[1].out];

	n->head = (struct kx_head){.inputs = (int)in->value.image,
		.classes = s[1].w.f,
		.width = (int)out->value.image,
		.in = in->value.value,
		.mask = in->relu ? in->value.value : NULL,
		.weight = s[0].own.value,
		.transposed = s[0].own.backward,
		.bias = net_biases(&s[0]),
		.class_weight = s[1].own.value,
		.class_bias = net_biases(&s[1]),
		.hidden = hidden->value.value,
		.hidden_error = hidden->error,
		.scores = out->value.value,
		.score_error = out->error,
		.loss = n->loss,
		.in_error = in->error};
}

static void planes_place(struct net *n, struct cuda_arena *a)
{
	for (int i = 0; i < n->n_planes; i++) {
		struct net_plane *p = &n->plane[i];
		size_t image = p->value.image * sizeof(float);
		p->value.value = arena_take(a, n->images, image);
		p->error = i > 0 ? arena_take(a, n->images, image) : NULL;
	}
}

void net_place(struct net *n, struct cuda_arena *a)
{
	planes_place(n, a);
	n->sums = arena_take(a, n->n_sums, sizeof(float));
	for (int i = 0; i < n->n_steps; i++) {
		struct net_step *s = &n->step[i];
		if (s->w.taps)
			own_place(n, s, a);
		if (s->kind == NET_WEIGHTS)
			step_place(s, a);
		if (s->kind == NET_FIRST)
			first_place(n, s, a);
		if (s->kind == NET_SECOND)
			second_place(n, s, a);
	}
	n->loss = arena_take(a, n->images, sizeof(float));
	if (n->has_head)
		head_place(n);
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
	const struct kx_first *f = &s->first;

	if (s->kind == NET_FIRST &&
		cudaMemsetAsync(f->fragments, 0,
			kx_first_fragments(f->size, f->f) * sizeof(uint32_t), stream))
		return PS_EDEVICE;
	return s->kind == NET_WEIGHTS ? tables_copy(s, stream) : PS_OK;
}

int net_fill(struct net *n, cudaStream_t stream)
{
	for (int i = 0; i < n->n_steps; i++)
		if (step_fill(&n->step[i], stream))
			return PS_EDEVICE;
	for (int i = 0; i < n->n_planes; i++) {
		size_t bytes = n->images * n->plane[i].value.image * sizeof(float);
		if (cudaMemsetAsync(n->plane[i].value.value, 0, bytes, stream))
			return PS_EDEVICE;
		if (i && cudaMemsetAsync(n->plane[i].error, 0, bytes, stream))
			return PS_EDEVICE;
	}
	return cudaStreamSynchronize(stream) ? PS_EDEVICE : PS_OK;
}
