/*
 * cpu_lane.c - forward and backward over a block of images.
 */
#include "kernels/cpu_lane.h"
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "kernels/device.h"

#define BLOCK_BYTES ((size_t)512 << 10) /* half of a usual second-level cache */
#define BLOCK_MAX   32
#define CHUNK_CELLS 128 /* one panel's scores of a chunk fill half of a first-level cache */

/* A block of images on its way. */
struct block {
	const struct batch *batch;
	size_t first, n; /* images of the batch */
	int training;
};

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t choose_block(const struct plan *p, size_t most)
{
	size_t bytes = 0;
	for (size_t i = 0; i < p->n_planes; i++)
		bytes += 2 * p->plane[i].image * sizeof(float);
	size_t block = BLOCK_BYTES / bytes;
	block = block < 1 ? 1 : block > BLOCK_MAX ? BLOCK_MAX : block;
	return round_up(block < most ? block : most, p->simd->cells);
}

static int allocate_planes(struct lane *l)
{
	int ok = 1;
	for (size_t i = 0; ok && i < l->plan->n_planes; i++) {
		size_t floats = l->plan->plane[i].image * l->block + PLANE_ALIGN;
		l->value[i] = mem_try(floats, sizeof(float));
		l->error[i] = mem_try(floats, sizeof(float));
		ok = l->value[i] && l->error[i];
	}
	for (size_t i = 0; ok && i < l->plan->n_steps; i++) {
		const struct step *s = &l->plan->step[i];
		const struct plane *out = &l->plan->plane[s->out];
		if (s->pooled) {
			l->winner[i] =
				mem_try(l->block * s->n_windows, out->shape.c * sizeof(uint32_t));
			ok = l->winner[i] != NULL;
		} else if (s->kind == STEP_DROPOUT) {
			l->mask[i] = mem_try(out->image * l->block, sizeof(float));
			ok = l->mask[i] != NULL;
		}
	}
	return ok;
}

static int allocate_scratch(struct lane *l)
{
	const struct simd *simd = l->plan->simd;
	size_t cells = l->plan->max_cells > CHUNK_CELLS ? l->plan->max_cells : CHUNK_CELLS;
	size_t filters = 0;
	for (size_t i = 0; i < l->plan->n_steps; i++)
		if (l->plan->step[i].filters > filters)
			filters = l->plan->step[i].filters;
	l->chunk_cells = round_up(cells, simd->cells);
	struct chunk *c = &l->chunk;
	c->source = mem_try(l->chunk_cells, sizeof *c->source);
	c->first = mem_try(l->chunk_cells + 1, sizeof *c->first);
	c->number = mem_try(l->chunk_cells, sizeof *c->number);
	c->out = mem_try(l->chunk_cells, sizeof *c->out);
	c->winner = mem_try(l->chunk_cells, sizeof *c->winner);
	l->tile = mem_try(l->chunk_cells, 2 * simd->lanes * sizeof(float));
	l->grad = mem_try(l->plan->grad_floats, sizeof(float));
	l->entry = mem_try(l->plan->max_entries, sizeof *l->entry);
	l->n_entries = mem_try(filters, sizeof *l->n_entries);
	return c->source && c->first && c->number && c->out && c->winner && l->tile && l->grad &&
	       l->entry && l->n_entries;
}

int lane_init(struct lane *l, const struct plan *p, size_t most)
{
	*l = (struct lane){.plan = p, .block = choose_block(p, most)};
	return allocate_planes(l) && allocate_scratch(l) ? PS_OK : PS_ENOMEM;
}

void lane_release(struct lane *l)
{
	for (size_t i = 0; i < MODEL_MAX_LAYERS; i++) {
		free(l->value[i]);
		free(l->error[i]);
		free(l->winner[i]);
		free(l->mask[i]);
	}
	free(l->value[MODEL_MAX_LAYERS]);
	free(l->error[MODEL_MAX_LAYERS]);
	free(l->grad);
	free(l->tile);
	free(l->entry);
	free(l->n_entries);
	free(l->chunk.source);
	free(l->chunk.first);
	free(l->chunk.number);
	free(l->chunk.out);
	free(l->chunk.winner);
	*l = (struct lane){0};
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/*
 * Fill l->chunk with windows from *next on, counted over all images of the block, and move *next
 * behind them. `to` is what the chunk's out points into: the values or the errors of the output.
 */
static void next_chunk(struct lane *l, size_t i, size_t n_images, float *to, size_t *next)
{
	const struct step *s = &l->plan->step[i];
	const struct plane *in = &l->plan->plane[s->in], *out = &l->plan->plane[s->out];
	struct chunk *c = &l->chunk;
	c->n_windows = c->n_cells = 0;
	for (; *next < n_images * s->n_windows; ++*next) {
		size_t image = *next / s->n_windows, w = *next % s->n_windows;
		size_t begin = s->first[w], end = s->first[w + 1];
		if (c->n_cells + end - begin > l->chunk_cells)
			break;
		const float *base = l->value[s->in] + image * in->image;
		c->first[c->n_windows] = (uint32_t)c->n_cells;
		c->number[c->n_windows] = (uint32_t)begin;
		c->out[c->n_windows] = to + image * out->image + s->to[w];
		c->winner[c->n_windows] = s->pooled ? l->winner[i] + *next * out->shape.c : NULL;
		for (size_t cell = begin; cell < end; cell++)
			c->source[c->n_cells++] = base + s->cell[cell];
		c->n_windows++;
	}
	c->first[c->n_windows] = (uint32_t)c->n_cells;
	for (size_t cell = c->n_cells; cell % l->plan->simd->cells; cell++)
		c->source[cell] = c->source[c->n_cells - 1];
}

/* ---- weights --------------------------------------------------------------------------------- */

static void weights_forward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const float *packed = b->batch->packed;
	for (size_t next = 0; next < b->n * s->n_windows;) {
		next_chunk(l, i, b->n, l->value[s->out], &next);
		const struct chunk *c = &l->chunk;
		for (size_t f = 0; f < s->filters; f += 2 * simd->lanes) {
			struct columns w = columns_at(simd, s->filters, f);
			simd->gemm(l->tile, w.width, c->source, c->n_cells, s->tap, s->n_taps,
				packed + s->panel + f * s->n_taps, w.width);
			simd->pool(c, w, l->tile, packed + s->panel_bias, s->relu, s->pooled);
		}
	}
}

