/*
 * simd.c - the inner loops of the cpu device, in vector types of GCC and Clang. kernels.mk compiles
 * this file once per instruction set. SIMD_NAME is avx2, avx512 or baseline.
 */
#include "kernels/cpu/simd.h"
#include <math.h>

#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define TEXT2(a)     #a
#define TEXT(a)      TEXT2(a)

/* A register tile has 2 x POSITIONS sums (gemm) or 2 x TAPS sums (filter_dense). Two vectors of
 * filters and one broadcast value need registers too. AVX-512 has 32 registers, and the other
 * instruction sets have 16. The last tile has MIN_ROWS to MAX_ROWS positions or taps. With fewer
 * rows than MIN_ROWS, the tile would have too few independent sums, and the processor would wait
 * for each addition. */
#if defined(__AVX512F__)
#define LANES     16
#define POSITIONS 8
#define TAPS      9
#define MIN_ROWS  5
#define MAX_ROWS  12
#elif defined(__AVX2__)
#define LANES     8
#define POSITIONS 6
#define TAPS      5
#define MIN_ROWS  4
#define MAX_ROWS  6
#else
#define LANES     4
#define POSITIONS 6
#define TAPS      5
#define MIN_ROWS  4
#define MAX_ROWS  6
#endif

#ifdef __clang__
#define UNROLL   _Pragma("unroll")
#define UNROLL_2 _Pragma("unroll(2)")
#else
#define UNROLL   _Pragma("GCC unroll 16")
#define UNROLL_2 _Pragma("GCC unroll 2")
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef float vec_any __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t argmax_any __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

INLINE vec load(const float *p)
{
	return *(const vec_any *)p;
}

INLINE void store(float *p, vec v)
{
	*(vec_any *)p = v;
}

INLINE vec choose(ivec mask, vec yes, vec no)
{
	return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}

/* ---- dense ----------------------------------------------------------------------------------- */

/* LAST_TILE calls f(n, vecs) for 0 < n <= MAX_ROWS, with a constant in place of n. If n is below
 * MIN_ROWS, it calls f(MIN_ROWS, vecs). */
#define CASE(f, n, vecs)                                                                           \
	case n:                                                                                    \
		f(n, vecs);                                                                        \
		break;
#if MAX_ROWS == 12
#define MORE_CASES(f, vecs)                                                                        \
	CASE(f, 7, vecs)                                                                           \
	CASE(f, 8, vecs)                                                                           \
	CASE(f, 9, vecs) CASE(f, 10, vecs) CASE(f, 11, vecs) CASE(f, 12, vecs)
#else
#define MORE_CASES(f, vecs)
#endif
#define LAST_TILE(f, n, vecs)                                                                      \
	switch (n) {                                                                               \
		CASE(f, 5, vecs)                                                                   \
		CASE(f, 6, vecs)                                                                   \
		MORE_CASES(f, vecs)                                                                \
	default:                                                                                   \
		f(MIN_ROWS, vecs);                                                                 \
		break;                                                                             \
	}

/* Multiplies `n` rows by a panel. Value k of row i is x[i][tap[k]], or x[i][k] if `tap` is NULL. */
INLINE void product_tile(float *out, size_t stride, const float *const x[MAX_ROWS],
	const uint32_t *tap, size_t depth, const float *panel, const size_t n, const size_t vecs)
{
	vec sum[MAX_ROWS][2];

	UNROLL for (size_t i = 0; i < n; i++) sum[i][0] = sum[i][1] = (vec){0};
	UNROLL_2 for (size_t k = 0; k < depth; k++, panel += vecs * LANES)
	{
		size_t at = tap ? tap[k] : k;
		vec w0 = load(panel), w1 = load(panel + (vecs - 1) * LANES);

		UNROLL for (size_t i = 0; i < n; i++)
		{
			sum[i][0] += x[i][at] * w0;
			if (vecs > 1)
				sum[i][1] += x[i][at] * w1;
		}
	}
	UNROLL for (size_t i = 0; i < n; i++)
	{
		store(out + i * stride, sum[i][0]);
		if (vecs > 1)
			store(out + i * stride + LANES, sum[i][1]);
	}
}

INLINE void gemm_tile(float *out, size_t stride, const float *const *source, const uint32_t *tap,
	size_t n_taps, const float *panel, const size_t n, const size_t vecs)
{
	const float *x[MAX_ROWS];

	UNROLL for (size_t i = 0; i < n; i++) x[i] = source[i];
	product_tile(out, stride, x, tap, n_taps, panel, n, vecs);
}

static void gemm(float *out, size_t stride, const float *const *source, size_t n,
	const uint32_t *tap, size_t n_taps, const float *panel, size_t width)
{
#define GEMM_TILE(n, vecs) gemm_tile(out, stride, source, tap, n_taps, panel, n, vecs)
	for (; n > MAX_ROWS; n -= POSITIONS, source += POSITIONS, out += POSITIONS * stride)
		if (width > LANES)
			GEMM_TILE(POSITIONS, 2);
		else
			GEMM_TILE(POSITIONS, 1);
	if (n == 0)
		return;
	if (width > LANES)
		LAST_TILE(GEMM_TILE, n, 2)
	else
		LAST_TILE(GEMM_TILE, n, 1)
}

INLINE void row_tile(float *out, size_t out_row, const float *from, size_t row, size_t depth,
	const float *panel, const size_t n)
{
	const float *x[MAX_ROWS];

	UNROLL for (size_t i = 0; i < n; i++) x[i] = from + i * row;
	product_tile(out, out_row, x, NULL, depth, panel, n, 2);
}

static void product(float *out, size_t out_row, const float *x, size_t x_row, size_t n,
	size_t depth, const float *panel)
{
#define ROW_TILE(n, vecs) row_tile(out, out_row, x, x_row, depth, panel, n)
	for (; n > MAX_ROWS; n -= POSITIONS, x += POSITIONS * x_row, out += POSITIONS * out_row)
		ROW_TILE(POSITIONS, 2);
	if (n > 0)
		LAST_TILE(ROW_TILE, n, 2)
}

