/*
 * seed_half_fprop.cu - forward of the seed nets in low precision: seed_fprop.cu, but the
 * products with the fc weights are on tensor cores, too, in bf16.
 *
 * Their k are eight filters at two positions. A thread has a filter's values of two images and
 * wants two filters' of one: movmatrix turns eight rows into columns.
 */
#include "kernels/cuda/fused/seed_half.cuh"

#define WARPS   8
#define THREADS (WARPS * 32)

/* A warp's share: eight filters at positions begin.. to end. */
struct share {
	int filter_group, begin, end;
};

struct low_shared {
	uint32_t pixels[SEED_GROUP * IMAGE_WORDS + 32]; /* and what a position too far reads */
	float reduced[WARPS][SEED_GROUP * SEED_CLASSES];
};

/* Missing images are the batch's last once more; nobody looks at their scores. */
__device__ static inline void load_images(
	uint32_t *pixels, const struct kx_batch &batch, int step, int group)
{
	const int chunks = SEED_SIDE * SEED_SIDE / 16;
	for (int i = threadIdx.x; i < SEED_GROUP * chunks; i += THREADS) {
		const int image = min(group * SEED_GROUP + i / chunks, batch.images - 1);
		const uint4 v =
			__ldg(reinterpret_cast<const uint4 *>(seed_image(batch, step, image)) +
				i % chunks);
		uint4 *out = reinterpret_cast<uint4 *>(
			pixels + i / chunks * IMAGE_WORDS + i % chunks * 8);
		out[0] = {__byte_perm(v.x, 0, 0x4140), __byte_perm(v.x, 0, 0x4342),
			__byte_perm(v.y, 0, 0x4140), __byte_perm(v.y, 0, 0x4342)};
		out[1] = {__byte_perm(v.z, 0, 0x4140), __byte_perm(v.z, 0, 0x4342),
			__byte_perm(v.w, 0, 0x4140), __byte_perm(v.w, 0, 0x4342)};
	}
}

/* ---- features -------------------------------------------------------------------------------- */

/* A thread's four features of a position, images 2t, 2t + 1, 2t + 8, 2t + 9. */
struct features {
	float value[4];
	uint32_t won; /* nibbles in this order */
};

__device__ static inline struct features features_of(
	const struct low_weights<2> &w, const uint32_t *patch)
{
	struct features f = {};
#pragma unroll
	for (int i = 0; i < 4; i += 2) {
		const uint32_t *at = patch + i / 2 * 8 * IMAGE_WORDS;
		const uint32_t b0 = at[0], b1 = at[2 * ROW_WORDS];
		float c[2][4] = {};
#pragma unroll
		for (int part = 2; part-- > 0;) {
			mma_half(c[0], w.a[part][0], b0, b1);
			mma_half(c[1], w.a[part][1], b0, b1);
		}
#pragma unroll
		for (int e = 0; e < 2; e++) {
			uint32_t winner;
			const float most =
				first_maximum(c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &winner);
			const float v = __saturatef(fmaf(most, w.scale.slope, w.scale.bias));
			f.won |= (v > 0 ? LOW_WINNER(winner) : LOW_NO_WINNER) << (4 * (i + e));
			f.value[i + e] = v * w.scale.unit;
		}
	}
	return f;
}

/* A position's fc weights, of classes lane / 4 and 8 + lane / 4 and filters 2t and 2t + 1. What
 * lies past the ten classes is in rows of the product that nobody looks at. */
struct fc_weights {
	float v[2][2];
};

__device__ static inline struct fc_weights fc_load(const float *from)
{
	return {{{__ldg(from), __ldg(from + SEED_ROW)},
		{__ldg(from + 8), __ldg(from + 8 + SEED_ROW)}}};
}

