/* product_wgrad_fp32.cu - the wgrad of product_wgrad.cuh in fp32. */
#include "kernels/cuda/tensor/ffma.cuh"
#include "kernels/cuda/tensor/product_wgrad.cuh"

namespace
{

template <class S> struct wgrad_ffma {
	typedef wgrad_sizes<float, S> Z;
	float c[S::TM][S::TN / 4][4] = {};

	/* Return the numbers in the tile of row i and of column j of a thread. A thread has groups
	 * of four neighbouring rows and columns. */
	__device__ static int row(int i)
	{
		return threadIdx.x / 32 % S::WARPS_M * 4 * S::TM + lane_row(threadIdx.x % 32) * 4 +
		       i / 4 * 16 + i % 4;
	}

	__device__ static int column(int j)
	{
		return threadIdx.x / 32 / S::WARPS_M % S::WARPS_N * 8 * S::TN +
		       lane_column(threadIdx.x % 32) * 4 + j / 4 * 32;
	}

	__device__ void add_stage(const unsigned char *a)
	{
		const int depth = S::DEPTH / S::SHARES;
		const int first = (int)threadIdx.x / 32 / S::WARPS * depth;
		const unsigned char *b = a + Z::A_BYTES;
#pragma unroll
		for (int i = 0; i < depth; i++) {
			const int k = first + i;
			float x[S::TM], y[S::TN];
#pragma unroll
			for (int m = 0; m < S::TM; m += 4)
				load_values<4>(x + m, a + k * Z::A_PITCH + row(m) * 4);
#pragma unroll
			for (int n = 0; n < S::TN; n += 4)
				load_values<4>(y + n, b + k * Z::B_PITCH + column(n) * 4);
#pragma unroll
			for (int m = 0; m < S::TM; m++)
#pragma unroll
				for (int n = 0; n < S::TN; n++)
					c[m][n / 4][n % 4] += x[m] * y[n];
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
#pragma unroll
		for (int i = 0; i < S::TM; i++)
#pragma unroll
			for (int j = 0; j < S::TN / 4; j++) {
				const int m = m0 + row(i), n = n0 + column(4 * j);
				const float *v = c[i][j];

				if (m < g.m && n < g.n)
					*reinterpret_cast<float4 *>(to + (size_t)m * g.n + n) = {
						v[0] * g.scale, v[1] * g.scale, v[2] * g.scale,
						v[3] * g.scale};
			}
	}
};

/* WARPS_M x WARPS_N warps divide the tile. */
template <int BM_, int BN_, int WARPS_M_, int WARPS_N_, int BLOCKS_, int SHARES_>
struct wgrad_shape : wgrad_tile<BM_, BN_, 16, WARPS_M_ * WARPS_N_, BLOCKS_, SHARES_> {
	static const int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
	static const int TM = BM_ / WARPS_M_ / 4, TN = BN_ / WARPS_N_ / 8;

	template <class T> using sums = wgrad_ffma<wgrad_shape>;
};
typedef wgrad_shape<128, 128, 4, 2, 2, 1> w128x128;
typedef wgrad_shape<128, 64, 4, 1, 3, 1> w128x64;
typedef wgrad_shape<64, 64, 2, 1, 3, 2> w64x64;
typedef wgrad_shape<128, 32, 4, 1, 4, 1> w128x32;
typedef wgrad_shape<32, 64, 1, 1, 3, 4> w32x64;
typedef wgrad_shape<32, 32, 1, 1, 4, 4> w32x32;
typedef wgrad_shape<16, 32, 1, 1, 8, 2> w16x32;

struct choice {
	int shape, slices;
	double time;
};

/* Writes `shape` to *best if its estimated time is shorter. Chooses a number of slices that fill
 * the multiprocessors, but at most one slice for each four stages. */
template <class S>
void keep_faster(struct choice *best, int shape, int m, int n, long long pixels, double effort)
{
	const size_t stages = (size_t)(pixels + S::DEPTH - 1) / S::DEPTH,
		     max_slices = (stages + 3) / 4;
	const size_t blocks = (size_t)((m + S::BM - 1) / S::BM) * ((n + S::BN - 1) / S::BN);
	const size_t enough = (size_t)SUM_MULTIPROCESSORS * S::BLOCKS / blocks;
	const size_t slices = enough < 1 ? 1 : enough < max_slices ? enough : max_slices;
	const size_t depth = (stages + slices - 1) / slices * S::DEPTH;
	const double time = ffma_time<S>(blocks * slices, (double)depth, effort);

	if (best->slices == 0 || time < best->time)
		*best = {shape, (int)slices, time};
}

/* Returns the shape with the smallest estimated time, and its number of slices. */
struct choice choose_fp32_tile(int m, int n, long long pixels)
{
	struct choice best = {0, 0, 0};

	keep_faster<w128x128>(&best, 0, m, n, pixels, 1);
	keep_faster<w128x64>(&best, 1, m, n, pixels, 1.05);
	keep_faster<w64x64>(&best, 2, m, n, pixels, 1.1);
	keep_faster<w128x32>(&best, 3, m, n, pixels, 1.2);
	keep_faster<w32x64>(&best, 4, m, n, pixels, 1.2);
	keep_faster<w32x32>(&best, 5, m, n, pixels, 1.3);
	keep_faster<w16x32>(&best, 6, m, n, pixels, 1.7);
	return best;
}

} // namespace

int kx_product_slices_fp32(int m, int n, long long pixels)
{
	return choose_fp32_tile(m, n, pixels).slices;
}

int kx_product_wgrad_fp32(struct kx_product_wgrad g, cudaStream_t stream)
{
	switch (choose_fp32_tile(g.m, g.n, g.pixels).shape) {
	case 0:
		return launch_wgrad<float, w128x128>(g, stream);
	case 1:
		return launch_wgrad<float, w128x64>(g, stream);
	case 2:
		return launch_wgrad<float, w64x64>(g, stream);
	case 3:
		return launch_wgrad<float, w128x32>(g, stream);
	case 4:
		return launch_wgrad<float, w32x64>(g, stream);
	case 5:
		return launch_wgrad<float, w32x32>(g, stream);
	default:
		return launch_wgrad<float, w16x32>(g, stream);
	}
}
