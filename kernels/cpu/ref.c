/*
 * ref.c - the reference device cpu-ref. The device computes one image after the other and one value
 * after the other. Parameters and gradient are float, everything between them is double. The code
 * is written to be read, not to be fast.
 *
 * value[l] is the input of layer l; value[n_layers] are the logits. delta[l] is d loss / d
 * value[l]. value and delta have room for one image. If the model has batchnorm, they have room for
 * the whole batch, because each layer then computes all images before the next layer starts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "kernels/cpu/cpu.h"

struct cpu_ref {
	const struct model *model;
	size_t images; /* number of images for which value, delta and argmax have room */
	struct kx_images set;
	double *value[MODEL_MAX_LAYERS + 1], *delta[MODEL_MAX_LAYERS + 1];
	/* pool: index of the input value that each output was copied from */
	size_t *argmax[MODEL_MAX_LAYERS];
	double *grad; /* sum of the gradients of the images so far */
	/* batchnorm: mean and variance with which each channel is normalised */
	double *mean[MODEL_MAX_LAYERS], *variance[MODEL_MAX_LAYERS];
};

/* Some images of a batch, which pass through the model together. */
struct pass {
	const float *params;
	int training; /* 1: apply dropout and the statistics of the batch */
	uint64_t dropout_seed;
	/* image numbers of the batch; if NULL, the batch has images 0, 1, ... of the data set */
	const uint32_t *index;
	size_t first, n; /* images [first, first + n) of the batch */
};

static size_t at(struct shape s, size_t c, size_t y, size_t x)
{
	return (c * s.h + y) * s.w + x;
}

/* Returns the index in the layer's weight tensor of the weight of filter `f` for channel `c`, row
 * `ky` and column `kx`. `c` counts only the channels of the filter's group. */
static size_t weight_at(const struct layer *l, size_t f, size_t c, size_t ky, size_t kx)
{
	return ((f * (l->in.c / l->groups) + c) * l->size + ky) * l->size + kx;
}

/* Returns the first channel of the group of filter f. */
static size_t first_channel(const struct layer *l, size_t f)
{
	return f / (l->out.c / l->groups) * (l->in.c / l->groups);
}

/* Sets *i to the input row (or column) under row k of the window of output o. Returns 0 if this
 * input row (or column) is padding. */
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

/* Adds the contribution of one output's gradient `d` to the gradients of its inputs and weights. */
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
		out[i] = in[i] < 0 ? 0 : in[i]; /* a NaN is not < 0, so it stays a NaN */
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

/* Sets [*first, *end) to the channels whose squares are in the sum of channel c. */
static void lrn_window(const struct layer *l, size_t c, size_t *first, size_t *end)
{
	*first = c > l->size / 2 ? c - l->size / 2 : 0;
	*end = c + (l->size - 1) / 2 + 1;
	if (*end > l->in.c)
		*end = l->in.c;
}

/* Returns the base k + alpha * the sum of squares. LRN divides channel c of pixel `i` by a power of
 * this base. */
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

/* Computes the gradients of the inputs. Output c passes its gradient to its own input and, through
 * the base, to the channels of its window. */
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

/* Returns the index, in the skip, of the value that add `l` adds to channel c, row y, column x of
 * its output. */
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

/* Adds the gradients of add `l`, d_add, to those of its skip: the input of the skip gets the
 * gradients of both paths. */
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

/* Returns the index of the first maximum of a window in row order. The function ignores padding. */
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

/* Visits the values under the window of output `o`. In the backward pass (with `d_out`) the
 * function passes an equal part of the output's gradient to each of these values; otherwise it
 * writes their mean to `out`. */
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

/* Applies dropout to values (forward) or gradients (backward): drops some of them, and scales the
 * others. */
