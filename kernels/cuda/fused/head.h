/*
 * head.h - the end of a net that classifies: fc:128, ReLU and fc of a few classes, softmax and
 * loss, and the way back through both, in two kernels. As kx_rows and kx_loss otherwise, and as
 * exact as KX_SPLIT.
 */
#ifndef KERNELS_CUDA_FUSED_HEAD_H
#define KERNELS_CUDA_FUSED_HEAD_H
#include "kernels/cuda/base/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HEAD_UNITS   128
#define HEAD_CLASSES 12  /* at most */
#define HEAD_INPUTS  256 /* come in these */

struct kx_head {
	int inputs, classes, width; /* width: floats per image in scores and their errors */
	const float *in;            /* inputs of each image */
	const float *mask;          /* NULL, or errors count where this, laid out as in, > 0 */
	const float *weight, *transposed; /* [input][unit] and [unit][input] */
	const float *bias;
	const float *class_weight, *class_bias; /* [unit][width] */
	float *hidden, *hidden_error;           /* HEAD_UNITS of each image */
	float *scores, *score_error, *loss;
	float *in_error;
};

/* in -> hidden */
int kx_head_hidden(struct kx_head h, int images, cudaStream_t stream);
/* hidden -> scores */
int kx_head_scores(struct kx_head h, int images, cudaStream_t stream);
/* hidden -> scores, loss and all errors */
int kx_head_errors(struct kx_head h, struct kx_batch batch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
