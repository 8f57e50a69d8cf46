/*
 * seed_persistent.cuh - the blocks of the persistent kernel (seed_persistent.cu): sizes, the shared
 * memory of a block, its filters and positions, and the division of its work among its warps.
 */
#ifndef KERNELS_CUDA_FUSED_SEED_PERSISTENT_CUH
#define KERNELS_CUDA_FUSED_SEED_PERSISTENT_CUH
#include <cuda_awbarrier_primitives.h>
#include "kernels/cuda/fused/seed_half.cuh"

#define WARPS         16
#define THREADS       (WARPS * 32)
#define BLOCK_FILTERS 8 /* number of filters per block */
#define TILE_IMAGES   8 /* number of images per tile: columns of a product */
/* maximum number of tiles, an even number */
#define TILES          (SEED_PERSISTENT_IMAGES / TILE_IMAGES + 1)
#define POSITION_PAIRS 22 /* maximum number of pairs of positions per block */
#define MAX_POSITIONS  (2 * POSITION_PAIRS)
#define OUT_PIXELS     4
#define MAX_RUNS       3  /* wgrad: maximum number of position pairs per warp */
#define PATCH          16 /* number of pixels of a patch */
#define CONV_VALUES    (BLOCK_FILTERS * SEED_ROW)
#define CONV_LINES     SEED_LL_CONV_LINES
#define CONV_ADDERS    (THREADS / CONV_LINES) /* number of threads that add up a line of conv */
/* number of pixel rows under four rows of positions */
#define BAND_ROWS    10
#define IMAGE_PIXELS (SEED_SIDE * SEED_SIDE)
#define BAND_CHUNKS  (BAND_ROWS * SEED_SIDE / 8)
#define BAND_BYTES   (BAND_ROWS * SEED_SIDE + 8)
/* number of threads that start the copies of pixels: the last threads of the block, because the
 * first warps have other work */
#define FETCH_THREADS 128
/* number of threads that unpack pixels: they are also the last threads of the block */
#define EXPAND_THREADS (THREADS - (POSITION_PAIRS - WARPS) * 32)
/* The stride from one pair of images to the next, in words. With this stride, four pairs x two rows
 * of two words are in 32 different banks. */
#define PAIR_STRIDE 156
#define MAX_BLOCKS  SEED_PERSISTENT_BLOCKS
#define COPY_NS     1000000000 /* minimum time in ns for which a block waits for its pixels */
/* number of polls between two readings of the clock; all these polls take some milliseconds */
#define POLLS 4096
/* An upper bound of the number of blocks times the number of images that a block owns. */
#define LOGIT_ROWS (SEED_PERSISTENT_IMAGES + MAX_BLOCKS)
/* The two lowest bits of a stored value hold the argmax: 3 for the first output pixel, 0 for the
 * last. */
#define ARGMAX_BITS 0x00030003u
/* added to a value before the argmax replaces its two lowest bits, so that the value is rounded to
 * the other bits */
#define ARGMAX_ROUND 0x00020002u

/* minimum number of ranges of positions: the shared memory of a block holds at most a quarter of
 * the positions */
#define MIN_RANGES 4
#define MAX_RANGES 32 /* maximum number of ranges: with more, a block has too little work */
static_assert(POSITION_PAIRS >= (SEED_POSITIONS / MIN_RANGES + 2) / 2, "a part's positions");
static_assert(SEED_PERSISTENT_IMAGES * 4 <= THREADS, "a thread for each word of dY");
static_assert(SEED_LL_LOGIT_LINES * 3 == SEED_ROW && CONV_LINES * 3 == CONV_VALUES, "three a word");

#define DY_SCALE 0x1p15f /* factor by which the block multiplies d_logits before they become fp16 */

/* The tile of a block: eight filters at `count` positions from `begin` on. */
struct block_tile {
	int group, range, ranges;
	int begin, count, pairs;
	int first_row; /* number of the first row of pixels under the block's positions */
	int images, tiles, groups;
	int own_images; /* number of images that this block owns; one warp per image */
};

/* The warps `first` to `last` have partial logits of an image tile. `second` has a bit for each
 * warp that has this tile as its second one. */
struct tile_warps {
	int first, last;
	uint32_t second;
};

/* The warps `first` to `last` have image groups of a pair of positions. */
struct pair_warps {
	int first, last;
};

/* The shared memory of a block. A word has the pixels, values or d_logits of two images, or the
 * d_logits of two classes of one image. */