/* Computes `taps` rows of a gradient. Row i of the input begins at source[i], or at x + i * row if
 * `source` is NULL. Value k of a row is at offset tap[k], or at offset k if `tap` is NULL. */
INLINE void filter_sums(vec sum[MAX_ROWS][2], const float *d, size_t d_row,
	const float *const *source, const float *x, size_t row, size_t n, const uint32_t *tap,
	const size_t taps, const size_t vecs)
{
	size_t at[MAX_ROWS];

	UNROLL for (size_t k = 0; k < taps; k++)
	{
		at[k] = tap ? tap[k] : k;
		sum[k][0] = sum[k][1] = (vec){0};
	}
	for (size_t i = 0; i < n; i++, d += d_row, x += row) {
		const float *from = source ? source[i] : x;
		vec d0 = load(d), d1 = load(d + (vecs - 1) * LANES);

		UNROLL for (size_t k = 0; k < taps; k++)
		{
			sum[k][0] += from[at[k]] * d0;
			if (vecs > 1)
				sum[k][1] += from[at[k]] * d1;
		}
	}
}

/* Adds the sums of filter_sums to `taps` rows of the gradient. */
INLINE void filter_tile(float *grad, const float *d, size_t d_row, const float *const *source,
	const float *x, size_t row, size_t n, const uint32_t *tap, const size_t taps,
	const size_t vecs)
{
	vec sum[MAX_ROWS][2];

	filter_sums(sum, d, d_row, source, x, row, n, tap, taps, vecs);
	UNROLL for (size_t k = 0; k < taps; k++) UNROLL for (size_t v = 0; v < vecs; v++)
	{
		float *g = grad + (k * vecs + v) * LANES;

		store(g, load(g) + sum[k][v]);
	}
}

static void filter_dense(float *grad, const float *d, const float *const *source, size_t n,
	const uint32_t *tap, size_t n_taps, size_t width)
{
#define FILTER_TILE(taps, vecs)                                                                    \
	filter_tile(grad, d, (vecs)*LANES, source, NULL, 0, n, tap, taps, vecs)
	for (; n_taps > MAX_ROWS; n_taps -= TAPS, tap += TAPS, grad += TAPS * width)
		if (width > LANES)
			FILTER_TILE(TAPS, 2);
		else
			FILTER_TILE(TAPS, 1);
	if (n_taps == 0)
		return;
	if (width > LANES)
		LAST_TILE(FILTER_TILE, n_taps, 2)
	else
		LAST_TILE(FILTER_TILE, n_taps, 1)
}

static void product_back(float *grad, const float *d, size_t d_row, const float *x, size_t x_row,
	size_t n, size_t depth)
{
#define BACK_TILE(taps, vecs) filter_tile(grad, d, d_row, NULL, x, x_row, n, NULL, taps, vecs)
	for (; depth > MAX_ROWS; depth -= TAPS, x += TAPS, grad += TAPS * 2 * LANES)
		BACK_TILE(TAPS, 2);
	if (depth > 0)
		LAST_TILE(BACK_TILE, depth, 2)
}

/* The arguments grad, grad_row, scale and add of simd.outer (simd.h), which say how this function
 * stores a tile. */
struct outer {
	float *grad;
	size_t row;
	float scale;
	int add;
};

INLINE void outer_tile(struct outer to, const float *d, size_t d_row, const float *x, size_t x_row,
	size_t n, const size_t rows)
{
	vec sum[MAX_ROWS][2];

	filter_sums(sum, x, x_row, NULL, d, d_row, n, NULL, rows, 2);
	UNROLL for (size_t k = 0; k < rows; k++, to.grad += to.row)
	{
		vec v0 = to.scale * sum[k][0], v1 = to.scale * sum[k][1];

		if (to.add) {
			v0 += load(to.grad);
			v1 += load(to.grad + LANES);
		}
		store(to.grad, v0);
		store(to.grad + LANES, v1);
	}
}

static void outer(float *grad, size_t grad_row, const float *d, size_t d_row, size_t rows,
	const float *x, size_t x_row, size_t columns, size_t n, float scale, int add)
{
	const int whole = columns >= 2 * LANES;
	float tile[MAX_ROWS * 2 * LANES];
	struct outer to = {tile, 2 * LANES, scale, 0};

	if (whole)
		to = (struct outer){grad, grad_row, scale, add};
	/* fetch the lines of grad in advance: they arrive while the products are computed */
	for (size_t k = 0; whole && k < rows; k++) {
		__builtin_prefetch(grad + k * grad_row, 1);
		__builtin_prefetch(grad + k * grad_row + LANES, 1);
	}
#define OUTER_TILE(rows, vecs) outer_tile(to, d, d_row, x, x_row, n, rows)
	LAST_TILE(OUTER_TILE, rows, 2)
	for (size_t k = 0; !whole && k < rows; k++)
		for (size_t j = 0; j < columns; j++)
			grad[k * grad_row + j] =
				tile[k * 2 * LANES + j] + (add ? grad[k * grad_row + j] : 0);
}

/* ---- transposition --------------------------------------------------------------------------- */

/* A tile of LANES x LANES values is transposed in rounds. Round h exchanges the two off-diagonal
 * blocks of h x h values in each block of 2h x 2h. */
#if LANES == 16
#define EACH_LANE(f, h)                                                                            \
	f(0, h), f(1, h), f(2, h), f(3, h), f(4, h), f(5, h), f(6, h), f(7, h), f(8, h), f(9, h),  \
		f(10, h), f(11, h), f(12, h), f(13, h), f(14, h), f(15, h)
