/*
 * seed_half.cuh - helpers that the half-precision kernels of the seed networks share: fp16 operands
 * (half.cuh).
 *
 * fprop decides the argmax and the ReLU with weights of two terms, which hold 22 bits. With fewer
 * bits the argmax would change, and the gradients with it. fprop stores the argmax and the ReLU
 * mask of a window as one nibble, where the other kernels store two bits. wgrad reads these nibbles
 * and computes values with the hi term alone.
 */
#ifndef KERNELS_CUDA_FUSED_SEED_HALF_CUH
#define KERNELS_CUDA_FUSED_SEED_HALF_CUH
#include "kernels/cuda/mma/half.cuh"
#include "kernels/cuda/fused/seed.cuh"

/* The nibble of an argmax, and the nibble of a ReLU that blocks the gradient. */
#define HALF_ARGMAX(out_pixel)       (4u + (out_pixel))
#define HALF_RELU_SHUT               0u
#define HALF_TERMS                   2
#define HALF_FRAGMENT_WORDS(filters) ((size_t)(filters) / 8 * 256 * HALF_TERMS)

#ifdef __CUDACC__
/*
 * The scale of a filter. The weights of the filter are multiplied by a power of two. `slope` and
 * `bias` turn the sum of an output pixel into a scaled value of at most 1, so __saturatef works as
 * the ReLU. `unit`, a power of two, scales the value back. `unit` is NaN if a weight is NaN or
 * infinite, because __saturatef would hide such a weight.
 */
struct half_scale {
	float slope, bias, unit, unused;
};

/* Weights as A operands of mma, like conv_weights. */
template <int TERMS> struct half_weights {
	uint4 a[TERMS][2];
	struct half_scale scale;
};

/* Return the fragments of a filter group, [term][tile][lane], and the scales of its eight
 * filters. */
__device__ static inline uint4 *half_fragments(const struct kx_seed &s, int filter_group)
{
	return reinterpret_cast<uint4 *>(s.half_fragments) + filter_group * HALF_TERMS * 2 * 32;
}

__device__ static inline struct half_scale *half_scales(const struct kx_seed &s, int filter_group)
{
	return reinterpret_cast<struct half_scale *>(s.half_scales) + filter_group * 8;
}

template <int TERMS>
__device__ static inline void half_load(struct half_weights<TERMS> *w, const uint4 *fragments,
	const struct half_scale *scales, int lane)
{
#pragma unroll
	for (int i = 0; i < TERMS * 2; i++)
		w->a[i / 2][i % 2] = fragments[i * 32 + lane];
	w->scale = scales[lane / 4];
}

__device__ static inline uint16_t *half_argmax(const struct kx_seed &s, size_t group, int position)
{
	return reinterpret_cast<uint16_t *>(s.argmax) +
	       (group * SEED_POSITIONS + position) * s.f_pad * 4;
}

/* Returns a power of two that bounds the values of a filter with these weights, or NaN if a weight
 * is NaN or infinite. */
__device__ static inline float half_unit(const float *w)
{
	float bound = fabsf(w[9]);

	for (int k = 0; k < 9; k++)
		bound += fabsf(w[k]);
	return bound < INFINITY ? power_above(bound) : NAN;
}

/* Writes both terms of word i of a filter group's fragments. There are 256 words per term, in the
 * order tile, lane, word. `weights` has the weights of the group. The thread that has the first
 * word of a filter also writes its scale. */
__device__ static inline void half_fragment(
	uint4 *fragments, struct half_scale *scales, const float *weights, int i)
{
	const int word = i % 4, lane = i / 4 % 32, tile = i / 128;
	const int out_pixel = 2 * tile + word % 2, pair = word / 2 * 4 + lane % 4;
	const float *w = weights + lane / 4 * SEED_ROW;
	float amax = 0, v[2];

	for (int k = 0; k < 9; k++)
		amax = fmaxf(amax, fabsf(w[k]));
	const float power = power_above(amax), to_half = 0x1p15f * inverse(power);
	for (int half = 0; half < 2; half++) {
		const int k = 2 * pair + half, y = k / 4 - out_pixel / 2, x = k % 4 - out_pixel % 2;

		v[half] = y >= 0 && y < 3 && x >= 0 && x < 3 ? w[y * 3 + x] * to_half : 0;
	}
	const __half2 hi = __floats2half2_rn(v[0], v[1]);
	uint32_t *to = reinterpret_cast<uint32_t *>(fragments + tile * 32 + lane) + word;
	to[0] = half_bits(hi);
	to[2 * 128] = two_halves(v[0] - __low2float(hi), v[1] - __high2float(hi));
	if (tile == 0 && word == 0 && lane % 4 == 0) {
		const float unit = half_unit(w), to_value = inverse(unit);

		scales[lane / 4] = {power * to_value * (0x1p-15f / PIXEL_HALF) * CONV_PIXEL,
			w[9] * to_value, unit, 0};
	}
}

/* Writes word i of the fragments, and of the half-precision fragments if these are used. */
__device__ static inline void seed_fragment(
	const struct kx_seed &s, int group, const float *weights, int i)
{
	uint32_t *to = s.fragments + (size_t)group * 256 * CONV_TERMS;

	conv_fragment<3>(to, weights, SEED_ROW, i);
	if (s.half)
		half_fragment(half_fragments(s, group), half_scales(s, group), weights, i);
}

__device__ static inline uint32_t two_bf16(float low, float high)
{
	const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);

	return *reinterpret_cast<const uint32_t *>(&v);
}

/* Transposes an 8 x 8 matrix of 16-bit values. Each lane of the warp holds two values of row
 * lane / 4: those of columns 2 * (lane % 4) and 2 * (lane % 4) + 1. */
__device__ static inline uint32_t transposed(uint32_t v)
{
	uint32_t to;

	asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(v));
	return to;
}

__device__ static inline uint32_t load_shared_u32(uint32_t at)
{
	uint32_t v;

	asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
	return v;
}

__device__ static inline uint2 load_shared2(uint32_t at)
{
	uint2 v;

	asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
	return v;
}

__device__ static inline uint4 load_shared4(uint32_t at)
{
	uint4 v;

	asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "r"(at));
	return v;
}
#endif

#endif
