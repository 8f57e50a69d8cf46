/*
 * kernels.h - the CUDA kernels' C surface: what cuda_*.c may launch.
 *
 * Values between layers are *planes*: per image rows x columns x channels, channels padded with
 * zeros to a multiple of four, so that every access is 16 bytes wide; the zeros around a
 * convolution's input are part of the plane. An fc layer is a convolution whose window covers its
 * whole input.
 *
 * A launcher checks nothing but the launch, never synchronises and never allocates: PS_OK or
 * PS_EDEVICE. Every sum runs in an order that depends on the sizes only: equal arguments, equal
 * bytes. Pointers are device memory unless said otherwise.
 */
#ifndef KERNELS_CUDA_BASE_KERNELS_H
#define KERNELS_CUDA_BASE_KERNELS_H
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KX_QUAD     4 /* channels come in multiples of this */
#define KX_ROW_TILE 128
#define KX_K_TILE   32

/* What changes from step to step, in device memory, so that a graph can be launched again. */
struct kx_now {
	uint64_t dropout_seed; /* of step 0; step j has dropout_seed + j */
	uint32_t step;         /* counts up in local training */
	uint32_t first;        /* forward only: number of the first image */
	float rate;            /* local training */
};

/* Which images: index[step * batch + n], or first + n where index is NULL. */
struct kx_batch {
	const uint8_t *pixels, *labels; /* the data set, channels x rows x columns */
	const uint32_t *index;
	const struct kx_now *now;
	int images;
	int training; /* dropout drops */
};

/* Per image; offsets and pitches in floats. */
struct kx_plane {
	float *value;
	int h, w, c; /* c: channels in memory */
	int row;     /* from row to row */
	int origin;  /* of row 0, column 0, behind the padding */
	size_t image;
};

/* plane = pixels / 255 */
int kx_load(struct kx_batch batch, int channels, struct kx_plane to, cudaStream_t stream);

/* ---- products (conv_fprop_dgrad.cu, conv_wgrad.cu)
 * --------------------------------------------------------
 */

/* How values are multiplied; sums are fp32. KX_SPLIT: each as the sum of two tf32 numbers, three
 * products on tensor cores, nearly as exact as fp32. */
enum kx_product { KX_FFMA, KX_SPLIT, KX_BY_TF32, KX_BY_BF16 };

/* One stretch of a sum: `run` floats of an image from a on, times rows b, b + 1... of the matrix.
 */
struct kx_tap {
	int32_t a, b;
};
/* One output position: the taps that it sums over, and where in the image it goes. */
struct kx_cell {
	int32_t tap, n_taps, out;
};

/*
 * For every image i and cell: d[i][out .. out + n) = sum over the cell's taps and r < run of
 * a[i][tap.a + r] * b[tap.b + r][0 .. n). Then + bias (unless NULL), ReLU if `relu`, and 0 where
 * mask (laid out as d; NULL: everywhere positive) is not > 0. n, run, offsets: multiples of 4.
 */
struct kx_rows {
	const float *a, *b, *bias, *mask;
	float *d;
	const struct kx_tap *taps;
	const struct kx_cell *cells;
	size_t a_image, d_image;
	int n_cells, n, run, relu, images;
};
int kx_rows(struct kx_rows g, enum kx_product by, cudaStream_t stream);

/* Two places of an image that meet in a weight gradient. */
struct kx_spot {
	int32_t a, b;
};
/*
 * partial[s][k][j] = sum over split s's share of images i and spots of a[i][spot.a + at(k)] *
 * b[i][spot.b + j], at(k) = k / run * row + k % run, k < m; row k = m is the sum of b alone (the
 * bias). KX_OUTER_ROWS(m) rows of n floats per split.
 */
