/*
 * simd.h - the inner loops of the cpu device. simd.c is compiled once for each instruction set;
 * each object file exports one struct simd.
 *
 *   position  an output pixel (p, q) of a weighted layer before pooling
 *   source    pointer to the patch of the input that a position reads
 *   tap       value k of a patch lies tap[k] floats after its source
 *   panel     the weights of up to 2 * lanes neighbouring filters: [k][width], where width is
 *             lanes or 2 * lanes
 *   patch     `rows` rows of `run` contiguous floats
 *
 * Nothing here allocates memory. The order of every sum depends only on the arguments.
 *
 * Thread: any; the functions have no state.
 */
#ifndef KERNELS_CPU_SIMD_H
#define KERNELS_CPU_SIMD_H
#include <stddef.h>
#include <stdint.h>

#define SIMD_MAX_LANES     16
#define SIMD_MAX_POSITIONS 65536 /* maximum number of positions in one window */

#define WINOGRAD_POINTS     6 /* number of rows, and of columns, of a transformed tile */
#define WINOGRAD_TILE       (WINOGRAD_POINTS * WINOGRAD_POINTS)
#define WINOGRAD_MAX_PIXELS 25 /* maximum number of pixels of a filter */
/* number of an output that is outside the image or in no window */
#define WINOGRAD_UNUSED UINT32_MAX
/* A tile of 4 x 4 outputs is narrow if only its first two columns lie in the image, and low if only
 * its first two rows do. In the direction in which a tile is narrow or low, the tile needs no
 * values for the points 2 and -2. */
#define WINOGRAD_NARROW 1u
#define WINOGRAD_LOW    2u

/* Consecutive pool windows of one or more images, and their consecutive positions. The pointers
 * refer to the tables of a lane. */
struct chunk {
	/* max_positions: maximum number of positions in one window */
	size_t n_windows, n_positions, max_positions;
	/* for each position: pointer to its patch; the array is readable up to the next multiple of
	 * simd.positions */
	const float *const *source;
	/* first position of each window, counted from first[0]; n_windows + 1 entries */
	const uint32_t *first;
	float *const *out; /* for each window: its values or their gradients, from filter 0 on */
	/* [window][filter]: the position in the window that has the maximum. NULL if each window
	 * has one position. */
	uint16_t *argmax;
	size_t filters;
};

/* Filters [filter, filter + count) of group `group` form a panel of width `width`. count <= width.
 * All panels before this one together have `at` columns. */
struct columns {
	size_t filter, count, width, group, at;
};

/* The gradient `d` of an argmax. The patch of the argmax starts `at` floats after the start of the
 * image. */
struct entry {
	uint32_t at;
	float d;
};

struct patch {
	size_t rows, run;
	size_t run_pad;     /* run rounded up to whole vectors, in packed weights and gradients */
	const uint32_t *at; /* offset of each row in the patch */
};

/* Local response normalisation: channel c is divided by a function of channels c - below to
 * c + above. */
struct lrn {
	size_t below, above;
	float alpha, beta, k;
};

static inline size_t lrn_room(const struct lrn *l, size_t channels)
{
	return channels + l->below + l->above;
}

struct simd {
	const char *name;
	size_t lanes;     /* number of floats in a vector */
	size_t positions; /* gemm may round n up to a multiple of this */
	size_t taps;      /* filter_dense may round n_taps up to a multiple of this */
	size_t rows;      /* the largest `rows` that the function `outer` accepts */

