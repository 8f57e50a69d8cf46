/*
 * lane.h - one thread's share of the cpu device: the memory for a block of images, and forward
 * and backward over it.
 *
 * A block is as many images as keep a core's second-level cache busy but not overflowing; a slice
 * of a batch is cut into blocks of nearly equal size.
 *
 * Thread: a lane belongs to one thread at a time.
 */
#ifndef KERNELS_CPU_LANE_H
#define KERNELS_CPU_LANE_H
#include "kernels/backend.h"
#include "kernels/cpu/plan.h"

/* What every lane is told; borrowed. */
struct batch {
	const struct kx_images *set;
	const float *packed;   /* parameters, see pack.h */
	const uint32_t *index; /* training: which images; NULL: first, first + 1... */
	size_t first;
	uint64_t dropout_seed;
	float *scores; /* forward only: batch x classes */
};

#define CHUNK_POSITIONS 128 /* one panel's scores of a chunk fill half of a first-level cache */

/* A weighted step's windows and positions of a whole block of images, as pointers. */
struct table {
	const float **source;   /* of each position: its patch */
	uint32_t *first;        /* of each window: its first position; one more behind the last */
	float **value, **error; /* of each window: where its output goes */
};

struct lane {
	const struct plan *plan;
	size_t block;                       /* most images at a time */
	float *value[MODEL_MAX_LAYERS + 1]; /* of each plane */
	float *error[MODEL_MAX_LAYERS + 1]; /* d loss / d value */
	uint16_t *argmax[MODEL_MAX_LAYERS]; /* of each pooled step: image, window, filter: which
						 position of the window */
	float *mask[MODEL_MAX_LAYERS];      /* of each dropout step: 0 or 1 / (1 - p) */
	float *grad;                        /* packed; the sum over this lane's images */
	float *tile;                        /* scores or errors of a chunk's positions, one panel */
	struct entry *entry;                /* of one image: a list per filter */
	size_t *n_entries;                  /* of each filter */
	struct table table[MODEL_MAX_LAYERS]; /* of each weighted step */
	double loss;                          /* sum over this lane's images */
};

/* For slices of up to `most` images. Release with lane_release, also after a failure. PS_ENOMEM. */
int lane_init(struct lane *l, const struct plan *p, size_t most) PS_MUST_CHECK;
void lane_release(struct lane *l);
/* Gradient and loss of images [begin, end) of the batch into l->grad and l->loss. */
void lane_gradient(struct lane *l, const struct batch *b, size_t begin, size_t end);
/* Scores of images [begin, end) of the batch into b->scores. */
void lane_forward(struct lane *l, const struct batch *b, size_t begin, size_t end);

#endif