struct kx_outer {
	const float *a, *b;
	float *partial;
	const struct kx_spot *spots;
	size_t a_image, b_image;
	int n_spots, m, n, run, row, splits, images;
};
#define KX_OUTER_ROWS(m) ((size_t)(m) + KX_QUAD)
/* Two of them at once; splits 0: nothing. */
int kx_outer(
	struct kx_outer first, struct kx_outer second, enum kx_product by, cudaStream_t stream);

/* ---- layers (layers.cu, softmax_loss.cu)
 * ---------------------------------------------------------
 */

/* `mask` as in kx_rows: NULL, or the values of the plane whose errors are written. */
int kx_pool_forward(struct kx_plane in, struct kx_plane out, int size, int top, int left,
	int images, cudaStream_t stream);
/* The first maximum of each window gets its error, the others zero. `d_*`: errors. */
int kx_pool_backward(struct kx_plane in, struct kx_plane d_in, struct kx_plane d_out, int size,
	int top, int left, const float *mask, int images, cudaStream_t stream);
int kx_relu_forward(struct kx_plane in, struct kx_plane out, int images, cudaStream_t stream);
int kx_relu_backward(struct kx_plane in, struct kx_plane d_in, struct kx_plane d_out,
	const float *mask, int images, cudaStream_t stream);

struct kx_drop {
	int layer, channels; /* channels of the model, without padding */
	uint32_t threshold;
	float scale;
};
/* Forward on values and backward on errors; mask: backward only. */
int kx_dropout(struct kx_plane in, struct kx_plane out, struct kx_drop drop, const float *mask,
	struct kx_batch batch, cudaStream_t stream);

/* d_scores = (softmax - 1 at the label) / images, loss[i] of each image. `width`: floats per image
 * in both. */
int kx_loss(const float *scores, float *d_scores, float *loss, int classes, int width,
	struct kx_batch batch, cudaStream_t stream);

/* ---- parameters (params.cu) ------------------------------------------------------------------ */

/* A weighted layer's parameters: [f][c][taps] and [f] as the manifest has them; for products rows
 * [tap][c] and one of biases, f floats each, and backward tap * to_tap + f * to_f + c, all with f
 * and c padded with zeros to fours. */
struct kx_weights {
	int f, c, taps, f_pad, c_pad;
	int to_tap, to_f;
	size_t weight, bias; /* offsets in the manifest's vector */
};

/* Where a layer's parameters are, and what is to be added up to its gradient. */
struct kx_layer {
	struct kx_weights w;
	float *value;   /* as products have them */
	float *sum;     /* of gradients, alike */
	float *partial; /* as kx_outer's */
	int splits;
	float *backward; /* NULL: not needed */
	uint32_t *first; /* NULL, or kx_first's fragments; zeros where no weight is */
	int first_size;  /* of its convolution */
	uint16_t *second, *second_backward; /* NULL, or kx_second's */
};

#define KX_LAYERS 12 /* in one launch */
struct kx_layers {
	int n;
	struct kx_layer layer[KX_LAYERS];
	unsigned block[KX_LAYERS + 1]; /* the launcher's */
};

/* *sum = mean of loss[0 .. images); `add`: their sum is added to it. loss NULL: nothing. */
struct kx_losses {
	const float *loss;
	double *sum;
	int images, add;
};

/* From the manifest's order: all weights, wherever products read them. */
int kx_pack(struct kx_layers all, const float *params, cudaStream_t stream);
/* To the manifest's order: values, or the sums of their gradients. */
int kx_unpack(struct kx_layers all, int sums, float *params, cudaStream_t stream);
/* grad, in the manifest's order. */
int kx_gradient(struct kx_layers all, struct kx_losses losses, float *grad, cudaStream_t stream);
/* sum += grad; values -= now->rate * grad; with losses, the next step is up. */
int kx_learn(
	struct kx_layers all, struct kx_losses losses, struct kx_now *now, cudaStream_t stream);

/* PS_EDEVICE: the present device cannot run what this program was built with. */
int kx_runs_here(void);

#ifdef __cplusplus
}
#endif
#endif
