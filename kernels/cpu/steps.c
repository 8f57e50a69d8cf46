/*
 * steps.c - forward and backward of each kind of step.
 */
#include "kernels/cpu/steps.h"
#include <cblas.h>
#include <string.h>
#include "kernels/device.h"

/* ---- chunks ---------------------------------------------------------------------------------- */

/* The chunk that starts at window *next, counted over all images of the block. `out` points to the
 * values or the errors of the output plane. Moves *next past the chunk. */
static struct chunk next_chunk(
	const struct lane *l, size_t i, float *const *out, size_t n_images, size_t *next)
{
	const struct step *s = &l->plan->step[i];
	const struct table *t = &l->table[i];
	const size_t w = *next, left = n_images * s->n_windows - w;

	const size_t max =
		s->max_positions < CHUNK_POSITIONS ? CHUNK_POSITIONS / s->max_positions : 1;
	const size_t n = left < max ? left : max;
	*next += n;
	return (struct chunk){.n_windows = n,
		.n_positions = t->first[w + n] - t->first[w],
		.max_positions = s->max_positions,
		.source = t->source + t->first[w],
		.first = t->first + w,
		.out = out + w,
		.argmax = s->pooled ? l->argmax[i] + w * s->filters : NULL,
		.filters = s->filters};
}

static void relu_forward(float *value, size_t n)
{
	for (size_t i = 0; i < n; i++)
		value[i] = value[i] < 0 ? 0 : value[i]; /* keeps NaN */
}

/* ---- weights --------------------------------------------------------------------------------- */

static void forward_dense(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const float *packed = b->batch->packed;

	for (size_t next = 0; next < b->n * s->n_windows;) {
		const struct chunk c = next_chunk(l, i, l->table[i].value, b->n, &next);

		for (size_t f = 0; f < s->filters; f += 2 * simd->lanes) {
			struct columns w = columns_at(simd, s->filters, f);

			simd->gemm(l->tile, w.width, c.source, c.n_positions, s->tap, s->n_taps,
				packed + s->panel + f * s->n_taps, w.width);
			simd->pool(&c, w, l->tile, packed + s->panel_bias, s->relu);
		}
	}
}

static void filter_back_dense(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;

	for (size_t next = 0; next < b->n * s->n_windows;) {
		const struct chunk c = next_chunk(l, i, l->table[i].error, b->n, &next);

		for (size_t f = 0; f < s->filters; f += 2 * simd->lanes) {
			struct columns w = columns_at(simd, s->filters, f);

			simd->unpool(l->tile, l->grad + s->grad_bias, &c, w);
			simd->filter_dense(l->grad + s->grad + f * s->taps_pad, l->tile, c.source,
				c.n_positions, s->tap, s->taps_pad, w.width);
		}
	}
}

/* dgrad of a layer with one window per image: errors times weights. */
static void data_back_dense(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const struct plane *in = &l->plan->plane[s->in];
	const float *panel = b->batch->packed + s->other;

	const float *const *error = (const float *const *)l->table[i].error;
	for (size_t k = 0; k < s->n_taps; k += 2 * simd->lanes)
		simd->gemm(l->error[s->in] + in->origin + k, in->image, error, b->n,
			l->plan->identity, s->filters, panel + k * s->filters,
			columns_at(simd, s->n_taps, k).width);
}

/* Lists the argmaxes of image `n` with an error other than 0, one list per filter. Pads each list
 * with zero entries to a multiple of SIMD_ENTRIES. */
