/*
 * seed_persistent.cu - the persistent cooperative kernel: many training steps of a seed network in
 * one launch, in half precision. The whole network stays in shared memory and registers.
 *
 * A block handles eight filters at a range of the positions. The block keeps the weights of its
 * filters for the whole launch, and the pixels and values of all images for a step. No step waits
 * for a launch. In a step the blocks exchange three things through global memory:
 *
 * - Each block sends partial logits to the block that owns the image, which adds them up.
 * - The block that owns an image sends its d_logits to all blocks.
 * - Each block sends its conv gradient to all blocks of the same filters.
 *
 * seed_exchange.cuh describes the exchange. All sums have a fixed order. The launch is cooperative,
 * so all blocks run at the same time.
 *
 * Products, layouts and scales are those of seed_half_fprop.cu and seed_half_wgrad.cu, with these
 * differences. The ReLU mask and the argmax come from the stored value. d_logits are not divided by
 * the number of images, so they are at most 1; they are scaled by 2^15. The fc weights of a feature
 * are scaled so that their absolute sum is below 1.
 *
 * Shared memory holds SEED_PERSISTENT_IMAGES images. A step with more images takes several passes,
 * each with an equal part of the images. The last pass may have fewer images than the others: it
 * repeats the last image, with d_logits of 0. Each pass subtracts its gradient from the fp32
 * weights, but only the last one writes the operands of the products, so all passes of a step
 * compute with the same weights.
 */
#include "kernels/cuda/fused/seed_exchange.cuh"

namespace
{

/* ---- pixels ---------------------------------------------------------------------------------- */

/* Returns the bytes for which this block waits although no copy delivers them: none, except in a
 * test. */
__device__ inline int lost_bytes(const struct seed_exchange &x)
{
	return x.timeout_ns == KX_SEED_LOSE_PIXELS && blockIdx.x == 0 ? 16 : 0;
}

/* Waits for the bulk copies. They depend on no other block, so the block gives up only if they take
 * far too long, not because another block has given up. */
__device__ inline void wait_for_pixels(
	const struct seed_exchange &x, struct block_state *shared, bool parity)
{
	uint64_t begin = 0;

	while (!__mbarrier_try_wait_parity(&shared->pixels_here, parity, 10000))
		if (waited_ns(&begin) > COPY_NS && waited_ns(&begin) > x.timeout_ns) {
			*static_cast<volatile uint32_t *>(&shared->pixels_lost) = 1;
			seed_give_up(x, shared);
			return;
		}
}

/* Starts the bulk copies of the pixel rows under the block's positions. The copies start at a
 * multiple of 16 bytes. The last FETCH_THREADS threads of the block issue the copies. `number` has
 * the number of each image in the data set. */
__device__ inline void fetch_band(struct block_state *shared, const struct seed_exchange &x,
	const struct kx_batch &batch, const struct block_tile &block, const uint32_t *number)
{
	const int i = (int)threadIdx.x - (THREADS - FETCH_THREADS);

	/* after pixels_lost, start no more copies: the barrier still waits for the copies that did
	 * not arrive */
	if (i < 0 || shared->pixels_lost)
		return;
	if (i == 0)
		asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
				     shared_address(&shared->pixels_here)),
			     "r"(block.images * BAND_BYTES + lost_bytes(x))
			     : "memory");
	if (i < block.images)
		asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
			     "[%0], [%1], %2, [%3];" ::"r"(shared_address(shared->bytes[i])),
			     "l"(batch.pixels + (size_t)number[i] * IMAGE_PIXELS +
				     block.first_row * SEED_SIDE / 16 * 16),
			     "n"(BAND_BYTES), "r"(shared_address(&shared->pixels_here))
			     : "memory");
}

/* Waits for the bulk copies and unpacks the pixels. The caller ensures that the block no longer
 * needs the previous pixels. In place of images past the end of the batch, the last image is used
 * again, with d_logits of 0. */
__device__ inline void expand_band(struct block_state *shared, const struct seed_exchange &x,
	const struct block_tile &block, bool parity)
{
	const int from = block.first_row * SEED_SIDE % 16 / 8, last = block.images - 1;

	wait_for_pixels(x, shared, parity);
#pragma unroll 1
	for (int i = (int)threadIdx.x - (THREADS - EXPAND_THREADS);
		i >= 0 && i < block.tiles * TILE_IMAGES / 2 * BAND_CHUNKS; i += EXPAND_THREADS) {
		const int image_pair = i / BAND_CHUNKS, chunk = i % BAND_CHUNKS;
		const uint2 a = shared->bytes[min(2 * image_pair, last)][from + chunk];
		const uint2 b = shared->bytes[min(2 * image_pair + 1, last)][from + chunk];

		*reinterpret_cast<uint4 *>(shared->pixels[image_pair] + 4 * chunk) = {
			__byte_perm(a.x, b.x, 0x5140), __byte_perm(a.x, b.x, 0x7362),
			__byte_perm(a.y, b.y, 0x5140), __byte_perm(a.y, b.y, 0x7362)};
	}
}

/* ---- fprop ----------------------------------------------------------------------------------- */

/* The values of a filter for two images: `exact` is for the logits, `kept` is stored for wgrad. */
struct values {
	uint32_t exact, kept;
};

