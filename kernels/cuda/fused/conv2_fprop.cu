/*
 * conv2_fprop.cu - conv2.h's convolution forward, with bias, ReLU and pool. Built for
 * sm_90a.
 *
 * Nearly as exact as fp32 in three products: a value is the sum of two fp16 numbers, and the
 * product of the two small ones is left out. With 11 bits, as tf32 has, winners and ReLUs would
 * change too often (see docs/gpu.md).
 *
 * The 64 rows of a product are an image's outputs: a row of eight of them are eight pixels that lie
 * one behind the other in shared memory, so that a tap is another start and nothing is copied. A
 * warpgroup has PER images and GROUPS of them share the weights, a row of taps at a time, of which
 * the next one is on its way.
 */
#include "kernels/cuda/mma/exact_conv.cuh"
#include "kernels/cuda/fused/conv2.cuh"
#include "kernels/cuda/mma/wgmma.cuh"

#define PIECE (SECOND_FILTERS * SECOND_CHANNELS * 2) /* bytes of a tap's weights */
#define TAP   (SECOND_PIECES * PIECE)
#define ROW   (SECOND_SIZE * TAP)
#define CORE  (SECOND_FILTERS * 16) /* eight channels of a tap's weights */
#define ROWS  SECOND_OUT            /* of an image that the first row of taps wants */

template <int IMAGES> struct forward_shared {
	unsigned char image[IMAGES][SECOND_PIECES * SECOND_PIECE];
	unsigned char weights[2][ROW];
};

__device__ static inline void fetch_row(unsigned char *to, const struct kx_second &l, int ky)
{
	const unsigned char *from =
		reinterpret_cast<const unsigned char *>(l.forward) + (size_t)ky * ROW;
	for (int i = threadIdx.x * 16; i < ROW && ky < SECOND_SIZE; i += blockDim.x * 16)
		copy_ahead(to + i, from + i, true);
}

/* Rows [row, row + rows) of the images from n0 on. */
template <int IMAGES>
__device__ static inline void fetch_images(struct forward_shared<IMAGES> *s,
	const struct kx_second &l, int n0, int images, int row, int rows)
{
	const int groups = SECOND_PIECES * SECOND_CHANNELS / 8, pixels = rows * SECOND_IN;
	for (int i = threadIdx.x; i < IMAGES * groups * pixels; i += blockDim.x) {
		const int image = i / pixels / groups, n = n0 + image;
		const int at =
			(i / pixels % groups * SECOND_PIXELS + row * SECOND_IN + i % pixels) * 16;
		const uint16_t *from = l.in + (size_t)(n < images ? n : 0) * SECOND_IMAGE;
		copy_ahead(s->image[image] + at, from + at / 2, n < images);
	}
}

/* A row of taps of one image: `at` its first pixel, `weights` the row's. */
template <int PER>
__device__ static inline void add_row(float (&d)[PER][32], uint32_t at, uint32_t weights)
{
	wgmma_begin();
#pragma unroll
	for (int kx = 0; kx < SECOND_SIZE; kx++, at += 16, weights += TAP)
#pragma unroll
		for (int k = 0; k < SECOND_CHANNELS / 16; k++) {
			const uint64_t w = wgmma_operand(weights + 2 * k * CORE, CORE, 128);
			const uint64_t w_small =
				wgmma_operand(weights + PIECE + 2 * k * CORE, CORE, 128);
#pragma unroll
			for (int i = 0; i < PER; i++) {
				const uint32_t from = at + i * (SECOND_PIECES * SECOND_PIECE) +
						      2 * k * SECOND_GROUP;
				const uint64_t x =
					wgmma_operand(from, SECOND_GROUP, SECOND_IN * 16);
				const uint64_t x_small = wgmma_operand(
					from + SECOND_PIECE, SECOND_GROUP, SECOND_IN * 16);
				wgmma_half(d[i], x_small, w);
				wgmma_half(d[i], x, w_small);
				wgmma_half(d[i], x, w);
			}
		}
}

