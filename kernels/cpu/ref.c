/*
 * ref.c - the reference device cpu-ref. It computes one image after the other and one value after
 * the other. Parameters and gradient are float, everything between them is double. The code is
 * written to be read, not to be fast.
 *
 * value[l] is the input of layer l; value[n_layers] are the scores. delta[l] is d loss / d
 * value[l].
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "kernels/device.h"

struct cpu_ref {
	const struct model *model;
	struct kx_images set;
	double *value[MODEL_MAX_LAYERS + 1], *delta[MODEL_MAX_LAYERS + 1];
	size_t *argmax[MODEL_MAX_LAYERS]; /* pool: the input that each output was copied from */
	double *grad;                     /* sum over the images so far */
};

/* One image's pass. */
struct pass {
	const float *params;
	int training; /* 1: apply dropout */
	uint64_t dropout_seed;
	size_t n; /* number of the image in its batch */
};

static size_t at(struct shape s, size_t c, size_t y, size_t x)
{
	return (c * s.h + y) * s.w + x;
}

/* `c`: number of the channel in the group of filter f. */
static size_t weight_at(const struct layer *l, size_t f, size_t c, size_t ky, size_t kx)
{
	return ((f * (l->in.c / l->groups) + c) * l->size + ky) * l->size + kx;
}

/* The first channel of the group of filter f. */
static size_t first_channel(const struct layer *l, size_t f)
{
	return f / (l->out.c / l->groups) * (l->in.c / l->groups);
}

/* Sets *i to the input row (or column) under row k of the window of output o. Returns 0 if that is
 * padding. */
static int under(size_t o, size_t k, size_t stride, size_t pad, size_t size, size_t *i)
{
	*i = o * stride + k - pad;
	return o * stride + k >= pad && *i < size;
}

/* ---- conv ------------------------------------------------------------------------------------ */

static double conv_one(const struct layer *l, const float *weight, const double *in, size_t f,
	size_t oy, size_t ox)
{
	const size_t first = first_channel(l, f);
	double sum = 0;
	size_t y, x;

	for (size_t c = 0; c < l->in.c / l->groups; c++)
		for (size_t ky = 0; ky < l->size; ky++) {
			if (!under(oy, ky, l->stride, l->pad_top, l->in.h, &y))
				continue;
			for (size_t kx = 0; kx < l->size; kx++)
				if (under(ox, kx, l->stride, l->pad_left, l->in.w, &x))
					sum += (double)weight[weight_at(l, f, c, ky, kx)] *
					       in[at(l->in, first + c, y, x)];
		}
	return sum;
}

static void conv_forward(const struct layer *l, const float *weight, const float *bias,
	const double *in, double *out)
{
	for (size_t f = 0; f < l->out.c; f++)
		for (size_t oy = 0; oy < l->out.h; oy++)
			for (size_t ox = 0; ox < l->out.w; ox++)
				out[at(l->out, f, oy, ox)] =
					(double)bias[f] + conv_one(l, weight, in, f, oy, ox);
}

/* Adds the contribution of one output's error `d` to the gradients of its inputs and weights. */
static void conv_push(const struct layer *l, const float *weight, const double *in, double d,
	size_t f, size_t oy, size_t ox, double *grad_weight, double *d_in)
{
	const size_t first = first_channel(l, f);
	size_t y, x;

	for (size_t c = 0; c < l->in.c / l->groups; c++)
		for (size_t ky = 0; ky < l->size; ky++) {
			if (!under(oy, ky, l->stride, l->pad_top, l->in.h, &y))
				continue;
			for (size_t kx = 0; kx < l->size; kx++) {
				if (!under(ox, kx, l->stride, l->pad_left, l->in.w, &x))
					continue;
				size_t w = weight_at(l, f, c, ky, kx);
				size_t i = at(l->in, first + c, y, x);
				grad_weight[w] += d * in[i];
				d_in[i] += d * (double)weight[w];
			}
		}
}

