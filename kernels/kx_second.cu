/*
 * kx_second.cu - errors of kx_second.h's convolution.
 *
 * A block has eight images, a warp one row of the input: 12 pixels are 6 tiles of 16 rows (eight
 * images at two neighbouring pixels) x 32 channels. A tap shifts which errors a tile meets: the
 * taps of a row that are two apart meet the same pairs of errors at the next tile, so a pair is
 * fetched once for the taps 0, 2 and 4 of a row and once for 1 and 3 (a column of zeros on each
 * side). Warps of rows in the middle have five rows of taps, those at the edges fewer; of each row
 * of taps eight warps have a part, two to a scheduler.
 */
#include "kernels/kx_gemm.cuh"
#include "kernels/kx_second.cuh"

#define IMAGES  8
#define WARPS   SECOND_IN
#define THREADS (WARPS * 32)
#define COLUMNS (SECOND_OUT + 2) /* one of zeros on each side */
#define TILES   (SECOND_IN / 2)
#define STEPS   (SECOND_FILTERS / 8)
#define N_TILES (SECOND_CHANNELS / 8)
#define ROW     (COLUMNS * SECOND_FILTERS)
#define IMAGE   (SECOND_OUT * ROW + 4) /* + 4: eight images x 4 filters lie in 32 banks */
#define QUADS   (SECOND_FILTERS / 4)
#define TAP     (STEPS * N_TILES / 2 * 32) /* uint4 of a tap's weights */

struct second_shared {
	float errors[IMAGES * IMAGE];
	uint4 weights[SECOND_SIZE][TAP]; /* taps 0, 2, 4 of a row, then 1, 3 */
};

__device__ static inline float where(uint32_t winners, int byte, uint32_t cell, float d)
{
	return (winners >> (8 * byte) & 0xff) == cell ? d : 0;
}

/* The errors of eight images before the pool, rounded to tf32. */
__device__ static inline void spread(float *shared, const struct kx_second &l, int n0, int images)
{
	const int positions = SECOND_POOLED * SECOND_POOLED;
#pragma unroll 3
	for (int i = threadIdx.x; i < IMAGES * positions * QUADS; i += THREADS) {
		const int c = i % QUADS * 4, x = i / QUADS % SECOND_POOLED;
		const int y = i / QUADS / SECOND_POOLED % SECOND_POOLED;
		const int image = i / QUADS / positions, n = n0 + image;
		float4 d = {};
		uint32_t won = 0;
		if (n < images) {
			d = *reinterpret_cast<const float4 *>(l.out_error + n * l.out.image +
							      l.out.origin + y * l.out.row +
							      x * SECOND_FILTERS + c);
			won = *reinterpret_cast<const uint32_t *>(
				l.winner + (size_t)n0 * positions * SECOND_FILTERS + i * 4);
		}
		d = {__uint_as_float(to_tf32(d.x)), __uint_as_float(to_tf32(d.y)),
			__uint_as_float(to_tf32(d.z)), __uint_as_float(to_tf32(d.w))};
#pragma unroll
		for (uint32_t q = 0; q < 4; q++)
			*reinterpret_cast<float4 *>(shared + image * IMAGE + (2 * y + q / 2) * ROW +
						    (2 * x + q % 2 + 1) * SECOND_FILTERS + c) = {
				where(won, 0, q, d.x), where(won, 1, q, d.y), where(won, 2, q, d.z),
				where(won, 3, q, d.w)};
	}
	for (int i = threadIdx.x; i < IMAGES * SECOND_OUT * 2 * QUADS; i += THREADS) {
		const int c = i % QUADS * 4, side = i / QUADS % 2 * (COLUMNS - 1);
		const int row = i / QUADS / 2 % SECOND_OUT, image = i / QUADS / 2 / SECOND_OUT;
		*reinterpret_cast<float4 *>(
			shared + image * IMAGE + row * ROW + side * SECOND_FILTERS + c) = {};
	}
}

