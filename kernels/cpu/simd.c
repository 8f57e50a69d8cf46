/*
 * simd.c - the inner loops of the cpu device, in vector types of GCC and Clang. kernels.mk compiles
 * this file once per instruction set. SIMD_NAME is avx2, avx512 or baseline.
 */
#include "kernels/cpu/simd.h"

#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define TEXT2(a)     #a
#define TEXT(a)      TEXT2(a)

/* A register tile has 2 x POSITIONS sums (gemm) or 2 x TAPS sums (filter_dense). Two vectors of
 * filters and one broadcast value need registers too. AVX-512 has 32 registers, the other
 * instruction sets 16. */
#if defined(__AVX512F__)
#define LANES     16
#define POSITIONS 8
#define TAPS      9
#elif defined(__AVX2__)
#define LANES     8
#define POSITIONS 6
#define TAPS      5
#else
#define LANES     4
#define POSITIONS 6
#define TAPS      5
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

INLINE void gemm_tile(float *out, size_t stride, const float *const *source, const uint32_t *tap,
	size_t n_taps, const float *panel, const size_t vecs)
{
	vec sum[POSITIONS][2];
	const float *x[POSITIONS];

	UNROLL for (size_t i = 0; i < POSITIONS; i++)
	{
		x[i] = source[i];
		sum[i][0] = sum[i][1] = (vec){0};
	}
	UNROLL_2 for (size_t k = 0; k < n_taps; k++, panel += vecs * LANES)
	{
		size_t at = tap[k];
		vec w0 = load(panel), w1 = load(panel + (vecs - 1) * LANES);

		UNROLL for (size_t i = 0; i < POSITIONS; i++)
		{
			sum[i][0] += x[i][at] * w0;
			if (vecs > 1)
				sum[i][1] += x[i][at] * w1;
		}
	}
	UNROLL for (size_t i = 0; i < POSITIONS; i++)
	{
		store(out + i * stride, sum[i][0]);
		if (vecs > 1)
			store(out + i * stride + LANES, sum[i][1]);
	}
}

static void gemm(float *out, size_t stride, const float *const *source, size_t n,
	const uint32_t *tap, size_t n_taps, const float *panel, size_t width)
{
	for (size_t i = 0; i < n; i += POSITIONS, out += POSITIONS * stride)
		if (width > LANES)
			gemm_tile(out, stride, source + i, tap, n_taps, panel, 2);
		else
			gemm_tile(out, stride, source + i, tap, n_taps, panel, 1);
}

INLINE void filter_tile(float *grad, const float *d, const float *const *source, size_t n,
	const uint32_t *tap, const size_t vecs)
{
	vec sum[TAPS][2];
	size_t at[TAPS];

	UNROLL for (size_t k = 0; k < TAPS; k++)
	{
		at[k] = tap[k];
		sum[k][0] = sum[k][1] = (vec){0};
	}
	for (size_t i = 0; i < n; i++, d += vecs * LANES) {
		const float *x = source[i];
		vec d0 = load(d), d1 = load(d + (vecs - 1) * LANES);

		UNROLL for (size_t k = 0; k < TAPS; k++)
		{
			sum[k][0] += x[at[k]] * d0;
			if (vecs > 1)
				sum[k][1] += x[at[k]] * d1;
		}
	}
	UNROLL for (size_t k = 0; k < TAPS; k++) UNROLL for (size_t v = 0; v < vecs; v++)
	{
		float *g = grad + (k * vecs + v) * LANES;

		store(g, load(g) + sum[k][v]);
	}
}

