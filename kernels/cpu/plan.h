/*
 * plan.h - the plan with which the cpu device runs a model. A step is one layer or several fused
 * layers. An activation holds the values between two steps. Tables give the addresses of windows,
 * positions and taps. A plan is built once per backend and then only read.
 *
 * Inside the device, values are stored as rows x columns x channels (NHWC); outside the device,
 * they are stored as channels x rows x columns. A row of a patch is therefore one run of contiguous
 * floats, and a vector holds neighbouring channels. The zero padding of a convolution is part of
 * the activation that it reads. The padding is written once, when the memory is allocated.
 *
 * An fc layer is a convolution with one window that covers its whole input.
 */
#ifndef KERNELS_CPU_PLAN_H
#define KERNELS_CPU_PLAN_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/model.h"
#include "kernels/cpu/simd.h"

/* An image of an activation takes a multiple of this number of floats. The same number of spare
 * floats follows the last image. */
#define ACTIVATION_ALIGN (2 * SIMD_MAX_LANES)

/* The layout of one image's values between two steps. */
struct activation {
	struct shape shape;
	/* floats from one row to the next, with the padding and what whole tiles need (struct
	 * winograd) */
	size_t row;
	/* offset of the value in row 0, column 0 and channel 0, which the padding precedes */
	size_t origin;
	size_t image; /* floats from one image to the next, a multiple of ACTIVATION_ALIGN */
};

enum step_kind {
	STEP_WEIGHTS, /* conv or fc, fused with the ReLU and the pool after it, if there are any */
	STEP_POOL,    /* a pool that is not fused */
	STEP_AVGPOOL, /* an avgpool, or the mean of each channel (avgpool:global) */
	STEP_RELU,    /* a ReLU that is not fused, in place */
	STEP_DROPOUT, /* a dropout, in place */
	STEP_TANH,
	STEP_SIGMOID,
	STEP_LRN,
	STEP_BATCHNORM,
	STEP_SKIP, /* forward: does nothing; backward: adds the gradients of its add */
	STEP_ADD,
};

/* The ways in which a weighted step can compute one of its three products. */
enum way {
	WAY_NONE,     /* the step does not compute this product: no layer needs the gradients */
	WAY_DENSE,    /* every position, in register tiles */
	WAY_SPARSE,   /* only the argmax of each pool window */
	WAY_WINOGRAD, /* every position, in tiles with fewer products: winograd.h */
	WAY_JOINT,    /* all lanes together, each for some of the neurons: joint.h */
};

/* The tiles of a convolution that uses WAY_WINOGRAD. A band is one of three things: some rows of
 * tiles that hold whole rows of windows, all tiles of an image, or all tiles of several small
 * images. */
struct winograd {
	size_t size;         /* number of rows, and of columns, of positions in a tile */
	size_t across, down; /* number of tiles of an image in each direction */
	/* narrow: 1 if the last column of tiles is narrow; low: 1 if the last row of tiles is low
	 * (simd.h) */
	size_t narrow, low;
	size_t bands;  /* number of bands in an image */
	size_t rows;   /* number of rows of tiles in a band; the last band may have fewer */
	size_t images; /* number of images in a band; 1 if an image has several bands */
	/* maximum number of tiles in a band, plus the tiles that gemm may write after them */
	size_t max_tiles;
	size_t max_positions; /* maximum number of positions in a band */
	/* number of the first window of each band of an image; bands + 1 entries */
	uint32_t *first;
	/* for each tile, the numbers of its size * size positions in the band */
	uint32_t *order;
	size_t taps;         /* channels rounded up to a multiple of simd.taps */
	size_t channels_pad; /* channels and filters rounded up to whole panels of full width */
	size_t filters_pad;
	/* input_row, dy_row: floats from one tile to the next; input_step, output_step, dy_step:
	 * floats from one point of a tile to the next. `input` stands for the transformed input,
	 * `output` for a panel of the transformed output, and `dy` for the gradients of the
	 * transformed output */
	size_t input_row, input_step, output_step, dy_row, dy_step;
};

struct step {
	enum step_kind kind;
	size_t layer; /* number of the step's (first) layer */
	float drop;   /* dropout: probability that a value becomes 0 */
	/* numbers of the input and the output activation; equal if the step works in place */
	size_t in, out;
	/* add: number of the activation of its skip; skip: number of the output activation of its
	 * add */
	size_t partner;
	size_t stride; /* of an add and of its skip: the add reads every stride-th row and column of
		        * the skip */
	float scale;   /* avgpool: 1 / number of values of a window */
	const struct layer *of; /* the step's (first) layer */
	int relu, pooled;

