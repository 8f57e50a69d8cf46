/*
 * steps.c - the forward and the backward function of each kind of step.
 */
#include "kernels/cpu/steps.h"
#include <math.h>
#include <string.h>
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/joint.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/winograd.h"
#include "kernels/device/device.h"

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Returns the chunk that starts at window *next, counted over all images of the block. `out` points
 * to the values or the gradients of the output activation. Moves *next past the chunk. */
static struct chunk next_chunk(
	const struct lane *l, size_t i, float *const *out, size_t n_images, size_t *next)
{
	const struct step *s = &l->plan->step[i];
	const size_t w = *next, left = n_images * s->n_windows - w;

	const size_t max =
		s->max_positions < CHUNK_POSITIONS ? CHUNK_POSITIONS / s->max_positions : 1;
	const size_t n = left < max ? left : max;
	*next += n;
	return chunk_at(l, i, out, w, n);
}

static void relu_forward(float *value, size_t n)
{
	for (size_t i = 0; i < n; i++)
		value[i] = value[i] < 0 ? 0 : value[i]; /* a NaN is not < 0, so it stays a NaN */
}

/* ---- weights --------------------------------------------------------------------------------- */

static void forward_dense(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const float *packed = b->batch->packed;

	for (size_t next = 0; next < b->n * s->n_windows;) {
		const struct chunk c = next_chunk(l, i, l->table[i].value, b->n, &next);

		for (size_t k = 0; k < s->n_panels; k++) {
			const struct columns w = panel_at(simd, s, k);

			simd->gemm(l->tile, w.width, c.source, c.n_positions,
				s->tap + w.group * s->taps_pad, s->n_taps,
				packed + s->panel + w.at * s->n_taps, w.width);
			simd->pool(&c, w, l->tile, packed + s->panel_bias, s->relu);
		}
	}
}

static void filter_back_dense(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;

	for (size_t next = 0; next < b->n * s->n_windows;) {
		const struct chunk c = next_chunk(l, i, l->table[i].d_value, b->n, &next);

		for (size_t k = 0; k < s->n_panels; k++) {
			const struct columns w = panel_at(simd, s, k);

			simd->unpool(l->tile, l->grad + s->grad_bias, &c, w);
			simd->filter_dense(l->grad + s->grad + w.at * s->taps_pad, l->tile,
				c.source, c.n_positions, s->tap + w.group * s->taps_pad, s->n_taps,
				w.width);
		}
	}
}

/* Computes dgrad of a layer with one position per image: output gradients times weights. */
static void data_back_dense(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const struct activation *in = &l->plan->activation[s->in];
	const float *panel = b->batch->packed + s->other;

	const float *const *d_out = (const float *const *)l->table[i].d_value;
	for (size_t k = 0; k < s->n_taps; k += 2 * simd->lanes)
		simd->gemm(l->d_value[s->in] + in->origin + k, in->image, d_out, b->n,
			l->plan->identity, s->filters, panel + k * s->filters,
			columns_at(simd, s->n_taps, k).width);
}

/* Lists the argmaxes of image `n` with a gradient other than 0, one list per filter. Pads each list
 * to a multiple of SIMD_ENTRIES, with entries whose gradient is 0. */
static void list_argmax(struct lane *l, size_t i, size_t n)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *out = &l->plan->activation[s->out];
	const float *d_out = l->d_value[s->out] + n * out->image;
	const size_t pad = entries_pad(s);

	memset(l->n_entries, 0, s->filters * sizeof(*l->n_entries));
	for (size_t w = 0; w < s->n_windows; w++) {
		const float *d = d_out + s->to[w];

		const uint16_t *argmax =
			s->pooled ? l->argmax[i] + (n * s->n_windows + w) * s->filters : NULL;
		for (size_t f = 0; f < s->filters; f++) {
			size_t *count = &l->n_entries[f];

			l->entry[f * pad + *count] = (struct entry){
				s->position[s->first[w] + (argmax ? argmax[f] : 0)] + s->channel[f],
				d[f]};
			*count += d[f] != 0;
		}
	}
	for (size_t f = 0; f < s->filters; f++)
		for (; l->n_entries[f] % SIMD_ENTRIES; l->n_entries[f]++)
			l->entry[f * pad + l->n_entries[f]] = (struct entry){0};
}

static void add_bias_gradients(struct lane *l, const struct step *s, size_t n)
{
	const struct activation *out = &l->plan->activation[s->out];
	float *bias = l->grad + s->grad_bias;

	for (size_t w = 0; w < s->n_windows; w++) {
		const float *d = l->d_value[s->out] + n * out->image + s->to[w];

		for (size_t f = 0; f < s->filters; f++)
			bias[f] += d[f];
	}
}