/* Replaces the lowest bits of a sum by `rank`. The maximum of four such sums then contains the
 * argmax. `argmax_mask` is in memory because an instruction has room for only one constant. */
__device__ inline float with_rank(float sum, uint32_t argmax_mask, uint32_t rank)
{
	return __uint_as_float((__float_as_uint(sum) & argmax_mask) | rank);
}

/* Computes the values at two positions. `b` has the pixels of their patches in eight images, as B
 * operands. */
__device__ inline void persistent_values(struct values (&to)[2], const struct half_weights<2> &w,
	const uint32_t (&b)[2][2], uint32_t argmax_mask)
{
	float c[2][2][4] = {}; /* layout [position][pair of output pixels] */
#pragma unroll
	for (int term = 2; term-- > 0;)
#pragma unroll
		for (int i = 0; i < 4; i++)
			mma_half(c[i / 2][i % 2], w.a[term][i % 2], b[i / 2][0], b[i / 2][1]);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float v[2];
		uint32_t out_pixel[2];
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const float max4 = fmaxf(fmaxf(with_rank(c[i][0][e], argmax_mask, 3),
							 with_rank(c[i][0][2 + e], argmax_mask, 2)),
				fmaxf(with_rank(c[i][1][e], argmax_mask, 1),
					with_rank(c[i][1][2 + e], argmax_mask, 0)));

			v[e] = __saturatef(fmaf(max4, w.scale.slope, w.scale.bias));
			out_pixel[e] = __float_as_uint(max4);
		}
		to[i].exact = two_bf16(v[0], v[1]);
		to[i].kept = ((two_halves(v[0], v[1]) + ARGMAX_ROUND) & ~ARGMAX_BITS) |
			     (__byte_perm(out_pixel[0], out_pixel[1], 0x5410) & ARGMAX_BITS);
	}
}

/* Stores the partial logits of a tile. The last two values of a row are padding. */
__device__ inline void persistent_put_logits(float (*to)[SEED_ROW], float (&logits)[4])
{
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int c = g + i / 2 * 8;

		if (c < SEED_ROW)
			to[2 * t + i % 2][c] = logits[i];
	}
}

/* The pixels that a thread has of eight images under two positions, as B operands. */
struct patches {
	uint32_t b[2][2];
};

__device__ inline struct patches patches_of(
	const uint32_t *images, const int2 *patch_offset, uint32_t pick)
{
	const int2 at = *patch_offset;
	const uint32_t *first = images + at.x, *second = images + at.y;

	return {{{__byte_perm(first[0], 0, pick), __byte_perm(first[2 * ROW_WORDS], 0, pick)},
		{__byte_perm(second[0], 0, pick), __byte_perm(second[2 * ROW_WORDS], 0, pick)}}};
}

/* Computes the values of an image tile at position pairs [begin, end), and their logits. `images`
 * points to the pixels of the tile that this thread reads. */
__device__ inline void fprop_tile(struct block_state *shared, float (&logits)[4],
	const struct half_weights<2> &w, const uint32_t *images, int tile, int begin, int end)
{
	const int lane = threadIdx.x % 32;
	const uint32_t pick = lane / 4 % 2 ? 0x4341 : 0x4240, argmax_mask = shared->argmax_mask;
	const int2 *patch_offset = reinterpret_cast<const int2 *>(shared->patch_offset) + begin;
	const uint4 *fc_fprop = &shared->fc_fprop[begin][lane];
	uint32_t *value = &shared->value[2 * begin][tile][lane];
	struct patches next = patches_of(images, patch_offset, pick);
#pragma unroll 1
	for (int left = end - begin; left > 0; left--) {
		const struct patches now = next;
		struct values v[2];

		patch_offset += left > 1;
		next = patches_of(images, patch_offset, pick);
		persistent_values(v, w, now.b, argmax_mask);
		value[0] = v[0].kept;
		value[TILES * 32] = v[1].kept;
		value += 2 * TILES * 32;
		mma_bf16(logits, *fc_fprop, transposed(v[0].exact), transposed(v[1].exact));
		fc_fprop += 32;
	}
}

__device__ inline void persistent_fprop(struct block_state *shared, const struct block_tile &block)
{
	const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
	/* work items are (tile, position pair); a warp has items of at most two tiles */
	const int n = block.tiles * block.pairs, last = first_of_warp(n, warp + 1);
	int unit = first_of_warp(n, warp);
	struct half_weights<2> w;

	half_load(&w, shared->fragments, shared->scale, lane);
	for (int seen = 0; unit < last; seen++) {
		const int tile = unit / block.pairs, first = tile * block.pairs;
		const int end = min(last - first, block.pairs);
		float logits[4] = {};

		fprop_tile(shared, logits, w,
			shared->pixels[tile * TILE_IMAGES / 2 + g / 2] + t / 2 * ROW_WORDS + t % 2,
			tile, unit - first, end);
		persistent_put_logits(shared->logits[warp][seen], logits);
		unit = first + end;
	}
	if (block.tiles % 2)
		for (int i = threadIdx.x; i < block.count * 32; i += THREADS)
			shared->value[i / 32][block.tiles][i % 32] = 0;
}

/* ---- wgrad ----------------------------------------------------------------------------------- */

