/* product_wgrad.cu - the wgrad of product_wgrad.cuh in bf16 and tf32, on tensor cores: large tiles
 * in bf16 use wgmma on Hopper, all others use mma.sync. */
#include "kernels/cuda/tensor/product_wgrad.cuh"

namespace
{

/* The sums of a thread: its warp computes MI x NJ tiles of 16 x 8. */
template <class T, class S> struct wgrad_mma {
	typedef wgrad_sizes<T, S> Z;
	float c[S::MI][S::NJ][4] = {};

	__device__ static int warp_m()
	{
		return threadIdx.x / 32 % S::WARPS_M * 16 * S::MI;
	}

	__device__ static int warp_n()
	{
		return threadIdx.x / 32 / S::WARPS_M % S::WARPS_N * 8 * S::NJ;
	}

	__device__ void add_stage(const unsigned char *a)
	{
		const int share = threadIdx.x / 32 / S::WARPS, lane = threadIdx.x % 32;
		const int steps = S::DEPTH / type_of<T>::STEP / S::SHARES;
		const unsigned char *b = a + Z::A_BYTES;
#pragma unroll
		for (int step = 0; step < steps; step++) {
			const int k = (share * steps + step) * type_of<T>::STEP;
			uint32_t x[S::MI][4], y[S::NJ / 2][4];

			wgrad_operands<T>::load_a(x, a, Z::A_PITCH, k, warp_m(), lane);
			wgrad_operands<T>::load_b(y, b, Z::B_PITCH, k, warp_n(), lane);
#pragma unroll
			for (int m = 0; m < S::MI; m++)
#pragma unroll
				for (int n = 0; n < S::NJ; n++)
					mma_tile<T>(c[m][n], x[m], y[n / 2] + n % 2 * 2);
		}
	}

	__device__ void wait()
	{
	}

	/* Adds the sums of the other shares. Returns 1 for the threads that now have the sums of
	 * the block. */
	__device__ bool add_shares(float4 *shared)
	{
		const int warp = threadIdx.x / 32;

		if (S::SHARES > 1)
			::add_shares<S::WARPS, S::SHARES>(
				c, shared, warp / S::WARPS, warp % S::WARPS);
		return warp < S::WARPS;
	}

	__device__ void store(const struct kx_product_wgrad &g, float *to, int m0, int n0) const
	{
		wgrad_operands<T>::store(c, g, to, m0 + warp_m(), n0 + warp_n(), threadIdx.x % 32);
	}
};

/* WARPS_M x WARPS_N warps divide the tile. A stage has four k steps. */
template <class T_, int BM_, int BN_, int WARPS_M_, int WARPS_N_, int SHARES_>
struct mma_tile_shape
    : wgrad_tile<BM_, BN_, 4 * type_of<T_>::STEP, WARPS_M_ * WARPS_N_, 2, SHARES_> {
	static const int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
	static const int MI = BM_ / WARPS_M_ / 16, NJ = BN_ / WARPS_N_ / 8;

	template <class T> using sums = wgrad_mma<T, mma_tile_shape>;
};
template <class T> using w128x128 = mma_tile_shape<T, 128, 128, 2, sizeof(T) == 4 ? 2 : 4, 1>;
template <class T> using w128x64 = mma_tile_shape<T, 128, 64, 2, 2, 1>;
template <class T> using w64x64 = mma_tile_shape<T, 64, 64, 2, 2, 1>;
template <class T> using w128x32 = mma_tile_shape<T, 128, 32, 4, 1, 1>;
template <class T> using w32x64 = mma_tile_shape<T, 32, 64, 1, 2, 2>;
template <class T> using w32x32 = mma_tile_shape<T, 32, 32, 1, 1, 4>;

/* The sums of a thread: its warpgroup computes 64 rows of the tile. */
template <class S> struct wgmma_wgrad {
	typedef wgrad_sizes<__nv_bfloat16, S> Z;
	float c[S::BN / 2] = {};

	__device__ void add_stage(const unsigned char *stage)
	{
		const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
		const uint32_t next = S::DEPTH * 128;
		const uint64_t a = wgmma_lines(shared_address(stage) + group * next, next);
		const uint64_t b = wgmma_lines(shared_address(stage) + Z::A_BYTES, next);

		wgmma_fence();
#pragma unroll
		for (int step = 0; step < S::DEPTH / 16; step++)
			wgmma_bf16<1, 1>(c, a + step * 16 * 128 / 16, b + step * 16 * 128 / 16);
		wgmma_commit();
	}

	/* Waits for the products that run, and makes the copies of this thread visible to wgmma. */
	__device__ void wait()
	{
		wgmma_fence_smem();
		wgmma_wait();
	}

	__device__ bool add_shares(float4 *)
	{
		return true;
	}

	__device__ void store(const struct kx_product_wgrad &g, float *to, int m0, int n0) const
	{
		const int lane = threadIdx.x % 32;

		m0 += threadIdx.x / 32 * 16 + lane / 4;
		n0 += lane % 4 * 2;
#pragma unroll
		for (int i = 0; i < S::BN / 2; i += 2) {
			const int m = m0 + i / 2 % 2 * 8, n = n0 + i / 4 * 8;

			if (m < g.m && n < g.n)
				store_pair(to + (size_t)m * g.n + n, c[i] * g.scale,
					c[i + 1] * g.scale);
		}
	}
};

template <int BN_> struct wgmma_tile : wgrad_tile<128, BN_, 64, 8, 2, 1> {
	static const bool LINES = true;

	template <class T> using sums = wgmma_wgrad<wgmma_tile>;
};

/* Tiles by size. `effort` is the time for a value, relative to the time for a value of the largest
 * tile. */
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
	return type == KX_TYPE_BF16 ? wgrad_sizes<__nv_bfloat16, w128x128<__nv_bfloat16>>::BYTES
				    : wgrad_sizes<float, w128x128<float>>::BYTES;
}

