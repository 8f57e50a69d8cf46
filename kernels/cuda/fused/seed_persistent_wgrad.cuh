/*
 * seed_persistent_wgrad.cuh - from a block's values and everybody's errors to its gradients.
 */
#ifndef KERNELS_CUDA_FUSED_SEED_PERSISTENT_WGRAD_CUH
#define KERNELS_CUDA_FUSED_SEED_PERSISTENT_WGRAD_CUH
#include "kernels/cuda/fused/seed_persistent.cuh"

#ifdef __CUDACC__
struct sums {
	float fc[2][4];              /* two places, eight classes; the others */
	float conv[CELLS / 2][2][4]; /* cells, columns: the patch's middle; a side, and ones */
};

/* Halves that are all ones where v's half is more than nothing. */
__device__ static inline uint32_t gates_of(uint32_t v)
{
	return __hgt2_mask(half_of(v), half_of(0));
}

/* All ones in each half whose lowest bit is set. */
__device__ static inline uint32_t spread(uint32_t bits)
{
	return (bits & 0x00010001u) * 0xffffu;
}

/* Two pixels of a pair of images: `at` is the first one's. */
__device__ static inline uint32_t pixel_pair(const uint8_t *at, uint32_t pick)
{
	return __byte_perm(*reinterpret_cast<const uint16_t *>(at), 0x3c, pick);
}

#define PICK_PIXELS 0x5150u /* in the lower halves of fp16 numbers */
#define PICK_ONES   0x4545u

#define HALF_BYTES (TILE / 2 * PAIR_WORDS * 4) /* of a group's pairs */

/* Errors d of a place's images, in two halves of a group; kept: their values. `middle`, `side`: of
 * the first half's pixels. */
__device__ static inline void add_conv(float (&sum)[CELLS / 2][2][4], const uint32_t (&d)[2],
	const uint32_t (&kept)[2], const uint8_t *middle, const uint8_t *side, uint32_t pick_side)
{
	const int lower_side = 3 * SEED_SIDE * 2;
	uint32_t won[CELLS][2], m[2], b[2][2];
#pragma unroll
	for (int h = 0; h < 2; h++) {
		const uint32_t upper = spread(kept[h] >> 1), left = spread(kept[h]);
		won[0][h] = d[h] & upper & left;
		won[1][h] = d[h] & upper & ~left;
		won[2][h] = d[h] & ~upper & left;
		won[3][h] = d[h] & ~upper & ~left;
		m[h] = pixel_pair(middle + h * HALF_BYTES, PICK_PIXELS);
		b[0][h] = pixel_pair(side + h * HALF_BYTES, pick_side);
		b[1][h] = pixel_pair(side + h * HALF_BYTES + lower_side, pick_side);
	}
#pragma unroll
	for (int i = 0; i < CELLS / 2; i++) {
		const uint4 a = {
			won[2 * i][0], won[2 * i + 1][0], won[2 * i][1], won[2 * i + 1][1]};
		mma_half(sum[i][0], a, m[0], m[1]);
		mma_half(sum[i][1], a, b[i][0], b[i][1]);
	}
}

/* Where a thread finds its words of a group of sixteen images. */
struct cursor {
	const uint32_t *value, *by_image, *by_class;
	const uint8_t *middle[2], *side[2]; /* pixels, of each place */
};

__device__ static inline struct cursor cursor_of(const struct resident *shared, int two, int group)
{
	const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	struct cursor at = {&shared->value[2 * two][2 * group][lane],
		shared->by_image[2 * group * TILE + g] + 2 * t,
		shared->by_class[group * TILE + t] + g};
	const uint8_t *row = reinterpret_cast<const uint8_t *>(shared->pixels[group * TILE + t]);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const uint8_t *patch = row + 4 * shared->place[2 * two + i];
		at.middle[i] = patch + ((1 + g / 4) * SEED_SIDE + g % 4) * 2;
		at.side[i] = patch + g % 4 * 2;
	}
	return at;
}

__device__ static inline void next_group(struct cursor *at)
{
	at->value += 2 * 32;
	at->by_image += 2 * TILE * 8;
	at->by_class += TILE * 24;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		at->middle[i] += 2 * HALF_BYTES;
		at->side[i] += 2 * HALF_BYTES;
	}
}