/* Computes wgrad if its way is WAY_SPARSE, and dgrad if its way is WAY_SPARSE. */
static void back_sparse(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const struct activation *in = &l->plan->activation[s->in];
	const size_t rows = s->patch.rows * s->patch.run_pad, pad = entries_pad(s);
	const float *weight = b->batch->packed + s->other;

	if (s->data == WAY_SPARSE)
		memset(l->d_value[s->in], 0, b->n * in->image * sizeof(float));
	for (size_t n = 0; n < b->n; n++) {
		list_argmax(l, i, n);
		if (s->filter == WAY_SPARSE)
			add_bias_gradients(l, s, n);
		for (size_t f = 0; f < s->filters; f++) {
			const struct entry *e = l->entry + f * pad;

			if (s->filter == WAY_SPARSE)
				simd->filter_sparse(l->grad + s->grad + f * rows,
					l->value[s->in] + n * in->image, e, l->n_entries[f],
					&s->patch);
			if (s->data == WAY_SPARSE)
				simd->data_sparse(l->d_value[s->in] + n * in->image,
					weight + f * rows, e, l->n_entries[f], &s->patch);
		}
	}
}

static void weights_backward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];

	if (s->relu)
		l->plan->simd->relu_back(l->d_value[s->out], l->value[s->out],
			b->n * l->plan->activation[s->out].image);
	if (s->filter == WAY_JOINT)
		joint_backward(l, i, b);
	if (s->filter == WAY_DENSE)
		filter_back_dense(l, i, b);
	if (s->filter == WAY_SPARSE || s->data == WAY_SPARSE)
		back_sparse(l, i, b);
	if (s->data == WAY_DENSE)
		data_back_dense(l, i, b);
	if (s->filter == WAY_WINOGRAD)
		winograd_backward(l, i, b);
}

/* ---- pool, avgpool --------------------------------------------------------------------------- */

static uint16_t *argmax_of(const struct lane *l, size_t i, size_t n, size_t w)
{
	const struct step *s = &l->plan->step[i];

	return l->argmax[i]
		       ? l->argmax[i] + (n * s->n_windows + w) * l->plan->activation[s->out].shape.c
		       : NULL;
}

static void pool_forward(struct lane *l, size_t i, size_t n)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *in = &l->plan->activation[s->in],
				*out = &l->plan->activation[s->out];
	const float *from = l->value[s->in] + n * in->image;

	for (size_t w = 0; w < s->n_windows; w++) {
		float *to = l->value[s->out] + n * out->image + s->to[w];
		const uint32_t *position = s->position + s->first[w];
		const size_t positions = s->first[w + 1] - s->first[w];

		if (s->kind == STEP_POOL)
			l->plan->simd->max_values(
				to, argmax_of(l, i, n, w), from, position, positions, out->shape.c);
		else
			l->plan->simd->sum_values(
				to, from, position, positions, out->shape.c, s->scale);
	}
}

static void pool_backward(struct lane *l, size_t i, size_t n)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *in = &l->plan->activation[s->in],
				*out = &l->plan->activation[s->out];
	const size_t channels = out->shape.c;
	float *to = l->d_value[s->in] + n * in->image;

	memset(to, 0, in->image * sizeof(float));
	for (size_t w = 0; w < s->n_windows; w++) {
		const float *from = l->d_value[s->out] + n * out->image + s->to[w];
		const uint16_t *argmax = argmax_of(l, i, n, w);
		const uint32_t *position = s->position + s->first[w];

		for (size_t k = s->first[w]; s->kind == STEP_AVGPOOL && k < s->first[w + 1]; k++)
			l->plan->simd->add_scaled(to + s->position[k], from, s->scale, channels);
		for (size_t c = 0; s->kind == STEP_POOL && c < channels; c++)
			to[position[argmax ? argmax[c] : 0] + c] += from[c];
	}
}

/* ---- layers between two activations ---------------------------------------------------------- */

/* The rows of image `n` in the input and the output activation of step i. The two activations may
 * have different padding. */
struct rows {
	size_t n, floats;
	float *in, *out, *d_in, *d_out;
	size_t in_row, out_row;
};