#elif LANES == 8
#define EACH_LANE(f, h) f(0, h), f(1, h), f(2, h), f(3, h), f(4, h), f(5, h), f(6, h), f(7, h)
#else
#define EACH_LANE(f, h) f(0, h), f(1, h), f(2, h), f(3, h)
#endif
#define UPPER(j, h)       ((j) & (h) ? LANES + (j) - (h) : (j))
#define LOWER(j, h)       ((j) & (h) ? LANES + (j) : (j) + (h))
#define MERGE(f, a, b, h) __builtin_shufflevector(a, b, EACH_LANE(f, h))
#define EXCHANGE(row, h)                                                                           \
	UNROLL for (size_t i = 0; i < LANES; i++) if (!(i & (h)))                                  \
	{                                                                                          \
		const vec a = (row)[i], b = (row)[i + (h)];                                        \
                                                                                                   \
		(row)[i] = MERGE(UPPER, a, b, h);                                                  \
		(row)[i + (h)] = MERGE(LOWER, a, b, h);                                            \
	}

INLINE void transpose_tile(float *to, size_t to_row, const float *from, size_t from_row, vec scale)
{
	vec row[LANES];

	UNROLL for (size_t i = 0; i < LANES; i++) row[i] = load(from + i * from_row);
	EXCHANGE(row, 1)
	EXCHANGE(row, 2)
#if LANES > 4
	EXCHANGE(row, 4)
#endif
#if LANES > 8
	EXCHANGE(row, 8)
#endif
	UNROLL for (size_t i = 0; i < LANES; i++) store(to + i * to_row, scale * row[i]);
}

static void transpose(float *to, size_t to_row, const float *from, size_t from_row, size_t rows,
	size_t cols, float scale)
{
	const size_t whole_rows = rows / LANES * LANES, whole_cols = cols / LANES * LANES;

	for (size_t j = 0; j < whole_cols; j += LANES)
		for (size_t i = 0; i < whole_rows; i += LANES)
			transpose_tile(to + j * to_row + i, to_row, from + i * from_row + j,
				from_row, (vec){0} + scale);
	for (size_t j = 0; j < cols; j++)
		for (size_t i = j < whole_cols ? whole_rows : 0; i < rows; i++)
			to[j * to_row + i] = scale * from[i * from_row + j];
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* Stores the first `count` lanes, or all lanes if `count` is larger. */
INLINE void store_some(float *p, vec v, size_t count)
{
	if (count >= LANES)
		store(p, v);
	else
		for (size_t j = 0; j < count; j++)
			p[j] = v[j];
}

INLINE vec load_some(const float *p, size_t count)
{
	vec v = {0};

	if (count >= LANES)
		return load(p);
	for (size_t j = 0; j < count; j++)
		v[j] = p[j];
	return v;
}

INLINE void store_argmax(uint16_t *p, ivec v, size_t count)
{
	if (count >= LANES)
		*(argmax_any *)p = __builtin_convertvector(v, argmax_any);
	else
		for (size_t j = 0; j < count; j++)
			p[j] = (uint16_t)v[j];
}

INLINE ivec load_argmax(const uint16_t *p, size_t count)
{
	ivec v = {0};

	if (count >= LANES)
		return __builtin_convertvector(*(const argmax_any *)p, ivec);
	for (size_t j = 0; j < count; j++)
		v[j] = p[j];
	return v;
}

/* Pools one window for one vector of filters. The window has n positions, whose values start at
 * `value`. The function stores the results of the first `count` filters only. */
INLINE void pool_vector(const float *value, size_t width, size_t n, vec bias, int relu, float *out,
	uint16_t *argmax, size_t count)
{
	vec best = load(value);
	ivec won = {0};

	UNROLL for (size_t position = 1; position < n; position++)
	{
		vec other = load(value + position * width);
		ivec better = other > best;

		best = choose(better, other, best);
		won = ((int32_t)position & better) | (won & ~better);
	}
	best += bias;
	if (relu)
		best = choose(best < 0, (vec){0}, best);
	store_some(out, best, count);
	if (argmax)
		store_argmax(argmax, won, count);
}

/* Pools a chunk in the two common cases: all windows have 4 positions (pool:2) or 1 position (no
 * pool), and all vectors are full. */
INLINE void pool_full(const struct chunk *c, struct columns w, const float *value,
	const float *bias, const size_t n, int relu)
{
	uint16_t *argmax = n > 1 ? c->argmax + w.filter : NULL;

	for (size_t i = 0; i < c->n_windows; i++, value += n * w.width) {
		for (size_t j = 0; j < w.width; j += LANES)
			pool_vector(value + j, w.width, n, load(bias + j), relu,
				c->out[i] + w.filter + j, n > 1 ? argmax + j : NULL, LANES);
		if (n > 1)
			argmax += c->filters;
	}
}

INLINE int all_full(const struct chunk *c, struct columns w, size_t positions)
{
	return c->max_positions == positions && c->n_positions == positions * c->n_windows &&
	       w.count == w.width;
}

static void pool(
	const struct chunk *c, struct columns w, const float *value, const float *bias, int relu)
{
	bias += w.filter;
	if (all_full(c, w, 4)) {
		if (relu)
			pool_full(c, w, value, bias, 4, 1);
		else
			pool_full(c, w, value, bias, 4, 0);
		return;
	}
	if (all_full(c, w, 1)) {
		pool_full(c, w, value, bias, 1, relu);
		return;
	}
	for (size_t i = 0; i < c->n_windows; i++) {
		const size_t n = c->first[i + 1] - c->first[i];
		uint16_t *argmax = c->argmax ? c->argmax + i * c->filters + w.filter : NULL;

		for (size_t j = 0; j < w.count; j += LANES)
			pool_vector(value + j, w.width, n, load(bias + j), relu,
				c->out[i] + w.filter + j, argmax ? argmax + j : NULL, w.count - j);
		value += n * w.width;
	}
}

/* The reverse of pool_vector: writes the gradients of the positions. Returns the gradient of the
 * window. */
INLINE vec unpool_vector(
	float *d, size_t width, size_t n, const float *out, const uint16_t *argmax, size_t count)
{
	vec d_out = load_some(out, count);

	if (!argmax) {
		store(d, d_out);
		return d_out;
	}
	ivec won = load_argmax(argmax, count);
	UNROLL for (size_t position = 0; position < n; position++)
		store(d + position * width, (vec)((ivec)d_out & (won == (int32_t)position)));
	return d_out;
}

INLINE void unpool_full(
	float *d, float *bias, const struct chunk *c, struct columns w, const size_t n)
{
	const uint16_t *argmax = n > 1 ? c->argmax + w.filter : NULL;

	for (size_t j = 0; j < w.width; j += LANES) {
		vec sum = {0};

		for (size_t i = 0; i < c->n_windows; i++)
			sum += unpool_vector(d + n * i * w.width + j, w.width, n,
				c->out[i] + w.filter + j,
				n > 1 ? argmax + i * c->filters + j : NULL, LANES);
		store(bias + j, load(bias + j) + sum);
	}
}

static void unpool(float *d, float *bias, const struct chunk *c, struct columns w)
{
	bias += w.filter;
	if (all_full(c, w, 4)) {
		unpool_full(d, bias, c, w, 4);
		return;
	}
	if (all_full(c, w, 1)) {
		unpool_full(d, bias, c, w, 1);
		return;
	}
	for (size_t i = 0; i < c->n_windows; i++) {
		const size_t n = c->first[i + 1] - c->first[i];
		const uint16_t *argmax = c->argmax ? c->argmax + i * c->filters + w.filter : NULL;

		for (size_t j = 0; j < w.count; j += LANES) {
			vec d_out = unpool_vector(d + j, w.width, n, c->out[i] + w.filter + j,
				argmax ? argmax + j : NULL, w.count - j);

			store(bias + j, load(bias + j) + d_out);
		}
		d += n * w.width;
	}
}

static void load_pixels(float *to, size_t step, const uint8_t *pixel, size_t n)
{
	if (step == 1)
		for (size_t i = 0; i < n; i++)
			to[i] = (float)pixel[i] / 255;
	else
		for (size_t i = 0; i < n; i++)
			to[i * step] = (float)pixel[i] / 255;
}

static void relu_back(float *d, const float *value, size_t n)
{
	for (size_t i = 0; i < n; i++)
		d[i] = value[i] > 0 ? d[i] : 0;
}

/* ---- sparse ---------------------------------------------------------------------------------- */

/* The functions below copy pointers and gradients to local variables. Otherwise the compiler would
 * load them again after each vector store, because it must assume that such a store can change any
 * memory. */

INLINE void add_rows_4(float *g, const float *const x[SIMD_ENTRIES], size_t at,
	const float d[SIMD_ENTRIES], size_t n)
{
	const float *x0 = x[0] + at, *x1 = x[1] + at, *x2 = x[2] + at, *x3 = x[3] + at;
	const float d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];

	for (size_t r = 0; r < n; r += LANES) {
		vec sum = load(g + r);

		sum += d0 * load(x0 + r);
		sum += d1 * load(x1 + r);
		sum += d2 * load(x2 + r);
		sum += d3 * load(x3 + r);
		store(g + r, sum);
	}
}

