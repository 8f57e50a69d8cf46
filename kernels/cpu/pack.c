/*
 * pack.c - see pack.h.
 *
 * The layouts depend on the ways of the step (plan.h). simd.h explains panels and runs.
 *
 * Weights at `panel` are [panel][tap][width], if fprop is dense. Weights at `other` are [panel of
 * taps][filter][width] if dgrad is dense, and [filter][row][run_pad] if it is sparse. The
 * gradient is [panel][taps_pad][width] if wgrad is dense, else [filter][row][run_pad].
 *
 * With WAY_WINOGRAD all panels have the full width. The transformed weights are
 * [point][panel][channel][width] at `panel`, and [point][panel of channels][filter][width] at
 * `other`. The gradient is [panel][point][winograd.taps][width].
 */
#include "kernels/cpu/pack.h"
#include <string.h>

/* The taps of a filter, which has `channels` weights for each of `pixels` pixels. */
struct taps {
	size_t channels, pixels;
};

void share_range(struct share s, size_t n, size_t *begin, size_t *end)
{
	*begin = n / s.parts * s.part + n % s.parts * s.part / s.parts;
	size_t next = s.part + 1;

	*end = n / s.parts * next + n % s.parts * next / s.parts;
}

/* ---- packing of parameters ------------------------------------------------------------------- */

/*
 * Returns the numbers of channels and of pixels with which the weights of a filter are transposed.
 * The weights are [channel][pixel] in the parameters and [pixel][channel] in a patch. With one
 * pixel, both orders are the same, and the function returns one channel with all taps.
 */
static struct taps taps_of(const struct step *s)
{
	return s->pixels == 1 ? (struct taps){1, s->n_taps}
			      : (struct taps){s->n_taps / s->pixels, s->pixels};
}

/* Packs share `share` of the work, which consists of all pairs of a panel and a channel. */
static void pack_panels(
	const struct plan *p, const struct step *s, struct share share, const float *w, float *to)
{
	const struct taps t = taps_of(s);
	size_t begin, end;

	share_range(share, s->n_panels * t.channels, &begin, &end);
	for (size_t i = begin; i < end; i++) {
		const struct columns c = panel_at(p->simd, s, i / t.channels);
		const size_t channel = i % t.channels;

		p->simd->transpose(to + c.at * s->n_taps + channel * c.width, t.channels * c.width,
			w + c.filter * s->n_taps + channel * t.pixels, s->n_taps, c.count, t.pixels,
			1);
	}
}

/* Returns the weights of filter `f` in the order of the taps: a copy in `room`, or a pointer into
 * `w` if they already have this order in `w`. */
static const float *filter_taps(
	const struct plan *p, const struct step *s, const float *w, size_t f, float *room)
{
	const struct taps t = taps_of(s);

	w += f * s->n_taps;
	if (t.channels == 1)
		return w;
	p->simd->transpose(room, t.channels, w, t.pixels, t.channels, t.pixels, 1);
	return room;
}

static void pack_tap_panels(const struct plan *p, const struct step *s, struct share share,
	const float *w, float *to, float *room)
{
	size_t begin, end;

	share_range(share, s->filters, &begin, &end);
	for (size_t f = begin; f < end; f++) {
		const float *from = filter_taps(p, s, w, f, room);

		for (size_t k = 0; k < s->n_taps; k += 2 * p->simd->lanes) {
			const struct columns c = columns_at(p->simd, s->n_taps, k);

			memcpy(to + k * s->filters + f * c.width, from + k, c.count * sizeof(*to));
		}
	}
}

static void pack_rows(const struct plan *p, const struct step *s, struct share share,
	const float *w, float *to, float *room)
{
	const struct patch *q = &s->patch;
	size_t begin, end;

	share_range(share, s->filters, &begin, &end);
	for (size_t f = begin; f < end; f++) {
		const float *from = filter_taps(p, s, w, f, room);

		for (size_t row = 0; row < q->rows; row++)
			memcpy(to + (f * q->rows + row) * q->run_pad, from + row * q->run,
				q->run * sizeof(*to));
	}
}

/* Packs one share of the work, which consists of all pairs of a panel of `columns` columns and a
 * row. A row is a channel if the columns are filters, and a filter if the columns are channels.
 * Weight (column, row) of a pixel is w[column * column_step + row * row_step + pixel]. */
static void pack_tiles(const struct plan *p, const struct step *s, struct share share,
	const float *w, float *to, size_t columns, size_t column_step, size_t rows, size_t row_step)
{
	const size_t pair = 2 * p->simd->lanes, panels = round_up(columns, pair) / pair;
	float weight[WINOGRAD_MAX_PIXELS * 2 * SIMD_MAX_LANES] = {0};
	size_t begin, end;

	share_range(share, panels * rows, &begin, &end);
	for (size_t i = begin; i < end; i++) {
		const size_t column = i / rows * pair, row = i % rows;
		const size_t left = columns - column;

		p->simd->transpose(weight, pair, w + column * column_step + row * row_step,
			column_step, left < pair ? left : pair, s->pixels, 1);
		p->simd->winograd_weights(
			to + i * pair, panels * rows * pair, weight, s->winograd.size);
	}
}

