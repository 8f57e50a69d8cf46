/*
 * conv1.h - the first layers of a net on 28 x 28 images in one kernel each way: convolution of
 * one channel, 3 x 3 or 5 x 5, 32 filters or a multiple, ReLU, pool:2. Pixels come from the data
 * set, and only pooled values and which of four cells won go to memory. As kernels.h otherwise.
 */
#ifndef KERNELS_CUDA_FUSED_CONV1_H
#define KERNELS_CUDA_FUSED_CONV1_H
#include "kernels/cuda/base/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FIRST_SIDE  28
#define FIRST_LANES 32  /* filters come in these */
#define FIRST_PARTS 264 /* of the gradient: two blocks for each of 132 multiprocessors */

struct kx_first {
	int size, f;         /* 3 or 5; filters */
	uint32_t *fragments; /* weights as tensor cores want them, see conv_place */
	const float *bias;
	struct kx_plane out; /* pooled values */
	uint16_t *pieces;    /* NULL, or where they go instead: what conv2.h reads */
	const float *error;  /* their errors, laid out alike; whether the ReLU was open or not */
	uint8_t *winner;     /* [image][position][filter], see conv1.cu */
	float *partial;      /* as kx_outer's: FIRST_PARTS splits, m = size * size */
};

/* Words of `fragments`. */
size_t kx_first_fragments(int size, int f);
int kx_first_forward(struct kx_first l, struct kx_batch batch, cudaStream_t stream);
/* The same, where l.pieces is not NULL. */
int kx_first_pieces(struct kx_first l, struct kx_batch batch, cudaStream_t stream);
int kx_first_gradient(struct kx_first l, struct kx_batch batch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
