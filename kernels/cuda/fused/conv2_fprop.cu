/*
 * conv2_fprop.cu - fprop of conv2, with bias, ReLU and pool. Built for sm_90a.
 *
 * A value is the sum of two fp16 terms, hi and lo. The kernel computes three of the four products
 * and omits lo x lo. The result is nearly as exact as fp32. With only 11 bits, as in tf32, the
 * argmax and the ReLU mask would change too often (see docs/gpu.md).
 *
 * The 64 rows of a product are the 8 x 8 output pixels of an image. The eight pixels of an output
 * row read eight input pixels that are contiguous in shared memory. A filter tap therefore only
 * changes the start address of the operand, and im2col copies nothing. A warpgroup computes PER
 * images. The WARPGROUPS warpgroups of a block share the weights. The weights are double-buffered:
 * the block loads the next row of taps while it computes one.
 */
#include "kernels/cuda/mma/exact_conv.cuh"
#include "kernels/cuda/fused/conv2.cuh"
#include "kernels/cuda/mma/wgmma.cuh"

namespace
{

/* number of bytes of one term of the weights of a tap */
#define TERM_BYTES  (CONV2_FILTERS * CONV2_CHANNELS * 2)
#define TAP_BYTES   (CONV2_TERMS * TERM_BYTES)
#define ROW_BYTES   (CONV2_SIZE * TAP_BYTES)
#define CORE_STRIDE (CONV2_FILTERS * 16) /* number of bytes of eight channels of a term */
/* number of rows of an image that the first row of taps needs */
#define FIRST_ROWS CONV2_OUT

template <int IMAGES> struct fprop_shared {
	unsigned char image[IMAGES][CONV2_TERMS * CONV2_TERM_BYTES];
	unsigned char weights[2][ROW_BYTES];
};

__device__ inline void fprop_fetch_weights(unsigned char *to, const struct kx_conv2 &l, int ky)
{
	const unsigned char *from =
		reinterpret_cast<const unsigned char *>(l.w_fprop) + (size_t)ky * ROW_BYTES;
	for (int i = threadIdx.x * 16; i < ROW_BYTES && ky < CONV2_SIZE; i += blockDim.x * 16)
		copy_async(to + i, from + i, true);
}

/* Starts the copies of rows [row, row + rows) of the images from n0 on. */
template <int IMAGES>
__device__ inline void fprop_fetch_images(struct fprop_shared<IMAGES> *s, const struct kx_conv2 &l,
	int n0, int images, int row, int rows)
{
	const int groups = CONV2_TERMS * CONV2_CHANNELS / 8, pixels = rows * CONV2_IN;

	for (int i = threadIdx.x; i < IMAGES * groups * pixels; i += blockDim.x) {
		const int image = i / pixels / groups, n = n0 + image;

		const int at =
			(i / pixels % groups * CONV2_PIXELS + row * CONV2_IN + i % pixels) * 16;
		const uint16_t *from = l.x + (size_t)(n < images ? n : 0) * CONV2_IMAGE;
		copy_async(s->image[image] + at, from + at / 2, n < images);
	}
}

/* Adds one row of taps to the sums of PER images. `at` is the shared-memory address of the first
 * pixel, and `weights` is the shared-memory address of the weights of the row. */
template <int PER>
__device__ inline void fprop_add_row(float (&d)[PER][32], uint32_t at, uint32_t weights)
{
	wgmma_fence();
#pragma unroll
	for (int kx = 0; kx < CONV2_SIZE; kx++, at += 16, weights += TAP_BYTES)
#pragma unroll
		for (int k = 0; k < CONV2_CHANNELS / 16; k++) {
			const uint64_t w =
				wgmma_descriptor(weights + 2 * k * CORE_STRIDE, CORE_STRIDE, 128);
			const uint64_t w_lo = wgmma_descriptor(
				weights + TERM_BYTES + 2 * k * CORE_STRIDE, CORE_STRIDE, 128);
#pragma unroll
			for (int i = 0; i < PER; i++) {
				const uint32_t from = at + i * (CONV2_TERMS * CONV2_TERM_BYTES) +
						      2 * k * CONV2_GROUP_BYTES;

				const uint64_t x =
					wgmma_descriptor(from, CONV2_GROUP_BYTES, CONV2_IN * 16);
				const uint64_t x_lo = wgmma_descriptor(
					from + CONV2_TERM_BYTES, CONV2_GROUP_BYTES, CONV2_IN * 16);
				wgmma_m64n64k16(d[i], x_lo, w);
				wgmma_m64n64k16(d[i], x, w_lo);
				wgmma_m64n64k16(d[i], x, w);
			}
		}
}

/* Applies pool, bias and ReLU to image n and stores it. A lane of an even output column and its odd
 * neighbour each hold two output pixels of a window, for two filters. The two lanes exchange
 * values, so that each has all four output pixels of one filter. */
__device__ inline void fprop_store(const struct kx_conv2 &l, const float (&d)[32], int n, bool here)
{
	const int lane = threadIdx.x % 32, y = threadIdx.x / 32 % 4, x = lane / 8,
		  odd = lane / 4 % 2;
	const int f0 = lane % 4 * 2 + odd;
	const size_t window = (size_t)y * CONV2_POOLED + x;

	float *value =
		l.y.value + n * l.y.image + l.y.origin + y * l.y.row + x * CONV2_FILTERS + f0;
	uint8_t *argmax = l.argmax +
			  (n * (size_t)(CONV2_POOLED * CONV2_POOLED) + window) * CONV2_FILTERS + f0;
#pragma unroll
	for (int j = 0; j < 8; j++) {
		const float *c = d + 4 * j;
		const float top = __shfl_xor_sync(0xffffffffu, odd ? c[0] : c[1], 4);
		const float bottom = __shfl_xor_sync(0xffffffffu, odd ? c[2] : c[3], 4);
		uint32_t which;
		const float v = odd ? max4_argmax(top, c[1], bottom, c[3], &which)
				    : max4_argmax(c[0], top, c[2], bottom, &which);

		if (!here)
			continue;
		value[8 * j] = max_or_nan(fmaf(v, 1 / CONV2_SCALE, l.bias[f0 + 8 * j]), 0);
		argmax[8 * j] = (uint8_t)which;
	}
}

template <int WARPGROUPS, int PER>
__global__ void __launch_bounds__(128 * WARPGROUPS, 1)
	conv2_fprop_kernel(struct kx_conv2 l, int images)
{
	constexpr int IMAGES = WARPGROUPS * PER;

	extern __shared__ __align__(128) unsigned char memory[];
	struct fprop_shared<IMAGES> *s = reinterpret_cast<struct fprop_shared<IMAGES> *>(memory);
	const int n0 = blockIdx.x * IMAGES, first = threadIdx.x / 128 * PER;
	float d[PER][32] = {};

	fprop_fetch_weights(s->weights[0], l, 0);
	await_previous();
	fprop_fetch_images<IMAGES>(s, l, n0, images, 0, FIRST_ROWS);
	copies_commit();
	fprop_fetch_images<IMAGES>(s, l, n0, images, FIRST_ROWS, CONV2_IN - FIRST_ROWS);
	fprop_fetch_weights(s->weights[1], l, 1);
	copies_commit();
	for (int ky = 0; ky < CONV2_SIZE; ky++) {
		copies_wait<1>();
		wgmma_fence_smem();
		__syncthreads();
		fprop_add_row<PER>(d, shared_address(s->image[first]) + ky * (CONV2_IN * 16),
			shared_address(s->weights[ky % 2]));
		wgmma_commit();
		wgmma_wait();
		__syncthreads();
		fprop_fetch_weights(s->weights[ky % 2], l, ky + 2);
		copies_commit();
	}
#pragma unroll
	for (int i = 0; i < PER; i++)
		fprop_store(l, d[i], n0 + first + i, n0 + first + i < images);
}

template <int WARPGROUPS, int PER>
int conv2_fprop_launch(struct kx_conv2 l, int images, cudaStream_t stream)
{
	const int images_per_block = WARPGROUPS * PER,
		  bytes = (int)sizeof(struct fprop_shared<WARPGROUPS * PER>);

	if (cudaFuncSetAttribute(conv2_fprop_kernel<WARPGROUPS, PER>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(conv2_fprop_kernel<WARPGROUPS, PER>,
		dim3((images + images_per_block - 1) / images_per_block), 128 * WARPGROUPS, bytes,
		stream, l, images);
}

} // namespace

/* Chooses the smallest tile with which the images fit in one block on each of 132 multiprocessors.
 * If the images do not fit with any tile, chooses the largest tile. */
int kx_conv2_fprop(struct kx_conv2 l, int images, cudaStream_t stream)
{
	if (images <= 132)
		return conv2_fprop_launch<1, 1>(l, images, stream);
	if (images <= 2 * 132)
		return conv2_fprop_launch<2, 1>(l, images, stream);
	return images <= 4 * 132 ? conv2_fprop_launch<4, 1>(l, images, stream)
				 : conv2_fprop_launch<4, 2>(l, images, stream);
}

int kx_fused_runs_here(void)
{
	return kx_code(conv2_fprop_kernel<1, 1>) > 0;
}
