/*
 * lane.c - runs the forward and the backward pass over a block of images.
 */
#include "kernels/cpu/lane.h"
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/mem.h"
#include "kernels/cpu/joint.h"
#include "kernels/cpu/pack.h"
#include "kernels/device/device.h"

/* LARGE_BLOCK is the minimum number of images in a block if an fc step has many weights.
 * LARGE_ROUND is the minimum number of images in all blocks of a round together if there is a joint
 * step. With these numbers, a lane (in a joint step, the team) reads the many weights only once for
 * all these images. */
#define LARGE_BLOCK 64
#define LARGE_ROUND 128

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t choose_block(const struct plan *p, size_t max, size_t lanes, int training)
{
	const size_t large =
		p->joint && lanes * LARGE_BLOCK < LARGE_ROUND ? LARGE_ROUND / lanes : LARGE_BLOCK;

	if (p->whole && training)
		return round_up(max, p->simd->positions);

	size_t block = images_in_cache(p, 0, p->n_activations - 1);
	if (p->large && block < large)
		block = large;
	return round_up(block < max ? block : max, p->simd->positions);
}

static int allocate_moments(struct moments *m, size_t n)
{
	m->sum = mem_try(n, 4 * sizeof(*m->sum));
	m->mean = mem_try(n, 5 * sizeof(*m->mean));
	if (!m->sum || !m->mean)
		return 0;
	m->squares = m->sum + n;
	m->d_sum = m->sum + 2 * n;
	m->products = m->sum + 3 * n;
	m->variance = m->mean + n;
	m->a = m->mean + 2 * n;
	m->b = m->mean + 3 * n;
	m->c = m->mean + 4 * n;
	return 1;
}

static int allocate_activations(struct lane *l)
{
	/* gemm may write the rows of up to `positions` more images than a sub-block has */
	const size_t images = l->block + (l->plan->n_segments > 1 ? l->plan->simd->positions : 0);
	int ok = 1;

	for (size_t i = 0; ok && i < l->plan->n_activations; i++) {
		size_t floats = l->plan->activation[i].image * images + ACTIVATION_ALIGN;

		l->value[i] = mem_huge(floats, sizeof(float));
		l->d_value[i] = mem_huge(floats, sizeof(float));
		ok = l->value[i] && l->d_value[i];
	}
	for (size_t i = 0; ok && i < l->plan->n_steps; i++) {
		const struct step *s = &l->plan->step[i];
		const struct activation *out = &l->plan->activation[s->out];

		if (s->pooled && s->kind != STEP_AVGPOOL) {
			l->argmax[i] =
				mem_try(l->block * s->n_windows, out->shape.c * sizeof(uint16_t));
			ok = l->argmax[i] != NULL;
		} else if (s->kind == STEP_DROPOUT) {
			l->mask[i] = mem_try(out->image * l->block, sizeof(float));
			ok = l->mask[i] != NULL;
		} else if (s->kind == STEP_LRN) {
			l->power[i] = mem_try(out->image * l->block, sizeof(float));
			l->slope[i] = mem_try(out->image * l->block, sizeof(float));
			ok = l->power[i] && l->slope[i];
		} else if (s->kind == STEP_BATCHNORM) {
			ok = allocate_moments(&l->moments[i], s->filters);
		}
	}
	return ok;
}

/* Turns the plan's offsets of windows and positions into pointers, for every image of a block. */
static int allocate_table(struct lane *l, size_t i)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *in = &l->plan->activation[s->in],
				*out = &l->plan->activation[s->out];
	struct table *t = &l->table[i];
	const size_t positions = l->block * s->n_positions, windows = l->block * s->n_windows;

	t->source = mem_try(positions + l->plan->simd->positions, sizeof(*t->source));
	t->first = mem_try(windows + 1, sizeof(*t->first));
	t->value = mem_try(windows, sizeof(*t->value));
	t->d_value = mem_try(windows, sizeof(*t->d_value));
	if (!t->source || !t->first || !t->value || !t->d_value)
		return 0;
	for (size_t position = 0; position < positions; position++)
		t->source[position] = l->value[s->in] + position / s->n_positions * in->image +
				      s->position[position % s->n_positions];
	for (size_t extra = 0; extra < l->plan->simd->positions; extra++)
		t->source[positions + extra] = t->source[0];
	for (size_t w = 0; w < windows; w++) {
		size_t n = w / s->n_windows, to = n * out->image + s->to[w % s->n_windows];

		t->first[w + 1] = (uint32_t)(n * s->n_positions + s->first[w % s->n_windows + 1]);
		t->value[w] = l->value[s->out] + to;
		t->d_value[w] = l->d_value[s->out] + to;
	}
	return 1;
}

