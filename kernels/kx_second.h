/*
 * kx_second.h - the second convolution of a net like cnn99, 32 channels of 12 x 12 to 64 filters of
 * 5 x 5, ReLU, pool:2, where its 3 x 3.3 million products an image want another way than kx_rows':
 * eight images stay in a multiprocessor's shared memory. Behind the loss in tf32. As kx.h
 * otherwise.
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
/* Words of `forward`, and of `backward`. */
#define SECOND_FRAGMENTS (SECOND_SIZE * SECOND_SIZE * SECOND_FILTERS * SECOND_CHANNELS)

struct kx_second {
	uint32_t *forward, *backward; /* weights as tensor cores want them, see kx_second_pack.cu */
	const float *bias;            /* of each filter */
	struct kx_plane in, out;      /* out: pooled */
	uint8_t *winner;              /* as out: which of four won */
	const float *out_error;       /* laid out as out; only where out's values are > 0 */
	float *in_error;              /* laid out as in; whatever in's values are */
};

/* From the weights [f][c][taps]. */
int kx_second_pack(struct kx_second l, const float *weight, cudaStream_t stream);
/* in -> out and winner */
int kx_second_forward(struct kx_second l, int images, cudaStream_t stream);
/* out_error -> in_error */
int kx_second_errors(struct kx_second l, int images, cudaStream_t stream);
/* out_error and in -> the weights' gradient, as kx_outer's: SECOND_PARTS splits */
int kx_second_gradient(struct kx_second l, float *partial, int images, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
