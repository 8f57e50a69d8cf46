/*
 * conv1.h - fused conv1 + ReLU + pool: one kernel for the forward pass and one for wgrad of the
 * first layers of a network on 28 x 28 images.
 *
 * The convolution has one input channel and 3 x 3 or 5 x 5 filters; the number of filters is a
 * multiple of 32. ReLU and pool:2 follow. The kernels read pixels from the data set and write only
 * the pooled values and the argmax of each pool window. The functions keep the rules of kernels.h.
 */
#ifndef KERNELS_CUDA_FUSED_CONV1_H
#define KERNELS_CUDA_FUSED_CONV1_H
#include "kernels/cuda/base/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CONV1_SIDE   28
#define CONV1_LANES  32  /* the number of filters is a multiple of this */
#define CONV1_SLICES 264 /* split-K slices of wgrad: 2 blocks on each of 132 multiprocessors */

struct kx_conv1 {
	int size, f;         /* size: side of a filter, 3 or 5; f: number of filters */
	uint32_t *fragments; /* weights as mma operands, see conv_store_weight */
	const float *bias;
	struct kx_tensor y; /* receives the pooled values */
	uint16_t *y_hi_lo;  /* if not NULL, y goes here as hi/lo terms for conv2.h */
	uint32_t *trouble;  /* the kernel sets it if a value is too large for y_hi_lo */
	const float *dy;    /* gradient of y, in the layout of y; not yet masked by the ReLU */
	uint8_t *argmax;    /* layout [image][position][filter], see conv1.cu */
	/* the workspace of kx_conv_wgrad, with CONV1_SLICES slices and m = size * size */
	float *workspace;
};

/* Returns the number of words of `fragments`. */
size_t kx_conv1_fragments(int size, int f);
int kx_conv1_fprop(struct kx_conv1 l, struct kx_batch batch, cudaStream_t stream);
int kx_conv1_wgrad(struct kx_conv1 l, struct kx_batch batch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