static void list_argmax(struct lane *l, size_t i, size_t n)
{
	const struct step *s = &l->plan->step[i];
	const struct plane *out = &l->plan->plane[s->out];
	const float *error = l->error[s->out] + n * out->image;
	const size_t pad = entries_pad(s);

	memset(l->n_entries, 0, s->filters * sizeof(*l->n_entries));
	for (size_t w = 0; w < s->n_windows; w++) {
		const float *d = error + s->to[w];

		const uint16_t *argmax =
			s->pooled ? l->argmax[i] + (n * s->n_windows + w) * s->filters : NULL;
		for (size_t f = 0; f < s->filters; f++) {
			size_t *count = &l->n_entries[f];

			l->entry[f * pad + *count] = (struct entry){
				s->position[s->first[w] + (argmax ? argmax[f] : 0)], d[f]};
			*count += d[f] != 0;
		}
	}
	for (size_t f = 0; f < s->filters; f++)
		for (; l->n_entries[f] % SIMD_ENTRIES; l->n_entries[f]++)
			l->entry[f * pad + l->n_entries[f]] = (struct entry){0};
}

static void add_bias_errors(struct lane *l, const struct step *s, size_t n)
{
	const struct plane *out = &l->plan->plane[s->out];
	float *bias = l->grad + s->grad_bias;

	for (size_t w = 0; w < s->n_windows; w++) {
		const float *d = l->error[s->out] + n * out->image + s->to[w];

		for (size_t f = 0; f < s->filters; f++)
			bias[f] += d[f];
	}
}

/* Computes wgrad, dgrad, or both from the argmaxes alone. */
static void back_sparse(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const struct plane *in = &l->plan->plane[s->in];
	const size_t rows = s->patch.rows * s->patch.run_pad, pad = entries_pad(s);
	const float *weight = b->batch->packed + s->other;

	if (s->data == WAY_SPARSE)
		memset(l->error[s->in], 0, b->n * in->image * sizeof(float));
	for (size_t n = 0; n < b->n; n++) {
		list_argmax(l, i, n);
		if (s->filter == WAY_SPARSE)
			add_bias_errors(l, s, n);
		for (size_t f = 0; f < s->filters; f++) {
			const struct entry *e = l->entry + f * pad;

			if (s->filter == WAY_SPARSE)
				simd->filter_sparse(l->grad + s->grad + f * rows,
					l->value[s->in] + n * in->image, e, l->n_entries[f],
					&s->patch);
			if (s->data == WAY_SPARSE)
				simd->data_sparse(l->error[s->in] + n * in->image,
					weight + f * rows, e, l->n_entries[f], &s->patch);
		}
	}
}

/* Matrices of the BLAS calls, row-major: input n x taps, output n x filters, weights and gradient
 * filters x taps. */

static void forward_blas(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct plane *in = &l->plan->plane[s->in], *out = &l->plan->plane[s->out];
	float *to = l->table[i].value[0];

	for (size_t n = 0; n < b->n; n++)
		memcpy(to + n * out->image, b->batch->packed + s->panel_bias,
			s->filters * sizeof(float));
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)b->n, (blasint)s->filters,
		(blasint)s->n_taps, 1, l->table[i].source[0], (blasint)in->image,
		b->batch->packed + s->other, (blasint)s->patch.run_pad, 1, to, (blasint)out->image);
	if (s->relu)
		relu_forward(l->value[s->out], b->n * out->image);
}

static void back_blas(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct plane *in = &l->plan->plane[s->in], *out = &l->plan->plane[s->out];
	const blasint n = (blasint)b->n, filters = (blasint)s->filters, taps = (blasint)s->n_taps;
	const blasint row = (blasint)s->patch.run_pad;
	const float *error = l->table[i].error[0];

	for (size_t image = 0; image < b->n; image++)
		add_bias_errors(l, s, image);
	cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, filters, taps, n, 1, error,
		(blasint)out->image, l->table[i].source[0], (blasint)in->image, 1,
		l->grad + s->grad, row);
	if (s->data == WAY_BLAS)
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, taps, filters, 1, error,
			(blasint)out->image, b->batch->packed + s->other, row, 0,
			l->error[s->in] + in->origin, (blasint)in->image);
}

static void weights_forward(struct lane *l, size_t i, const struct block *b)
{
	if (l->plan->step[i].forward == WAY_BLAS)
		forward_blas(l, i, b);
	else
		forward_dense(l, i, b);
}

