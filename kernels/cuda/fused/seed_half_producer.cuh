/*
 * seed_half_producer.cuh - a group of images as seed_half_wgrad.cu's products want it, and the
 * warps, *feeders*, that make it ready while the others work on the group before.
 */
#ifndef KERNELS_CUDA_FUSED_SEED_HALF_PRODUCER_CUH
#define KERNELS_CUDA_FUSED_SEED_HALF_PRODUCER_CUH
#include <cuda_awbarrier_primitives.h>
#include "kernels/cuda/fused/seed_half.cuh"

#define WARPS     16
#define FEEDERS   128 /* threads */
#define STAGES    3
#define THREADS   (WARPS * 32 + FEEDERS)
#define IMAGE     (SEED_SIDE * SEED_SIDE) /* pixels */
#define CHUNKS    (IMAGE / 16)            /* of 16 pixels, of an image */
#define PAIRS     (SEED_GROUP / 2)        /* of images */
#define PER_IMAGE (FEEDERS / SEED_GROUP)
/* Words from pair to pair: four pairs x two rows of four pixels lie in 32 banks. The last are ones.
 */
#define PAIR_WORDS 808
#define ONES       0x3c003c00u

/* Two numbers to a word: of two images, or of two classes. Errors come twice, with room for 16
 * classes: as right factor of the fc weights, a lane's words t and t + 4 side by side; and of the
 * values. What no error comes to stays 0. */
struct low_stage {
	uint32_t pixels[PAIRS][PAIR_WORDS];
	uint32_t by_image[SEED_GROUP][8];
	uint32_t by_class[PAIRS][24];
	__mbarrier_t full, empty;
};

#ifdef __CUDACC__
/* Stages go round. A feeder says of each that it is full, a worker's warp that it is empty, and
 * both wait for all of the others: so a warp may be a stage or two ahead of its neighbours. */
struct turn {
	uint32_t stage; /* bytes from the first one */
	bool parity;
};

__device__ static inline void turn_next(struct turn *t)
{
	t->stage += (uint32_t)sizeof(struct low_stage);
	if (t->stage == STAGES * sizeof(struct low_stage)) {
		t->stage = 0;
		t->parity = !t->parity;
	}
}

__device__ static inline struct low_stage *stage_of(struct low_stage *first, const struct turn &t)
{
	return reinterpret_cast<struct low_stage *>(
		reinterpret_cast<unsigned char *>(first) + t.stage);
}

/* By one thread, before the block's first barrier. */
__device__ static inline void open_stages(struct low_stage *stage)
{
	for (int i = 0; i < STAGES; i++) {
		__mbarrier_init(&stage[i].full, FEEDERS);
		__mbarrier_init(&stage[i].empty, WARPS);
	}
}

__device__ static inline void wait_for(__mbarrier_t *barrier, bool parity)
{
	while (!__mbarrier_try_wait_parity(barrier, parity, 10000))
		;
}

/* Words that no error comes to, and the pixels that are always one. */
__device__ static inline void put_constants(struct low_stage *stage)
{
	for (int i = threadIdx.x; i < PAIRS * 24; i += THREADS)
		stage->by_class[0][i] = 0;
	for (int i = threadIdx.x; i < SEED_GROUP * 8; i += THREADS)
		stage->by_image[0][i] = 0;
	for (int i = threadIdx.x; i < PAIRS * 4; i += THREADS)
		stage->pixels[i / 4][IMAGE + i % 4] = ONES;
}

/* PER_IMAGE lanes fetch an image, a warp spreads its four. A group's missing images are the batch's
 * last once more: their errors are 0. */
struct feeder {
	int i;                 /* of FEEDERS */
	const uint32_t *index; /* of this step, which no kernel of the graph writes */
	const uint8_t *pixels;
	int last; /* image of the batch */
};

/* The number in the data set of the image of this group that the thread helps to fetch. */
__device__ static inline uint32_t feeder_number(const struct feeder &f, int group)
{
	return f.index[min(group * SEED_GROUP + f.i / PER_IMAGE, f.last)];
}

__device__ static inline void fetch_pixels(const struct feeder &f, uint4 *bytes, uint32_t number)
{
	const int first = f.i % PER_IMAGE;
	const uint8_t *from = f.pixels + number * (size_t)IMAGE + first * 16;
	uint4 *to = bytes + f.i / PER_IMAGE * CHUNKS + first;
#pragma unroll
	for (int k = 0; k < CHUNKS; k += PER_IMAGE)
		if (k + PER_IMAGE <= CHUNKS || k + first < CHUNKS)
			copy_ahead(to + k, from + 16 * k, true);
	copies_commit();
}