static void filter_back_dense(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	for (size_t next = 0; next < b->n * s->n_windows;) {
		next_chunk(l, i, b->n, l->error[s->out], &next);
		const struct chunk *c = &l->chunk;
		for (size_t f = 0; f < s->filters; f += 2 * simd->lanes) {
			struct columns w = columns_at(simd, s->filters, f);
			simd->unpool(l->tile, l->grad + s->grad_bias, c, w, s->pooled);
			simd->filter_dense(l->grad + s->grad + f * s->taps_pad, l->tile, c->source,
				c->n_cells, s->tap, s->taps_pad, w.width);
		}
	}
}

static void data_back_gemm(struct lane *l, const struct step *s, const struct block *b)
{
	const struct simd *simd = l->plan->simd;
	const struct plane *in = &l->plan->plane[s->in], *out = &l->plan->plane[s->out];
	const float *panel = b->batch->packed + s->panel_back;
	const float **source = l->chunk.source;
	for (size_t n = 0; n < round_up(b->n, simd->cells); n++)
		source[n] = l->error[s->out] + n * out->image + out->origin;
	for (size_t k = 0; k < s->n_taps; k += 2 * simd->lanes)
		simd->gemm(l->error[s->in] + in->origin + k, in->image, source, b->n,
			l->plan->identity, s->filters, panel + k * s->filters,
			columns_at(simd, s->n_taps, k).width);
}

/* The winners of image `n` that have an error, one list per filter, each filled up with entries of
 * no error to whole SIMD_ENTRIES. */
