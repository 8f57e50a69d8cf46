/*
 * winograd.c - see winograd.h.
 */
#include "kernels/cpu/winograd.h"
#include <string.h>
#include "kernels/cpu/chunk.h"

/* The tiles of a band (plan.h), and its windows, counted over all images of a block. */
struct band {
	size_t image, images; /* of the block */
	size_t tile, tiles;   /* of each image */
	size_t positions;     /* of each image */
	size_t window, windows;
};

/* Returns band number `number` of a block of `n` images. If the block has no band with this number,
 * the band has no images. */
static struct band get_band(const struct step *s, size_t n, size_t number)
{
	const struct winograd *w = &s->winograd;
	const size_t image = number / w->bands * w->images, band = number % w->bands;
	const size_t row = band * w->rows, left = w->down - row;

	if (image >= n)
		return (struct band){0};
	const size_t images = n - image < w->images ? n - image : w->images;
	const size_t first = w->first[band], end = w->first[band + 1];
	return (struct band){.image = image,
		.images = images,
		.tile = row * w->across,
		.tiles = (left < w->rows ? left : w->rows) * w->across,
		.positions = s->first[end] - s->first[first],
		.window = image * s->n_windows + first,
		.windows = (images - 1) * s->n_windows + end - first};
}

static struct columns full_panel(const struct plan *p, const struct step *s, size_t k)
{
	const size_t pair = 2 * p->simd->lanes, left = s->filters - k * pair;

	return (struct columns){
		.filter = k * pair, .count = left < pair ? left : pair, .width = pair};
}

static void list_sources(struct lane *l, const struct step *s)
{
	const struct winograd *w = &s->winograd;
	const size_t pair = 2 * l->plan->simd->lanes;
	struct band_room *r = &l->band;

	for (size_t point = 0; point < WINOGRAD_TILE; point++)
		for (size_t t = 0; t < w->max_tiles; t++) {
			const size_t at = point * w->max_tiles + t;

			r->source_input[at] =
				r->input + point * w->input_step + t * w->channels_pad;
			r->source_output[at] = r->output + point * w->output_step + t * pair;
		}
}

/* A tile of the input activation. Only `rows` x `floats` floats of the tile lie in the activation.
 */
struct place {
	size_t at, rows, floats;
};

static struct place input_place(
	const struct lane *l, const struct step *s, size_t image, size_t tile)
{
	const struct activation *in = &l->plan->activation[s->in];
	const struct winograd *w = &s->winograd;
	const size_t y = tile / w->across * w->size, x = tile % w->across * w->size;
	const size_t down = s->of->out.h + s->of->size - 1 - y;
	const size_t across = s->of->out.w + s->of->size - 1 - x;

	return (struct place){.at = image * in->image + y * in->row + x * in->shape.c,
		.rows = down < WINOGRAD_POINTS ? down : WINOGRAD_POINTS,
		.floats = (across < WINOGRAD_POINTS ? across : WINOGRAD_POINTS) * in->shape.c};
}

static int is_inside(const struct place *p, size_t channels)
{
	return p->rows == WINOGRAD_POINTS && p->floats == WINOGRAD_POINTS * channels;
}

/* A function that processes tile `tile` of an image, which is tile `t` of its band. */
typedef void tile_work(struct lane *l, const struct step *s, size_t image, size_t tile, size_t t);

static void each_tile(struct lane *l, const struct step *s, const struct band *b, tile_work *work)
{
	for (size_t image = 0, t = 0; image < b->images; image++)
		for (size_t tile = 0; tile < b->tiles; tile++, t++)
			work(l, s, b->image + image, b->tile + tile, t);
}

static void transform_input(
	struct lane *l, const struct step *s, size_t image, size_t tile, size_t t)
{
	const struct activation *in = &l->plan->activation[s->in];
	const struct winograd *w = &s->winograd;
	const struct place p = input_place(l, s, image, tile);
	const size_t channels = in->shape.c, row = WINOGRAD_POINTS * channels;
	const float *x = l->value[s->in] + p.at;
	float *to = l->band.input + t * w->channels_pad;

	if (is_inside(&p, channels)) {
		l->plan->simd->winograd_input(to, w->input_step, x, in->row, channels, channels);
		return;
	}
	memset(l->band.edge, 0, WINOGRAD_POINTS * row * sizeof(float));
	for (size_t y = 0; y < p.rows; y++)
		memcpy(l->band.edge + y * row, x + y * in->row, p.floats * sizeof(float));
	l->plan->simd->winograd_input(to, w->input_step, l->band.edge, row, channels, channels);
}

static void add_input_gradients(
	struct lane *l, const struct step *s, size_t image, size_t tile, size_t t)
{
	const struct activation *in = &l->plan->activation[s->in];
	const struct winograd *w = &s->winograd;
	const struct place p = input_place(l, s, image, tile);
	const size_t channels = in->shape.c, row = WINOGRAD_POINTS * channels;
	const float *from = l->band.input + t * w->channels_pad;
	float *dx = l->d_value[s->in] + p.at;