static void filter_sparse(
	float *grad, const float *in, const struct entry *e, size_t n, const struct patch *patch)
{
	const struct patch p = *patch;

	for (size_t i = 0; i < n; i += SIMD_ENTRIES, e += SIMD_ENTRIES) {
		const float *x[] = {in + e[0].at, in + e[1].at, in + e[2].at, in + e[3].at};
		const float d[] = {e[0].d, e[1].d, e[2].d, e[3].d};

		for (size_t row = 0; row < p.rows; row++)
			add_rows_4(grad + row * p.run_pad, x, p.at[row], d, p.run_pad);
	}
}

static void data_sparse(float *d_in, const float *weight, const struct entry *e, size_t n,
	const struct patch *patch)
{
	const struct patch p = *patch;

	for (size_t i = 0; i < n; i++) {
		const float *w = weight;
		const float d = e[i].d;
		float *to = d_in + e[i].at;

		for (size_t row = 0; row < p.rows; row++, w += p.run_pad) {
			float *run = to + p.at[row];

			for (size_t r = 0; r < p.run_pad; r += LANES)
				store(run + r, load(run + r) + d * load(w + r));
		}
	}
}

/* ---- windows of an activation ---------------------------------------------------------------- */

INLINE void max_vector(float *to, uint16_t *argmax, const float *from, const uint32_t *position,
	size_t n, size_t count)
{
	vec best = load_some(from + position[0], count);
	ivec won = {0};

	for (size_t k = 1; k < n; k++) {
		vec other = load_some(from + position[k], count);
		ivec better = other > best;

		best = choose(better, other, best);
		won = ((int32_t)k & better) | (won & ~better);
	}
	store_some(to, best, count);
	if (argmax)
		store_argmax(argmax, won, count);
}

static void max_values(float *to, uint16_t *argmax, const float *from, const uint32_t *position,
	size_t n, size_t channels)
{
	size_t c = 0;

	for (; c + LANES <= channels; c += LANES)
		max_vector(to + c, argmax ? argmax + c : NULL, from + c, position, n, LANES);
	if (c < channels)
		max_vector(to + c, argmax ? argmax + c : NULL, from + c, position, n, channels - c);
}

static void sum_values(float *to, const float *from, const uint32_t *position, size_t n,
	size_t channels, float scale)
{
	size_t c = 0;

	for (; c + LANES <= channels; c += LANES) {
		vec sum = {0};

		for (size_t k = 0; k < n; k++)
			sum += load(from + position[k] + c);
		store(to + c, scale * sum);
	}
	for (; c < channels; c++) {
		float sum = 0;

		for (size_t k = 0; k < n; k++)
			sum += from[position[k] + c];
		to[c] = scale * sum;
	}
}