struct pair_sums {
	float fc[2][4]; /* layout: two positions; classes 0 to 7, then 8 to 15 */
	/* per pair of output pixels: [0] the middle rows of the patch; [1] its first or last row,
	 * and the bias */
	float conv[OUT_PIXELS / 2][2][4];
};

/* Returns a mask with all ones in each half of v that is greater than zero. */
__device__ inline uint32_t relu_mask(uint32_t v)
{
	return __hgt2_mask(half_of(v), half_of(0));
}

/* Returns a mask with all ones in each half whose lowest bit is set. */
__device__ inline uint32_t to_half_mask(uint32_t bits)
{
	return (bits & 0x00010001u) * 0xffffu;
}

/* Loads one pixel of two images. `at` points to the pixel of the first image. */
__device__ inline uint32_t pixel_pair(const uint8_t *at, uint32_t pick)
{
	return __byte_perm(*reinterpret_cast<const uint16_t *>(at), 0x3c, pick);
}

/* selector of __byte_perm: makes each of two pixels the lower byte of an fp16 */
#define PICK_PIXELS 0x5150u
#define PICK_ONES   0x4545u

#define HALF_BYTES (TILE_IMAGES / 2 * PAIR_STRIDE * 4) /* bytes of half of the pairs of a group */

/* Adds the gradient of one position and one image group to the conv sums. For half h of the group,
 * d[h] is dY, and kept[h] has the values that fprop stored (struct values). In the first half of
 * the group, `middle` points to the middle rows of the patch, and `side` points to the first row of
 * the patch. */
__device__ inline void persistent_conv_wgrad(float (&sum)[OUT_PIXELS / 2][2][4],
	const uint32_t (&d)[2], const uint32_t (&kept)[2], const uint8_t *middle,
	const uint8_t *side, uint32_t pick_side)
{
	const int lower_side = 3 * SEED_SIDE * 2;
	uint32_t d_pixel[OUT_PIXELS][2], m[2], b[2][2];
#pragma unroll
	for (int h = 0; h < 2; h++) {
		const uint32_t upper = to_half_mask(kept[h] >> 1), left = to_half_mask(kept[h]);

		d_pixel[0][h] = d[h] & upper & left;
		d_pixel[1][h] = d[h] & upper & ~left;
		d_pixel[2][h] = d[h] & ~upper & left;
		d_pixel[3][h] = d[h] & ~upper & ~left;
		m[h] = pixel_pair(middle + h * HALF_BYTES, PICK_PIXELS);
		b[0][h] = pixel_pair(side + h * HALF_BYTES, pick_side);
		b[1][h] = pixel_pair(side + h * HALF_BYTES + lower_side, pick_side);
	}
#pragma unroll
	for (int i = 0; i < OUT_PIXELS / 2; i++) {
		const uint4 a = {d_pixel[2 * i][0], d_pixel[2 * i + 1][0], d_pixel[2 * i][1],
			d_pixel[2 * i + 1][1]};

		mma_half(sum[i][0], a, m[0], m[1]);
		mma_half(sum[i][1], a, b[i][0], b[i][1]);
	}
}

/* The addresses that a thread reads for a group of sixteen images. */
struct cursor {
	const uint32_t *value, *dy_by_image, *dy_by_class;
	const uint8_t *middle[2], *side[2]; /* addresses of pixels, for each position */
};

__device__ inline struct cursor cursor_of(const struct block_state *shared, int pair, int group)
{
	const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	struct cursor at = {&shared->value[2 * pair][2 * group][lane],
		shared->dy_by_image[2 * group * TILE_IMAGES + g] + 2 * t,
		shared->dy_by_class[group * TILE_IMAGES + t] + g};

	const uint8_t *row =
		reinterpret_cast<const uint8_t *>(shared->pixels[group * TILE_IMAGES + t]);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const uint8_t *patch = row + 4 * shared->patch_offset[2 * pair + i];

		at.middle[i] = patch + ((1 + g / 4) * SEED_SIDE + g % 4) * 2;
		at.side[i] = patch + g % 4 * 2;
	}
	return at;
}

__device__ inline void next_group(struct cursor *at)
{
	at->value += 2 * 32;
	at->dy_by_image += 2 * TILE_IMAGES * 8;
	at->dy_by_class += TILE_IMAGES * 24;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		at->middle[i] += 2 * HALF_BYTES;
		at->side[i] += 2 * HALF_BYTES;
	}
}

