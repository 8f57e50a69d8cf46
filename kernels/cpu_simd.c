/*
 * cpu_simd.c - the inner loops of the cpu device, written with the compilers' vector types and
 * compiled once per instruction set (kernels.mk): SIMD_NAME is avx2, avx512 or baseline.
 */
#include "kernels/cpu_simd.h"

#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define TEXT2(a)     #a
#define TEXT(a)      TEXT2(a)

/* Register tiles. Two vectors of filters by CELLS cells (or TAPS taps) of sums, and room for two
 * vectors of weights and one broadcast: 32 registers with AVX-512, else 16. */
#if defined(__AVX512F__)
#define LANES 16
#define CELLS 8
#define TAPS  9
#elif defined(__AVX2__)
#define LANES 8
#define CELLS 6
#define TAPS  5
#else
#define LANES 4
#define CELLS 6
#define TAPS  5
#endif

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef float vec_any __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ivec_any __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

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
	vec sum[CELLS][2];
	const float *x[CELLS];
	UNROLL for (size_t i = 0; i < CELLS; i++)
	{
		x[i] = source[i];
		sum[i][0] = sum[i][1] = (vec){0};
	}
	for (size_t k = 0; k < n_taps; k++, panel += vecs * LANES) {
		size_t at = tap[k];
		vec w0 = load(panel), w1 = load(panel + (vecs - 1) * LANES);
		UNROLL for (size_t i = 0; i < CELLS; i++)
		{
			sum[i][0] += x[i][at] * w0;
			if (vecs > 1)
				sum[i][1] += x[i][at] * w1;
		}
	}
	UNROLL for (size_t i = 0; i < CELLS; i++)
	{
		store(out + i * stride, sum[i][0]);
		if (vecs > 1)
			store(out + i * stride + LANES, sum[i][1]);
	}
}

static void gemm(float *out, size_t stride, const float *const *source, size_t n,
	const uint32_t *tap, size_t n_taps, const float *panel, size_t width)
{
	for (size_t i = 0; i < n; i += CELLS, out += CELLS * stride)
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

/* The first `count` lanes only, when that is not all of them. */
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

INLINE void store_winners(uint32_t *p, ivec v, size_t count)
{
	if (count >= LANES)
		*(ivec_any *)p = v;
	else
		for (size_t j = 0; j < count; j++)
			p[j] = (uint32_t)v[j];
}

INLINE ivec load_winners(const uint32_t *p, size_t count)
{
	ivec v = {0};
	if (count >= LANES)
		return *(const ivec_any *)p;
	for (size_t j = 0; j < count; j++)
		v[j] = (int32_t)p[j];
	return v;
}

INLINE size_t left_of(size_t count, size_t column)
{
	return count > column ? count - column : 0;
}

static void pool(
	const struct chunk *c, struct columns w, const float *score, const float *bias, int relu)
{
	for (size_t i = 0; i < c->n_windows; i++) {
		const size_t n = c->first[i + 1] - c->first[i];
		for (size_t j = 0; j < w.count; j += LANES) {
			const float *s = score + j;
			vec best = load(s);
			ivec winner = {0};
			for (size_t cell = 1; cell < n; cell++) {
				vec other = load(s + cell * w.width);
				ivec better = other > best;
				best = choose(better, other, best);
				winner = ((int32_t)cell & better) | (winner & ~better);
			}
			best += load(bias + w.filter + j);
			if (relu)
				best = choose(best < 0, (vec){0}, best);
			store_some(c->out[i] + w.filter + j, best, w.count - j);
			if (c->winner)
				store_winners(c->winner + i * c->filters + w.filter + j, winner,
					w.count - j);
		}
		score += n * w.width;
	}
}

static void unpool(float *d, float *bias, const struct chunk *c, struct columns w)
{
	for (size_t i = 0; i < c->n_windows; i++) {
		const size_t n = c->first[i + 1] - c->first[i];
		for (size_t j = 0; j < w.width; j += LANES) {
			float *to = d + j;
			size_t left = left_of(w.count, j);
			vec error = load_some(c->out[i] + w.filter + j, left);
			store(bias + w.filter + j, load(bias + w.filter + j) + error);
			if (!c->winner) {
				store(to, error);
				continue;
			}
			ivec winner = load_winners(c->winner + i * c->filters + w.filter + j, left);
			for (size_t cell = 0; cell < n; cell++) {
				ivec won = winner == (int32_t)cell;
				store(to + cell * w.width, (vec)((ivec)error & won));
			}
		}
		d += n * w.width;
	}
}

static void relu_back(float *d, const float *value, size_t n)
{
	for (size_t i = 0; i < n; i++)
		d[i] = value[i] > 0 ? d[i] : 0;
}

/* ---- sparse ---------------------------------------------------------------------------------- */

static void filter_sparse(
	float *grad, const float *in, const struct entry *e, size_t n, const struct patch *p)
{
	for (size_t i = 0; i < n; i += SIMD_ENTRIES, e += SIMD_ENTRIES) {
		const float d0 = e[0].d, d1 = e[1].d, d2 = e[2].d, d3 = e[3].d;
		for (size_t row = 0; row < p->rows; row++) {
			const float *x = in + row * p->row;
			const float *x0 = x + e[0].at, *x1 = x + e[1].at;
			const float *x2 = x + e[2].at, *x3 = x + e[3].at;
			float *g = grad + row * p->run_pad;
			for (size_t r = 0; r < p->run_pad; r += LANES)
				store(g + r, load(g + r) + (d0 * load(x0 + r) + d1 * load(x1 + r)) +
						     (d2 * load(x2 + r) + d3 * load(x3 + r)));
		}
	}
}

static void data_sparse(
	float *d_in, const float *weight, const struct entry *e, size_t n, const struct patch *p)
{
	for (size_t i = 0; i < n; i++)
		for (size_t row = 0; row < p->rows; row++) {
			float *to = d_in + e[i].at + row * p->row;
			const float *w = weight + row * p->run_pad;
			for (size_t r = 0; r < p->run_pad; r += LANES)
				store(to + r, load(to + r) + e[i].d * load(w + r));
		}
}

const struct simd PASTE(simd_, SIMD_NAME) = {
	.name = TEXT(SIMD_NAME),
	.lanes = LANES,
	.cells = CELLS,
	.taps = TAPS,
	.gemm = gemm,
	.pool = pool,
	.unpool = unpool,
	.filter_dense = filter_dense,
	.filter_sparse = filter_sparse,
	.data_sparse = data_sparse,
	.relu_back = relu_back,
};