/* Returns the tile with the smallest estimated time: the number of values, padding included, times
 * `effort`. Returns a smaller tile if this tile needs more shared memory than the device has, or if
 * the sum is so short that its blocks and slices would not fill the GPU. */
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
	const size_t max_slices = (size_t)(stages_of(pixels, type) + 3) / 4;
	const size_t enough = SUM_MULTIPROCESSORS;
	if ((best == W128X128 || best == W128X64) && tile_blocks(best, m, n) * max_slices < enough)
		best = W64X64;
	return best == W64X64 && tile_blocks(best, m, n) * max_slices < enough / 2 ? W32X32 : best;
}

/* Launches the wgrad kernel with a tile shape that uses wgmma. */
int launch_wgmma(const struct kx_product_wgrad &g, int tile, cudaStream_t stream)
{
	return tile == W128X128 ? launch_wgrad<__nv_bfloat16, wgmma_tile<128>>(g, stream)
				: launch_wgrad<__nv_bfloat16, wgmma_tile<64>>(g, stream);
}

int wgmma_runs_here()
{
	return kx_code(product_wgrad_kernel<__nv_bfloat16, wgmma_tile<64>>) == 90;
}

template <class T> int launch_tile(const struct kx_product_wgrad &g, int tile, cudaStream_t stream)
{
	switch (tile) {
	case W128X128:
		return launch_wgrad<T, w128x128<T>>(g, stream);
	case W128X64:
		return launch_wgrad<T, w128x64<T>>(g, stream);
	case W64X64:
		return launch_wgrad<T, w64x64<T>>(g, stream);
	case W128X32:
		return launch_wgrad<T, w128x32<T>>(g, stream);
	case W32X64:
		return launch_wgrad<T, w32x64<T>>(g, stream);
	default:
		return launch_wgrad<T, w32x32<T>>(g, stream);
	}
}

} // namespace

int kx_product_slices(struct kx_windows window, int m, int n, long long pixels, enum kx_type type)
{
	const int taps = type == KX_TYPE_TF32 ? kx_taps_slices(window, m, n, pixels) : 0;

	if (taps)
		return taps;
	if (type == KX_TYPE_FP32)
		return kx_product_slices_fp32(m, n, pixels);
	const size_t enough = 2 * SUM_MULTIPROCESSORS;
	const size_t blocks = tile_blocks(choose_tile(m, n, pixels, type), m, n);
	const size_t max_slices = (size_t)(stages_of(pixels, type) + 3) / 4;
	const size_t slices = enough / blocks < max_slices ? enough / blocks : max_slices;

	return slices ? (int)slices : 1;
}

int kx_product_wgrad(struct kx_product_wgrad g, enum kx_type type, cudaStream_t stream)
{
	if (type == KX_TYPE_FP32)
		return kx_product_wgrad_fp32(g, stream);
	if (type == KX_TYPE_TF32 && kx_taps_slices(g.window, g.m, g.n, g.pixels))
		return kx_taps_wgrad(g, stream);
	const int tile = choose_tile(g.m, g.n, g.pixels, type);

	if (type == KX_TYPE_BF16 && (tile == W128X128 || tile == W128X64) && wgmma_runs_here())
		return launch_wgmma(g, tile, stream);
	return type == KX_TYPE_BF16 ? launch_tile<__nv_bfloat16>(g, tile, stream)
				    : launch_tile<float>(g, tile, stream);
}
