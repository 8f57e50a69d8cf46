/*
 * seed.h - kernels for one family of nets, seed:F on 28 x 28 images and 10 classes: conv:F:3 relu
 * pool:2 fc:10. There are three ways to run a training step (kx_seed_tiling and
 * kx_seed_persistent_ranges choose):
 *
 *   four launches        fprop, logits, wgrad, SGD; fp32, or half precision for large batches
 *   cluster kernel       pixels to gradient slices in one launch, then SGD; small batch, small net
 *   persistent kernel    many steps in one cooperative launch; bf16, small batches
 *
 * A *feature* is the pooled value of filter f at position p of 13 x 13. Of a feature only the
 * argmax of its pool window goes to memory (2 bits); wgrad computes the value again. Filters are
 * padded to a multiple of eight. Everything but the half-precision and the persistent kernels is as
 * exact as fp32 in any precision. The rules of kernels.h apply.
 */
#ifndef KERNELS_CUDA_FUSED_SEED_H
#define KERNELS_CUDA_FUSED_SEED_H
#include "kernels/cuda/base/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SEED_SIDE      28
#define SEED_POSITIONS 169
#define SEED_CLASSES   10
#define SEED_ROW       12 /* floats of a feature's 10 fc weights, and of a filter's 9 and bias */
#define SEED_GROUP     16 /* images that a warp processes at a time */
/* Cluster kernel: blocks of a cluster, and images of a cluster. */
#define SEED_CLUSTER        8
#define SEED_CLUSTER_IMAGES 8
/* Half-precision kernels: the fewest image groups; filters of a block, in eights; positions of a
 * block. */
#define SEED_HALF_GROUPS        16
#define SEED_HALF_FILTER_GROUPS 4
#define SEED_HALF_POSITIONS     16
/* Persistent kernel: the largest batch whose net and images fit in the multiprocessors. */
#define SEED_PERSISTENT_IMAGES 104
#define SEED_LL_LOGIT_LINES    4  /* LL lines of an image's logits, from one block */
#define SEED_LL_CONV_LINES     32 /* LL lines of the convolution's gradient, from one block */

/* Parameters, their sums and gradients in the order of the kernels: fc
 * [position][filter][SEED_ROW], conv [filter][SEED_ROW], fc bias [SEED_ROW], contiguous. */
struct seed_params {
	float *fc, *conv, *bias;
};

/* A line of the LL protocol between the blocks of the persistent kernel: three floats and a flag,
 * which is the step that they belong to. Zero at first. */
struct ll_line {
	float v[3];
	uint32_t flag;
};
struct seed_exchange {
	struct ll_line *logits;   /* [image][block][SEED_LL_LOGIT_LINES] */
	struct ll_line *d_logits; /* [image][SEED_LL_LOGIT_LINES] */
	struct ll_line *conv;     /* [block][SEED_LL_CONV_LINES] */
	struct ll_line *losses;   /* [image] */
	uint32_t *steps;          /* done so far */
};

struct kx_seed {
	int f, f_pad; /* filters, and padded to a multiple of eight */
	int half;     /* half-precision and persistent kernels may be used */
	int multiprocessors;
	struct seed_params params, sum;
	uint32_t *fragments;      /* conv weights as operands of the tensor cores: exact_conv.cuh */
	uint8_t *argmax;          /* [group][position][filter][4], see seed_fprop.cu */
	uint32_t *half_fragments; /* see seed_half.cuh */
	float *half_scales;       /* [filter][4], likewise */
	float *partial_logits;    /* [filter block and position range][image][SEED_CLASSES] */
	float *logits;            /* [image][SEED_CLASSES] */
	float *d_logits;          /* [image, padded to whole groups][SEED_ROW] */
	float *loss;              /* [image] */
	float *fc_workspace;      /* [slice][position][filter][SEED_ROW] */
	float *conv_workspace;    /* [slice][position block][filter][SEED_ROW] */
	struct seed_exchange exchange;
};

/* How a batch is tiled. The caller sizes the workspaces with it. */
struct seed_tiling {
	int groups;                               /* of SEED_GROUP images */
	int warps_filters, filter_blocks, ranges; /* fprop; ranges of positions */
	int lane_blocks, position_blocks, slices; /* wgrad; split-K slices of the images */
	int clusters;                             /* of kx_seed_cluster; 0: use the other kernels */
	int half;                                 /* use kx_seed_half_* for fprop and wgrad */
};
struct seed_tiling kx_seed_tiling(int f_pad, int half, int images);

/* Words of fragments and half_fragments; bytes of argmax. */
size_t kx_seed_fragments(int f_pad);
size_t kx_seed_half_fragments(int f_pad);
size_t kx_seed_argmax_bytes(int f_pad, int half, size_t images);
/* conv weights -> fragments. If `manifest` is not NULL, load all parameters from it first. */
int kx_seed_pack(struct kx_seed s, const float *manifest, cudaStream_t stream);
/* Parameters or sums into the manifest's order. */
int kx_seed_unpack(struct kx_seed s, struct seed_params from, float *manifest, cudaStream_t stream);
/* Pixels -> partial_logits, and argmax if batch.training. `step` is relative to batch.now->step. */
int kx_seed_fprop(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* partial_logits -> logits, and d_logits and losses if batch.training. */
int kx_seed_logits(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* d_logits and argmax -> fc_workspace and conv_workspace. dgrad and wgrad are fused. */
int kx_seed_wgrad(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* The same in half precision, if the tiling says so: gradients in fp16, logits in bf16. */
int kx_seed_half_fprop(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
int kx_seed_half_wgrad(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* fprop, logits and wgrad in one launch, if the tiling has clusters. Does not write `logits`. */
int kx_seed_cluster(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* Ranges of positions, one block each for eight filters, of the persistent kernel. 0: it cannot run
 * this batch. */
int kx_seed_persistent_ranges(struct kx_seed s, int images);
/* `steps` steps from pixels to new weights in one launch; the results of kx_seed_sgd_step. `now`
 * NULL: one gradient, added to the sum; *loss = the mean. */
int kx_seed_persistent(struct kx_seed s, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream);
/* Adds up the split-K slices: `grad` in the manifest's order; *loss = the mean. */
int kx_seed_reduce_gradient(
	struct kx_seed s, int images, float *grad, double *loss, cudaStream_t stream);
/* Adds up the slices to g: sum += g, params -= now->rate * g; *loss += the loss of each image;
 * now->step += steps. */
int kx_seed_sgd_step(struct kx_seed s, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