static void conv_backward(const struct layer *l, const float *weight, const double *in,
	const double *d_out, double *grad_weight, double *grad_bias, double *d_in)
{
	memset(d_in, 0, shape_count(l->in) * sizeof(*d_in));
	for (size_t f = 0; f < l->out.c; f++)
		for (size_t oy = 0; oy < l->out.h; oy++)
			for (size_t ox = 0; ox < l->out.w; ox++) {
				double d = d_out[at(l->out, f, oy, ox)];

				grad_bias[f] += d;
				if (d != 0)
					conv_push(l, weight, in, d, f, oy, ox, grad_weight, d_in);
			}
}

/* ---- fc -------------------------------------------------------------------------------------- */

static void fc_forward(const struct layer *l, const float *weight, const float *bias,
	const double *in, double *out)
{
	size_t n = shape_count(l->in);

	for (size_t u = 0; u < l->out.c; u++) {
		out[u] = (double)bias[u];
		for (size_t i = 0; i < n; i++)
			out[u] += (double)weight[u * n + i] * in[i];
	}
}

static void fc_backward(const struct layer *l, const float *weight, const double *in,
	const double *d_out, double *grad_weight, double *grad_bias, double *d_in)
{
	size_t n = shape_count(l->in);

	memset(d_in, 0, n * sizeof(*d_in));
	for (size_t u = 0; u < l->out.c; u++) {
		grad_bias[u] += d_out[u];
		for (size_t i = 0; i < n; i++) {
			grad_weight[u * n + i] += d_out[u] * in[i];
			d_in[i] += d_out[u] * (double)weight[u * n + i];
		}
	}
}

/* ---- relu, tanh, sigmoid --------------------------------------------------------------------- */

static void ref_relu_forward(const double *in, double *out, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = in[i] < 0 ? 0 : in[i]; /* keeps NaN */
}

static void relu_backward(const double *out, const double *d_out, double *d_in, size_t n)
{
	for (size_t i = 0; i < n; i++)
		d_in[i] = out[i] > 0 ? d_out[i] : 0;
}

static void tanh_forward(const double *in, double *out, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = tanh(in[i]);
}

static void tanh_backward(const double *out, const double *d_out, double *d_in, size_t n)
{
	for (size_t i = 0; i < n; i++)
		d_in[i] = d_out[i] * (1 - out[i] * out[i]);
}

static void sigmoid_forward(const double *in, double *out, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = 1 / (1 + exp(-in[i]));
}

static void sigmoid_backward(const double *out, const double *d_out, double *d_in, size_t n)
{
	for (size_t i = 0; i < n; i++)
		d_in[i] = d_out[i] * out[i] * (1 - out[i]);
}

/* ---- lrn ------------------------------------------------------------------------------------- */

/* The channels whose squares are in the sum of channel c: [*first, *end). */
static void lrn_window(const struct layer *l, size_t c, size_t *first, size_t *end)
{
	*first = c > l->size / 2 ? c - l->size / 2 : 0;
	*end = c + (l->size - 1) / 2 + 1;
	if (*end > l->in.c)
		*end = l->in.c;
}

/* The base of the power that divides channel c of pixel `i`. */
static double lrn_base(const struct layer *l, const double *in, size_t c, size_t i)
{
	const size_t area = l->in.h * l->in.w;
	size_t first, end;
	double sum = 0;

	lrn_window(l, c, &first, &end);
	for (size_t j = first; j < end; j++)
		sum += in[j * area + i] * in[j * area + i];
	return (double)l->k + (double)l->alpha * sum;
}

static void lrn_forward(const struct layer *l, const double *in, double *out)
{
	const size_t area = l->in.h * l->in.w;

	for (size_t c = 0; c < l->in.c; c++)
		for (size_t i = 0; i < area; i++)
			out[c * area + i] =
				in[c * area + i] * pow(lrn_base(l, in, c, i), -(double)l->beta);
}

/* Output c passes its error to its own input and, through the base, to the channels of its window.
 */
