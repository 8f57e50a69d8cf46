/*
 * path.h - one way to run a model on the GPU: what the cuda device needs of it. There are two:
 * cuda_net (any model) and cuda_seed (seed:F on MNIST's images, fused).
 *
 * Life: open plans, place says where everything lies (twice: once to learn how much memory it
 * takes), fill writes what stays. The rest only launches. Vectors named params, grad and sum are
 * device memory in the manifest's order. Memory that was placed is the caller's.
 *
 * Thread: the backend's.
 */
#ifndef KERNELS_CUDA_PATH_H
#define KERNELS_CUDA_PATH_H
#include "common/model.h"
#include "kernels/cuda/base/kernels.h"

/* One block of memory, carved from the front. base NULL: only counts. */
struct cuda_arena {
	char *base;
	size_t used;
	int overflow;
};

/* `n` values of `size` bytes, aligned to 256; NULL while counting. */
void *arena_take(struct cuda_arena *a, size_t n, size_t size);

struct cuda_path {
	int (*fits)(const struct model *m);
	/* For up to `images` images at a time. PS_ENOMEM; *self is NULL then. */
	int (*open)(
		void **self, const struct model *m, int precision, size_t images, struct err *e);
	void (*close)(void *self);
	void (*place)(void *self, struct cuda_arena *a);
	int (*fill)(void *self, cudaStream_t stream);
	/* Make `params` the weights. */
	int (*load)(void *self, const float *params, cudaStream_t stream);
	int (*forward)(void *self, struct kx_batch batch, cudaStream_t stream);
	/* What forward wrote: *width floats per image, the classes first. */
	const float *(*scores)(const void *self, size_t *width);
	/* Mean gradient and loss. */
	int (*gradient)(
		void *self, struct kx_batch batch, float *grad, double *loss, cudaStream_t stream);
	/* Local training: forget the sum; `steps` steps of SGD with each image's loss added to
	 * *loss and now->step moved on; weights and sum (NULL: not wanted). */
	int (*start)(void *self, cudaStream_t stream);
	int (*train)(void *self, struct kx_batch batch, struct kx_now *now, int steps, double *loss,
		cudaStream_t stream);
	int (*save)(void *self, float *params, float *sum, cudaStream_t stream);
};

extern const struct cuda_path cuda_net, cuda_seed;

#endif
