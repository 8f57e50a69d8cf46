/*
 * seed_persistent.cuh - what a block of seed_persistent.cu holds in shared memory, which share
 * of the work it and its warps have, and its pixels.
 */
#ifndef KERNELS_CUDA_FUSED_SEED_PERSISTENT_CUH
#define KERNELS_CUDA_FUSED_SEED_PERSISTENT_CUH
#include <cuda_awbarrier_primitives.h>
#include "kernels/cuda/fused/seed_half.cuh"

#define WARPS       16
#define THREADS     (WARPS * 32)
#define FILTERS     8                                 /* of a block */
#define TILE        8                                 /* images of a product */
#define TILES       (SEED_RESIDENT_IMAGES / TILE + 1) /* the last of an even number is empty */
#define TWOS        22                                /* of positions, that a block has at most */
#define PLACES      (2 * TWOS)
#define CELLS       4
#define STRETCHES   3  /* most pairs of positions that a warp has groups of images of, backward */
#define PATCH       16 /* pixels */
#define CONV_VALUES (FILTERS * SEED_ROW)
#define CONV_WORDS  SEED_CONV_WORDS
#define CONV_SLICES (THREADS / CONV_WORDS) /* of the parts that sum up the conv's gradient */
#define SLICE_ROWS  10                     /* of pixels, under four rows of positions */
#define IMAGE       (SEED_SIDE * SEED_SIDE)
#define CHUNKS      (SLICE_ROWS * SEED_SIDE / 8)
#define SLICE_BYTES (SLICE_ROWS * SEED_SIDE + 8)
#define FETCHERS    128 /* threads, the last ones: the first warps have other things to do */
#define SPREADERS   (THREADS - (TWOS - WARPS) * 32) /* likewise */
/* Words from pair to pair: four pairs x two rows of two words lie in 32 banks. */
#define PAIR_WORDS  156
#define MOST_BLOCKS 132
/* A block's images, times blocks: there are no more images than that but for one a block. */
#define TOLD (SEED_RESIDENT_IMAGES + MOST_BLOCKS)
/* A value keeps the cell that won in its lowest bits: 3 for the first cell, 0 for the last. */
#define CELL_BITS  0x00030003u
#define CELL_ROUND 0x00020002u /* half of what they are worth, and a little */

/* A block's share: eight filters at positions begin.. of a part. */
struct share {
	int group, part, parts;
	int begin, count, twos;
	int first_row; /* of pixels */
	int images, tiles, groups;
	int owned; /* images whose errors the block makes, a warp each */
};

/* Which of the warps have a part of a tile's scores, and which of them as their second tile. */
struct adders {
	int first, last;
	uint32_t second;
};

/* Which of the warps have groups of images of two positions. */
struct workers {
	int first, last;
};

/* In shared memory. A word has two images' pixels, values or errors, or an image's errors of two
 * classes. */
struct resident {
	__align__(16) uint32_t pixels[TILES * TILE / 2][PAIR_WORDS]; /* bytes */
	__align__(16) uint2
		bytes[SEED_RESIDENT_IMAGES][SLICE_BYTES / 8]; /* the next step's, as they come */
	__mbarrier_t fetched;
	union {
		uint32_t value[PLACES][TILES][32];
		struct {
			float conv[WARPS][FILTERS][CELLS * PATCH + CELLS];
			float fc[WARPS][STRETCHES][8][32];
		} sum; /* of a step, when its values are not wanted any more */
	};
	uint4 scoring[TWOS][32]; /* fc weights as left factors: of the values, bf16 ... */
	uint4 pushing[TWOS][32]; /* ... and of the errors, fp16, ... */
	float power[TWOS][32];   /* ... divided by this */
	uint4 fragments[LOW_PARTS * 2 * 32];
	struct low_scale scale[FILTERS];
	__align__(16) uint32_t by_image[TILES * TILE][8];
	uint32_t by_class[TILES * TILE / 2][24];
	float score[WARPS][2][TILE][SEED_ROW]; /* of a warp's first tile and its second one */
	struct adders adders[TILES];
	struct workers workers[TWOS];
	int first_two[WARPS]; /* backward; -1: none */
	float told[TOLD]
		  [SEED_ROW]; /* of the block's images, what each block adds to their scores */
	uint32_t number[2][SEED_RESIDENT_IMAGES]; /* of this step's images, and the next one's */
	float error[TILES * TILE][SEED_ROW];
	float conv_part[CONV_SLICES][CONV_VALUES];
	float conv[FILTERS][SEED_ROW], conv_sum[FILTERS][SEED_ROW]; /* weights, sum of gradients */
	float bias[SEED_ROW], bias_sum[SEED_ROW];
	__align__(8) int place[PLACES]; /* words to its patch */
	struct share share;
	uint32_t high; /* of a sum, all bits but CELL_BITS' */
};

