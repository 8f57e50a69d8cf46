/*
 * conv_wgrad.cu - products that sum over images: weight gradients, of convolution and fc.
 *
 * A block computes 128 x 64 values over its share of (spot, 32 images) tiles; params.cu adds the
 * shares up. The row behind the last is a row of ones in a: the bias gradient.
 */
#include "kernels/cuda/mma/gemm.cuh"

#define A_PITCH (KX_ROW_TILE + 8)
#define BN      64
#define B_PITCH (BN + 8)

struct outer_stage {
	float a[KX_K_TILE * A_PITCH];
	float b[KX_K_TILE * B_PITCH];
};

__device__ const float4 one_and_zeros = {1, 0, 0, 0};

/* What a thread loads of each row of a. */
struct column {
	int at;
	bool in, ones;
};

__device__ static inline struct column column_at(const struct kx_outer &g, int k)
{
	return {k / g.run * g.row + k % g.run, k < g.m, k == g.m};
}

__device__ static inline void outer_load(const struct kx_outer &g, int tile, int image_tiles,
	struct column col, int n0, struct outer_stage *s)
{
	const int tid = threadIdx.x, n = tid % 16 * 4;
	const struct kx_spot spot = g.spots[tile / image_tiles];
	const int image0 = tile % image_tiles * KX_K_TILE;
#pragma unroll
	for (int i = 0; i < KX_K_TILE / 4; i++) {
		int row = tid / 32 + 4 * i;
		bool in = image0 + row < g.images;
		const float *from = g.a;
		if (in && col.in)
			from = g.a + (size_t)(image0 + row) * g.a_image + spot.a + col.at;
		if (col.ones)
			from = &one_and_zeros.x;
		copy_ahead(s->a + row * A_PITCH + tid % 32 * 4, from, in && (col.in || col.ones));
	}
#pragma unroll
	for (int i = 0; i < KX_K_TILE / 8; i++) {
		int row = tid / 16 + 8 * i;
		bool valid = image0 + row < g.images && n0 + n < g.n;
		copy_ahead(s->b + row * B_PITCH + n,
			valid ? g.b + (size_t)(image0 + row) * g.b_image + spot.b + n0 + n : g.b,
			valid);
	}
}

/* Blocks: columns' tiles, rows' tiles, splits. */
__host__ __device__ static inline unsigned row_tiles(const struct kx_outer &g)
{
	return g.m / KX_ROW_TILE + 1;
}

__host__ __device__ static inline unsigned column_tiles(const struct kx_outer &g)
{
	return (g.n + BN - 1) / BN;
}

/* `first`'s blocks, then those of `second`. */
template <int P>
__global__ void __launch_bounds__(GEMM_THREADS)
	outer_kernel(const __grid_constant__ struct kx_outer first,
		const __grid_constant__ struct kx_outer second, unsigned firsts)
{
	await_previous();
	const struct kx_outer &g = blockIdx.x < firsts ? first : second;
	const unsigned block = blockIdx.x < firsts ? blockIdx.x : blockIdx.x - firsts;
	constexpr int MI = 4, NJ = 4;
	extern __shared__ __align__(16) unsigned char memory[];
	struct outer_stage *stage = reinterpret_cast<struct outer_stage *>(memory);
	const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
	const int warp_m = warp % 2 * 64, warp_n = warp / 2 * 32;
	const int m0 = block % row_tiles(g) * KX_ROW_TILE;
	const int n0 = block / row_tiles(g) % column_tiles(g) * BN;
	const int split = block / row_tiles(g) / column_tiles(g);
	const int image_tiles = (g.images + KX_K_TILE - 1) / KX_K_TILE;
	const long long all = (long long)image_tiles * g.n_spots;
	const int begin = (int)(all * split / g.splits), end = (int)(all * (split + 1) / g.splits);
	const struct column col = column_at(g, m0 + tid % 32 * 4);
	float c[MI][NJ][4] = {};

	for (int i = 0; i < GEMM_STAGES - 1; i++) {
		if (begin + i < end)
			outer_load(g, begin + i, image_tiles, col, n0, &stage[i]);
		copies_commit();
	}
	for (int i = 0; i < end - begin; i++) {
		const struct outer_stage *s = &stage[i % GEMM_STAGES];
		const int next = i + GEMM_STAGES - 1;
		copies_wait<GEMM_STAGES - 2>();
		__syncthreads();
		if (begin + next < end)
			outer_load(
				g, begin + next, image_tiles, col, n0, &stage[next % GEMM_STAGES]);
		copies_commit();
		struct tile_a<1, A_PITCH> a = {
			s->a + warp_m
		};
		stage_product<P, KX_K_TILE>(c, a, s->b + warp_n, B_PITCH, lane);
	}
	float *d = g.partial + KX_OUTER_ROWS(g.m) * g.n * split;
#pragma unroll
	for (int i = 0; i < 2 * MI; i++)
#pragma unroll
		for (int j = 0; j < NJ; j++) {
			int m = m0 + warp_m + lane / 4 + 8 * i;
			int n = n0 + warp_n + lane % 4 * 2 + 8 * j;
			float2 v = {c[i / 2][j][i % 2 * 2], c[i / 2][j][i % 2 * 2 + 1]};
			if (m <= g.m && n < g.n)
				*reinterpret_cast<float2 *>(d + (size_t)m * g.n + n) = v;
		}
}

static unsigned blocks_of(const struct kx_outer &g)
{
	return row_tiles(g) * column_tiles(g) * g.splits;
}

template <int P>
static int outer_launch(struct kx_outer first, struct kx_outer second, cudaStream_t stream)
{
	const int bytes = GEMM_STAGES * (int)sizeof(struct outer_stage);
	const unsigned firsts = blocks_of(first);
	if (cudaFuncSetAttribute(
		    outer_kernel<P>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(outer_kernel<P>, dim3(firsts + blocks_of(second)), GEMM_THREADS, bytes,
		stream, first, second, firsts);
}

int kx_outer(struct kx_outer first, struct kx_outer second, enum kx_product by, cudaStream_t stream)
{
	switch (by) {
	case KX_SPLIT:
		return outer_launch<KX_SPLIT>(first, second, stream);
	case KX_BY_TF32:
		return outer_launch<KX_BY_TF32>(first, second, stream);
	case KX_BY_BF16:
		return outer_launch<KX_BY_BF16>(first, second, stream);
	default:
		return outer_launch<KX_FFMA>(first, second, stream);
	}
}
