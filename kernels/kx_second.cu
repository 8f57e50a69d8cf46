/*
 * kx_second.cu - see kx_second.h.
 *
 * A block has eight images, a warp one row of the input: 12 pixels are 6 tiles of 16 rows (eight
 * images at two neighbouring pixels) x 32 channels. A tap shifts which errors a tile reads; where
 * they lie outside, the tile is left out, or reads a column of zeros. Warps of rows in the middle
 * have five rows of taps, those at the edges fewer; of each row of taps eight warps have a part,
 * two to a scheduler.
 */
#include "kernels/kx_gemm.cuh"
#include "kernels/kx_second.h"

#define IMAGES  8
#define WARPS   SECOND_IN
#define THREADS (WARPS * 32)
#define COLUMNS (SECOND_OUT + 2) /* one of zeros on each side */
#define TILES   (SECOND_IN / 2)
#define STEPS   (SECOND_FILTERS / 8)
#define N_TILES (SECOND_CHANNELS / 8)
#define ROW     (COLUMNS * SECOND_FILTERS)
#define IMAGE   (SECOND_OUT * ROW + 4) /* + 4: eight images x 4 filters lie in 32 banks */
#define POOLED  (SECOND_OUT / 2)
#define QUADS   (SECOND_FILTERS / 4)
#define TAP     (STEPS * 64 * N_TILES) /* words of a tap's weights */
#define RING    4                      /* taps in shared memory */

struct second_shared {
	float errors[IMAGES * IMAGE];
	uint32_t ring[RING][TAP];
};

/* ---- weights --------------------------------------------------------------------------------- */

/* Word i: [tap][step][two n tiles][lane][n tile][half]: filter 8 step + lane % 4 + 4 half, channel
 * 8 n tile + lane / 4; rounded to tf32. */
__global__ void second_pack_kernel(uint32_t *fragments, const float *weight)
{
	await_previous();
	FOR_EACH (i, SECOND_FRAGMENTS) {
		int half = i % 2, lane = (int)(i / 4 % 32), n = (int)(i / 128 % 2 * 2 + i / 2 % 2);
		int step = (int)(i / (64 * N_TILES) % STEPS);
		int tap = (int)(i / (64 * N_TILES * STEPS));
		int f = 8 * step + lane % 4 + 4 * half, c = 8 * n + lane / 4;
		const int taps = SECOND_SIZE * SECOND_SIZE;
		fragments[i] = to_tf32(weight[(f * SECOND_CHANNELS + c) * taps + tap]);
	}
}

int kx_second_pack(struct kx_second l, const float *weight, cudaStream_t stream)
{
	return kx_launch(second_pack_kernel, dim3(blocks_for(SECOND_FRAGMENTS, 256)), 256, 0,
		stream, l.fragments, weight);
}

/* ---- pool ------------------------------------------------------------------------------------ */

__device__ static inline void first_of_two(float *best, uint32_t *which, float v, uint32_t number)
{
	bool better = v > *best;
	*best = better ? v : *best;
	*which = better ? number : *which;
}

__global__ void second_pool_kernel(struct kx_second l, int images)
{
	await_previous();
	FOR_EACH (i, (size_t)images * POOLED * POOLED * QUADS) {
		const int c = (int)(i % QUADS) * 4, x = (int)(i / QUADS % POOLED);
		const int y = (int)(i / QUADS / POOLED % POOLED);
		const size_t n = i / QUADS / POOLED / POOLED;
		const float *from = l.conv.value + n * l.conv.image + l.conv.origin +
				    2 * y * l.conv.row + 2 * x * SECOND_FILTERS + c;
		float4 best = *reinterpret_cast<const float4 *>(from);
		uint32_t won[4] = {};
#pragma unroll
		for (int q = 1; q < 4; q++) {
			float4 v = *reinterpret_cast<const float4 *>(
				from + q / 2 * l.conv.row + q % 2 * SECOND_FILTERS);
			first_of_two(&best.x, &won[0], v.x, q);
			first_of_two(&best.y, &won[1], v.y, q);
			first_of_two(&best.z, &won[2], v.z, q);
			first_of_two(&best.w, &won[3], v.w, q);
		}
		const size_t to =
			n * l.out.image + l.out.origin + y * l.out.row + x * SECOND_FILTERS + c;
		*reinterpret_cast<float4 *>(l.out.value + to) = best;
		*reinterpret_cast<uint32_t *>(l.winner + i * 4) =
			won[0] | won[1] << 8 | won[2] << 16 | won[3] << 24;
	}
}