static void dropout_apply(const struct layer *l, size_t number, const struct pass *p, size_t image,
	const double *in, double *out)
{
	size_t n = shape_count(l->in);
	uint32_t threshold = p->training ? dropout_threshold(l->drop) : 0;
	double scale = p->training ? 1 / (1 - (double)l->drop) : 1;

	for (size_t i = 0; i < n; i++)
		out[i] = dropout_drops(p->dropout_seed, number, image * n + i, threshold)
				 ? 0
				 : in[i] * scale;
}

/* ---- batchnorm ------------------------------------------------------------------------------- */

/* All values of the images of a pass, before and after a batchnorm. */
struct normed {
	size_t images, channels, area;
	const float *weight, *bias, *running_mean, *running_var;
	double *mean, *variance;
};

/* Returns the index of value `i` of channel `c`. `i` counts the values of the channel in all
 * images. */
static size_t normed_at(const struct normed *b, size_t c, size_t i)
{
	return (i / b->area * b->channels + c) * b->area + i % b->area;
}

static double normed_scale(const struct normed *b, size_t c)
{
	return 1 / sqrt(b->variance[c] + BATCHNORM_EPS);
}

static void measure_batch(const struct normed *b, const double *in)
{
	const size_t n = b->images * b->area;

	for (size_t c = 0; c < b->channels; c++) {
		double sum = 0, squares = 0;

		for (size_t i = 0; i < n; i++)
			sum += in[normed_at(b, c, i)];
		b->mean[c] = sum / (double)n;
		for (size_t i = 0; i < n; i++) {
			double d = in[normed_at(b, c, i)] - b->mean[c];

			squares += d * d;
		}
		b->variance[c] = squares / (double)n;
	}
}

static void batchnorm_forward(const struct normed *b, int training, const double *in, double *out)
{
	if (training)
		measure_batch(b, in);
	for (size_t c = 0; !training && c < b->channels; c++) {
		b->mean[c] = (double)b->running_mean[c];
		b->variance[c] = b->running_var[c] > 0 ? (double)b->running_var[c] : 0;
	}
	for (size_t c = 0; c < b->channels; c++)
		for (size_t i = 0; i < b->images * b->area; i++) {
			const size_t at = normed_at(b, c, i);

			out[at] =
				(double)b->weight[c] * (in[at] - b->mean[c]) * normed_scale(b, c) +
				(double)b->bias[c];
		}
}

/* Computes the gradients of a batchnorm (Ioffe 2015, section 3). All values of a channel share one
 * mean and one variance, so the gradient of one value contributes to the gradients of all values of
 * its channel. */
static void batchnorm_backward(const struct normed *b, const double *in, const double *d_out,
	double *grad_weight, double *grad_bias, double *d_in)
{
	const size_t n = b->images * b->area;

	for (size_t c = 0; c < b->channels; c++) {
		const double scale = normed_scale(b, c);
		double sum = 0, product = 0;

		for (size_t i = 0; i < n; i++) {
			const size_t at = normed_at(b, c, i);

			sum += d_out[at];
			product += d_out[at] * (in[at] - b->mean[c]) * scale;
		}
		grad_bias[c] += sum;
		grad_weight[c] += product;
		for (size_t i = 0; i < n; i++) {
			const size_t at = normed_at(b, c, i);
			const double x = (in[at] - b->mean[c]) * scale;

			d_in[at] = (double)b->weight[c] * scale *
				   (d_out[at] - (sum + x * product) / (double)n);
		}
	}
}

/* ---- whole network --------------------------------------------------------------------------- */

static const float *ref_tensor(const struct model *m, int tensor, const float *params)
{
	return params + m->tensor[tensor].offset;
}

static struct normed normed_of(const struct cpu_ref *r, size_t number, const struct pass *p)
{
	const struct model *m = r->model;
	const struct layer *l = &m->layer[number];

