/*
 * conv2.h - fused conv2 + ReLU + pool, the second convolution of a network like cnn99: 32 channels
 * of 12 x 12, 64 filters of 5 x 5, pool:2. The dgrad kernel also computes the wgrad of conv1. The
 * dY of conv1 therefore stays in registers.
 *
 * Operands are fp16. fp16 has 11 significant bits, as tf32 has, but the tensor cores multiply fp16
 * as fast as bf16. In fprop each value is the sum of a hi and a lo term, so fprop is nearly as
 * exact as fp32. dgrad and wgrad use only the hi term. A launch scales its dY by a power of two
 * that keeps the largest value from overflowing. With this scale, a value of dY becomes zero only
 * if it is at most 2^-38 times the largest one. fprop requires values below CONV2_MAX_VALUE and
 * weights below CONV2_MAX_WEIGHT. The kernels that write these values (conv1.cu) or weights
 * (general/params.cu) set *trouble to KX_TROUBLE_RANGE if one is too large.
 *
 * kx_conv2_fprop and kx_conv2_wgrad need sm_90a (wgmma). The functions keep the rules of kernels.h.
 */
#ifndef KERNELS_CUDA_FUSED_CONV2_H
#define KERNELS_CUDA_FUSED_CONV2_H
#include "kernels/cuda/base/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CONV2_SIZE       5
#define CONV2_IN         12
#define CONV2_CHANNELS   32
#define CONV2_OUT        8
#define CONV2_FILTERS    64
#define CONV2_TERMS      2 /* number of terms of a value: hi and lo */
#define CONV2_MAX_VALUE  65504.0f
#define CONV2_MAX_WEIGHT 1023.0f
/* maximum number of slices of kx_conv2_wgrad; with two blocks per slice, each for half of the taps,
 * there are 132 blocks */
#define CONV2_WGRAD_SLICES 66
#define CONV2_DGRAD_SLICES 132 /* maximum number of slices of kx_conv2_dgrad for up to 264 images */
/* Number of fp16 values of an image, [term][group of 8 channels][pixel][channel], and of all
 * weights. */
#define CONV2_IMAGE   (CONV2_TERMS * CONV2_CHANNELS * CONV2_IN * CONV2_IN)
#define CONV2_WEIGHTS (CONV2_SIZE * CONV2_SIZE * CONV2_FILTERS * CONV2_CHANNELS)

struct kx_conv2 {
	/* weights: CONV2_TERMS terms in w_fprop, one in w_dgrad; see conv2_store_weight */
	uint16_t *w_fprop, *w_dgrad;
	const float *bias;
	uint16_t *x;             /* CONV2_IMAGE values per image */
	const uint8_t *x_argmax; /* the argmax of conv1, as in conv1.h */
	struct kx_tensor y;      /* receives the pooled values */
	uint8_t *argmax;         /* receives the argmax, in the layout of y */
	const float *dy;         /* gradient of y, in the layout of y; 0 where y is not > 0 */
	float *dy_amax;          /* largest |dY| of each group of eight images */
};

/* Computes y and argmax from x. */
int kx_conv2_fprop(struct kx_conv2 l, int images, cudaStream_t stream);
/* Runs dgrad: computes dy_amax from dy, and writes the wgrad of conv1 to kx_conv2_dgrad_slices
 * slices of conv1_workspace. */
int kx_conv2_dgrad(
	struct kx_conv2 l, struct kx_batch batch, float *conv1_workspace, cudaStream_t stream);
int kx_conv2_dgrad_slices(int images);
/* Runs wgrad: computes kx_conv2_wgrad_slices slices of workspace from dy, dy_amax and x. */
int kx_conv2_wgrad(struct kx_conv2 l, float *workspace, int images, cudaStream_t stream);
int kx_conv2_wgrad_slices(int images);

#ifdef __cplusplus
}
#endif
#endif
