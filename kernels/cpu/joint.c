/*
 * joint.c - see joint.h.
 */
#include "kernels/cpu/joint.h"
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/team.h"

#define GROUP_ROWS  48 /* approximate number of images that a lane multiplies by a panel at once */
#define ROW_UNIT    24 /* a multiple of the rows of a register tile, for each instruction set */
#define FILTER_TAPS 256
/* number of packed weights (floats) that a lane multiplies at a time; they stay in the L2 cache */
#define DATA_WEIGHTS ((size_t)1 << 17)

/* ---- memory ---------------------------------------------------------------------------------- */

/* Returns the number of floats from one row of a matrix to the next. This number is at least
 * SIMD_MAX_LANES floats (one cache line) larger than `columns`. Without these floats, rows whose
 * length is a power of two would use only a few sets of the cache. */
static size_t row_of(const struct plan *p, size_t columns)
{
	return round_up(columns, 2 * p->simd->lanes) + SIMD_MAX_LANES;
}

/* Returns the number of panels of taps that a lane packs at once for dgrad. */
static size_t data_panels(const struct plan *p, const struct step *s)
{
	const size_t panels = DATA_WEIGHTS / (s->filters * 2 * p->simd->lanes);

	return panels < 1 ? 1 : panels > 4 ? 4 : panels;
}

size_t joint_weights(const struct plan *p)
{
	size_t rows = 0;

	for (size_t i = 0; i < p->n_steps; i++) {
		const struct step *s = &p->step[i];

		if (s->forward != WAY_JOINT)
			continue;
		const size_t data = s->filters * data_panels(p, s);

		rows = s->n_taps > rows ? s->n_taps : rows;
		rows = data > rows ? data : rows;
	}
	return rows * 2 * p->simd->lanes;
}

int joint_init(struct joint *j, const struct plan *p, size_t rows)
{
	size_t in = 0, out = 0;
	int ok = 1;

	*j = (struct joint){0};
	rows += p->simd->positions; /* because a product may also write rows after the last image */
	for (size_t i = 0; ok && i < p->n_steps; i++) {
		const struct step *s = &p->step[i];

		if (s->forward != WAY_JOINT)
			continue;
		const size_t taps = row_of(p, s->n_taps), filters = row_of(p, s->filters);

		in = taps > in ? taps : in;
		out = filters > out ? filters : out;
		j->input[i] = mem_huge(rows, taps * sizeof(float));
		ok = j->input[i] != NULL;
	}
	j->d_input = mem_huge(rows, in * sizeof(float));
	j->output = mem_huge(rows, out * sizeof(float));
	return ok && j->d_input && j->output ? PS_OK : PS_ENOMEM;
}

void joint_release(struct joint *j)
{
	for (size_t i = 0; i < MODEL_MAX_LAYERS; i++)
		free(j->input[i]);
	free(j->d_input);
	free(j->output);
	*j = (struct joint){0};
}

/* ---- work of a lane -------------------------------------------------------------------------- */

static struct share lane_share(const struct lane *l, const struct block *b)
{
	return (struct share){(size_t)(l - b->batch->lanes), b->batch->n_lanes};
}

/* Transposes the input values of one image, or their gradients. In activations the order is
 * [pixel][channel], and in the manifest [channel][pixel]. */
static void reorder(const struct simd *simd, float *to, const float *from, size_t rows, size_t cols)
{
	if (rows == 1 || cols == 1)
		memcpy(to, from, rows * cols * sizeof(*to));
	else
		simd->transpose(to, rows, from, cols, rows, cols, 1);
}

/* Copies the inputs of the lane's images to the shared matrix. */
static void share_input(const struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const size_t row = row_of(l->plan, s->n_taps);

	for (size_t n = 0; n < b->n; n++)
		reorder(l->plan->simd, b->batch->joint->input[i] + (b->row + n) * row,
			l->value[s->in] + n * l->plan->activation[s->in].image, s->pixels,
			s->n_taps / s->pixels);
}

static void take_d_input(const struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const size_t row = row_of(l->plan, s->n_taps);

	for (size_t n = 0; n < b->n; n++)
		reorder(l->plan->simd, l->d_value[s->in] + n * l->plan->activation[s->in].image,
			b->batch->joint->d_input + (b->row + n) * row, s->n_taps / s->pixels,
			s->pixels);
}

static void take_output(const struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *out = &l->plan->activation[s->out];
	const size_t row = row_of(l->plan, s->filters);

	for (size_t n = 0; n < b->n; n++)
		l->plan->simd->add_bias(l->value[s->out] + n * out->image,
			b->batch->joint->output + (b->row + n) * row, b->batch->params + s->bias,
			s->filters, s->relu);
}

static void share_d_output(const struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct activation *out = &l->plan->activation[s->out];
	const size_t row = row_of(l->plan, s->filters);

	for (size_t n = 0; n < b->n; n++)
		memcpy(b->batch->joint->output + (b->row + n) * row,
			l->d_value[s->out] + n * out->image, s->filters * sizeof(float));
}

/* ---- products -------------------------------------------------------------------------------- */

/* Returns the number of groups into which the rows of a matrix are divided. A piece of work is one
 * panel for one group of rows, so that there is work for all lanes even if there are fewer panels
 * than lanes. A product may overwrite rows after its own. Therefore each group but the last one has
 * a multiple of ROW_UNIT rows, so that the product of the group fills its last tile. */
static size_t groups_of(size_t rows)
{
	return rows < 2 * GROUP_ROWS ? 1 : rows / GROUP_ROWS;
}

