/*
 * conv_fprop_dgrad.cu - products whose rows are images: forward and the errors of the input, for
 * convolution and fc.
 *
 * A block computes BM images x BN columns of one cell; small tiles where large ones would leave
 * multiprocessors idle. Rows are images, not positions: a cell sums
 * over exactly the taps that it has, so neither padding nor stride costs a product.
 */
#include "kernels/cuda/mma/gemm.cuh"

/* Where a thread's next k lies: tap number and rest. */
struct place {
	int tap, rest;
};

__device__ static inline struct place place_at(int k, int run)
{
	return {k / run, k % run};
}

__device__ static inline void place_advance(struct place *p, int step, int run)
{
	for (p->rest += step; p->rest >= run; p->rest -= run)
		p->tap++;
}

/* A block's tile and a stage's depth; a warp's share of it in tiles of 16 x 8: WARPS_M x WARPS_N
 * warps side by side, and WARPS_K that share the depth and add up at the end. */
template <int BM_, int BN_, int K_, int WARPS_M_, int WARPS_N_, int WARPS_K_, int STAGES_>
struct shape {
	static const int BM = BM_, BN = BN_, K = K_, STAGES = STAGES_;
	static const int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, WARPS_K = WARPS_K_;
	static const int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
	static const int MI = BM / WARPS_M / 16, NJ = BN / WARPS_N / 8, DEPTH = K / WARPS_K;
	static const int A_PITCH = K + 4, B_PITCH = BN + 8;
	static const int A_VECTORS = K / 4, A_ROWS = THREADS / A_VECTORS;
	static const int B_VECTORS = BN / 4, B_ROWS = THREADS / B_VECTORS, B_PASSES = K / B_ROWS;
};
typedef shape<128, 64, 32, 2, 2, 1, 3> wide;
typedef shape<128, 32, 32, 4, 1, 1, 3> narrow;
typedef shape<64, 64, 64, 2, 2, 2, 3> medium;
typedef shape<32, 32, 128, 1, 1, 8, 3> small;

template <class S> struct rows_stage {
	float a[S::BM * S::A_PITCH];
	float b[S::K * S::B_PITCH];
};

template <class S> struct rows_loader {
	struct place a, b[S::B_PASSES];
};

template <class S>
__device__ static inline void rows_load(const struct kx_rows &g, const struct kx_cell &cell,
	struct rows_loader<S> *l, struct rows_stage<S> *s, int m0, int n0)
{
	const int tid = threadIdx.x, column = tid % S::A_VECTORS * 4;
	const struct kx_tap *taps = g.taps + cell.tap;
	bool in = l->a.tap < cell.n_taps;
	const float *from = g.a + (in ? taps[l->a.tap].a + l->a.rest : 0);
#pragma unroll
	for (int i = 0; i < S::BM / S::A_ROWS; i++) {
		int row = tid / S::A_VECTORS + S::A_ROWS * i;
		bool valid = in && m0 + row < g.images;
		copy_ahead(s->a + row * S::A_PITCH + column,
			valid ? from + (size_t)(m0 + row) * g.a_image : g.a, valid);
	}
	place_advance(&l->a, S::K, g.run);
	const int n = tid % S::B_VECTORS * 4;
#pragma unroll
	for (int i = 0; i < S::B_PASSES; i++) {
		struct place *p = &l->b[i];
		bool valid = p->tap < cell.n_taps && n0 + n < g.n;
		size_t row = valid ? taps[p->tap].b + p->rest : 0;
		copy_ahead(s->b + (tid / S::B_VECTORS + S::B_ROWS * i) * S::B_PITCH + n,
			g.b + row * g.n + (valid ? n0 + n : 0), valid);
		place_advance(p, S::K, g.run);
	}
	copies_commit();
}

template <int MI, int NJ>
__device__ static inline void rows_store(const struct kx_rows &g, const struct kx_cell &cell,
	const float (&c)[MI][NJ][4], int m, int n)
{
#pragma unroll
	for (int i = 0; i < 2 * MI; i++) {
		int image = m + 8 * i;
		if (image >= g.images)
			continue;
		size_t row = image * g.d_image + cell.out;
#pragma unroll
		for (int j = 0; j < NJ; j++) {
			int column = n + 8 * j;
			if (column >= g.n)
				continue;
			float2 v = {c[i / 2][j][i % 2 * 2], c[i / 2][j][i % 2 * 2 + 1]};
			if (g.bias) {
				v.x += g.bias[column];
				v.y += g.bias[column + 1];
			}
			if (g.relu) {
				v.x = v.x < 0 ? 0 : v.x;
				v.y = v.y < 0 ? 0 : v.y;
			}
			if (g.mask) {
				v.x = g.mask[row + column] > 0 ? v.x : 0;
				v.y = g.mask[row + column + 1] > 0 ? v.y : 0;
			}
			*reinterpret_cast<float2 *>(g.d + row + column) = v;
		}
	}
}

/* The warps' shares of the depth added up, in their order, by the first of them; `tile`: of the
 * warps with the same share, which. */
