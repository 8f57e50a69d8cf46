/*
 * seed.h - kernels of the seed networks, seed:F: conv:F:3 relu pool:2 fc:10 on 28 x 28 images with
 * 10 classes. kx_seed_tiling and kx_seed_persistent_ranges choose one of three ways to run a
 * training step:
 *
 * - Four launches: fprop, logits, wgrad and SGD, in fp32 or in half precision.
 * - The cluster kernel: one launch from pixels to gradient slices, then SGD, for small batches of
 *   small networks in fp32.
 * - The persistent kernel: many steps in one cooperative launch, for small batches in bf16.
 *
 * A *feature* is the pooled value of filter f at position p of 13 x 13. fprop writes only the
 * argmax of the feature's pool window to memory (2 bits); wgrad computes the feature again. Filters
 * are padded to a multiple of eight. In every precision, all kernels are as exact as fp32 except
 * the half-precision and the persistent kernels. The functions keep the rules of kernels.h.
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
/* number of floats of a row: 10 fc weights of a feature, or 9 weights and a bias */
#define SEED_ROW   12
#define SEED_GROUP 16 /* number of images that a warp processes at a time */
/* The cluster kernel has this number of blocks and of images in a cluster. */
#define SEED_CLUSTER        8
#define SEED_CLUSTER_IMAGES 8
/* Half-precision kernels: the number of groups of eight filters, and of positions, of a wgrad
 * block. */
#define SEED_HALF_FILTER_GROUPS 4
#define SEED_HALF_POSITIONS     16
/* Persistent kernel: the largest number of images that fits in the shared memory of a block. */
#define SEED_PERSISTENT_IMAGES 104
/* Persistent kernel: the largest number of passes of a step. A pass has at most
 * SEED_PERSISTENT_IMAGES images. */
#define SEED_PERSISTENT_PASSES 4
/* Persistent kernel: the maximum number of blocks. The number of blocks is the same on every GPU,
 * so that the results are the same, too. A GPU with fewer multiprocessors than blocks uses other
 * kernels. */
#define SEED_PERSISTENT_BLOCKS 132
#define SEED_LL_LOGIT_LINES    4  /* number of LL lines of one image's logits, per block */
#define SEED_LL_CONV_LINES     32 /* number of LL lines of the conv gradient, per block */

/* Parameters or sums of gradients in the order of the kernels: fc [position][filter][SEED_ROW],
 * conv [filter][SEED_ROW], fc bias [SEED_ROW]. These three arrays are contiguous. */
struct seed_params {
	float *fc, *conv, *bias;
};

/* A line of the LL protocol between the blocks of the persistent kernel: three floats and a flag,
 * which a thread reads or writes in one access. The flag has the number of the step to which the
 * floats belong. All lines start as zeros. */
struct ll_line {
	float v[3];
	uint32_t flag;
};
struct seed_exchange {
	struct ll_line *logits;   /* layout [image][block][SEED_LL_LOGIT_LINES] */
	struct ll_line *d_logits; /* layout [image][SEED_LL_LOGIT_LINES] */
	struct ll_line *conv;     /* layout [block][SEED_LL_CONV_LINES] */
	struct ll_line *losses;   /* layout [image], and one more line for `steps` */
	uint32_t *steps;          /* number of steps done so far */
	uint32_t *trouble;        /* set to KX_TROUBLE_WAIT by a block that waited too long */
	uint64_t timeout_ns;      /* maximum time for which a block waits for another one */
};
/* The value of timeout_ns for the backends that are opened after this variable is set. Tests set
 * kx_seed_timeout_ns to one of two values. With 0, the first block starts 30 ms late, and all other
 * blocks give up. With KX_SEED_LOSE_PIXELS, the first block waits in vain for pixels. */
#define KX_SEED_LOSE_PIXELS 1
extern uint64_t kx_seed_timeout_ns;

