/*
 * cuda_net.h - a model as the cuda device runs it: planes, steps between them, and the tables that
 * the kernels look offsets up in. Any model the text format can express.
 *
 * Life: net_plan counts, net_place says where everything lies (twice: once to learn how much memory
 * it takes), net_fill writes the tables. Then net_pack, net_forward and net_gradient only launch.
 * Memory that was placed is the caller's; the rest goes with net_release.
 *
 * Thread: the backend's.
 */
#ifndef KERNELS_CUDA_NET_H
#define KERNELS_CUDA_NET_H
#include "common/model.h"
#include "kernels/kx.h"

/* One block of device memory, carved from the front. base NULL: only counts. */
struct cuda_arena {
	char *base;
	size_t used;
	int overflow;
};

/* `n` values of `size` bytes, aligned to 256; NULL while counting. */
void *arena_take(struct cuda_arena *a, size_t n, size_t size);

/* A table: made on the host, read on the device. */
struct net_table {
	void *host, *device;
	size_t n, size;
};

enum net_kind { NET_WEIGHTS, NET_POOL, NET_RELU, NET_DROPOUT };

struct net_step {
	enum net_kind kind;
	const struct layer *layer;
	size_t number; /* of the layer */
	int in, out;   /* planes */
	int relu;      /* weights: the next layer is a ReLU, and done here */
	int learns;    /* something before it learns: errors go on */

	struct kx_weights w;
	int run;                   /* weights: floats of a window's row */
	float *forward, *backward; /* packed weights */
	float *bias;
	struct net_table taps, cells;           /* forward */
	struct net_table back_taps, back_cells; /* errors */
	struct net_table spots;                 /* weights' gradient */
	struct kx_drop drop;
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
	float *partial; /* of the weight gradient under way */
	float *loss;    /* of each image */
};

/* PS_ENOMEM: too large for this device's offsets, or no memory. Release in any case. */
int net_plan(struct net *n, const struct model *m, int precision, size_t images,
	struct err *e) PS_MUST_CHECK;
void net_release(struct net *n);
void net_place(struct net *n, struct cuda_arena *a);
/* Also zeroes the planes. */
int net_fill(struct net *n, cudaStream_t stream) PS_MUST_CHECK;

/* Parameters into the products' order. */
int net_pack(const struct net *n, const float *params, cudaStream_t stream) PS_MUST_CHECK;
int net_forward(const struct net *n, struct kx_batch batch, cudaStream_t stream) PS_MUST_CHECK;
/* net_forward, the loss of each image, and the mean gradient into `grad`. */
int net_gradient(
	const struct net *n, struct kx_batch batch, float *grad, cudaStream_t stream) PS_MUST_CHECK;
/* Shares that a weight gradient is summed in. */
int net_splits(const struct net_step *s, size_t images);
/* The last plane: width floats per image. */
const float *net_scores(const struct net *n, size_t *width);

#endif
