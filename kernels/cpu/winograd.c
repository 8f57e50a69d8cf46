/*
 * winograd.c - see winograd.h.
 */
#include "kernels/cpu/winograd.h"
#include <string.h>
#include "kernels/cpu/chunk.h"

/* In the memory of a band, the tiles of one kind lie side by side. The order of the kinds ensures
 * that, for every point, the tiles that need this point also lie side by side (tiles_of_point). */
enum kind { KIND_LOW, KIND_WHOLE, KIND_NARROW, KIND_LOW_AND_NARROW, KINDS };

/* The tiles of a band (plan.h), and its windows, counted over all images of a block. */
struct band {
	size_t image, images; /* number of the band's first image in the block; number of images */
	size_t row, rows;     /* number of the first row of tiles in each image; number of rows */
	size_t positions;     /* number of the band's positions in each image */
	size_t window, windows;
	size_t first[KINDS + 1]; /* number of the first tile of each kind */
};

/* Sets b->first from the number of the band's tiles of each kind. */
static void count_tiles(const struct winograd *w, struct band *b)
{
	const size_t low = w->low && b->row + b->rows == w->down;
	const size_t rows = b->images * (b->rows - low), columns = w->across - w->narrow;

	b->first[KIND_LOW] = 0;
	b->first[KIND_WHOLE] = b->images * low * columns;
	b->first[KIND_NARROW] = b->first[KIND_WHOLE] + rows * columns;
	b->first[KIND_LOW_AND_NARROW] = b->first[KIND_NARROW] + rows * w->narrow;
	b->first[KINDS] = b->first[KIND_LOW_AND_NARROW] + b->images * low * w->narrow;
}

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
	struct band b = {.image = image,
		.images = images,
		.row = row,
		.rows = left < w->rows ? left : w->rows,
		.positions = s->first[end] - s->first[first],
		.window = image * s->n_windows + first,
		.windows = (images - 1) * s->n_windows + end - first};

	count_tiles(w, &b);
	return b;
}

/* The tiles of a band that need a point: [first, first + n). */
struct needed {
	size_t first, n;
};

static struct needed tiles_of_point(const struct band *b, size_t point)
{
	const size_t y = point / WINOGRAD_POINTS, x = point % WINOGRAD_POINTS;
	const int not_low = y == 3 || y == 4, not_narrow = x == 3 || x == 4;
	const size_t first = b->first[not_low ? KIND_WHOLE : KIND_LOW];
	const size_t end = b->first[not_narrow ? KIND_NARROW
				    : not_low  ? KIND_LOW_AND_NARROW
					       : KINDS];

	return (struct needed){first, end - first};
}

static struct columns full_panel(const struct plan *p, const struct step *s, size_t k)
{
	const size_t pair = 2 * p->simd->lanes, left = s->filters - k * pair;

	return (struct columns){
		.filter = k * pair, .count = left < pair ? left : pair, .width = pair};
}

struct tile {
	size_t image; /* number of the image in the band */
	size_t row, column;
	size_t at;    /* number of the tile's place in the memory of the band (struct band_room) */
	unsigned cut; /* the argument `cut` of the functions in simd.h */
};

/* A function that processes a tile, for panel `k` of filters if it works on filters. */
typedef void tile_work(
	struct lane *l, const struct step *s, const struct band *b, const struct tile *t, size_t k);

static void each_tile(
	struct lane *l, const struct step *s, const struct band *b, size_t k, tile_work *work)
{
	static const unsigned cut[KINDS] = {
		WINOGRAD_LOW, 0, WINOGRAD_NARROW, WINOGRAD_LOW | WINOGRAD_NARROW};
	static const enum kind kind_of[2][2] = {
		{KIND_WHOLE, KIND_NARROW}, {KIND_LOW, KIND_LOW_AND_NARROW}};
	const struct winograd *w = &s->winograd;
	size_t next[KINDS];

	memcpy(next, b->first, sizeof(next));
	for (size_t image = 0; image < b->images; image++)
		for (size_t row = b->row; row < b->row + b->rows; row++)
			for (size_t column = 0; column < w->across; column++) {
				const enum kind kind =
					kind_of[w->low && row + 1 == w->down]
					       [w->narrow && column + 1 == w->across];
				const struct tile t = {image, row, column, next[kind]++, cut[kind]};

				work(l, s, b, &t, k);
			}
}

/* Returns the offset of a tile in the input activation. */
static size_t input_at(const struct activation *in, const struct winograd *w, const struct band *b,
	const struct tile *t)
{
	return (b->image + t->image) * in->image + t->row * w->size * in->row +
	       t->column * w->size * in->shape.c;
}

static void transform_input(
	struct lane *l, const struct step *s, const struct band *b, const struct tile *t, size_t k)
{
	const struct activation *in = &l->plan->activation[s->in];
	const struct winograd *w = &s->winograd;
	const size_t channels = in->shape.c;

	(void)k;
	l->plan->simd->winograd_input(l->band.input + t->at * w->input_row, w->input_step,
		l->value[s->in] + input_at(in, w, b, t), in->row, channels, channels, t->cut);
}

static void add_input_gradients(
	struct lane *l, const struct step *s, const struct band *b, const struct tile *t, size_t k)
{
	const struct activation *in = &l->plan->activation[s->in];
	const struct winograd *w = &s->winograd;
	const size_t channels = in->shape.c;