static void add_bias(float *restrict to, const float *restrict from, const float *restrict bias,
	size_t n, int relu)
{
	const float min = relu ? 0 : -INFINITY;

	for (size_t i = 0; i < n; i++) {
		const float value = from[i] + bias[i];

		to[i] = value < min ? min : value; /* a NaN is not < min, so it stays a NaN */
	}
}

static void add_scaled(float *restrict to, const float *restrict from, float scale, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] += scale * from[i];
}

/* ---- tanh, sigmoid --------------------------------------------------------------------------- */

/* Returns e^x: Cody and Waite's reduction to |r| <= log(2) / 2, then a polynomial of degree 6, as
 * in Cephes. Keeps NaN. */
INLINE vec exp_of(vec x)
{
	/* 1.5 * 2^23: adding and subtracting this number rounds to a whole number */
	const vec magic = (vec){0} + 12582912;

	x = choose(x > 88, (vec){0} + 88, x);
	x = choose(x < -87, (vec){0} - 87, x);
	const vec shifted = x * 1.44269504f + magic, n = shifted - magic;
	const vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
	vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
	y = y * r + 8.3334519073e-3f;
	y = y * r + 4.1665795894e-2f;
	y = y * r + 1.6666665459e-1f;
	y = y * r + 5.0000001201e-1f;
	y = y * r * r + r + 1;
	return y * (vec)(((ivec)shifted + 127) << 23);
}

INLINE vec sigmoid_vector(vec x)
{
	return 1 / (1 + exp_of(-x));
}

INLINE vec tanh_vector(vec x)
{
	const vec z = x * x, far = 2 * sigmoid_vector(2 * x) - 1;
	vec near = z * -5.70498872745e-3f + 2.06390887954e-2f;

	near = near * z - 5.37397155531e-2f;
	near = near * z + 1.33314422036e-1f;
	near = near * z - 3.33332819422e-1f;
	near = near * z * x + x;
	return choose(z < 0.390625f, near, far);
}

static void tanh_all(float *to, const float *from, size_t n)
{
	for (size_t i = 0; i < n; i += LANES)
		store_some(to + i, tanh_vector(load_some(from + i, n - i)), n - i);
}

static void sigmoid_all(float *to, const float *from, size_t n)
{
	for (size_t i = 0; i < n; i += LANES)
		store_some(to + i, sigmoid_vector(load_some(from + i, n - i)), n - i);
}

static void tanh_back(float *to, const float *d, const float *value, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = d[i] * (1 - value[i] * value[i]);
}

static void sigmoid_back(float *to, const float *d, const float *value, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = d[i] * value[i] * (1 - value[i]);
}

/* ---- lrn ------------------------------------------------------------------------------------- */

/* Sets sum[c] to the sum of from[c - below .. c + above] for n channels. `from` has `below` more
 * values before these channels and `above` more after them. */
INLINE void window_sums(
	float *restrict sum, const float *restrict from, size_t below, size_t above, size_t n)
{
	for (size_t c = 0; c < n; c++)
		sum[c] = from[c];
	for (size_t j = 1; j <= below + above; j++)
		for (size_t c = 0; c < n; c++)
			sum[c] += from[c + j];
}

static void zero_floats(float *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = 0;
}

static void lrn(float *to, float *power, float *slope, const float *from, const struct lrn *l,
	size_t n, float *room)
{
	float *square = room + l->below;

	zero_floats(room, l->below);
	zero_floats(square + n, l->above);
	for (size_t c = 0; c < n; c++)
		square[c] = from[c] * from[c];
	window_sums(slope, room, l->below, l->above, n);
	for (size_t c = 0; c < n; c++)
		slope[c] = l->k + l->alpha * slope[c];
	if (!(l->beta < 0.75f || l->beta > 0.75f))
		for (size_t c = 0; c < n; c++)
			power[c] = 1 / (sqrtf(slope[c]) * sqrtf(sqrtf(slope[c])));
	else
		for (size_t c = 0; c < n; c++)
			power[c] = powf(slope[c], -l->beta);
	for (size_t c = 0; c < n; c++) {
		slope[c] = power[c] / slope[c];
		to[c] = from[c] * power[c];
	}
}

static void lrn_back(float *to, const float *d, const float *power, const float *slope,
	const float *from, const struct lrn *l, size_t n, float *room)
{
	const float scale = 2 * l->alpha * l->beta;
	float *product = room + l->above;

	zero_floats(room, l->above);
	zero_floats(product + n, l->below);
	for (size_t c = 0; c < n; c++)
		product[c] = d[c] * from[c] * slope[c];
	window_sums(to, room, l->above, l->below, n);
	for (size_t c = 0; c < n; c++)
		to[c] = d[c] * power[c] - scale * from[c] * to[c];
}

/* ---- batchnorm ------------------------------------------------------------------------------- */

static void affine(float *restrict to, const float *restrict from, const float *restrict mean,
	const float *restrict a, const float *restrict b, size_t pixels, size_t n)
{
	for (; pixels > 0; pixels--, to += n, from += n)
		for (size_t i = 0; i < n; i++)
			to[i] = a[i] * (from[i] - mean[i]) + b[i];
}

static void affine_2(float *restrict to, const float *restrict d, const float *restrict from,
	const float *restrict mean, const float *restrict a, const float *restrict b,
	const float *restrict c, size_t pixels, size_t n)
{
	for (; pixels > 0; pixels--, to += n, d += n, from += n)
		for (size_t i = 0; i < n; i++)
			to[i] = a[i] * d[i] + b[i] * (from[i] - mean[i]) + c[i];
}

static void add_moments(double *restrict sum, double *restrict product, const float *value,
	const float *other, size_t pixels, size_t n)
{
	for (; pixels > 0; pixels--, value += n, other += n)
		for (size_t i = 0; i < n; i++) {
			sum[i] += (double)value[i];
			product[i] += (double)value[i] * (double)other[i];
		}
}

