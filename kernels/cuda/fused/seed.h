/*
 * seed.h - kernels for one family of nets, seed:F on 28 x 28 images and 10 classes: conv:F:3
 * relu pool:2 fc:10, forward, backward and SGD in four launches, with nothing stored per feature
 * but which of its four cells won (2 bits); in two launches where a batch and its net are small; in
 * low precision many steps of small batches in one launch.
 *
 * A *feature* is filter f's pooled value at position p of 13 x 13. Filters come in eights.
 * In low precision large batches have a forward and a backward of their own, kx_seed_low_*, and
 * small ones of nets of up to 264 filters kx_seed_resident; the rest is as exact as fp32 in any
 * precision. As kernels.h: no checks, no allocation, sums in a fixed order.
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
#define SEED_ROW       12 /* floats kept of a feature's 10 weights, and of a filter's 9 and bias */
#define SEED_GROUP     16 /* images that a warp has in hand */
/* Small batches: blocks of a cluster, and the images that it has from forward to backward. */
#define SEED_CLUSTER        8
#define SEED_CLUSTER_IMAGES 8
/* Low precision: groups of images from which on it pays; a block's filters, in eights, and
 * positions. */
#define SEED_LOW_GROUPS        16
#define SEED_LOW_FILTER_GROUPS 4
#define SEED_LOW_POSITIONS     16
/* Low precision: images up to which all of the net and of a batch fits in the multiprocessors. */
#define SEED_RESIDENT_IMAGES 104
#define SEED_SCORE_WORDS     4  /* of an image, that a block tells the others */
#define SEED_CONV_WORDS      32 /* of the conv's gradient */

/* Parameters, their sums and gradients in the order of the kernels: fc
 * [position][filter][SEED_ROW], conv [filter][SEED_ROW], the fc's bias [SEED_ROW]; one after the
 * other. */
struct seed_params {
	float *fc, *conv, *bias;
};

/* What the blocks of kx_seed_resident tell each other: up to three numbers, or a long one, and
 * which step they are of. Zeros at first. */
struct seed_word {
	float v[3];
	uint32_t step;
};
struct seed_exchange {
	struct seed_word *scores; /* [image][block][4] */
	struct seed_word *errors; /* [image][4] */
	struct seed_word *conv;   /* [block][SEED_CONV_WORDS] */
	struct seed_word *losses; /* [image] */
	uint32_t *steps;          /* so far */
};

struct kx_seed {
	int f, f_pad; /* filters, and in whole eights */
	int low;      /* low precision: kx_seed_resident or kx_seed_low_* where it pays */
	int multiprocessors;
	struct seed_params params, sum;
	uint32_t *fragments;     /* conv weights as tensor cores want them, see exact_conv.cuh */
	uint8_t *winners;        /* [group][position][filter][4], see seed_fprop.cu */
	uint32_t *low_fragments; /* see seed_half.cuh */
	float *low_scales;       /* [filter][4], likewise */
	float *score_parts;      /* [part][image][SEED_CLASSES] */
	float *scores;           /* [image][SEED_CLASSES] */
	float *d_scores;         /* [image in whole groups][SEED_ROW] */
	float *loss;             /* [image] */
	float *fc_parts;         /* [split][position][filter][SEED_ROW] */
	float *conv_parts;       /* [split][position block][filter][SEED_ROW] */
	struct seed_exchange exchange;
};

/* How a batch is cut up: for the caller to size the parts with. */
struct seed_cut {
	int groups;                               /* of SEED_GROUP images */
	int warps_filters, filter_blocks, ranges; /* forward */
	int lane_blocks, position_blocks, splits; /* backward */
	int clusters;                             /* of kx_seed_small; 0: use the other three */
	int low;                                  /* forward and backward: kx_seed_low_* */
};
struct seed_cut kx_seed_cut(int f_pad, int low, int images);

/* Words of fragments and low_fragments; bytes of winners. */
size_t kx_seed_fragments(int f_pad);
size_t kx_seed_low_fragments(int f_pad);
size_t kx_seed_winners(int f_pad, int low, size_t images);
/* conv weights -> fragments; from the manifest's order first if `manifest` is not NULL. */
int kx_seed_pack(struct kx_seed s, const float *manifest, cudaStream_t stream);
/* Back: parameters or sums into the manifest's order. */
int kx_seed_unpack(struct kx_seed s, struct seed_params from, float *manifest, cudaStream_t stream);
/* Parts of the scores; and the winners if batch.training. `step`: counted from batch.now's. */
int kx_seed_forward(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* Scores; and d_scores and losses if batch.training. */
int kx_seed_scores(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* From d_scores and the winners to the parts of the gradient. */
int kx_seed_backward(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* Forward and backward of a batch that is cut for it: the gradient's products in fp16, the scores'
 * in bf16. */
int kx_seed_low_forward(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
int kx_seed_low_backward(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* The same three as above, scores left out, in one launch; a batch that is cut into clusters only.
 */
int kx_seed_small(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream);
/* Parts of the positions, each a block's for eight filters, that kx_seed_resident has for a batch;
 * 0: that batch is not for it. */
int kx_seed_resident_parts(struct kx_seed s, int images);
/* `steps` steps from pixels to new weights in one launch, as kx_seed_update leaves them. `now`
 * NULL: one gradient, added to the sum; *loss = the mean. */
int kx_seed_resident(struct kx_seed s, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream);
/* The parts' sum into `grad`, in the manifest's order; *loss = the mean. */
int kx_seed_gradient(struct kx_seed s, int images, float *grad, double *loss, cudaStream_t stream);
/* The parts' sum g: sum += g, params -= now->rate * g; *loss += that of each image; now->step +=
 * steps. */
int kx_seed_update(struct kx_seed s, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
