/*
 * path.h - one way to run a model on the GPU: the interface between the cuda device and its two
 * paths, cuda_net (any model) and cuda_seed (seed:F on MNIST's images, fused).
 *
 * Life cycle: `open` plans. `place` assigns memory; it is called twice, first to learn the size.
 * `fill` writes the constants. All other calls only launch. The vectors params, grad and sum are
 * device memory in the manifest's order. The caller owns the placed memory.
 *
 * Thread: the backend's.
 */
#ifndef KERNELS_CUDA_PATH_H
#define KERNELS_CUDA_PATH_H
#include "common/model.h"
#include "kernels/cuda/base/kernels.h"

/* One block of memory, carved from the front. base NULL: only count. */
struct cuda_arena {
	char *base;
	size_t used;
	int overflow;
};

/* `n` values of `size` bytes, aligned to 256; NULL while counting. */
void *arena_take(struct cuda_arena *a, size_t n, size_t size);

struct cuda_path {
	int (*fits)(const struct model *m);
	/* For batches of up to `images`. PS_ENOMEM; then *self is NULL. */
	int (*open)(
		void **self, const struct model *m, int precision, size_t images, struct err *e);
	void (*close)(void *self);
	void (*place)(void *self, struct cuda_arena *a);
	int (*fill)(void *self, cudaStream_t stream);
	/* Make `params` the weights. */
	int (*load)(void *self, const float *params, cudaStream_t stream);
	/* As struct device. */
	void (*kernel)(const void *self, size_t layer, size_t batch, char *text, size_t size);
	int (*forward)(void *self, struct kx_batch batch, cudaStream_t stream);
	/* The output of forward: *width floats for each image, the classes first. */
	const float *(*logits)(const void *self, size_t *width);
	/* Mean gradient and loss. */
	int (*gradient)(
		void *self, struct kx_batch batch, float *grad, double *loss, cudaStream_t stream);
	/* Local training. start: clear the sum. train: `steps` steps of SGD; adds each image's loss
	 * to *loss and advances now->step. save: weights and sum (NULL: not requested). */
	int (*start)(void *self, cudaStream_t stream);
	int (*train)(void *self, struct kx_batch batch, struct kx_now *now, int steps, double *loss,
		cudaStream_t stream);
	int (*save)(void *self, float *params, float *sum, cudaStream_t stream);
};

extern const struct cuda_path cuda_net, cuda_seed;

#endif