static void lrn_backward(const struct layer *l, const double *in, const double *d_out, double *d_in)
{
	const size_t area = l->in.h * l->in.w;
	size_t first, end;

	memset(d_in, 0, shape_count(l->in) * sizeof(*d_in));
	for (size_t c = 0; c < l->in.c; c++) {
		lrn_window(l, c, &first, &end);
		for (size_t i = 0; i < area; i++) {
			const double base = lrn_base(l, in, c, i), d = d_out[c * area + i];
			const double power = pow(base, -(double)l->beta);
			const double through = -2 * (double)l->alpha * (double)l->beta *
					       in[c * area + i] * power / base;

			d_in[c * area + i] += d * power;
			for (size_t j = first; j < end; j++)
				d_in[j * area + i] += d * through * in[j * area + i];
		}
	}
}

/* ---- skip, add ------------------------------------------------------------------------------- */

/* The value of the skip that add `l` adds to channel c, row y, column x, of `l->out`. */
static size_t skip_at(const struct layer *l, struct shape skip, size_t c, size_t y, size_t x)
{
	return at(skip, c, y * l->stride, x * l->stride);
}

static void add_forward(
	const struct layer *l, struct shape skip, const double *in, const double *from, double *out)
{
	memcpy(out, in, shape_count(l->out) * sizeof(*out));
	for (size_t c = 0; c < skip.c; c++)
		for (size_t y = 0; y < l->out.h; y++)
			for (size_t x = 0; x < l->out.w; x++)
				out[at(l->out, c, y, x)] += from[skip_at(l, skip, c, y, x)];
}

/* `l`: the add; d_add: its errors. The input of the skip gets the errors of both paths. */
static void skip_backward(const struct layer *l, struct shape skip, const double *d_out,
	const double *d_add, double *d_in)
{
	memcpy(d_in, d_out, shape_count(skip) * sizeof(*d_in));
	for (size_t c = 0; c < skip.c; c++)
		for (size_t y = 0; y < l->out.h; y++)
			for (size_t x = 0; x < l->out.w; x++)
				d_in[skip_at(l, skip, c, y, x)] += d_add[at(l->out, c, y, x)];
}

/* ---- pool, avgpool, dropout ------------------------------------------------------------------ */

/* The first maximum of a window in row order. Padding never wins. */
static size_t pool_vector_argmax(
	const struct layer *l, const double *in, size_t c, size_t oy, size_t ox)
{
	size_t best = SIZE_MAX, y, x;

	for (size_t ky = 0; ky < l->size; ky++)
		for (size_t kx = 0; kx < l->size; kx++)
			if (under(oy, ky, l->stride, l->pad_top, l->in.h, &y) &&
				under(ox, kx, l->stride, l->pad_left, l->in.w, &x)) {
				size_t i = at(l->in, c, y, x);

				if (best == SIZE_MAX || in[i] > in[best])
					best = i;
			}
	return best;
}

static void ref_pool_forward(const struct layer *l, const double *in, double *out, size_t *argmax)
{
	for (size_t c = 0; c < l->out.c; c++)
		for (size_t oy = 0; oy < l->out.h; oy++)
			for (size_t ox = 0; ox < l->out.w; ox++) {
				size_t o = at(l->out, c, oy, ox);

				argmax[o] = pool_vector_argmax(l, in, c, oy, ox);
				out[o] = in[argmax[o]];
			}
}

static void ref_pool_backward(
	const struct layer *l, const size_t *argmax, const double *d_out, double *d_in)
{
	memset(d_in, 0, shape_count(l->in) * sizeof(*d_in));
	for (size_t o = 0; o < shape_count(l->out); o++)
		d_in[argmax[o]] += d_out[o];
}

/* Visits the values under the window of each output. With `d_out` (backward) it passes each output's
 * error on to them, else it writes their mean to out. */