/* Adds the gradients of image groups [begin, end) at a pair of positions to *sum. */
__device__ inline void wgrad_groups(
	struct pair_sums *sum, const struct block_state *shared, int pair, int begin, int end)
{
	const int lane = threadIdx.x % 32;
	const uint4 fc = shared->fc_dgrad[pair][lane];
	const uint32_t pick_side = lane < 16 ? PICK_PIXELS : PICK_ONES;
	struct cursor at = cursor_of(shared, pair, begin);
#pragma unroll 1
	for (int left = end - begin; left > 0; left--) {
		/* kept, v, d: [position][half of the images]; b: [half of the classes][half of the
		 * images] */
		uint32_t kept[2][2], v[2][2], d[2][2], b[2][2];
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const uint2 e = *reinterpret_cast<const uint2 *>(
				at.dy_by_image + h * TILE_IMAGES * 8);
			float dy[4] = {};

			mma_half(dy, fc, e.x, e.y);
#pragma unroll
			for (int i = 0; i < 2; i++) {
				kept[i][h] = at.value[i * TILES * 32 + h * 32];
				v[i][h] = kept[i][h] & ~ARGMAX_BITS;
				d[i][h] = two_halves(dy[2 * i], dy[2 * i + 1]) & relu_mask(v[i][h]);
				b[i][h] = at.dy_by_class[h * TILE_IMAGES / 2 * 24 + 8 * i];
			}
		}
		const uint4 a = {v[0][0], v[1][0], v[0][1], v[1][1]};
		mma_half(sum->fc[0], a, b[0][0], b[0][1]);
		mma_half(sum->fc[1], a, b[1][0], b[1][1]);
#pragma unroll
		for (int i = 0; i < 2; i++)
			persistent_conv_wgrad(
				sum->conv, d[i], kept[i], at.middle[i], at.side[i], pick_side);
		next_group(&at);
	}
}

/* The sums of a warp over its work items, (position pair, image group). Consecutive groups of one
 * pair are a run. `conv` sums over all items. `fc` has a sum over each run, with the last run
 * first. The sums are scaled like values and dY. */
struct warp_sums {
	float conv[OUT_PIXELS / 2][2][4];
	float fc[MAX_RUNS][8];
	int runs;
};

__device__ inline void persistent_wgrad(struct warp_sums *warp_sums,
	const struct block_state *shared, const struct block_tile &block)
{
	const int warp = threadIdx.x / 32, n = block.pairs * block.groups;
	const int last = first_of_warp(n, warp + 1);
	int piece = first_of_warp(n, warp);

	while (piece < last) {
		const int pair = piece / block.groups, first = pair * block.groups;
		const int end = min(last - first, block.groups);
		const float exp_logit = shared->fc_power[pair][threadIdx.x % 32];
		struct pair_sums sum = {};

		wgrad_groups(&sum, shared, pair, piece - first, end);
#pragma unroll
		for (int j = 0; j < 8; j++) {
#pragma unroll
			for (int k = MAX_RUNS - 1; k > 0; k--)
				warp_sums->fc[k][j] = warp_sums->fc[k - 1][j];
			warp_sums->fc[0][j] = sum.fc[j / 4][j % 4];
		}
#pragma unroll
		for (int j = 0; j < 16; j++)
			warp_sums->conv[j / 8][j / 4 % 2][j % 4] =
				fmaf(sum.conv[j / 8][j / 4 % 2][j % 4], exp_logit,
					warp_sums->conv[j / 8][j / 4 % 2][j % 4]);
		warp_sums->runs++;
		piece = first + end;
	}
}

/* Stores the sums of a warp in shared memory, after it has scaled the conv sums back. */
__device__ inline void put_warp_sums(
	struct block_state *shared, const struct warp_sums &warp_sums, float dy_unit)
{
	const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
	const float pixel = dy_unit * (CONV_PIXEL / PIXEL_HALF);
	float *to = shared->sum.conv[warp][lane / 4];
#pragma unroll
	for (int out_pixel = 0; out_pixel < OUT_PIXELS; out_pixel++) {
		const float *middle = &warp_sums.conv[out_pixel / 2][0][out_pixel % 2 * 2];
		const float *side = &warp_sums.conv[out_pixel / 2][1][out_pixel % 2 * 2];
		float2 *patch = reinterpret_cast<float2 *>(to + out_pixel * PATCH);

		patch[2 + t] = {middle[0] * pixel, middle[1] * pixel};
		if (t < 2)
			patch[out_pixel / 2 * 6 + t] = {side[0] * pixel, side[1] * pixel};
		if (t == 2)
			to[OUT_PIXELS * PATCH + out_pixel] = side[0] * dy_unit;
	}
#pragma unroll
	for (int k = 0; k < MAX_RUNS; k++)
		if (k < warp_sums.runs)
#pragma unroll
			for (int j = 0; j < 8; j++)
				shared->sum.fc[warp][warp_sums.runs - 1 - k][j][lane] =
					warp_sums.fc[k][j];
}

/* ---- weights and SGD ------------------------------------------------------------------------- */

/* The fc weights of a pair of positions and the sums of their gradients. A lane holds classes 2t
 * and 2t + 1 of filter lane / 4. Lanes with t = 0 also have classes 8 and 9. */
struct fc_registers {
	float weight[2][2][2], sum[2][2][2];
};

__device__ inline bool is_fc_lane(
	const struct block_tile &block, int pair, int patch_offset, int eights)
{
	return pair < block.pairs && 2 * pair + patch_offset < block.count &&
	       (eights == 0 || threadIdx.x % 4 == 0);
}

__device__ inline size_t fc_offset(const struct kx_seed &s, const struct block_tile &block,
	int pair, int patch_offset, int eights)
{
	const int lane = threadIdx.x % 32;
	const size_t p = block.begin + 2 * pair + patch_offset;

	return (p * s.f_pad + block.group * BLOCK_FILTERS + lane / 4) * SEED_ROW + 8 * eights +
	       lane % 4 * 2;
}

#define FOR_FC(i, k)                                                                               \
	_Pragma("unroll") for (int i = 0; i < 2; i++) _Pragma("unroll") for (int k = 0; k < 2; k++)