static struct rows step_rows(const struct lane *l, size_t i, size_t n)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *in = &l->plan->activation[s->in],
				*out = &l->plan->activation[s->out];
	const size_t at_in = n * in->image + in->origin, at_out = n * out->image + out->origin;

	return (struct rows){.n = in->shape.h,
		.floats = in->shape.w * in->shape.c,
		.in = l->value[s->in] + at_in,
		.out = l->value[s->out] + at_out,
		.d_in = l->d_value[s->in] + at_in,
		.d_out = l->d_value[s->out] + at_out,
		.in_row = in->row,
		.out_row = out->row};
}

static void copy_rows(
	float *to, size_t to_row, const float *from, size_t from_row, size_t rows, size_t floats)
{
	for (size_t y = 0; y < rows; y++)
		memcpy(to + y * to_row, from + y * from_row, floats * sizeof(float));
}

/* Copies the input of a step to its output. A step that works in place needs no copy. */
static void copy_forward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];

	for (size_t n = 0; s->in != s->out && n < b->n; n++) {
		const struct rows r = step_rows(l, i, n);

		copy_rows(r.out, r.out_row, r.in, r.in_row, r.n, r.floats);
	}
}

static void copy_backward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];

	for (size_t n = 0; s->in != s->out && n < b->n; n++) {
		const struct rows r = step_rows(l, i, n);

		copy_rows(r.d_in, r.in_row, r.d_out, r.out_row, r.n, r.floats);
	}
}

static void curve_forward(struct lane *l, size_t i, size_t n)
{
	const struct simd *simd = l->plan->simd;
	const struct rows r = step_rows(l, i, n);

	for (size_t y = 0; y < r.n; y++)
		(l->plan->step[i].kind == STEP_TANH ? simd->tanh : simd->sigmoid)(
			r.out + y * r.out_row, r.in + y * r.in_row, r.floats);
}

static void curve_backward(struct lane *l, size_t i, size_t n)
{
	const struct simd *simd = l->plan->simd;
	const struct rows r = step_rows(l, i, n);

	for (size_t y = 0; y < r.n; y++)
		(l->plan->step[i].kind == STEP_TANH ? simd->tanh_back : simd->sigmoid_back)(
			r.d_in + y * r.in_row, r.d_out + y * r.out_row, r.out + y * r.out_row,
			r.floats);
}

/* ---- lrn ------------------------------------------------------------------------------------- */

static struct lrn lrn_numbers(const struct layer *l)
{
	return (struct lrn){.below = l->size / 2,
		.above = (l->size - 1) / 2,
		.alpha = l->alpha,
		.beta = l->beta,
		.k = l->k};
}

static void lrn_image(struct lane *l, size_t i, size_t n, int backward)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const struct rows r = step_rows(l, i, n);
	const struct lrn lrn = lrn_numbers(s->of);
	const size_t c = s->of->in.c;
	const size_t image = n * l->plan->activation[s->out].image;

	for (size_t y = 0; y < r.n; y++)
		for (size_t x = 0; x < r.floats; x += c) {
			const size_t in = y * r.in_row + x, out = y * r.out_row + x;
			float *power = l->power[i] + image + out,
			      *slope = l->slope[i] + image + out;

			if (backward)
				simd->lrn_back(r.d_in + in, r.d_out + out, power, slope, r.in + in,
					&lrn, c, l->room);
			else
				simd->lrn(r.out + out, power, slope, r.in + in, &lrn, c, l->room);
		}
}

/* ---- batchnorm ------------------------------------------------------------------------------- */

/* Returns the sum over all lanes of the value that `own` points to. `own` is one of this lane's
 * sums in moments[i]. */
static double total(const struct lane *l, size_t i, const struct batch *b, const double *own)
{
	const ptrdiff_t at = own - l->moments[i].sum;
	double sum = 0;

	for (size_t k = 0; k < b->n_lanes; k++)
		sum += b->lanes[k].moments[i].sum[at];
	return sum;
}

/* Computes the mean and the variance of each channel over the batch. */
static void measure_moments(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	struct moments *m = &l->moments[i];
	const double n = (double)(b->batch->images * s->of->in.h * s->of->in.w);

	memset(m->sum, 0, 2 * s->filters * sizeof(*m->sum));
	for (size_t image = 0; image < b->n; image++) {
		const struct rows r = step_rows(l, i, image);

		for (size_t y = 0; y < r.n; y++)
			l->plan->simd->add_moments(m->sum, m->squares, r.in + y * r.in_row,
				r.in + y * r.in_row, s->of->in.w, s->filters);
	}
	team_barrier(b->batch->team);
	for (size_t c = 0; c < s->filters; c++) {
		const double mean = total(l, i, b->batch, &m->sum[c]) / n;
		const double variance = total(l, i, b->batch, &m->squares[c]) / n - mean * mean;

		m->mean[c] = (float)mean;
		/* a NaN is not < 0, so it stays a NaN */
		m->variance[c] = variance < 0 ? 0 : (float)variance;
	}
}