static void filter_dense(float *grad, const float *d, const float *const *source, size_t n,
	const uint32_t *tap, size_t n_taps, size_t width)
{
	for (size_t k = 0; k < n_taps; k += TAPS, grad += TAPS * width)
		if (width > LANES)
			filter_tile(grad, d, source, n, tap + k, 2);
		else
			filter_tile(grad, d, source, n, tap + k, 1);
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

/* Pools one window for one vector of filters. The window has n positions, whose scores start at
 * `score`. Only the first `count` filters are stored. */
INLINE void pool_vector(const float *score, size_t width, size_t n, vec bias, int relu, float *out,
	uint16_t *argmax, size_t count)
{
	vec best = load(score);
	ivec won = {0};

	UNROLL for (size_t position = 1; position < n; position++)
	{
		vec other = load(score + position * width);
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

/* The common case, pool:2: all windows have 4 positions, and all vectors are full. */
INLINE void pool_4(
	const struct chunk *c, struct columns w, const float *score, const float *bias, int relu)
{
	uint16_t *argmax = c->argmax + w.filter;

	for (size_t i = 0; i < c->n_windows; i++, score += 4 * w.width, argmax += c->filters)
		for (size_t j = 0; j < w.width; j += LANES)
			pool_vector(score + j, w.width, 4, load(bias + j), relu,
				c->out[i] + w.filter + j, argmax + j, LANES);
}

INLINE int all_full(const struct chunk *c, struct columns w, size_t positions)
{
	return c->max_positions == positions && c->n_positions == positions * c->n_windows &&
	       w.count == w.width;
}

static void pool(
	const struct chunk *c, struct columns w, const float *score, const float *bias, int relu)
{
	bias += w.filter;
	if (all_full(c, w, 4)) {
		if (relu)
			pool_4(c, w, score, bias, 1);
		else
			pool_4(c, w, score, bias, 0);
		return;
	}
	for (size_t i = 0; i < c->n_windows; i++) {
		const size_t n = c->first[i + 1] - c->first[i];
		uint16_t *argmax = c->argmax ? c->argmax + i * c->filters + w.filter : NULL;

		for (size_t j = 0; j < w.count; j += LANES)
			pool_vector(score + j, w.width, n, load(bias + j), relu,
				c->out[i] + w.filter + j, argmax ? argmax + j : NULL, w.count - j);
		score += n * w.width;
	}
}

/* The reverse of pool_vector. Returns the errors of the window. */
INLINE vec unpool_vector(
	float *d, size_t width, size_t n, const float *out, const uint16_t *argmax, size_t count)
{
	vec error = load_some(out, count);

	if (!argmax) {
		store(d, error);
		return error;
	}
	ivec won = load_argmax(argmax, count);
	UNROLL for (size_t position = 0; position < n; position++)
		store(d + position * width, (vec)((ivec)error & (won == (int32_t)position)));
	return error;
}

INLINE void unpool_4(float *d, float *bias, const struct chunk *c, struct columns w)
{
	const uint16_t *argmax = c->argmax + w.filter;

	for (size_t j = 0; j < w.width; j += LANES) {
		vec sum = {0};

		for (size_t i = 0; i < c->n_windows; i++)
			sum += unpool_vector(d + 4 * i * w.width + j, w.width, 4,
				c->out[i] + w.filter + j, argmax + i * c->filters + j, LANES);
		store(bias + j, load(bias + j) + sum);
	}
}

static void unpool(float *d, float *bias, const struct chunk *c, struct columns w)
{
	bias += w.filter;
	if (all_full(c, w, 4)) {
		unpool_4(d, bias, c, w);
		return;
	}
	for (size_t i = 0; i < c->n_windows; i++) {
		const size_t n = c->first[i + 1] - c->first[i];
		const uint16_t *argmax = c->argmax ? c->argmax + i * c->filters + w.filter : NULL;

		for (size_t j = 0; j < w.count; j += LANES) {
			vec error = unpool_vector(d + j, w.width, n, c->out[i] + w.filter + j,
				argmax ? argmax + j : NULL, w.count - j);

			store(bias + j, load(bias + j) + error);
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

/* The pointers and errors are copied to local variables: the compiler must assume that a vector
 * store changes any memory. */

INLINE void add_rows_4(
	float *g, const float *const x[SIMD_ENTRIES], const float d[SIMD_ENTRIES], size_t n)
{
	const float *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
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

		for (size_t row = 0; row < p.rows; row++) {
			add_rows_4(grad + row * p.run_pad, x, d, p.run_pad);
			for (size_t k = 0; k < SIMD_ENTRIES; k++)
				x[k] += p.row;
		}
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

		for (size_t row = 0; row < p.rows; row++, to += p.row, w += p.run_pad)
			for (size_t r = 0; r < p.run_pad; r += LANES)
				store(to + r, load(to + r) + d * load(w + r));
	}
}

const struct simd PASTE(simd_, SIMD_NAME) = {
	.name = TEXT(SIMD_NAME),
	.lanes = LANES,
	.positions = POSITIONS,
	.taps = TAPS,
	.gemm = gemm,
	.pool = pool,
	.unpool = unpool,
	.filter_dense = filter_dense,
	.filter_sparse = filter_sparse,
	.data_sparse = data_sparse,
	.load = load_pixels,
	.relu_back = relu_back,
};