int kx_second_pool(struct kx_second l, int images, cudaStream_t stream)
{
	size_t n = (size_t)images * POOLED * POOLED * QUADS;
	return kx_launch(second_pool_kernel, dim3(blocks_for(n, 256)), 256, 0, stream, l, images);
}

/* ---- errors ---------------------------------------------------------------------------------- */

__device__ static inline float where(uint32_t winners, int byte, uint32_t cell, float d)
{
	return (winners >> (8 * byte) & 0xff) == cell ? d : 0;
}

/* The errors of eight images before the pool: rounded to tf32 into shared memory, as they are to
 * conv_error. */
__device__ static inline void spread(float *shared, const struct kx_second &l, int n0, int images)
{
	for (int i = threadIdx.x; i < IMAGES * POOLED * POOLED * QUADS; i += THREADS) {
		const int c = i % QUADS * 4, x = i / QUADS % POOLED,
			  y = i / QUADS / POOLED % POOLED;
		const int image = i / QUADS / POOLED / POOLED, n = n0 + image;
		const bool here = n < images;
		float4 d = {};
		uint32_t won = 0;
		if (here) {
			d = *reinterpret_cast<const float4 *>(l.out_error + n * l.out.image +
							      l.out.origin + y * l.out.row +
							      x * SECOND_FILTERS + c);
			won = *reinterpret_cast<const uint32_t *>(
				l.winner + (size_t)n0 * POOLED * POOLED * SECOND_FILTERS + i * 4);
		}
#pragma unroll
		for (uint32_t q = 0; q < 4; q++) {
			const int row = 2 * y + q / 2, column = 2 * x + q % 2;
			float4 v = {where(won, 0, q, d.x), where(won, 1, q, d.y),
				where(won, 2, q, d.z), where(won, 3, q, d.w)};
			if (here)
				*reinterpret_cast<float4 *>(l.conv_error + n * l.conv.image +
							    l.conv.origin + row * l.conv.row +
							    column * SECOND_FILTERS + c) = v;
			v = {__uint_as_float(to_tf32(v.x)), __uint_as_float(to_tf32(v.y)),
				__uint_as_float(to_tf32(v.z)), __uint_as_float(to_tf32(v.w))};
			*reinterpret_cast<float4 *>(shared + image * IMAGE + row * ROW +
						    (column + 1) * SECOND_FILTERS + c) = v;
		}
	}
	for (int i = threadIdx.x; i < IMAGES * SECOND_OUT * 2 * QUADS; i += THREADS) {
		const int c = i % QUADS * 4, side = i / QUADS % 2 * (COLUMNS - 1);
		const int row = i / QUADS / 2 % SECOND_OUT, image = i / QUADS / 2 / SECOND_OUT;
		*reinterpret_cast<float4 *>(
			shared + image * IMAGE + row * ROW + side * SECOND_FILTERS + c) = {};
	}
}

/* A tap's weights to shared memory; 16 bytes at a time. */
__device__ static inline void tap_fetch(uint32_t *to, const uint32_t *fragments, int tap)
{
	if (tap < SECOND_SIZE * SECOND_SIZE)
		for (int i = threadIdx.x; i < TAP / 4; i += THREADS)
			copy_ahead(to + 4 * i, fragments + tap * TAP + 4 * i, true);
	copies_commit();
}

