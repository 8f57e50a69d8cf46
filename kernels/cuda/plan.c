/*
 * plan.c - plans the tensors, steps and tables of a model. See net.h.
 */
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "kernels/cuda/net.h"
#include "kernels/device/device.h"

static int pad_quad(size_t n)
{
	return (int)((n + KX_QUAD - 1) / KX_QUAD * KX_QUAD);
}

/* ---- tensors and steps ----------------------------------------------------------------------- */

static struct net_tensor tensor_of(struct shape s, int relu)
{
	return (struct net_tensor){
		.value = {.h = (int)s.h, .w = (int)s.w, .c = pad_quad(s.c)}, .relu = relu};
}

/* Adds the padding of convolution `l` to its input tensor. The tensor contains the padding. */
static void tensor_pad(struct net_tensor *p, const struct layer *l)
{
	p->pad_top = (int)l->pad_top;
	p->pad_left = (int)l->pad_left;
	p->pad_bottom = (int)l->pad_bottom;
	p->pad_right = (int)l->pad_right;
}

static int tensor_measure(struct net_tensor *p)
{
	struct kx_tensor *v = &p->value;
	size_t w = (size_t)v->w + (size_t)p->pad_left + (size_t)p->pad_right;
	size_t h = (size_t)v->h + (size_t)p->pad_top + (size_t)p->pad_bottom;
	size_t row = w * (size_t)v->c;

	if (__builtin_mul_overflow(row, h, &v->image) || v->image > INT32_MAX)
		return PS_ENOMEM;
	v->row = (int)row;
	v->origin = p->pad_top * v->row + p->pad_left * v->c;
	return PS_OK;
}

static void step_weights(struct net_step *s, const struct model *m)
{
	const struct layer *l = s->layer;
	int conv = l->kind == LAYER_CONV;
	struct kx_weights *w = &s->w;

	w->f = (int)l->out.c;
	w->c = (int)l->in.c;
	w->f_pad = pad_quad(l->out.c);
	w->c_pad = pad_quad(l->in.c);
	w->taps = (int)(conv ? l->size * l->size : l->in.h * l->in.w);
	w->to_tap = conv ? w->f_pad * w->c_pad : w->c_pad;
	w->to_f = conv ? w->c_pad : w->taps * w->c_pad;
	w->groups = conv ? (int)l->groups : 1;
	w->weight = m->tensor[l->weight].offset;
	w->bias = m->tensor[l->bias].offset;
	s->run_length = (conv ? (int)l->size : w->taps) * w->c_pad;
}

/* Returns 1 if the kernels of conv1.h can run the first three layers. */
static int fits_conv1(const struct net *n, const struct net_step *s)
{
	const struct model *m = n->model;
	const struct layer *l = m->layer;

	return n->fused && s->number == 0 && m->n_layers > 3 && !m->preprocess.n_norm &&
	       l[0].kind == LAYER_CONV && l[1].kind == LAYER_RELU && l[2].kind == LAYER_POOL &&
	       l[0].in.c == 1 && l[0].in.h == CONV1_SIDE && l[0].in.w == CONV1_SIDE &&
	       (l[0].size == 3 || l[0].size == 5) && l[0].stride == 1 && !l[0].pad_top &&
	       !l[0].pad_left && !l[0].pad_bottom && !l[0].pad_right &&
	       l[0].out.c % CONV1_LANES == 0 && cuda_pool_2x2(&l[2]);
}

/* Returns 1 if the kernels of conv2.h can run step s and the two layers after it. The step must
 * directly follow NET_CONV1, and another layer must follow the pool, because the dgrad of that
 * layer has then applied the ReLU mask to dY. */
static int fits_conv2(const struct net *n, const struct net_step *s)
{
	const struct layer *l = s->layer;

	return n->fused && n->precision != KX_FP32 && s > n->step && s[-1].kind == NET_CONV1 &&
	       s->number + 3 < n->model->n_layers && l[0].kind == LAYER_CONV &&
	       l[1].kind == LAYER_RELU && l[2].kind == LAYER_POOL && l[0].in.c == CONV2_CHANNELS &&
	       l[0].in.h == CONV2_IN && l[0].in.w == CONV2_IN && l[0].size == CONV2_SIZE &&
	       l[0].stride == 1 && l[0].groups == 1 && l[0].out.c == CONV2_FILTERS &&
	       l[0].out.h == CONV2_OUT && cuda_pool_2x2(&l[2]);
}

