/*
 * conv2.h - fused conv2 + ReLU + pool, the second convolution of a net like cnn99: 32 channels of
 * 12 x 12, 64 filters of 5 x 5, pool:2. Its dgrad also computes the wgrad of conv1, so that conv1's
 * dY never leaves the multiprocessor.
 *
 * Operands are fp16: 11 bits as in tf32, at the rate of bf16. In fprop a value is the sum of a hi
 * and a lo term, so fprop is nearly as exact as fp32. dgrad and wgrad use the hi term alone. All dY
 * of a launch share one power of two as scale, so that none overflows; a dY that becomes zero is
 * 2^-38 of the largest or less. fprop requires values of at most 65504 and weights of at most 1023.
 *
 * kx_conv2_fprop and kx_conv2_wgrad need sm_90a (wgmma). The rules of kernels.h apply.
 */
#ifndef KERNELS_CUDA_FUSED_CONV2_H
#define KERNELS_CUDA_FUSED_CONV2_H
#include "kernels/cuda/base/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CONV2_SIZE         5
#define CONV2_IN           12
#define CONV2_CHANNELS     32
#define CONV2_OUT          8
#define CONV2_FILTERS      64
#define CONV2_TERMS        2   /* hi and lo */
#define CONV2_WGRAD_SLICES 66  /* maximum: two blocks each for 132 multiprocessors */
#define CONV2_DGRAD_SLICES 132 /* maximum of kx_conv2_dgrad, except with many images */
/* fp16 values of an image, [term][8 channels][pixel][channel], and of all weights. */
#define CONV2_IMAGE   (CONV2_TERMS * CONV2_CHANNELS * CONV2_IN * CONV2_IN)
#define CONV2_WEIGHTS (CONV2_SIZE * CONV2_SIZE * CONV2_FILTERS * CONV2_CHANNELS)

struct kx_conv2 {
	uint16_t *w_fprop, *w_dgrad; /* weights, see conv2_store_weight: CONV2_TERMS and 1 terms */
	const float *bias;
	uint16_t *x;             /* CONV2_IMAGE values for each image */
	const uint8_t *x_argmax; /* as in conv1.h */
	struct kx_tensor y;      /* pooled */
	uint8_t *argmax;         /* same layout as y */
	const float *dy;         /* same layout as y; 0 where y is not > 0 */
	float *dy_amax;          /* largest |dY| of each group of eight images */
};

/* x -> y and argmax */
int kx_conv2_fprop(struct kx_conv2 l, int images, cudaStream_t stream);
/* dgrad: dy -> dy_amax, and the wgrad of conv1 into its workspace: kx_conv2_dgrad_slices slices. */
int kx_conv2_dgrad(
	struct kx_conv2 l, struct kx_batch batch, float *conv1_workspace, cudaStream_t stream);
int kx_conv2_dgrad_slices(int images);
/* wgrad: dy, dy_amax and x -> workspace: kx_conv2_wgrad_slices slices. */
int kx_conv2_wgrad(struct kx_conv2 l, float *workspace, int images, cudaStream_t stream);
int kx_conv2_wgrad_slices(int images);

#ifdef __cplusplus
}
#endif
#endif
