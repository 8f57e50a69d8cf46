/*
 * kx_second.h - the second convolution of a net like cnn99, 32 channels of 12 x 12 to 64 filters of
 * 5 x 5, ReLU, pool:2, where its 2 x 3.3 million products an image behind the loss want another way
 * than kx_rows': the errors of eight images stay in a multiprocessor's shared memory. In tf32.
 * As kx.h otherwise.
 */
#ifndef KERNELS_KX_SECOND_H
#define KERNELS_KX_SECOND_H
#include "kernels/kx.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SECOND_SIZE     5
#define SECOND_IN       12
#define SECOND_CHANNELS 32
#define SECOND_OUT      8
#define SECOND_FILTERS  64
#define SECOND_PARTS    132 /* of the gradient: a block for each multiprocessor */
/* Words of `fragments`. */
#define SECOND_FRAGMENTS (SECOND_SIZE * SECOND_SIZE * SECOND_FILTERS * SECOND_CHANNELS)

struct kx_second {
	uint32_t *fragments;  /* weights as tensor cores want them, see kx_second.cu */
	struct kx_plane conv; /* values before the pool, behind bias and ReLU */
	struct kx_plane out;  /* pooled */
	uint8_t *winner;      /* as out: which of four won */
	float *conv_error;    /* laid out as conv */
	const float *out_error;
	struct kx_plane in;
	float *in_error; /* laid out as in; only where in's values are > 0 */
};

/* From the weights [f][c][taps]. */
int kx_second_pack(struct kx_second l, const float *weight, cudaStream_t stream);
/* conv -> out and winner */
int kx_second_pool(struct kx_second l, int images, cudaStream_t stream);
/* out_error -> conv_error and in_error */
int kx_second_errors(struct kx_second l, int images, cudaStream_t stream);

/* conv_error and in -> the weights' gradient, as kx_outer's: SECOND_PARTS splits */
int kx_second_gradient(struct kx_second l, float *partial, int images, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