struct block_state {
	/* the pixels of all images, as bytes */
	__align__(16) uint32_t pixels[TILES * TILE_IMAGES / 2][PAIR_STRIDE];
	/* pixels of the next step, filled by bulk copies */
	__align__(16) uint2 bytes[SEED_PERSISTENT_IMAGES][BAND_BYTES / 8];
	__mbarrier_t pixels_here;
	union {
		uint32_t value[MAX_POSITIONS][TILES][32];
		struct {
			float conv[WARPS][BLOCK_FILTERS][OUT_PIXELS * PATCH + OUT_PIXELS];
			float fc[WARPS][MAX_RUNS][8][32];
		} sum; /* sums of a step; they reuse the memory of its values */
	};
	/* fc weights as A operands: bf16 for the logits; fp16, divided by fc_power, for dgrad */
	uint4 fc_fprop[POSITION_PAIRS][32];
	uint4 fc_dgrad[POSITION_PAIRS][32];
	float fc_power[POSITION_PAIRS][32];
	uint4 fragments[HALF_TERMS * 2 * 32];
	struct half_scale scale[BLOCK_FILTERS];
	__align__(16) uint32_t dy_by_image[TILES * TILE_IMAGES][8];
	uint32_t dy_by_class[TILES * TILE_IMAGES / 2][24];
	float logits[WARPS][2][TILE_IMAGES][SEED_ROW]; /* layout [warp][first or second tile] */
	struct tile_warps tile_warps[TILES];
	struct pair_warps pair_warps[POSITION_PAIRS];
	/* wgrad: number of the warp's first pair of positions; -1: the warp has none */
	int first_pair[WARPS];
	/* [image that this block owns][block]: partial logits */
	float block_logits[LOGIT_ROWS][SEED_ROW];
	/* numbers in the data set: images of this step and of the next one */
	uint32_t number[2][SEED_PERSISTENT_IMAGES];
	float d_logits[TILES * TILE_IMAGES][SEED_ROW];
	float conv_part[CONV_ADDERS][CONV_VALUES];
	/* weights, and sums of the gradients of these weights */
	float conv[BLOCK_FILTERS][SEED_ROW], conv_sum[BLOCK_FILTERS][SEED_ROW];
	float bias[SEED_ROW], bias_sum[SEED_ROW];
	float next_bias[SEED_ROW]; /* bias minus the gradients of the passes of this step so far */
	/* offset of the patch of each position, in words */
	__align__(8) int patch_offset[MAX_POSITIONS];
	struct block_tile block;
	uint32_t argmax_mask; /* all bits of a float except those of the argmax */
	uint32_t gave_up;     /* 1: the block has given up, because a wait took too long */
	uint32_t pixels_lost; /* 1: the wait for the pixels took too long */
};

__device__ inline struct block_tile block_tile_of(int ranges, int images)
{
	struct block_tile h;
	const int blocks = gridDim.x;

	h.group = blockIdx.x / ranges;
	h.range = blockIdx.x % ranges;
	h.ranges = ranges;
	h.begin = SEED_POSITIONS * h.range / ranges;
	h.count = SEED_POSITIONS * (h.range + 1) / ranges - h.begin;
	h.pairs = (h.count + 1) / 2;
	h.first_row = min(h.begin / 13 * 2, SEED_SIDE - BAND_ROWS);
	h.images = images;
	h.tiles = (images + TILE_IMAGES - 1) / TILE_IMAGES;
	h.groups = (h.tiles + 1) / 2;
	h.own_images = max(images - (int)blockIdx.x + blocks - 1, 0) / blocks;
	return h;
}

/* ---- division of work among warps ------------------------------------------------------------ */

/* Divides `n` work items among the warps and returns the first item of a warp. */
__device__ inline int first_of_warp(int n, int warp)
{
	return n * warp / WARPS;
}

/* Returns the warp of an item. */
__device__ inline int warp_of(int n, int piece)
{
	return ((piece + 1) * WARPS - 1) / n;
}

/* find_tile_warps, find_pair_warps and find_first_pair run once, before the first step. */
__device__ inline struct tile_warps find_tile_warps(const struct block_tile &block, int tile)
{
	const int n = block.tiles * block.pairs;
	struct tile_warps a = {
		warp_of(n, tile * block.pairs), warp_of(n, (tile + 1) * block.pairs - 1), 0};

	for (int w = a.first; w <= a.last; w++)
		if (first_of_warp(n, w) / block.pairs != tile)
			a.second |= 1u << w;
	return a;
}

__device__ inline struct pair_warps find_pair_warps(const struct block_tile &block, int pair)
{
	const int n = block.pairs * block.groups;

	return {warp_of(n, pair * block.groups), warp_of(n, (pair + 1) * block.groups - 1)};
}

__device__ inline int find_first_pair(const struct block_tile &block, int warp)
{
	const int n = block.pairs * block.groups, first = first_of_warp(n, warp);

	return first < first_of_warp(n, warp + 1) ? first / block.groups : -1;
}

#endif