static void list_winners(struct lane *l, size_t i, size_t n)
{
	const struct step *s = &l->plan->step[i];
	const struct plane *out = &l->plan->plane[s->out];
	const float *error = l->error[s->out] + n * out->image;
	const size_t pad = entries_pad(s);
	memset(l->n_entries, 0, s->filters * sizeof *l->n_entries);
	for (size_t w = 0; w < s->n_windows; w++) {
		const float *d = error + s->to[w];
		const uint32_t *winner =
			s->pooled ? l->winner[i] + (n * s->n_windows + w) * s->filters : NULL;
		for (size_t f = 0; f < s->filters; f++) {
			size_t *count = &l->n_entries[f];
			l->entry[f * pad + *count] =
				(struct entry){s->cell[winner ? winner[f] : w], d[f]};
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

/* Through the winners only: the weights' gradient unless `dense` did that, and the errors of the
 * layer before. */
static void back_sparse(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const struct plane *in = &l->plan->plane[s->in];
	const size_t rows = s->patch.rows * s->patch.run_pad, pad = entries_pad(s);
	const int data = s->back && !s->back_gemm;
	if (data)
		memset(l->error[s->in], 0, b->n * in->image * sizeof(float));
	for (size_t n = 0; n < b->n; n++) {
		list_winners(l, i, n);
		if (!s->dense)
			add_bias_errors(l, s, n);
		for (size_t f = 0; f < s->filters; f++) {
			const struct entry *e = l->entry + f * pad;
			if (!s->dense)
				simd->filter_sparse(l->grad + s->grad + f * rows,
					l->value[s->in] + n * in->image, e, l->n_entries[f],
					&s->patch);
			if (data)
				simd->data_sparse(l->error[s->in] + n * in->image,
					b->batch->packed + s->panel_back + f * rows, e,
					l->n_entries[f], &s->patch);
		}
	}
}

static void weights_backward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	if (s->relu)
		l->plan->simd->relu_back(
			l->error[s->out], l->value[s->out], b->n * l->plan->plane[s->out].image);
	if (s->dense)
		filter_back_dense(l, i, b);
	if (!s->dense || (s->back && !s->back_gemm))
		back_sparse(l, i, b);
	if (s->back && s->back_gemm)
		data_back_gemm(l, s, b);
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
		uint32_t *winner =
			s->pooled ? l->winner[i] + (n * s->n_windows + w) * channels : NULL;
		for (size_t c = 0; c < channels; c++) {
			size_t best = s->first[w];
			for (size_t cell = best + 1; cell < s->first[w + 1]; cell++)
				if (from[s->cell[cell] + c] > from[s->cell[best] + c])
					best = cell;
			to[c] = from[s->cell[best] + c];
			if (winner)
				winner[c] = (uint32_t)best;
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
		const uint32_t *winner =
			s->pooled ? l->winner[i] + (n * s->n_windows + w) * channels : NULL;
		for (size_t c = 0; c < channels; c++)
			to[s->cell[winner ? winner[c] : s->first[w]] + c] += from[c];
	}
}

static void relu_forward(float *value, size_t n)
{
	for (size_t i = 0; i < n; i++)
		value[i] = value[i] < 0 ? 0 : value[i]; /* keeps what is not a number */
}

/* Draw the mask of image `n` of the block: values are numbered channel by channel. */
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

/* ---- a block --------------------------------------------------------------------------------- */

static void step_forward(struct lane *l, size_t i, const struct block *b)
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

static void step_backward(struct lane *l, size_t i, const struct block *b)
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

static size_t image_of(const struct block *b, size_t n)
{
	size_t i = b->first + n;
	return b->batch->index ? b->batch->index[i] : b->batch->first + i;
}

static void load_image(struct lane *l, const struct block *b, size_t n)
{
	const struct plane *p = &l->plan->plane[0];
	const size_t channels = p->shape.c;
	const uint8_t *pixel = b->batch->set->pixels + image_of(b, n) * shape_count(p->shape);
	for (size_t c = 0; c < channels; c++)
		for (size_t y = 0; y < p->shape.h; y++, pixel += p->shape.w) {
			float *to = l->value[0] + n * p->image + p->origin + y * p->row + c;
			for (size_t x = 0; x < p->shape.w; x++)
				to[x * channels] = (float)pixel[x] / 255;
		}
}

static void block_forward(struct lane *l, const struct block *b)
{
	for (size_t n = 0; n < b->n; n++)
		load_image(l, b, n);
	for (size_t i = 0; i < l->plan->n_steps; i++)
		step_forward(l, i, b);
}

static double image_loss(struct lane *l, const struct block *b, size_t n)
{
	const struct plane *p = &l->plan->plane[l->plan->n_planes - 1];
	const size_t classes = p->shape.c, label = b->batch->set->labels[image_of(b, n)];
	const float *value = l->value[l->plan->n_planes - 1] + n * p->image;
	float *error = l->error[l->plan->n_planes - 1] + n * p->image;
	double score[DEVICE_MAX_CLASSES];
	widen(score, value, classes);
	double loss = softmax_loss(score, classes, label, score);
	for (size_t c = 0; c < classes; c++)
		error[c] = (float)(score[c] - (c == label));
	return loss;
}

static void block_backward(struct lane *l, const struct block *b)
{
	size_t first = 0; /* what stands before the first weights has nothing to learn */
	while (l->plan->step[first].kind != STEP_WEIGHTS)
		first++;
	for (size_t n = 0; n < b->n; n++)
		l->loss += image_loss(l, b, n);
	for (size_t i = l->plan->n_steps; i-- > first;)
		step_backward(l, i, b);
}

/* Block number `i` of images [begin, end); 0 behind the last. */
static int get_block(const struct lane *l, size_t begin, size_t end, size_t i, struct block *b)
{
	size_t n = end - begin, blocks = (n + l->block - 1) / l->block;
	if (i >= blocks)
		return 0;
	b->first = begin + n * i / blocks;
	b->n = begin + n * (i + 1) / blocks - b->first;
	return 1;
}

void lane_gradient(struct lane *l, const struct batch *batch, size_t begin, size_t end)
{
	struct block b = {.batch = batch, .training = 1};
	l->loss = 0;
	memset(l->grad, 0, l->plan->grad_floats * sizeof(float));
	for (size_t i = 0; get_block(l, begin, end, i, &b); i++) {
		block_forward(l, &b);
		block_backward(l, &b);
	}
}

void lane_forward(struct lane *l, const struct batch *batch, size_t begin, size_t end)
{
	const struct plane *p = &l->plan->plane[l->plan->n_planes - 1];
	const size_t classes = p->shape.c;
	struct block b = {.batch = batch};
	for (size_t i = 0; get_block(l, begin, end, i, &b); i++) {
		block_forward(l, &b);
		for (size_t n = 0; n < b.n; n++)
			memcpy(batch->scores + (b.first + n) * classes,
				l->value[l->plan->n_planes - 1] + n * p->image,
				classes * sizeof(float));
	}
}
