/*
 * plan.c - fuses layers into steps and builds the tables of each step.
 */
#include "kernels/cpu/plan.h"
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/mem.h"

/* maximum number of floats of one image in an activation, so that offsets fit in 32 bits */
#define MAX_IMAGE ((size_t)1 << 25)
/* maximum number of positions in all windows of a step; a position in several windows counts
 * several times */
#define MAX_POSITIONS ((size_t)1 << 28)
#define MANY_WEIGHTS  ((size_t)1 << 18) /* number of weights that take 1 MiB, a typical L2 cache */
/* minimum number of neurons of a step that a team divides among its lanes */
#define JOINT_FILTERS 64

size_t round_up(size_t n, size_t unit)
{
	return (n + unit - 1) / unit * unit;
}

size_t columns_pad(const struct simd *simd, size_t n)
{
	size_t pair = 2 * simd->lanes, rest = n % pair;

	return n - rest + (rest == 0 ? 0 : rest <= simd->lanes ? simd->lanes : pair);
}

struct columns columns_at(const struct simd *simd, size_t n, size_t first)
{
	size_t pair = 2 * simd->lanes, left = n - first;

	return (struct columns){.filter = first,
		.count = left < pair ? left : pair,
		.width = left <= simd->lanes ? simd->lanes : pair};
}

struct columns panel_at(const struct simd *simd, const struct step *s, size_t i)
{
	const size_t each = s->n_panels / s->groups, group = i / each;
	const size_t first = i % each * 2 * simd->lanes;
	struct columns c = columns_at(simd, s->in_group, first);

	c.group = group;
	c.filter = group * s->in_group + first;
	c.at = group * s->group_columns + first;
	return c;
}

size_t entries_pad(const struct step *s)
{
	return round_up(s->n_windows, SIMD_ENTRIES);
}

/* ---- activations ----------------------------------------------------------------------------- */

/* Returns the layer that reads the activation in front of layer `l`: the first layer from `l` on
 * that is not ReLU, dropout or skip, because these three work in place. */
static const struct layer *reader(const struct model *m, size_t l)
{
	for (; l < m->n_layers; l++)
		if (m->layer[l].kind != LAYER_RELU && m->layer[l].kind != LAYER_DROPOUT &&
			m->layer[l].kind != LAYER_SKIP)
			return &m->layer[l];
	return NULL;
}

/* Returns the rows and columns of the output tiles of a layer that can use Winograd's method, and 0
 * for all other layers. With one channel the transforms take longer than the products. */
static size_t winograd_size(const struct layer *l)
{
	if (l->kind != LAYER_CONV || l->stride != 1 || l->groups != 1 || l->in.c == 1)
		return 0;
	return l->size == 3 ? 4 : l->size == 5 ? 2 : 0;
}

/* Tiles of `tile` rows or columns cover `out` rows or columns of the output. Returns 1 if a tile
 * has four rows or columns, and the last tile needs at most the first two of them. */
static size_t is_cut(size_t tile, size_t out)
{
	return tile == 4 && (out % 4 == 1 || out % 4 == 2);
}

/* Returns the number of rows or columns for which the input has room, padding included. This is
 * `n`, or more if the tiles of `out` rows or columns of the output need more. */
static size_t fit_tiles(const struct layer *l, size_t n, size_t out)
{
	const size_t tile = winograd_size(l);

	if (tile == 0)
		return n;
	const size_t needed = round_up(out, tile) + l->size - 1 - 2 * is_cut(tile, out);
	return n > needed ? n : needed;
}

/* Appends the activation in front of layer `l`. Returns 0 if the activation is too large. */
static int add_activation(struct plan *p, const struct model *m, size_t l, struct shape shape)
{
	const struct layer *to = reader(m, l);
	struct activation *activation = &p->activation[p->n_activations++];
	size_t height = shape.h, width = shape.w, top = 0, left = 0, size;

	if (to && to->kind == LAYER_CONV) {
		top = to->pad_top;
		left = to->pad_left;
		height = fit_tiles(to, height + top + to->pad_bottom, to->out.h);
		width = fit_tiles(to, width + left + to->pad_right, to->out.w);
	}
	if (__builtin_mul_overflow(width, shape.c, &size) ||
		__builtin_mul_overflow(size, height, &size) || size > MAX_IMAGE - ACTIVATION_ALIGN)
		return 0;
	*activation = (struct activation){.shape = shape,
		.row = width * shape.c,
		.origin = (top * width + left) * shape.c,
		.image = round_up(size, ACTIVATION_ALIGN)};
	return 1;
}

