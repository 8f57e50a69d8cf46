/*
 * kernels.h - the C interface of the general CUDA kernels.
 *
 * Activations are padded NHWC tensors (struct kx_tensor). Channels are padded with zeros to a
 * multiple of four, so that every access is 16 bytes wide. The zeros around the input of a
 * convolution are part of the tensor. An fc layer is a convolution whose filter covers the whole
 * input.
 *
 * A function that launches kernels checks only the launch, never synchronises, never allocates, and
 * returns PS_OK or PS_EDEVICE. The order of every sum depends on the sizes only: equal arguments
 * give equal bytes. Pointers are device memory unless a comment says otherwise.
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

#define KX_QUAD   4   /* channels are padded to a multiple of this */
#define KX_M_TILE 128 /* rows of a tile of kx_conv_wgrad; KX_K_TILE: images per pipeline stage */
#define KX_K_TILE 32

/* The reason why a kernel of fused/ has given up. The results of a kernel that has given up are not
 * valid. */
enum kx_trouble {
	KX_TROUBLE_NONE,
	KX_TROUBLE_WAIT,  /* a block waited too long for another block of its launch */
	KX_TROUBLE_RANGE, /* a value is beyond the range of fp16 */
};

/* The values that change from step to step. The structure is in device memory, so that one CUDA
 * graph serves all steps. */
struct kx_now {
	uint64_t dropout_seed; /* seed of step 0; step j uses dropout_seed + j */
	uint32_t step;         /* number of the step in local training */
	uint32_t first;        /* evaluation: number of the first image */
	float rate;            /* learning rate of local training */
};

/* The images of a batch: index[step * images + n], or first + n if index is NULL. */
struct kx_batch {
	const uint8_t *pixels; /* pixels of the data set, channels x rows x columns */
	const uint16_t *labels;
	const uint32_t *index;
	const struct kx_now *now;
	int images;
	int training; /* 1: dropout is active */
};

/* A padded NHWC tensor. Offsets and strides count values, which are floats unless a function has an
 * argument `bf16`. */
struct kx_tensor {
	float *value;
	int h, w, c;  /* rows, columns, channels; c includes the padding of the channels */
	int row;      /* stride of a row, in values */
	int origin;   /* offset of row 0, column 0, after the padding */
	size_t image; /* stride of an image, in values */
};

/* The norm of the images. n is the number of means and deviations: 0 (no norm), 1 (the same for all
 * channels) or one for each channel. */
struct kx_norm {
	int n;
	float mean[4], deviation[4];
};
/* to = pixels / 255; with a norm, (pixels / 255 - mean) / deviation */
int kx_load(struct kx_batch batch, int channels, struct kx_norm norm, struct kx_tensor to,
	cudaStream_t stream);

/* ---- convolution and fc as implicit GEMM (conv_fprop_dgrad.cu, conv_wgrad.cu) ---------------- */

/* The formats in which values are multiplied; sums are fp32. With 3XTF32 each value is split into a
 * high and a low tf32 term, and three of the four products are added, which is nearly as exact as
 * fp32. */
enum kx_math { KX_MATH_FFMA, KX_MATH_3XTF32, KX_MATH_TF32, KX_MATH_BF16 };

/* A contiguous K run of the implicit GEMM. run_length floats of an image, from offset a on, are
 * multiplied by rows b, b + 1, ... of the weight matrix. */
struct kx_k_run {
	int32_t a, b;
};
/* An output pixel (p, q): it has the K runs number k_run to k_run + n_k_runs - 1, and its offset in
 * the output image is `out`. */
struct kx_pixel {
	int32_t k_run, n_k_runs, out;
};

/*
 * fprop and dgrad. For every image i and output pixel:
 *     d[i][out .. out + n) = sum over its K runs and r < run_length of
 *         a[i][k_run.a + r] * b[k_run.b + r][0 .. n)
 * Then the kernel adds bias (unless NULL) and applies ReLU if `relu`. Where a value of `mask` is
 * not positive, the kernel writes 0 to d. `mask` has the layout of d; if it is NULL, the kernel
 * keeps every value. n, run_length and all offsets are multiples of 4.
 */
struct kx_conv {
	const float *a, *b, *bias, *mask;
	float *d;
	const struct kx_k_run *k_runs;
	const struct kx_pixel *pixels;
	size_t a_image, d_image; /* strides from one image to the next, in floats */
	int n_pixels, n, run_length, relu, images;
};
int kx_conv_fprop(struct kx_conv g, enum kx_math math, cudaStream_t stream);
int kx_conv_dgrad(struct kx_conv g, enum kx_math math, cudaStream_t stream);

/* A position of the output: `a` is the offset of its filter window in the input image, `b` its
 * offset in the image of dY. */
struct kx_position {
	int32_t a, b;
};
/*
 * wgrad with split-K. Each slice sums over its share of images i and positions. For k < m the slice
 * writes
 *     workspace[s][k][j] = sum of a[i][position.a + at(k)] * b[i][position.b + j],
 *     at(k) = k / run_length * row + k % run_length
 * Row k = m is the sum of b alone: the bias gradient. A slice has KX_WGRAD_ROWS(m) rows of n
 * floats.
 */
