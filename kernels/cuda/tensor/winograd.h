/*
 * winograd.h - the C interface of the kernels that compute convolutions of stride 1 in fp32 with
 * Winograd's tiles (winograd_tile.h).
 *
 * kx_winograd computes what kx_product computes for such a convolution. First a kernel transforms
 * the weights. Then kx_winograd processes the images in chunks. For each chunk, a kernel transforms
 * the tiles of the input. A product of matrices for each of the 36 points then adds up the
 * channels. Last, a kernel transforms the products back, adds the bias and applies ReLU, pool or
 * mask. kx_winograd_wgrad computes the gradients of the weights in the same steps, with the tiles
 * of the input and of dY as factors.
 *
 * The order of every sum depends on the sizes only. Like those of tensor.h, the functions only
 * launch kernels.
 */
#ifndef KERNELS_CUDA_TENSOR_WINOGRAD_H
#define KERNELS_CUDA_TENSOR_WINOGRAD_H
#include "kernels/cuda/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KX_WINOGRAD_POINTS 36

/* Return 1 if kx_winograd is faster than kx_product, or kx_winograd_wgrad faster than
 * kx_product_wgrad, for these windows, `n` channels of output and batches of `images` images. */
int kx_winograd_faster(struct kx_windows window, int n, size_t images);
int kx_winograd_wgrad_faster(struct kx_windows window, int n);

/* fprop or dgrad of filters of 3 x 3 or 5 x 5; the fields are as in struct kx_product, with y_pitch
 * for d_pitch. `workspace` has kx_winograd_floats floats. */
struct kx_winograd {
	const float *x, *weights, *bias, *mask;
	float *y, *workspace;
	uint8_t *argmax;
	struct kx_windows window;
	int n, y_pitch, dgrad, relu, pooled, images;
};
int kx_winograd(struct kx_winograd g, cudaStream_t stream);
/* Returns the size of the workspace for batches of up to `images` images. */
size_t kx_winograd_floats(struct kx_windows window, int n, size_t images);

/* wgrad of filters of 3 x 3. `gradients` gets one slice as the workspace of kx_product_wgrad does:
 * the gradients of the weights, then those of the biases. Pixels of dy are dy_pitch values
 * apart. */
struct kx_winograd_wgrad {
	const float *x, *dy;
	float *gradients, *workspace;
	struct kx_windows window; /* the windows of fprop */
	int n, dy_pitch, images;
};
int kx_winograd_wgrad(struct kx_winograd_wgrad g, cudaStream_t stream);
size_t kx_winograd_wgrad_floats(struct kx_windows window, int n, size_t images);

/*
 * The products of all points, in winograd_product.cu. Point p of d has rows x n values:
 *     d[m][j] = sum over k < depth of a[m][k] * b[k][j]
 * kx_winograd_product_across differs in three points: `a` is stored as a[k][m], the kernel adds to
 * d if `add`, and d has `slices` slices. Each slice has all points, with a share of each sum. n
 * must be a multiple of eight; kx_winograd_product also needs a depth, and
 * kx_winograd_product_across a number of rows, that is a multiple of eight.
 */
struct kx_points {
	const float *a, *b;
	float *d;
	int rows, depth, n;
	int slices, add;
	int group; /* number of row tiles of a group (winograd_product.cu); the launcher sets it */
};
int kx_winograd_product(struct kx_points g, cudaStream_t stream);
int kx_winograd_product_across(struct kx_points g, cudaStream_t stream);
/* Returns the number of slices of kx_winograd_product_across. A smaller depth never has more
 * slices. */
int kx_winograd_slices(int rows, int n, size_t depth);

#ifdef __cplusplus
}
#endif
#endif