/* ---- windows --------------------------------------------------------------------------------- */

/* The windows of a pool layer. Without a pool, every position is a window of its own. */
struct pooling {
	size_t height, width, stride, top, left;
};

static struct pooling window_sizes(const struct layer *l)
{
	if (!l)
		return (struct pooling){1, 1, 1, 0, 0};
	if (l->kind == LAYER_CHANNELS)
		return (struct pooling){l->in.h, l->in.w, 1, 0, 0};
	return (struct pooling){l->size, l->size, l->stride, l->pad_top, l->pad_left};
}

/* Appends the positions of window (y, x): the output pixels of the weighted layer that lie in this
 * window. `positions` has the numbers of rows and columns of the weighted layer's output. */
static void add_window(struct step *s, const struct pooling *w, struct shape positions, size_t y,
	size_t x, size_t y_floats, size_t x_floats, size_t origin)
{
	for (size_t ky = 0; ky < w->height; ky++)
		for (size_t kx = 0; kx < w->width; kx++) {
			/* beyond the upper or left edge the difference wraps around to a huge
			 * number */
			size_t cy = y * w->stride + ky - w->top;
			size_t cx = x * w->stride + kx - w->left;

			if (cy < positions.h && cx < positions.w)
				s->position[s->n_positions++] =
					(uint32_t)(origin + cy * y_floats + cx * x_floats);
		}
}

/* Builds the window tables. The output pixels of the weighted layer are called positions, and
 * `positions` has their numbers of rows and columns. Neighbouring positions are `stride` pixels of
 * the input activation apart; the first position is at offset `origin`. */
static int add_windows(struct plan *p, struct step *s, const struct layer *pool,
	struct shape positions, size_t stride, size_t origin)
{
	const struct activation *in = &p->activation[s->in], *out = &p->activation[s->out];
	const struct pooling w = window_sizes(pool);
	const struct shape o = out->shape;
	size_t max = o.h * o.w; /* cannot overflow, because it is at most MAX_IMAGE */