/* Returns the kind of a step that runs only this layer. (NET_CONV1 and NET_CONV2 run three layers;
 * net_add_step chooses them.) */
static enum net_kind layer_kind(const struct layer *l)
{
	switch (l->kind) {
	case LAYER_CONV:
	case LAYER_FC:
		return NET_WEIGHTS;
	case LAYER_POOL:
		return cuda_pool_covers(l) ? NET_POOL : NET_PLAIN;
	case LAYER_DROPOUT:
		return NET_DROPOUT;
	case LAYER_BATCHNORM:
		return NET_BATCHNORM;
	default:
		return NET_PLAIN;
	}
}

/* Fuses the first conv, ReLU and pool into the step. The input of this step has one channel, which
 * is not padded to four channels. */
static void conv1_step(struct net *n, struct net_step *s)
{
	struct kx_weights *w = &s->w;

	s->kind = NET_CONV1;
	w->c_pad = 1;
	s->conv1 = (struct kx_conv1){.size = (int)s->layer->size, .f = w->f};
	n->tensor[s->out] = tensor_of(s->layer[2].out, 1);
}

/* Fuses the second conv, ReLU and pool into the step. */
static void conv2_step(struct net *n, struct net_step *s)
{
	s->kind = NET_CONV2;
	s[-1].before_conv2 = 1;
	n->tensor[s->out] = tensor_of(s->layer[2].out, 1);
}

/* The fused steps, in the order of preference. Each runs three layers. */
static const struct {
	int (*fits)(const struct net *n, const struct net_step *s);
	void (*make)(struct net *n, struct net_step *s);
} fused_steps[] = {{fits_conv1, conv1_step}, {fits_conv2, conv2_step}};