static void rows_of_group(size_t rows, size_t group, size_t *first, size_t *end)
{
	const size_t groups = groups_of(rows);

	share_range((struct share){group, groups}, rows / ROW_UNIT, first, end);
	*first *= ROW_UNIT;
	*end = group + 1 < groups ? *end * ROW_UNIT : rows;
}

/* Computes the lane's neurons for all images. */
static void multiply_input(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const size_t pair = 2 * simd->lanes, groups = groups_of(b->rows);
	const size_t in_row = row_of(l->plan, s->n_taps), out_row = row_of(l->plan, s->filters);
	const float *weight = b->batch->params + s->weight;
	size_t begin, end, first, last;

	share_range(lane_share(l, b), round_up(s->filters, pair) / pair * groups, &begin, &end);
	for (size_t k = begin; k < end; k++) {
		const struct columns w = columns_at(simd, s->filters, k / groups * pair);

		if (k == begin || k % groups == 0)
			simd->transpose(l->weights, pair, weight + w.filter * s->n_taps, s->n_taps,
				w.count, s->n_taps, 1);
		rows_of_group(b->rows, k % groups, &first, &last);
		simd->product(b->batch->joint->output + first * out_row + w.filter, out_row,
			b->batch->joint->input[i] + first * in_row, in_row, last - first, s->n_taps,
			l->weights);
	}
}

/* Copies `panels` panels of the weights of all filters, from tap `first` on. */
static void pack_taps(
	struct lane *l, const struct step *s, const float *weight, size_t first, size_t panels)
{
	const size_t pair = 2 * l->plan->simd->lanes;

	for (size_t f = 0; f < s->filters; f++, weight += s->n_taps)
		for (size_t k = 0; k < panels && first + k * pair < s->n_taps; k++) {
			const size_t at = first + k * pair, left = s->n_taps - at;

			memcpy(l->weights + (k * s->filters + f) * pair, weight + at,
				(left < pair ? left : pair) * sizeof(*weight));
		}
}

/* Computes the gradients of the lane's taps for all images. */
static void multiply_d_output(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const size_t pair = 2 * simd->lanes, panels = data_panels(l->plan, s);
	const size_t blocks = (s->n_taps + panels * pair - 1) / (panels * pair);
	const size_t groups = groups_of(b->rows);
	const size_t in_row = row_of(l->plan, s->n_taps), out_row = row_of(l->plan, s->filters);
	size_t begin, end, first, last;

	share_range(lane_share(l, b), blocks * groups, &begin, &end);
	for (size_t n = begin; n < end; n++) {
		const size_t tap = n / groups * panels * pair;

		if (n == begin || n % groups == 0)
			pack_taps(l, s, b->batch->params + s->weight, tap, panels);
		rows_of_group(b->rows, n % groups, &first, &last);
		for (size_t k = 0; k < panels && tap + k * pair < s->n_taps; k++)
			simd->product(b->batch->joint->d_input + first * in_row + tap + k * pair,
				in_row, b->batch->joint->output + first * out_row, out_row,
				last - first, s->filters, l->weights + k * s->filters * pair);
	}
}

/* Writes the lane's part of the gradient in the first round, and adds to it in the others. */
static void write_gradient(const struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const struct simd *simd = l->plan->simd;
	const float scale = 1 / (float)b->batch->images;
	const size_t pair = 2 * simd->lanes, tiles = (s->filters + simd->rows - 1) / simd->rows;
	const size_t in_row = row_of(l->plan, s->n_taps), out_row = row_of(l->plan, s->filters);
	size_t begin, end, first, last;

	share_range(lane_share(l, b), round_up(s->n_taps, FILTER_TAPS) / FILTER_TAPS * tiles,
		&begin, &end);
	for (size_t n = begin; n < end; n++) {
		const size_t tap = n / tiles * FILTER_TAPS;

		share_range((struct share){n % tiles, tiles}, s->filters, &first, &last);
		for (size_t k = tap; k < tap + FILTER_TAPS && k < s->n_taps; k += pair)
			simd->outer(b->batch->grad + s->weight + first * s->n_taps + k, s->n_taps,
				b->batch->joint->output + first, out_row, last - first,
				b->batch->joint->input[i] + k, in_row, s->n_taps - k, b->rows,
				scale, b->round > 0);
	}
}

static void add_bias_gradient(const struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];
	const size_t row = row_of(l->plan, s->filters);
	float *grad = b->batch->grad + s->bias;
	size_t begin, end;

	share_range(lane_share(l, b), s->filters, &begin, &end);
	if (b->round == 0)
		memset(grad + begin, 0, (end - begin) * sizeof(*grad));
	for (size_t n = 0; n < b->rows; n++)
		l->plan->simd->add_scaled(grad + begin, b->batch->joint->output + n * row + begin,
			1 / (float)b->batch->images, end - begin);
}

/* ---- forward and backward -------------------------------------------------------------------- */

void joint_forward(struct lane *l, size_t i, const struct block *b)
{
	share_input(l, i, b);
	team_barrier(b->batch->team);
	multiply_input(l, i, b);
	team_barrier(b->batch->team);
	take_output(l, i, b);
}

void joint_backward(struct lane *l, size_t i, const struct block *b)
{
	const struct step *s = &l->plan->step[i];

	share_d_output(l, i, b);
	team_barrier(b->batch->team);
	write_gradient(l, i, b);
	add_bias_gradient(l, i, b);
	if (s->data == WAY_JOINT)
		multiply_d_output(l, i, b);
	team_barrier(b->batch->team);
	if (s->data == WAY_JOINT)
		take_d_input(l, i, b);
}
