/*
 * conv_wgrad.cu - wgrad of convolution and fc as implicit GEMM with split-K.
 *
 * A block computes 128 x 64 gradient values over its slice of the sum. The sum runs over tiles of
 * one position and 32 images. params.cu adds up the slices. Operand `a` has one more filter
 * position, whose inputs are all 1: it gives the bias gradient.
 */
#include "kernels/cuda/mma/gemm.cuh"

namespace
{

#define A_PITCH (KX_M_TILE + 8)
#define BN      64
#define B_PITCH (BN + 8)

struct wgrad_stage {
	float a[KX_K_TILE * A_PITCH];
	float b[KX_K_TILE * B_PITCH];
};

__device__ const float4 one_and_zeros = {1, 0, 0, 0};

/* The four neighbouring filter positions, k to k + 3, whose inputs a thread loads from every image.
 * `at`: the offset of position k in the image, in floats from the first input of the window. */
struct filter_column {
	int at;
	bool in, bias;
};

__device__ inline struct filter_column filter_column_at(const struct kx_conv_wgrad &g, int k)
{
	return {k / g.run_length * g.row + k % g.run_length, k < g.m, k == g.m};
}

__device__ inline void wgrad_load_stage(const struct kx_conv_wgrad &g, int tile, int image_tiles,
	struct filter_column col, int n0, struct wgrad_stage *s)
{
	const int tid = threadIdx.x, n = tid % 16 * 4;
	const struct kx_position position = g.positions[tile / image_tiles];
	const int image0 = tile % image_tiles * KX_K_TILE;
#pragma unroll
	for (int i = 0; i < KX_K_TILE / 4; i++) {
		int row = tid / 32 + 4 * i;
		bool in = image0 + row < g.images;
		const float *from = g.a;

		if (in && col.in)
			from = g.a + (size_t)(image0 + row) * g.a_image + position.a + col.at;
		if (col.bias)
			from = &one_and_zeros.x;
		copy_async(s->a + row * A_PITCH + tid % 32 * 4, from, in && (col.in || col.bias));
	}
#pragma unroll
	for (int i = 0; i < KX_K_TILE / 8; i++) {
		int row = tid / 16 + 8 * i;
		bool valid = image0 + row < g.images && n0 + n < g.n;

		copy_async(s->b + row * B_PITCH + n,
			valid ? g.b + (size_t)(image0 + row) * g.b_image + position.b + n0 + n
			      : g.b,
			valid);
	}
}

/* Returns the number of row tiles. The grid is row tiles x column tiles x slices. */
__host__ __device__ inline unsigned wgrad_row_tiles(const struct kx_conv_wgrad &g)
{
	return g.m / KX_M_TILE + 1;
}

__host__ __device__ inline unsigned wgrad_column_tiles(const struct kx_conv_wgrad &g)
{
	return (g.n + BN - 1) / BN;
}

/* Blocks below first_blocks compute `first`, all other blocks compute `second`. */
template <int P>
__global__ void __launch_bounds__(GEMM_THREADS)
	conv_wgrad_kernel(const __grid_constant__ struct kx_conv_wgrad first,
		const __grid_constant__ struct kx_conv_wgrad second, unsigned first_blocks)
{
	await_previous();
	const struct kx_conv_wgrad &g = blockIdx.x < first_blocks ? first : second;
	const unsigned block = blockIdx.x < first_blocks ? blockIdx.x : blockIdx.x - first_blocks;
	constexpr int MI = 4, NJ = 4;
	extern __shared__ __align__(16) unsigned char memory[];
	struct wgrad_stage *stage = reinterpret_cast<struct wgrad_stage *>(memory);
	const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
	const int warp_m = warp % 2 * 64, warp_n = warp / 2 * 32;
	const int m0 = block % wgrad_row_tiles(g) * KX_M_TILE;
	const int n0 = block / wgrad_row_tiles(g) % wgrad_column_tiles(g) * BN;
	const int slice = block / wgrad_row_tiles(g) / wgrad_column_tiles(g);
	const int image_tiles = (g.images + KX_K_TILE - 1) / KX_K_TILE;
	const long long all = (long long)image_tiles * g.n_positions;
	const int begin = (int)(all * slice / g.slices), end = (int)(all * (slice + 1) / g.slices);
	const struct filter_column col = filter_column_at(g, m0 + tid % 32 * 4);
	float c[MI][NJ][4] = {};

	for (int i = 0; i < GEMM_STAGES - 1; i++) {
		if (begin + i < end)
			wgrad_load_stage(g, begin + i, image_tiles, col, n0, &stage[i]);
		copies_commit();
	}
	for (int i = 0; i < end - begin; i++) {
		const struct wgrad_stage *s = &stage[i % GEMM_STAGES];
		const int next = i + GEMM_STAGES - 1;

		copies_wait<GEMM_STAGES - 2>();
		__syncthreads();
		if (begin + next < end)
			wgrad_load_stage(
				g, begin + next, image_tiles, col, n0, &stage[next % GEMM_STAGES]);
		copies_commit();
		struct tile_a<1, A_PITCH> a = {
			s->a + warp_m
		};
		stage_mma<P, KX_K_TILE>(c, a, s->b + warp_n, B_PITCH, lane);
	}
	float *d = g.workspace + KX_WGRAD_ROWS(g.m) * g.n * slice;
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

unsigned wgrad_blocks(const struct kx_conv_wgrad &g)
{
	return wgrad_row_tiles(g) * wgrad_column_tiles(g) * g.slices;
}

template <int P>
int wgrad_launch(struct kx_conv_wgrad first, struct kx_conv_wgrad second, cudaStream_t stream)
{
	const int bytes = GEMM_STAGES * (int)sizeof(struct wgrad_stage);
	const unsigned first_blocks = wgrad_blocks(first);

	if (cudaFuncSetAttribute(
		    conv_wgrad_kernel<P>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(conv_wgrad_kernel<P>, dim3(first_blocks + wgrad_blocks(second)),
		GEMM_THREADS, bytes, stream, first, second, first_blocks);
}

} // namespace

int kx_conv_wgrad(struct kx_conv_wgrad first, struct kx_conv_wgrad second, enum kx_math math,
	cudaStream_t stream)
{
	switch (math) {
	case KX_MATH_3XTF32:
		return wgrad_launch<KX_MATH_3XTF32>(first, second, stream);
	case KX_MATH_TF32:
		return wgrad_launch<KX_MATH_TF32>(first, second, stream);
	case KX_MATH_BF16:
		return wgrad_launch<KX_MATH_BF16>(first, second, stream);
	default:
		return wgrad_launch<KX_MATH_FFMA>(first, second, stream);
	}
}
