/*
 * net.h - a model as the cuda device runs it: tensors, the steps between them, and the offset
 * tables of the kernels. Any model of the text format. plan.c makes the plan, memory_plan.c places
 * it in memory, net.c launches.
 *
 * Thread: the backend's.
 */
#ifndef KERNELS_CUDA_NET_H
#define KERNELS_CUDA_NET_H
#include "kernels/cuda/path.h"
#include "kernels/cuda/fused/conv1.h"
#include "kernels/cuda/fused/head.h"
#include "kernels/cuda/fused/conv2.h"

/* A table: made on the host, read on the device. */
struct net_table {
	void *host, *device;
	size_t n, size;
};

enum net_kind {
	NET_CONV1, /* fused conv1 + ReLU + pool: conv1.h */
	NET_CONV2, /* fused conv2 + ReLU + pool: conv2.h */
	NET_WEIGHTS,
	NET_POOL,
	NET_RELU,
	NET_DROPOUT,
};

struct net_step {
	enum net_kind kind;
	const struct layer *layer;
	size_t number; /* of the layer */
	int in, out;   /* tensors */
	int relu;      /* NET_WEIGHTS: the next layer is a ReLU, fused into this step */
	int needs_dx;  /* an earlier step has weights */

	struct kx_weights w;
	int run_length; /* NET_WEIGHTS: floats of a contiguous K run, a row of the filter window */
	struct kx_layer own; /* parameters and split-K workspace */
	size_t sum_at;       /* offset of own.sum in net.sums */
	struct net_table fprop_runs, fprop_pixels;
	struct net_table dgrad_runs, dgrad_pixels;
	struct net_table wgrad_positions;
	struct kx_drop drop;
	struct kx_conv1 conv1;
	int before_conv2; /* the next step is NET_CONV2, whose dgrad computes this wgrad */
	struct kx_conv2 conv2;
};

struct net_tensor {
	struct kx_tensor value;
	float *grad; /* same layout */
	int pad_top, pad_left, pad_bottom, pad_right;
	int relu; /* its step ends in a ReLU: the gradient is 0 where the value is not > 0 */
};

struct net {
	const struct model *model;
	int precision;
	size_t images; /* the largest batch */
	int n_tensors, n_steps;
	struct net_tensor tensor[MODEL_MAX_LAYERS + 1];
	struct net_step step[MODEL_MAX_LAYERS];
	int has_head; /* head.h runs the last two steps */
	struct kx_head head;
	float *sums; /* of gradients, of all steps */
	size_t n_sums;
	float *loss; /* of each image */
};

/* PS_ENOMEM: too large for this device's offsets, or no memory. Call net_release in any case. */
int net_plan(struct net *n, const struct model *m, int precision, size_t images,
	struct err *e) PS_MUST_CHECK;
void net_release(struct net *n);
void net_place(struct net *n, struct cuda_arena *a);
/* Copy the tables to the device and clear the tensors. */
int net_fill(struct net *n, cudaStream_t stream) PS_MUST_CHECK;
/* Rows of a layer's parameters. The biases are the last row. */
size_t net_rows(const struct net_step *s);
const float *net_biases(const struct net_step *s);
/* Split-K slices of a step's weight gradient. */
int net_slices(const struct net_step *s, size_t images);

#endif