__device__ inline struct fc_registers fc_unspill(const volatile struct fc_registers &from)
{
	struct fc_registers o;

	FOR_FC(i, k)
	{
#pragma unroll
		for (int e = 0; e < 2; e++) {
			o.weight[i][k][e] = from.weight[i][k][e];
			o.sum[i][k][e] = from.sum[i][k][e];
		}
	}
	return o;
}

__device__ inline void fc_spill(volatile struct fc_registers &to, const struct fc_registers &o)
{
	FOR_FC(i, k)
	{
#pragma unroll
		for (int e = 0; e < 2; e++) {
			to.weight[i][k][e] = o.weight[i][k][e];
			to.sum[i][k][e] = o.sum[i][k][e];
		}
	}
}

__device__ inline void fc_load(
	struct fc_registers *o, const struct kx_seed &s, const struct block_tile &block, int pair)
{
	FOR_FC(i, k)
	{
		float2 v = {}, sum = {};

		if (is_fc_lane(block, pair, i, k)) {
			const size_t at = fc_offset(s, block, pair, i, k);

			v = *reinterpret_cast<const float2 *>(s.params.fc + at);
			sum = *reinterpret_cast<const float2 *>(s.sum.fc + at);
		}
		o->weight[i][k][0] = v.x;
		o->weight[i][k][1] = v.y;
		o->sum[i][k][0] = sum.x;
		o->sum[i][k][1] = sum.y;
	}
}

__device__ inline void fc_store(const struct fc_registers &o, const struct kx_seed &s,
	const struct block_tile &block, int pair)
{
	FOR_FC(i, k)
	{
		if (!is_fc_lane(block, pair, i, k))
			continue;
		const size_t at = fc_offset(s, block, pair, i, k);
		*reinterpret_cast<float2 *>(s.params.fc + at) = {
			o.weight[i][k][0], o.weight[i][k][1]};
		*reinterpret_cast<float2 *>(s.sum.fc + at) = {o.sum[i][k][0], o.sum[i][k][1]};
	}
}

/* Stores the weights as A operands of dgrad. Divides them by a power of two, so that the absolute
 * sum of the weights of a feature is below 1. */
__device__ inline void put_fc_dgrad(
	struct block_state *shared, const struct fc_registers &o, int pair)
{
	float bound = 0;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float sum = fabsf(o.weight[i][0][0]) + fabsf(o.weight[i][0][1]) +
			    fabsf(o.weight[i][1][0]) + fabsf(o.weight[i][1][1]);

		sum += __shfl_xor_sync(0xffffffffu, sum, 1);
		sum += __shfl_xor_sync(0xffffffffu, sum, 2);
		bound = fmaxf(bound, sum);
	}
	const float exp_logit = power_above(bound), scale = inverse(exp_logit);
	uint32_t a[2][2];
	FOR_FC(i, k)
	a[i][k] = two_halves(o.weight[i][k][0] * scale, o.weight[i][k][1] * scale);
	shared->fc_dgrad[pair][threadIdx.x % 32] = {a[0][0], a[1][0], a[0][1], a[1][1]};
	shared->fc_power[pair][threadIdx.x % 32] = exp_logit;
}

/* Stores the weights as A operands of the logits, times the unit of their filter. */
__device__ inline void put_fc_fprop(
	struct block_state *shared, const struct fc_registers &o, int pair)
{
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const float unit = half_unit(shared->conv[g]);
	uint16_t *to = reinterpret_cast<uint16_t *>(shared->fc_fprop[pair]);

	FOR_FC(i, k)
	{
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const int lane = (2 * t + e) * 4 + g / 2, line = k + 2 * i;

			if (k == 0 || t == 0)
				to[(lane * 4 + line) * 2 + g % 2] = __bfloat16_as_ushort(
					__float2bfloat16_rn(o.weight[i][k][e] * unit));
		}
	}
}

/* Adds up the fc sums of all warps that have image groups of the pair. Updates the weights. */
__device__ inline void sgd_fc_pair(struct fc_registers *o, const struct block_state *shared,
	const struct block_tile &block, int pair, float scale, float rate)
{
	const int lane = threadIdx.x % 32;
	const struct pair_warps of = shared->pair_warps[pair];
	float v[8] = {};
#pragma unroll 1
	for (int w = of.first; w <= of.last; w++) {
		const int first = shared->first_pair[w];

		if (first < 0)
			continue;
#pragma unroll
		for (int j = 0; j < 8; j++)
			v[j] += shared->sum.fc[w][pair - first][j][lane];
	}
	FOR_FC(i, k)
	{
		const bool real = is_fc_lane(block, pair, i, k);
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const float g = real ? v[k * 4 + i * 2 + e] * scale : 0;

			o->sum[i][k][e] += g;
			o->weight[i][k][e] -= rate * g;
		}
	}
}

/* One warp of each block updates the fc bias after a pass of `n_images` images. A step has `images`
 * images. All blocks compute the same values. */
__device__ inline void sgd_fc_bias(
	struct block_state *shared, int n_images, int images, float rate, bool last_pass)
{
	const int lane = threadIdx.x % 32, c = lane % SEED_CLASSES, third = lane / SEED_CLASSES;
	float v = 0;