#ifdef __CUDACC__
__device__ static inline struct share share_of(int parts, int images)
{
	struct share h;
	const int blocks = gridDim.x;
	h.group = blockIdx.x / parts;
	h.part = blockIdx.x % parts;
	h.parts = parts;
	h.begin = SEED_POSITIONS * h.part / parts;
	h.count = SEED_POSITIONS * (h.part + 1) / parts - h.begin;
	h.twos = (h.count + 1) / 2;
	h.first_row = min(h.begin / 13 * 2, SEED_SIDE - SLICE_ROWS);
	h.images = images;
	h.tiles = (images + TILE - 1) / TILE;
	h.groups = (h.tiles + 1) / 2;
	h.owned = max(images - (int)blockIdx.x + blocks - 1, 0) / blocks;
	return h;
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* `n` pieces of work in WARPS shares: the first one of a warp's, and whose a piece is. */
__device__ static inline int first_of_warp(int n, int warp)
{
	return n * warp / WARPS;
}

__device__ static inline int warp_of(int n, int piece)
{
	return ((piece + 1) * WARPS - 1) / n;
}

/* Before the first step, a thread to each tile. */
__device__ static inline struct adders find_adders(const struct share &share, int tile)
{
	const int n = share.tiles * share.twos;
	struct adders a = {
		warp_of(n, tile * share.twos), warp_of(n, (tile + 1) * share.twos - 1), 0};
	for (int w = a.first; w <= a.last; w++)
		if (first_of_warp(n, w) / share.twos != tile)
			a.second |= 1u << w;
	return a;
}

__device__ static inline struct workers find_workers(const struct share &share, int two)
{
	const int n = share.twos * share.groups;
	return {warp_of(n, two * share.groups), warp_of(n, (two + 1) * share.groups - 1)};
}

__device__ static inline int find_first_two(const struct share &share, int warp)
{
	const int n = share.twos * share.groups, first = first_of_warp(n, warp);
	return first < first_of_warp(n, warp + 1) ? first / share.groups : -1;
}

/* ---- pixels ---------------------------------------------------------------------------------- */

/* The rows under the block's positions, of a step's images, on their way, from where a multiple of
 * 16 bytes lies before them; by the last warps. `number`: of each in the data set. */
__device__ static inline void fetch_pixels(struct resident *shared, const struct kx_batch &batch,
	const struct share &share, const uint32_t *number)
{
	const int i = (int)threadIdx.x - (THREADS - FETCHERS);
	if (i == 0)
		asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
				     shared_address(&shared->fetched)),
			     "r"(share.images * SLICE_BYTES)
			     : "memory");
	if (i >= 0 && i < share.images)
		asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
			     "[%0], [%1], %2, [%3];" ::"r"(shared_address(shared->bytes[i])),
			     "l"(batch.pixels + (size_t)number[i] * IMAGE +
				     share.first_row * SEED_SIDE / 16 * 16),
			     "n"(SLICE_BYTES), "r"(shared_address(&shared->fetched))
			     : "memory");
}

/* When they are here, and those before are not wanted any more. Missing images are the batch's last
 * once more: their errors are 0. */
__device__ static inline void put_pixels(
	struct resident *shared, const struct share &share, bool parity)
{
	const int from = share.first_row * SEED_SIDE % 16 / 8, last = share.images - 1;
	while (!__mbarrier_try_wait_parity(&shared->fetched, parity, 10000))
		;
#pragma unroll 1
	for (int i = (int)threadIdx.x - (THREADS - SPREADERS);
		i >= 0 && i < share.tiles * TILE / 2 * CHUNKS; i += SPREADERS) {
		const int pair = i / CHUNKS, chunk = i % CHUNKS;
		const uint2 a = shared->bytes[min(2 * pair, last)][from + chunk];
		const uint2 b = shared->bytes[min(2 * pair + 1, last)][from + chunk];
		*reinterpret_cast<uint4 *>(shared->pixels[pair] + 4 * chunk) = {
			__byte_perm(a.x, b.x, 0x5140), __byte_perm(a.x, b.x, 0x7362),
			__byte_perm(a.y, b.y, 0x5140), __byte_perm(a.y, b.y, 0x7362)};
	}
}
#endif

#endif
