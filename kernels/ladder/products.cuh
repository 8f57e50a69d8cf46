/*
 * products.cuh - kernels of rung 6 and later. These kernels store no gradient per image. The three
 * products of the fc layer run over the whole batch. A thread adds up the images of a chunk in
 * registers. The order of every sum is fixed.
 */
#ifndef KERNELS_LADDER_PRODUCTS_CUH
#define KERNELS_LADDER_PRODUCTS_CUH
#include "kernels/ladder/gpu.cuh"

#define MAX_SLICES 32

struct products {
	/* pooled, argmax, logits and loss of the whole batch; pooled is NULL if the backward kernel
	 * computes the pooled values again */
	struct fused k;
	/* pixels of the whole data set; if NULL, k.images has the batch as floats */
	const uint8_t *pixels;
	/* with pixels: image numbers of the batch; k.labels then has the labels of the whole set */
	const uint32_t *index;
	size_t max_batch, max_chunks;
	float *partial_logits; /* layout [slice][n][CLASSES]: sums over a slice of the inputs */
	float *part_grad;      /* layout [chunk][n_params]: sums over a chunk */
	float *grad;           /* n_params values: the mean gradient */
};

/* Allocates device memory for t->max_batch images; allocates `pooled` only if `with_pooled` is set.
 * The caller provides params, images or pixels, index and labels. */
int products_allocate(struct gpu *g, struct products *p, const struct ladder_task *t,
	int with_pooled, struct err *e) PS_MUST_CHECK;
/* Computes d_logits and loss from pooled. */
int products_logits(struct gpu *g, const struct products *p, size_t n, struct err *e);
/* Computes d_logits and loss from `slices` slices of partial_logits. */
int products_softmax(
	struct gpu *g, const struct products *p, size_t n, size_t slices, struct err *e);
/* Computes part_grad: sums over the images of each chunk. One launch per layer. */
int products_backward(
	struct gpu *g, const struct products *p, size_t n, size_t chunks, struct err *e);
/* Computes grad from part_grad. */
int products_mean(struct gpu *g, const struct products *p, size_t n, size_t chunks, struct err *e);
/* Returns the number of chunks for `n` images. With `each` blocks per chunk, at most `blocks`
 * blocks run. */
size_t products_chunks(const struct products *p, size_t n, size_t each, size_t blocks);

/* tiled.cu, from rung 7 on: convolution and backward pass with register and shared-memory tiles. */
int tiled_convolve(struct gpu *g, const struct products *p, size_t n, struct err *e);
int tiled_backward(struct gpu *g, const struct products *p, size_t n, size_t chunks, struct err *e);
size_t tiled_chunks(const struct products *p, size_t n);

/* staged.cu, from rung 8 on: products_logits with weights in shared memory. */
int staged_logits(struct gpu *g, const struct products *p, size_t n, struct err *e);

/* dense.cu, from rung 9 on: computes what tiled_backward computes, but without loads from addresses
 * that depend on the argmax. In rung 14 it does not read `pooled`. */
int dense_backward(struct gpu *g, const struct products *p, size_t n, size_t chunks, struct err *e);
size_t dense_chunks(const struct products *p, size_t n);

/* tensor.cu, from rung 12 on: the convolution on tensor cores. */
struct tensor_conv {
	size_t f_pad;        /* number of filters, rounded up to a multiple of eight */
	uint32_t *fragments; /* conv weights as operands of the tensor cores */
	/* fc weights as [position][filter][12]; NULL if another kernel computes fc */
	float *fc;
};
/* Allocates the memory of *t for the sizes of `p`. With `fc`, the forward kernel includes the fc
 * layer. */
int tensor_allocate(struct gpu *g, struct tensor_conv *t, struct products *p, int fc,
	struct err *e) PS_MUST_CHECK;
/* Computes argmax, d_logits and loss, and pooled if it is not NULL. */
int tensor_conv_forward(struct gpu *g, const struct products *p, const struct tensor_conv *t,
	size_t n, struct err *e);

#endif
