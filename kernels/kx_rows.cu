/*
 * kx_rows.cu - products whose rows are images: forward and the errors of the input, for
 * convolution and fc.
 *
 * A block computes BM images x BN columns of one cell; small tiles where large ones would leave
 * multiprocessors idle. Rows are images, not positions: a cell sums
 * over exactly the taps that it has, so neither padding nor stride costs a product.
 */
#include "kernels/kx_gemm.cuh"

#define A_PITCH (KX_K_TILE + 4)

/* Where a thread's next k lies: tap number and rest. */
struct place {
	int tap, rest;
};

__device__ static inline struct place place_at(int k, int run)
{
	return {k / run, k % run};
}

__device__ static inline void place_advance(struct place *p, int run)
{
	for (p->rest += KX_K_TILE; p->rest >= run; p->rest -= run)
		p->tap++;
}

/* A block's tile, and a warp's share of it in tiles of 16 x 8: WARPS_M warps one below the other.
 */
template <int BM_, int BN_, int WARPS_M_> struct shape {
	static const int BM = BM_, BN = BN_, WARPS_M = WARPS_M_;
	static const int MI = BM / WARPS_M / 16, NJ = BN / (4 / WARPS_M) / 8;
	static const int STAGES = BM == 128 ? 3 : 5;
	static const int B_VECTORS = BN / 4, B_ROWS = GEMM_THREADS / B_VECTORS;
	static const int B_PASSES = KX_K_TILE / B_ROWS;
};
typedef shape<128, 64, 2> wide;
typedef shape<128, 32, 4> narrow;
typedef shape<32, 32, 2> small;

template <class S> struct rows_stage {
	float a[S::BM * A_PITCH];
	float b[KX_K_TILE * (S::BN + 8)];
};

template <class S> struct rows_loader {
	struct place a, b[S::B_PASSES];
};

template <class S>
__device__ static inline void rows_load(const struct kx_rows &g, const struct kx_cell &cell,
	struct rows_loader<S> *l, struct rows_stage<S> *s, int m0, int n0)
{
	const int tid = threadIdx.x, column = tid % 8 * 4;
	const struct kx_tap *taps = g.taps + cell.tap;
	bool in = l->a.tap < cell.n_taps;
	const float *from = g.a + (in ? taps[l->a.tap].a + l->a.rest : 0);
#pragma unroll
	for (int i = 0; i < S::BM / 16; i++) {
		int row = tid / 8 + 16 * i;
		bool valid = in && m0 + row < g.images;
		copy_ahead(s->a + row * A_PITCH + column,
			valid ? from + (size_t)(m0 + row) * g.a_image : g.a, valid);
	}
	place_advance(&l->a, g.run);
	const int n = tid % S::B_VECTORS * 4;
#pragma unroll
	for (int i = 0; i < S::B_PASSES; i++) {
		struct place *p = &l->b[i];
		bool valid = p->tap < cell.n_taps && n0 + n < g.n;
		size_t row = valid ? taps[p->tap].b + p->rest : 0;
		copy_ahead(s->b + (tid / S::B_VECTORS + S::B_ROWS * i) * (S::BN + 8) + n,
			g.b + row * g.n + (valid ? n0 + n : 0), valid);
		place_advance(p, g.run);
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

template <int P, class S>
__global__ void __launch_bounds__(GEMM_THREADS) rows_kernel(struct kx_rows g)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct rows_stage<S> *stage = reinterpret_cast<struct rows_stage<S> *>(memory);
	const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
	const int warp_m = warp % S::WARPS_M * 16 * S::MI, warp_n = warp / S::WARPS_M * 8 * S::NJ;
	const int m0 = blockIdx.x / g.n_cells * S::BM, n0 = blockIdx.y * S::BN;
	struct rows_loader<S> l;
	float c[S::MI][S::NJ][4] = {};

	await_previous();
	const struct kx_cell cell = g.cells[blockIdx.x % g.n_cells];
	const int tiles = (cell.n_taps * g.run + KX_K_TILE - 1) / KX_K_TILE;
	l.a = place_at(tid % 8 * 4, g.run);
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
		struct tile_a<A_PITCH, 1> a = {
			s->a + warp_m *A_PITCH
		};
		stage_product<P>(c, a, s->b + warp_n, S::BN + 8, lane);
	}
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
	return kx_launch(rows_kernel<P, S>, grid, GEMM_THREADS, bytes, stream, g);
}

template <int P> static int rows_shaped(struct kx_rows g, cudaStream_t stream)
{
	const size_t few = 100; /* blocks, for 132 multiprocessors */
	if (rows_blocks<wide>(g) < few)
		return rows_launch<P, small>(g, stream);
	return g.n <= 32 ? rows_launch<P, narrow>(g, stream) : rows_launch<P, wide>(g, stream);
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