/* ---- Winograd -------------------------------------------------------------------------------- */

#define POINTS WINOGRAD_POINTS

/* The transforms of six points, 0, 1, -1, 2, -2 and infinity, in one dimension (winograd.h). The
 * arguments `by`, `to_by`, ... are the distances between two values, in vectors. If a tile is
 * `cut`, it has two outputs and four points: 0, 1, -1 and infinity. The weights of these points are
 * the same as in a whole tile. */

INLINE int in_use(size_t point, int cut)
{
	return !cut || (point != 3 && point != 4);
}

INLINE void input_points(vec *to, size_t to_by, const vec *x, size_t by, const int cut)
{
	const vec x0 = x[0], x1 = x[by], x2 = x[2 * by], x3 = x[3 * by];

	if (cut) {
		to[0] = 4 * (x0 - x2);
		to[to_by] = -3 * (x1 + x2);
		to[2 * to_by] = 3 * (x1 - x2);
		to[5 * to_by] = x3 - x1;
		return;
	}
	const vec x4 = x[4 * by];
	const vec even = x4 - 4 * x2, odd = x3 - 4 * x1, even_2 = x4 - x2, odd_2 = 2 * (x3 - x1);

	to[0] = 4 * x0 - 5 * x2 + x4;
	to[to_by] = even + odd;
	to[2 * to_by] = even - odd;
	to[3 * to_by] = even_2 + odd_2;
	to[4 * to_by] = even_2 - odd_2;
	to[5 * to_by] = 4 * x1 - 5 * x3 + x[5 * by];
}

INLINE void input_points_back(vec *x, size_t by, const vec *d, size_t d_by, const int cut)
{
	const vec d0 = d[0], d5 = d[5 * d_by];
	const vec sum = d[d_by] + d[2 * d_by], difference = d[d_by] - d[2 * d_by];

	if (cut) {
		x[0] = 4 * d0;
		x[by] = -3 * difference - d5;
		x[2 * by] = -4 * d0 - 3 * sum;
		x[3 * by] = d5;
		return;
	}
	const vec sum_2 = d[3 * d_by] + d[4 * d_by], difference_2 = d[3 * d_by] - d[4 * d_by];

	x[0] = 4 * d0;
	x[by] = 4 * d5 - 4 * difference - 2 * difference_2;
	x[2 * by] = -5 * d0 - 4 * sum - sum_2;
	x[3 * by] = difference + 2 * difference_2 - 5 * d5;
	x[4 * by] = d0 + sum + sum_2;
	x[5 * by] = d5;
}

INLINE void output_points(
	vec *y, size_t by, const vec *m, size_t m_by, const size_t size, const int cut)
{
	const vec sum = m[m_by] + m[2 * m_by], difference = m[m_by] - m[2 * m_by];

	if (cut) {
		y[0] = m[0] + sum;
		y[by] = difference + m[5 * m_by];
		return;
	}
	const vec sum_2 = m[3 * m_by] + m[4 * m_by], difference_2 = m[3 * m_by] - m[4 * m_by];

	y[0] = m[0] + sum + sum_2;
	if (size == 2) {
		y[by] = difference + 2 * difference_2 + m[5 * m_by];
		return;
	}
	y[by] = difference + 2 * difference_2;
	y[2 * by] = sum + 4 * sum_2;
	y[3 * by] = difference + 8 * difference_2 + m[5 * m_by];
}

INLINE void output_points_back(
	vec *m, size_t m_by, const vec *y, size_t by, const size_t size, const int cut)
{
	const vec y0 = y[0], y1 = y[by];

	m[0] = y0;
	if (cut) {
		m[m_by] = y0 + y1;
		m[2 * m_by] = y0 - y1;
		m[5 * m_by] = y1;
		return;
	}
	const vec y2 = size == 2 ? (vec){0} : y[2 * by], y3 = size == 2 ? (vec){0} : y[3 * by];
	const vec even = y0 + y2, odd = y1 + y3, even_2 = y0 + 4 * y2, odd_2 = 2 * y1 + 8 * y3;

	m[m_by] = even + odd;
	m[2 * m_by] = even - odd;
	m[3 * m_by] = even_2 + odd_2;
	m[4 * m_by] = even_2 - odd_2;
	m[5 * m_by] = size == 2 ? y1 : y3;
}

/* Transforms the weights of a filter in one dimension: POINTS + 1 - size weights become POINTS
 * values. */
INLINE void weight_points(vec *u, size_t u_by, const vec *g, size_t by, const size_t size)
{
	const vec g0 = g[0], g1 = g[by], g2 = g[2 * by];
	const vec g3 = size == 2 ? g[3 * by] : (vec){0}, g4 = size == 2 ? g[4 * by] : (vec){0};
	const vec even = (g0 + g2 + g4) * (-1.0f / 6), odd = (g1 + g3) * (-1.0f / 6);
	const vec even_2 = (g0 + 4 * g2 + 16 * g4) * (1.0f / 24);
	const vec odd_2 = (g1 + 4 * g3) * (1.0f / 12);

	u[0] = g0 * 0.25f;
	u[u_by] = even + odd;
	u[2 * u_by] = even - odd;
	u[3 * u_by] = even_2 + odd_2;
	u[4 * u_by] = even_2 - odd_2;
	u[5 * u_by] = size == 2 ? g4 : g2;
}

INLINE void weight_points_back(vec *g, size_t by, const vec *u, size_t u_by, const size_t size)
{
	const vec sum = (u[u_by] + u[2 * u_by]) * (-1.0f / 6);
	const vec difference = (u[u_by] - u[2 * u_by]) * (-1.0f / 6);
	const vec sum_2 = (u[3 * u_by] + u[4 * u_by]) * (1.0f / 24);
	const vec difference_2 = (u[3 * u_by] - u[4 * u_by]) * (1.0f / 12);

	g[0] = u[0] * 0.25f + sum + sum_2;
	g[by] = difference + difference_2;
	if (size == 4) {
		g[2 * by] = sum + 4 * sum_2 + u[5 * u_by];
		return;
	}
	g[2 * by] = sum + 4 * sum_2;
	g[3 * by] = difference + 4 * difference_2;
	g[4 * by] = sum + 16 * sum_2 + u[5 * u_by];
}