/* Appends the step that starts with layer `number`. Returns the number of layers in the step. */
static size_t net_add_step(struct net *n, size_t number, int needs_dx)
{
	const struct model *m = n->model;
	const struct layer *l = &m->layer[number];
	struct net_step *s = &n->step[n->n_steps++];

	int relu =
		layer_kind(l) == NET_WEIGHTS && number + 1 < m->n_layers && l[1].kind == LAYER_RELU;

	*s = (struct net_step){.kind = layer_kind(l),
		.layer = l,
		.number = number,
		.in = n->n_tensors - 1,
		.out = n->n_tensors,
		.other = -1,
		.relu = relu,
		.needs_dx = needs_dx};
	n->tensor[n->n_tensors++] = tensor_of(l->out, relu);
	if (s->kind == NET_WEIGHTS)
		step_weights(s, m);
	if (s->kind == NET_BATCHNORM)
		cuda_batchnorm_plan(&s->batchnorm, m, l, pad_quad(l->in.c));
	for (size_t i = 0; i < sizeof(fused_steps) / sizeof(fused_steps[0]); i++)
		if (fused_steps[i].fits(n, s)) {
			fused_steps[i].make(n, s);
			return 3;
		}
	if (l->kind == LAYER_CONV)
		tensor_pad(&n->tensor[s->in], l);
	for (int i = 0; i < n->n_steps && l->kind == LAYER_ADD; i++)
		if (n->step[i].number == l->partner) {
			s->other = n->step[i].in;
			n->step[i].other = s->out;
			n->step[i].other_stride = (int)l->stride;
		}
	if (l->kind == LAYER_DROPOUT)
		s->drop = (struct kx_drop){.layer = (int)number,
			.channels = (int)l->in.c,
			.threshold = dropout_threshold(l->drop),
			.scale = 1 / (1 - l->drop)};
	return relu ? 2 : 1;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int table_new(struct net_table *t, size_t n, size_t size)
{
	*t = (struct net_table){.host = mem_try(n, size), .n = n, .size = size};
	return t->host ? PS_OK : PS_ENOMEM;
}

static int offset_at(const struct kx_tensor *p, size_t y, size_t x)
{
	return p->origin + (int)y * p->row + (int)x * p->c;
}

/* Returns the offset of the window of output (y, x) in the padded input; 0 for an fc layer. */
static int window_at(const struct net_step *s, const struct kx_tensor *in, size_t y, size_t x)
{
	return (int)(y * s->layer->stride) * in->row + (int)(x * s->layer->stride) * in->c;
}

/* Builds the tables of fprop and of wgrad, which uses the same windows. Each row of a filter window
 * is one contiguous K run. */
static int fprop_tables(struct net *n, struct net_step *s)
{
	const struct layer *l = s->layer;
	const struct kx_tensor *in = &n->tensor[s->in].value, *out = &n->tensor[s->out].value;
	size_t rows = l->kind == LAYER_CONV ? l->size : 1, positions = l->out.h * l->out.w;

	if (table_new(&s->fprop_runs, positions * rows, sizeof(struct kx_k_run)) ||
		table_new(&s->fprop_pixels, positions, sizeof(struct kx_pixel)) ||
		table_new(&s->wgrad_positions, positions, sizeof(struct kx_position)))
		return PS_ENOMEM;
	struct kx_k_run *run = s->fprop_runs.host;
	struct kx_pixel *pixel = s->fprop_pixels.host;
	struct kx_position *position = s->wgrad_positions.host;
	for (size_t i = 0; i < positions; i++) {
		size_t y = i / l->out.w, x = i % l->out.w;
		int from = window_at(s, in, y, x);

		pixel[i] = (struct kx_pixel){(int)(i * rows), (int)rows, offset_at(out, y, x)};
		position[i] = (struct kx_position){from, offset_at(out, y, x)};
		for (int r = 0; r < (int)rows; r++)
			*run++ = (struct kx_k_run){from + r * in->row, r * s->run_length};
	}
	return PS_OK;
}

/* Sets *o to the output row (or column) whose window has input `i` under its row `k`. Returns 0 if
 * there is no such output. */
static int output_over(size_t i, size_t k, size_t stride, size_t pad, size_t size, size_t *o)
{
	if (i + pad < k || (i + pad - k) % stride)
		return 0;
	*o = (i + pad - k) / stride;
	return *o < size;
}

/* Writes the K runs of dgrad for input pixel (y, x) to `run`, and returns their number. If `run` is
 * NULL, the function only counts the runs. */
static size_t dgrad_runs_of(
	const struct net *n, const struct net_step *s, size_t y, size_t x, struct kx_k_run *run)
{
	const struct layer *l = s->layer;
	const struct kx_tensor *out = &n->tensor[s->out].value;
	size_t count = 0, oy, ox;

	for (size_t ky = 0; ky < l->size; ky++) {
		if (!output_over(y, ky, l->stride, l->pad_top, l->out.h, &oy))
			continue;
		for (size_t kx = 0; kx < l->size; kx++) {
			if (!output_over(x, kx, l->stride, l->pad_left, l->out.w, &ox))
				continue;
			if (run)
				run[count] = (struct kx_k_run){offset_at(out, oy, ox),
					(int)(ky * l->size + kx) * s->w.f_pad};
			count++;
		}
	}
	return count;
}

static int dgrad_tables_conv(struct net *n, struct net_step *s)
{
	const struct layer *l = s->layer;
	size_t positions = l->in.h * l->in.w, count = 0;

	for (size_t i = 0; i < positions; i++)
		count += dgrad_runs_of(n, s, i / l->in.w, i % l->in.w, NULL);
	if (table_new(&s->dgrad_runs, count + 1, sizeof(struct kx_k_run)) ||
		table_new(&s->dgrad_pixels, positions, sizeof(struct kx_pixel)))
		return PS_ENOMEM;
	struct kx_k_run *run = s->dgrad_runs.host;
	struct kx_pixel *pixel = s->dgrad_pixels.host;
	count = 0;
	for (size_t i = 0; i < positions; i++) {
		size_t y = i / l->in.w, x = i % l->in.w;
		size_t n_runs = dgrad_runs_of(n, s, y, x, run + count);

		pixel[i] = (struct kx_pixel){
			(int)count, (int)n_runs, offset_at(&n->tensor[s->in].value, y, x)};
		count += n_runs;
	}
	return PS_OK;
}

/* Builds the tables of dgrad of an fc layer. The whole input of the layer is one pixel with one K
 * run. */
static int dgrad_tables_fc(struct net_step *s)
{
	if (table_new(&s->dgrad_runs, 1, sizeof(struct kx_k_run)) ||
		table_new(&s->dgrad_pixels, 1, sizeof(struct kx_pixel)))
		return PS_ENOMEM;
	((struct kx_pixel *)s->dgrad_pixels.host)->n_k_runs = 1;
	return PS_OK;
}

static int step_tables(struct net *n, struct net_step *s)
{
	int rc = fprop_tables(n, s);

	if (rc || !s->needs_dx)
		return rc;
	return s->layer->kind == LAYER_CONV ? dgrad_tables_conv(n, s) : dgrad_tables_fc(s);
}

/* ---- whole model ----------------------------------------------------------------------------- */

/* The grid of a GEMM has at most 65535 blocks of 64 columns. */
#define MAX_COLUMNS ((size_t)65535 * 64)

static int too_large(const struct net *n, struct err *e)
{
	return err_set(e, PS_ENOMEM,
		"model \"%s\" is too large for device cuda: an image's values between two layers "
		"must be fewer than 2^31, the units and the inputs of an fc layer at most %zu",
		n->model->text, MAX_COLUMNS);
}

/* Returns 1 if a GEMM of the step has too many columns. The columns are its filters or units, and
 * in dgrad of an fc layer its inputs. */
static int too_wide(const struct net *n, const struct net_step *s)
{
	size_t inputs = s->layer->kind == LAYER_FC ? n->tensor[s->in].value.image : 0;

	return (size_t)s->w.f_pad > MAX_COLUMNS || (s->needs_dx && inputs > MAX_COLUMNS);
}

/* Returns 1 if the kernels of classifier.h can run the last two steps. */
static int fits_classifier(const struct net *n)
{
	const struct net_step *s = &n->step[n->n_steps < 2 ? 0 : n->n_steps - 2];

	return n->fused && n->precision != KX_FP32 && n->n_steps > 1 &&
	       s[0].layer->kind == LAYER_FC && s[1].layer->kind == LAYER_FC && s[0].relu &&
	       s[0].needs_dx && s[0].w.f == CLASSIFIER_UNITS && s[1].w.f <= CLASSIFIER_CLASSES &&
	       n->tensor[s[0].in].value.image % CLASSIFIER_INPUTS == 0;
}

/* Returns the number of floats that the sums of the step's gradients take. The number is 0 if the
 * step has no parameters. */
static size_t step_sums(const struct net_step *s)
{
	if (s->kind == NET_BATCHNORM)
		return cuda_batchnorm_sums(&s->batchnorm);
	return s->w.taps ? net_rows(s) * (size_t)s->w.f_pad : 0;
}

int net_plan(struct net *n, const struct model *m, const struct path_options *o, struct err *e)
{
	int needs_dx = 0;

	*n = (struct net){.model = m,
		.precision = o->precision,
		.fused = o->fused,
		.forward_only = o->forward_only,
		.images = o->images,
		.n_tensors = 1};
	n->tensor[0] = tensor_of(m->input, 0);
	for (size_t l = 0; l < m->n_layers;) {
		l += net_add_step(n, l, needs_dx);
		needs_dx |= step_sums(&n->step[n->n_steps - 1]) > 0;
	}
	for (int i = 0; i < n->n_tensors; i++)
		if (tensor_measure(&n->tensor[i]))
			return too_large(n, e);
	n->has_classifier = fits_classifier(n);
	for (int i = 0; i < n->n_steps; i++) {
		if (too_wide(n, &n->step[i]))
			return too_large(n, e);
		n->step[i].sum_at = n->n_sums;
		n->n_sums += step_sums(&n->step[i]);
	}
	for (int i = 0; i < n->n_steps; i++)
		if (n->step[i].kind == NET_WEIGHTS && step_tables(n, &n->step[i]))
			return err_set(e, PS_ENOMEM, "no memory for the tables of \"%s\"", m->text);
	return PS_OK;
}
