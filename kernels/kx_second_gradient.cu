/*
 * kx_second_gradient.cu - weight gradients of kx_second.h's convolution.
 *
 * Half of the filters' 801 x 64 sums stay in the registers of a block of 16 warps while it goes
 * through its images: warp (half of the rows of errors, half of the channels, quarter of the
 * block's filters) has a tile of 16 x 8 for each tap. One product's k are two rows of eight errors;
 * a tap shifts which pixels they meet. So a row of the input, at one of five shifts, is fetched
 * once for the up to four rows of errors that meet it.
 */
#include "kernels/kx_common.cuh"
#include "kernels/kx_second.cuh"

#define WARPS   16
#define THREADS (WARPS * 32)
#define STAGES  3
#define HALVES  2 /* blocks that share the filters */
#define FILTERS (SECOND_FILTERS / HALVES)
#define CELLS   (SECOND_OUT * SECOND_OUT)
#define TILES   8                        /* of channels and filters: warps with the same rows */
#define ROWS    (SECOND_OUT / 2)         /* of errors: a warp's */
#define IN_ROWS (ROWS + SECOND_SIZE - 1) /* of the input that meet them */
#define SUMS    (SECOND_TAPS + 1)        /* of 16 x 8: each tap, and the biases */

/* An image's errors and winners as they come. */
struct pooled {
	float4 error[THREADS];
	uint32_t winners[THREADS];
};

struct gradient_shared {
	union {
		struct {
			unsigned char in[STAGES][SECOND_PIECE];
			struct pooled pooled[STAGES];
			unsigned char error[2][FILTERS / 8][CELLS][16]; /* before the pool */
		};
		float4 sums[TILES][SUMS][32];
	};
	float most[WARPS];
};