/* Calls a function whose last argument must be a constant. */
#define EACH_CUT(f, cut, ...)                                                                      \
	switch (cut) {                                                                             \
	case 0:                                                                                    \
		f(__VA_ARGS__, 0);                                                                 \
		break;                                                                             \
	case WINOGRAD_NARROW:                                                                      \
		f(__VA_ARGS__, WINOGRAD_NARROW);                                                   \
		break;                                                                             \
	case WINOGRAD_LOW:                                                                         \
		f(__VA_ARGS__, WINOGRAD_LOW);                                                      \
		break;                                                                             \
	default:                                                                                   \
		f(__VA_ARGS__, WINOGRAD_NARROW | WINOGRAD_LOW);                                    \
		break;                                                                             \
	}

INLINE void input_tile(
	float *v, size_t step, const float *x, size_t row, size_t pixel, const unsigned cut)
{
	const int low = (cut & WINOGRAD_LOW) != 0, narrow = (cut & WINOGRAD_NARROW) != 0;
	vec in[POINTS], half[POINTS][POINTS], out[POINTS];

	UNROLL for (size_t j = 0; j < POINTS - 2 * (size_t)narrow; j++)
	{
		UNROLL for (size_t i = 0; i < POINTS - 2 * (size_t)low; i++) in[i] =
			load(x + i * row + j * pixel);
		input_points(&half[0][j], POINTS, in, 1, low);
	}
	UNROLL for (size_t i = 0; i < POINTS; i++) if (in_use(i, low))
	{
		input_points(out, 1, half[i], 1, narrow);
		UNROLL for (size_t j = 0; j < POINTS; j++) if (in_use(j, narrow))
			store(v + (i * POINTS + j) * step, out[j]);
	}
}

INLINE void input_all(float *v, size_t step, const float *x, size_t row, size_t pixel,
	size_t channels, const unsigned cut)
{
	for (size_t c = 0; c < channels; c += LANES)
		input_tile(v + c, step, x + c, row, pixel, cut);
}

static void winograd_input(float *v, size_t step, const float *x, size_t row, size_t pixel,
	size_t channels, unsigned cut){EACH_CUT(input_all, cut, v, step, x, row, pixel, channels)}

INLINE void input_tile_back(
	float *dx, size_t row, size_t pixel, const float *dv, size_t step, const unsigned cut)
{
	const int low = (cut & WINOGRAD_LOW) != 0, narrow = (cut & WINOGRAD_NARROW) != 0;
	vec in[POINTS], half[POINTS][POINTS], out[POINTS];

	UNROLL for (size_t j = 0; j < POINTS; j++) if (in_use(j, narrow))
	{
		UNROLL for (size_t i = 0; i < POINTS; i++) if (in_use(i, low)) in[i] =
			load(dv + (i * POINTS + j) * step);
		input_points_back(&half[0][j], POINTS, in, 1, low);
	}
	UNROLL for (size_t i = 0; i < POINTS - 2 * (size_t)low; i++)
	{
		input_points_back(out, 1, half[i], 1, narrow);
		UNROLL for (size_t j = 0; j < POINTS - 2 * (size_t)narrow; j++)
		{
			float *to = dx + i * row + j * pixel;

			store(to, load(to) + out[j]);
		}
	}
}

/* Adds the last channels of a tile, which do not fill a vector. In `tile`, the channels are padded
 * to whole vectors. */
static void add_channels(
	float *dx, size_t row, size_t pixel, const float *tile, size_t channels, unsigned cut)
{
	const size_t rows = cut & WINOGRAD_LOW ? POINTS - 2 : POINTS;
	const size_t columns = cut & WINOGRAD_NARROW ? POINTS - 2 : POINTS;

	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < columns; j++)
			for (size_t c = 0; c < channels; c++)
				dx[i * row + j * pixel + c] += tile[(i * POINTS + j) * LANES + c];
}

INLINE void input_all_back(float *dx, size_t row, size_t pixel, const float *dv, size_t step,
	size_t channels, const unsigned cut)
{
	float tile[WINOGRAD_TILE * LANES];
	size_t c = 0;

	for (; c + LANES <= channels; c += LANES)
		input_tile_back(dx + c, row, pixel, dv + c, step, cut);
	if (c == channels)
		return;
	zero_floats(tile, WINOGRAD_TILE * LANES);
	input_tile_back(tile, POINTS * LANES, LANES, dv + c, step, cut);
	add_channels(dx + c, row, pixel, tile, channels - c, cut);
}

static void winograd_input_back(float *dx, size_t row, size_t pixel, const float *dv, size_t step,
	size_t channels,
	unsigned cut){EACH_CUT(input_all_back, cut, dx, row, pixel, dv, step, channels)}

INLINE void output_tile(float *y, const uint32_t *order, const size_t size, const float *m,
	size_t step, const unsigned cut)
{
	const int low = (cut & WINOGRAD_LOW) != 0, narrow = (cut & WINOGRAD_NARROW) != 0;
	const size_t rows = low ? 2 : size, columns = narrow ? 2 : size;
	vec in[POINTS], half[4][POINTS], out[4];

	UNROLL for (size_t j = 0; j < POINTS; j++) if (in_use(j, narrow))
	{
		UNROLL for (size_t i = 0; i < POINTS; i++) if (in_use(i, low)) in[i] =
			load(m + (i * POINTS + j) * step);
		output_points(&half[0][j], POINTS, in, 1, size, low);
	}
	UNROLL for (size_t i = 0; i < rows; i++)
	{
		output_points(out, 1, half[i], 1, size, narrow);
		UNROLL for (size_t j = 0; j < columns;
			    j++) if (order[i * size + j] != WINOGRAD_UNUSED)
			store(y + (size_t)order[i * size + j] * 2 * LANES, out[j]);
	}
}

