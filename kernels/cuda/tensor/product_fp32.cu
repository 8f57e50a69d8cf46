/* product_fp32.cu - the products of product.cuh in fp32. */
#include "kernels/cuda/tensor/ffma.cuh"
#include "kernels/cuda/tensor/product.cuh"

namespace
{

template <bool DGRAD, class S> struct ffma_sums {
	typedef product_sizes<float, DGRAD, S> Z;
	/* number of values of K that are loaded at a time */
	static const int KV = S::TN == 8 ? 2 : 4;
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
	static const bool TF32 = false;

	template <class T, bool DGRAD> using sums = ffma_sums<DGRAD, ffma_shape>;
};
typedef ffma_shape<128, 128, 64, 3, 4, 2, 2> tile128x128;
typedef ffma_shape<128, 64, 64, 3, 4, 1, 3> tile128x64;
typedef ffma_shape<128, 32, 64, 3, 4, 1, 4> tile128x32;
typedef ffma_shape<64, 64, 64, 3, 2, 2, 4> tile64x64;
/* the blocks of a cluster divide K */
typedef ffma_shape<64, 64, 64, 3, 2, 2, 4, 1, true> tile64x64_split;
/* the blocks of a cluster and the warps of a block divide K */
typedef ffma_shape<32, 32, 128, 3, 1, 1, 2, 8, true> tile32x32;
struct tile64x64_up : tile64x64 {
	static const bool UP = true;
};

template <class S> double product_time(const struct kx_product &g, double effort)
{
	const double depth = (double)g.window.size * g.window.size * g.window.c;
	const int slices = S::SPLIT ? product_slices<float, S>(g) : 1;

	return ffma_time<S>(product_blocks<S>(g) * slices, depth / slices, effort);
}

/* The list begins with the shapes with 8 x 8 sums for each thread. For dgrad, these shapes read the
 * weights in the order of fprop: order_weights has transposed the weights into this order. */
enum { T128X128, T128X64, T128X32, T64X64, T32X32, T64X64_SPLIT };

/* Returns 1 if blocks of 64 x 64 that divide the depth are likely to be faster than the shape with
 * the smallest estimated time. In measurements of 48 products of fc layers on an H200, these blocks
 * were faster if two of them share a tile, or if all of them run at the same time. With up to 32
 * rows, at least half of each tile is padding. Such tiles were faster only if all blocks run at the
 * same time and the sum is short. */
int divides_depth(const struct kx_product &g)
{
	const int slices = product_slices<float, tile64x64_split>(g);
	const size_t blocks = product_blocks<tile64x64_split>(g) * slices;

	if (g.window.size > 1 || g.n <= 32 || slices == 1)
		return 0;
	if (g.rows <= 32)
		return blocks <= SUM_MULTIPROCESSORS && g.window.c <= 3200;
	return slices == 2 || blocks <= SUM_MULTIPROCESSORS;
}

/* Returns the shape that is probably the fastest. */
int fastest_tile(const struct kx_product &g)
{
	const double time[] = {product_time<tile128x128>(g, 1), product_time<tile128x64>(g, 1.05),
		product_time<tile128x32>(g, 1.2), product_time<tile64x64>(g, 1.2),
		product_time<tile32x32>(g, 1.5)};
	int best = 0;

	if (divides_depth(g))
		return T64X64_SPLIT;
	for (int i = 1; i < T64X64_SPLIT; i++)
		if (time[i] < time[best])
			best = i;
	return best;
}

template <bool DGRAD> int launch_small(const struct kx_product &g, int tile, cudaStream_t stream)
{
	switch (tile) {
	case T128X32:
		return launch_product<float, DGRAD, tile128x32>(g, stream);
	case T64X64:
		return launch_product<float, DGRAD, tile64x64>(g, stream);
	case T64X64_SPLIT:
		return launch_split<float, DGRAD, tile64x64_split>(g, stream);
	default:
		return launch_split<float, DGRAD, tile32x32>(g, stream);
	}
}

int launch_large(const struct kx_product &g, int tile, cudaStream_t stream)
{
	return tile == T128X128 ? launch_product<float, false, tile128x128>(g, stream)
				: launch_product<float, false, tile128x64>(g, stream);
}

#define SIDE 32 /* side of the squares that weights_kernel transposes */

/* Transposes the weights for dgrad into the order that fprop reads: row (tap, k) has the n weights
 * under the opposite tap. */
__global__ void __launch_bounds__(8 * SIDE)
	weights_kernel(const float *from, float *to, int taps, int n, int c, int pitch)
{
	__shared__ float square[SIDE][SIDE + 1];
	const int tap = blockIdx.z, lane = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
	const int n0 = blockIdx.x * SIDE, k0 = blockIdx.y * SIDE;

	await_previous();
	from += (size_t)(taps - 1 - tap) * n * pitch;
	to += (size_t)tap * c * n;
#pragma unroll
	for (int i = first; i < SIDE; i += 8)
		if (n0 + i < n && k0 + lane < c)
			square[i][lane] = from[(size_t)(n0 + i) * pitch + k0 + lane];
	__syncthreads();
#pragma unroll
	for (int i = first; i < SIDE; i += 8)
		if (k0 + i < c && n0 + lane < n)
			to[(size_t)(k0 + i) * n + n0 + lane] = square[lane][i];
}

/* Turns the dgrad `g` into a product with the layout of fprop: copies its weights, transposed, to
 * g->ordered. */
int order_weights(struct kx_product *g, cudaStream_t stream)
{
	const int taps = g->window.size * g->window.size, c = g->window.c;
	const float *from = static_cast<const float *>(g->b);
	const int pitch = g->pitch;

	g->dgrad = 0;
	g->b = g->ordered;
	g->b_rows = taps * c;
	g->pitch = g->n;
	return kx_launch(weights_kernel,
		dim3((g->n + SIDE - 1) / SIDE, (c + SIDE - 1) / SIDE, taps), 8 * SIDE, 0, stream,
		from, g->ordered, taps, g->n, c, pitch);
}

} // namespace

size_t kx_product_fp32_ordered(struct kx_windows dgrad, int n)
{
	return dgrad.up > 1 ? 0 : (size_t)dgrad.size * dgrad.size * dgrad.c * n;
}

int kx_product_fp32(struct kx_product g, cudaStream_t stream)
{
	const int tile = fastest_tile(g);

	if (g.dgrad && g.window.up > 1)
		return launch_product<float, true, tile64x64_up>(g, stream);
	if (tile > T128X64)
		return g.dgrad ? launch_small<true>(g, tile, stream)
			       : launch_small<false>(g, tile, stream);
	const int rc = g.dgrad ? order_weights(&g, stream) : PS_OK;
	return rc ? rc : launch_large(g, tile, stream);
}
