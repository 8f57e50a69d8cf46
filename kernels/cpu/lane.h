/*
 * lane.h - the work of one thread of the cpu device: forward and backward pass over a block of
 * images, and the memory for it.
 *
 * The values of one block fit the L2 cache of a core. A lane cuts its slice of the batch into
 * blocks of nearly equal size. If an fc step has more weights than the cache holds, the blocks
 * are larger, and the steps before this one run over sub-blocks whose values fit the cache. When a
 * model with batchnorm is trained, a block is the whole slice, because the lanes compute the
 * statistics of the batch together. In a round, each lane computes one block. All lanes make the
 * same number of rounds for a batch, because they compute some steps together (joint.h).
 *
 * Thread: one thread at a time uses a lane.
 */
#ifndef KERNELS_CPU_LANE_H
#define KERNELS_CPU_LANE_H
#include "kernels/cpu/plan.h"
#include "kernels/device/types.h"

struct joint; /* defined in joint.h */

/* The arguments of a job, equal for every lane. All pointers are borrowed. */
struct batch {
	const struct kx_images *set;
	const float *params, *packed; /* packed: the parameters in the order of pack.h */
	/* training only: the gradient in the order of the manifest; joint steps write it */
	float *grad;
	/* image numbers of the batch; if NULL, the numbers are first, first + 1, ... */
	const uint32_t *index;
	size_t first;
	uint64_t dropout_seed;
	float *logits; /* result of lane_forward: the logits, `images` x classes floats */
	/* the team, for the steps that all lanes compute together */
	struct team *team;
	const struct joint *joint;
	const struct lane *lanes;
	size_t n_lanes, images; /* number of lanes; number of images in the whole batch */
};

/* The values of this number of positions for one panel fill half an L1 cache. A chunk consists of
 * as many whole windows as fit in this number of positions, but of at least one window. */
#define CHUNK_POSITIONS 128

/* Pointers to the windows and positions of a weighted step, for a whole block of images. */
struct table {
	const float **source; /* for each position: pointer to its patch in the input activation */
	/* number of the first position of each window; one more entry at the end */
	uint32_t *first;
	/* for each window: pointer to its output values, and to their gradients */
	float **value, **d_value;
};

/* The sums and factors that a lane computes for a batchnorm of n channels. Each array has n
 * entries. Each lane also reads the sums of all other lanes. */
struct moments {
	double *sum, *squares; /* sums over the values of this lane */
	/* sums of the gradients of this lane's values, and of gradients times values */
	double *d_sum, *products;
	/* training: mean and variance of the whole batch; evaluation: the running statistics */
	float *mean, *variance;
	float *a, *b, *c; /* factors of simd.affine and simd.affine_2 */
};

/* Memory for one band of tiles (winograd.h), as large as the largest band of any step. */
struct band_room {
	float *input; /* transformed tiles of the input, or their gradients */
	/* forward: transformed output tiles of one panel of filters; backward: gradients of the
	 * transformed output tiles of all panels */
	float *output;
	float *conv; /* outputs or gradients of the band's positions, for one panel */
};

struct lane {
	const struct plan *plan;
	/* maximum number of images of a block: `block` in training, `eval_block` in evaluation */
	size_t block, eval_block;
	float *value[MODEL_MAX_LAYERS + 1];   /* the values of each activation */
	float *d_value[MODEL_MAX_LAYERS + 1]; /* d loss / d value, for each activation */
	/* for each pooled step, [image][window][filter]: the position of the maximum in the
	 * window */
	uint16_t *argmax[MODEL_MAX_LAYERS];
	float *mask[MODEL_MAX_LAYERS]; /* for each dropout step: 0 or 1 / (1 - p) for each value */
	/* for each lrn step: the arrays `power` and `slope` that simd.lrn writes */
	float *power[MODEL_MAX_LAYERS], *slope[MODEL_MAX_LAYERS];
	float *weights; /* scratch memory for the packed weights of a part of a joint step */
	float *room;    /* scratch memory for max_taps weights, or for lrn_room floats */
	struct moments moments[MODEL_MAX_LAYERS]; /* the moments of each batchnorm step */
	/* sum of the gradients of this lane's images, in packed order */
	float *grad;
	float *tile;         /* values or gradients of the positions of one chunk, for one panel */
	struct entry *entry; /* the entries (struct entry) of one image: one list per filter */
	size_t *n_entries;   /* number of entries in the list of each filter */
	struct table table[MODEL_MAX_LAYERS]; /* the table of each weighted step */
	struct band_room band;
	/* scratch memory for the logits of one image and then for its probabilities */
	double *logit;
	double loss; /* sum of the losses of this lane's images */
};

/* Allocates the memory of one of `lanes` lanes, for slices of up to `max` images. Call lane_release
 * in the end, also after a failure. PS_ENOMEM. */
int lane_init(struct lane *l, const struct plan *p, size_t max, size_t lanes) PS_MUST_CHECK;
void lane_release(struct lane *l);
/* Writes gradient and loss of the lane's slice of the batch to l->grad and l->loss, and the lane's
 * part of the gradients of joint steps to b->grad. */
void lane_gradient(struct lane *l, const struct batch *b);
/* Writes the logits of the lane's slice of the batch to b->logits. */
void lane_forward(struct lane *l, const struct batch *b);

#endif