struct kx_seed {
	int f, f_pad; /* number of filters; the same number, padded to a multiple of eight */
	int half;     /* 1: training uses the half-precision and the persistent kernels */
	int multiprocessors;
	struct seed_params params, sum;
	uint32_t *fragments; /* conv weights as mma operands, see exact_conv.cuh */
	uint8_t *argmax;     /* layout [group][position][filter][4], see seed_fprop.cu */
	/* conv weights of the half-precision kernels, see seed_half.cuh */
	uint32_t *half_fragments;
	float *half_scales; /* layout [filter][4], see seed_half.cuh */
	/* layout [filter block and position range][image][SEED_CLASSES] */
	float *partial_logits;
	float *logits;         /* layout [image][SEED_CLASSES] */
	float *d_logits;       /* layout [image, padded to whole groups][SEED_ROW] */
	float *loss;           /* layout [image] */
	float *fc_workspace;   /* layout [slice][position][filter][SEED_ROW] */
	float *conv_workspace; /* layout [slice][position block][filter][SEED_ROW] */
	struct seed_exchange exchange;
};

/* This structure says how the kernels divide a batch. The caller computes the size of the
 * workspaces from it. */
struct seed_tiling {
	int groups; /* number of groups of SEED_GROUP images */
	/* for fprop; ranges: number of parts of the positions */
	int warps_filters, filter_blocks, ranges;
	/* for wgrad; slices: number of parts of the images */
	int lane_blocks, position_blocks, slices;
	/* number of clusters of kx_seed_cluster; 0 if the caller uses the other kernels */
	int clusters;
	int half; /* 1: use kx_seed_half_* for fprop and wgrad */
};
struct seed_tiling kx_seed_tiling(int f_pad, int half, int images);

/* Return the sizes of `fragments` and `half_fragments` in words, and the size of `argmax` in
 * bytes. */
size_t kx_seed_fragments(int f_pad);
size_t kx_seed_half_fragments(int f_pad);
size_t kx_seed_argmax_bytes(int f_pad, int half, size_t images);
/* Computes the fragments from the conv weights. If `manifest` is not NULL, first loads all
 * parameters from it. */
int kx_seed_pack(struct kx_seed s, const float *manifest, cudaStream_t stream);
/* Copies parameters or sums to the manifest's order. */
int kx_seed_unpack(struct kx_seed s, struct seed_params from, float *manifest, cudaStream_t stream);
/* Computes partial_logits from the pixels, and argmax if batch.training. `step` is the number of
 * the step, counted from batch.now->step. */
int kx_seed_fprop(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* Adds up partial_logits and writes logits. If batch.training, also computes d_logits and the
 * losses. */
int kx_seed_logits(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* Runs fused dgrad and wgrad: computes fc_workspace and conv_workspace from d_logits and argmax. */
int kx_seed_wgrad(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* Run fprop and wgrad in half precision, for a tiling with `half`: gradients in fp16, logits in
 * bf16. */
int kx_seed_half_fprop(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
int kx_seed_half_wgrad(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* Runs fprop, logits and wgrad in one launch, for a tiling with `clusters`. Unlike kx_seed_logits,
 * it does not write `logits`. */
int kx_seed_cluster(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* Returns the number of position ranges of the persistent kernel. Each group of eight filters has
 * one block per range. Returns 0 if the persistent kernel cannot run this batch. */
int kx_seed_persistent_ranges(struct kx_seed s, int images);
/* Runs `steps` training steps in one launch, with the results of kx_seed_sgd_step. If `now` is
 * NULL, computes one gradient instead, adds it to the sum and sets *loss to the mean loss. */
int kx_seed_persistent(struct kx_seed s, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream);
/* Adds up the split-K slices and writes `grad` in the manifest's order. Sets *loss to the mean
 * loss. */
int kx_seed_reduce_gradient(
	struct kx_seed s, int images, float *grad, double *loss, cudaStream_t stream);
/* Adds up the slices to the gradient g. Then computes sum += g and params -= now->rate * g. Adds
 * the loss of each image to *loss, and `steps` to now->step. */
int kx_seed_sgd_step(struct kx_seed s, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
