/*
 * simd.h - the inner loops of the cpu device. simd.c is compiled once per instruction set;
 * each result is one table of functions.
 *
 * Words: a *position* is one output pixel (p, q) of a weighted layer before pooling; its *source* points to
 * the patch of the input that it sees; value k of a patch lies *tap[k]* floats further. The weights
 * of up to 2 * lanes neighbouring filters are a *panel*: [k][width], width = lanes or 2 * lanes.
 * A patch is also `rows` rows, `row` floats apart, of `run` floats each without a gap.
 *
 * Nothing here allocates. Sums run in an order that depends on the arguments only.
 * Thread: any; no state.
 */
#ifndef KERNELS_CPU_SIMD_H
#define KERNELS_CPU_SIMD_H
#include <stddef.h>
#include <stdint.h>

#define SIMD_MAX_LANES     16
#define SIMD_MAX_POSITIONS 65536 /* in one window */

/* Consecutive pooling windows, maybe of several images, and their positions one after the other. Slices
 * of tables that a thread keeps for a whole block of images. */
struct chunk {
	size_t n_windows, n_positions, max_positions; /* max_positions: in one window */
	const float *const
		*source;       /* of each position; readable up to a multiple of simd.positions */
	const uint32_t *first; /* of each window: its first position, counted from first[0];
				       n_windows + 1 */
	float *const *out;     /* of each window: its values, or their errors; filter 0 */
	uint16_t
		*argmax; /* [window][filter]: which of its window's positions won; NULL: one each */
	size_t filters;
};

/* Filters [filter, filter + count) of a panel `width` wide; count <= width. */
struct columns {
	size_t filter, count, width;
};

/* The error `d` of one winning position whose patch starts `at` floats into an image. */
struct entry {
	uint32_t at;
	float d;
};

struct patch {
	size_t rows, row, run;
	size_t run_pad; /* run rounded up to whole vectors; how weights and gradients are stored */
};

struct simd {
	const char *name;
	size_t lanes;     /* floats in a vector */
	size_t positions; /* gemm works on multiples of this */
	size_t taps;      /* filter_dense works on multiples of this */

	/* out[i * stride + j] = sum over k of source[i][tap[k]] * panel[k * width + j]; overwrites.
	 * i runs to n rounded up to whole `positions`. */
	void (*gemm)(float *out, size_t stride, const float *const *source, size_t n,
		const uint32_t *tap, size_t n_taps, const float *panel, size_t width);
	/* Per window: the first maximum of its positions' scores ([position][width]) to argmax; that plus
	 * bias, through ReLU if `relu`, to out. */
	void (*pool)(const struct chunk *c, struct columns w, const float *score, const float *bias,
		int relu);
	/* The reverse: d[position][width] = the error of the position's window where the position won, else 0.
	 * bias += the errors. */
	void (*unpool)(float *d, float *bias, const struct chunk *c, struct columns w);
	/* grad[k * width + j] += sum over the n positions i of source[i][tap[k]] * d[i * width + j];
	 * n_taps is a multiple of `taps`. */
	void (*filter_dense)(float *grad, const float *d, const float *const *source, size_t n,
		const uint32_t *tap, size_t n_taps, size_t width);
	/* grad (rows x run_pad) += sum of entry.d * the patch at entry.at of in; n is a multiple of
	 * SIMD_ENTRIES. */
	void (*filter_sparse)(float *grad, const float *in, const struct entry *e, size_t n,
		const struct patch *p);
	/* The patch at entry.at of d_in += entry.d * weight (rows x run_pad), for every entry.
	 * Adds zeros to up to run_pad - run floats behind each row. */
	void (*data_sparse)(float *d_in, const float *weight, const struct entry *e, size_t n,
		const struct patch *p);
	/* to[i * step] = pixel[i] / 255 */
	void (*load)(float *to, size_t step, const uint8_t *pixel, size_t n);
	/* d[i] = value[i] > 0 ? d[i] : 0 */
	void (*relu_back)(float *d, const float *value, size_t n);
};

#define SIMD_ENTRIES 4

extern const struct simd simd_baseline, simd_avx2, simd_avx512;

#endif
