/* winograd_product.cu - the products of matrices of winograd.h, one for each of the 36 points. */
#include "kernels/cuda/tensor/ffma.cuh"
#include "kernels/cuda/tensor/winograd.h"
#include "kernels/cuda/tensor/winograd_tile.h"

namespace
{

#define DEPTH  16 /* number of values of K of a pipeline stage */
#define STAGES 3

/* A block of WARPS_M x WARPS_N warps computes BM x BN values of one point. */
template <int BM_, int BN_, int WARPS_M_, int WARPS_N_, int BLOCKS_> struct point_shape {
	static const int BM = BM_, BN = BN_, BLOCKS = BLOCKS_;
	static const int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
	static const int THREADS = 32 * WARPS_M * WARPS_N;
	static const int TM = BM / WARPS_M / 4, TN = BN / WARPS_N / 8;
};

/* A line of an operand in shared memory has the values for one k or, for A without ACROSS, the
 * values of one row. */
template <bool ACROSS, class S> struct point_sizes {
	static const int A_VECTORS = ACROSS ? S::BM / 4 : DEPTH / 4, B_VECTORS = S::BN / 4;
	static const int A_PITCH = A_VECTORS * 16 + 16, B_PITCH = B_VECTORS * 16 + 16;
	static const int A_PASSES = S::BM * DEPTH / 4 / S::THREADS;
	static const int B_PASSES = S::BN * DEPTH / 4 / S::THREADS;
	static const int A_BYTES = (ACROSS ? DEPTH : S::BM) * A_PITCH;
	static const int STAGE = A_BYTES + DEPTH * B_PITCH, BYTES = STAGES * STAGE;

	static_assert(A_PASSES * S::THREADS == S::BM * DEPTH / 4, "whole passes of A");
	static_assert(B_PASSES * S::THREADS == S::BN * DEPTH / 4, "and of B");
};

/* The tile of a block: the operands of its point, and its place in the result. */
struct point_tile {
	const float *a, *b;
	int m0, n0;
};

/* The place of a stage in the work of a block: its tile and its first value of K. */
struct stage_place {
	int m0, k0;
};

template <bool ACROSS, class S>
__device__ inline void load_points(const struct kx_points &g, const struct point_tile &t,
	const struct stage_place &p, unsigned char *stage)
{
	typedef point_sizes<ACROSS, S> Z;
#pragma unroll
	for (int i = 0; i < Z::A_PASSES; i++) {
		const int at = threadIdx.x + i * S::THREADS;
		const int line = at / Z::A_VECTORS, v = at % Z::A_VECTORS * 4;
		const int m = p.m0 + (ACROSS ? v : line), k = p.k0 + (ACROSS ? line : v);

		copy_async(stage + line * Z::A_PITCH + v * 4,
			t.a + (ACROSS ? (size_t)k * g.rows + m : (size_t)m * g.depth + k),
			m < g.rows && k < g.depth);
	}
	stage += Z::A_BYTES;
#pragma unroll
	for (int i = 0; i < Z::B_PASSES; i++) {
		const int at = threadIdx.x + i * S::THREADS;
		const int line = at / Z::B_VECTORS, v = at % Z::B_VECTORS * 4;
		const int n = t.n0 + v, k = p.k0 + line;

		copy_async(stage + line * Z::B_PITCH + v * 4, t.b + (size_t)k * g.n + n,
			n < g.n && k < g.depth);
	}
}

/* The sums of a thread: TM rows and TN columns. The columns are groups of four neighbours; with
 * ACROSS the rows are, too. */
template <bool ACROSS, class S> struct point_sums {
	typedef point_sizes<ACROSS, S> Z;
	/* number of values of K that are loaded at a time */
	static const int KV = ACROSS ? 1 : S::TN == 8 ? 2 : 4;
	float c[S::TM][S::TN];

	__device__ void clear()
	{
#pragma unroll
		for (int i = 0; i < S::TM * S::TN; i++)
			c[i / S::TN][i % S::TN] = 0;
	}

	__device__ static int row(const struct ffma_place &p, int i)
	{
		const int first = p.m - lane_row(threadIdx.x % 32);

		return ACROSS ? first + lane_row(threadIdx.x % 32) * 4 + i / 4 * 16 + i % 4
			      : p.m + 4 * i;
	}

	__device__ static int column(const struct ffma_place &p, int j)
	{
		return p.n + p.lane * 4 + j / 4 * 32 + j % 4;
	}

	__device__ void add_stage(const unsigned char *a)
	{
		const struct ffma_place p = ffma_place_of<S>();
		const unsigned char *b = a + Z::A_BYTES;
#pragma unroll
		for (int k = 0; k < DEPTH; k += KV) {
			float x[S::TM][KV];

			if (ACROSS) {
				float four[4];
#pragma unroll
				for (int m = 0; m < S::TM; m++) {
					if (m % 4 == 0)
						load_values<4>(
							four, a + k * Z::A_PITCH + row(p, m) * 4);
					x[m][0] = four[m % 4];
				}
			} else {
#pragma unroll
				for (int m = 0; m < S::TM; m++)
					load_values<KV == 1 ? 2 : KV>(
						x[m], a + row(p, m) * Z::A_PITCH + k * 4);
			}
#pragma unroll
			for (int j = 0; j < KV; j++) {
				float y[S::TN];
#pragma unroll
				for (int n = 0; n < S::TN; n += 4)
					load_values<4>(
						y + n, b + (k + j) * Z::B_PITCH + column(p, n) * 4);
#pragma unroll
				for (int m = 0; m < S::TM; m++)
#pragma unroll
					for (int n = 0; n < S::TN; n++)
						c[m][n] += x[m][j] * y[n];
			}
		}
	}

	__device__ void store(const struct kx_points &g, const struct point_tile &t, float *d) const
	{
		const struct ffma_place p = ffma_place_of<S>();
#pragma unroll
		for (int i = 0; i < S::TM; i++)
#pragma unroll
			for (int j = 0; j < S::TN; j += 4) {
				const int m = t.m0 + row(p, i), n = t.n0 + column(p, j);
				float4 v = {c[i][j], c[i][j + 1], c[i][j + 2], c[i][j + 3]};
				float4 *to = reinterpret_cast<float4 *>(d + (size_t)m * g.n + n);

				if (m >= g.rows || n >= g.n)
					continue;
				if (ACROSS && g.add)
					v = *to + v;
				*to = v;
			}
	}
};

template <class S> __device__ inline void stage_advance(struct stage_place *p, int end)
{
	p->k0 += DEPTH;
	if (p->k0 >= end) {
		p->k0 = 0;
		p->m0 += S::BM;
	}
}

/* The grid is (column tiles * groups of row tiles) x points x slices. A block computes the tiles of
 * its group one after the other: it loads the first stages of a tile while it computes the tile
 * before. With ACROSS a group has one tile. */
template <bool ACROSS, class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
	winograd_product_kernel(const __grid_constant__ struct kx_points g)
{
	typedef point_sizes<ACROSS, S> Z;
	extern __shared__ __align__(16) unsigned char memory[];
	const int columns = (g.n + S::BN - 1) / S::BN, group = ACROSS ? 1 : g.group;
	const size_t a = (size_t)g.rows * g.depth, b = (size_t)g.depth * g.n,
		     d = (size_t)g.rows * g.n;
	const long long all = (g.depth + DEPTH - 1) / DEPTH;
	const int begin = ACROSS ? (int)(all * blockIdx.z / g.slices) : 0;
	const int steps = ACROSS ? (int)(all * (blockIdx.z + 1) / g.slices) - begin : (int)all;
	const int end = (begin + steps) * DEPTH;
	struct point_tile t = {g.a + blockIdx.y * a, g.b + blockIdx.y * b,
		(int)blockIdx.x / columns * group * S::BM, (int)blockIdx.x % columns * S::BN};
	const int left = (g.rows - t.m0 + S::BM - 1) / S::BM, tiles = left < group ? left : group;
	float *to = g.d + (blockIdx.z * (size_t)KX_WINOGRAD_POINTS + blockIdx.y) * d;
	struct stage_place fetch = {t.m0, begin * DEPTH};
	struct point_sums<ACROSS, S> c;

	await_previous();
	for (int i = 0; i < STAGES - 1; i++) {
		if (i < tiles * steps)
			load_points<ACROSS, S>(g, t, fetch, memory + i * Z::STAGE);
		stage_advance<S>(&fetch, end);
		copies_commit();
	}
	for (int tile = 0, i = 0; tile < tiles; tile++, t.m0 += S::BM) {
		c.clear();
		for (int step = 0; step < steps; step++, i++) {
			const int next = i + STAGES - 1;

			copies_wait<STAGES - 2>();
			__syncthreads();
			if (next < tiles * steps)
				load_points<ACROSS, S>(
					g, t, fetch, memory + next % STAGES * Z::STAGE);
			stage_advance<S>(&fetch, end);
			copies_commit();
			c.add_stage(memory + i % STAGES * Z::STAGE);
		}
		c.store(g, t, to);
	}
	copies_wait<0>();
}

template <bool ACROSS, class S> int launch_points(const struct kx_points &g, cudaStream_t stream)
{
	const int bytes = point_sizes<ACROSS, S>::BYTES;
	const unsigned rows = (g.rows + S::BM - 1) / S::BM, columns = (g.n + S::BN - 1) / S::BN;
	const unsigned groups = (rows + g.group - 1) / g.group;

	if (cudaFuncSetAttribute(winograd_product_kernel<ACROSS, S>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(winograd_product_kernel<ACROSS, S>,
		dim3(groups * columns, KX_WINOGRAD_POINTS, (unsigned)g.slices), S::THREADS, bytes,
		stream, g);
}

typedef point_shape<128, 128, 4, 2, 2> p128x128;
typedef point_shape<128, 64, 4, 1, 3> p128x64;
typedef point_shape<128, 32, 4, 1, 4> p128x32;
typedef point_shape<64, 64, 2, 2, 4> p64x64;
typedef point_shape<32, 64, 1, 2, 8> p32x64;
typedef point_shape<64, 32, 2, 1, 8> p64x32;
typedef point_shape<32, 32, 1, 1, 16> p32x32;

template <class S> size_t block_tiles(int rows, int n)
{
	return (size_t)((rows + S::BM - 1) / S::BM) * ((n + S::BN - 1) / S::BN);
}

/* Launches a product with groups of row tiles. A group is as large as possible while the launch
 * still has several rounds of blocks. */
template <class S> int launch_groups(struct kx_points g, cudaStream_t stream)
{
	const size_t enough = kx_multiprocessors() * S::BLOCKS * 4;
	const size_t blocks = KX_WINOGRAD_POINTS * block_tiles<S>(g.rows, g.n);

	g.slices = 1;
	g.group = 1;
	while (g.group < 8 && blocks / (2 * (size_t)g.group) >= enough)
		g.group *= 2;
	return launch_points<false, S>(g, stream);
}

template <class S> double points_time(const struct kx_points &g, double effort)
{
	return ffma_time<S>(KX_WINOGRAD_POINTS * block_tiles<S>(g.rows, g.n), g.depth, effort);
}

/* A shape for sums over tiles, and the number of slices that this shape uses if the sum is long. */
struct across {
	int shape;
	size_t slices;
	double work;
};

template <class S> void keep_smaller(struct across *best, int shape, int m, int n, double effort)
{
	const size_t blocks = KX_WINOGRAD_POINTS * block_tiles<S>(m, n);
	const size_t slices = (size_t)SUM_MULTIPROCESSORS * S::BLOCKS / blocks;
	const double work = (double)blocks * S::BM * S::BN * effort;

	if (best->slices == 0 || work < best->work)
		*best = {shape, slices ? slices : 1, work};
}

/* Returns the shape with the least work. The shape depends neither on the GPU nor on the length of
 * the sum, so that a longer sum never has fewer slices. */
struct across choose_across(int m, int n)
{
	struct across best = {0, 0, 0};

	keep_smaller<p128x128>(&best, 0, m, n, 1);
	keep_smaller<p128x64>(&best, 1, m, n, 1.05);
	keep_smaller<p64x64>(&best, 2, m, n, 1.1);
	keep_smaller<p64x32>(&best, 3, m, n, 1.25);
	keep_smaller<p32x64>(&best, 4, m, n, 1.25);
	keep_smaller<p32x32>(&best, 5, m, n, 1.4);
	return best;
}

} // namespace

int kx_winograd_product(struct kx_points g, cudaStream_t stream)
{
	const double time[] = {points_time<p128x128>(g, 1.25), points_time<p128x64>(g, 1.15),
		points_time<p128x32>(g, 1.2), points_time<p64x64>(g, 1)};
	int best = 0;

	for (int i = 1; i < 4; i++)
		if (time[i] < time[best])
			best = i;
	switch (best) {
	case 0:
		return launch_groups<p128x128>(g, stream);
	case 1:
		return launch_groups<p128x64>(g, stream);
	case 2:
		return launch_groups<p128x32>(g, stream);
	default:
		return launch_groups<p64x64>(g, stream);
	}
}

int kx_winograd_slices(int rows, int n, size_t depth)
{
	const size_t slices = choose_across(rows, n).slices;
	/* at most one slice for each four stages */
	const size_t max = (depth + 4 * DEPTH - 1) / (4 * DEPTH);

	return (int)(slices < max ? slices : max);
}

int kx_winograd_product_across(struct kx_points g, cudaStream_t stream)
{
	g.group = 1;
	switch (choose_across(g.rows, g.n).shape) {
	case 0:
		return launch_points<true, p128x128>(g, stream);
	case 1:
		return launch_points<true, p128x64>(g, stream);
	case 2:
		return launch_points<true, p64x64>(g, stream);
	case 3:
		return launch_points<true, p64x32>(g, stream);
	case 4:
		return launch_points<true, p32x64>(g, stream);
	default:
		return launch_points<true, p32x32>(g, stream);
	}
}
