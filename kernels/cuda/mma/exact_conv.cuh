/*
 * exact_conv.cuh - a convolution of 8-bit pixels with a 2 x 2 pool, on tensor cores and as exact as
 * fp32.
 *
 * A pixel is an integer below 256, which bf16 represents exactly. A weight is split into three bf16
 * terms of 8 bits each, which together hold its 24 bits. Three products with fp32 accumulators
 * therefore round only the sums, as FFMA does.
 *
 * The GEMM computes one pool window at a time with m16n8k16. K is the patch under the window: (SIZE
 * + 1)^2 input pixels, two neighbours of a row per word. The columns are images. The rows are
 * filters x the four output pixels of the window. The weights of an output pixel are shifted by its
 * offset in the window, and zeros fill the rest of the patch.
 *
 * The four output pixels of filter r = lane / 4 are in rows r and r + 8 of two tiles. A thread
 * therefore holds all four output pixels for images 2t and 2t + 1 (t = lane % 4), and ReLU and pool
 * need no shuffle.
 */
#ifndef KERNELS_CUDA_MMA_EXACT_CONV_CUH
#define KERNELS_CUDA_MMA_EXACT_CONV_CUH
#include <cuda_bf16.h>
#include "kernels/cuda/base/common.cuh"

#define CONV_SIDE  28
#define CONV_TERMS 3
#define CONV_GROUP 16 /* number of images that a warp processes at a time */
#define CONV_PIXEL (1 / 255.0f)
#define ROW_WORDS  (CONV_SIDE / 2)
/* The stride between two images in shared memory, in words of two bf16 pixels. With this stride,
 * the 8 images x 4 words that a warp loads are in 32 different banks. */
#define IMAGE_WORDS 396

template <int SIZE> struct conv {
	static const int PATCH = SIZE + 1, PAIRS = PATCH * PATCH / 2;
	static const int STEPS = (PAIRS + 7) / 8; /* number of m16n8k16 steps of a patch */
	static const int POOLED = (CONV_SIDE - SIZE + 1) / 2;
	static const int POSITIONS = POOLED * POOLED;
};

/* Converts byte i of a word to float, as (2^23 + n) - 2^23. */
__device__ static inline float pixel_of(uint32_t four, int i)
{
	return __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7440 + i)) - 8388608.0f;
}

/* Converts four bytes to two words of bf16: the upper halves of the floats. The conversion is exact
 * for integers up to 256. */
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

/* Fetches chunk i of the group, 16 pixels. The same thread converts these pixels later. */
__device__ static inline void conv_fetch(
	struct conv_images *to, int i, const uint8_t *image, bool here)
{
	const int chunks = CONV_SIDE * CONV_SIDE / 16;

	copy_async(&to->bytes[i], image + i % chunks * 16, here);
}

/* Converts the 16 pixels `v` to bf16 and stores them as chunk i of the images at `pixels`. The
 * chunks of all images have consecutive numbers. */
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

/* Returns the word offset in the patch of the pair of pixels that thread t loads for half h of step
 * k. For pairs after the last one, whose weights are zero, returns the offset of pair 0. */
template <int SIZE> __device__ static inline int conv_pair(int k, int h, int t)
{
	const int row = conv<SIZE>::PATCH / 2, pair = k * 8 + h * 4 + t;

	return pair < conv<SIZE>::PAIRS ? pair / row * ROW_WORDS + pair % row : 0;
}

/* Computes the four output pixels of filter lane / 4 for images 2t and 2t + 1, without bias, for
 * pixels of 0 to 255. c[tile][2 * j + i] is the output pixel of row `tile` and column j of the
 * window, for image 2t + i. `at` has the word offsets of the pairs in the patch. */
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

/* Returns the first maximum of four output pixels in row order. If the first pixel is NaN, the
 * result is NaN. */
__device__ static inline float max4_argmax(float a, float b, float c, float d, uint32_t *argmax)
{
	bool right = b > a, right_below = d > c;
	float top = right ? b : a, bottom = right_below ? d : c;
	bool below = bottom > top;
	uint32_t x = right ? 1 : 0, x_below = right_below ? 3 : 2;

	*argmax = below ? x_below : x;
	return below ? bottom : top;
}

/* Returns the larger of a and b, or NaN if either is NaN. */
__device__ static inline float max_or_nan(float a, float b)
{
	float v;

	asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
	return v;
}

/* Writes the three terms of word i of the fragments. A filter group has 256 * STEPS words in the
 * order step, tile, lane, word. `weight` points to filter 0; each next filter is `pitch` floats
 * further. */
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

/* Stores weight `tap` of filter f in the fragments, in three terms, once for each of the four
 * output pixels. All other words of the fragments are zero already. */
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
