/*
 * path.h - the interface between the cuda device and its three paths. A path is one way to run a
 * model on the GPU: cuda_net runs any model, cuda_tensor any model in fp32, tf32 or bf16, and
 * cuda_seed runs seed:F on 28x28 images with fused kernels.
 *
 * Life cycle: `open` makes the plan. `place` assigns memory; the caller calls it twice, the first
 * time only to count bytes. `fill` writes the constants. All other functions only launch kernels.
 * The vectors params, grad and sum are device memory in the manifest's order. The caller owns the
 * placed memory.
 *
 * Thread: one thread at a time uses a device, as device.h says.
 */
#ifndef KERNELS_CUDA_PATH_H
#define KERNELS_CUDA_PATH_H
#include "common/model.h"
#include "kernels/cuda/base/kernels.h"
#include "kernels/device/types.h"

/* A bump allocator on one block of memory. If `base` is NULL, the allocator only counts bytes. */
struct cuda_arena {
	char *base;
	size_t used;
	int overflow;
};

/* Returns memory for `n` values of `size` bytes, aligned to 256 bytes. Returns NULL while counting,
 * and sets a->overflow if the number of bytes overflows. */
void *arena_take(struct cuda_arena *a, size_t n, size_t size);

struct path_options {
	int precision;    /* a value of enum kx_precision */
	int fused;        /* 1: the kernels of fused/ may run */
	int forward_only; /* 1: only `load` and `forward` are called */
	size_t images;    /* number of images of the largest batch */
};

struct cuda_path {
	int (*fits)(const struct model *m, const struct path_options *o);
	/* Makes the plan. After PS_ENOMEM, *self is NULL. */
	int (*open)(
		void **self, const struct model *m, const struct path_options *o, struct err *e);
	void (*close)(void *self);
	/* Returns 1 if kernels of the path may give up (enum kx_trouble). A kernel that gives up
	 * sets *trouble (see `place`). If the pointer may_fail is NULL, no kernel does so. */
	int (*may_fail)(const void *self);
	/* `trouble`: device memory with an enum kx_trouble. Once a kernel has set it, no kernel
	 * clears it. */
	void (*place)(void *self, struct cuda_arena *a, uint32_t *trouble);
	int (*fill)(void *self, cudaStream_t stream);
	/* Makes `params` the current weights. */
	int (*load)(void *self, const float *params, cudaStream_t stream);
	/* Does what the member of struct device with this name does. */
	void (*kernel)(const void *self, size_t layer, size_t batch, char *text, size_t size);
	int (*forward)(void *self, struct kx_batch batch, cudaStream_t stream);
	/* Returns the output of forward: *width floats per image. The first of them are the logits
	 * of the classes, and the others are padding. */
	const float *(*logits)(const void *self, size_t *width);
	/* Computes the mean gradient and the mean loss. */
	int (*gradient)(
		void *self, struct kx_batch batch, float *grad, double *loss, cudaStream_t stream);
	/* Local training. `start` sets the sum to zero. `train` runs `steps` steps of SGD, adds the
	 * loss of each image to *loss and advances now->step. `save` writes the weights and the
	 * sum, if their pointers are not NULL. */
	int (*start)(void *self, cudaStream_t stream);
	int (*train)(void *self, struct kx_batch batch, struct kx_now *now, int steps, double *loss,
		cudaStream_t stream);
	int (*save)(void *self, float *params, float *sum, cudaStream_t stream);
};

/* Returns 1 if each window of the pool has at least one value and each value of the input is in
 * exactly one window. */
int cuda_pool_covers(const struct layer *l);
/* Returns 1 if the layer is a pool of 2 x 2 without padding that covers its input. */
int cuda_pool_2x2(const struct layer *l);

/* A layer of plain_layers.cu or elementwise.cu. x, y: its input and output; dx, dy: their
 * gradients. `other`: for an add, the input of its skip; for dgrad of a skip, the gradient of the
 * output of its add. argmax: the argument of kx_max_pool with this name. relu: 1 if the layer is an
 * add that a ReLU follows. */
struct plain_layer {
	const struct layer *layer;
	struct kx_tensor x, y, dx, dy, other;
	int other_stride; /* skip, dgrad: the stride of its add */
	uint8_t *argmax;
	const void *mask;
	int relu, images, bf16;
};
/* cuda_plain_fprop launches the forward pass of a layer, cuda_plain_dgrad its backward pass.
 * PS_EDEVICE: there is no kernel for the layer. */
int cuda_plain_fprop(const struct plain_layer *p, cudaStream_t stream);
int cuda_plain_dgrad(const struct plain_layer *p, cudaStream_t stream);

/* A batchnorm of both general paths. params.cu and sgd.cu see its parameters as two layers with one
 * weight and one bias per channel: own[0] has the weights and biases, and own[1] has the running
 * means (as weights) and the running variances (as biases). */
struct cuda_batchnorm {
	struct kx_layer own[2];
	struct kx_batchnorm kernel;
};
/* Fills *b for layer `l`. `channels` is the number of channels, padding included. */
void cuda_batchnorm_plan(
	struct cuda_batchnorm *b, const struct model *m, const struct layer *l, int channels);
/* Returns the number of floats that are needed to sum the gradients and statistics of the
 * batchnorm. */
size_t cuda_batchnorm_sums(const struct cuda_batchnorm *b);
/* Assigns the memory of *b. `sums` has cuda_batchnorm_sums floats, or is NULL if the path only
 * evaluates or if `a` only counts bytes. */
void cuda_batchnorm_place(
	struct cuda_batchnorm *b, float *sums, int forward_only, struct cuda_arena *a);
/* Appends own[0] and own[1] to `all`. Returns 0 if `all` has no room for two layers. */
int cuda_batchnorm_append(const struct cuda_batchnorm *b, struct kx_layers *all);

/* Returns the norm of the model's images. */
struct kx_norm cuda_norm(const struct model *m);

extern const struct cuda_path cuda_net, cuda_seed, cuda_tensor;

#endif
