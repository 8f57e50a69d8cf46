/* product_fp32.cu - the products of product.cuh in fp32. */
#include "kernels/cuda/tensor/ffma.cuh"
#include "kernels/cuda/tensor/product.cuh"

namespace
{

template <bool DGRAD, class S> struct ffma_sums {
	typedef product_sizes<float, DGRAD, S> Z;
	static const int KV = S::TN == 8 ? 2 : 4; /* values of K that are loaded at a time */
	float c[S::TM][S::TN] = {};

	/* Returns column j of a thread. With B_LINES a column is a line of `b`. Without B_LINES,
	 * each four columns of a thread are neighbours, which the thread loads together. */
	__device__ static int column(const struct ffma_place &p, int j)
	{
		return p.n + (Z::B_LINES ? p.lane + 8 * j : p.lane * 4 + j / 4 * 32 + j % 4);
	}

	/* Values of K that do not exist are zeros. Multiplying them costs less than a branch, which
	 * would keep the compiler from loading values ahead. */
	__device__ void add_stage(const unsigned char *stage, int)
	{
		const struct ffma_place p = ffma_place_of<S>();
		const int depth = Z::BK / S::SHARES;
		const unsigned char *a = stage + p.m * S::PITCH, *b = stage + Z::A_BYTES;
#pragma unroll
		for (int i = 0; i < depth; i += KV) {
			const int k = p.share * depth + i;
			float x[S::TM][KV];

#pragma unroll
			for (int m = 0; m < S::TM; m++)
				load_values<KV>(x[m], a + 4 * m * S::PITCH + k * 4);
			if (Z::B_LINES) {
				float y[S::TN][KV];
#pragma unroll
				for (int n = 0; n < S::TN; n++)
					load_values<KV>(
						y[n], b + column(p, n) * Z::B_PITCH + k * 4);
#pragma unroll
				for (int j = 0; j < KV; j++)
#pragma unroll
					for (int m = 0; m < S::TM; m++)
#pragma unroll
						for (int n = 0; n < S::TN; n++)
							c[m][n] += x[m][j] * y[n][j];
			} else {
#pragma unroll
				for (int j = 0; j < KV; j++) {
					float y[S::TN];
#pragma unroll
					for (int n = 0; n < S::TN; n += 4)
						load_values<4>(y + n, b + (k + j) * Z::B_PITCH +
									      column(p, n) * 4);
#pragma unroll
					for (int m = 0; m < S::TM; m++)
#pragma unroll
						for (int n = 0; n < S::TN; n++)
							c[m][n] += x[m][j] * y[n];
				}
			}
		}
	}

	__device__ void wait()
	{
	}

	__device__ void store(float *sums) const
	{
		const struct ffma_place p = ffma_place_of<S>();

		sums += p.share * S::SUM_VALUES + p.m * S::SUM_PITCH;
#pragma unroll
		for (int m = 0; m < S::TM; m++)
#pragma unroll
			for (int n = 0; n < S::TN; n++)
				sums[4 * m * S::SUM_PITCH + column(p, n)] = c[m][n];
	}
};

/* WARPS_M x WARPS_N warps divide the tile. */
template <int BM_, int BN_, int ROW_, int STAGES_, int WARPS_M_, int WARPS_N_, int BLOCKS_,
	int SHARES_ = 1, bool SPLIT_ = false>
struct ffma_shape
    : tile_shape<BM_, BN_, ROW_, STAGES_, WARPS_M_ * WARPS_N_, BLOCKS_, SHARES_, SPLIT_> {
	static const int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
	static const int TM = BM_ / WARPS_M_ / 4, TN = BN_ / WARPS_N_ / 8;
	static const bool B_ACROSS = TN == 8; /* copying value by value is worth its cost only for
					       * large tiles */
	static const bool TF32 = false;

	template <class T, bool DGRAD> using sums = ffma_sums<DGRAD, ffma_shape>;
};
typedef ffma_shape<128, 128, 64, 3, 4, 2, 2> tile128x128;
typedef ffma_shape<128, 64, 64, 3, 4, 1, 3> tile128x64;
typedef ffma_shape<128, 32, 64, 3, 4, 1, 4> tile128x32;
typedef ffma_shape<64, 64, 64, 3, 2, 2, 4> tile64x64;
typedef ffma_shape<32, 32, 128, 3, 1, 1, 2, 8, true> tile32x32; /* blocks and warps divide K */
struct tile64x64_up : tile64x64 {
	static const bool UP = true;
};

template <class S> double product_time(const struct kx_product &g, double effort)
{
	const double depth = (double)g.window.size * g.window.size * g.window.c;
	const size_t blocks = product_blocks<S>(g);
	size_t slices = 1;

	while (S::SPLIT && slices < 8 && blocks * slices < 132)
		slices *= 2;
	return ffma_time<S>(blocks * slices, depth / (double)slices, effort);
}

/* Launches the shape with the smallest estimated time. */
template <bool DGRAD> int launch_fastest(const struct kx_product &g, cudaStream_t stream)
{
	const double time[] = {product_time<tile128x128>(g, 1), product_time<tile128x64>(g, 1.05),
		product_time<tile128x32>(g, 1.2), product_time<tile64x64>(g, 1.2),
		product_time<tile32x32>(g, 1.5)};
	int best = 0;

	if (DGRAD && g.window.up > 1)
		return launch_product<float, DGRAD, tile64x64_up>(g, stream);
	for (int i = 1; i < 5; i++)
		if (time[i] < time[best])
			best = i;
	switch (best) {
	case 0:
		return launch_product<float, DGRAD, tile128x128>(g, stream);
	case 1:
		return launch_product<float, DGRAD, tile128x64>(g, stream);
	case 2:
		return launch_product<float, DGRAD, tile128x32>(g, stream);
	case 3:
		return launch_product<float, DGRAD, tile64x64>(g, stream);
	default:
		return launch_split<float, DGRAD, tile32x32>(g, stream);
	}
}

} // namespace

int kx_product_fp32(struct kx_product g, cudaStream_t stream)
{
	return g.dgrad ? launch_fastest<true>(g, stream) : launch_fastest<false>(g, stream);
}