	if (is_inside(&p, channels)) {
		l->plan->simd->winograd_input_back(
			dx, in->row, channels, from, w->input_step, channels);
		return;
	}
	memset(l->band.edge, 0, WINOGRAD_POINTS * row * sizeof(float));
	l->plan->simd->winograd_input_back(
		l->band.edge, row, channels, from, w->input_step, channels);
	for (size_t y = 0; y < p.rows; y++)
		l->plan->simd->add_scaled(dx + y * in->row, l->band.edge + y * row, 1, p.floats);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void multiply_panel(
	struct lane *l, const struct step *s, const struct band *b, const float *packed, size_t k)
{
	const struct winograd *w = &s->winograd;
	const struct simd *simd = l->plan->simd;
	const size_t pair = 2 * simd->lanes, channels = s->of->in.c, panels = w->filters_pad / pair;

	for (size_t point = 0; point < WINOGRAD_TILE; point++)
		simd->gemm(l->band.output + point * w->output_step, pair,
			l->band.source_input + point * w->max_tiles, b->images * b->tiles,
			l->plan->identity, channels,
			packed + (point * panels + k) * channels * pair, pair);
}

static void transform_output(struct lane *l, const struct step *s, const struct band *b)
{
	const struct winograd *w = &s->winograd;
	const size_t pair = 2 * l->plan->simd->lanes;

	for (size_t image = 0, t = 0; image < b->images; image++)
		for (size_t tile = 0; tile < b->tiles; tile++, t++)
			l->plan->simd->winograd_output(l->band.conv + image * b->positions * pair,
				w->order + (b->tile + tile) * w->size * w->size, w->size,
				l->band.output + t * pair, w->output_step);
}

void winograd_forward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const size_t panels = s->winograd.filters_pad / (2 * l->plan->simd->lanes);
	const float *packed = b->batch->packed;
	struct band band;

	list_sources(l, s);
	for (size_t n = 0; band = get_band(s, b->n, n), band.images > 0; n++) {
		const struct chunk c = chunk_at(l, i, l->table[i].value, band.window, band.windows);

		each_tile(l, s, &band, transform_input);
		for (size_t k = 0; k < panels; k++) {
			multiply_panel(l, s, &band, packed + s->panel, k);
			transform_output(l, s, &band);
			l->plan->simd->pool(&c, full_panel(l->plan, s, k), l->band.conv,
				packed + s->panel_bias, s->relu);
		}
	}
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Transforms the gradients of panel `k` in l->band.conv. */
static void transform_dy(struct lane *l, const struct step *s, const struct band *b, size_t k)
{
	const struct winograd *w = &s->winograd;
	const size_t pair = 2 * l->plan->simd->lanes;
	float *to = l->band.output + k * WINOGRAD_TILE * w->output_step;

	for (size_t image = 0, t = 0; image < b->images; image++)
		for (size_t tile = 0; tile < b->tiles; tile++, t++)
			l->plan->simd->winograd_output_back(to + t * pair, w->output_step,
				l->band.conv + image * b->positions * pair,
				w->order + (b->tile + tile) * w->size * w->size, w->size);
}

static void add_weight_gradient(struct lane *l, const struct step *s, const struct band *b)
{
	const struct winograd *w = &s->winograd;
	const size_t pair = 2 * l->plan->simd->lanes, panels = w->filters_pad / pair;

	for (size_t k = 0; k < panels; k++)
		for (size_t point = 0; point < WINOGRAD_TILE; point++) {
			const size_t number = k * WINOGRAD_TILE + point;

			l->plan->simd->filter_dense(l->grad + s->grad + number * w->taps * pair,
				l->band.output + number * w->output_step,
				l->band.source_input + point * w->max_tiles, b->images * b->tiles,
				l->plan->identity, w->taps, pair);
		}
}

/* Replaces the transformed input by the gradients of the transformed input. */
static void multiply_dy(
	struct lane *l, const struct step *s, const struct band *b, const float *packed)
{
	const struct winograd *w = &s->winograd;
	const size_t pair = 2 * l->plan->simd->lanes, panels = w->channels_pad / pair;

	for (size_t point = 0; point < WINOGRAD_TILE; point++)
		for (size_t k = 0; k < panels; k++)
			l->plan->simd->gemm(l->band.input + point * w->input_step + k * pair,
				w->channels_pad, l->band.source_output + point * w->max_tiles,
				b->images * b->tiles, w->filter, s->filters,
				packed + (point * panels + k) * s->filters * pair, pair);
}

void winograd_backward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *in = &l->plan->activation[s->in];
	const size_t panels = s->winograd.filters_pad / (2 * l->plan->simd->lanes);
	struct band band;

	list_sources(l, s);
	if (s->data == WAY_WINOGRAD)
		memset(l->d_value[s->in], 0, b->n * in->image * sizeof(float));
	for (size_t n = 0; band = get_band(s, b->n, n), band.images > 0; n++) {
		const struct chunk c =
			chunk_at(l, i, l->table[i].d_value, band.window, band.windows);

		each_tile(l, s, &band, transform_input);
		for (size_t k = 0; k < panels; k++) {
			l->plan->simd->unpool(l->band.conv, l->grad + s->grad_bias, &c,
				full_panel(l->plan, s, k));
			transform_dy(l, s, &band, k);
		}
		add_weight_gradient(l, s, &band);
		if (s->data != WAY_WINOGRAD)
			continue;
		multiply_dy(l, s, &band, b->batch->packed + s->other);
		each_tile(l, s, &band, add_input_gradients);
	}
}
