/*
 * kx_second_gradient.cu - weight gradients of kx_second.h's convolution.
 *
 * 801 x 64 sums stay in the registers of a block of 16 warps while it goes through its images: warp
 * (half of the channels, eighth of the filters) has a tile of 16 x 8 for each tap. One product's k
 * are the eight positions of a row of errors; a tap shifts which pixels they meet. So a row of the
 * input, at one of five shifts, is fetched once for the up to five rows of errors that meet it.
 *
 * Pixels are cut off to tf32 by the tensor core instead of rounded: 2^-12 of bias.
 */
#include "kernels/kx_gemm.cuh"
#include "kernels/kx_second.cuh"

#define WARPS   16
#define THREADS (WARPS * 32)
#define STAGES  3
#define PIXELS  (SECOND_IN * SECOND_IN)
#define CELLS   (SECOND_OUT * SECOND_OUT)
#define QUADS   (SECOND_FILTERS / 4)
/* Floats from pixel to pixel, and cell to cell: 4 of them x 8 channels or filters lie in 32 banks.
 */
#define PIXEL (SECOND_CHANNELS + 8)
#define CELL  (SECOND_FILTERS + 8)

/* An image's errors and winners as they come. */
struct pooled {
	float4 error[THREADS];
	uint32_t winners[THREADS];
};

struct gradient_shared {
	float in[STAGES][PIXELS * PIXEL];
	struct pooled pooled[STAGES];
	uint32_t error[2][CELLS * CELL]; /* before the pool, rounded to tf32 */
};