	/* weights and pool: numbers of windows and of positions. The positions are in the order of
	 * their windows; without a pool, each window has one position */
	/* max_positions: maximum number of positions in one window */
	size_t n_windows, n_positions, max_positions;
	uint32_t *first;    /* number of the first position of each window; n_windows + 1 entries */
	uint32_t *position; /* for each position: offset of its patch in the input activation */
	uint32_t *to;       /* for each window: offset of its values in the output activation */

	/* weights: tap k is channel k % c of pixel k / c, with c = n_taps / pixels. The weight of
	 * filter f for tap k is params[weight + f * n_taps + channel * pixels + pixel]. A filter
	 * has taps only in the channels of its group. */
	size_t filters, n_taps, pixels;
	size_t groups, in_group; /* in_group: number of filters of a group */
	size_t group_columns;    /* in_group rounded up to whole vectors, see columns_pad */
	size_t columns;          /* group_columns of all groups together */
	size_t n_panels;
	size_t taps_pad; /* n_taps rounded up to a multiple of simd.taps */
	/* for each group: offset of each tap in a patch; taps_pad entries, 0 after n_taps */
	uint32_t *tap;
	uint32_t *channel;     /* for each filter: the first channel of its group */
	uint32_t *row_at;      /* the array that patch.at points to */
	size_t weight, bias;   /* offsets of weights and biases in params, also for batchnorm */
	size_t mean, variance; /* batchnorm: offsets in params of the running statistics */
	struct patch patch;
	enum way forward, filter, data; /* the ways of fprop, wgrad and dgrad, in this order */
	struct winograd winograd;

	/* offsets in the packed parameters and in a lane's gradient, in floats (see pack.c) */
	size_t panel, panel_bias, other;
	size_t grad, grad_bias;
};

/* A segment consists of neighbouring steps, which run over a sub-block of up to `images` images
 * before the next segment begins. The values of the sub-block then stay in the cache from step to
 * step. */
struct segment {
	size_t begin, end; /* the segment consists of steps [begin, end) */
	size_t images;
};

struct plan {
	const struct simd *simd;
	size_t n_activations, n_steps;
	struct activation activation[MODEL_MAX_LAYERS + 1];
	/* for each activation: 1 if a later step needs its values, so that no step may work in
	 * place on it */
	int held[MODEL_MAX_LAYERS + 1];
	struct step step[MODEL_MAX_LAYERS];
	size_t packed_floats, grad_floats;
	int large; /* 1: an fc step has more weights than an L2 cache holds */
	int joint; /* 1: a step has WAY_JOINT; all such steps are in the last segment */
	/* The last segment runs over a whole block, without sub-blocks. Most models have only one
	 * segment. */
	size_t n_segments;
	struct segment segment[MODEL_MAX_LAYERS];
	int whole;            /* 1: a step (batchnorm) needs all images of a batch together */
	size_t first_trained; /* number of the first step with weights */
	size_t max_positions; /* maximum number of positions in a window of any step */
	size_t max_taps;      /* maximum number of taps of a filter of any step */
	size_t max_entries;   /* maximum number of entries of one image in a sparse step */
	/* the numbers 0, 1, 2, ...: one for each filter of the largest step */
	uint32_t *identity;
	/* Lookup table [channel][256]: the float in the first activation for each byte of a pixel.
	 * If the table is NULL, a byte v becomes v / 255. */
	float *pixel;
};

/* Makes the plan for model `m`. Call plan_release in the end, also after a failure. PS_ENOMEM: no
 * memory, or the model's activations or pool windows are too large. */
int plan_init(struct plan *p, const struct model *m, const struct simd *simd,
	struct err *e) PS_MUST_CHECK;
void plan_release(struct plan *p);

/* Returns `n` filters rounded up to whole panels. A panel is two vectors wide, but the last panel
 * is one vector wide if one vector is enough. */
size_t columns_pad(const struct simd *simd, size_t n);
/* Returns the panel that starts at filter (or column) `first` of `n`. */
struct columns columns_at(const struct simd *simd, size_t n, size_t first);
/* Returns the number of images whose activations `first` to `last` and their gradients fit in half
 * of a typical L2 cache: between 1 and 32. */
size_t images_in_cache(const struct plan *p, size_t first, size_t last);
/* Returns `n` rounded up to a multiple of `unit`. */
size_t round_up(size_t n, size_t unit);
/* Returns panel number `i` of a weighted step. All filters of a panel belong to the same group. */
struct columns panel_at(const struct simd *simd, const struct step *s, size_t i);
/* Returns the number of entries reserved for the list of one filter: the number of windows, rounded
 * up to a multiple of SIMD_ENTRIES. */
size_t entries_pad(const struct step *s);

#endif