struct kx_conv_wgrad {
	const float *a, *b; /* `a`: x; `b`: dY */
	float *workspace;
	const struct kx_position *positions;
	size_t a_image, b_image; /* strides from one image to the next, in floats */
	int n_positions, m, n, run_length, row, slices, images;
};
#define KX_WGRAD_ROWS(m) ((size_t)(m) + KX_QUAD)
/* Computes the wgrad of two layers in one launch. A layer whose `slices` is 0 does not exist: the
 * launch then computes only the other one. */
int kx_conv_wgrad(struct kx_conv_wgrad first, struct kx_conv_wgrad second, enum kx_math math,
	cudaStream_t stream);

/* ---- layers of cuda_net (layers.cu, softmax_loss.cu) ----------------------------------------- */

/* `mask` is as in struct kx_conv: NULL, or the values of the tensor whose gradient the kernel
 * writes. */
int kx_pool_fprop(struct kx_tensor x, struct kx_tensor y, int size, int top, int left, int images,
	cudaStream_t stream);
/* The first maximum of each window gets the gradient, the other values get zero. */
int kx_pool_dgrad(struct kx_tensor x, struct kx_tensor dx, struct kx_tensor dy, int size, int top,
	int left, const float *mask, int images, cudaStream_t stream);
/* ---- layers of both general paths (elementwise.cu, plain_layers.cu) -------------------------- */

/* The values of these tensors are fp32, or bf16 if `bf16`. Channels are padded to vectors of 16
 * bytes. `mask` has the layout of dx. */
int kx_relu(struct kx_tensor x, struct kx_tensor y, int images, int bf16, cudaStream_t stream);
int kx_relu_dgrad(struct kx_tensor x, struct kx_tensor dx, struct kx_tensor dy, const void *mask,
	int images, int bf16, cudaStream_t stream);

struct kx_drop {
	int layer, channels; /* channels: number of channels of the model, without padding */
	uint32_t threshold;
	float scale;
};
/* In fprop, `from` is x and `to` is y. In dgrad, `from` is dY and `to` is dX, and `mask`
 * applies. */
int kx_dropout(struct kx_tensor from, struct kx_tensor to, struct kx_drop drop, const void *mask,
	struct kx_batch batch, int bf16, cudaStream_t stream);

struct kx_curve {
	/* sigmoid: 1: sigmoid, 0: tanh; channels: number of channels without padding */
	int sigmoid, channels;
};
int kx_curve(struct kx_tensor x, struct kx_tensor y, struct kx_curve curve, int images, int bf16,
	cudaStream_t stream);
int kx_curve_dgrad(struct kx_tensor y, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_curve curve, const void *mask, int images, int bf16, cudaStream_t stream);

/* Windows of rows x columns, `stride` apart. The mean of a window is its sum divided by rows *
 * columns, even if the window extends over the edge. */
struct kx_pooling {
	int rows, columns, stride, top, left;
};
/* argmax: for each value of y, the place of the maximum in the window of this value, as kx_max_pool
 * stores it. With argmax, y has no padding between its pixels, and windows have at most 256 values.
 * If argmax is NULL, kx_max_pool_dgrad searches for the maxima in x; otherwise it does not read
 * x. */
int kx_max_pool(struct kx_tensor x, struct kx_tensor y, struct kx_pooling p, uint8_t *argmax,
	int images, int bf16, cudaStream_t stream);
int kx_max_pool_dgrad(struct kx_tensor x, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_pooling p, const uint8_t *argmax, const void *mask, int images, int bf16,
	cudaStream_t stream);
int kx_mean_pool(struct kx_tensor x, struct kx_tensor y, struct kx_pooling p, int images, int bf16,
	cudaStream_t stream);
int kx_mean_pool_dgrad(struct kx_tensor dx, struct kx_tensor dy, struct kx_pooling p,
	const void *mask, int images, int bf16, cudaStream_t stream);

struct kx_lrn {
	int size, channels; /* channels: number of channels without padding */
	float alpha, beta, k;
};
int kx_lrn(struct kx_tensor x, struct kx_tensor y, struct kx_lrn l, int images, int bf16,
	cudaStream_t stream);
int kx_lrn_dgrad(struct kx_tensor x, struct kx_tensor dx, struct kx_tensor dy, struct kx_lrn l,
	const void *mask, int images, int bf16, cudaStream_t stream);

/* Computes y = x + s, where s is every stride-th row and column of `from`. If from.value is NULL,
 * the function copies x to y. Applies ReLU if `relu`. */
int kx_add(struct kx_tensor x, struct kx_tensor from, struct kx_tensor y, int stride, int relu,
	int images, int bf16, cudaStream_t stream);
/* Copies dy to dx, and adds `added` to every stride-th row and column of dx. If added.value is
 * NULL, the function adds nothing. */
int kx_add_dgrad(struct kx_tensor dx, struct kx_tensor dy, struct kx_tensor added, int stride,
	const void *mask, int images, int bf16, cudaStream_t stream);

/* ---- batchnorm of both general paths (batchnorm.cu) ------------------------------------------ */

