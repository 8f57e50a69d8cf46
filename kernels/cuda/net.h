/*
 * net.h - a model as the cuda device runs it: planes, steps between them, and the tables that
 * the kernels look offsets up in. Any model the text format can express. plan.c makes the
 * plan, memory_plan.c finds room for it, net.c launches.
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
	NET_FIRST,  /* conv, relu and pool of conv1.h */
	NET_SECOND, /* those of conv2.h */
	NET_WEIGHTS,
	NET_POOL,
	NET_RELU,
	NET_DROPOUT,
};

struct net_step {
	enum net_kind kind;
	const struct layer *layer;
	size_t number; /* of the layer */
	int in, out;   /* planes */
	int relu;      /* weights: the next layer is a ReLU, and done here */
	int learns;    /* something before it learns: errors go on */

	struct kx_weights w;
	int run;             /* weights: floats of a window's row */
	struct kx_layer own; /* weights: parameters, and what their gradient is summed from */
	size_t sum_at;       /* own.sum's place among all sums */
	struct net_table taps, cells;           /* forward */
	struct net_table back_taps, back_cells; /* errors */
	struct net_table spots;                 /* weights' gradient */
	struct kx_drop drop;
	struct kx_first first;
	int before_second; /* which makes this one's gradient */
	struct kx_second second;
};

struct net_plane {
	struct kx_plane value;
	float *error;
	int pad_top, pad_left, pad_bottom, pad_right;
	int relu; /* what fills it ends in a ReLU: errors count where its values are > 0 */
};

struct net {
	const struct model *model;
	int precision;
	size_t images; /* most at a time */
	int n_planes, n_steps;
	struct net_plane plane[MODEL_MAX_LAYERS + 1];
	struct net_step step[MODEL_MAX_LAYERS];
	int has_head; /* the last two steps are head.h's */
	struct kx_head head;
	float *sums; /* of gradients, of all steps */
	size_t n_sums;
	float *loss; /* of each image */
};

/* PS_ENOMEM: too large for this device's offsets, or no memory. Release in any case. */
int net_plan(struct net *n, const struct model *m, int precision, size_t images,
	struct err *e) PS_MUST_CHECK;
void net_release(struct net *n);
void net_place(struct net *n, struct cuda_arena *a);
/* Tables to the device, zeros into the planes. */
int net_fill(struct net *n, cudaStream_t stream) PS_MUST_CHECK;
/* Rows of a layer's parameters, that of the biases included, which is the last. */
size_t net_rows(const struct net_step *s);
const float *net_biases(const struct net_step *s);
/* Shares that a step's weight gradient is summed in. */
int net_splits(const struct net_step *s, size_t images);

#endif