	if (__builtin_mul_overflow(max, w.height * w.width, &max) || max > MAX_POSITIONS)
		return 0;
	s->position = mem_try(max, sizeof(*s->position));
	s->first = mem_try(o.h * o.w + 1, sizeof(*s->first));
	s->to = mem_try(o.h * o.w, sizeof(*s->to));
	if (!s->position || !s->first || !s->to)
		return 0;
	for (size_t y = 0; y < o.h; y++)
		for (size_t x = 0; x < o.w; x++) {
			size_t before = s->n_positions, i = s->n_windows++;

			add_window(s, &w, positions, y, x, stride * in->row, stride * in->shape.c,
				origin);
			s->to[i] = (uint32_t)(out->origin + y * out->row + x * o.c);
			s->first[i + 1] = (uint32_t)s->n_positions;
			if (s->n_positions - before > s->max_positions)
				s->max_positions = s->n_positions - before;
		}
	if (s->max_positions > p->max_positions)
		p->max_positions = s->max_positions;
	s->pooled = s->max_positions > 1;
	return s->max_positions <= SIMD_MAX_POSITIONS;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Describes the patch of a step as runs of contiguous floats. A run is the whole patch, one of its
 * rows or, in a grouped convolution, the channels of one of its pixels. */
static int add_patch(const struct plan *p, struct step *s, size_t height, size_t width)
{
	const struct activation *in = &p->activation[s->in];
	const size_t channels = in->shape.c, pixel = channels / s->groups;
	struct patch *q = &s->patch;

	*q = (struct patch){.rows = height, .run = width * channels};
	if (s->groups > 1)
		*q = (struct patch){.rows = height * width, .run = pixel};
	else if (in->row == q->run)
		*q = (struct patch){.rows = 1, .run = s->n_taps};
	q->run_pad = round_up(q->run, p->simd->lanes);
	s->row_at = mem_try(q->rows, sizeof(*s->row_at));
	for (size_t i = 0; s->row_at && i < q->rows; i++)
		s->row_at[i] = (uint32_t)(s->groups > 1 ? i / width * in->row + i % width * channels
							: i * in->row);
	q->at = s->row_at;
	return s->row_at != NULL;
}

/* Lists the taps in the order of the input activation: row, column, channel. */
static int add_taps(struct plan *p, struct step *s, size_t height, size_t width)
{
	const struct activation *in = &p->activation[s->in];
	const size_t channels = in->shape.c, own = channels / s->groups;

	s->pixels = height * width;
	s->n_taps = s->pixels * own;
	if (s->n_taps > p->max_taps)
		p->max_taps = s->n_taps;
	s->taps_pad = round_up(s->n_taps, p->simd->taps);
	s->tap = mem_try(s->groups, s->taps_pad * sizeof(*s->tap));
	s->channel = mem_try(s->filters, sizeof(*s->channel));
	if (!s->tap || !s->channel)
		return 0;
	size_t k = 0;
	for (size_t y = 0; y < height; y++)
		for (size_t x = 0; x < width; x++)
			for (size_t c = 0; c < own; c++, k++)
				for (size_t g = 0; g < s->groups; g++)
					s->tap[g * s->taps_pad + k] =
						(uint32_t)(y * in->row + x * channels + g * own +
							   c);
	for (size_t f = 0; f < s->filters; f++)
		s->channel[f] = (uint32_t)(f / s->in_group * own);
	return add_patch(p, s, height, width);
}

/* ---- Winograd -------------------------------------------------------------------------------- */

/* The approximate number of tiles in a band. With this number, a band and one panel of weights fit
 * in an L2 cache. */
#define WINOGRAD_TILES 64

/* Returns the cost of one of a step's three products with Winograd's tiles, as a number of vectors
 * of products (the unit of choose_ways). The transform of one vector of channels or filters of a
 * tile takes about as long as 120 vectors of products. */
static double winograd_cost(const struct plan *p, const struct step *s, size_t size)
{
	const size_t pair = 2 * p->simd->lanes;
	const size_t channels = s->of->in.c, vectors = round_up(s->filters, pair) / p->simd->lanes;
	const size_t across = round_up(s->of->out.w, size) / size;
	const size_t down = round_up(s->of->out.h, size) / size;
	const size_t points = (WINOGRAD_POINTS * across - 2 * is_cut(size, s->of->out.w)) *
			      (WINOGRAD_POINTS * down - 2 * is_cut(size, s->of->out.h));
	const size_t transforms = 120 * (channels / p->simd->lanes + 1 + vectors);

	return (double)points * (double)(channels * vectors) +
	       (double)(across * down) * (double)transforms;
}

/* Returns the smallest number of rows of tiles that hold whole rows of windows. */
static size_t min_rows(const struct winograd *w, const struct layer *pool)
{
	size_t rows = 1;

	if (!pool)
		return 1;
	if (pool->pad_top > 0)
		return w->down;
	while (rows < w->down && rows * w->size % pool->stride != 0)
		rows++;
	return rows;
}

static void cut_bands(const struct plan *p, struct step *s, const struct layer *pool)
{
	struct winograd *w = &s->winograd;
	const size_t min = min_rows(w, pool), tiles = w->across * w->down;
	size_t rows = WINOGRAD_TILES / (w->across * min) * min;

	w->images = tiles < WINOGRAD_TILES ? WINOGRAD_TILES / tiles : 1;
	if (rows < min)
		rows = min;
	rows = w->images > 1 || rows > w->down ? w->down : rows;
	/* divide the image into bands with nearly the same number of rows */
	PS_ASSERT(rows > 0);
	w->bands = (w->down + rows - 1) / rows;
	PS_ASSERT(w->bands > 0);
	w->rows = round_up((w->down + w->bands - 1) / w->bands, min);
	PS_ASSERT(w->rows > 0);
	w->bands = (w->down + w->rows - 1) / w->rows;
	w->max_tiles = w->images * w->rows * w->across + p->simd->positions;
}

/* Lists the first window of each band, and the number of each position in its band. */
static void number_positions(const struct plan *p, struct step *s, const struct layer *pool)
{
	struct winograd *w = &s->winograd;
	const struct activation *in = &p->activation[s->in];
	const size_t values = w->size * w->size, across = p->activation[s->out].shape.w;
	const size_t stride = pool ? pool->stride : 1;

	for (size_t i = 0; i < w->across * w->down * values; i++)
		w->order[i] = WINOGRAD_UNUSED;
	for (size_t band = 0; band < w->bands; band++) {
		const size_t row = band * w->rows * w->size / stride * across;

		w->first[band] = (uint32_t)(row < s->n_windows ? row : s->n_windows);
	}
	w->first[w->bands] = (uint32_t)s->n_windows;
	for (size_t band = 0; band < w->bands; band++) {
		const size_t begin = s->first[w->first[band]], end = s->first[w->first[band + 1]];

		for (size_t k = begin; k < end; k++) {
			const size_t y = s->position[k] / in->row;
			const size_t x = s->position[k] % in->row / in->shape.c;
			const size_t tile = y / w->size * w->across + x / w->size;

			w->order[tile * values + y % w->size * w->size + x % w->size] =
				(uint32_t)(k - begin);
		}
		if (w->images * (end - begin) > w->max_positions)
			w->max_positions = w->images * (end - begin);
	}
}

static int add_tiles(struct plan *p, struct step *s, const struct layer *pool)
{
	struct winograd *w = &s->winograd;
	const size_t pair = 2 * p->simd->lanes, channels = s->of->in.c;

	w->size = winograd_size(s->of);
	PS_ASSERT(w->size > 0);
	w->across = round_up(s->of->out.w, w->size) / w->size;
	w->down = round_up(s->of->out.h, w->size) / w->size;
	w->narrow = is_cut(w->size, s->of->out.w);
	w->low = is_cut(w->size, s->of->out.h);
	cut_bands(p, s, pool);
	w->taps = round_up(channels, p->simd->taps);
	w->channels_pad = round_up(channels, pair);
	w->filters_pad = round_up(s->filters, pair);
	/* Rows and steps are not multiples of large powers of two, because those would map many
	 * tiles and points to the same lines of a cache. */
	w->input_row = w->channels_pad + SIMD_MAX_LANES;
	w->input_step = w->max_tiles * w->input_row + ACTIVATION_ALIGN;
	w->output_step = w->max_tiles * pair + ACTIVATION_ALIGN;
	w->dy_row = w->filters_pad + SIMD_MAX_LANES;
	w->dy_step = w->max_tiles * w->dy_row + ACTIVATION_ALIGN;
	w->first = mem_try(w->bands + 1, sizeof(*w->first));
	w->order = mem_try(w->across * w->down, w->size * w->size * sizeof(*w->order));
	if (!w->first || !w->order)
		return 0;
	number_positions(p, s, pool);
	return 1;
}

/* ---- ways ------------------------------------------------------------------------------------ */

/* Returns 1 for an fc step that has too many weights to read them again for each image. Returns 0
 * for a convolution, because it reads each weight once for many positions of an image. */
static int has_many_weights(const struct step *s)
{
	return s->kind == STEP_WEIGHTS && s->n_positions == 1 &&
	       s->filters * s->n_taps >= MANY_WEIGHTS;
}

/* Returns 1 if the lanes compute the three products of a step together (joint.h). */
static int is_joint(const struct step *s)
{
	return has_many_weights(s) && s->patch.rows == 1 && s->groups == 1 &&
	       s->filters >= JOINT_FILTERS;
}

/*
 * Chooses the ways of a step's three products by their estimated costs. The dense way computes
 * every position in register tiles. The sparse way, for the backward pass only, computes the
 * positions that are the argmax of a window and pass the ReLU. But the sparse way waits for memory
 * and fills vectors only along a row of the patch, so a vector of products takes about twice as
 * long as in the dense way.
 */
static void choose_ways(struct plan *p, struct step *s, int back)
{
	const size_t tile = winograd_size(s->of), column_vectors = s->columns / p->simd->lanes;
	const size_t run_vectors = s->patch.run_pad / p->simd->lanes;
	const double vectors = (double)column_vectors;
	const double dense = (double)s->taps_pad * (double)s->n_positions * vectors;

	const double sparse = 2 * (double)s->n_windows * (double)s->filters *
			      (double)(s->patch.rows * run_vectors);
	const int one_patch = s->n_positions == 1 && s->patch.rows == 1 && s->groups == 1;
	s->forward = WAY_DENSE;
	s->filter = dense <= sparse ? WAY_DENSE : WAY_SPARSE;
	s->data = one_patch ? WAY_DENSE : WAY_SPARSE;
	if (tile > 0) {
		const double cost = winograd_cost(p, s, tile);

		if (cost < dense)
			s->forward = WAY_WINOGRAD;
		if ((back ? 2 * cost : cost) <
			(dense <= sparse ? dense : sparse) + (back ? sparse : 0))
			s->filter = s->data = WAY_WINOGRAD;
	}
	if (is_joint(s)) {
		s->forward = s->filter = s->data = WAY_JOINT;
		p->joint = 1;
	}
	if (!back)
		s->data = WAY_NONE;
}

/* Assigns the step its offsets in the packed parameters and in the gradient. */
static void place_step(struct plan *p, struct step *s)
{
	const struct winograd *w = &s->winograd;
	const size_t rows = s->filters * s->patch.rows * s->patch.run_pad;

	if (s->forward == WAY_JOINT)
		return;
	s->panel = p->packed_floats;
	s->panel_bias = s->panel + s->columns * s->n_taps;
	if (s->forward == WAY_WINOGRAD)
		s->panel_bias = s->panel + WINOGRAD_TILE * s->of->in.c * w->filters_pad;
	s->other = s->panel_bias + round_up(s->columns, ACTIVATION_ALIGN);
	p->packed_floats = s->other;
	if (s->data == WAY_DENSE)
		p->packed_floats += s->filters * columns_pad(p->simd, s->n_taps);
	else if (s->data == WAY_SPARSE)
		p->packed_floats += rows;
	else if (s->data == WAY_WINOGRAD)
		p->packed_floats += WINOGRAD_TILE * s->filters * w->channels_pad;
	s->grad = p->grad_floats;
	s->grad_bias = s->grad + rows;
	if (s->filter == WAY_DENSE)
		s->grad_bias = s->grad + s->columns * s->taps_pad;
	else if (s->filter == WAY_WINOGRAD)
		s->grad_bias = s->grad + WINOGRAD_TILE * w->taps * w->filters_pad;
	p->grad_floats = s->grad_bias + s->columns;
	const size_t entries = s->filters * entries_pad(s);
	if ((s->filter == WAY_SPARSE || s->data == WAY_SPARSE) && entries > p->max_entries)
		p->max_entries = entries;
}

static int add_weights(struct plan *p, const struct model *m, const struct layer *l,
	const struct layer *pool, int back)
{
	struct step *s = &p->step[p->n_steps - 1];
	const int conv = l->kind == LAYER_CONV;

	s->filters = l->out.c;
	s->groups = conv ? l->groups : 1;
	s->in_group = s->filters / s->groups;
	s->group_columns = columns_pad(p->simd, s->in_group);
	s->columns = s->groups * s->group_columns;
	s->n_panels =
		s->groups * (round_up(s->in_group, 2 * p->simd->lanes) / (2 * p->simd->lanes));
	s->weight = m->tensor[l->weight].offset;
	s->bias = m->tensor[l->bias].offset;
	if (!add_taps(p, s, conv ? l->size : l->in.h, conv ? l->size : l->in.w) ||
		!add_windows(p, s, pool, l->out, conv ? l->stride : 1, 0))
		return 0;
	choose_ways(p, s, back);
	if ((s->forward == WAY_WINOGRAD || s->filter == WAY_WINOGRAD) && !add_tiles(p, s, pool))
		return 0;
	place_step(p, s);
	return 1;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Returns 1 if the layer is a pool whose windows do not overlap, because only such a pool can be
 * fused. With overlapping windows, a position would be computed once for each of its windows. */
static int is_fusible(const struct layer *pool)
{
	return pool->kind == LAYER_POOL && pool->stride == pool->size;
}

/* Fuses the ReLUs and at most one pool after weighted layer `l` into its step. Returns the number
 * of the first layer after the step. */
static size_t fuse(const struct model *m, size_t l, struct step *s, const struct layer **pool)
{
	*pool = NULL;
	for (l++; l < m->n_layers; l++) {
		if (m->layer[l].kind == LAYER_RELU)
			s->relu = 1;
		else if (is_fusible(&m->layer[l]) && !*pool)
			*pool = &m->layer[l];
		else
			break;
	}
	return l;
}

/* Returns the kind of the step that begins with a layer of this kind. */
static enum step_kind kind_of_layer(enum layer_kind kind)
{
	switch (kind) {
	case LAYER_CONV:
	case LAYER_FC:
		return STEP_WEIGHTS;
	case LAYER_RELU:
		return STEP_RELU;
	case LAYER_POOL:
		return STEP_POOL;
	case LAYER_DROPOUT:
		return STEP_DROPOUT;
	case LAYER_TANH:
		return STEP_TANH;
	case LAYER_SIGMOID:
		return STEP_SIGMOID;
	case LAYER_AVGPOOL:
	case LAYER_CHANNELS:
		return STEP_AVGPOOL;
	case LAYER_LRN:
		return STEP_LRN;
	case LAYER_BATCHNORM:
		return STEP_BATCHNORM;
	case LAYER_SKIP:
		return STEP_SKIP;
	case LAYER_ADD:
		return STEP_ADD;
	}
	return STEP_SKIP;
}

/* Places weight, bias and running statistics in the packed parameters, one after the other, and the
 * gradients of weight and bias. */
static void add_batchnorm(struct plan *p, struct step *s, const struct model *m)
{
	const size_t n = s->of->in.c;

	s->weight = m->tensor[s->of->weight].offset;
	s->bias = m->tensor[s->of->bias].offset;
	s->mean = m->tensor[s->of->running].offset;
	s->variance = m->tensor[s->of->running + 1].offset;
	s->filters = n;
	s->panel = p->packed_floats;
	p->packed_floats += round_up(4 * n, ACTIVATION_ALIGN);
	s->grad = p->grad_floats;
	s->grad_bias = s->grad + n;
	p->grad_floats += round_up(2 * n, ACTIVATION_ALIGN);
	p->whole = 1;
}

/* Connects an add with its skip, which is the step of layer s->of->partner. */
static void add_partner(struct plan *p, struct step *s)
{
	for (size_t i = 0; i < p->n_steps; i++) {
		struct step *skip = &p->step[i];

		if (skip->kind != STEP_SKIP || skip->layer != s->of->partner)
			continue;
		s->partner = skip->in;
		skip->partner = s->out;
		s->stride = skip->stride = s->of->stride;
	}
}

/* Appends a step between two activations, without weights. */
static int add_between(struct plan *p, struct step *s, const struct model *m, int weighted)
{
	const struct activation *in = &p->activation[s->in];

	switch (s->kind) {
	case STEP_POOL:
	case STEP_AVGPOOL:
		s->data = weighted ? WAY_SPARSE : WAY_NONE;
		s->scale = 1 / (float)(s->of->kind == LAYER_CHANNELS ? s->of->in.h * s->of->in.w
								     : s->of->size * s->of->size);
		return add_windows(p, s, s->of, s->of->in, 1, in->origin);
	case STEP_TANH: /* because the backward pass of tanh and sigmoid needs their output */
	case STEP_SIGMOID:
		p->held[s->out] = 1;
		return 1;
	case STEP_BATCHNORM:
		add_batchnorm(p, s, m);
		return 1;
	case STEP_ADD:
		add_partner(p, s);
		return 1;
	default: /* STEP_RELU, STEP_DROPOUT and STEP_LRN need nothing else */
		return 1;
	}
}

/* Appends the step that starts with layer *l and moves *l past it. Returns 0 if there is no memory,
 * or if an activation or its windows are too large. */
static int add_step(struct plan *p, const struct model *m, size_t *l, int *weighted)
{
	const struct layer *layer = &m->layer[*l], *pool = NULL;
	const size_t before = p->n_activations - 1;
	struct step *s = &p->step[p->n_steps++];

	*s = (struct step){.kind = kind_of_layer(layer->kind),
		.layer = *l,
		.in = before,
		.out = before,
		.of = layer};
	s->drop = layer->drop;
	if (s->kind == STEP_SKIP)
		p->held[before] = 1;
	if (s->kind == STEP_SKIP ||
		((s->kind == STEP_RELU || s->kind == STEP_DROPOUT) && !p->held[before])) {
		++*l;
		return 1;
	}
	s->out = p->n_activations;
	if (s->kind != STEP_WEIGHTS) {
		++*l;
		int ok = add_activation(p, m, *l, layer->out) && add_between(p, s, m, *weighted);
		*weighted |= s->kind == STEP_BATCHNORM;
		return ok;
	}
	*l = fuse(m, *l, s, &pool);
	int ok = add_activation(p, m, *l, pool ? pool->out : layer->out) &&
		 add_weights(p, m, layer, pool, *weighted);
	*weighted = 1;
	return ok;
}

static int add_identity(struct plan *p)
{
	size_t n = 0;

	for (size_t i = 0; i < p->n_steps; i++)
		if (p->step[i].filters > n)
			n = p->step[i].filters;
	p->identity = mem_try(n, sizeof(*p->identity));
	for (size_t i = 0; p->identity && i < n; i++)
		p->identity[i] = (uint32_t)i;
	return p->identity != NULL;
}

static int add_pixels(struct plan *p, const struct model *m)
{
	if (!m->preprocess.n_norm)
		return 1;
	p->pixel = mem_try(m->input.c, 256 * sizeof(*p->pixel));
	for (size_t c = 0; p->pixel && c < m->input.c; c++)
		preprocess_table(&m->preprocess, c, p->pixel + 256 * c);
	return p->pixel != NULL;
}

/* ---- segments -------------------------------------------------------------------------------- */

#define CACHE_BYTES ((size_t)512 << 10) /* half of a typical L2 cache */
#define MAX_BLOCK   32

size_t images_in_cache(const struct plan *p, size_t first, size_t last)
{
	size_t bytes = 0;

	for (size_t i = first; i <= last; i++)
		bytes += 2 * p->activation[i].image * sizeof(float);
	PS_ASSERT(bytes > 0);
	const size_t images = CACHE_BYTES / bytes;
	return images < 1 ? 1 : images > MAX_BLOCK ? MAX_BLOCK : images;
}

/* Returns the number of images with which a step fills its register tiles (or a band of Winograd's
 * tiles). */
static size_t images_of_step(const struct plan *p, const struct step *s)
{
	if (s->kind != STEP_WEIGHTS)
		return 1;
	return s->n_positions == 1 ? p->simd->positions : s->winograd.size ? s->winograd.images : 1;
}

/* Returns 1 if a segment may begin with step `i`: no skip before the step belongs to an add after
 * it. */
static int may_begin(const struct plan *p, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (p->step[k].kind == STEP_SKIP && p->step[k].partner > p->step[i].in)
			return 0;
	return p->step[i].kind == STEP_WEIGHTS;
}

/* Cuts the steps before the first fc step with many weights into segments. A new segment begins at
 * a step whose tiles need at least four times as many images as the steps before it. */
static void cut_segments(struct plan *p)
{
	size_t large = 0, images = 1;
	struct segment *last = p->segment;

	for (size_t i = 0; i < p->n_steps; i++)
		p->large |= has_many_weights(&p->step[i]);
	while (large < p->n_steps && !has_many_weights(&p->step[large]))
		large++;
	if (large < p->n_steps && !may_begin(p, large))
		large = p->n_steps;
	for (size_t i = 0; large < p->n_steps && !p->whole && i <= large; i++) {
		const size_t needed = images_of_step(p, &p->step[i]);

		if (i > 0 && (i == large || (needed >= 4 * images && may_begin(p, i)))) {
			const size_t fit =
				images_in_cache(p, p->step[last->begin].in, p->step[i].in);

			last->end = i;
			last->images = images > fit ? images : fit;
			*++last = (struct segment){.begin = i};
			images = needed;
		}
		images = needed > images ? needed : images;
	}
	last->end = p->n_steps;
	last->images = SIZE_MAX;
	p->n_segments = (size_t)(last - p->segment) + 1;
}

int plan_init(struct plan *p, const struct model *m, const struct simd *simd, struct err *e)
{
	*p = (struct plan){.simd = simd};
	int weighted = 0, ok = add_activation(p, m, 0, m->input);

	for (size_t l = 0; ok && l < m->n_layers;) {
		ok = add_step(p, m, &l, &weighted);
		p->first_trained += !weighted;
	}
	cut_segments(p);
	if (ok && add_identity(p) && add_pixels(p, m))
		return PS_OK;
	return err_set(e, PS_ENOMEM,
		"model \"%s\" does not fit device cpu: no memory, or more than %zu values of an "
		"image "
		"between two layers, or more than %d in one window of a pool",
		m->text, MAX_IMAGE, SIMD_MAX_POSITIONS);
}

void plan_release(struct plan *p)
{
	for (size_t i = 0; i < p->n_steps; i++) {
		struct step *s = &p->step[i];

		free(s->first);
		free(s->position);
		free(s->to);
		free(s->tap);
		free(s->channel);
		free(s->row_at);
		free(s->winograd.first);
		free(s->winograd.order);
	}
	free(p->identity);
	free(p->pixel);
	*p = (struct plan){0};
}
