/*
 * pack.c - see pack.h.
 *
 * The layouts depend on the ways of the step (plan.h). simd.h explains panels and runs.
 *
 * Weights at `panel` are [panel][tap][width], if fprop is dense. Weights at `other` are [panel of
 * taps][filter][width] if dgrad is dense, and [filter][row][run_pad] if it is sparse or BLAS. The
 * gradient is [panel][taps_pad][width] if wgrad is dense, else [filter][row][run_pad].
 */
#include "kernels/cpu/pack.h"
#include <string.h>

void share_range(struct share s, size_t n, size_t *begin, size_t *end)
{
	*begin = n / s.parts * s.part + n % s.parts * s.part / s.parts;
	size_t next = s.part + 1;

	*end = n / s.parts * next + n % s.parts * next / s.parts;
}

/* ---- packing of parameters ------------------------------------------------------------------- */

static void pack_panels(
	const struct plan *p, const struct step *s, struct share share, const float *w, float *to)
{
	size_t begin, end;

	share_range(share, s->n_taps, &begin, &end);
	for (size_t i = 0; i < s->n_panels; i++) {
		const struct columns c = panel_at(p->simd, s, i);

		for (size_t k = begin; k < end; k++) {
			const float *from = w + c.filter * s->n_taps + s->param[k];
			float *panel = to + c.at * s->n_taps + k * c.width;

			for (size_t j = 0; j < c.count; j++)
				panel[j] = from[j * s->n_taps];
		}
	}
}

static void pack_tap_panels(
	const struct plan *p, const struct step *s, struct share share, const float *w, float *to)
{
	const size_t pair = 2 * p->simd->lanes;
	size_t begin, end;

	share_range(share, round_up(s->n_taps, pair) / pair, &begin, &end);
	for (size_t f = 0; f < s->filters; f++)
		for (size_t k = begin * pair; k < end * pair && k < s->n_taps; k += pair) {
			const struct columns c = columns_at(p->simd, s->n_taps, k);
			float *panel = to + k * s->filters + f * c.width;

			for (size_t j = 0; j < c.count; j++)
				panel[j] = w[f * s->n_taps + s->param[k + j]];
		}
}

static void pack_rows(const struct step *s, struct share share, const float *w, float *to)
{
	const struct patch *q = &s->patch;
	size_t begin, end;

	share_range(share, s->filters, &begin, &end);
	for (size_t f = begin; f < end; f++)
		for (size_t row = 0; row < q->rows; row++)
			for (size_t r = 0; r < q->run; r++)
				to[(f * q->rows + row) * q->run_pad + r] =
					w[f * s->n_taps + s->param[row * q->run + r]];
}

/* weight, bias, running mean, running variance */
static void pack_batchnorm(const struct step *s, const float *params, float *to)
{
	const size_t n = s->filters, bytes = n * sizeof(*to);

	memcpy(to, params + s->weight, bytes);
	memcpy(to + n, params + s->bias, bytes);
	memcpy(to + 2 * n, params + s->mean, bytes);
	memcpy(to + 3 * n, params + s->variance, bytes);
}

void pack_params(const struct plan *p, struct share share, const float *params, float *packed)
{
	for (size_t i = 0; i < p->n_steps; i++) {
		const struct step *s = &p->step[i];
		const float *w = params + s->weight;

		if (s->kind == STEP_BATCHNORM && share.part == 0)
			pack_batchnorm(s, params, packed + s->panel);
		if (s->kind != STEP_WEIGHTS)
			continue;
		if (s->forward == WAY_DENSE)
			pack_panels(p, s, share, w, packed + s->panel);
		if (s->data == WAY_DENSE)
			pack_tap_panels(p, s, share, w, packed + s->other);
		else if (s->data == WAY_SPARSE || s->forward == WAY_BLAS)
			pack_rows(s, share, w, packed + s->other);
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
		for (size_t at = begin; at < end; at++)
			sum[0][at] += sum[i][at];
}

static void unpack_panels(const struct plan *p, const struct step *s, struct share share,
	const float *sum, float scale, float *grad)
{
	size_t begin, end;

	share_range(share, s->n_taps, &begin, &end);
	for (size_t i = 0; i < s->n_panels; i++) {
		const struct columns c = panel_at(p->simd, s, i);

		for (size_t k = begin; k < end; k++) {
			const float *panel = sum + c.at * s->taps_pad + k * c.width;
			float *to = grad + c.filter * s->n_taps + s->param[k];

			for (size_t j = 0; j < c.count; j++)
				to[j * s->n_taps] = scale * panel[j];
		}
	}
}

static void unpack_rows(
	const struct step *s, struct share share, const float *sum, float scale, float *grad)
{
	const struct patch *q = &s->patch;
	size_t begin, end;

	share_range(share, s->filters, &begin, &end);
	for (size_t f = begin; f < end; f++)
		for (size_t row = 0; row < q->rows; row++)
			for (size_t r = 0; r < q->run; r++)
				grad[f * s->n_taps + s->param[row * q->run + r]] =
					scale * sum[(f * q->rows + row) * q->run_pad + r];
}

void unpack_gradient(
	const struct plan *p, struct share share, const float *sum, float scale, float *grad)
{
	for (size_t i = 0; i < p->n_steps; i++) {
		const struct step *s = &p->step[i];

		for (size_t f = 0; s->kind == STEP_BATCHNORM && share.part == 0 && f < s->filters;
			f++) {
			grad[s->weight + f] = scale * sum[s->grad + f];
			grad[s->bias + f] = scale * sum[s->grad_bias + f];
		}
		if (s->kind != STEP_WEIGHTS)
			continue;
		if (s->filter == WAY_DENSE)
			unpack_panels(p, s, share, sum + s->grad, scale, grad + s->weight);
		else
			unpack_rows(s, share, sum + s->grad, scale, grad + s->weight);
		for (size_t f = 0; share.part == 0 && f < s->filters; f++)
			grad[s->bias + f] = scale * sum[s->grad_bias + f];
	}
}