static void avgpool_window(const struct layer *l, const double *in, double *out,
	const double *d_out, double *d_in, size_t o, size_t c, size_t oy, size_t ox)
{
	const double area = (double)(l->size * l->size);
	double sum = 0;
	size_t y, x;

	for (size_t ky = 0; ky < l->size; ky++)
		for (size_t kx = 0; kx < l->size; kx++) {
			if (!under(oy, ky, l->stride, l->pad_top, l->in.h, &y) ||
				!under(ox, kx, l->stride, l->pad_left, l->in.w, &x))
				continue;
			if (d_out)
				d_in[at(l->in, c, y, x)] += d_out[o] / area;
			else
				sum += in[at(l->in, c, y, x)];
		}
	if (!d_out)
		out[o] = sum / area;
}

static void avgpool_windows(
	const struct layer *l, const double *in, double *out, const double *d_out, double *d_in)
{
	for (size_t c = 0; c < l->out.c; c++)
		for (size_t oy = 0; oy < l->out.h; oy++)
			for (size_t ox = 0; ox < l->out.w; ox++)
				avgpool_window(
					l, in, out, d_out, d_in, at(l->out, c, oy, ox), c, oy, ox);
}

static void avgpool_forward(const struct layer *l, const double *in, double *out)
{
	avgpool_windows(l, in, out, NULL, NULL);
}

static void avgpool_backward(const struct layer *l, const double *d_out, double *d_in)
{
	memset(d_in, 0, shape_count(l->in) * sizeof(*d_in));
	avgpool_windows(l, NULL, NULL, d_out, d_in);
}

static void channels_forward(const struct layer *l, const double *in, double *out)
{
	const size_t area = l->in.h * l->in.w;

	for (size_t c = 0; c < l->in.c; c++) {
		out[c] = 0;
		for (size_t i = 0; i < area; i++)
			out[c] += in[c * area + i] / (double)area;
	}
}

static void channels_backward(const struct layer *l, const double *d_out, double *d_in)
{
	const size_t area = l->in.h * l->in.w;

	for (size_t i = 0; i < l->in.c * area; i++)
		d_in[i] = d_out[i / area] / (double)area;
}

/* Dropout treats values (forward) and errors (backward) alike: it keeps and scales them, or drops
 * them. */
static void dropout_apply(
	const struct layer *l, size_t number, const struct pass *p, const double *in, double *out)
{
	size_t n = shape_count(l->in);
	uint32_t threshold = p->training ? dropout_threshold(l->drop) : 0;
	double scale = p->training ? 1 / (1 - (double)l->drop) : 1;

	for (size_t i = 0; i < n; i++)
		out[i] = dropout_drops(p->dropout_seed, number, p->n * n + i, threshold)
				 ? 0
				 : in[i] * scale;
}

/* ---- whole network --------------------------------------------------------------------------- */

static const float *ref_weight(const struct model *m, const struct layer *l, const float *params)
{
	return params + m->tensor[l->weight].offset;
}

static const float *bias_of(const struct model *m, const struct layer *l, const float *params)
{
	return params + m->tensor[l->bias].offset;
}

static void layer_forward(struct cpu_ref *r, size_t number, const struct pass *p)
{
	const struct model *m = r->model;
	const struct layer *l = &m->layer[number];
	const double *in = r->value[number];
	double *out = r->value[number + 1];

	switch (l->kind) {
	case LAYER_CONV:
		conv_forward(l, ref_weight(m, l, p->params), bias_of(m, l, p->params), in, out);
		break;
	case LAYER_FC:
		fc_forward(l, ref_weight(m, l, p->params), bias_of(m, l, p->params), in, out);
		break;
	case LAYER_RELU:
		ref_relu_forward(in, out, shape_count(l->in));
		break;
	case LAYER_POOL:
		ref_pool_forward(l, in, out, r->argmax[number]);
		break;
	case LAYER_DROPOUT:
		dropout_apply(l, number, p, in, out);
		break;
	case LAYER_TANH:
		tanh_forward(in, out, shape_count(l->in));
		break;
	case LAYER_SIGMOID:
		sigmoid_forward(in, out, shape_count(l->in));
		break;
	case LAYER_AVGPOOL:
		avgpool_forward(l, in, out);
		break;
	case LAYER_CHANNELS:
		channels_forward(l, in, out);
		break;
	case LAYER_LRN:
		lrn_forward(l, in, out);
		break;
	case LAYER_SKIP:
		memcpy(out, in, shape_count(l->in) * sizeof(*out));
		break;
	case LAYER_ADD:
		add_forward(l, m->layer[l->partner].in, in, r->value[l->partner], out);
		break;
	}
}