	return (struct normed){.images = p->n,
		.channels = l->in.c,
		.area = l->in.h * l->in.w,
		.weight = ref_tensor(m, l->weight, p->params),
		.bias = ref_tensor(m, l->bias, p->params),
		.running_mean = ref_tensor(m, l->running, p->params),
		.running_var = ref_tensor(m, l->running + 1, p->params),
		.mean = r->mean[number],
		.variance = r->variance[number]};
}

/* Returns where the values (or gradients) of image `n` of a pass begin, in front of layer `number`.
 */
static size_t image_at(const struct cpu_ref *r, size_t number, size_t n)
{
	const struct model *m = r->model;

	return n * shape_count(number ? m->layer[number - 1].out : m->input);
}

static void image_forward(struct cpu_ref *r, size_t number, const struct pass *p, size_t n)
{
	const struct model *m = r->model;
	const struct layer *l = &m->layer[number];
	const double *in = r->value[number] + image_at(r, number, n);
	double *out = r->value[number + 1] + image_at(r, number + 1, n);

	switch (l->kind) {
	case LAYER_CONV:
		conv_forward(l, ref_tensor(m, l->weight, p->params),
			ref_tensor(m, l->bias, p->params), in, out);
		break;
	case LAYER_FC:
		fc_forward(l, ref_tensor(m, l->weight, p->params),
			ref_tensor(m, l->bias, p->params), in, out);
		break;
	case LAYER_RELU:
		ref_relu_forward(in, out, shape_count(l->in));
		break;
	case LAYER_POOL:
		ref_pool_forward(l, in, out, r->argmax[number] + image_at(r, number + 1, n));
		break;
	case LAYER_DROPOUT:
		dropout_apply(l, number, p, p->first + n, in, out);
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
		add_forward(l, m->layer[l->partner].in, in,
			r->value[l->partner] + image_at(r, l->partner, n), out);
		break;
	case LAYER_BATCHNORM: /* layer_forward computes a batchnorm for all images together */
		break;
	}
}

static void layer_forward(struct cpu_ref *r, size_t number, const struct pass *p)
{
	if (r->model->layer[number].kind == LAYER_BATCHNORM) {
		const struct normed b = normed_of(r, number, p);

		batchnorm_forward(&b, p->training, r->value[number], r->value[number + 1]);
		return;
	}
	for (size_t n = 0; n < p->n; n++)
		image_forward(r, number, p, n);
}

static void image_backward(struct cpu_ref *r, size_t number, const struct pass *p, size_t n)
{
	const struct model *m = r->model;
	const struct layer *l = &m->layer[number];
	const size_t at_in = image_at(r, number, n), at_out = image_at(r, number + 1, n);
	const double *in = r->value[number] + at_in, *out = r->value[number + 1] + at_out;
	const double *d_out = r->delta[number + 1] + at_out;
	double *d_in = r->delta[number] + at_in;

	switch (l->kind) {
	case LAYER_CONV:
		conv_backward(l, ref_tensor(m, l->weight, p->params), in, d_out,
			r->grad + m->tensor[l->weight].offset, r->grad + m->tensor[l->bias].offset,
			d_in);
		break;
	case LAYER_FC:
		fc_backward(l, ref_tensor(m, l->weight, p->params), in, d_out,
			r->grad + m->tensor[l->weight].offset, r->grad + m->tensor[l->bias].offset,
			d_in);
		break;
	case LAYER_RELU:
		relu_backward(out, d_out, d_in, shape_count(l->in));
		break;
	case LAYER_POOL:
		ref_pool_backward(l, r->argmax[number] + at_out, d_out, d_in);
		break;
	case LAYER_DROPOUT:
		dropout_apply(l, number, p, p->first + n, d_out, d_in);
		break;
	case LAYER_TANH:
		tanh_backward(out, d_out, d_in, shape_count(l->in));
		break;
	case LAYER_SIGMOID:
		sigmoid_backward(out, d_out, d_in, shape_count(l->in));
		break;
	case LAYER_AVGPOOL:
		avgpool_backward(l, d_out, d_in);
		break;
	case LAYER_CHANNELS:
		channels_backward(l, d_out, d_in);
		break;
	case LAYER_LRN:
		lrn_backward(l, in, d_out, d_in);
		break;
	case LAYER_SKIP:
		skip_backward(&m->layer[l->partner], l->in, d_out,
			r->delta[l->partner + 1] + image_at(r, l->partner + 1, n), d_in);
		break;
	case LAYER_ADD:
		memcpy(d_in, d_out, shape_count(l->in) * sizeof(*d_in));
		break;
	case LAYER_BATCHNORM: /* layer_backward computes a batchnorm for all images together */
		break;
	}
}