/* Scores of the group's images, summed over the warp's features, into to[image][class]. */
__device__ static inline void add_positions(const struct kx_seed &s, const struct share &share,
	const uint32_t *pixels, int group, float *to)
{
	const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	const int f0 = share.filter_group * 8, stride = s.f_pad * SEED_ROW;
	struct low_weights<2> w;
	low_load(&w, low_fragments(s, share.filter_group), low_scales(s, share.filter_group), lane);
	const float *fc = s.params.fc + (size_t)share.begin * stride + (f0 + 2 * t) * SEED_ROW + g;
	/* a warp has two positions at least */
	struct fc_weights next[2] = {fc_load(fc), fc_load(fc + stride)};
	uint16_t *winners = low_winners(s, group, share.begin) + (f0 + g) * 4 + t;
	const uint32_t *patch = pixels + g * IMAGE_WORDS + share.begin / 13 * (2 * ROW_WORDS) +
				share.begin % 13 + conv_pair<3>(0, 0, t);
	float score[2][4] = {};
	for (int left = share.end - share.begin, x = share.begin % 13; left > 0; left -= 2) {
		uint32_t values[2][2]; /* half of the images, place */
		/* a position past the end has no weights; those loaded are of the one before */
		const uint32_t real = left > 1 ? 0xffffffffu : 0;
		const uint4 a = {two_bf16(next[0].v[0][0], next[0].v[0][1]),
			two_bf16(next[0].v[1][0], next[0].v[1][1]),
			two_bf16(next[1].v[0][0], next[1].v[0][1]) & real,
			two_bf16(next[1].v[1][0], next[1].v[1][1]) & real};
		fc += left > 2 ? 2 * stride : 0;
		next[0] = fc_load(fc);
		next[1] = fc_load(fc + (left > 3 ? stride : 0));
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const struct features f = features_of(w, patch);
			values[0][i] = transposed(two_bf16(f.value[0], f.value[1]));
			values[1][i] = transposed(two_bf16(f.value[2], f.value[3]));
			if (i < left)
				*winners = (uint16_t)f.won;
			winners += s.f_pad * 4;
			patch++;
			if (++x == 13) {
				x = 0;
				patch += 2 * ROW_WORDS - 13;
			}
		}
		mma_bf16(score[0], a, values[0][0], values[0][1]);
		mma_bf16(score[1], a, values[1][0], values[1][1]);
	}
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const int image = i / 4 * 8 + 2 * t + i % 2, c = g + i / 2 % 2 * 8;
		if (c < SEED_CLASSES)
			to[image * SEED_CLASSES + c] = score[i / 4][i % 4];
	}
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Sum over the block's warps, in a fixed order. */
__device__ static inline void scores_out(const struct kx_seed &s, const struct kx_batch &batch,
	const float (*reduced)[SEED_GROUP * SEED_CLASSES], int group, int part)
{
	const int i = threadIdx.x, n = group * SEED_GROUP + i / SEED_CLASSES;
	if (i >= SEED_GROUP * SEED_CLASSES || n >= batch.images)
		return;
	float v = 0;
	for (int w = 0; w < WARPS; w++)
		v += reduced[w][i];
	s.score_parts[((size_t)part * batch.images + n) * SEED_CLASSES + i % SEED_CLASSES] = v;
}

/* blockIdx: x images, y filters, z positions. Warps: filter_warps x the rest of positions. */
__global__ void __launch_bounds__(THREADS, 3) low_forward_kernel(
	struct kx_seed s, struct kx_batch batch, int filter_warps, int ranges, int step)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct low_shared *shared = reinterpret_cast<struct low_shared *>(memory);
	const int warp = threadIdx.x / 32, group = blockIdx.x;
	const int range = blockIdx.z * (WARPS / filter_warps) + warp / filter_warps;
	const struct share share = {(int)blockIdx.y * filter_warps + warp % filter_warps,
		SEED_POSITIONS * range / ranges, SEED_POSITIONS * (range + 1) / ranges};
	load_images(shared->pixels, batch, step, group);
	__syncthreads();
	await_previous();
	add_positions(s, share, shared->pixels, group, shared->reduced[warp]);
	__syncthreads();
	scores_out(s, batch, shared->reduced, group, blockIdx.y * gridDim.z + blockIdx.z);
}

int kx_seed_low_forward(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	const struct seed_cut c = kx_seed_cut(s.f_pad, s.low, batch.images);
	const int bytes = (int)sizeof(struct low_shared);
	if (cudaFuncSetAttribute(
		    low_forward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(low_forward_kernel, dim3(c.groups, c.filter_blocks, c.ranges), THREADS,
		bytes, stream, s, batch, c.warps_filters, c.ranges * (WARPS / c.warps_filters),
		step);
}
