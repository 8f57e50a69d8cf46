/*
 * net.h - how the path cuda_net runs a model: tensors, the steps between them, and the offset
 * tables of the kernels. The path supports every model of the text format. plan.c makes the plan,
 * memory_plan.c places it in memory, net.c launches the kernels.
 *
 * Thread: one thread at a time uses a device, as device.h says.
 */
#ifndef KERNELS_CUDA_NET_H
#define KERNELS_CUDA_NET_H
#include "kernels/cuda/path.h"
#include "kernels/cuda/fused/conv1.h"
#include "kernels/cuda/fused/classifier.h"
#include "kernels/cuda/fused/conv2.h"

/* A table that the host computes and the device reads. */
struct net_table {
	void *host, *device;
	size_t n, size;
};

enum net_kind {
	NET_CONV1, /* fused conv1 + ReLU + pool: conv1.h */
	NET_CONV2, /* fused conv2 + ReLU + pool: conv2.h */
	NET_WEIGHTS,
	NET_POOL, /* a pool whose windows cover each value exactly once */
	NET_DROPOUT,
	NET_PLAIN, /* a layer of plain.c, see struct plain_layer in path.h */
	NET_BATCHNORM,
};

struct net_step {
	enum net_kind kind;
	const struct layer *layer;
	size_t number; /* number of the step's first layer */
	int in, out;   /* numbers of the step's input tensor and output tensor */
	/* add: number of its skip's input; skip: number of its add's output; else -1 */
	int other;
	int other_stride; /* skip: stride of its add */
	int relu;         /* NET_WEIGHTS: 1: a ReLU follows and is fused into this step */
	int needs_dx;     /* 1: an earlier step has weights */

	struct kx_weights w;
	int run_length;      /* NET_WEIGHTS: number of floats of a contiguous K run */
	struct kx_layer own; /* parameters and split-K workspace */
	size_t sum_at;       /* offset in net.sums of own.sum, or of the sums of batchnorm */
	struct net_table fprop_runs, fprop_pixels;
	struct net_table dgrad_runs, dgrad_pixels;
	struct net_table wgrad_positions;
	struct kx_drop drop;
	struct cuda_batchnorm batchnorm;
	struct kx_conv1 conv1;
	/* 1: NET_CONV2 follows; its dgrad kernel also computes the wgrad of this step */
	int before_conv2;
	struct kx_conv2 conv2;
};

struct net_tensor {
	struct kx_tensor value;
	float *grad; /* gradients of the values, in the same layout */
	int pad_top, pad_left, pad_bottom, pad_right;
	int relu; /* 1: output of a ReLU: the gradient is 0 where the value is not > 0 */
};

struct net {
	const struct model *model;
	int precision, fused, forward_only; /* as in struct path_options */
	size_t images;                      /* number of images of the largest batch */
	int n_tensors, n_steps;
	struct net_tensor tensor[MODEL_MAX_LAYERS + 1];
	struct net_step step[MODEL_MAX_LAYERS];
	int has_classifier; /* 1: classifier.h runs the last two steps */
	struct kx_classifier classifier;
	uint32_t *trouble; /* as in struct cuda_path */
	float *sums;       /* sums of gradients of all steps */
	size_t n_sums;
	float *loss; /* loss of each image */
};

/* Makes the plan for model `m`. Call net_release in the end, also after a failure. PS_ENOMEM: no
 * memory, or the model is too large for 32-bit offsets. */
int net_plan(struct net *n, const struct model *m, const struct path_options *o,
	struct err *e) PS_MUST_CHECK;
void net_release(struct net *n);
void net_place(struct net *n, struct cuda_arena *a);
/* Copies the tables to the device and clears the tensors. */
int net_fill(struct net *n, cudaStream_t stream) PS_MUST_CHECK;
/* Returns the number of rows of a layer's parameters. The biases are the last row. */
size_t net_rows(const struct net_step *s);
const float *net_biases(const struct net_step *s);
/* Returns the number of split-K slices of a step's weight gradient for `images` images. */
int net_slices(const struct net_step *s, size_t images);

#endif