static size_t max_size(size_t a, size_t b)
{
	return a > b ? a : b;
}

static int allocate_band(struct lane *l)
{
	size_t input = 0, output = 0, conv = 0;
	struct band_room *r = &l->band;

	for (size_t i = 0; i < l->plan->n_steps; i++) {
		const struct step *s = &l->plan->step[i];
		const struct winograd *w = &s->winograd;

		input = max_size(input, WINOGRAD_TILE * w->input_step);
		output = max_size(output, WINOGRAD_TILE * w->output_step);
		if (s->filter == WAY_WINOGRAD)
			output = max_size(output, WINOGRAD_TILE * w->dy_step);
		conv = max_size(conv, w->max_positions * 2 * l->plan->simd->lanes);
	}
	if (!input)
		return 1;
	r->input = mem_huge(input + ACTIVATION_ALIGN, sizeof(float));
	r->output = mem_huge(output, sizeof(float));
	r->conv = mem_huge(conv, sizeof(float));
	return r->input && r->output && r->conv;
}

static int allocate_scratch(struct lane *l)
{
	const struct plan *p = l->plan;
	size_t filters = 0, room = p->max_taps + 1,
	       positions = p->max_positions > CHUNK_POSITIONS ? p->max_positions : CHUNK_POSITIONS;
	int ok = 1;

	for (size_t i = 0; ok && i < p->n_steps; i++)
		if (p->step[i].kind == STEP_WEIGHTS) {
			ok = allocate_table(l, i);
			filters = p->step[i].filters > filters ? p->step[i].filters : filters;
		} else if (p->step[i].kind == STEP_LRN) {
			const size_t n = p->step[i].of->in.c + p->step[i].of->size;

			room = n > room ? n : room;
		}
	l->room = mem_try(room, sizeof(float));
	l->tile = mem_try(
		round_up(positions, p->simd->positions), 2 * p->simd->lanes * sizeof(float));
	l->weights = mem_huge(joint_weights(p), sizeof(float));
	l->grad = mem_huge(p->grad_floats, sizeof(float));
	l->entry = mem_try(p->max_entries, sizeof(*l->entry));
	l->n_entries = mem_try(filters, sizeof(*l->n_entries));
	l->logit = mem_try(p->activation[p->n_activations - 1].shape.c, sizeof(*l->logit));
	return ok && allocate_band(l) && l->weights && l->room && l->tile && l->grad && l->entry &&
	       l->n_entries && l->logit;
}

int lane_init(struct lane *l, const struct plan *p, size_t max, size_t lanes)
{
	*l = (struct lane){.plan = p,
		.block = choose_block(p, max, lanes, 1),
		.eval_block = choose_block(p, max, lanes, 0)};
	return allocate_activations(l) && allocate_scratch(l) ? PS_OK : PS_ENOMEM;
}

void lane_release(struct lane *l)
{
	for (size_t i = 0; i <= MODEL_MAX_LAYERS; i++) {
		free(l->value[i]);
		free(l->d_value[i]);
	}
	for (size_t i = 0; i < MODEL_MAX_LAYERS; i++) {
		free(l->argmax[i]);
		free(l->mask[i]);
		free(l->power[i]);
		free(l->slope[i]);
		free(l->moments[i].sum);
		free(l->moments[i].mean);
		free(l->table[i].source);
		free(l->table[i].first);
		free(l->table[i].value);
		free(l->table[i].d_value);
	}
	free(l->band.input);
	free(l->band.output);
	free(l->band.conv);
	free(l->grad);
	free(l->weights);
	free(l->tile);
	free(l->room);
	free(l->entry);
	free(l->n_entries);
	free(l->logit);
	*l = (struct lane){0};
}