static float batchnorm_scale(float variance)
{
	return (float)(1 / sqrt((double)variance + BATCHNORM_EPS));
}

static void normalize_forward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	struct moments *m = &l->moments[i];
	const size_t channels = s->filters;
	/* weight, bias, running mean and running variance, as pack_batchnorm writes them */
	const float *packed = b->batch->packed + s->panel;

	if (b->training)
		measure_moments(l, i, b);
	for (size_t c = 0; c < channels; c++) {
		if (!b->training) {
			m->mean[c] = packed[2 * channels + c];
			m->variance[c] =
				packed[3 * channels + c] < 0 ? 0 : packed[3 * channels + c];
		}
		m->a[c] = packed[c] * batchnorm_scale(m->variance[c]);
	}
	for (size_t n = 0; n < b->n; n++) {
		const struct rows r = step_rows(l, i, n);

		for (size_t y = 0; y < r.n; y++)
			l->plan->simd->affine(r.out + y * r.out_row, r.in + y * r.in_row, m->mean,
				m->a, packed + channels, s->of->in.w, channels);
	}
}

/* Computes the gradients of a batchnorm. The gradient of value v is a * (d - (E + x * P) / n) for a
 * = weight * scale, x = (v - mean) * scale, the sum E of all output gradients d, and the sum P of
 * all products d * x. */
static void normalize_backward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	struct moments *m = &l->moments[i];
	const double n = (double)(b->batch->images * s->of->in.h * s->of->in.w);

	memset(m->d_sum, 0, 2 * s->filters * sizeof(*m->d_sum));
	for (size_t image = 0; image < b->n; image++) {
		const struct rows r = step_rows(l, i, image);

		for (size_t y = 0; y < r.n; y++)
			l->plan->simd->add_moments(m->d_sum, m->products, r.d_out + y * r.out_row,
				r.in + y * r.in_row, s->of->in.w, s->filters);
	}
	team_barrier(b->batch->team);
	for (size_t c = 0; c < s->filters; c++) {
		const double mean = (double)m->mean[c];
		const double scale = (double)batchnorm_scale(m->variance[c]);
		const double d_sum = total(l, i, b->batch, &m->d_sum[c]);
		const double products = total(l, i, b->batch, &m->products[c]);
		const double product = scale * (products - mean * d_sum);
		const double slope = -(double)m->a[c] * scale * product / n;

		l->grad[s->grad + c] += (float)(scale * (m->products[c] - mean * m->d_sum[c]));
		l->grad[s->grad_bias + c] += (float)m->d_sum[c];
		m->b[c] = (float)slope;
		m->c[c] = (float)(-(double)m->a[c] * d_sum / n);
	}
	for (size_t image = 0; image < b->n; image++) {
		const struct rows r = step_rows(l, i, image);

		for (size_t y = 0; y < r.n; y++)
			l->plan->simd->affine_2(r.d_in + y * r.in_row, r.d_out + y * r.out_row,
				r.in + y * r.in_row, m->mean, m->a, m->b, m->c, s->of->in.w,
				s->filters);
	}
}

/* ---- skip, add ------------------------------------------------------------------------------- */

/* Adds activation `from` to activation `to`: in the forward pass the values of a skip to those of
 * its add, in the backward pass the gradients of the add to those of the skip (`spread`). */
static void add_activations(const struct plan *p, size_t stride, const float *from_value,
	size_t from_number, float *to_value, size_t to_number, int spread)
{
	const struct activation *from = &p->activation[from_number],
				*to = &p->activation[to_number];
	const struct activation *skip = spread ? to : from, *add = spread ? from : to;

	for (size_t y = 0; y < add->shape.h; y++)
		for (size_t x = 0; x < add->shape.w; x++) {
			const size_t at_add = add->origin + y * add->row + x * add->shape.c;
			const size_t y_skip = y * stride, x_skip = x * stride;
			const size_t in_skip = y_skip * skip->row + x_skip * skip->shape.c;
			const size_t at_skip = skip->origin + in_skip;

			p->simd->add_scaled(to_value + (spread ? at_skip : at_add),
				from_value + (spread ? at_add : at_skip), 1, skip->shape.c);
		}
}

static void add_skip_forward(struct lane *l, size_t i, size_t n)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *activation = l->plan->activation;

	add_activations(l->plan, s->stride, l->value[s->partner] + n * activation[s->partner].image,
		s->partner, l->value[s->out] + n * activation[s->out].image, s->out, 0);
}