static void layer_backward(struct cpu_ref *r, size_t number, const struct pass *p)
{
	const struct model *m = r->model;
	const struct layer *l = &m->layer[number];

	if (l->kind == LAYER_BATCHNORM) {
		const struct normed b = normed_of(r, number, p);

		batchnorm_backward(&b, r->value[number], r->delta[number + 1],
			r->grad + m->tensor[l->weight].offset, r->grad + m->tensor[l->bias].offset,
			r->delta[number]);
		return;
	}
	for (size_t n = 0; n < p->n; n++)
		image_backward(r, number, p, n);
}

/* Returns the input of the network for byte `v` at index `i` of an image (channels x rows x
 * columns): v / 255, normalised with the mean and deviation of its channel if the model has
 * them. */
static double pixel_value(const struct model *m, size_t i, uint8_t v)
{
	const struct preprocess *p = &m->preprocess;
	size_t c = p->n_norm > 1 ? i / (m->input.h * m->input.w) : 0;

	return p->n_norm ? (v / 255.0 - (double)p->mean[c]) / (double)p->deviation[c] : v / 255.0;
}

/* Returns the number that image `n` of a pass has in the data set. */
static size_t ref_image(const struct pass *p, size_t n)
{
	return p->index ? p->index[p->first + n] : p->first + n;
}

static void pass_forward(struct cpu_ref *r, const struct pass *p)
{
	const size_t count = shape_count(r->model->input);

	for (size_t n = 0; n < p->n; n++)
		for (size_t i = 0; i < count; i++)
			r->value[0][n * count + i] = pixel_value(
				r->model, i, r->set.pixels[ref_image(p, n) * count + i]);
	for (size_t l = 0; l < r->model->n_layers; l++)
		layer_forward(r, l, p);
}

/* Returns the sum of the losses and runs the backward pass. delta of a logit is the probability of
 * its class, minus 1 if this class is the label. */
static double pass_backward(struct cpu_ref *r, const struct pass *p)
{
	const struct model *m = r->model;
	double sum = 0;

	for (size_t n = 0; n < p->n; n++) {
		const size_t label = r->set.labels[ref_image(p, n)], at = n * m->classes;
		double *d_logits = r->delta[m->n_layers] + at;

		sum += softmax_loss(r->value[m->n_layers] + at, m->classes, label, d_logits);
		d_logits[label] -= 1;
	}
	for (size_t l = m->n_layers; l-- > 0;)
		layer_backward(r, l, p);
	return sum;
}

/* Writes the statistics of the batch to the gradient, at the offsets of the running statistics. */
static void write_statistics(const struct cpu_ref *r, size_t images, float *grad)
{
	const struct model *m = r->model;

	for (size_t i = 0; i < m->n_layers; i++) {
		const struct layer *l = &m->layer[i];
		const size_t n = images * l->in.h * l->in.w;

		for (size_t c = 0; l->kind == LAYER_BATCHNORM && c < l->in.c; c++) {
			grad[m->tensor[l->running].offset + c] = (float)r->mean[i][c];
			grad[m->tensor[l->running + 1].offset + c] =
				(float)(r->variance[i][c] * (double)n /
					(double)(n > 1 ? n - 1 : 1));
		}
	}
}