/* A pair of images, four pixels at a time; all on their way before the first is stored. */
__device__ static inline void spread_pair(uint32_t *to, const uint32_t *from)
{
	const int quads = IMAGE / 4, rounds = (quads + 31) / 32, lane = threadIdx.x % 32;
	uint32_t a[rounds], b[rounds];
#pragma unroll
	for (int k = 0; k < rounds; k++) {
		const bool here = k + 1 < rounds || 32 * k + lane < quads;
		a[k] = here ? from[32 * k + lane] : 0;
		b[k] = here ? from[32 * k + lane + quads] : 0;
	}
#pragma unroll
	for (int k = 0; k < rounds; k++) {
		const uint32_t low = __byte_perm(a[k], b[k], 0x5140);
		const uint32_t high = __byte_perm(a[k], b[k], 0x7362);
		if (k + 1 < rounds || 32 * k + lane < quads)
			reinterpret_cast<uint4 *>(to)[32 * k + lane] = {__byte_perm(low, 0, 0x4140),
				__byte_perm(low, 0, 0x4342), __byte_perm(high, 0, 0x4140),
				__byte_perm(high, 0, 0x4342)};
	}
}

__device__ static inline void spread_pixels(
	const struct feeder &f, struct low_stage *to, const uint4 *bytes)
{
	const int pair = f.i / 32 * 2;
	const uint32_t *from = reinterpret_cast<const uint32_t *>(bytes + 2 * pair * CHUNKS);
	spread_pair(to->pixels[pair], from);
	spread_pair(to->pixels[pair + 1], from + 2 * CHUNKS * 4);
}

#define BY_CLASS (PAIRS * SEED_CLASSES)
#define BY_IMAGE (SEED_GROUP * SEED_CLASSES / 2)

/* A class of two images, and two classes of one. */
struct two_errors {
	float2 by_class, by_image;
};

__device__ static inline struct two_errors fetch_errors(
	const struct feeder &f, const struct kx_seed &s, int group)
{
	const float *from = s.d_scores + (size_t)group * SEED_GROUP * SEED_ROW;
	const float *a = from + f.i / SEED_CLASSES * 2 * SEED_ROW + f.i % SEED_CLASSES;
	const float *b = from + f.i / 5 * SEED_ROW + f.i % 5 * 2;
	struct two_errors e = {};
	if (f.i < BY_CLASS)
		e.by_class = {a[0], a[SEED_ROW]};
	if (f.i < BY_IMAGE)
		e.by_image = {b[0], b[1]};
	return e;
}

__device__ static inline void put_errors(
	const struct feeder &f, struct low_stage *to, const struct two_errors &e, float scale)
{
	const int word = f.i % 5;
	if (f.i < BY_CLASS)
		to->by_class[f.i / SEED_CLASSES][f.i % SEED_CLASSES] =
			two_halves(e.by_class.x * scale, e.by_class.y * scale);
	if (f.i < BY_IMAGE)
		to->by_image[f.i / 5][word % 4 * 2 + word / 4] =
			two_halves(e.by_image.x * scale, e.by_image.y * scale);
}

/* What a feeder has from before the errors are known. */
struct fed {
	uint32_t number; /* of the group after next */
	struct two_errors errors;
};

/* One stage after the other, as they become empty. */
__device__ static inline void feed(const struct feeder &f, struct fed next, const struct kx_seed &s,
	struct low_stage *first, uint4 (*bytes)[SEED_GROUP * CHUNKS], int begin, int end,
	float scale)
{
	struct turn turn = {0, true}; /* of an empty stage: that of before the first */
	for (int group = begin; group < end; group++) {
		struct low_stage *stage = stage_of(first, turn);
		uint4 *mine = bytes[(group - begin) % 2];
		const struct two_errors errors = next.errors;
		next.errors = fetch_errors(f, s, min(group + 1, end - 1));
		copies_wait<1>();
		__syncwarp();
		wait_for(&stage->empty, turn.parity);
		spread_pixels(f, stage, mine);
		put_errors(f, stage, errors, scale);
		(void)__mbarrier_arrive(&stage->full);
		__syncwarp();
		fetch_pixels(f, mine, next.number);
		next.number = feeder_number(f, group + 3);
		turn_next(&turn);
	}
	copies_wait<0>(); /* a block must not end with copies on their way to its memory */
}
#endif

#endif