template <class S>
__device__ static inline void add_shares(
	float (&c)[S::MI][S::NJ][4], float4 *shared, int share, int tile)
{
	const int n = S::MI * S::NJ, next = S::WARPS_M * S::WARPS_N * n * 32;
	float4 *mine = shared + tile * n * 32 + threadIdx.x % 32;
	copies_wait<0>(); /* those behind the end write zeros */
	__syncthreads();
#pragma unroll
	for (int i = 0; i < n && share > 0; i++) {
		const float *v = c[i / S::NJ][i % S::NJ];
		mine[(share - 1) * next + i * 32] = {v[0], v[1], v[2], v[3]};
	}
	__syncthreads();
	for (int k = 0; k < S::WARPS_K - 1 && share == 0; k++)
#pragma unroll
		for (int i = 0; i < n; i++) {
			const float4 v = mine[k * next + i * 32];
			float *sum = c[i / S::NJ][i % S::NJ];
			sum[0] += v.x;
			sum[1] += v.y;
			sum[2] += v.z;
			sum[3] += v.w;
		}
}

template <int P, class S>
__global__ void __launch_bounds__(S::THREADS) rows_kernel(struct kx_rows g)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct rows_stage<S> *stage = reinterpret_cast<struct rows_stage<S> *>(memory);
	const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
	const int warp_m = warp % S::WARPS_M * 16 * S::MI;
	const int warp_n = warp / S::WARPS_M % S::WARPS_N * 8 * S::NJ;
	const int tile = warp % (S::WARPS_M * S::WARPS_N);
	const int share = warp / (S::WARPS_M * S::WARPS_N), k = share * S::DEPTH;
	const int m0 = blockIdx.x / g.n_cells * S::BM, n0 = blockIdx.y * S::BN;
	struct rows_loader<S> l;
	float c[S::MI][S::NJ][4] = {};

	await_previous();
	const struct kx_cell cell = g.cells[blockIdx.x % g.n_cells];
	const int tiles = (cell.n_taps * g.run + S::K - 1) / S::K;
	l.a = place_at(tid % S::A_VECTORS * 4, g.run);
#pragma unroll
	for (int i = 0; i < S::B_PASSES; i++)
		l.b[i] = place_at(tid / S::B_VECTORS + S::B_ROWS * i, g.run);
	for (int i = 0; i < S::STAGES - 1; i++)
		rows_load(g, cell, &l, &stage[i], m0, n0);
	for (int i = 0; i < tiles; i++) {
		struct rows_stage<S> *s = &stage[i % S::STAGES];
		copies_wait<S::STAGES - 2>();
		__syncthreads();
		rows_load(g, cell, &l, &stage[(i + S::STAGES - 1) % S::STAGES], m0, n0);
		struct tile_a<S::A_PITCH, 1> a = {
			s->a + warp_m *S::A_PITCH + k
		};
		stage_product<P, S::DEPTH>(c, a, s->b + k * S::B_PITCH + warp_n, S::B_PITCH, lane);
	}
	if (S::WARPS_K > 1)
		add_shares<S>(c, reinterpret_cast<float4 *>(memory), share, tile);
	if (share == 0)
		rows_store(g, cell, c, m0 + warp_m + lane / 4, n0 + warp_n + lane % 4 * 2);
}

template <class S> static size_t rows_blocks(const struct kx_rows &g)
{
	return (size_t)g.n_cells * ((g.images + S::BM - 1) / S::BM) * ((g.n + S::BN - 1) / S::BN);
}

template <int P, class S> static int rows_launch(struct kx_rows g, cudaStream_t stream)
{
	const int bytes = S::STAGES * (int)sizeof(struct rows_stage<S>);
	if (cudaFuncSetAttribute(
		    rows_kernel<P, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	dim3 grid(
		(unsigned)g.n_cells * ((g.images + S::BM - 1) / S::BM), (g.n + S::BN - 1) / S::BN);
	return kx_launch(rows_kernel<P, S>, grid, S::THREADS, bytes, stream, g);
}

template <int P> static int rows_shaped(struct kx_rows g, cudaStream_t stream)
{
	const size_t enough = 132; /* blocks: one for each multiprocessor */
	if (g.n <= narrow::BN && rows_blocks<narrow>(g) >= enough)
		return rows_launch<P, narrow>(g, stream);
	if (rows_blocks<wide>(g) >= 2 * enough)
		return rows_launch<P, wide>(g, stream);
	return rows_blocks<medium>(g) >= enough ? rows_launch<P, medium>(g, stream)
						: rows_launch<P, small>(g, stream);
}

int kx_rows(struct kx_rows g, enum kx_product by, cudaStream_t stream)
{
	switch (by) {
	case KX_SPLIT:
		return rows_shaped<KX_SPLIT>(g, stream);
	case KX_BY_TF32:
		return rows_shaped<KX_BY_TF32>(g, stream);
	case KX_BY_BF16:
		return rows_shaped<KX_BY_BF16>(g, stream);
	default:
		return rows_shaped<KX_FFMA>(g, stream);
	}
}
