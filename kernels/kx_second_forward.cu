/*
 * kx_second_forward.cu - kx_second.h's convolution forward, with bias, ReLU and pool.
 *
 * Nearly as exact as fp32 in three bf16 products: a value is the sum of two bf16 numbers, 16 bits
 * of its 24, and the product of the two small ones is left out. With 11 bits, as tf32 has, winners
 * and ReLUs would change too often (see docs/gpu.md).
 *
 * A block has eight images in shared memory. A product's 16 rows are those images at two
 * neighbouring positions, so that a warp's four tiles are two pool windows and a thread holds all
 * four cells of each: what follows the sums never leaves its registers.
 */
#include "kernels/kx_conv.cuh"
#include "kernels/kx_second.cuh"

#define IMAGES  8
#define WARPS   8
#define THREADS (WARPS * 32)
#define TILES   4                     /* of a warp: two windows of two rows */
#define PIXEL   (SECOND_CHANNELS * 2) /* bytes of one piece */
/* From image to image, bytes: eight of them x 16 bytes lie in 32 banks. */
#define IMAGE (SECOND_IN * SECOND_IN * PIXEL + 16)
#define STEPS (SECOND_CHANNELS / 16)                     /* products deep that a tap is */
#define QUADS (SECOND_PIECES * SECOND_FILTERS / 16 * 32) /* uint4 of a step's weights */
#define TAP   (STEPS * QUADS)
#define RING  4 /* taps in shared memory */

struct forward_shared {
	unsigned char image[SECOND_PIECES][IMAGES * IMAGE];
	uint4 ring[RING][TAP];
};

/* Rows [row, row + rows) of eight images, each value as two pieces. */
__device__ static inline void load_images(
	struct forward_shared *s, const struct kx_second &l, int n0, int images, int row, int rows)
{
	const int quads = SECOND_CHANNELS / 4, pixels = rows * SECOND_IN;
#pragma unroll 9
	for (int i = threadIdx.x; i < IMAGES * pixels * quads; i += THREADS) {
		const int quad = i % quads, pixel = i / quads % pixels, image = i / quads / pixels;
		const float *from = l.in.value + (n0 + image) * l.in.image + l.in.origin +
				    (row + pixel / SECOND_IN) * l.in.row +
				    pixel % SECOND_IN * SECOND_CHANNELS + 4 * quad;
		const float4 v =
			n0 + image < images ? *reinterpret_cast<const float4 *>(from) : float4{};
		uint32_t a[SECOND_PIECES], b[SECOND_PIECES];
		two_pieces(a, v.x, v.y);
		two_pieces(b, v.z, v.w);
#pragma unroll
		for (int p = 0; p < SECOND_PIECES; p++)
			*reinterpret_cast<uint2 *>(s->image[p] + image * IMAGE + pixel * PIXEL +
						   8 * quad) = {a[p], b[p]};
	}
}

__device__ static inline void fetch_tap(uint4 *to, const uint32_t *fragments, int tap)
{
	if (tap < SECOND_TAPS)
		for (int i = threadIdx.x; i < TAP; i += THREADS)
			copy_ahead(to + i, fragments + 4 * (tap * TAP + i), true);
	copies_commit();
}

/* 16 channels of a tap. `at`: the thread's row of the first tile's matrices; weights: a lane's. */
template <int N>
__device__ static inline void add_step(float (&c)[TILES][N][4], uint32_t at, const uint4 *weights)
{
	uint4 w[SECOND_PIECES][N / 2];
#pragma unroll
	for (int p = 0; p < SECOND_PIECES; p++)
#pragma unroll
		for (int n = 0; n < N / 2; n++)
			w[p][n] = weights[(p * SECOND_FILTERS / 16 + n) * 32];
#pragma unroll
	for (int m = 0; m < TILES; m++) {
		const uint32_t tile = at + (m % 2 * SECOND_IN + m / 2 * 2) * PIXEL;
		const uint4 x[SECOND_PIECES] = {
			load_matrices(tile), load_matrices(tile + IMAGES * IMAGE)};
#pragma unroll
		for (int product = 0; product < 3; product++) {
			/* the small ones first */
			const uint4 a = x[product == 0], *b = w[product == 1];
#pragma unroll
			for (int n = 0; n < N; n++)
				mma_bf16(c[m][n], a, n % 2 ? b[n / 2].z : b[n / 2].x,
					n % 2 ? b[n / 2].w : b[n / 2].y);
		}
	}
}