static void layer_backward(struct cpu_ref *r, size_t number, const struct pass *p)
{
	const struct model *m = r->model;
	const struct layer *l = &m->layer[number];
	const double *d_out = r->delta[number + 1];
	double *d_in = r->delta[number];

	switch (l->kind) {
	case LAYER_CONV:
		conv_backward(l, ref_weight(m, l, p->params), r->value[number], d_out,
			r->grad + m->tensor[l->weight].offset, r->grad + m->tensor[l->bias].offset,
			d_in);
		break;
	case LAYER_FC:
		fc_backward(l, ref_weight(m, l, p->params), r->value[number], d_out,
			r->grad + m->tensor[l->weight].offset, r->grad + m->tensor[l->bias].offset,
			d_in);
		break;
	case LAYER_RELU:
		relu_backward(r->value[number + 1], d_out, d_in, shape_count(l->in));
		break;
	case LAYER_POOL:
		ref_pool_backward(l, r->argmax[number], d_out, d_in);
		break;
	case LAYER_DROPOUT:
		dropout_apply(l, number, p, d_out, d_in);
		break;
	case LAYER_TANH:
		tanh_backward(r->value[number + 1], d_out, d_in, shape_count(l->in));
		break;
	case LAYER_SIGMOID:
		sigmoid_backward(r->value[number + 1], d_out, d_in, shape_count(l->in));
		break;
	case LAYER_AVGPOOL:
		avgpool_backward(l, d_out, d_in);
		break;
	case LAYER_CHANNELS:
		channels_backward(l, d_out, d_in);
		break;
	case LAYER_LRN:
		lrn_backward(l, r->value[number], d_out, d_in);
		break;
	case LAYER_SKIP:
		skip_backward(&m->layer[l->partner], l->in, d_out, r->delta[l->partner + 1], d_in);
		break;
	case LAYER_ADD:
		memcpy(d_in, d_out, shape_count(l->in) * sizeof(*d_in));
		break;
	}
}

/* The input of the network for byte `v` at index `i` of an image (channels x rows x columns):
 * v / 255, normalised with the mean and deviation of its channel if the model has them. */
static double pixel_value(const struct model *m, size_t i, uint8_t v)
{
	const struct preprocess *p = &m->preprocess;
	size_t c = p->n_norm > 1 ? i / (m->input.h * m->input.w) : 0;

	return p->n_norm ? (v / 255.0 - (double)p->mean[c]) / (double)p->deviation[c] : v / 255.0;
}

static void image_forward(struct cpu_ref *r, size_t image, const struct pass *p)
{
	size_t n = shape_count(r->model->input);

	for (size_t i = 0; i < n; i++)
		r->value[0][i] = pixel_value(r->model, i, r->set.pixels[image * n + i]);
	for (size_t l = 0; l < r->model->n_layers; l++)
		layer_forward(r, l, p);
}

/* Returns the loss and runs the backward pass. delta of the scores is the probability, minus 1 at
 * the label. */
static double image_backward(struct cpu_ref *r, size_t image, const struct pass *p)
{
	const struct model *m = r->model;
	size_t label = r->set.labels[image];
	double *d_logits = r->delta[m->n_layers];
	double loss = softmax_loss(r->value[m->n_layers], m->classes, label, d_logits);

	d_logits[label] -= 1;
	for (size_t l = m->n_layers; l-- > 0;)
		layer_backward(r, l, p);
	return loss;
}

