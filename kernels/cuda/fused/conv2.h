/*
 * conv2.h - the first two convolutions of a net like cnn99 where their 3 million products an
 * image want another way than kx_rows': the second one, 32 channels of 12 x 12 to 64 filters of
 * 5 x 5, ReLU, pool:2, and what is behind it: its errors never leave the multiprocessor that makes
 * the first one's gradient of them.
 *
 * Its operands are fp16, with 11 bits as tf32 has, at the rate of bf16. Forward a value is the sum
 * of two of them, so nearly as exact as fp32; behind the loss it is one, under a power of two that
 * is common to the errors of a launch, so that none is too large and what becomes zero is smaller
 * than the greatest by 2^-38. Forward needs values of at most 65504 and weights of at most 1023.
 *
 * kx_second_forward needs sm_90a (wgmma). As kernels.h otherwise.
 */
#ifndef KERNELS_CUDA_FUSED_CONV2_H
#define KERNELS_CUDA_FUSED_CONV2_H
#include "kernels/cuda/base/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SECOND_SIZE      5
#define SECOND_IN        12
#define SECOND_CHANNELS  32
#define SECOND_OUT       8
#define SECOND_FILTERS   64
#define SECOND_PIECES    2
#define SECOND_PARTS     66  /* most of the gradient: two blocks each for 132 multiprocessors */
#define SECOND_FEW_PARTS 132 /* most of kx_second_errors, but with many images */
/* fp16 numbers of an image, [piece][8 channels][pixel][channel], and of all weights. */
#define SECOND_IMAGE   (SECOND_PIECES * SECOND_CHANNELS * SECOND_IN * SECOND_IN)
#define SECOND_WEIGHTS (SECOND_SIZE * SECOND_SIZE * SECOND_FILTERS * SECOND_CHANNELS)

struct kx_second {
	uint16_t *forward, *backward; /* weights, see second_place: PIECES and 1 of them */
	const float *bias;            /* of each filter */
	uint16_t *in;                 /* images of SECOND_IMAGE */
	const uint8_t *in_winner;     /* as conv1.h's */
	struct kx_plane out;          /* pooled */
	uint8_t *winner;              /* as out: which of four won */
	const float *out_error;       /* laid out as out; only where out's values are > 0 */
	float *most;                  /* of eight images each: the greatest of their errors */
};

/* in -> out and winner */
int kx_second_forward(struct kx_second l, int images, cudaStream_t stream);
/* out_error -> most, and the gradient of the first convolution's weights, as kx_outer's: so many
 * splits */
int kx_second_errors(
	struct kx_second l, struct kx_batch batch, float *partial, cudaStream_t stream);
int kx_second_error_parts(int images);
/* out_error, most and in -> the weights' gradient, as kx_outer's: so many splits */
int kx_second_gradient(struct kx_second l, float *partial, int images, cudaStream_t stream);
int kx_second_parts(int images);

#ifdef __cplusplus
}
#endif
#endif