/* Bias, pool and ReLU of the two windows, images n.., and which cell won. */
template <int N>
__device__ static inline void store(
	const struct kx_second &l, const float (&c)[TILES][N][4], int n, int y, int x, int f0)
{
#pragma unroll
	for (int window = 0; window < 2; window++)
#pragma unroll
		for (int i = 0; i < N; i++) {
			const int f = f0 + 8 * i + threadIdx.x % 4 * 2;
			const float *top = c[2 * window][i], *bottom = c[2 * window + 1][i];
			float v[2];
			uint32_t won[2];
#pragma unroll
			for (int e = 0; e < 2; e++) {
				v[e] = first_maximum(
					top[e], top[2 + e], bottom[e], bottom[2 + e], &won[e]);
				v[e] = max_or_nan(v[e] + l.bias[f + e], 0);
			}
			const size_t to = n * l.out.image + l.out.origin + y * l.out.row +
					  (x + window) * SECOND_FILTERS + f;
			*reinterpret_cast<float2 *>(l.out.value + to) = {v[0], v[1]};
			*reinterpret_cast<uint16_t *>(
				l.winner +
				(((size_t)n * SECOND_POOLED + y) * SECOND_POOLED + x + window) *
					SECOND_FILTERS +
				f) = (uint16_t)(won[0] | won[1] << 8);
		}
}

/* blockIdx: x images, y ROWS rows of pool windows. A warp: half of such a row, and where there are
 * warps to share them, a part of the filters. */
template <int ROWS>
__global__ void __launch_bounds__(THREADS, 1) second_forward_kernel(struct kx_second l, int images)
{
	extern __shared__ __align__(128) unsigned char memory[];
	struct forward_shared *s = reinterpret_cast<struct forward_shared *>(memory);
	constexpr int N = 2 * ROWS; /* tiles of 8 filters of a warp */
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int n0 = blockIdx.x * IMAGES, y0 = blockIdx.y * ROWS;
	const int y = warp / 2 % ROWS, x = warp % 2 * 2, first = warp / (2 * ROWS) * N;
	const int matrix = lane / 8;
	const uint32_t at = (uint32_t)__cvta_generic_to_shared(s->image[0]) + lane % 8 * IMAGE +
			    (2 * y * SECOND_IN + 2 * x + matrix % 2) * PIXEL + matrix / 2 * 16;
	float c[TILES][N][4] = {};

	await_previous();
	for (int tap = 0; tap < RING - 1; tap++)
		fetch_tap(s->ring[tap], l.forward, tap);
	load_images(s, l, n0, images, 2 * y0, 2 * ROWS + SECOND_SIZE - 1);
	for (int tap = 0; tap < SECOND_TAPS; tap++) {
		copies_wait<RING - 2>();
		__syncthreads();
		fetch_tap(s->ring[(tap + RING - 1) % RING], l.forward, tap + RING - 1);
		const uint32_t shifted =
			at + (tap / SECOND_SIZE * SECOND_IN + tap % SECOND_SIZE) * PIXEL;
		const uint4 *weights = s->ring[tap % RING] + first / 2 * 32 + lane;
#pragma unroll
		for (int step = 0; step < STEPS; step++)
			add_step<N>(c, shifted + step * 32, weights + step * QUADS);
	}
	if (n0 + lane / 4 < images)
		store<N>(l, c, n0 + lane / 4, y0 + y, x, 8 * first);
}

template <int ROWS> static int launch(struct kx_second l, int images, cudaStream_t stream)
{
	const int bytes = (int)sizeof(struct forward_shared);
	const dim3 grid((images + IMAGES - 1) / IMAGES, SECOND_POOLED / ROWS);
	if (cudaFuncSetAttribute(second_forward_kernel<ROWS>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(second_forward_kernel<ROWS>, grid, THREADS, bytes, stream, l, images);
}

int kx_second_forward(struct kx_second l, int images, cudaStream_t stream)
{
	const int many = 64 * IMAGES; /* half of the multiprocessors, a block each */
	return images < many ? launch<1>(l, images, stream)
			     : launch<SECOND_POOLED>(l, images, stream);
}
