/*
 * products.cuh - from rung 6 on no image has a gradient of its own: the fc layer's three products
 * run over the whole batch, and every sum over images is taken in a register, chunk by chunk, in an
 * order that does not depend on timing.
 */
#ifndef KERNELS_LADDER_PRODUCTS_CUH
#define KERNELS_LADDER_PRODUCTS_CUH
#include "kernels/ladder/gpu.cuh"

#define MOST_SPLITS 32

struct products {
	struct fused k;        /* pooled, argmax, logits and loss of the whole batch */
	const uint8_t *pixels; /* of the whole set; NULL: k.images has the batch as floats */
	const uint32_t
		*index; /* with pixels: the batch's images in the set; k.labels is the set's */
	size_t max_batch, max_chunks;
	float *partial_logits; /* up to MOST_SPLITS x n x CLASSES: sums over a part of the inputs */
	float *part_grad;      /* chunks x n_params: sums over a chunk's images */
	float *grad;           /* n_params: the mean */
};

/* Room for `max_batch` images and everything but params, images or pixels, index and labels. */
int products_allocate(struct gpu *g, struct products *p, const struct ladder_task *t,
	struct err *e) PS_MUST_CHECK;
/* pooled -> d_logits, loss */
int products_logits(struct gpu *g, const struct products *p, size_t n, struct err *e);
/* `slices` slices of partial_logits -> d_logits, loss */
int products_softmax(
	struct gpu *g, const struct products *p, size_t n, size_t slices, struct err *e);
/* Sums over the images of a chunk, one launch for each layer, into part_grad. */
int products_backward(
	struct gpu *g, const struct products *p, size_t n, size_t chunks, struct err *e);
/* part_grad -> grad */
int products_mean(struct gpu *g, const struct products *p, size_t n, size_t chunks, struct err *e);
/* Chunks for `n` images, so that at most `blocks` blocks run if each chunk has `each` of them. */
size_t products_chunks(const struct products *p, size_t n, size_t each, size_t blocks);

/* tiled.cu, from rung 7 on: the same from registers and shared memory. */
int tiled_convolve(struct gpu *g, const struct products *p, size_t n, struct err *e);
int tiled_backward(struct gpu *g, const struct products *p, size_t n, size_t chunks, struct err *e);
size_t tiled_chunks(const struct products *p, size_t n);

/* staged.cu, from rung 8 on: products_logits with the weights in shared memory. */
int staged_logits(struct gpu *g, const struct products *p, size_t n, struct err *e);

/* dense.cu, from rung 9 on: tiled_backward without a gather. */
int dense_backward(struct gpu *g, const struct products *p, size_t n, size_t chunks, struct err *e);
size_t dense_chunks(const struct products *p, size_t n);

#endif