	(void)k;
	l->plan->simd->winograd_input_back(l->d_value[s->in] + input_at(in, w, b, t), in->row,
		channels, l->band.input + t->at * w->input_row, w->input_step, channels, t->cut);
}

/* Returns the numbers of the positions of a tile (struct winograd). */
static const uint32_t *order_of(const struct winograd *w, const struct tile *t)
{
	return w->order + (t->row * w->across + t->column) * w->size * w->size;
}

/* ---- forward --------------------------------------------------------------------------------- */

static void multiply_panel(
	struct lane *l, const struct step *s, const struct band *b, const float *packed, size_t k)
{
	const struct winograd *w = &s->winograd;
	const struct simd *simd = l->plan->simd;
	const size_t pair = 2 * simd->lanes, channels = s->of->in.c, panels = w->filters_pad / pair;

	for (size_t point = 0; point < WINOGRAD_TILE; point++) {
		const struct needed t = tiles_of_point(b, point);

		simd->product(l->band.output + point * w->output_step + t.first * pair, pair,
			l->band.input + point * w->input_step + t.first * w->input_row,
			w->input_row, t.n, channels,
			packed + (point * panels + k) * channels * pair);
	}
}

static void transform_output(
	struct lane *l, const struct step *s, const struct band *b, const struct tile *t, size_t k)
{
	const struct winograd *w = &s->winograd;
	const size_t pair = 2 * l->plan->simd->lanes;

	(void)k;
	l->plan->simd->winograd_output(l->band.conv + t->image * b->positions * pair,
		order_of(w, t), w->size, l->band.output + t->at * pair, w->output_step, t->cut);
}

void winograd_forward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const size_t panels = s->winograd.filters_pad / (2 * l->plan->simd->lanes);
	const float *packed = b->batch->packed;
	struct band band;

	for (size_t n = 0; band = get_band(s, b->n, n), band.images > 0; n++) {
		const struct chunk c = chunk_at(l, i, l->table[i].value, band.window, band.windows);

		each_tile(l, s, &band, 0, transform_input);
		for (size_t k = 0; k < panels; k++) {
			multiply_panel(l, s, &band, packed + s->panel, k);
			each_tile(l, s, &band, k, transform_output);
			l->plan->simd->pool(&c, full_panel(l->plan, s, k), l->band.conv,
				packed + s->panel_bias, s->relu);
		}
	}
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Transforms the tile's gradients of panel `k`, which are in l->band.conv. */
static void transform_dy(
	struct lane *l, const struct step *s, const struct band *b, const struct tile *t, size_t k)
{
	const struct winograd *w = &s->winograd;
	const size_t pair = 2 * l->plan->simd->lanes;

	l->plan->simd->winograd_output_back(l->band.output + t->at * w->dy_row + k * pair,
		w->dy_step, l->band.conv + t->image * b->positions * pair, order_of(w, t), w->size,
		t->cut);
}

static void add_weight_gradient(
	struct lane *l, const struct step *s, const struct band *b, size_t point)
{
	const struct winograd *w = &s->winograd;
	const size_t pair = 2 * l->plan->simd->lanes, panels = w->filters_pad / pair;
	const struct needed t = tiles_of_point(b, point);

	const float *d = l->band.output + point * w->dy_step + t.first * w->dy_row;
	const float *x = l->band.input + point * w->input_step + t.first * w->input_row;

	for (size_t k = 0; k < panels; k++)
		l->plan->simd->product_back(
			l->grad + s->grad + (k * WINOGRAD_TILE + point) * w->taps * pair,
			d + k * pair, w->dy_row, x, w->input_row, t.n, s->of->in.c);
}

/* Replaces the transformed input by the gradients of the transformed input. */
static void multiply_dy(struct lane *l, const struct step *s, const struct band *b,
	const float *packed, size_t point)
{
	const struct winograd *w = &s->winograd;
	const size_t pair = 2 * l->plan->simd->lanes, panels = w->channels_pad / pair;
	const struct needed t = tiles_of_point(b, point);
	const float *d = l->band.output + point * w->dy_step + t.first * w->dy_row;
	float *to = l->band.input + point * w->input_step + t.first * w->input_row;

	for (size_t k = 0; k < panels; k++)
		l->plan->simd->product(to + k * pair, w->input_row, d, w->dy_row, t.n, s->filters,
			packed + (point * panels + k) * s->filters * pair);
}

void winograd_backward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *in = &l->plan->activation[s->in];
	const size_t panels = s->winograd.filters_pad / (2 * l->plan->simd->lanes);
	struct band band;

	if (s->data == WAY_WINOGRAD)
		memset(l->d_value[s->in], 0, b->n * in->image * sizeof(float));
	for (size_t n = 0; band = get_band(s, b->n, n), band.images > 0; n++) {
		const struct chunk c =
			chunk_at(l, i, l->table[i].d_value, band.window, band.windows);

		each_tile(l, s, &band, 0, transform_input);
		for (size_t k = 0; k < panels; k++) {
			l->plan->simd->unpool(l->band.conv, l->grad + s->grad_bias, &c,
				full_panel(l->plan, s, k));
			each_tile(l, s, &band, k, transform_dy);
		}
		for (size_t point = 0; point < WINOGRAD_TILE; point++) {
			add_weight_gradient(l, s, &band, point);
			if (s->data == WAY_WINOGRAD)
				multiply_dy(l, s, &band, b->batch->packed + s->other, point);
		}
		if (s->data == WAY_WINOGRAD)
			each_tile(l, s, &band, 0, add_input_gradients);
	}
}
