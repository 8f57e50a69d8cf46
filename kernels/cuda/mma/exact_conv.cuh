/*
 * exact_conv.cuh - a convolution of 8-bit pixels on tensor cores, followed by a 2 x 2 pool window,
 * as exact as fp32. A pixel below 256 is exact in bf16. A weight is the sum of three bf16 terms of
 * 8 bits each, which are its 24 bits. So three products with fp32 sums have only the rounding of
 * the sums, as FFMA has.
 *
 * One m16n8k16 has K = the input pixels of the patch under a pool window: (SIZE + 1)^2 of them,
 * two neighbours of a row in each word. Its rows are filters x the four output pixels of the
 * window; the weights of an output pixel lie shifted among zeros. The four output pixels of a
 * filter are in rows r and r + 8 of two tiles, so a thread holds all four of filter r = lane / 4
 * for two images (t = lane % 4), and ReLU and pool need no shuffle.
 */
#ifndef KERNELS_CUDA_MMA_EXACT_CONV_CUH
#define KERNELS_CUDA_MMA_EXACT_CONV_CUH
#include <cuda_bf16.h>
#include "kernels/cuda/base/common.cuh"

#define CONV_SIDE  28
#define CONV_TERMS 3
#define CONV_GROUP 16 /* images that a warp processes at a time */
#define CONV_PIXEL (1 / 255.0f)
#define ROW_WORDS  (CONV_SIDE / 2)
/* Words (two bf16 pixels) from image to image in shared memory. A warp's 8 images x 4 words lie
 * in 32 different banks. */
#define IMAGE_WORDS 396

template <int SIZE> struct conv {
	static const int PATCH = SIZE + 1, PAIRS = PATCH * PATCH / 2;
	static const int STEPS = (PAIRS + 7) / 8; /* products of a patch */
	static const int POOLED = (CONV_SIDE - SIZE + 1) / 2;
	static const int POSITIONS = POOLED * POOLED;
};

/* Byte i of a word as a float: 2^23 + n minus 2^23. */
__device__ static inline float pixel_of(uint32_t four, int i)
{
	return __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7440 + i)) - 8388608.0f;
}

/* Two words of bf16: the upper halves of the floats. Exact for integers up to 256. */
__device__ static inline uint2 pixels_to_bf16(uint32_t four)
{
	uint32_t x[4];
#pragma unroll
	for (int i = 0; i < 4; i++)
		x[i] = __float_as_uint(pixel_of(four, i));
	return {__byte_perm(x[0], x[1], 0x7632), __byte_perm(x[2], x[3], 0x7632)};
}