/* ---- struct device --------------------------------------------------------------------------- */

static void cpu_ref_close(void *self)
{
	struct cpu_ref *r = self;

	for (size_t l = 0; l <= MODEL_MAX_LAYERS; l++) {
		free(r->value[l]);
		free(r->delta[l]);
	}
	for (size_t l = 0; l < MODEL_MAX_LAYERS; l++)
		free(r->argmax[l]);
	free(r->grad);
	free(r);
}

static int cpu_ref_allocate(struct cpu_ref *r, const struct model *m)
{
	r->grad = mem_try(m->n_params, sizeof(*r->grad));
	int ok = r->grad != NULL;
	for (size_t l = 0; ok && l <= m->n_layers; l++) {
		size_t n = shape_count(l == 0 ? m->input : m->layer[l - 1].out);

		r->value[l] = mem_try(n, sizeof(*r->value[l]));
		r->delta[l] = mem_try(n, sizeof(*r->delta[l]));
		ok = r->value[l] && r->delta[l];
		if (ok && l < m->n_layers && m->layer[l].kind == LAYER_POOL) {
			r->argmax[l] = mem_try(shape_count(m->layer[l].out), sizeof(**r->argmax));
			ok = r->argmax[l] != NULL;
		}
	}
	return ok;
}

static int cpu_ref_open(
	void **self, const struct model *m, const struct backend_options *o, struct err *e)
{
	(void)o;
	*self = NULL;
	struct cpu_ref *r = mem_try(1, sizeof(*r));
	if (!r)
		return err_set(e, PS_ENOMEM, "no memory for device cpu-ref");
	r->model = m;
	if (!cpu_ref_allocate(r, m)) {
		cpu_ref_close(r);
		return err_set(
			e, PS_ENOMEM, "no memory for %zu parameters on cpu-ref", m->n_params);
	}
	*self = r;
	return PS_OK;
}

static const char *cpu_ref_describe(const void *self)
{
	(void)self;
	return "cpu-ref";
}

static void cpu_ref_kernel(const void *self, size_t layer, size_t batch, char *text, size_t size)
{
	(void)self;
	(void)layer;
	(void)batch;
	snprintf(text, size, "reference");
}

static int cpu_ref_use(void *self, const struct kx_images *set, struct err *e)
{
	(void)e;
	struct cpu_ref *r = self;
	r->set = *set;
	return PS_OK;
}

static int cpu_ref_gradient(void *self, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss)
{
	struct cpu_ref *r = self;
	size_t n_params = r->model->n_params;
	struct pass p = {.params = params, .training = 1, .dropout_seed = dropout_seed};
	double sum = 0;

	memset(r->grad, 0, n_params * sizeof(*r->grad));
	for (; p.n < batch; p.n++) {
		image_forward(r, index[p.n], &p);
		sum += image_backward(r, index[p.n], &p);
	}
	for (size_t i = 0; i < n_params; i++)
		grad[i] = (float)(r->grad[i] / (double)batch);
	*loss = sum / (double)batch;
	return PS_OK;
}

static int cpu_ref_forward(void *self, const float *params, size_t first, size_t n, float *scores)
{
	struct cpu_ref *r = self;
	const struct model *m = r->model;
	struct pass p = {.params = params};

	for (; p.n < n; p.n++) {
		image_forward(r, first + p.n, &p);
		for (size_t c = 0; c < m->classes; c++)
			scores[p.n * m->classes + c] = (float)r->value[m->n_layers][c];
	}
	return PS_OK;
}

const struct device device_cpu_ref = {
	.name = "cpu-ref",
	.precise = 1,
	.open = cpu_ref_open,
	.close = cpu_ref_close,
	.describe = cpu_ref_describe,
	.kernel = cpu_ref_kernel,
	.use = cpu_ref_use,
	.gradient = cpu_ref_gradient,
	.forward = cpu_ref_forward,
};