/* The taps ky, ODD + 2 i to shared memory. */
template <int ODD>
__device__ static inline void fetch_taps(struct second_shared *s, const uint32_t *weights, int ky)
{
	constexpr int TAPS = 3 - ODD;
	uint4 *to = s->weights[ODD * 3];
	const uint32_t *from = weights + (ky * SECOND_SIZE + ODD) * TAP * 4;
	for (int i = threadIdx.x; i < TAPS * TAP && ky < SECOND_SIZE; i += THREADS)
		copy_ahead(to + i, from + (i / TAP * (2 * TAP) + i % TAP) * 4, true);
	copies_commit();
}

/* Their products. `at`: a lane's row of the matrices at column 0 of the errors' row. */
template <int ODD>
__device__ static inline void add_taps(
	float (&c)[TILES][N_TILES][4], uint32_t at, const struct second_shared *s)
{
	constexpr int TAPS = 3 - ODD, PAIRS = TILES - TAPS + 1;
	const uint4 *weights = s->weights[ODD * 3] + threadIdx.x % 32;
#pragma unroll 1
	for (int step = 0; step < STEPS; step++, at += 32, weights += N_TILES / 2 * 32) {
		uint32_t w[TAPS][N_TILES][2];
#pragma unroll
		for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
			for (int n = 0; n < N_TILES / 2; n++) {
				const uint4 v = weights[tap * TAP + n * 32];
				w[tap][2 * n][0] = v.x;
				w[tap][2 * n][1] = v.y;
				w[tap][2 * n + 1][0] = v.z;
				w[tap][2 * n + 1][1] = v.w;
			}
#pragma unroll
		for (int pair = 0; pair < PAIRS; pair++) {
			const int column = 2 * pair + 1 - ODD;
			const uint4 v = load_matrices(at + column * (SECOND_FILTERS * 4));
			const uint32_t x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
			for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
				for (int n = 0; n < N_TILES; n++)
					mma_tf32(c[pair + tap][n], x, w[tap][n]);
		}
	}
}

__device__ static inline void errors_store(
	const struct kx_second &l, const float (&c)[TILES][N_TILES][4], int n, int y, int images)
{
	float *row = l.in_error + n * l.in.image + l.in.origin + (size_t)y * l.in.row +
		     threadIdx.x % 4 * 2;
	if (n >= images)
		return;
#pragma unroll
	for (int x = 0; x < SECOND_IN; x++)
#pragma unroll
		for (int k = 0; k < N_TILES; k++) {
			const float *v = &c[x / 2][k][x % 2 * 2];
			*reinterpret_cast<float2 *>(row + x * SECOND_CHANNELS + 8 * k) = {
				v[0], v[1]};
		}
}

__global__ void __launch_bounds__(THREADS, 1) second_errors_kernel(struct kx_second l, int images)
{
	extern __shared__ __align__(128) unsigned char memory[];
	struct second_shared *s = reinterpret_cast<struct second_shared *>(memory);
	const int n0 = blockIdx.x * IMAGES, y = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int matrix = lane / 8;
	const uint32_t at = (uint32_t)__cvta_generic_to_shared(s->errors) +
			    (lane % 8 * IMAGE + matrix % 2 * SECOND_FILTERS + matrix / 2 * 4) * 4;
	float c[TILES][N_TILES][4] = {};

	await_previous();
	fetch_taps<0>(s, l.backward, 0);
	fetch_taps<1>(s, l.backward, 0);
	spread(s->errors, l, n0, images);
	for (int ky = 0; ky < SECOND_SIZE; ky++) {
		const bool mine = y >= ky && y - ky < SECOND_OUT;
		const uint32_t row = at + (y - ky) * (ROW * 4);
		copies_wait<1>();
		__syncthreads();
		if (mine)
			add_taps<0>(c, row, s);
		copies_wait<0>();
		__syncthreads();
		fetch_taps<0>(s, l.backward, ky + 1);
		if (mine)
			add_taps<1>(c, row, s);
		__syncthreads();
		fetch_taps<1>(s, l.backward, ky + 1);
	}
	errors_store(l, c, n0 + lane / 4, y, images);
}

int kx_second_errors(struct kx_second l, int images, cudaStream_t stream)
{
	const int bytes = (int)sizeof(struct second_shared);
	if (cudaFuncSetAttribute(
		    second_errors_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(second_errors_kernel, dim3((images + IMAGES - 1) / IMAGES), THREADS, bytes,
		stream, l, images);
}
