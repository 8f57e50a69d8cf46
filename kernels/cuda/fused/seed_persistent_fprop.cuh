/*
 * seed_persistent_fprop.cuh - from a block's pixels to its values, and to what these add to the
 * scores.
 */
#ifndef KERNELS_CUDA_FUSED_SEED_PERSISTENT_FPROP_CUH
#define KERNELS_CUDA_FUSED_SEED_PERSISTENT_FPROP_CUH
#include "kernels/cuda/fused/seed_persistent.cuh"

#ifdef __CUDACC__
/* Values of a filter in two images: as the scores want them, and as they are kept. */
struct values {
	uint32_t exact, kept;
};

/* A cell's sum with its rank among equals in place of the lowest bits. `high`: all but these, from
 * memory, for an instruction takes one constant. */
__device__ static inline float ranked(float sum, uint32_t high, uint32_t rank)
{
	return __uint_as_float((__float_as_uint(sum) & high) | rank);
}

/* Of two places. `b`: their patches' pixels of eight images as right factors. */
__device__ static inline void values_of(struct values (&to)[2], const struct low_weights<2> &w,
	const uint32_t (&b)[2][2], uint32_t high)
{
	float c[2][2][4] = {}; /* place, cells */
#pragma unroll
	for (int part = 2; part-- > 0;)
#pragma unroll
		for (int i = 0; i < 4; i++)
			mma_half(c[i / 2][i % 2], w.a[part][i % 2], b[i / 2][0], b[i / 2][1]);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float v[2];
		uint32_t cell[2];
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const float most = fmaxf(
				fmaxf(ranked(c[i][0][e], high, 3), ranked(c[i][0][2 + e], high, 2)),
				fmaxf(ranked(c[i][1][e], high, 1),
					ranked(c[i][1][2 + e], high, 0)));
			v[e] = __saturatef(fmaf(most, w.scale.slope, w.scale.bias));
			cell[e] = __float_as_uint(most);
		}
		to[i].exact = two_bf16(v[0], v[1]);
		to[i].kept = ((two_halves(v[0], v[1]) + CELL_ROUND) & ~CELL_BITS) |
			     (__byte_perm(cell[0], cell[1], 0x5410) & CELL_BITS);
	}
}

/* A row's two last, which are no class, get zeros. */
__device__ static inline void put_score(float (*to)[SEED_ROW], float (&score)[4])
{
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int c = g + i / 2 * 8;
		if (c < SEED_ROW)
			to[2 * t + i % 2][c] = score[i];
	}
}

/* A thread's pixels of eight images under two places, as right factors. */
struct patches {
	uint32_t b[2][2];
};

__device__ static inline struct patches patches_of(
	const uint32_t *images, const int2 *place, uint32_t pick)
{
	const int2 at = *place;
	const uint32_t *first = images + at.x, *second = images + at.y;
	return {{{__byte_perm(first[0], 0, pick), __byte_perm(first[2 * ROW_WORDS], 0, pick)},
		{__byte_perm(second[0], 0, pick), __byte_perm(second[2 * ROW_WORDS], 0, pick)}}};
}

/* A tile's values at the twos begin.. to end. `images`: to the thread's pixels of the tile. */
__device__ static inline void forward_tile(struct resident *shared, float (&score)[4],
	const struct low_weights<2> &w, const uint32_t *images, int tile, int begin, int end)
{
	const int lane = threadIdx.x % 32;
	const uint32_t pick = lane / 4 % 2 ? 0x4341 : 0x4240, high = shared->high;
	const int2 *place = reinterpret_cast<const int2 *>(shared->place) + begin;
	const uint4 *scoring = &shared->scoring[begin][lane];
	uint32_t *value = &shared->value[2 * begin][tile][lane];
	struct patches next = patches_of(images, place, pick);
#pragma unroll 1
	for (int left = end - begin; left > 0; left--) {
		const struct patches now = next;
		struct values v[2];
		place += left > 1;
		next = patches_of(images, place, pick);
		values_of(v, w, now.b, high);
		value[0] = v[0].kept;
		value[TILES * 32] = v[1].kept;
		value += 2 * TILES * 32;
		mma_bf16(score, *scoring, transposed(v[0].exact), transposed(v[1].exact));
		scoring += 32;
	}
}

__device__ static inline void forward(struct resident *shared, const struct share &share)
{
	const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
	/* tiles x twos: of two tiles at most, for a warp has no more than a tile has */
	const int n = share.tiles * share.twos, last = first_of_warp(n, warp + 1);
	int unit = first_of_warp(n, warp);
	struct low_weights<2> w;
	low_load(&w, shared->fragments, shared->scale, lane);
	for (int seen = 0; unit < last; seen++) {
		const int tile = unit / share.twos, first = tile * share.twos;
		const int end = min(last - first, share.twos);
		float score[4] = {};
		forward_tile(shared, score, w,
			shared->pixels[tile * TILE / 2 + g / 2] + t / 2 * ROW_WORDS + t % 2, tile,
			unit - first, end);
		put_score(shared->score[warp][seen], score);
		unit = first + end;
	}
	if (share.tiles % 2)
		for (int i = threadIdx.x; i < share.count * 32; i += THREADS)
			shared->value[i / 32][share.tiles][i % 32] = 0;
}

/* What the block's features add to three of an image's scores. */
__device__ static inline float3 add_scores(const struct resident *shared, int n, int quad)
{
	const struct adders a = shared->adders[n / TILE];
	float3 v = {0, 0, 0};
#pragma unroll 1
	for (int w = a.first; w <= a.last; w++) {
		const float *from = shared->score[w][a.second >> w & 1][n % TILE] + 3 * quad;
		v.x += from[0];
		v.y += from[1];
		v.z += from[2];
	}
	return v;
}
#endif

#endif
