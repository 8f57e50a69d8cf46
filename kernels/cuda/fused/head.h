/*
 * head.h - the classifier head: fc:128, ReLU, fc to a few classes, softmax and loss, and dgrad
 * through both fc layers, in two kernels. Results are those of kx_conv_* and kx_loss with
 * KX_MATH_3XTF32. The rules of kernels.h apply.
 */
#ifndef KERNELS_CUDA_FUSED_HEAD_H
#define KERNELS_CUDA_FUSED_HEAD_H
#include "kernels/cuda/base/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HEAD_UNITS   128
#define HEAD_CLASSES 12  /* maximum */
#define HEAD_INPUTS  256 /* the number of inputs is a multiple of this */

struct kx_head {
	int inputs, classes, width; /* width: floats of an image in logits and d_logits */
	const float *x;             /* inputs of each image */
	const float *mask;          /* NULL, or dX is 0 where this, laid out as x, is not > 0 */
	const float *weight, *transposed; /* [input][unit] and [unit][input] */
	const float *bias;
	const float *class_weight, *class_bias; /* [unit][width] */
	float *hidden, *d_hidden;               /* HEAD_UNITS of each image */
	float *logits, *d_logits, *loss;
	float *dx;
};

/* x -> hidden */
int kx_head_hidden(struct kx_head h, int images, cudaStream_t stream);
/* hidden -> logits */
int kx_head_logits(struct kx_head h, int images, cudaStream_t stream);
/* hidden -> logits, loss, d_logits, d_hidden and dx */
int kx_head_dgrad(struct kx_head h, struct kx_batch batch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