/* 4 bytes to shared memory. */
__device__ static inline void copy_word(void *to, const void *from)
{
	unsigned at = (unsigned)__cvta_generic_to_shared(to);
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

/* Four filters of a cell are a thread's: it fetches their window's errors and, when they are there,
 * puts down the cell's; nobody else looks at them. */
struct spot {
	int f, x, y;
};

__device__ static inline struct spot spot_of_thread()
{
	const int i = threadIdx.x;
	return {i / (2 * SECOND_OUT) % (FILTERS / 8) * 8 + i % 2 * 4, i / 2 % SECOND_OUT,
		i / (2 * SECOND_OUT) / (FILTERS / 8)};
}

/* The block's image number i, n of the batch; f0: the block's filters. */
__device__ static inline void fetch_image(
	struct gradient_shared *s, const struct kx_second &l, int i, int n, int images, int f0)
{
	const struct spot at = spot_of_thread();
	const int stage = i % STAGES, f = f0 + at.f, y = at.y / 2, x = at.x / 2;
	if (n < images) {
		const unsigned char *in =
			reinterpret_cast<const unsigned char *>(l.in + (size_t)n * SECOND_IMAGE);
		for (int k = threadIdx.x * 16; k < SECOND_PIECE; k += THREADS * 16)
			copy_ahead(s->in[stage] + k, in + k, true);
		copy_ahead(&s->pooled[stage].error[threadIdx.x],
			l.out_error + n * l.out.image + l.out.origin + y * l.out.row +
				x * SECOND_FILTERS + f,
			true);
		copy_word(&s->pooled[stage].winners[threadIdx.x],
			l.winner +
				(((size_t)n * SECOND_POOLED + y) * SECOND_POOLED + x) *
					SECOND_FILTERS +
				f);
	}
	copies_commit();
}

__device__ static inline void spread(
	unsigned char (*to)[CELLS][16], const struct pooled &from, float up)
{
	const struct spot at = spot_of_thread();
	const float4 d = from.error[threadIdx.x];
	const uint32_t won = from.winners[threadIdx.x], cell = at.y % 2 * 2 + at.x % 2;
	uint32_t mask[4];
#pragma unroll
	for (int i = 0; i < 4; i++)
		mask[i] = (won >> (8 * i) & 0xff) == cell ? 0xffffu : 0;
	*reinterpret_cast<uint2 *>(&to[at.f / 8][at.y * SECOND_OUT + at.x][at.f % 8 * 2]) = {
		two_halves(d.x * up, d.y * up) & (mask[0] | mask[1] << 16),
		two_halves(d.z * up, d.w * up) & (mask[2] | mask[3] << 16)};
}

/* A warp's share of an image. `in`, `error`: a lane's row of the first matrices. */
__device__ static inline void add_image(float (&c)[SUMS][4], uint32_t in, uint32_t error)
{
	const uint4 ones = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
	const uint4 d = load_transposed(error);
	mma_half(c[SECOND_TAPS], ones, d.x, d.y);
	mma_half(c[SECOND_TAPS], ones, d.z, d.w);
#pragma unroll
	for (int kx = 0; kx < SECOND_SIZE; kx++) {
		uint2 x[IN_ROWS];
#pragma unroll
		for (int row = 0; row < IN_ROWS; row += 2) {
			const uint4 v = load_transposed(in + (row * SECOND_IN + kx) * 16);
			x[row] = {v.x, v.y};
			x[row + 1] = {v.z, v.w};
		}
#pragma unroll
		for (int i = 0; i < 2; i++)
#pragma unroll
			for (int ky = 0; ky < SECOND_SIZE; ky++) {
				const uint2 a = x[2 * i + ky], next = x[2 * i + ky + 1];
				mma_half(c[ky * SECOND_SIZE + kx], {a.x, a.y, next.x, next.y},
					i ? d.z : d.x, i ? d.w : d.y);
			}
	}
}

/* The two shares of the rows, in their order; for the warps with the first one. */
__device__ static inline void add_shares(
	float (&c)[SUMS][4], float4 (*sums)[SUMS][32], int share, int tile)
{
	float4(*mine)[32] = sums[tile];
	const int lane = threadIdx.x % 32;
	copies_wait<0>();
	__syncthreads(); /* the images are done with */
#pragma unroll
	for (int i = 0; i < SUMS && share; i++)
		mine[i][lane] = {c[i][0], c[i][1], c[i][2], c[i][3]};
	__syncthreads();
#pragma unroll
	for (int i = 0; i < SUMS && !share; i++) {
		const float4 v = mine[i][lane];
		c[i][0] += v.x;
		c[i][1] += v.y;
		c[i][2] += v.z;
		c[i][3] += v.w;
	}
}

/* `c`: of channels c0.., filters f0... */
__device__ static inline void store(
	float *out, const float (&c)[SUMS][4], int c0, int f0, float down)
{
	const int lane = threadIdx.x % 32, r = lane / 4, f = f0 + lane % 4 * 2;
#pragma unroll
	for (int tap = 0; tap < SECOND_TAPS; tap++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int k = tap * SECOND_CHANNELS + c0 + r + 8 * half;
			*reinterpret_cast<float2 *>(out + k * SECOND_FILTERS + f) = {
				c[tap][2 * half] * down, c[tap][2 * half + 1] * down};
		}
	if (c0 == 0 && r == 0)
		*reinterpret_cast<float2 *>(
			out + SECOND_TAPS * SECOND_CHANNELS * SECOND_FILTERS + f) = {
			c[SECOND_TAPS][0] * down, c[SECOND_TAPS][1] * down};
}

/* blockIdx: x a share of the images, y filters. */
__global__ void __launch_bounds__(THREADS, 1)
	second_gradient_kernel(struct kx_second l, float *partial, int images)
{
	extern __shared__ __align__(128) unsigned char memory[];
	struct gradient_shared *s = reinterpret_cast<struct gradient_shared *>(memory);
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, step = gridDim.x;
	const int share = warp / TILES, tile = warp % TILES, c0 = tile % 2 * 16;
	const int f0 = blockIdx.y * FILTERS;
	/* matrices: eight channels and the next, then those of the next row */
	const uint32_t in = shared_address(s->in) + (c0 / 8 + lane / 8 % 2) * SECOND_GROUP +
			    ((share * ROWS + lane / 16) * SECOND_IN + lane % 8) * 16;
	const uint32_t error = shared_address(s->error) + tile / 2 * (CELLS * 16) +
			       share * (ROWS * SECOND_OUT * 16) + lane * 16;
	float c[SUMS][4] = {}, most = 0;

	for (int i = 0; i < STAGES - 1; i++)
		fetch_image(s, l, i, blockIdx.x + i * step, images, f0);
	await_previous();
	for (int i = threadIdx.x; i < (images + 7) / 8; i += THREADS)
		most = fmaxf(most, l.most[i]);
	const struct power p = power_for(block_most(most, s->most));
	copies_wait<STAGES - 2>();
	if (blockIdx.x < images)
		spread(s->error[0], s->pooled[0], p.up);
	for (int n = blockIdx.x, i = 0; n < images; n += step, i++) {
		copies_wait<STAGES - 2>();
		__syncthreads();
		fetch_image(s, l, i + STAGES - 1, n + (STAGES - 1) * step, images, f0);
		add_image(c, in + i % STAGES * SECOND_PIECE,
			error + i % 2 * (FILTERS / 8 * CELLS * 16));
		copies_wait<STAGES - 2>();
		if (n + step < images)
			spread(s->error[(i + 1) % 2], s->pooled[(i + 1) % STAGES], p.up);
	}
	add_shares(c, s->sums, share, tile);
	if (share == 0)
		store(partial + KX_OUTER_ROWS(SECOND_TAPS * SECOND_CHANNELS) * SECOND_FILTERS *
					blockIdx.x,
			c, c0, f0 + tile / 2 * 8, p.down);
}

/* Each of at least four images, for its sums are 200 KB. */
int kx_second_parts(int images)
{
	const int parts = (images + 3) / 4;
	return parts < SECOND_PARTS ? parts : SECOND_PARTS;
}

int kx_second_gradient(struct kx_second l, float *partial, int images, cudaStream_t stream)
{
	const int bytes = (int)sizeof(struct gradient_shared);
	if (cudaFuncSetAttribute(
		    second_gradient_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(second_gradient_kernel, dim3(kx_second_parts(images), HALVES), THREADS,
		bytes, stream, l, partial, images);
}