/* One tap: KX is known to the compiler, and with it the tiles that it reaches. */
template <int KX>
__device__ static inline void add_tap(
	float (&c)[TILES][N_TILES][4], const float *errors, const uint32_t *weights)
{
	const int lane = threadIdx.x % 32;
	const float *a = errors + lane / 4 * IMAGE + lane % 4;
#pragma unroll 2
	for (int step = 0; step < STEPS; step++) {
		const uint4 *from =
			reinterpret_cast<const uint4 *>(weights + step * (64 * N_TILES)) + lane;
		const uint4 low = from[0], high = from[32];
		const uint32_t w[N_TILES][2] = {
			{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};
#pragma unroll
		for (int j = 0; j < TILES; j++) {
			/* column of the first pixel's error, counted with the zeros' */
			const int column = 2 * j - KX + 1;
			if (column < 0 || column > SECOND_OUT)
				continue;
			const float *at = a + column * SECOND_FILTERS + 8 * step;
			const uint32_t x[4] = {__float_as_uint(at[0]),
				__float_as_uint(at[SECOND_FILTERS]), __float_as_uint(at[4]),
				__float_as_uint(at[SECOND_FILTERS + 4])};
#pragma unroll
			for (int n = 0; n < N_TILES; n++)
				mma_tf32(c[j][n], x, w[n]);
		}
	}
}

/* Tap (ky, KX) for the warps whose row it reaches; a later one's weights are fetched meanwhile. */
template <int KX>
__device__ static inline void next_tap(float (&c)[TILES][N_TILES][4], struct second_shared *s,
	const uint32_t *fragments, int ky, int y)
{
	const int tap = ky * SECOND_SIZE + KX;
	copies_wait<RING - 2>();
	__syncthreads();
	tap_fetch(s->ring[(tap + RING - 1) % RING], fragments, tap + RING - 1);
	if (y >= ky && y - ky < SECOND_OUT)
		add_tap<KX>(c, s->errors + (y - ky) * ROW, s->ring[tap % RING]);
}

__device__ static inline void errors_store(
	const struct kx_second &l, const float (&c)[TILES][N_TILES][4], int n, int y, int images)
{
	const int t = threadIdx.x % 4;
	if (n >= images)
		return;
	const size_t row = n * l.in.image + l.in.origin + (size_t)y * l.in.row;
#pragma unroll
	for (int x = 0; x < SECOND_IN; x++)
#pragma unroll
		for (int k = 0; k < N_TILES; k++) {
			const size_t at = row + x * SECOND_CHANNELS + 8 * k + 2 * t;
			const float *v = &c[x / 2][k][x % 2 * 2];
			const float2 value = *reinterpret_cast<const float2 *>(l.in.value + at);
			*reinterpret_cast<float2 *>(l.in_error + at) = {
				value.x > 0 ? v[0] : 0, value.y > 0 ? v[1] : 0};
		}
}

__global__ void __launch_bounds__(THREADS, 1) second_errors_kernel(struct kx_second l, int images)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct second_shared *s = reinterpret_cast<struct second_shared *>(memory);
	const int n0 = blockIdx.x * IMAGES, y = threadIdx.x / 32;
	float c[TILES][N_TILES][4] = {};

	await_previous();
	for (int tap = 0; tap < RING - 1; tap++)
		tap_fetch(s->ring[tap], l.fragments, tap);
	spread(s->errors, l, n0, images);
	for (int ky = 0; ky < SECOND_SIZE; ky++) {
		next_tap<0>(c, s, l.fragments, ky, y);
		next_tap<1>(c, s, l.fragments, ky, y);
		next_tap<2>(c, s, l.fragments, ky, y);
		next_tap<3>(c, s, l.fragments, ky, y);
		next_tap<4>(c, s, l.fragments, ky, y);
	}
	errors_store(l, c, n0 + threadIdx.x % 32 / 4, y, images);
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
