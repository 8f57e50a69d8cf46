/*
 * lane.h - the work of one thread of the cpu device: forward and backward pass over a block of
 * images, and the memory for it.
 *
 * The values of one block fit the L2 cache of a core. A lane cuts its slice of the batch into
 * blocks of nearly equal size. If an fc step has more weights than the cache holds, the blocks
 * are larger, and the steps before this one run over sub-blocks whose values fit the cache. When a
 * model with batchnorm is trained, a block is the whole slice, because the lanes compute the
 * statistics of the batch together. In a round, each lane computes one block, and all lanes need
 * the same number of rounds for a batch, because they compute some steps together (joint.h).
 *
 * Thread: one thread at a time uses a lane.
 */
#ifndef KERNELS_CPU_LANE_H
#define KERNELS_CPU_LANE_H
#include "kernels/cpu/plan.h"
#include "kernels/device/types.h"

struct joint; /* joint.h */

/* The arguments of a job, equal for every lane. All pointers are borrowed. */
struct batch {
	const struct kx_images *set;
	const float *params, *packed; /* packed: see pack.h */
	float *grad; /* training only: in the order of the manifest; joint steps write it */
	/* image numbers of the batch; if NULL, the numbers are first, first + 1, ... */
	const uint32_t *index;
	size_t first;
	uint64_t dropout_seed;
	float *logits; /* forward only: batch x classes */
	/* for the steps that all lanes compute together */
	struct team *team;
	const struct joint *joint;
	const struct lane *lanes;
	size_t n_lanes, images; /* images: of the whole batch */
};

/* The values of this number of positions for one panel fill half an L1 cache. A chunk has as many
 * whole windows as have at most this number of positions, but at least one window. */
#define CHUNK_POSITIONS 128

/* Pointers to the windows and positions of a weighted step, for a whole block of images. */
struct table {
	const float **source;     /* for each position: its patch */
	uint32_t *first;          /* first position of each window; one more entry at the end */
	float **value, **d_value; /* for each window: its output values and their gradients */
};

/* The sums and factors that a lane computes for a batchnorm of n channels. Each array has n
 * entries. The lanes read each other's sums. */
struct moments {
	double *sum, *squares;    /* sums over the values of this lane */
	double *d_sum, *products; /* sums of the gradients, and of gradients times values */
	float *mean, *variance;   /* those of the whole batch, or the running statistics */
	float *a, *b, *c;         /* factors of simd.affine and simd.affine_2 */
};

/* Memory for one band of tiles (winograd.h), as large as the largest band of any step. */
struct band_room {
	float *input;  /* transformed tiles of the input, or their gradients */
	float *output; /* transformed tiles of one panel of filters; gradients: of all panels */
	float *conv;   /* outputs or gradients of the band's positions, for one panel */
};

struct lane {
	const struct plan *plan;
	size_t block, eval_block; /* maximum images of a block in training and in evaluation */
	float *value[MODEL_MAX_LAYERS + 1];   /* per activation */
	float *d_value[MODEL_MAX_LAYERS + 1]; /* per activation: d loss / d value */
	/* per pooled step: [image][window][filter], which position of the window has the maximum */
	uint16_t *argmax[MODEL_MAX_LAYERS];
	float *mask[MODEL_MAX_LAYERS]; /* per dropout step: 0 or 1 / (1 - p) */
	float *power[MODEL_MAX_LAYERS], *slope[MODEL_MAX_LAYERS]; /* per lrn step, see simd.lrn */
	float *weights; /* packed weights of a part of a joint step */
	float *room;    /* scratch memory for max_taps weights, or for lrn_room floats */
	struct moments moments[MODEL_MAX_LAYERS]; /* per batchnorm step */
	/* sum of the gradients of this lane's images, in packed order */
	float *grad;
	float *tile;         /* values or gradients of the positions of one chunk, for one panel */
	struct entry *entry; /* the entries of one image: one list per filter */
	size_t *n_entries;   /* entries in the list of each filter */
	struct table table[MODEL_MAX_LAYERS]; /* per weighted step */
	struct band_room band;
	double *logit; /* logits or probabilities of one image */
	double loss;   /* sum over the images of this lane */
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