/* Packs weight, bias, running mean and running variance, in this order. */
static void pack_batchnorm(const struct step *s, const float *params, float *to)
{
	const size_t n = s->filters, bytes = n * sizeof(*to);

	memcpy(to, params + s->weight, bytes);
	memcpy(to + n, params + s->bias, bytes);
	memcpy(to + 2 * n, params + s->mean, bytes);
	memcpy(to + 3 * n, params + s->variance, bytes);
}

void pack_params(
	const struct plan *p, struct share share, const float *params, float *packed, float *room)
{
	for (size_t i = 0; i < p->n_steps; i++) {
		const struct step *s = &p->step[i];
		const float *w = params + s->weight;

		if (s->kind == STEP_BATCHNORM && share.part == 0)
			pack_batchnorm(s, params, packed + s->panel);
		if (s->kind != STEP_WEIGHTS || s->forward == WAY_JOINT)
			continue;
		if (s->forward == WAY_WINOGRAD)
			pack_tiles(p, s, share, w, packed + s->panel, s->filters, s->n_taps,
				s->of->in.c, s->pixels);
		else
			pack_panels(p, s, share, w, packed + s->panel);
		if (s->data == WAY_WINOGRAD)
			pack_tiles(p, s, share, w, packed + s->other, s->of->in.c, s->pixels,
				s->filters, s->n_taps);
		else if (s->data == WAY_DENSE)
			pack_tap_panels(p, s, share, w, packed + s->other, room);
		else if (s->data == WAY_SPARSE)
			pack_rows(p, s, share, w, packed + s->other, room);
		for (size_t f = 0; share.part == 0 && f < s->filters; f++)
			packed[s->panel_bias + f] = params[s->bias + f];
	}
}

/* ---- unpacking of gradients ------------------------------------------------------------------ */

void sum_gradients(const struct plan *p, struct share share, float *const *sum, size_t n)
{
	size_t begin, end;

	share_range(share, p->grad_floats, &begin, &end);
	for (size_t i = 1; i < n; i++)
		p->simd->add_scaled(sum[0] + begin, sum[i] + begin, 1, end - begin);
}

static void unpack_panels(const struct plan *p, const struct step *s, struct share share,
	const float *sum, float scale, float *grad)
{
	const struct taps t = taps_of(s);
	size_t begin, end;

	share_range(share, s->n_panels * t.channels, &begin, &end);
	for (size_t i = begin; i < end; i++) {
		const struct columns c = panel_at(p->simd, s, i / t.channels);
		const size_t channel = i % t.channels;

		p->simd->transpose(grad + c.filter * s->n_taps + channel * t.pixels, s->n_taps,
			sum + c.at * s->taps_pad + channel * c.width, t.channels * c.width,
			t.pixels, c.count, scale);
	}
}

static void unpack_rows(const struct plan *p, const struct step *s, struct share share,
	const float *sum, float scale, float *grad, float *room)
{
	const struct patch *q = &s->patch;
	const struct taps t = taps_of(s);
	size_t begin, end;

	share_range(share, s->filters, &begin, &end);
	for (size_t f = begin; f < end; f++) {
		for (size_t row = 0; row < q->rows; row++)
			memcpy(room + row * q->run, sum + (f * q->rows + row) * q->run_pad,
				q->run * sizeof(*room));
		p->simd->transpose(grad + f * s->n_taps, t.pixels, room, t.channels, t.pixels,
			t.channels, scale);
	}
}

static void unpack_tiles(const struct plan *p, const struct step *s, struct share share,
	const float *sum, float scale, float *grad)
{
	const struct winograd *w = &s->winograd;
	const size_t pair = 2 * p->simd->lanes, channels = s->of->in.c;
	float weight[WINOGRAD_MAX_PIXELS * 2 * SIMD_MAX_LANES];
	size_t begin, end;

	share_range(share, w->filters_pad / pair * channels, &begin, &end);
	for (size_t i = begin; i < end; i++) {
		const size_t panel = i / channels, channel = i % channels;
		const size_t left = s->filters - panel * pair;

		p->simd->winograd_weights_back(weight,
			sum + (panel * WINOGRAD_TILE * w->taps + channel) * pair, w->taps * pair,
			w->size);
		p->simd->transpose(grad + panel * pair * s->n_taps + channel * s->pixels, s->n_taps,
			weight, pair, s->pixels, left < pair ? left : pair, scale);
	}
}

void unpack_gradient(const struct plan *p, struct share share, const float *sum, float scale,
	float *grad, float *room)
{
	for (size_t i = 0; i < p->n_steps; i++) {
		const struct step *s = &p->step[i];

		for (size_t f = 0; s->kind == STEP_BATCHNORM && share.part == 0 && f < s->filters;
			f++) {
			grad[s->weight + f] = scale * sum[s->grad + f];
			grad[s->bias + f] = scale * sum[s->grad_bias + f];
		}
		if (s->kind != STEP_WEIGHTS || s->filter == WAY_JOINT)
			continue;
		if (s->filter == WAY_DENSE)
			unpack_panels(p, s, share, sum + s->grad, scale, grad + s->weight);
		else if (s->filter == WAY_WINOGRAD)
			unpack_tiles(p, s, share, sum + s->grad, scale, grad + s->weight);
		else
			unpack_rows(p, s, share, sum + s->grad, scale, grad + s->weight, room);
		for (size_t f = 0; share.part == 0 && f < s->filters; f++)
			grad[s->bias + f] = scale * sum[s->grad_bias + f];
	}
}