	/* out[i * stride + j] = sum over k of source[i][tap[k]] * panel[k * width + j]. More than n
	 * rows i may be computed and overwritten, up to the next multiple of `positions`. */
	void (*gemm)(float *out, size_t stride, const float *const *source, size_t n,
		const uint32_t *tap, size_t n_taps, const float *panel, size_t width);
	/* For each window: argmax = the position with the first maximum among the values
	 * ([position][width]); out = maximum + bias, through ReLU if `relu`. */
	void (*pool)(const struct chunk *c, struct columns w, const float *value, const float *bias,
		int relu);
	/* The reverse of pool: d[position][width] = gradient of the window if the position is its
	 * argmax, else zero. bias += gradients of all windows. */
	void (*unpool)(float *d, float *bias, const struct chunk *c, struct columns w);
	/* grad[k * width + j] += sum over the n positions i of source[i][tap[k]] * d[i*width+j].
	 * More than n_taps rows k may change, up to the next multiple of `taps`. */
	void (*filter_dense)(float *grad, const float *d, const float *const *source, size_t n,
		const uint32_t *tap, size_t n_taps, size_t width);
	/* grad (rows x run_pad) += sum over the n entries of entry.d * the patch at entry.at of
	 * `in`. n is a multiple of SIMD_ENTRIES. */
	void (*filter_sparse)(float *grad, const float *in, const struct entry *e, size_t n,
		const struct patch *p);
	/* For each entry: the patch at entry.at of d_in += entry.d * weight (rows x run_pad). Adds
	 * zeros to up to run_pad - run floats after each row. */
	void (*data_sparse)(float *d_in, const float *weight, const struct entry *e, size_t n,
		const struct patch *p);
	/* to[j * to_row + i] = scale * from[i * from_row + j] for i < rows and j < cols */
	void (*transpose)(float *to, size_t to_row, const float *from, size_t from_row, size_t rows,
		size_t cols, float scale);
	/* to[i * step] = pixel[i] / 255 */
	void (*load)(float *to, size_t step, const uint8_t *pixel, size_t n);
	/* d[i] = value[i] > 0 ? d[i] : 0 */
	void (*relu_back)(float *d, const float *value, size_t n);
	/* For each of `channels` neighbouring floats: to = the first maximum among the n values at
	 * from[position[k]], argmax = its k. argmax may be NULL. */
	void (*max_values)(float *to, uint16_t *argmax, const float *from, const uint32_t *position,
		size_t n, size_t channels);
	/* Like max_values, but computes to = scale * the sum of the n values. */
	void (*sum_values)(float *to, const float *from, const uint32_t *position, size_t n,
		size_t channels, float scale);
	/* to[i] = from[i] + bias[i], through ReLU if `relu` */
	void (*add_bias)(float *to, const float *from, const float *bias, size_t n, int relu);
	/* to[i] += scale * from[i] */
	void (*add_scaled)(float *to, const float *from, float scale, size_t n);
	/* to[i] = tanh(from[i]) and 1 / (1 + exp(-from[i])), with an error of about 1e-7 */
	void (*tanh)(float *to, const float *from, size_t n);
	void (*sigmoid)(float *to, const float *from, size_t n);
	/* to[i] = d[i] * (1 - value[i]^2) and d[i] * value[i] * (1 - value[i]) */
	void (*tanh_back)(float *to, const float *d, const float *value, size_t n);
	void (*sigmoid_back)(float *to, const float *d, const float *value, size_t n);
	/* Local response normalisation of one pixel. power = base^-beta and slope = power / base,
	 * with the base k + alpha * sum of model.h. `room` is scratch memory of lrn_room(l, n)
	 * floats. */
	void (*lrn)(float *to, float *power, float *slope, const float *from, const struct lrn *l,
		size_t n, float *room);
	void (*lrn_back)(float *to, const float *d, const float *power, const float *slope,
		const float *from, const struct lrn *l, size_t n, float *room);
	/* For each of `pixels` pixels of n channels: affine: to = a * (from - mean) + b. affine_2:
	 * to = a * d + b * (from - mean) + c. mean, a, b and c have n entries. */
	void (*affine)(float *to, const float *from, const float *mean, const float *a,
		const float *b, size_t pixels, size_t n);
	void (*affine_2)(float *to, const float *d, const float *from, const float *mean,
		const float *a, const float *b, const float *c, size_t pixels, size_t n);
	/* For each pixel: sum += value, and product += value * other. `sum` and `product` have n
	 * entries each. */
	void (*add_moments)(double *sum, double *product, const float *value, const float *other,
		size_t pixels, size_t n);

	/*
	 * Winograd's transforms (winograd.h). In a transformed tile, value (i, j) is
	 * (WINOGRAD_POINTS * i + j) * step floats behind the first value. `size` is the size of the
	 * output tile, 2 or 4. winograd_input and winograd_input_back work on `channels` channels,
	 * and the other functions on 2 * lanes neighbouring filters (or channels). `cut` is a sum
	 * of WINOGRAD_NARROW and WINOGRAD_LOW, or 0: what the tile does not need is neither read
	 * nor written.
	 */
	/* out[i * out_row + j] = sum over k < depth of x[i * x_row + k] * panel[k * 2 * lanes + j],
	 * for n rows i and 2 * lanes columns j. More than n rows may be computed and overwritten,
	 * up to n + `positions` - 1. */
	void (*product)(float *out, size_t out_row, const float *x, size_t x_row, size_t n,
		size_t depth, const float *panel);
	/* grad[k * 2 * lanes + j] += sum over the n rows i of x[i * x_row + k] * d[i * d_row + j],
	 * for `depth` rows k. More than `depth` rows may change, up to the next multiple of
	 * `taps`. */
	void (*product_back)(float *grad, const float *d, size_t d_row, const float *x,
		size_t x_row, size_t n, size_t depth);
	/* grad[k * grad_row + j] = scale * the sum over the n rows i of d[i * d_row + k] * x[i *
	 * x_row + j], for k < rows and j < columns, but at most 2 * lanes columns. If `add`, adds
	 * the values to grad instead. `rows` is at most simd.rows. Each row of x has at least 2 *
	 * lanes readable floats. */
	void (*outer)(float *grad, size_t grad_row, const float *d, size_t d_row, size_t rows,
		const float *x, size_t x_row, size_t columns, size_t n, float scale, int add);
	/* v = the transformed tile of the input at x, whose rows and pixels are `row` and `pixel`
	 * floats apart, for each channel and as many more as fill a vector */
	void (*winograd_input)(float *v, size_t step, const float *x, size_t row, size_t pixel,
		size_t channels, unsigned cut);
	/* The transpose of winograd_input: adds the back-transformed tile dv to the gradients at
	 * dx. */
	void (*winograd_input_back)(float *dx, size_t row, size_t pixel, const float *dv,
		size_t step, size_t channels, unsigned cut);
	/* Transforms the products m to an output tile. Value number i of this tile becomes
	 * y[order[i] * 2 * lanes], unless order[i] is WINOGRAD_UNUSED. */
	void (*winograd_output)(float *y, const uint32_t *order, size_t size, const float *m,
		size_t step, unsigned cut);
	/* The transpose of winograd_output. Output values that are WINOGRAD_UNUSED have a gradient
	 * of zero. */
	void (*winograd_output_back)(float *dm, size_t step, const float *dy, const uint32_t *order,
		size_t size, unsigned cut);
	/* u = the transformed weights g, which are [pixel][2 * lanes] */
	void (*winograd_weights)(float *u, size_t step, const float *g, size_t size);
	/* The transpose of winograd_weights: dg = the back-transformed du. */
	void (*winograd_weights_back)(float *dg, const float *du, size_t step, size_t size);
};

#define SIMD_ENTRIES 4

extern const struct simd simd_baseline, simd_avx2, simd_avx512;

#endif