/* ---- block of images ------------------------------------------------------------------------- */

static size_t image_of(const struct block *b, size_t n)
{
	size_t i = b->first + n;

	return b->batch->index ? b->batch->index[i] : b->batch->first + i;
}

static void look_up(float *to, size_t step, const uint8_t *pixel, size_t n, const float table[256])
{
	for (size_t i = 0; i < n; i++)
		to[i * step] = table[pixel[i]];
}

static void load_image(struct lane *l, const struct block *b, size_t n)
{
	const struct activation *p = &l->plan->activation[0];
	const uint8_t *pixel = b->batch->set->pixels + image_of(b, n) * shape_count(p->shape);
	const int gapless = p->row == p->shape.w * p->shape.c;
	const size_t rows = gapless ? 1 : p->shape.h;
	const size_t pixels = gapless ? p->shape.h * p->shape.w : p->shape.w;

	for (size_t c = 0; c < p->shape.c; c++)
		for (size_t y = 0; y < rows; y++, pixel += pixels) {
			float *to = l->value[0] + n * p->image + p->origin + y * p->row + c;

			if (l->plan->pixel)
				look_up(to, p->shape.c, pixel, pixels, l->plan->pixel + 256 * c);
			else
				l->plan->simd->load(to, p->shape.c, pixel, pixels);
		}
}

/* Sets *b to block number `i` of `blocks` blocks of images [begin, end). */
static void get_block(size_t blocks, size_t begin, size_t end, size_t i, struct block *b)
{
	size_t first, last;

	share_range((struct share){i, blocks}, end - begin, &first, &last);
	b->first = begin + first;
	b->n = last - first;
}

/* Returns the number of blocks of up to `max` images that together have `n` images. */
static size_t blocks_needed(size_t n, size_t max)
{
	return (n + max - 1) / max;
}

/* Sets *b to the block of lane `l` in round number `i` of `rounds` rounds. */
static void get_round(
	const struct lane *l, const struct batch *batch, size_t rounds, size_t i, struct block *b)
{
	size_t begin, end;

	b->round = i;
	b->rows = 0;
	for (size_t k = 0; k < batch->n_lanes; k++) {
		struct block of_lane;

		share_range((struct share){k, batch->n_lanes}, batch->images, &begin, &end);
		get_block(rounds, begin, end, i, &of_lane);
		if (&batch->lanes[k] == l) {
			b->row = b->rows;
			b->first = of_lane.first;
			b->n = of_lane.n;
		}
		b->rows += of_lane.n;
	}
}

/* Sets *s to sub-block number `i` of block `b` in a segment that is not the last one, and *v to a
 * copy of lane `l` whose arrays begin with the first image of this sub-block. All sub-blocks share
 * the memory of the gradients that no other segment reads. Returns 0 if the block has no sub-block
 * with this number. */
static int get_sub_block(const struct lane *l, const struct segment *g, const struct block *b,
	size_t i, struct block *s, struct lane *v)
{
	const struct plan *p = l->plan;
	const size_t first = p->step[g->begin].in, last = p->step[g->end].in;

	const size_t blocks = blocks_needed(b->n, g->images);

	if (i >= blocks)
		return 0;
	*s = *b;
	get_block(blocks, b->first, b->first + b->n, i, s);
	const size_t at = s->first - b->first;
	*v = *l;
	for (size_t a = 0; a < p->n_activations; a++) {
		v->value[a] += at * p->activation[a].image;
		if (a <= first || a >= last)
			v->d_value[a] += at * p->activation[a].image;
	}
	for (size_t k = g->begin; k < g->end; k++) {
		const struct step *step = &p->step[k];
		const struct activation *out = &p->activation[step->out];
		const size_t window = at * step->n_windows;

		if (v->argmax[k])
			v->argmax[k] += window * out->shape.c;
		if (v->mask[k])
			v->mask[k] += at * out->image;
		if (v->power[k]) {
			v->power[k] += at * out->image;
			v->slope[k] += at * out->image;
		}
		if (step->kind != STEP_WEIGHTS)
			continue;
		v->table[k].first += window;
		v->table[k].value += window;
		if (step->out == last)
			v->table[k].d_value += window;
	}
	return 1;
}

