/*
 * tensor.h - the C interface of the kernels of the path cuda_tensor (tensor_net.c), which runs any
 * model in fp32, tf32 and bf16.
 *
 * Values and their gradients are dense NHWC tensors of bf16 or, in fp32 and tf32, of fp32. Channels
 * are padded with zeros to a multiple of eight, so that every copy is 16 bytes wide. The padding
 * around the input of a convolution is not stored. An fc layer is a convolution 1x1 on an image of
 * 1x1. The first layer reads patches: kx_patches stores the pixels under each window (im2col),
 * followed by a one, so that no product is wasted on channels that do not exist. The factors of a
 * product are bf16, tf32 or fp32, and sums are fp32. The weights are kept in fp32 (struct kx_layer
 * of kernels.h); for bf16 there is a rounded copy of them.
 *
 * A function that launches kernels checks only the launch, never synchronises, never allocates, and
 * returns PS_OK or PS_EDEVICE. The order of every sum depends on the sizes only: equal arguments
 * give equal bytes.
 */
#ifndef KERNELS_CUDA_TENSOR_TENSOR_H
#define KERNELS_CUDA_TENSOR_TENSOR_H
#include "kernels/cuda/base/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KX_OCTET 8 /* channels are padded to a multiple of this */

enum kx_type { KX_TYPE_FP32, KX_TYPE_TF32, KX_TYPE_BF16 };

/* Division of an int32_t >= 0 by a constant: the high word of n * multiplier, shifted. */
struct kx_divisor {
	uint32_t value, multiplier;
	int shift;
};
struct kx_divisor kx_divisor(int value);

/*
 * The input pixels under the window of output pixel (p, q): rows p * stride - top + r, columns
 * q * stride - left + s. `up` > 1 is for the dgrad of a convolution of stride `up`: only rows and
 * columns divisible by `up` have a pixel, which is at row / up, column / up of the input. h, w and
 * c describe the input (c with its padding). If c is only a part of the channels, the channels of a
 * pixel are still `pitch` values apart from those of the next pixel; else pitch is c.
 */
struct kx_windows {
	int h, w, c, pitch;
	int rows, columns; /* number of rows and columns of output pixels */
	int stride, up, top, left;
	int size; /* side of the filter */
};

/*
 * fprop and dgrad. Row m of the product is output pixel m of the batch, and column n is channel n
 * of this pixel:
 *     d[m][n] = sum over k of a[input pixel under tap k / c][k % c] * b(k, n), k < size^2 * c
 * fprop: b(k, n) = b[k * pitch + n]; rows k >= b_rows are zero. dgrad: b(k, n) = the weight of the
 * opposite tap, b[(tap * columns + n) * pitch + k % c]; the member `n` is the number of columns.
 * Then the kernel multiplies by `scale`, adds bias (unless NULL) and applies ReLU if `relu`. Where
 * mask is not positive, the result is 0. mask has the layout of d, or is NULL if there is no mask.
 * Pixels of d are d_pitch values apart. d_pitch is n, or more if the columns of this product are
 * only some of the channels of d. If `pooled`, the rows are in the order of pool windows 2x2, and d
 * and argmax get one value per window. If `wide`, d has fp32 values in every type.
 */
struct kx_product {
	const void *a, *b, *mask;
	const float *bias;
	void *d;
	uint8_t *argmax;
	struct kx_windows window;
	/* number of pixels (or pool windows) of an image; the same number of a row */
	struct kx_divisor by_image, by_row;
	long long rows; /* number of rows of the whole batch */
	int n, b_rows, pitch, d_pitch;
	int dgrad, relu, pooled, wide;
	float *ordered; /* dgrad in fp32: memory for the weights in the order of fprop */
	int slices;     /* number of slices; the launcher sets it */
	float scale;
};
int kx_product(struct kx_product g, enum kx_type type, cudaStream_t stream);
/* does the same as kx_product, in fp32 */
int kx_product_fp32(struct kx_product g, cudaStream_t stream);
/* Returns the number of floats of kx_product.ordered for a dgrad with `n` columns. */
size_t kx_product_fp32_ordered(struct kx_windows dgrad, int n);

/*
 * wgrad with split-K, as kx_conv_wgrad, but m counts the row of the bias gradient, too: slice s of
 * the workspace gets rows k < m of
 *     sum over its pixels of a[input pixel under tap k / c][k % c] * b[pixel][n]
 * times `scale`. Row m - 1 is the bias gradient. With `ones`, the kernel adds up b for this row;
 * without `ones`, `a` has a column of ones. Pixels of b are b_pitch values apart. A slice has
 * stride_rows rows of n floats. joins: as kx_layers.
 */
struct kx_product_wgrad {
	const void *a, *b;
	float *workspace;
	struct kx_windows window;
	struct kx_divisor by_image, by_row;
	long long pixels; /* number of pixels of the whole batch */
	int m, n, b_pitch, ones, slices;
	size_t stride_rows;
	float scale;
	int joins;
};
int kx_product_wgrad(struct kx_product_wgrad g, enum kx_type type, cudaStream_t stream);
int kx_product_wgrad_fp32(struct kx_product_wgrad g, cudaStream_t stream);
/* Return the number of split-K slices for these sizes. */
int kx_product_slices(struct kx_windows window, int m, int n, long long pixels, enum kx_type type);
int kx_product_slices_fp32(int m, int n, long long pixels);
/* kx_taps_wgrad and kx_taps_slices are the functions of product_taps.cu: the wgrad of filters of 3
 * x 3 in tf32, and its number of split-K slices. kx_taps_slices returns 0 if product_taps.cu does
 * not compute this product. */
int kx_taps_wgrad(struct kx_product_wgrad g, cudaStream_t stream);
int kx_taps_slices(struct kx_windows window, int m, int n, long long pixels);

/* Does the same as kx_sgd_step, but for the layers of this path, and also writes kx_layer.bf16. The
 * gradient of padding is zero. */
int kx_product_sgd(
	struct kx_layers all, struct kx_losses losses, struct kx_now *now, cudaStream_t stream);

/* The dense tensor of a step. `c` includes the padding of the channels. */
struct kx_dense {
	void *value;
	int h, w, c;
};

/* The patches of the first layer: for each output pixel of `window` its taps * channels pixels (in
 * the order tap, channel), then a one if `ones`, then zeros up to `columns`. The window of an fc
 * layer is the whole image: `size` is the width of the image, and `taps` is its number of pixels.
 * If `size` is 1, the patches are the pixels of the image itself. With `whole`, values are 255
 * times as large, so that pixels are integers, which bf16 holds exactly. `whole` is not allowed
 * with a norm. */
struct kx_patches {
	struct kx_windows window;
	int channels, taps, columns, ones, whole;
	struct kx_norm norm;
};
int kx_patches(struct kx_batch batch, struct kx_patches p, void *to, enum kx_type type,
	cudaStream_t stream);

/* Writes to `full` the gradient of the input of a pool 2x2 that kx_product has fused. `pooled` has
 * the gradient of the pool's output. */
int kx_unpool(struct kx_dense pooled, const uint8_t *argmax, struct kx_dense full, int images,
	enum kx_type type, cudaStream_t stream);

/* Computes the same as kx_loss. logits are fp32, and d_logits have the type of the tensors. */
int kx_dense_loss(const float *logits, void *d_logits, float *loss, int classes, int width,
	struct kx_batch batch, enum kx_type type, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