#define KX_BATCHNORM_CHUNKS 256

/* The vectors of a batchnorm consist of rows. A row has one value for each channel, and a zero for
 * each channel of padding. */
struct kx_batchnorm {
	const float *weight;  /* a row of weights, followed by a row of biases */
	const float *running; /* a row of running means, followed by a row of running variances */
	float *grad;          /* the gradients of `weight`, in the same layout */
	float *statistics;    /* the mean and the variance of the batch, in the layout of `running`,
			       * for the push */
	float *mean,
		*scale; /* a row each: forward writes them for backward; scale = 1 / deviation */
	/* two rows of partial sums for each of KX_BATCHNORM_CHUNKS chunks of the pixels */
	double *chunks;
	double eps;
	/* 1: a ReLU follows: kx_batchnorm applies this ReLU, and the `dy` of kx_batchnorm_backward
	 * is the gradient of its input */
	int relu;
};
/* In training, uses the mean and the variance of the batch, and writes b.statistics. In evaluation,
 * uses b.running. */
int kx_batchnorm(struct kx_batchnorm b, struct kx_tensor x, struct kx_tensor y, int images,
	int training, int bf16, cudaStream_t stream);
/* Writes b.grad, and also dx unless dx.value is NULL. */
int kx_batchnorm_backward(struct kx_batchnorm b, struct kx_tensor x, struct kx_tensor dx,
	struct kx_tensor dy, const void *mask, int images, int bf16, cudaStream_t stream);

/* d_logits = (softmax of the logits, minus 1 at the label) / images. loss[i] is the loss of image
 * i. logits and d_logits have `width` floats per image. */
int kx_loss(const float *logits, float *d_logits, float *loss, int classes, int width,
	struct kx_batch batch, cudaStream_t stream);

/* ---- parameters (params.cu) ------------------------------------------------------------------ */

/* The shape of a layer's parameters. A tap is a pixel (r, s) of a filter. The manifest stores
 * weights [f][c][taps] and biases [f]. The kernels store rows [tap][c] and one row of biases, f
 * floats each. dgrad reads a copy of its own, which has a weight at tap * to_tap + f * to_f + c. f
 * and c are padded with zeros to multiples of four (of eight in cuda_tensor), but c of a first
 * layer may have no padding. */
struct kx_weights {
	int f, c, taps, f_pad, c_pad;
	int groups; /* weights between two groups are zeros here and absent in the manifest */
	int to_tap, to_f;
	size_t weight, bias; /* offsets in the manifest's vector */
};

/* A layer's parameters in all layouts that kernels read, and its split-K workspace. */
struct kx_layer {
	struct kx_weights w;
	float *value;     /* the weights in the layout for fprop */
	float *sum;       /* the sum of gradients, in the layout of `value` */
	float *workspace; /* workspace of kx_conv_wgrad */
	int slices;
	float *dgrad;    /* `value` in the layout for dgrad; NULL if no kernel needs it */
	uint32_t *conv1; /* NULL, or the fragments of kx_conv1, padded with zeros */
	int conv1_size;
	uint16_t *conv2_fprop, *conv2_dgrad; /* NULL, or the weights of kx_conv2 */
	/* the kernel sets *trouble if a weight is too large for conv2_fprop (conv2.h) */
	uint32_t *trouble;
	uint16_t *bf16; /* NULL, or `value` in bf16, for kx_product */
	int fixed; /* 1 if `value` has running statistics of batchnorm, which SGD does not change */
};

#define KX_LAYERS 12 /* maximum number of layers of one launch */
struct kx_layers {
	int n;
	struct kx_layer layer[KX_LAYERS];
	/* number of each layer's first block; the launcher sets it */
	unsigned block[KX_LAYERS + 1];
	int joins; /* 1: the launch follows kernels of two streams (kx_launch_joined) */
};

/* *sum = mean of loss[0 .. images). With `add`, adds the sum of the losses to *sum instead. If
 * `loss` is NULL, *sum stays as it is. */
struct kx_losses {
	const float *loss;
	double *sum;
	int images, add;
};

/* Copies parameters from the manifest's order to all layouts of the weights. */
int kx_pack(struct kx_layers all, const float *params, cudaStream_t stream);
/* Copies values (sums = 0) or sums of gradients (sums = 1) to the manifest's order. */
int kx_unpack(struct kx_layers all, int sums, float *params, cudaStream_t stream);
/* Adds up the split-K slices and writes the gradient in the manifest's order. */
int kx_reduce_gradient(
	struct kx_layers all, struct kx_losses losses, float *grad, cudaStream_t stream);
/* Adds up the split-K slices; then sum += grad and, unless the layer is fixed, value -= now->rate *
 * grad. If losses.loss is not NULL, adds 1 to now->step. */
int kx_sgd_step(
	struct kx_layers all, struct kx_losses losses, struct kx_now *now, cudaStream_t stream);

/* Return 1 if this build has code for the current device: kx_runs_here for the kernels that run any
 * model, and kx_fused_runs_here for the kernels of fused/. */
int kx_runs_here(void);
int kx_fused_runs_here(void);

#ifdef __cplusplus
}
#endif
#endif
