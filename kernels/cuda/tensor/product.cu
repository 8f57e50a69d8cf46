/* product.cu - the products of product.cuh in bf16 and tf32, on tensor cores: large tiles use wgmma
 * on Hopper, all others use mma.sync. */
#include "kernels/cuda/tensor/product.cuh"

namespace
{

/* The sums of a thread: its warp computes MI x NJ tiles of 16 x 8. */
template <class T, bool DGRAD, class S> struct mma_sums {
	typedef product_sizes<T, DGRAD, S> Z;
	float c[S::MI][S::NJ][4] = {};

	__device__ int warp_m() const
	{
		return threadIdx.x / 32 % S::WARPS_M * 16 * S::MI;
	}

	__device__ int warp_n() const
	{
		return threadIdx.x / 32 / S::WARPS_M * 8 * S::NJ;
	}

	__device__ void add_stage(const unsigned char *stage, int left)
	{
		const unsigned char *b = stage + Z::A_BYTES;
		const int lane = threadIdx.x % 32;
#pragma unroll
		for (int step = 0; step < S::ROW / 32; step++) {
			uint32_t x[S::MI][4], y[S::NJ / 2][4];

			if (step * type_of<T>::STEP >= left)
				break;
#pragma unroll
			for (int m = 0; m < S::MI; m++)
				load_a<T>(
					x[m], stage, S::PITCH, warp_m() + 16 * m, step * 32, lane);
#pragma unroll
			for (int n = 0; n < S::NJ / 2; n++)
				if (DGRAD)
					load_b<T>(y[n], b, Z::B_PITCH, warp_n() + 16 * n, step * 32,
						lane);
				else
					load_b_across<T>(y[n], b, Z::B_PITCH,
						step * type_of<T>::STEP, warp_n() + 16 * n, lane);
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

	__device__ void store(float *sums) const
	{
		const int lane = threadIdx.x % 32;

		sums += (warp_m() + lane / 4) * S::SUM_PITCH + warp_n() + lane % 4 * 2;
#pragma unroll
		for (int i = 0; i < 2 * S::MI; i++)
#pragma unroll
			for (int j = 0; j < S::NJ; j++)
				store_pair(sums + 8 * i * S::SUM_PITCH + 8 * j,
					c[i / 2][j][i % 2 * 2], c[i / 2][j][i % 2 * 2 + 1]);
	}
};

/* WARPS_M x WARPS_N warps divide the tile. */
template <int BM_, int BN_, int ROW_, int STAGES_, int WARPS_M_, int WARPS_N_, int BLOCKS_,
	bool SPLIT_ = false>
struct mma_shape : tile_shape<BM_, BN_, ROW_, STAGES_, WARPS_M_ * WARPS_N_, BLOCKS_, 1, SPLIT_> {
	static const int WARPS_M = WARPS_M_, MI = BM_ / WARPS_M_ / 16, NJ = BN_ / WARPS_N_ / 8;

	template <class T, bool DGRAD> using sums = mma_sums<T, DGRAD, mma_shape>;
};
typedef mma_shape<128, 128, 128, 3, 2, 4, 2> large;
typedef mma_shape<128, 64, 128, 3, 4, 2, 2> wide;
typedef mma_shape<128, 32, 128, 3, 4, 1, 2> narrow;
/* smaller tiles, so that more blocks run at a time */
typedef mma_shape<128, 32, 64, 4, 4, 1, 4> shallow;
/* for sums over K that have only one or two stages */
typedef mma_shape<128, 64, 64, 2, 4, 2, 4> shallow_wide;
typedef mma_shape<64, 64, 128, 3, 2, 2, 2, true> split;
struct wide_up : wide {
	static const bool UP = true;
};

/* The sums of a thread. */
template <class T, bool DGRAD, class S> struct wgmma_sums;

/* In bf16 a warpgroup computes 64 rows of the tile. */
template <bool DGRAD, class S> struct wgmma_sums<__nv_bfloat16, DGRAD, S> {
	typedef product_sizes<__nv_bfloat16, DGRAD, S> Z;
	float c[S::BN / 2] = {};

	__device__ void add_stage(const unsigned char *stage, int)
	{
		const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
		const uint64_t a = wgmma_lines(shared_address(stage) + group * 64 * S::ROW, 0);
		const uint32_t next = DGRAD ? 0 : Z::BK * 128;
		const uint64_t b = wgmma_lines(shared_address(stage) + Z::A_BYTES, next);

		wgmma_fence();
#pragma unroll
		for (int step = 0; step < Z::BK / 16; step++)
			wgmma_bf16<0, !DGRAD>(c, a + step * 32 / 16,
				b + (DGRAD ? step * 32 / 16 : step * 16 * 128 / 16));
		wgmma_commit();
	}

	/* Waits for the products that run, and makes the copies of this thread visible to wgmma. */
	__device__ void wait()
	{
		wgmma_fence_smem();
		wgmma_wait();
	}

	__device__ void store(float *sums) const
	{
		const int lane = threadIdx.x % 32;

		sums += (threadIdx.x / 32 * 16 + lane / 4) * S::SUM_PITCH + lane % 4 * 2;
#pragma unroll
		for (int i = 0; i < S::BN / 2; i += 2)
			store_pair(sums + i / 2 % 2 * 8 * S::SUM_PITCH + i / 4 * 8, c[i], c[i + 1]);
	}
};

/* In tf32 wgmma reads operands from shared memory only if their K is contiguous. A warpgroup
 * therefore computes 64 channels x BN pixels: pixels are in shared memory, weights in registers. */
template <bool DGRAD, class S> struct wgmma_sums<float, DGRAD, S> {
	typedef product_sizes<float, DGRAD, S> Z;
	float c[S::BN / 2] = {};

	__device__ static int channel(int group)
	{
		return group * 64 % S::BN + threadIdx.x / 32 % 4 * 16;
	}

	__device__ static int pixel(int group)
	{
		return group * 64 / S::BN * 64;
	}

	__device__ void add_stage(const unsigned char *stage, int)
	{
		const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
		const int lane = threadIdx.x % 32, steps = Z::BK / 8;
		const uint64_t b = wgmma_lines(shared_address(stage) + pixel(group) * S::ROW, 0);
		uint32_t a[steps][4];
#pragma unroll
		for (int step = 0; step < steps; step++)
			if (DGRAD)
				load_a<float>(a[step], stage + Z::A_BYTES, Z::B_PITCH,
					channel(group), step * 32, lane);
			else
				load_a_across<float>(a[step], stage + Z::A_BYTES, Z::B_PITCH,
					step * 8, channel(group), lane);
		wgmma_fence();
#pragma unroll
		for (int step = 0; step < steps; step++)
			wgmma_tf32(c, a[step], b + step * 32 / 16);
		wgmma_commit();
		wgmma_wait(); /* because the products still read their operands in registers */
	}

	/* Makes the copies of this thread visible to wgmma. */
	__device__ void wait()
	{
		wgmma_fence_smem();
	}

	__device__ void store(float *sums) const
	{
		const int group = threadIdx.x / 128, lane = threadIdx.x % 32;

		sums += (pixel(group) + lane % 4 * 2) * S::SUM_PITCH + channel(group) + lane / 4;
#pragma unroll
		for (int i = 0; i < S::BN / 2; i++)
			sums[(i / 4 * 8 + i % 2) * S::SUM_PITCH + i / 2 % 2 * 8] = c[i];
	}
};

template <int BN_, int STAGES_, int BLOCKS_>
struct wgmma_shape : tile_shape<128, BN_, 128, STAGES_, 8, BLOCKS_, 1, false> {
	static const bool LINES = true;

	template <class T, bool DGRAD> using sums = wgmma_sums<T, DGRAD, wgmma_shape>;
};
typedef wgmma_shape<128, 3, 2> wgmma128;
typedef wgmma_shape<64, 4, 2> wgmma64;

/* Launches a tile that uses wgmma, if this GPU has wgmma and the tiles fill the GPU. Otherwise
 * returns 0. */
template <class T, bool DGRAD>
int launched_wgmma(const struct kx_product &g, size_t enough, int *rc, cudaStream_t stream)
{
	const size_t bytes128 = product_sizes<T, DGRAD, wgmma128>::BYTES;
	const size_t bytes64 = product_sizes<T, DGRAD, wgmma64>::BYTES;

	if ((bytes128 > bytes64 ? bytes128 : bytes64) > kx_shared_limit() ||
		kx_code(product_kernel<T, DGRAD, wgmma64>) != 90)
		return 0;
	if (g.n > wgmma64::BN && product_blocks<wgmma128>(g) >= enough)
		*rc = launch_product<T, DGRAD, wgmma128>(g, stream);
	else if (g.n > narrow::BN && product_blocks<wgmma64>(g) >= enough)
		*rc = launch_product<T, DGRAD, wgmma64>(g, stream);
	else
		return 0;
	return 1;
}

/* Returns the length of the sum over K, in bytes. */
template <class T> size_t product_bytes(const struct kx_product &g)
{
	return (size_t)g.window.size * g.window.size * g.window.c * sizeof(T);
}

template <class T, bool DGRAD> int launch_shape(const struct kx_product &g, cudaStream_t stream)
{
	const size_t enough = SUM_MULTIPROCESSORS; /* minimum number of blocks that fill the GPU */
	int rc;

	if (DGRAD && g.window.up > 1)
		return launch_product<T, DGRAD, wide_up>(g, stream);
	if (!DGRAD && product_bytes<T>(g) <= 2 * shallow_wide::ROW && g.n > narrow::BN &&
		product_blocks<shallow_wide>(g) >= 4 * enough)
		return launch_product<T, false, shallow_wide>(g, stream);
	if (launched_wgmma<T, DGRAD>(g, enough, &rc, stream))
		return rc;
	if (g.n <= narrow::BN && product_blocks<narrow>(g) >= 4 * enough)
		return launch_product<T, DGRAD, shallow>(g, stream);
	if (g.n <= narrow::BN && product_blocks<narrow>(g) >= enough)
		return launch_product<T, DGRAD, narrow>(g, stream);
	if (g.n > wide::BN && product_blocks<large>(g) >= enough &&
		(size_t)product_sizes<T, DGRAD, large>::BYTES <= kx_shared_limit())
		return launch_product<T, DGRAD, large>(g, stream);
	if (product_blocks<wide>(g) >= enough)
		return launch_product<T, DGRAD, wide>(g, stream);
	return launch_split<T, DGRAD, split>(g, stream);
}

} // namespace

struct kx_divisor kx_divisor(int value)
{
	int bits = 0;

	while ((1ll << bits) < value)
		bits++;
	if (value == 1)
		return {1, 0, 0};
	return {(uint32_t)value,
		(uint32_t)(((1ull << (31 + bits)) + (unsigned)value - 1) / (unsigned)value),
		bits - 1};
}

int kx_product(struct kx_product g, enum kx_type type, cudaStream_t stream)
{
	if (type == KX_TYPE_FP32)
		return kx_product_fp32(g, stream);
	if (type == KX_TYPE_BF16)
		return g.dgrad ? launch_shape<__nv_bfloat16, true>(g, stream)
			       : launch_shape<__nv_bfloat16, false>(g, stream);
	return g.dgrad ? launch_shape<float, true>(g, stream)
		       : launch_shape<float, false>(g, stream);
}