	for (int n = third; n < n_images && third < 3; n += 3)
		v += shared->d_logits[n][c];
	v += __shfl_sync(0xffffffffu, v, c + 10) + __shfl_sync(0xffffffffu, v, c + 20);
	v /= images;
	if (lane < SEED_CLASSES) {
		const float bias = shared->next_bias[lane] - rate * v;

		shared->bias_sum[lane] += v;
		shared->next_bias[lane] = bias;
		if (last_pass)
			shared->bias[lane] = bias;
	}
}

/* One warp writes the fragments of filter f. */
__device__ inline void put_fragments(struct block_state *shared, int f)
{
	const int lane = threadIdx.x % 32;

	half_fragment(shared->fragments, shared->scale, shared->conv[0],
		lane / 16 * 128 + (f * 4 + lane / 4 % 4) * 4 + lane % 4);
}

/* Each warp updates the weights of one filter. After the last pass of a step, the warp also writes
 * the fragments of its filter. */
__device__ inline void sgd_conv_filter(struct block_state *shared, float rate, bool last_pass)
{
	const int f = threadIdx.x / 32, lane = threadIdx.x % 32;

	if (f >= BLOCK_FILTERS)
		return;
	if (lane < SEED_ROW) {
		float g = 0;
#pragma unroll
		for (int adder = 0; adder < CONV_ADDERS; adder++)
			g += shared->conv_part[adder][f * SEED_ROW + lane];
		shared->conv_sum[f][lane] += g;
		shared->conv[f][lane] -= rate * g;
	}
	__syncwarp();
	if (last_pass)
		put_fragments(shared, f);
}

/* ---- before the first step ------------------------------------------------------------------- */

/* Clears values that the kernel reads but never writes: those of images and positions after the
 * last one, and those of idle warps. */
__device__ inline void persistent_clear(struct block_state *shared)
{
	for (int i = threadIdx.x; i < POSITION_PAIRS * 32; i += THREADS)
		shared->fc_fprop[0][i] = {};
	for (int i = threadIdx.x; i < TILES * TILE_IMAGES * 8; i += THREADS)
		shared->dy_by_image[0][i] = 0;
	for (int i = threadIdx.x; i < TILES * TILE_IMAGES / 2 * 24; i += THREADS)
		shared->dy_by_class[0][i] = 0;
	for (int i = threadIdx.x; i < (int)(sizeof(shared->logits) / sizeof(float)); i += THREADS)
		(&shared->logits[0][0][0][0])[i] = 0;
}

__device__ inline void persistent_tables(struct block_state *shared, const struct block_tile &block)
{
	const int i = threadIdx.x;

	if (i == 0) {
		shared->argmax_mask = ~3u;
		__mbarrier_init(&shared->pixels_here, 1);
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	}
	if (i < block.tiles)
		shared->tile_warps[i] = find_tile_warps(block, i);
	if (i < block.pairs)
		shared->pair_warps[i] = find_pair_warps(block, i);
	if (i < WARPS)
		shared->first_pair[i] = find_first_pair(block, i);
	if (i < MAX_POSITIONS) {
		const int p = block.begin + min(i, block.count - 1);

		shared->patch_offset[i] = (p / 13 * 2 - block.first_row) * ROW_WORDS + p % 13;
	}
}

/* Loads the conv weights and the fc bias, and the sums of their gradients. */
__device__ inline void persistent_load_weights(
	struct block_state *shared, const struct kx_seed &s, const struct block_tile &block)
{
	const int i = threadIdx.x;