INLINE void output_pair(float *y, const uint32_t *order, const size_t size, const float *m,
	size_t step, const unsigned cut)
{
	for (size_t v = 0; v < 2 * LANES; v += LANES)
		output_tile(y + v, order, size, m + v, step, cut);
}

static void winograd_output(
	float *y, const uint32_t *order, size_t size, const float *m, size_t step, unsigned cut)
{
	if (size == 2)
		output_pair(y, order, 2, m, step, 0);
	else
		EACH_CUT(output_pair, cut, y, order, 4, m, step)
}

INLINE void output_tile_back(float *dm, size_t step, const float *dy, const uint32_t *order,
	const size_t size, const unsigned cut)
{
	const int low = (cut & WINOGRAD_LOW) != 0, narrow = (cut & WINOGRAD_NARROW) != 0;
	const size_t rows = low ? 2 : size, columns = narrow ? 2 : size;
	vec in[4], half[POINTS][4], out[POINTS];

	UNROLL for (size_t j = 0; j < columns; j++)
	{
		UNROLL for (size_t i = 0; i < rows; i++)
		{
			const size_t at = order[i * size + j];

			in[i] = at == WINOGRAD_UNUSED ? (vec){0} : load(dy + at * 2 * LANES);
		}
		output_points_back(&half[0][j], 4, in, 1, size, low);
	}
	UNROLL for (size_t i = 0; i < POINTS; i++) if (in_use(i, low))
	{
		output_points_back(out, 1, half[i], 1, size, narrow);
		UNROLL for (size_t j = 0; j < POINTS; j++) if (in_use(j, narrow))
			store(dm + (i * POINTS + j) * step, out[j]);
	}
}

INLINE void output_pair_back(float *dm, size_t step, const float *dy, const uint32_t *order,
	const size_t size, const unsigned cut)
{
	for (size_t v = 0; v < 2 * LANES; v += LANES)
		output_tile_back(dm + v, step, dy + v, order, size, cut);
}

static void winograd_output_back(
	float *dm, size_t step, const float *dy, const uint32_t *order, size_t size, unsigned cut)
{
	if (size == 2)
		output_pair_back(dm, step, dy, order, 2, 0);
	else
		EACH_CUT(output_pair_back, cut, dm, step, dy, order, 4)
}

INLINE void weights_tile(float *u, size_t step, const float *g, const size_t size)
{
	const size_t n = POINTS + 1 - size;
	vec in[5], half[POINTS][5], out[POINTS];

	UNROLL for (size_t j = 0; j < n; j++)
	{
		UNROLL for (size_t i = 0; i < n; i++) in[i] = load(g + (i * n + j) * 2 * LANES);
		weight_points(&half[0][j], 5, in, 1, size);
	}
	UNROLL for (size_t i = 0; i < POINTS; i++)
	{
		weight_points(out, 1, half[i], 1, size);
		UNROLL for (size_t j = 0; j < POINTS; j++)
			store(u + (i * POINTS + j) * step, out[j]);
	}
}

static void winograd_weights(float *u, size_t step, const float *g, size_t size)
{
	for (size_t v = 0; v < 2 * LANES; v += LANES)
		if (size == 4)
			weights_tile(u + v, step, g + v, 4);
		else
			weights_tile(u + v, step, g + v, 2);
}

INLINE void weights_tile_back(float *dg, const float *du, size_t step, const size_t size)
{
	const size_t n = POINTS + 1 - size;
	vec in[POINTS], half[5][POINTS], out[5];

	UNROLL for (size_t j = 0; j < POINTS; j++)
	{
		UNROLL for (size_t i = 0; i < POINTS; i++) in[i] =
			load(du + (i * POINTS + j) * step);
		weight_points_back(&half[0][j], POINTS, in, 1, size);
	}
	UNROLL for (size_t i = 0; i < n; i++)
	{
		weight_points_back(out, 1, half[i], 1, size);
		UNROLL for (size_t j = 0; j < n; j++) store(dg + (i * n + j) * 2 * LANES, out[j]);
	}
}

static void winograd_weights_back(float *dg, const float *du, size_t step, size_t size)
{
	for (size_t v = 0; v < 2 * LANES; v += LANES)
		if (size == 4)
			weights_tile_back(dg + v, du + v, step, 4);
		else
			weights_tile_back(dg + v, du + v, step, 2);
}

const struct simd PASTE(simd_, SIMD_NAME) = {
	.name = TEXT(SIMD_NAME),
	.lanes = LANES,
	.positions = POSITIONS,
	.taps = TAPS,
	.rows = MAX_ROWS,
	.gemm = gemm,
	.pool = pool,
	.unpool = unpool,
	.filter_dense = filter_dense,
	.filter_sparse = filter_sparse,
	.data_sparse = data_sparse,
	.transpose = transpose,
	.load = load_pixels,
	.relu_back = relu_back,
	.max_values = max_values,
	.sum_values = sum_values,
	.add_bias = add_bias,
	.add_scaled = add_scaled,
	.tanh = tanh_all,
	.sigmoid = sigmoid_all,
	.tanh_back = tanh_back,
	.sigmoid_back = sigmoid_back,
	.lrn = lrn,
	.lrn_back = lrn_back,
	.affine = affine,
	.affine_2 = affine_2,
	.add_moments = add_moments,
	.product = product,
	.product_back = product_back,
	.outer = outer,
	.winograd_input = winograd_input,
	.winograd_input_back = winograd_input_back,
	.winograd_output = winograd_output,
	.winograd_output_back = winograd_output_back,
	.winograd_weights = winograd_weights,
	.winograd_weights_back = winograd_weights_back,
};