static void weights_backward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];

	if (s->relu)
		l->plan->simd->relu_back(
			l->error[s->out], l->value[s->out], b->n * l->plan->plane[s->out].image);
	if (s->filter == WAY_BLAS) {
		back_blas(l, i, b);
		return;
	}
	if (s->filter == WAY_DENSE)
		filter_back_dense(l, i, b);
	if (s->filter == WAY_SPARSE || s->data == WAY_SPARSE)
		back_sparse(l, i, b);
	if (s->data == WAY_DENSE)
		data_back_dense(l, i, b);
}

/* ---- pool, relu, dropout --------------------------------------------------------------------- */

static void pool_forward(struct lane *l, size_t i, size_t n)
{
	const struct step *s = &l->plan->step[i];
	const struct plane *in = &l->plan->plane[s->in], *out = &l->plan->plane[s->out];
	const size_t channels = out->shape.c;
	const float *from = l->value[s->in] + n * in->image;

	for (size_t w = 0; w < s->n_windows; w++) {
		float *to = l->value[s->out] + n * out->image + s->to[w];

		uint16_t *argmax =
			s->pooled ? l->argmax[i] + (n * s->n_windows + w) * channels : NULL;
		for (size_t c = 0; c < channels; c++) {
			const uint32_t *position = s->position + s->first[w];
			uint32_t best = 0;

			for (uint32_t k = 1; k < s->first[w + 1] - s->first[w]; k++)
				if (from[position[k] + c] > from[position[best] + c])
					best = k;
			to[c] = from[position[best] + c];
			if (argmax)
				argmax[c] = (uint16_t)best;
		}
	}
}

static void pool_backward(struct lane *l, size_t i, size_t n)
{
	const struct step *s = &l->plan->step[i];
	const struct plane *in = &l->plan->plane[s->in], *out = &l->plan->plane[s->out];
	const size_t channels = out->shape.c;
	float *to = l->error[s->in] + n * in->image;

	memset(to, 0, in->image * sizeof(float));
	for (size_t w = 0; w < s->n_windows; w++) {
		const float *from = l->error[s->out] + n * out->image + s->to[w];

		const uint16_t *argmax =
			s->pooled ? l->argmax[i] + (n * s->n_windows + w) * channels : NULL;
		for (size_t c = 0; c < channels; c++)
			to[s->position[s->first[w] + (argmax ? argmax[c] : 0)] + c] += from[c];
	}
}

/* Draws the mask of image `n` of the block. Values are numbered in the order channel, row,
 * column. */
static void dropout_draw(struct lane *l, size_t i, size_t n, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct plane *p = &l->plan->plane[s->in];
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

void step_forward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const size_t floats = b->n * l->plan->plane[s->in].image;

	switch (s->kind) {
	case STEP_WEIGHTS:
		weights_forward(l, i, b);
		break;
	case STEP_POOL:
		for (size_t n = 0; n < b->n; n++)
			pool_forward(l, i, n);
		break;
	case STEP_RELU:
		relu_forward(l->value[s->in], floats);
		break;
	case STEP_DROPOUT:
		for (size_t n = 0; b->training && n < b->n; n++)
			dropout_draw(l, i, n, b);
		if (b->training)
			multiply(l->value[s->in], l->mask[i], floats);
		break;
	}
}

void step_backward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const size_t floats = b->n * l->plan->plane[s->in].image;

	switch (s->kind) {
	case STEP_WEIGHTS:
		weights_backward(l, i, b);
		break;
	case STEP_POOL:
		for (size_t n = 0; n < b->n; n++)
			pool_backward(l, i, n);
		break;
	case STEP_RELU:
		l->plan->simd->relu_back(l->error[s->in], l->value[s->in], floats);
		break;
	case STEP_DROPOUT:
		multiply(l->error[s->in], l->mask[i], floats);
		break;
	}
}