	if (i < CONV_VALUES) {
		(&shared->conv[0][0])[i] = s.params.conv[block.group * CONV_VALUES + i];
		(&shared->conv_sum[0][0])[i] = s.sum.conv[block.group * CONV_VALUES + i];
	}
	if (i < SEED_ROW) {
		shared->bias[i] = shared->next_bias[i] = s.params.bias[i];
		shared->bias_sum[i] = s.sum.bias[i];
	}
	__syncthreads();
	if (i / 32 < BLOCK_FILTERS)
		put_fragments(shared, i / 32);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* The arguments of a launch. */
struct persistent_run {
	struct kx_seed s;
	struct kx_batch batch;
	/* the values that change from step to step; NULL: the kernel computes one gradient */
	struct kx_now *now;
	double *loss;
	int ranges, steps;
	int images, passes; /* number of images of a pass; number of passes of a step */
};

/* A pass of the launch. If every step has one pass (MANY is false), the compiler leaves out the
 * divisions. */
struct pass {
	int step, first; /* number of the step; number of the pass's first image */
	bool last;       /* true: the last pass of its step */
};

template <bool MANY> __device__ inline struct pass pass_of(const struct persistent_run &run, int n)
{
	if (!MANY)
		return {n, 0, true};
	const int step = n / run.passes, i = n - step * run.passes;

	return {step, i * run.images, i + 1 == run.passes};
}

/* Returns the number that image i of a pass has in the data set. */
template <bool MANY>
__device__ inline uint32_t pass_image(
	const struct persistent_run &run, const struct pass &pass, int i)
{
	return (uint32_t)seed_number(
		run.batch, pass.step, MANY ? min(pass.first + i, run.batch.images - 1) : i);
}

/* Sends partial logits and receives d_logits in pass `n` of `passes`. One lane of each warp returns
 * the loss of the warp's image; `here` says whether the batch has this image. */
__device__ inline float exchange_logits(struct block_state *shared,
	const struct persistent_run &run, int n, int passes, int label, bool here, uint32_t after,
	uint32_t number)
{
	const struct block_tile &block = shared->block;
	const int warp = threadIdx.x / 32;
	float loss = 0;

	ll_store_logits(run.s, shared, block, number);
	ll_wait_logits(run.s, shared, block, number);
	__syncwarp(); /* because the lanes leave the polling loop at different times */
	__syncthreads();
	if (warp < block.own_images)
		loss = ll_store_d_logits(run.s, shared, label, here, number);
	if (n + 1 < passes)
		fetch_band(shared, run.s.exchange, run.batch, block, shared->number[(n + 1) % 2]);
	if (threadIdx.x < block.images)
		shared->number[n % 2][threadIdx.x] = after;
	ll_wait_d_logits(run.s, shared, block, number);
	__syncwarp();
	__syncthreads();
	return loss;
}

#define FOR_PAIRS(i, pair)                                                                         \
	_Pragma("unroll 1") for (int i = 0, pair = threadIdx.x / 32; pair < block.pairs;           \
				 i++, pair += WARPS)

/* Computes the new weights from the gradients of all blocks. */
__device__ inline void persistent_sgd(struct block_state *shared, const struct persistent_run &run,
	volatile struct fc_registers *mine, float dy_unit, float rate, int n, int passes,
	bool last_pass, uint32_t number)
{
	const struct block_tile &block = shared->block;
	struct ll_line *conv = run.s.exchange.conv + block.group * run.ranges * CONV_LINES;

	ll_store_conv(conv + block.range * CONV_LINES, shared, number);
	FOR_PAIRS(i, pair)
	{
		struct fc_registers o = fc_unspill(mine[i]);

		sgd_fc_pair(&o, shared, block, pair,
			shared->scale[threadIdx.x % 32 / 4].unit * dy_unit, rate);
		if (last_pass)
			put_fc_dgrad(shared, o, pair);
		fc_spill(mine[i], o);
	}
	if (threadIdx.x / 32 == WARPS - 1)
		sgd_fc_bias(shared, block.images, run.batch.images, rate, last_pass);
	if (n + 1 < passes)
		expand_band(shared, run.s.exchange, block, n % 2 == 0);
	ll_wait_conv(run.s.exchange, shared, conv, run.ranges, number);
	__syncwarp();
	__syncthreads();
	sgd_conv_filter(shared, rate, last_pass);
	__syncthreads();
	if (last_pass) {
		FOR_PAIRS(i, pair)
		put_fc_fprop(shared, fc_unspill(mine[i]), pair);
	}
	__syncthreads();
}

/* ---- after the last step --------------------------------------------------------------------- */

/* Writes weights and sums to global memory. The first block of each filter group writes the conv
 * weights, and block 0 also writes the bias. */
__device__ inline void persistent_store(
	const struct block_state *shared, const struct kx_seed &s, const struct block_tile &block)
{
	const int i = threadIdx.x, at = block.group * BLOCK_FILTERS * SEED_ROW + i;

	if (block.range > 0)
		return;
	if (i < BLOCK_FILTERS * SEED_ROW) {
		s.params.conv[at] = (&shared->conv[0][0])[i];
		s.sum.conv[at] = (&shared->conv_sum[0][0])[i];
	}
	if (i < 256)
		seed_fragment(s, block.group, shared->conv[0], i);
	if (blockIdx.x == 0 && i < SEED_ROW) {
		s.params.bias[i] = shared->bias[i];
		s.sum.bias[i] = shared->bias_sum[i];
	}
}

/* The first warp of block 0 adds up the losses and advances the step counters. */
__device__ inline void persistent_end(const struct persistent_run &run, struct block_state *shared,
	const struct block_tile &block, double loss, uint32_t number)
{
	const int warp = threadIdx.x / 32;

	if (warp < block.own_images)
		ll_store_loss(run.s.exchange.losses + blockIdx.x + warp * gridDim.x, loss, number);
	if (blockIdx.x > 0 || warp > 0)
		return;
	loss = ll_wait_losses(run.s.exchange, shared, block.images, number);
	if (threadIdx.x > 0 || *static_cast<volatile uint32_t *>(&shared->gave_up))
		return;
	*run.s.exchange.steps = number; /* all blocks have read the old step number by now */
	if (run.now) {
		run.now->step += run.steps;
		*run.loss += loss;
	} else {
		*run.loss = loss / run.batch.images;
	}
}

/* blockIdx.x is filter group * ranges + range of positions. */
template <bool MANY>
__global__ void __launch_bounds__(THREADS, 1) seed_persistent_kernel(struct persistent_run run)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct block_state *shared = reinterpret_cast<struct block_state *>(memory);
	const struct block_tile &block = shared->block;
	const int i = threadIdx.x, own = blockIdx.x + i / 32 * gridDim.x;
	const float dy_unit = 1 / (DY_SCALE * run.batch.images);
	const float rate = run.now ? run.now->rate : 0;
	/* number of passes of the launch */
	const int passes = MANY ? run.steps * run.passes : run.steps;
	uint32_t number = __ldcg(run.s.exchange.steps);
	double loss = 0;
	/* volatile keeps the fc weights in local memory, because fprop and wgrad need the
	 * registers */
	volatile struct fc_registers mine[(POSITION_PAIRS + WARPS - 1) / WARPS];
	if (i == 0) {
		shared->block = block_tile_of(run.ranges, run.images);
		shared->gave_up = *static_cast<volatile uint32_t *>(run.s.exchange.trouble);
		shared->pixels_lost = 0;
	}
	persistent_clear(shared);
	__syncthreads();
	if (shared->gave_up)
		return;
	/* if a test has set timeout_ns to 0, the first block starts 30 ms late */
	if (run.s.exchange.timeout_ns == 0 && blockIdx.x == 0)
		for (int ms = 0; ms < 30; ms++)
			__nanosleep(1000000);
	persistent_tables(shared, block);
	for (int n = 0; n < 2 && n < passes && i < block.images; n++)
		shared->number[n][i] = pass_image<MANY>(run, pass_of<MANY>(run, n), i);
	persistent_load_weights(shared, run.s, block);
	fetch_band(shared, run.s.exchange, run.batch, block, shared->number[0]);
	FOR_PAIRS(k, pair)
	{
		struct fc_registers o;

		fc_load(&o, run.s, block, pair);
		put_fc_dgrad(shared, o, pair);
		put_fc_fprop(shared, o, pair);
		fc_spill(mine[k], o);
	}
	expand_band(shared, run.s.exchange, block, false);
	__syncthreads();
	for (int n = 0; n < passes; n++) {
		const struct pass pass = pass_of<MANY>(run, n);
		int label = 0;
		/* number of the image that this thread needs in the pass after the next one */
		uint32_t after = 0;

		number++;
		if (i / 32 < block.own_images)
			label = run.batch.labels[shared->number[n % 2][own]];
		if (n + 2 < passes && i < block.images)
			after = pass_image<MANY>(run, pass_of<MANY>(run, n + 2), i);
		persistent_fprop(shared, block);
		__syncthreads();
		loss += exchange_logits(shared, run, n, passes, label,
			!MANY || pass.first + own < run.batch.images, after, number);
		struct warp_sums warp_sums = {};
		persistent_wgrad(&warp_sums, shared, block);
		__syncthreads(); /* because the sums reuse the memory of the values */
		put_warp_sums(shared, warp_sums, dy_unit);
		__syncthreads();
		persistent_sgd(shared, run, mine, dy_unit, rate, n, passes, pass.last, number);
		/* all threads see the same value here and return, so none of them waits at a later
		 * barrier */
		if (shared->gave_up)
			return;
	}
	FOR_PAIRS(k, pair)
	fc_store(fc_unspill(mine[k]), run.s, block, pair);
	persistent_store(shared, run.s, block);
	persistent_end(run, shared, block, loss, number);
}