static void load_block(struct lane *l, const struct block *b)
{
	for (size_t n = 0; n < b->n; n++)
		load_image(l, b, n);
}

/* Returns 1 if every lane must take part in a step, even a lane that has no images. */
static int needs_all_lanes(const struct step *s)
{
	return s->kind == STEP_BATCHNORM || s->forward == WAY_JOINT;
}

static void segment_forward(struct lane *l, const struct segment *g, const struct block *b)
{
	if (g->begin == 0)
		load_block(l, b);
	for (size_t i = g->begin; i < g->end; i++)
		if (b->n > 0 || needs_all_lanes(&l->plan->step[i]))
			step_forward(l, i, b);
}

/* Runs the backward pass of a segment. The pass ends at the model's first step with weights,
 * because no earlier step needs gradients. */
static void segment_backward(struct lane *l, const struct segment *g, const struct block *b)
{
	for (size_t i = g->end; i-- > g->begin && i >= l->plan->first_trained;)
		if (b->n > 0 || needs_all_lanes(&l->plan->step[i]))
			step_backward(l, i, b);
}

static void block_forward(struct lane *l, const struct block *b)
{
	const size_t last = l->plan->n_segments - 1;
	struct block s;
	struct lane v;

	for (size_t k = 0; k < last; k++)
		for (size_t i = 0; get_sub_block(l, &l->plan->segment[k], b, i, &s, &v); i++)
			segment_forward(&v, &l->plan->segment[k], &s);
	segment_forward(l, &l->plan->segment[last], b);
}

static double image_loss(struct lane *l, const struct block *b, size_t n)
{
	const struct activation *p = &l->plan->activation[l->plan->n_activations - 1];
	const size_t classes = p->shape.c, label = b->batch->set->labels[image_of(b, n)];
	const float *value = l->value[l->plan->n_activations - 1] + n * p->image;
	float *d_logit = l->d_value[l->plan->n_activations - 1] + n * p->image;

	widen(l->logit, value, classes);
	double loss = softmax_loss(l->logit, classes, label, l->logit);
	for (size_t c = 0; c < classes; c++)
		d_logit[c] = (float)(l->logit[c] - (c == label));
	return loss;
}

static void block_backward(struct lane *l, const struct block *b)
{
	struct block s;
	struct lane v;

	for (size_t n = 0; n < b->n; n++)
		l->loss += image_loss(l, b, n);
	const size_t last = l->plan->n_segments - 1;
	segment_backward(l, &l->plan->segment[last], b);
	for (size_t k = last; k-- > 0;)
		for (size_t i = 0; get_sub_block(l, &l->plan->segment[k], b, i, &s, &v); i++)
			segment_backward(&v, &l->plan->segment[k], &s);
}

/* Returns the number of rounds that every lane needs to compute its slice of the batch, one block
 * of up to `max` images per round. */
static size_t count_rounds(const struct batch *b, size_t max)
{
	return blocks_needed(blocks_needed(b->images, b->n_lanes), max);
}

void lane_gradient(struct lane *l, const struct batch *batch)
{
	struct block b = {.batch = batch, .training = 1};
	const size_t rounds = count_rounds(batch, l->block);

	l->loss = 0;
	memset(l->grad, 0, l->plan->grad_floats * sizeof(float));
	for (size_t i = 0; i < rounds; i++) {
		get_round(l, batch, rounds, i, &b);
		block_forward(l, &b);
		block_backward(l, &b);
	}
}

void lane_forward(struct lane *l, const struct batch *batch)
{
	const struct activation *p = &l->plan->activation[l->plan->n_activations - 1];
	const size_t classes = p->shape.c, rounds = count_rounds(batch, l->eval_block);
	struct block b = {.batch = batch};

	for (size_t i = 0; i < rounds; i++) {
		get_round(l, batch, rounds, i, &b);
		block_forward(l, &b);
		for (size_t n = 0; n < b.n; n++)
			memcpy(batch->logits + (b.first + n) * classes,
				l->value[l->plan->n_activations - 1] + n * p->image,
				classes * sizeof(float));
	}
}