static void add_error_backward(struct lane *l, size_t i, size_t n)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *activation = l->plan->activation;

	add_activations(l->plan, s->stride,
		l->d_value[s->partner] + n * activation[s->partner].image, s->partner,
		l->d_value[s->in] + n * activation[s->in].image, s->in, 1);
}

/* ---- dropout --------------------------------------------------------------------------------- */

/* Draws the mask of image `n` of the block. Values are numbered in the order channel, row,
 * column. */
static void dropout_draw(struct lane *l, size_t i, size_t n, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *p = &l->plan->activation[s->in];
	const size_t channels = p->shape.c;
	const float keep = (float)(1 / (1 - (double)s->drop));
	const uint32_t threshold = dropout_threshold(s->drop);
	size_t number = (b->first + n) * shape_count(p->shape);

	for (size_t c = 0; c < channels; c++)
		for (size_t y = 0; y < p->shape.h; y++) {
			float *mask = l->mask[i] + n * p->image + p->origin + y * p->row + c;

			for (size_t x = 0; x < p->shape.w; x++, number++)
				mask[x * channels] = dropout_drops(b->batch->dropout_seed, s->layer,
							     number, threshold)
							     ? 0
							     : keep;
		}
}

static void multiply(float *value, const float *mask, size_t n)
{
	for (size_t i = 0; i < n; i++)
		value[i] *= mask[i];
}

/* ---- forward and backward of a step ---------------------------------------------------------- */

typedef void image_step(struct lane *l, size_t i, size_t n);

static void each_image(struct lane *l, size_t i, const struct block *b, image_step *step)
{
	for (size_t n = 0; n < b->n; n++)
		step(l, i, n);
}

static void dropout_forward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];

	for (size_t n = 0; n < b->n; n++)
		dropout_draw(l, i, n, b);
	multiply(l->value[s->out], l->mask[i], b->n * l->plan->activation[s->out].image);
}

static void lrn_each_forward(struct lane *l, size_t i, size_t n)
{
	lrn_image(l, i, n, 0);
}

static void lrn_each_backward(struct lane *l, size_t i, size_t n)
{
	lrn_image(l, i, n, 1);
}

void step_forward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];

	switch (s->kind) {
	case STEP_WEIGHTS:
		if (s->forward == WAY_JOINT)
			joint_forward(l, i, b);
		else if (s->forward == WAY_WINOGRAD)
			winograd_forward(l, i, b);
		else
			forward_dense(l, i, b);
		break;
	case STEP_POOL:
	case STEP_AVGPOOL:
		each_image(l, i, b, pool_forward);
		break;
	case STEP_RELU:
		copy_forward(l, i, b);
		relu_forward(l->value[s->out], b->n * l->plan->activation[s->out].image);
		break;
	case STEP_DROPOUT:
		copy_forward(l, i, b);
		if (b->training)
			dropout_forward(l, i, b);
		break;
	case STEP_TANH:
	case STEP_SIGMOID:
		each_image(l, i, b, curve_forward);
		break;
	case STEP_LRN:
		each_image(l, i, b, lrn_each_forward);
		break;
	case STEP_BATCHNORM:
		normalize_forward(l, i, b);
		break;
	case STEP_SKIP:
		break;
	case STEP_ADD:
		copy_forward(l, i, b);
		each_image(l, i, b, add_skip_forward);
		break;
	}
}

void step_backward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const size_t floats = b->n * l->plan->activation[s->out].image;

	switch (s->kind) {
	case STEP_WEIGHTS:
		weights_backward(l, i, b);
		break;
	case STEP_POOL:
	case STEP_AVGPOOL:
		each_image(l, i, b, pool_backward);
		break;
	case STEP_RELU:
		l->plan->simd->relu_back(l->d_value[s->out], l->value[s->out], floats);
		copy_backward(l, i, b);
		break;
	case STEP_DROPOUT:
		multiply(l->d_value[s->out], l->mask[i], floats);
		copy_backward(l, i, b);
		break;
	case STEP_TANH:
	case STEP_SIGMOID:
		each_image(l, i, b, curve_backward);
		break;
	case STEP_LRN:
		each_image(l, i, b, lrn_each_backward);
		break;
	case STEP_BATCHNORM:
		normalize_backward(l, i, b);
		break;
	case STEP_SKIP:
		each_image(l, i, b, add_error_backward);
		break;
	case STEP_ADD:
		copy_backward(l, i, b);
		break;
	}
}