/* ---- host side ------------------------------------------------------------------------------- */

int passes_of(int images)
{
	return (images + SEED_PERSISTENT_IMAGES - 1) / SEED_PERSISTENT_IMAGES;
}

/* Returns the largest number of passes with which the persistent kernel is faster than the other
 * kernels. The fewer filters a network has, the larger is the part of a pass in which the blocks
 * only wait. */
int max_passes(int f_pad)
{
	const int passes = 1 + f_pad / 64;

	return passes < SEED_PERSISTENT_PASSES ? passes : SEED_PERSISTENT_PASSES;
}

template <bool MANY> int launch_persistent(const struct persistent_run &run, cudaStream_t stream)
{
	const int bytes = (int)sizeof(struct block_state);
	cudaLaunchAttribute attribute = {};
	cudaLaunchConfig_t config = {};

	attribute.id = cudaLaunchAttributeCooperative;
	attribute.val.cooperative = 1;
	config.gridDim = dim3(run.s.f_pad / BLOCK_FILTERS * run.ranges);
	config.blockDim = dim3(THREADS);
	config.dynamicSmemBytes = bytes;
	config.stream = stream;
	config.attrs = &attribute;
	config.numAttrs = 1;
	if (cudaFuncSetAttribute(seed_persistent_kernel<MANY>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) ||
		cudaLaunchKernelEx(&config, seed_persistent_kernel<MANY>, run))
		return PS_EDEVICE;
	return KX_LAUNCHED();
}

} // namespace

int kx_seed_persistent_ranges(struct kx_seed s, int images)
{
	const int groups = s.f_pad / BLOCK_FILTERS, passes = passes_of(images);
	const int ranges = MAX_BLOCKS / groups < MAX_RANGES ? MAX_BLOCKS / groups : MAX_RANGES;

	if (!s.half || passes > max_passes(s.f_pad) || ranges < MIN_RANGES ||
		groups * ranges > s.multiprocessors)
		return 0;
	return (images + passes - 1) / passes <= groups * ranges * WARPS ? ranges : 0;
}

int kx_seed_persistent(struct kx_seed s, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream)
{
	const int passes = passes_of(batch.images), images = (batch.images + passes - 1) / passes;
	const int ranges = kx_seed_persistent_ranges(s, batch.images);
	const struct persistent_run run = {s, batch, now, loss, ranges, steps, images, passes};

	return passes > 1 ? launch_persistent<true>(run, stream)
			  : launch_persistent<false>(run, stream);
}