/* 4 bytes to shared memory. */
__device__ static inline void copy_word(void *to, const void *from)
{
	unsigned at = (unsigned)__cvta_generic_to_shared(to);
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

__device__ static inline void fetch_pixels(float *to, const struct kx_second &l, int n, bool here)
{
	const int quads = SECOND_CHANNELS / 4;
	const float *in = l.in.value + n * l.in.image + l.in.origin;
	for (int i = threadIdx.x; i < PIXELS * quads && here; i += THREADS) {
		int c = i % quads * 4, pixel = i / quads;
		copy_ahead(to + pixel * PIXEL + c,
			in + pixel / SECOND_IN * l.in.row + pixel % SECOND_IN * SECOND_CHANNELS + c,
			true);
	}
}

/* Four filters of a window, for one row of its cells, are a thread's: it fetches them and, when
 * they are there, spreads them; nobody else looks at them. */
struct spot {
	int c, x, y, row;
};

__device__ static inline struct spot spot_of_thread()
{
	const int i = threadIdx.x;
	return {i % QUADS * 4, i / QUADS % SECOND_POOLED, i / QUADS / SECOND_POOLED % SECOND_POOLED,
		i / QUADS / SECOND_POOLED / SECOND_POOLED};
}

__device__ static inline void fetch_errors(
	struct pooled *to, const struct kx_second &l, int n, bool here)
{
	const struct spot s = spot_of_thread();
	const int window = (n * SECOND_POOLED + s.y) * SECOND_POOLED + s.x;
	if (!here)
		return;
	copy_ahead(&to->error[threadIdx.x],
		l.out_error + n * l.out.image + l.out.origin + s.y * l.out.row +
			s.x * SECOND_FILTERS + s.c,
		true);
	copy_word(&to->winners[threadIdx.x], l.winner + (size_t)window * SECOND_FILTERS + s.c);
}

__device__ static inline uint32_t where(uint32_t winners, int byte, uint32_t cell, float d)
{
	return (winners >> (8 * byte) & 0xff) == cell ? to_tf32(d) : 0;
}

__device__ static inline void spread(uint32_t *to, const struct pooled &from)
{
	const struct spot s = spot_of_thread();
	const float4 d = from.error[threadIdx.x];
	const uint32_t won = from.winners[threadIdx.x];
#pragma unroll
	for (int right = 0; right < 2; right++) {
		const uint32_t cell = 2 * s.row + right;
		*reinterpret_cast<uint4 *>(
			to + ((2 * s.y + s.row) * SECOND_OUT + 2 * s.x + right) * CELL + s.c) = {
			where(won, 0, cell, d.x), where(won, 1, cell, d.y),
			where(won, 2, cell, d.z), where(won, 3, cell, d.w)};
	}
}

/* A warp's share of an image. `in`, `error`: at its channels and filters. */
__device__ static inline void add_image(
	float (&c)[SECOND_TAPS][4], float &bias, const float *in, const uint32_t *error)
{
	uint32_t b[SECOND_SIZE][2]; /* rows of errors: the newest five */
#pragma unroll
	for (int row = 0; row < SECOND_IN; row++) {
		if (row < SECOND_OUT) {
			uint32_t *newest = b[row % SECOND_SIZE];
			newest[0] = error[row * SECOND_OUT * CELL];
			newest[1] = error[(row * SECOND_OUT + 4) * CELL];
			bias += __uint_as_float(newest[0]) + __uint_as_float(newest[1]);
		}
#pragma unroll
		for (int kx = 0; kx < SECOND_SIZE; kx++) {
			const float *at = in + (row * SECOND_IN + kx) * PIXEL;
			const uint32_t a[4] = {__float_as_uint(at[0]), __float_as_uint(at[8]),
				__float_as_uint(at[4 * PIXEL]), __float_as_uint(at[4 * PIXEL + 8])};
#pragma unroll
			for (int ky = 0; ky < SECOND_SIZE; ky++)
				if (row >= ky && row - ky < SECOND_OUT)
					mma_tf32(c[ky * SECOND_SIZE + kx], a,
						b[(row - ky + SECOND_SIZE) % SECOND_SIZE]);
		}
	}
}

/* The block's image number i, n of the batch. */
__device__ static inline void fetch_image(
	struct gradient_shared *s, const struct kx_second &l, int i, int n, int images)
{
	fetch_pixels(s->in[i % STAGES], l, n, n < images);
	fetch_errors(&s->pooled[i % STAGES], l, n, n < images);
	copies_commit();
}

__global__ void __launch_bounds__(THREADS, 1)
	second_gradient_kernel(struct kx_second l, float *partial, int images)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct gradient_shared *s = reinterpret_cast<struct gradient_shared *>(memory);
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, r = lane / 4, t = lane % 4;
	const int c0 = warp % 2 * 16, f0 = warp / 2 * 8, step = gridDim.x;
	float c[SECOND_TAPS][4] = {}, bias = 0;

	await_previous();
	for (int i = 0; i < STAGES - 1; i++)
		fetch_image(s, l, i, blockIdx.x + i * step, images);
	copies_wait<STAGES - 2>();
	if (blockIdx.x < images)
		spread(s->error[0], s->pooled[0]);
	for (int n = blockIdx.x, i = 0; n < images; n += step, i++) {
		copies_wait<STAGES - 2>();
		__syncthreads();
		fetch_image(s, l, i + STAGES - 1, n + (STAGES - 1) * step, images);
		add_image(c, bias, s->in[i % STAGES] + t * PIXEL + c0 + r,
			s->error[i % 2] + t * CELL + f0 + r);
		copies_wait<STAGES - 2>();
		if (n + step < images)
			spread(s->error[(i + 1) % 2], s->pooled[(i + 1) % STAGES]);
	}
	const int rows = SECOND_TAPS * SECOND_CHANNELS;
	float *out = partial + KX_OUTER_ROWS(rows) * SECOND_FILTERS * blockIdx.x + f0;
#pragma unroll
	for (int tap = 0; tap < SECOND_TAPS; tap++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int k = tap * SECOND_CHANNELS + c0 + r + 8 * half;
			*reinterpret_cast<float2 *>(out + k * SECOND_FILTERS + 2 * t) = {
				c[tap][2 * half], c[tap][2 * half + 1]};
		}
	bias += __shfl_xor_sync(0xffffffffu, bias, 1);
	bias += __shfl_xor_sync(0xffffffffu, bias, 2);
	if (c0 == 0 && t == 0)
		out[rows * SECOND_FILTERS + r] = bias;
}

int kx_second_gradient(struct kx_second l, float *partial, int images, cudaStream_t stream)
{
	const int bytes = (int)sizeof(struct gradient_shared);
	if (cudaFuncSetAttribute(
		    second_gradient_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(second_gradient_kernel, dim3(SECOND_PARTS), THREADS, bytes, stream, l,
		partial, images);
}