/* ---- struct device --------------------------------------------------------------------------- */

static void cpu_ref_close(void *self)
{
	struct cpu_ref *r = self;

	for (size_t l = 0; l <= MODEL_MAX_LAYERS; l++) {
		free(r->value[l]);
		free(r->delta[l]);
	}
	for (size_t l = 0; l < MODEL_MAX_LAYERS; l++) {
		free(r->argmax[l]);
		free(r->mean[l]);
		free(r->variance[l]);
	}
	free(r->grad);
	free(r);
}

static int allocate_layer(struct cpu_ref *r, size_t i)
{
	const struct layer *l = &r->model->layer[i];
	int ok = 1;

	if (l->kind == LAYER_POOL) {
		r->argmax[i] = mem_try(r->images, shape_count(l->out) * sizeof(**r->argmax));
		ok = r->argmax[i] != NULL;
	} else if (l->kind == LAYER_BATCHNORM) {
		r->mean[i] = mem_try(l->in.c, sizeof(**r->mean));
		r->variance[i] = mem_try(l->in.c, sizeof(**r->variance));
		ok = r->mean[i] && r->variance[i];
	}
	return ok;
}

static int cpu_ref_allocate(struct cpu_ref *r, const struct model *m, size_t max_batch)
{
	r->images = m->n_trained < m->n_params ? max_batch : 1;
	r->grad = mem_try(m->n_params, sizeof(*r->grad));
	int ok = r->grad != NULL;
	for (size_t l = 0; ok && l <= m->n_layers; l++) {
		size_t n = shape_count(l == 0 ? m->input : m->layer[l - 1].out);

		r->value[l] = mem_try(r->images, n * sizeof(*r->value[l]));
		r->delta[l] = mem_try(r->images, n * sizeof(*r->delta[l]));
		ok = r->value[l] && r->delta[l] && (l == m->n_layers || allocate_layer(r, l));
	}
	return ok;
}

static int cpu_ref_open(
	void **self, const struct model *m, const struct backend_options *o, struct err *e)
{
	*self = NULL;
	struct cpu_ref *r = mem_try(1, sizeof(*r));

	if (!r)
		return err_set(e, PS_ENOMEM, "no memory for device cpu-ref");
	r->model = m;
	if (!cpu_ref_allocate(r, m, o->max_batch)) {
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

/* Moves the pass to the next images of a batch of `batch` images: to as many as there is room for.
 * Returns 0 if no image of the batch is left. */
static int next_pass(const struct cpu_ref *r, struct pass *p, size_t batch)
{
	p->first += p->n;
	p->n = batch - p->first < r->images ? batch - p->first : r->images;
	return p->n > 0;
}

static int cpu_ref_gradient(void *self, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss)
{
	struct cpu_ref *r = self;
	size_t n_params = r->model->n_params;
	struct pass p = {
		.params = params, .training = 1, .dropout_seed = dropout_seed, .index = index};
	double sum = 0;

	memset(r->grad, 0, n_params * sizeof(*r->grad));
	while (next_pass(r, &p, batch)) {
		pass_forward(r, &p);
		sum += pass_backward(r, &p);
	}
	for (size_t i = 0; i < n_params; i++)
		grad[i] = (float)(r->grad[i] / (double)batch);
	write_statistics(r, batch, grad);
	*loss = sum / (double)batch;
	return PS_OK;
}

static int cpu_ref_forward(void *self, const float *params, size_t first, size_t n, float *logits)
{
	struct cpu_ref *r = self;
	const struct model *m = r->model;
	struct pass p = {.params = params, .n = 1};

	for (size_t i = 0; i < n; i++) {
		p.first = first + i;
		pass_forward(r, &p);
		for (size_t c = 0; c < m->classes; c++)
			logits[i * m->classes + c] = (float)r->value[m->n_layers][c];
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
