/*
 * classifier.h - the classifier head in two kernels: fc:128, ReLU, an fc layer of few classes,
 * softmax, loss, and dgrad of both fc layers. The results are those of kx_conv_* and kx_loss with
 * KX_MATH_3XTF32. The functions keep the rules of kernels.h.
 */
#ifndef KERNELS_CUDA_FUSED_CLASSIFIER_H
#define KERNELS_CUDA_FUSED_CLASSIFIER_H
#include "kernels/cuda/base/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CLASSIFIER_UNITS   128
#define CLASSIFIER_CLASSES 12  /* maximum number of classes */
#define CLASSIFIER_INPUTS  256 /* the number of inputs is a multiple of this */

struct kx_classifier {
	int inputs, classes, width; /* width: number of floats per image in logits and d_logits */
	const float *x;             /* layout [image][input] */
	const float *mask;          /* NULL, or dX is 0 where mask is not > 0; same layout as x */
	const float *weight, *transposed; /* layouts [input][unit] and [unit][input] */
	const float *bias;
	const float *class_weight, *class_bias; /* layouts [unit][width] and [width] */
	float *hidden, *d_hidden;               /* layout [image][CLASSIFIER_UNITS] */
	float *logits, *d_logits, *loss;
	float *dx;
};

/* Computes hidden from x. */
int kx_classifier_hidden(struct kx_classifier h, int images, cudaStream_t stream);
/* Computes logits from hidden. */
int kx_classifier_logits(struct kx_classifier h, int images, cudaStream_t stream);
/* Computes logits, loss, d_logits, d_hidden and dx from hidden. */
int kx_classifier_dgrad(struct kx_classifier h, struct kx_batch batch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
