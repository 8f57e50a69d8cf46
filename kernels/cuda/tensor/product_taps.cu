/*
 * product_taps.cu - wgrad of convolutions of 3 x 3 and stride 1 in tf32. The number of channels is
 * a multiple of 32, the number of filters a multiple of 64.
 *
 * In product_wgrad.cuh each tile of rows reads x and dY again, so the throughput of the L2 cache
 * limits its speed. Here a block computes all nine taps of its channels: x is in shared memory
 * once, with the pixels around it, and each tap reads another place in x. The sum runs over chunks
 * of whole rows of outputs.
 */
#include "kernels/cuda/tensor/product_wgrad.cuh"

namespace
{

#define TAPS       9
#define CHUNK      64 /* largest number of outputs of a chunk */
#define STAGES     3
#define FILTERS    64 /* number of filters of a block */
#define TILES      3  /* number of tiles of 16 channels of one tap, for each warp */
#define DY_PITCH   (FILTERS * 4 + 32)
#define DY_VECTORS (FILTERS / 4)
/* minimum number of chunks of a block: with fewer chunks, product_wgrad.cu is faster */
#define MIN_CHUNKS 8

/* A block computes CHANNELS channels. */
template <int CHANNELS_> struct taps_shape {
	static const int CHANNELS = CHANNELS_, WARPS = TAPS * CHANNELS / 16 / TILES;
	static const int THREADS = 32 * WARPS, BLOCKS = CHANNELS == 64 ? 1 : 2;
	static const int PITCH = CHANNELS * 4 + 32, VECTORS = CHANNELS / 4;

	static_assert(WARPS * TILES * 16 == TAPS * CHANNELS, "whole tiles");
	static_assert(THREADS % VECTORS == 0 && THREADS % DY_VECTORS == 0, "whole pixels");
};

struct taps {
	struct kx_product_wgrad g;
	int rows, chunks;  /* number of rows of a chunk; number of chunks of an image */
	int width, pixels; /* width and number of pixels of x in shared memory */
	struct kx_divisor by_width, by_chunks;
	int all; /* number of chunks of all images */
};

__host__ __device__ inline int steps_of(int pixels)
{
	return (pixels + 7) / 8;
}

template <class S> __host__ __device__ inline int stage_bytes(const struct taps &t)
{
	return t.pixels * S::PITCH + steps_of(t.rows * t.g.window.columns) * 8 * DY_PITCH;
}

/* Returns the number of outputs of a chunk whose first row is `first`. */
__device__ inline int chunk_outputs(const struct taps &t, int first)
{
	const int left = t.g.window.rows - first;

	return (left < t.rows ? left : t.rows) * t.g.window.columns;
}

template <class S>
__device__ inline void load_chunk(
	const struct taps &t, int chunk, int c0, int n0, unsigned char *stage)
{
	const struct kx_windows &w = t.g.window;
	const int image = divide_by(chunk, t.by_chunks);
	const int first = (chunk - image * t.chunks) * t.rows, outputs = chunk_outputs(t, first);
	const int vector = threadIdx.x % S::VECTORS, dy_vector = threadIdx.x % DY_VECTORS;
	const float *x = static_cast<const float *>(t.g.a) +
			 (long long)image * w.h * w.w * w.pitch + c0 + vector * 4;
	const float *dy = static_cast<const float *>(t.g.b) +
			  ((long long)image * w.rows + first) * w.columns * t.g.b_pitch + n0 +
			  dy_vector * 4;

	for (int i = threadIdx.x / S::VECTORS; i < t.pixels; i += S::THREADS / S::VECTORS) {
		const int row = divide_by(i, t.by_width);
		const int y = first - w.top + row, at = i - row * t.width - w.left;
		const bool valid = (unsigned)y < (unsigned)w.h && (unsigned)at < (unsigned)w.w;

		copy_async(stage + i * S::PITCH + vector * 16,
			x + ((long long)y * w.w + at) * w.pitch, valid);
	}
	stage += t.pixels * S::PITCH;
	for (int i = threadIdx.x / DY_VECTORS; i < steps_of(outputs) * 8;
		i += S::THREADS / DY_VECTORS)
		copy_async(stage + i * DY_PITCH + dy_vector * 16, dy + (long long)i * t.g.b_pitch,
			i < outputs);
}

/* Returns the value of an operand: the tensor core ignores the low bits. */
__device__ inline float as_multiplied(uint32_t tf32)
{
	return __uint_as_float(tf32 & 0xffffe000u);
}

/* The sums of a thread, for the TILES tiles of its warp. */
template <class S> struct tap_sums {
	float c[TILES][FILTERS / 8][4] = {};
	float bias[FILTERS / 8] = {};
	int place[TILES], row[TILES]; /* place of each tile in the stage; its row in the result */

	__device__ explicit tap_sums(const struct taps &t, int c0)
	{
#pragma unroll
		for (int i = 0; i < TILES; i++) {
			const int tile = threadIdx.x / 32 * TILES + i, lane = threadIdx.x % 32;
			const int of_tap = S::CHANNELS / 16, tap = tile / of_tap;
			const int channel = tile % of_tap * 16 + lane / 4 * 2;

			place[i] = (tap / 3 * t.width + tap % 3) * S::PITCH + channel * 4;
			row[i] = tap * t.g.window.c + c0 + channel;
		}
	}

	/* Rows r and r + 8 of a tile are neighbouring channels, which a thread loads at once. */
	__device__ void add_step(const unsigned char *x, const unsigned char *dy, const int *at,
		int step, bool with_bias)
	{
		const int lane = threadIdx.x % 32;
		const unsigned char *lo = x + at[step * 8 + lane % 4];
		const unsigned char *hi = x + at[step * 8 + lane % 4 + 4];
		uint32_t a[TILES][4], b[FILTERS / 16][4];

		wgrad_operands<float>::load_b(b, dy, DY_PITCH, step * 8, 0, lane);
#pragma unroll
		for (int i = 0; i < TILES; i++) {
			const float2 v = *reinterpret_cast<const float2 *>(lo + place[i]);
			const float2 u = *reinterpret_cast<const float2 *>(hi + place[i]);

			a[i][0] = to_tf32(v.x);
			a[i][1] = to_tf32(v.y);
			a[i][2] = to_tf32(u.x);
			a[i][3] = to_tf32(u.y);
		}
#pragma unroll
		for (int i = 0; i < TILES; i++)
#pragma unroll
			for (int n = 0; n < FILTERS / 8; n++)
				mma_tf32(c[i][n], a[i], b[n / 2] + n % 2 * 2);
		if (with_bias)
#pragma unroll
			for (int n = 0; n < FILTERS / 8; n++)
				bias[n] += as_multiplied(b[n / 2][n % 2 * 2]) +
					   as_multiplied(b[n / 2][n % 2 * 2 + 1]);
	}

	__device__ void store(const struct kx_product_wgrad &g, float *to) const
	{
#pragma unroll
		for (int i = 0; i < TILES; i++)
#pragma unroll
			for (int j = 0; j < FILTERS / 8; j++) {
				const int half = j / (FILTERS / 16), n = j % (FILTERS / 16);
				const int at = half * 2 + n % 2, tile = n / 2 * 4;
				float4 *four = reinterpret_cast<float4 *>(
					to + (size_t)(row[i] + half) * g.n + n / 2 * 32 +
					threadIdx.x % 4 * 8 + n % 2 * 4);

				*four = {c[i][tile][at] * g.scale, c[i][tile + 1][at] * g.scale,
					c[i][tile + 2][at] * g.scale, c[i][tile + 3][at] * g.scale};
			}
	}

	/* Stores the sums of dY, which are the gradients of the biases. */
	__device__ void store_bias(const struct kx_product_wgrad &g, float *to)
	{
#pragma unroll
		for (int n = 0; n < FILTERS / 8; n++) {
			bias[n] += __shfl_xor_sync(0xffffffffu, bias[n], 1);
			bias[n] += __shfl_xor_sync(0xffffffffu, bias[n], 2);
			if (threadIdx.x % 4 == 0)
				to[(size_t)(g.m - 1) * g.n + n / 4 * 32 + threadIdx.x % 32 / 4 * 4 +
					n % 4] = bias[n] * g.scale;
		}
	}
};

/* The grid is tiles of channels x tiles of filters x slices. */
template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
	taps_kernel(const __grid_constant__ struct taps t)
{
	extern __shared__ __align__(1024) unsigned char memory[];
	/* for each output of a chunk: the place of the pixel under its tap 0 */
	__shared__ int at[CHUNK];
	const struct kx_product_wgrad &g = t.g;
	const int across = g.window.c / S::CHANNELS, down = g.n / FILTERS;
	const int c0 = blockIdx.x % across * S::CHANNELS;
	const int n0 = blockIdx.x / across % down * FILTERS, slice = blockIdx.x / across / down;
	const int begin = (int)((long long)t.all * slice / g.slices);
	const int end = (int)((long long)t.all * (slice + 1) / g.slices);
	const int bytes = stage_bytes<S>(t), columns = g.window.columns;
	const bool with_bias = c0 == 0 && threadIdx.x / 32 == S::WARPS - 1;
	struct tap_sums<S> sums(t, c0);

	for (int i = threadIdx.x; i < CHUNK; i += S::THREADS)
		at[i] = i < t.rows * columns ? (i / columns * t.width + i % columns) * S::PITCH : 0;
	await_previous();
	for (int i = 0; i < STAGES - 1; i++) {
		if (begin + i < end)
			load_chunk<S>(t, begin + i, c0, n0, memory + i * bytes);
		copies_commit();
	}
	for (int chunk = begin, i = 0; chunk < end; chunk++, i++) {
		const int first = (chunk - divide_by(chunk, t.by_chunks) * t.chunks) * t.rows;
		const int steps = steps_of(chunk_outputs(t, first));
		const unsigned char *stage = memory + i % STAGES * bytes;

		copies_wait<STAGES - 2>();
		__syncthreads();
		if (chunk + STAGES - 1 < end)
			load_chunk<S>(t, chunk + STAGES - 1, c0, n0,
				memory + (i + STAGES - 1) % STAGES * bytes);
		copies_commit();
		for (int step = 0; step < steps; step++)
			sums.add_step(stage, stage + t.pixels * S::PITCH, at, step, with_bias);
	}
	copies_wait<0>();
	float *to = g.workspace + g.stride_rows * g.n * slice + n0;
	sums.store(g, to);
	if (with_bias)
		sums.store_bias(g, to);
}

/* Chooses the number of rows of a chunk with which an image takes the least estimated time. This
 * time is the number of steps of all chunks of the image, plus 1.5 steps for each chunk. Returns
 * false if not even a chunk of one row is small enough. */
template <class S> bool plan_chunks(struct taps *t)
{
	const struct kx_windows &w = t->g.window;
	const size_t limit = kx_shared_limit() / S::BLOCKS - 1024 - sizeof(int) * CHUNK;
	double min_time = 0;
	struct taps best = *t;

	for (t->rows = 1; t->rows <= w.rows && t->rows * w.columns <= CHUNK; t->rows++) {
		t->chunks = (w.rows + t->rows - 1) / t->rows;
		t->width = w.columns + 2;
		t->pixels = (t->rows + 2) * t->width;
		const int whole = w.rows / t->rows, rest = w.rows % t->rows;
		const double time = whole * steps_of(t->rows * w.columns) +
				    steps_of(rest * w.columns) + 1.5 * t->chunks;

		if ((size_t)STAGES * stage_bytes<S>(*t) <= limit &&
			(min_time == 0 || time < min_time)) {
			best = *t;
			min_time = time;
		}
	}
	*t = best;
	return min_time > 0;
}

template <class S> int tap_tiles(const struct taps &t)
{
	return t.g.window.c / S::CHANNELS * (t.g.n / FILTERS);
}

/* Chooses the chunks. Returns false if not even a chunk of one row is small enough. */
template <class S> bool plan_taps(struct taps *t)
{
	const struct kx_windows &w = t->g.window;

	if (!plan_chunks<S>(t))
		return false;
	t->all = (int)(t->g.pixels / ((long long)w.rows * w.columns)) * t->chunks;
	return true;
}

/* Returns the number of slices, or 0 if the chunks are too few for blocks that fill the GPU. */
template <class S> int tap_slices(struct taps t)
{
	const int slices = SUM_MULTIPROCESSORS * S::BLOCKS / tap_tiles<S>(t);

	return slices && plan_taps<S>(&t) && t.all / slices >= MIN_CHUNKS ? slices : 0;
}

bool usable(const struct kx_product_wgrad &g)
{
	const struct kx_windows &w = g.window;

	return w.size == 3 && w.stride == 1 && w.up == 1 && w.c % 32 == 0 && g.n % FILTERS == 0 &&
	       g.m == TAPS * w.c + 1;
}

template <class S> int launch_taps(struct taps t, cudaStream_t stream)
{
	if (!plan_taps<S>(&t))
		return PS_EDEVICE;
	const int bytes = STAGES * stage_bytes<S>(t);

	t.by_width = kx_divisor(t.width);
	t.by_chunks = kx_divisor(t.chunks);
	if (cudaFuncSetAttribute(
		    taps_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch_joined(taps_kernel<S>, t.g.joins, dim3(tap_tiles<S>(t) * t.g.slices),
		S::THREADS, bytes, stream, t);
}

} // namespace

int kx_taps_slices(struct kx_windows window, int m, int n, long long pixels)
{
	struct taps t = {};

	t.g.window = window;
	t.g.m = m;
	t.g.n = n;
	t.g.pixels = pixels;
	if (!usable(t.g))
		return 0;
	return window.c % 64 == 0 ? tap_slices<taps_shape<64>>(t) : tap_slices<taps_shape<32>>(t);
}

int kx_taps_wgrad(struct kx_product_wgrad g, cudaStream_t stream)
{
	struct taps t = {};

	t.g = g;
	return g.window.c % 64 == 0 ? launch_taps<taps_shape<64>>(t, stream)
				    : launch_taps<taps_shape<32>>(t, stream);
}
