/*
 * seed_half_fprop.cu - fprop of the seed networks in half precision. The kernel works like that of
 * seed_fprop.cu, but the fc product also runs on tensor cores, in bf16.
 *
 * The K of the fc product is eight filters at two positions. A thread holds the values of one
 * filter for two images. The operand needs the values of two filters for one image, so movmatrix
 * transposes the 8 x 8 values.
 */
#include "kernels/cuda/fused/seed_half.cuh"

namespace
{

#define HALF_FPROP_WARPS   8
#define HALF_FPROP_THREADS (HALF_FPROP_WARPS * 32)

/* The tile of a warp: eight filters at positions [begin, end). */
struct warp_tile {
	int filter_group, begin, end;
};

struct half_fprop_shared {
	uint32_t pixels[SEED_GROUP * IMAGE_WORDS +
			32]; /* padded, because the loop may read one position after the last one */
	float partial_logits[HALF_FPROP_WARPS][SEED_GROUP * SEED_CLASSES];
};

/* Loads a group of images. In place of images past the end of the batch, the last image is loaded
 * again; its second logits are not stored. */
__device__ inline void half_load_images(
	uint32_t *pixels, const struct kx_batch &batch, int step, int group)
{
	const int chunks = SEED_SIDE * SEED_SIDE / 16;

	for (int i = threadIdx.x; i < SEED_GROUP * chunks; i += HALF_FPROP_THREADS) {
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

/* The four features that a thread computes at a position: images 2t, 2t + 1, 2t + 8, 2t + 9. */
struct half_features {
	float value[4];
	uint32_t argmax; /* one nibble per feature, in the order of `value` */
};

__device__ inline struct half_features half_features_of(
	const struct half_weights<2> &w, const uint32_t *patch)
{
	struct half_features f = {};
#pragma unroll
	for (int i = 0; i < 4; i += 2) {
		const uint32_t *at = patch + i / 2 * 8 * IMAGE_WORDS;
		const uint32_t b0 = at[0], b1 = at[2 * ROW_WORDS];
		float c[2][4] = {};
#pragma unroll
		for (int term = 2; term-- > 0;) {
			mma_half(c[0], w.a[term][0], b0, b1);
			mma_half(c[1], w.a[term][1], b0, b1);
		}
#pragma unroll
		for (int e = 0; e < 2; e++) {
			uint32_t which;

			const float max4 =
				max4_argmax(c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &which);
			const float v = __saturatef(fmaf(max4, w.scale.slope, w.scale.bias));
			f.argmax |= (v > 0 ? HALF_ARGMAX(which) : HALF_RELU_SHUT) << (4 * (i + e));
			f.value[i + e] = v * w.scale.unit;
		}
	}
	return f;
}

/* The fc weights of a position: classes lane / 4 and 8 + lane / 4 for filters 2t and 2t + 1. The
 * values for classes from 10 on have no meaning, but they affect only rows of the product that are
 * not stored. */
struct half_fc {
	float v[2][2];
};

__device__ inline struct half_fc half_fc_load(const float *from)
{
	return {{{__ldg(from), __ldg(from + SEED_ROW)},
		{__ldg(from + 8), __ldg(from + 8 + SEED_ROW)}}};
}

/* Computes the part of the logits that comes from the features of the warp, and writes it to
 * to[image][class]. */
__device__ inline void half_add_positions(const struct kx_seed &s,
	const struct warp_tile &warp_tile, const uint32_t *pixels, int group, float *to)
{
	const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	const int f0 = warp_tile.filter_group * 8, stride = s.f_pad * SEED_ROW;
	struct half_weights<2> w;

	half_load(&w, half_fragments(s, warp_tile.filter_group),
		half_scales(s, warp_tile.filter_group), lane);
	const float *fc =
		s.params.fc + (size_t)warp_tile.begin * stride + (f0 + 2 * t) * SEED_ROW + g;
	/* there are always two, because a warp handles at least two positions */
	struct half_fc next[2] = {half_fc_load(fc), half_fc_load(fc + stride)};
	uint16_t *argmax = half_argmax(s, group, warp_tile.begin) + (f0 + g) * 4 + t;
	const uint32_t *patch = pixels + g * IMAGE_WORDS + warp_tile.begin / 13 * (2 * ROW_WORDS) +
				warp_tile.begin % 13 + conv_pair<3>(0, 0, t);
	float logits[2][4] = {};
	for (int left = warp_tile.end - warp_tile.begin, x = warp_tile.begin % 13; left > 0;
		left -= 2) {
		uint32_t values[2][2]; /* layout [half of the images][position] */
		/* the positions are computed in pairs; if one position is left, the weights of its
		 * missing partner are zeros */
		const uint32_t real = left > 1 ? 0xffffffffu : 0;
		const uint4 a = {two_bf16(next[0].v[0][0], next[0].v[0][1]),
			two_bf16(next[0].v[1][0], next[0].v[1][1]),
			two_bf16(next[1].v[0][0], next[1].v[0][1]) & real,
			two_bf16(next[1].v[1][0], next[1].v[1][1]) & real};

		fc += left > 2 ? 2 * stride : 0;
		next[0] = half_fc_load(fc);
		next[1] = half_fc_load(fc + (left > 3 ? stride : 0));
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const struct half_features f = half_features_of(w, patch);

			values[0][i] = transposed(two_bf16(f.value[0], f.value[1]));
			values[1][i] = transposed(two_bf16(f.value[2], f.value[3]));
			if (i < left)
				*argmax = (uint16_t)f.argmax;
			argmax += s.f_pad * 4;
			patch++;
			if (++x == 13) {
				x = 0;
				patch += 2 * ROW_WORDS - 13;
			}
		}
		mma_bf16(logits[0], a, values[0][0], values[0][1]);
		mma_bf16(logits[1], a, values[1][0], values[1][1]);
	}
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const int image = i / 4 * 8 + 2 * t + i % 2, c = g + i / 2 % 2 * 8;

		if (c < SEED_CLASSES)
			to[image * SEED_CLASSES + c] = logits[i / 4][i % 4];
	}
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Adds up the logits over the warps of the block, in a fixed order, and stores them. */
__device__ inline void half_store_logits(const struct kx_seed &s, const struct kx_batch &batch,
	const float (*partial_logits)[SEED_GROUP * SEED_CLASSES], int group, int slice)
{
	const int i = threadIdx.x, n = group * SEED_GROUP + i / SEED_CLASSES;

	if (i >= SEED_GROUP * SEED_CLASSES || n >= batch.images)
		return;
	float v = 0;
	for (int w = 0; w < HALF_FPROP_WARPS; w++)
		v += partial_logits[w][i];
	s.partial_logits[((size_t)slice * batch.images + n) * SEED_CLASSES + i % SEED_CLASSES] = v;
}

/* blockIdx.x selects the images of a block, blockIdx.y its filters, and blockIdx.z its positions. A
 * warp handles one of filter_warps groups of 8 filters at one of `ranges` ranges of the
 * positions. */
__global__ void __launch_bounds__(HALF_FPROP_THREADS, 3) seed_half_fprop_kernel(
	struct kx_seed s, struct kx_batch batch, int filter_warps, int ranges, int step)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct half_fprop_shared *shared = reinterpret_cast<struct half_fprop_shared *>(memory);
	const int warp = threadIdx.x / 32, group = blockIdx.x;
	const int range = blockIdx.z * (HALF_FPROP_WARPS / filter_warps) + warp / filter_warps;
	const struct warp_tile warp_tile = {(int)blockIdx.y * filter_warps + warp % filter_warps,
		SEED_POSITIONS * range / ranges, SEED_POSITIONS * (range + 1) / ranges};
	half_load_images(shared->pixels, batch, step, group);
	__syncthreads();
	await_previous();
	half_add_positions(s, warp_tile, shared->pixels, group, shared->partial_logits[warp]);
	__syncthreads();
	half_store_logits(
		s, batch, shared->partial_logits, group, blockIdx.y * gridDim.z + blockIdx.z);
}

} // namespace

int kx_seed_half_fprop(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	const struct seed_tiling c = kx_seed_tiling(s.f_pad, s.half, batch.images);
	const int bytes = (int)sizeof(struct half_fprop_shared);

	if (cudaFuncSetAttribute(
		    seed_half_fprop_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(seed_half_fprop_kernel, dim3(c.groups, c.filter_blocks, c.ranges),
		HALF_FPROP_THREADS, bytes, stream, s, batch, c.warps_filters,
		c.ranges * (HALF_FPROP_WARPS / c.warps_filters), step);
}