__device__ static inline void mma_bf16(float *c, uint4 a, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
	    "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* The images of a group in shared memory, and a buffer for their bytes. */
struct conv_images {
	uint32_t pixels[CONV_GROUP * IMAGE_WORDS];
	uint4 bytes[CONV_GROUP * CONV_SIDE * CONV_SIDE / 16];
};

/* Each thread fetches the 16 pixels (chunk i of the group) that it will convert. */
__device__ static inline void conv_fetch(
	struct conv_images *to, int i, const uint8_t *image, bool here)
{
	const int chunks = CONV_SIDE * CONV_SIDE / 16;
	copy_ahead(&to->bytes[i], image + i % chunks * 16, here);
}

/* 16 pixels, chunk i of consecutive images. */
__device__ static inline void conv_put(uint32_t *pixels, int i, uint4 v)
{
	const int chunks = CONV_SIDE * CONV_SIDE / 16;
	uint4 *out = reinterpret_cast<uint4 *>(pixels + i / chunks * IMAGE_WORDS + i % chunks * 8);
	const uint2 a = pixels_to_bf16(v.x), b = pixels_to_bf16(v.y);
	const uint2 c = pixels_to_bf16(v.z), d = pixels_to_bf16(v.w);
	out[0] = {a.x, a.y, b.x, b.y};
	out[1] = {c.x, c.y, d.x, d.y};
}

__device__ static inline void conv_convert(struct conv_images *to, int i)
{
	conv_put(to->pixels, i, to->bytes[i]);
}

template <int SIZE> struct conv_weights {
	uint4 a[conv<SIZE>::STEPS][CONV_TERMS][2];
};

template <int SIZE>
__device__ static inline void conv_load(
	struct conv_weights<SIZE> *w, const uint32_t *fragments, int filter_group, int lane)
{
	const int n = conv<SIZE>::STEPS * CONV_TERMS * 2;
	const uint4 *from = reinterpret_cast<const uint4 *>(fragments) + filter_group * n * 32;
#pragma unroll
	for (int i = 0; i < n; i++)
		w->a[i / 2 / CONV_TERMS][i / 2 % CONV_TERMS][i % 2] = from[i * 32 + lane];
}

/* The word offset, from the first word of a patch, of the pair that thread t has in half h of
 * step k. The weights behind the last pair are zero. */
template <int SIZE> __device__ static inline int conv_pair(int k, int h, int t)
{
	const int row = conv<SIZE>::PATCH / 2, pair = k * 8 + h * 4 + t;
	return pair < conv<SIZE>::PAIRS ? pair / row * ROW_WORDS + pair % row : 0;
}

/* The four output pixels of filter lane / 4 for images 2t and 2t + 1: c[tile][image + 2 * lower
 * row]. Without bias, in units of a pixel. `at`: word offsets of the pairs in the patch. */
template <int SIZE>
__device__ static inline void conv_window(float (&c)[2][4], const struct conv_weights<SIZE> &w,
	const uint32_t *patch, const int (&at)[conv<SIZE>::STEPS][2])
{
	uint32_t b[conv<SIZE>::STEPS][2];
#pragma unroll
	for (int k = 0; k < conv<SIZE>::STEPS; k++) {
		b[k][0] = patch[at[k][0]];
		b[k][1] = patch[at[k][1]];
	}
#pragma unroll
	for (int term = CONV_TERMS; term-- > 0;)
#pragma unroll
		for (int k = 0; k < conv<SIZE>::STEPS; k++)
#pragma unroll
			for (int tile = 0; tile < 2; tile++)
				mma_bf16(c[tile], w.a[k][term][tile], b[k][0], b[k][1]);
}

/* The first maximum of four output pixels in row order. A NaN that comes first stays. */
__device__ static inline float max4_argmax(float a, float b, float c, float d, uint32_t *argmax)
{
	bool right = b > a, right_below = d > c;
	float top = right ? b : a, bottom = right_below ? d : c;
	bool below = bottom > top;
	uint32_t x = right ? 1 : 0, x_below = right_below ? 3 : 2;
	*argmax = below ? x_below : x;
	return below ? bottom : top;
}

/* The larger of both. A NaN stays. */
__device__ static inline float max_or_nan(float a, float b)
{
	float v;
	asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
	return v;
}

/* The terms of word i of the fragments (n = 256 * STEPS for each filter group, in the order
 * step, tile, lane, word). `weight`: of filter 0; `pitch`: floats from filter to filter. */
template <int SIZE>
__device__ static inline void conv_fragment(
	uint32_t *fragments, const float *weight, int pitch, size_t i)
{
	const int word = (int)(i % 4), lane = (int)(i / 4 % 32), tile = (int)(i / 128 % 2);
	const int step = (int)(i / 256 % conv<SIZE>::STEPS);
	const size_t group = i / 256 / conv<SIZE>::STEPS;
	const int out_pixel = 2 * tile + word % 2, pair = step * 8 + word / 2 * 4 + lane % 4;
	const float *w = weight + (group * 8 + lane / 4) * pitch;
	uint32_t term[CONV_TERMS] = {};
	for (int half = 0; half < 2; half++) {
		const int k = 2 * pair + half, patch = conv<SIZE>::PATCH;
		const int y = k / patch - out_pixel / 2, x = k % patch - out_pixel % 2;
		float rest = y >= 0 && y < SIZE && x >= 0 && x < SIZE ? w[y * SIZE + x] : 0;
		for (int p = 0; p < CONV_TERMS; p++) {
			__nv_bfloat16 b = __float2bfloat16_rn(rest);
			rest -= __bfloat162float(b);
			term[p] |= (uint32_t)__bfloat16_as_ushort(b) << (16 * half);
		}
	}
	for (int p = 0; p < CONV_TERMS; p++)
		fragments[(((group * conv<SIZE>::STEPS + step) * CONV_TERMS + p) * 2 + tile) * 128 +
			  lane * 4 + word] = term[p];
}

/* Stores weight `tap` of filter f in the fragments, which hold zeros elsewhere: once for each of
 * the four output pixels, in three terms. */
template <int SIZE>
__device__ static inline void conv_store_weight(uint32_t *fragments, int f, int tap, float weight)
{
	uint16_t *halves = reinterpret_cast<uint16_t *>(fragments), term[CONV_TERMS];
	for (int p = 0; p < CONV_TERMS; p++) {
		const __nv_bfloat16 b = __float2bfloat16_rn(weight);
		weight -= __bfloat162float(b);
		term[p] = __bfloat16_as_ushort(b);
	}
	for (int out_pixel = 0; out_pixel < 4; out_pixel++) {
		const int k = (tap / SIZE + out_pixel / 2) * conv<SIZE>::PATCH + tap % SIZE +
			      out_pixel % 2;
		const int pair = k / 2, word = pair / 4 % 2 * 2 + out_pixel % 2;
		const int lane = f % 8 * 4 + pair % 4, step = f / 8 * conv<SIZE>::STEPS + pair / 8;
		for (int p = 0; p < CONV_TERMS; p++)
			halves[(((step * CONV_TERMS + p) * 2 + out_pixel / 2) * 128 + lane * 4 +
				       word) *
					2 +
				k % 2] = term[p];
	}
}

#endif