/* Groups of images at two places. */
__device__ static inline void add_groups(
	struct sums *sum, const struct resident *shared, int two, int begin, int end)
{
	const int lane = threadIdx.x % 32;
	const uint4 fc = shared->pushing[two][lane];
	const uint32_t pick_side = lane < 16 ? PICK_PIXELS : PICK_ONES;
	struct cursor at = cursor_of(shared, two, begin);
#pragma unroll 1
	for (int left = end - begin; left > 0; left--) {
		uint32_t kept[2][2], v[2][2], d[2][2], b[2][2]; /* place or classes, half */
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const uint2 e =
				*reinterpret_cast<const uint2 *>(at.by_image + h * TILE * 8);
			float error[4] = {};
			mma_half(error, fc, e.x, e.y);
#pragma unroll
			for (int i = 0; i < 2; i++) {
				kept[i][h] = at.value[i * TILES * 32 + h * 32];
				v[i][h] = kept[i][h] & ~CELL_BITS;
				d[i][h] = two_halves(error[2 * i], error[2 * i + 1]) &
					  gates_of(v[i][h]);
				b[i][h] = at.by_class[h * TILE / 2 * 24 + 8 * i];
			}
		}
		const uint4 a = {v[0][0], v[1][0], v[0][1], v[1][1]};
		mma_half(sum->fc[0], a, b[0][0], b[0][1]);
		mma_half(sum->fc[1], a, b[1][0], b[1][1]);
#pragma unroll
		for (int i = 0; i < 2; i++)
			add_conv(sum->conv, d[i], kept[i], at.middle[i], at.side[i], pick_side);
		next_group(&at);
	}
}

/* A warp's share of twos x groups: the conv's sums, and the fc's of each stretch, the last one
 * first; scaled as values and errors are. */
struct found {
	float conv[CELLS / 2][2][4];
	float fc[STRETCHES][8];
	int stretches;
};

__device__ static inline void backward(
	struct found *found, const struct resident *shared, const struct share &share)
{
	const int warp = threadIdx.x / 32, n = share.twos * share.groups;
	const int last = first_of_warp(n, warp + 1);
	int piece = first_of_warp(n, warp);
	while (piece < last) {
		const int two = piece / share.groups, first = two * share.groups;
		const int end = min(last - first, share.groups);
		const float power = shared->power[two][threadIdx.x % 32];
		struct sums sum = {};
		add_groups(&sum, shared, two, piece - first, end);
#pragma unroll
		for (int j = 0; j < 8; j++) {
#pragma unroll
			for (int k = STRETCHES - 1; k > 0; k--)
				found->fc[k][j] = found->fc[k - 1][j];
			found->fc[0][j] = sum.fc[j / 4][j % 4];
		}
#pragma unroll
		for (int j = 0; j < 16; j++)
			found->conv[j / 8][j / 4 % 2][j % 4] =
				fmaf(sum.conv[j / 8][j / 4 % 2][j % 4], power,
					found->conv[j / 8][j / 4 % 2][j % 4]);
		found->stretches++;
		piece = first + end;
	}
}

/* To shared memory, the conv's scaled back. */
__device__ static inline void put_found(
	struct resident *shared, const struct found &found, float error)
{
	const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
	const float pixel = error * (CONV_PIXEL / PIXEL_HALF);
	float *to = shared->sum.conv[warp][lane / 4];
#pragma unroll
	for (int cell = 0; cell < CELLS; cell++) {
		const float *middle = &found.conv[cell / 2][0][cell % 2 * 2];
		const float *side = &found.conv[cell / 2][1][cell % 2 * 2];
		float2 *patch = reinterpret_cast<float2 *>(to + cell * PATCH);
		patch[2 + t] = {middle[0] * pixel, middle[1] * pixel};
		if (t < 2)
			patch[cell / 2 * 6 + t] = {side[0] * pixel, side[1] * pixel};
		if (t == 2)
			to[CELLS * PATCH + cell] = side[0] * error;
	}
#pragma unroll
	for (int k = 0; k < STRETCHES; k++)
		if (k < found.stretches)
#pragma unroll
			for (int j = 0; j < 8; j++)
				shared->sum.fc[warp][found.stretches - 1 - k][j][lane] =
					found.fc[k][j];
}
#endif

#endif
