/*
 * product_wgrad.cu - wgrad of convolution and fc on tensor cores, as implicit GEMM with split-K.
 *
 * A block computes BM x BN gradient values over its slice of the sum, which runs over the output
 * pixels of all images. params.cu adds up the slices.
 */
#include "kernels/cuda/tensor/tile.cuh"

namespace
{

/* A block has WARPS_M x WARPS_N warps; WARPS_K times as many divide the depth of a stage. */
template <int BM_, int BN_, int WARPS_M_, int WARPS_N_, int WARPS_K_> struct wgrad_shape {
	static const int BM = BM_, BN = BN_, STAGES = 3;
	static const int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, WARPS_K = WARPS_K_;
	static const int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
	static const int MI = BM / WARPS_M / 16, NJ = BN / WARPS_N / 8;
	static const int STEPS = 4 / WARPS_K; /* a stage has four k steps */
};
typedef wgrad_shape<128, 128, 2, 4, 1> w128x128;
typedef wgrad_shape<128, 64, 2, 2, 1> w128x64;
typedef wgrad_shape<64, 64, 2, 2, 1> w64x64;
typedef wgrad_shape<128, 32, 4, 1, 1> w128x32;
typedef wgrad_shape<32, 64, 1, 2, 2> w32x64;
typedef wgrad_shape<32, 32, 1, 1, 4> w32x32;

template <class T, class S> struct wgrad_sizes {
	static const int BK = 4 * type_of<T>::STEP;
	static const int A_PITCH = S::BM * type_of<T>::BYTES + type_of<T>::PAD;
	static const int B_PITCH = S::BN * type_of<T>::BYTES + type_of<T>::PAD;
	static const int A_BYTES = BK * A_PITCH, STAGE = A_BYTES + BK * B_PITCH;
	static const int A_VECTORS = S::BM * type_of<T>::BYTES / 16;
	static const int B_VECTORS = S::BN * type_of<T>::BYTES / 16;
	static const int A_PASSES = BK * A_VECTORS / S::THREADS;
	static const int B_PASSES = BK * B_VECTORS / S::THREADS;
	static const int SHARES = (S::WARPS_K - 1) * S::BM * S::BN * 4;
	static const int BYTES = S::STAGES * STAGE > SHARES ? S::STAGES *STAGE : SHARES;
};

__device__ const uint4 one_bf16 = {0x3f80, 0, 0, 0}, one_fp32 = {0x3f800000, 0, 0, 0};

/* The columns that a thread loads from every row of `a`: channel v of tap (r, s). */
struct column {
	int r, s, v;
	bool in, ones;
};

template <class T>
__device__ inline struct column column_at(const struct kx_product_wgrad &g, int k)
{
	const struct kx_windows &w = g.window;
	const int tap = k / w.c;

	return {tap / w.size, tap % w.size, k % w.c, k < w.size * w.size * w.c,
		g.ones && k == w.size * w.size * w.c};
}

template <class T>
__device__ inline void load_pixel(
	const struct kx_product_wgrad &g, const struct column &col, int pixel, bool flat, void *to)
{
	const struct kx_windows &w = g.window;
	bool valid = col.in && pixel < g.pixels;
	int at = pixel;

	if (!flat) {
		const int image = divide_by(pixel, g.by_image);
		const int rest = pixel - image * (int)g.by_image.value;
		const int p = divide_by(rest, g.by_row), q = rest - p * (int)g.by_row.value;
		const int y = p * w.stride - w.top + col.r, x = q * w.stride - w.left + col.s;

		valid = valid && (unsigned)y < (unsigned)w.h && (unsigned)x < (unsigned)w.w;
		at = (image * w.h + y) * w.w + x;
	}
	const void *from = static_cast<const T *>(g.a) + (valid ? (size_t)at * w.c + col.v : 0);
	if (col.ones) {
		valid = true;
		from = sizeof(T) == 2 ? &one_bf16 : &one_fp32;
	}
	copy_cached(to, from, valid);
}

template <class T, class S>
__device__ inline void load_wgrad_stage(const struct kx_product_wgrad &g, const struct column &col,
	int tile, int n0, bool flat, unsigned char *stage)
{
	typedef wgrad_sizes<T, S> Z;
	const int tid = threadIdx.x, pixel0 = tile * Z::BK;
#pragma unroll
	for (int i = 0; i < Z::A_PASSES; i++) {
		const int row = tid / Z::A_VECTORS + i * (S::THREADS / Z::A_VECTORS);

		load_pixel<T>(g, col, pixel0 + row, flat,
			stage + row * Z::A_PITCH + tid % Z::A_VECTORS * 16);
	}
	stage += Z::A_BYTES;
	const int n = n0 + tid % Z::B_VECTORS * type_of<T>::VECTOR;
#pragma unroll
	for (int i = 0; i < Z::B_PASSES; i++) {
		const int row = tid / Z::B_VECTORS + i * (S::THREADS / Z::B_VECTORS);
		const bool valid = pixel0 + row < g.pixels && n < g.n;
		const T *b = static_cast<const T *>(g.b);

		copy_ahead(stage + row * Z::B_PITCH + tid % Z::B_VECTORS * 16,
			valid ? b + (size_t)(pixel0 + row) * g.n + n : b, valid);
	}
}

template <class S> __host__ __device__ inline unsigned row_tiles(const struct kx_product_wgrad &g)
{
	return (g.m + S::BM - 1) / S::BM;
}

template <class S>
__host__ __device__ inline unsigned column_tiles(const struct kx_product_wgrad &g)
{
	return (g.n + S::BN - 1) / S::BN;
}

/* The grid is row tiles x column tiles x slices. */
template <class T, class S>
__global__ void __launch_bounds__(S::THREADS, 2)
	product_wgrad_kernel(const __grid_constant__ struct kx_product_wgrad g)
{
	typedef wgrad_sizes<T, S> Z;
	extern __shared__ __align__(16) unsigned char memory[];
	const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
	const int warp_m = warp % S::WARPS_M * 16 * S::MI;
	const int warp_n = warp / S::WARPS_M % S::WARPS_N * 8 * S::NJ;
	const int warp_tile = warp % (S::WARPS_M * S::WARPS_N);
	const int share = warp / (S::WARPS_M * S::WARPS_N);
	const unsigned block = blockIdx.x;
	const int m0 = block % row_tiles<S>(g) * S::BM;
	const int n0 = block / row_tiles<S>(g) % column_tiles<S>(g) * S::BN;
	const int slice = block / row_tiles<S>(g) / column_tiles<S>(g);
	const long long all = (g.pixels + Z::BK - 1) / Z::BK;
	const int begin = (int)(all * slice / g.slices), end = (int)(all * (slice + 1) / g.slices);
	const struct column col = column_at<T>(g, m0 + tid % Z::A_VECTORS * type_of<T>::VECTOR);
	const bool flat = g.window.size == 1 && g.window.stride == 1 && g.window.top == 0 &&
			  g.window.left == 0 && g.window.h == g.window.rows &&
			  g.window.w == g.window.columns;
	float c[S::MI][S::NJ][4] = {};

	await_previous();
	for (int i = 0; i < S::STAGES - 1; i++) {
		if (begin + i < end)
			load_wgrad_stage<T, S>(g, col, begin + i, n0, flat, memory + i * Z::STAGE);
		copies_commit();
	}
	for (int i = 0; i < end - begin; i++) {
		const unsigned char *a = memory + i % S::STAGES * Z::STAGE, *b = a + Z::A_BYTES;
		const int next = i + S::STAGES - 1;

		copies_wait<S::STAGES - 2>();
		__syncthreads();
		if (begin + next < end)
			load_wgrad_stage<T, S>(g, col, begin + next, n0, flat,
				memory + next % S::STAGES * Z::STAGE);
		copies_commit();
#pragma unroll
		for (int step = 0; step < S::STEPS; step++) {
			const int k = (share * S::STEPS + step) * type_of<T>::STEP;
			uint32_t x[S::MI][4], y[S::NJ / 2][4];
#pragma unroll
			for (int m = 0; m < S::MI; m++)
				load_a_across<T>(x[m], a, Z::A_PITCH, k, warp_m + 16 * m, lane);
#pragma unroll
			for (int n = 0; n < S::NJ / 2; n++)
				load_b_across<T>(y[n], b, Z::B_PITCH, k, warp_n + 16 * n, lane);
#pragma unroll
			for (int m = 0; m < S::MI; m++)
#pragma unroll
				for (int n = 0; n < S::NJ; n++)
					mma_tile<T>(c[m][n], x[m], y[n / 2] + n % 2 * 2);
		}
	}
	if (S::WARPS_K > 1)
		add_shares<S::WARPS_M * S::WARPS_N, S::WARPS_K>(
			c, reinterpret_cast<float4 *>(memory), share, warp_tile);
	if (share > 0)
		return;
	float *d = g.workspace + g.stride_rows * g.n * slice;
#pragma unroll
	for (int i = 0; i < 2 * S::MI; i++)
#pragma unroll
		for (int j = 0; j < S::NJ; j++) {
			const int m = m0 + warp_m + lane / 4 + 8 * i;
			const int n = n0 + warp_n + lane % 4 * 2 + 8 * j;

			if (m < g.m && n < g.n)
				store_pair(d + (size_t)m * g.n + n,
					c[i / 2][j][i % 2 * 2] * g.scale,
					c[i / 2][j][i % 2 * 2 + 1] * g.scale);
		}
}

template <class T, class S> int launch(const struct kx_product_wgrad &g, cudaStream_t stream)
{
	const int bytes = wgrad_sizes<T, S>::BYTES;

	if (cudaFuncSetAttribute(
		    product_wgrad_kernel<T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(product_wgrad_kernel<T, S>,
		dim3(row_tiles<S>(g) * column_tiles<S>(g) * g.slices), S::THREADS, bytes, stream,
		g);
}

/* Tiles by size. `effort` is the time for a value relative to the largest tile. */
enum { W128X128, W128X64, W64X64, W128X32, W32X64, W32X32, N_TILES };
const struct {
	int m, n;
	double effort;
} tile_sizes[N_TILES] = {{128, 128, 1.0}, {128, 64, 1.1}, {64, 64, 1.4}, {128, 32, 1.5},
	{32, 64, 1.9}, {32, 32, 2.4}};

size_t tile_blocks(int tile, int m, int n)
{
	return (size_t)((m + tile_sizes[tile].m - 1) / tile_sizes[tile].m) *
	       ((n + tile_sizes[tile].n - 1) / tile_sizes[tile].n);
}

long long stages_of(long long pixels, enum kx_type type)
{
	const int depth = 4 * (type == KX_TYPE_BF16 ? 16 : 8);

	return (pixels + depth - 1) / depth;
}

size_t largest_bytes(enum kx_type type)
{
	return type == KX_TYPE_BF16 ? wgrad_sizes<__nv_bfloat16, w128x128>::BYTES
				    : wgrad_sizes<float, w128x128>::BYTES;
}

/* The tile that computes the least, with padding. If it gives too few blocks for a short sum, or
 * needs more shared memory than the device has, a smaller one. */
int choose_tile(int m, int n, long long pixels, enum kx_type type)
{
	int best = 0;
	double min_cost = 0;

	for (int t = 0; t < N_TILES; t++) {
		double cost = (double)tile_blocks(t, m, n) * tile_sizes[t].m * tile_sizes[t].n *
			      tile_sizes[t].effort;

		if (t == 0 || cost < min_cost) {
			best = t;
			min_cost = cost;
		}
	}
	if (best == W128X128 && largest_bytes(type) > kx_shared_limit())
		best = W128X64;
	const size_t parts = (size_t)(stages_of(pixels, type) + 3) / 4;
	const size_t enough = 132;
	if ((best == W128X128 || best == W128X64) && tile_blocks(best, m, n) * parts < enough)
		best = W64X64;
	return best == W64X64 && tile_blocks(best, m, n) * parts < enough / 2 ? W32X32 : best;
}

template <class T> int launch_tile(const struct kx_product_wgrad &g, int tile, cudaStream_t stream)
{
	switch (tile) {
	case W128X128:
		return launch<T, w128x128>(g, stream);
	case W128X64:
		return launch<T, w128x64>(g, stream);
	case W64X64:
		return launch<T, w64x64>(g, stream);
	case W128X32:
		return launch<T, w128x32>(g, stream);
	case W32X64:
		return launch<T, w32x64>(g, stream);
	default:
		return launch<T, w32x32>(g, stream);
	}
}

} // namespace

int kx_product_slices(int m, int n, long long pixels, enum kx_type type)
{
	const size_t enough = 264, blocks = tile_blocks(choose_tile(m, n, pixels, type), m, n);
	const size_t parts = (size_t)(stages_of(pixels, type) + 3) / 4;
	const size_t slices = enough / blocks < parts ? enough / blocks : parts;

	return slices ? (int)slices : 1;
}

int kx_product_wgrad(struct kx_product_wgrad g, enum kx_type type, cudaStream_t stream)
{
	const int tile = choose_tile(g.m, g.n, g.pixels, type);

	return type == KX_TYPE_BF16 ? launch_tile<__nv_bfloat16>(g, tile, stream)
				    : launch_tile<float>(g, tile, stream);
}