/* Pool, bias and ReLU of image n. Lanes of even columns of outputs and their neighbours, of odd
 * ones, have two cells of a window each, for two filters: each gets all four for one filter. */
__device__ static inline void store(
	const struct kx_second &l, const float (&d)[32], int n, bool here)
{
	const int lane = threadIdx.x % 32, y = threadIdx.x / 32 % 4, x = lane / 8,
		  odd = lane / 4 % 2;
	const int f0 = lane % 4 * 2 + odd;
	const size_t window = (size_t)y * SECOND_POOLED + x;
	float *value = l.out.value + n * l.out.image + l.out.origin + y * l.out.row +
		       x * SECOND_FILTERS + f0;
	uint8_t *winner = l.winner +
			  (n * (size_t)(SECOND_POOLED * SECOND_POOLED) + window) * SECOND_FILTERS +
			  f0;
#pragma unroll
	for (int j = 0; j < 8; j++) {
		const float *c = d + 4 * j;
		const float top = __shfl_xor_sync(0xffffffffu, odd ? c[0] : c[1], 4);
		const float bottom = __shfl_xor_sync(0xffffffffu, odd ? c[2] : c[3], 4);
		uint32_t won;
		const float v = odd ? first_maximum(top, c[1], bottom, c[3], &won)
				    : first_maximum(c[0], top, c[2], bottom, &won);
		if (!here)
			continue;
		value[8 * j] = max_or_nan(fmaf(v, 1 / SECOND_SCALE, l.bias[f0 + 8 * j]), 0);
		winner[8 * j] = (uint8_t)won;
	}
}

template <int GROUPS, int PER>
__global__ void __launch_bounds__(128 * GROUPS, 1)
	second_forward_kernel(struct kx_second l, int images)
{
	constexpr int IMAGES = GROUPS * PER;
	extern __shared__ __align__(128) unsigned char memory[];
	struct forward_shared<IMAGES> *s =
		reinterpret_cast<struct forward_shared<IMAGES> *>(memory);
	const int n0 = blockIdx.x * IMAGES, first = threadIdx.x / 128 * PER;
	float d[PER][32] = {};

	fetch_row(s->weights[0], l, 0);
	await_previous();
	fetch_images<IMAGES>(s, l, n0, images, 0, ROWS);
	copies_commit();
	fetch_images<IMAGES>(s, l, n0, images, ROWS, SECOND_IN - ROWS);
	fetch_row(s->weights[1], l, 1);
	copies_commit();
	for (int ky = 0; ky < SECOND_SIZE; ky++) {
		copies_wait<1>();
		wgmma_written();
		__syncthreads();
		add_row<PER>(d, shared_address(s->image[first]) + ky * (SECOND_IN * 16),
			shared_address(s->weights[ky % 2]));
		wgmma_commit();
		wgmma_wait();
		__syncthreads();
		fetch_row(s->weights[ky % 2], l, ky + 2);
		copies_commit();
	}
#pragma unroll
	for (int i = 0; i < PER; i++)
		store(l, d[i], n0 + first + i, n0 + first + i < images);
}

template <int GROUPS, int PER>
static int launch(struct kx_second l, int images, cudaStream_t stream)
{
	const int at_once = GROUPS * PER, bytes = (int)sizeof(struct forward_shared<GROUPS * PER>);
	if (cudaFuncSetAttribute(second_forward_kernel<GROUPS, PER>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(second_forward_kernel<GROUPS, PER>, dim3((images + at_once - 1) / at_once),
		128 * GROUPS, bytes, stream, l, images);
}

/* A block for each of 132 multiprocessors, if there are images enough. */
int kx_second_forward(struct kx_second l, int images, cudaStream_t stream)
{
	if (images <= 132)
		return launch<1, 1>(l, images, stream);
	if (images <= 2 * 132)
		return launch<2, 1>(l, images, stream);
	return images <= 4 * 132 ? launch<4, 1>(l, images, stream)
				 : launch<4, 2>(l, images, stream);
}
