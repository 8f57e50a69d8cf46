/*
 * conv_fprop_dgrad.cu - fprop and dgrad of convolution and fc as implicit GEMM.
 *
 * A block computes BM images x BN columns of one output pixel. The rows of the GEMM are images, not
 * positions. In dgrad an output pixel sums over exactly the filter taps that exist for it, so
 * padding and stride cost no products. In fprop the taps on the padding multiply its zeros. A
 * launch uses smaller tiles if large ones would leave multiprocessors idle.
 */
#include "kernels/cuda/mma/gemm.cuh"

namespace
{

/* The position of the next k that the thread loads: a K run and an offset in it. */
struct k_cursor {
	int run, offset;
};

__device__ inline struct k_cursor k_cursor_at(int k, int run_length)
{
	return {k / run_length, k % run_length};
}

__device__ inline void k_cursor_advance(struct k_cursor *p, int step, int run_length)
{
	for (p->offset += step; p->offset >= run_length; p->offset -= run_length)
		p->run++;
}

/* A block computes a tile of BM x BN with stages of depth K. WARPS_M x WARPS_N warps divide the
 * tile. WARPS_K warps divide the depth and add up their sums at the end. A warp computes MI x NJ
 * tiles of 16 x 8. */
template <int BM_, int BN_, int K_, int WARPS_M_, int WARPS_N_, int WARPS_K_, int STAGES_>
struct tile_shape {
	static const int BM = BM_, BN = BN_, K = K_, STAGES = STAGES_;
	static const int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, WARPS_K = WARPS_K_;
	static const int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
	static const int MI = BM / WARPS_M / 16, NJ = BN / WARPS_N / 8, DEPTH = K / WARPS_K;
	static const int A_PITCH = K + 4, B_PITCH = BN + 8;
	static const int A_VECTORS = K / 4, A_ROWS = THREADS / A_VECTORS;
	static const int B_VECTORS = BN / 4, B_ROWS = THREADS / B_VECTORS, B_PASSES = K / B_ROWS;
};
typedef tile_shape<128, 64, 32, 2, 2, 1, 3> wide;
typedef tile_shape<128, 32, 32, 4, 1, 1, 3> narrow;
typedef tile_shape<64, 64, 64, 2, 2, 2, 3> medium;
typedef tile_shape<32, 32, 128, 1, 1, 8, 3> small;
/* the same tiles for GPUs with 99 KB of shared memory per block */
typedef tile_shape<64, 64, 64, 2, 2, 2, 2> medium_99k;
typedef tile_shape<32, 32, 128, 1, 1, 8, 2> small_99k;

template <class S> struct conv_stage {
	float a[S::BM * S::A_PITCH];
	float b[S::K * S::B_PITCH];
};

template <class S> struct conv_loader {
	struct k_cursor a, b[S::B_PASSES];
};

template <class S>
__device__ inline void conv_load_stage(const struct kx_conv &g, const struct kx_pixel &pixel,
	struct conv_loader<S> *l, struct conv_stage<S> *s, int m0, int n0)
{
	const int tid = threadIdx.x, column = tid % S::A_VECTORS * 4;
	const struct kx_k_run *k_runs = g.k_runs + pixel.k_run;
	bool valid_k = l->a.run < pixel.n_k_runs;
	const float *from = g.a + (valid_k ? k_runs[l->a.run].a + l->a.offset : 0);
#pragma unroll
	for (int i = 0; i < S::BM / S::A_ROWS; i++) {
		int row = tid / S::A_VECTORS + S::A_ROWS * i;
		bool valid = valid_k && m0 + row < g.images;

		copy_async(s->a + row * S::A_PITCH + column,
			valid ? from + (size_t)(m0 + row) * g.a_image : g.a, valid);
	}
	k_cursor_advance(&l->a, S::K, g.run_length);
	const int n = tid % S::B_VECTORS * 4;
#pragma unroll
	for (int i = 0; i < S::B_PASSES; i++) {
		struct k_cursor *p = &l->b[i];
		bool valid = p->run < pixel.n_k_runs && n0 + n < g.n;
		size_t row = valid ? k_runs[p->run].b + p->offset : 0;

		copy_async(s->b + (tid / S::B_VECTORS + S::B_ROWS * i) * S::B_PITCH + n,
			g.b + row * g.n + (valid ? n0 + n : 0), valid);
		k_cursor_advance(p, S::K, g.run_length);
	}
	copies_commit();
}

template <int MI, int NJ>
__device__ inline void conv_store(const struct kx_conv &g, const struct kx_pixel &pixel,
	const float (&c)[MI][NJ][4], int m, int n)
{
#pragma unroll
	for (int i = 0; i < 2 * MI; i++) {
		int image = m + 8 * i;

		if (image >= g.images)
			continue;
		size_t row = image * g.d_image + pixel.out;
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

/* WARPS_K warps, one for each share of the depth, have sums for the same part of the tile. The warp
 * of share 0 adds up these sums, in the order of the shares. `tile` is the number of this part. */
template <class S>
__device__ inline void add_k_shares(
	float (&c)[S::MI][S::NJ][4], float4 *shared, int share, int tile)
{
	const int n = S::MI * S::NJ, next = S::WARPS_M * S::WARPS_N * n * 32;
	float4 *mine = shared + tile * n * 32 + threadIdx.x % 32;

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
__global__ void __launch_bounds__(S::THREADS) conv_fprop_dgrad_kernel(struct kx_conv g)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct conv_stage<S> *stage = reinterpret_cast<struct conv_stage<S> *>(memory);
	const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
	const int warp_m = warp % S::WARPS_M * 16 * S::MI;
	const int warp_n = warp / S::WARPS_M % S::WARPS_N * 8 * S::NJ;
	const int tile = warp % (S::WARPS_M * S::WARPS_N);
	const int share = warp / (S::WARPS_M * S::WARPS_N), k = share * S::DEPTH;
	const int m0 = blockIdx.x / g.n_pixels * S::BM, n0 = blockIdx.y * S::BN;
	struct conv_loader<S> l;
	float c[S::MI][S::NJ][4] = {};

	await_previous();
	const struct kx_pixel pixel = g.pixels[blockIdx.x % g.n_pixels];
	const int tiles = (pixel.n_k_runs * g.run_length + S::K - 1) / S::K;
	l.a = k_cursor_at(tid % S::A_VECTORS * 4, g.run_length);
#pragma unroll
	for (int i = 0; i < S::B_PASSES; i++)
		l.b[i] = k_cursor_at(tid / S::B_VECTORS + S::B_ROWS * i, g.run_length);
	for (int i = 0; i < S::STAGES - 1; i++)
		conv_load_stage(g, pixel, &l, &stage[i], m0, n0);
	for (int i = 0; i < tiles; i++) {
		struct conv_stage<S> *s = &stage[i % S::STAGES];

		copies_wait<S::STAGES - 2>();
		__syncthreads();
		conv_load_stage(g, pixel, &l, &stage[(i + S::STAGES - 1) % S::STAGES], m0, n0);
		struct tile_a<S::A_PITCH, 1> a = {
			s->a + warp_m *S::A_PITCH + k
		};
		stage_mma<P, S::DEPTH>(c, a, s->b + k * S::B_PITCH + warp_n, S::B_PITCH, lane);
	}
	copies_wait<0>(); /* copies past the end of K still write zeros to the block's memory */
	if (S::WARPS_K > 1)
		add_k_shares<S>(c, reinterpret_cast<float4 *>(memory), share, tile);
	if (share == 0)
		conv_store(g, pixel, c, m0 + warp_m + lane / 4, n0 + warp_n + lane % 4 * 2);
}

template <class S> size_t conv_blocks(const struct kx_conv &g)
{
	return (size_t)g.n_pixels * ((g.images + S::BM - 1) / S::BM) * ((g.n + S::BN - 1) / S::BN);
}

template <class S> size_t conv_bytes(void)
{
	return S::STAGES * sizeof(struct conv_stage<S>);
}

template <int P, class S> int conv_launch(struct kx_conv g, cudaStream_t stream)
{
	const int bytes = (int)conv_bytes<S>();

	if (cudaFuncSetAttribute(conv_fprop_dgrad_kernel<P, S>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	dim3 grid(
		(unsigned)g.n_pixels * ((g.images + S::BM - 1) / S::BM), (g.n + S::BN - 1) / S::BN);
	return kx_launch(conv_fprop_dgrad_kernel<P, S>, grid, S::THREADS, bytes, stream, g);
}

template <int P> int conv_launch_shape(struct kx_conv g, cudaStream_t stream)
{
	/* minimum number of blocks that keep the multiprocessors busy */
	const size_t enough = SUM_MULTIPROCESSORS;

	if (g.n <= narrow::BN && conv_blocks<narrow>(g) >= enough)
		return conv_launch<P, narrow>(g, stream);
	if (conv_blocks<wide>(g) >= 2 * enough)
		return conv_launch<P, wide>(g, stream);
	if (conv_bytes<small>() <= kx_shared_limit())
		return conv_blocks<medium>(g) >= enough ? conv_launch<P, medium>(g, stream)
							: conv_launch<P, small>(g, stream);
	return conv_blocks<medium>(g) >= enough ? conv_launch<P, medium_99k>(g, stream)
						: conv_launch<P, small_99k>(g, stream);
}

int conv_launch_math(struct kx_conv g, enum kx_math math, cudaStream_t stream)
{
	switch (math) {
	case KX_MATH_3XTF32:
		return conv_launch_shape<KX_MATH_3XTF32>(g, stream);
	case KX_MATH_TF32:
		return conv_launch_shape<KX_MATH_TF32>(g, stream);
	case KX_MATH_BF16:
		return conv_launch_shape<KX_MATH_BF16>(g, stream);
	default:
		return conv_launch_shape<KX_MATH_FFMA>(g, stream);
	}
}

} // namespace

int kx_conv_fprop(struct kx_conv g, enum kx_math math, cudaStream_t stream)
{
	return conv_launch_math(g, math, stream);
}

int kx_conv_dgrad(struct kx_conv g, enum kx_math math, cudaStream_t stream)
{
	return conv_launch_math(g, math, stream);
}
