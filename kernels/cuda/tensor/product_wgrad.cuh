/*
 * product_wgrad.cuh - wgrad of convolution and fc as implicit GEMM with split-K. product_wgrad.cu
 * multiplies on tensor cores, product_wgrad_fp32.cu on the FP32 units.
 *
 * A block computes BM x BN gradient values over its slice of the sum, which runs over the output
 * pixels of all images. params.cu and sgd.cu add up the slices.
 */
#ifndef KERNELS_CUDA_TENSOR_PRODUCT_WGRAD_CUH
#define KERNELS_CUDA_TENSOR_PRODUCT_WGRAD_CUH
#include "kernels/cuda/mma/wgmma.cuh"
#include "kernels/cuda/tensor/tile.cuh"

namespace
{

/* The base class of all tile shapes. A block computes BM x BN values; a pipeline stage has DEPTH
 * pixels, which SHARES warps divide. `LINES` is as in product.cuh. */
template <int BM_, int BN_, int DEPTH_, int WARPS_, int BLOCKS_, int SHARES_> struct wgrad_tile {
	static const int BM = BM_, BN = BN_, DEPTH = DEPTH_, BLOCKS = BLOCKS_, STAGES = 3;
	static const int WARPS = WARPS_, SHARES = SHARES_, THREADS = 32 * WARPS * SHARES;
	static const bool LINES = false;
};

template <class T, class S> struct wgrad_sizes {
	static const int PAD = S::LINES ? 0 : type_of<T>::PAD;
	static const int A_PITCH = S::BM * type_of<T>::BYTES + PAD;
	static const int B_PITCH = S::BN * type_of<T>::BYTES + PAD;
	static const int A_BYTES = S::DEPTH * A_PITCH, STAGE = A_BYTES + S::DEPTH * B_PITCH;
	static const int A_VECTORS = S::BM * type_of<T>::BYTES / 16;
	static const int B_VECTORS = S::BN * type_of<T>::BYTES / 16;
	static const int A_PASSES = S::DEPTH * A_VECTORS / S::THREADS;
	static const int B_PASSES = S::DEPTH * B_VECTORS / S::THREADS;
	static const int SUMS =
		/* number of bytes of the sums of all shares but the first */
		(S::SHARES - 1) * S::BM * S::BN * 4;
	static const int BYTES = S::STAGES * STAGE > SUMS ? S::STAGES *STAGE : SUMS;

	static_assert(A_PASSES * S::THREADS == S::DEPTH * A_VECTORS, "whole passes of a");
	static_assert(B_PASSES * S::THREADS == S::DEPTH * B_VECTORS, "whole passes of b");
};

__device__ const uint4 one_bf16 = {0x3f80, 0, 0, 0}, one_fp32 = {0x3f800000, 0, 0, 0};

/* The columns that a thread loads from every row of `a`: channel v of tap (r, s). */
struct column {
	int r, s, v;
	bool in, ones;
};

template <class T>
__device__ inline struct column column_at(const struct kx_product_wgrad &g, int k)
{
	const struct kx_windows &w = g.window;
	const int tap = k / w.c;

	return {tap / w.size, tap % w.size, k % w.c, k < w.size * w.size * w.c,
		g.ones && k == w.size * w.size * w.c};
}

template <class T>
__device__ inline void load_pixel(
	const struct kx_product_wgrad &g, const struct column &col, int pixel, bool flat, void *to)
{
	const struct kx_windows &w = g.window;
	bool valid = col.in && pixel < g.pixels;
	int at = pixel;

	if (!flat) {
		const int image = divide_by(pixel, g.by_image);
		const int rest = pixel - image * (int)g.by_image.value;
		const int p = divide_by(rest, g.by_row), q = rest - p * (int)g.by_row.value;
		const int y = p * w.stride - w.top + col.r, x = q * w.stride - w.left + col.s;

		valid = valid && (unsigned)y < (unsigned)w.h && (unsigned)x < (unsigned)w.w;
		at = (image * w.h + y) * w.w + x;
	}
	const void *from = static_cast<const T *>(g.a) + (long long)at * w.pitch + col.v;
	if (col.ones) {
		valid = true;
		from = sizeof(T) == 2 ? &one_bf16 : &one_fp32;
	}
	copy_cached(to, from, valid);
}

template <class S> __device__ inline int pixel_place(int row, int vector, int pitch)
{
	return S::LINES ? line_place(row, vector, S::DEPTH) : row * pitch + vector * 16;
}

template <class T, class S>
__device__ inline void load_wgrad_stage(const struct kx_product_wgrad &g, const struct column &col,
	int tile, int n0, bool flat, unsigned char *stage)
{
	typedef wgrad_sizes<T, S> Z;
	const int tid = threadIdx.x, pixel0 = tile * S::DEPTH;
#pragma unroll
	for (int i = 0; i < Z::A_PASSES; i++) {
		const int row = tid / Z::A_VECTORS + i * (S::THREADS / Z::A_VECTORS);

		load_pixel<T>(g, col, pixel0 + row, flat,
			stage + pixel_place<S>(row, tid % Z::A_VECTORS, Z::A_PITCH));
	}
	stage += Z::A_BYTES;
	const int n = n0 + tid % Z::B_VECTORS * type_of<T>::VECTOR;
#pragma unroll
	for (int i = 0; i < Z::B_PASSES; i++) {
		const int row = tid / Z::B_VECTORS + i * (S::THREADS / Z::B_VECTORS);
		const bool valid = pixel0 + row < g.pixels && n < g.n;
		const T *b = static_cast<const T *>(g.b);

		copy_async(stage + pixel_place<S>(row, tid % Z::B_VECTORS, Z::B_PITCH),
			b + (size_t)(pixel0 + row) * g.b_pitch + n, valid);
	}
}

template <class S> __host__ __device__ inline unsigned row_tiles(const struct kx_product_wgrad &g)
{
	return (g.m + S::BM - 1) / S::BM;
}

template <class S>
__host__ __device__ inline unsigned column_tiles(const struct kx_product_wgrad &g)
{
	return (g.n + S::BN - 1) / S::BN;
}

/* The products of a warp may take the rows and columns of its tile in any order. In bf16 neighbours
 * stay neighbours, as the transposing ldmatrix requires. In tf32 a thread loads four neighbouring
 * values of a pixel at a time: they belong to two tiles of A, or to four tiles of B. */
template <class T> struct wgrad_operands {
	template <int MI>
	__device__ static void load_a(
		uint32_t (&x)[MI][4], const unsigned char *s, int pitch, int k, int row, int lane)
	{
#pragma unroll
		for (int m = 0; m < MI; m++)
			load_a_across<T>(x[m], s, pitch, k, row + 16 * m, lane);
	}

	template <int N>
	__device__ static void load_b(
		uint32_t (&y)[N][4], const unsigned char *s, int pitch, int k, int column, int lane)
	{
#pragma unroll
		for (int n = 0; n < N; n++)
			load_b_across<T>(y[n], s, pitch, k, column + 16 * n, lane);
	}

	/* Stores the sums of rows m0 + 16 * i / 2, ... of a warp's tile. */
	template <int MI, int NJ>
	__device__ static void store(const float (&c)[MI][NJ][4], const struct kx_product_wgrad &g,
		float *to, int m0, int n0, int lane)
	{
#pragma unroll
		for (int i = 0; i < 2 * MI; i++)
#pragma unroll
			for (int j = 0; j < NJ; j++) {
				const int m = m0 + lane / 4 + 8 * i;
				const int n = n0 + lane % 4 * 2 + 8 * j;

				if (m < g.m && n < g.n)
					store_pair(to + (size_t)m * g.n + n,
						c[i / 2][j][i % 2 * 2] * g.scale,
						c[i / 2][j][i % 2 * 2 + 1] * g.scale);
			}
	}
};

template <> struct wgrad_operands<float> {
	struct four {
		uint32_t v[4];
	};

	__device__ static struct four load_four(const unsigned char *at)
	{
		const float4 v = *reinterpret_cast<const float4 *>(at);

		return {{to_tf32(v.x), to_tf32(v.y), to_tf32(v.z), to_tf32(v.w)}};
	}

	template <int MI>
	__device__ static void load_a(
		uint32_t (&x)[MI][4], const unsigned char *s, int pitch, int k, int row, int lane)
	{
		s += (k + lane % 4) * pitch + (row + lane / 4 * 4) * 4;
#pragma unroll
		for (int m = 0; m < MI; m += 2)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const struct four f = load_four(s + half * 4 * pitch + m * 64);

				x[m][2 * half] = f.v[0];
				x[m][2 * half + 1] = f.v[1];
				x[m + 1][2 * half] = f.v[2];
				x[m + 1][2 * half + 1] = f.v[3];
			}
	}

	template <int N>
	__device__ static void load_b(
		uint32_t (&y)[N][4], const unsigned char *s, int pitch, int k, int column, int lane)
	{
		s += (k + lane % 4) * pitch + (column + lane / 4 * 4) * 4;
#pragma unroll
		for (int n = 0; n < N; n += 2)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const struct four f = load_four(s + half * 4 * pitch + n * 64);

				y[n][half] = f.v[0];
				y[n][2 + half] = f.v[1];
				y[n + 1][half] = f.v[2];
				y[n + 1][2 + half] = f.v[3];
			}
	}

	template <int MI, int NJ>
	__device__ static void store(const float (&c)[MI][NJ][4], const struct kx_product_wgrad &g,
		float *to, int m0, int n0, int lane)
	{
#pragma unroll
		for (int i = 0; i < 2 * MI; i++)
#pragma unroll
			for (int j = 0; j < NJ / 2; j++) {
				const int m = m0 + i / 4 * 32 + lane / 4 * 4 + i % 4;
				const int n = n0 + j / 2 * 32 + lane % 4 * 8 + j % 2 * 4;
				const int at = i % 2 * 2 + j % 2, tile = j / 2 * 4;

				if (m < g.m && n < g.n)
					*reinterpret_cast<float4 *>(to + (size_t)m * g.n + n) = {
						c[i / 2][tile][at] * g.scale,
						c[i / 2][tile + 1][at] * g.scale,
						c[i / 2][tile + 2][at] * g.scale,
						c[i / 2][tile + 3][at] * g.scale};
			}
	}
};

/*
 * Computes wgrad. The grid is row tiles x column tiles x slices. S::sums holds the sums of a
 * thread. The functions add_stage and `wait` of S::sums are as in product.cuh. add_shares adds the
 * sums of the other shares, and `store` writes the result to global memory.
 */
template <class T, class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
	product_wgrad_kernel(const __grid_constant__ struct kx_product_wgrad g)
{
	typedef wgrad_sizes<T, S> Z;
	extern __shared__ __align__(1024) unsigned char memory[];
	const unsigned block = blockIdx.x;
	const int m0 = block % row_tiles<S>(g) * S::BM;
	const int n0 = block / row_tiles<S>(g) % column_tiles<S>(g) * S::BN;
	const int slice = block / row_tiles<S>(g) / column_tiles<S>(g);
	const long long all = (g.pixels + S::DEPTH - 1) / S::DEPTH;
	const int begin = (int)(all * slice / g.slices), end = (int)(all * (slice + 1) / g.slices);
	const int vector = (int)threadIdx.x % Z::A_VECTORS;
	const struct column col = column_at<T>(g, m0 + vector * type_of<T>::VECTOR);
	const bool flat = g.window.size == 1 && g.window.stride == 1 && g.window.top == 0 &&
			  g.window.left == 0 && g.window.h == g.window.rows &&
			  g.window.w == g.window.columns;
	typename S::template sums<T> c;

	await_previous();
	for (int i = 0; i < S::STAGES - 1; i++) {
		if (begin + i < end)
			load_wgrad_stage<T, S>(g, col, begin + i, n0, flat, memory + i * Z::STAGE);
		copies_commit();
	}
	for (int i = 0; i < end - begin; i++) {
		const int next = i + S::STAGES - 1;

		copies_wait<S::STAGES - 2>();
		c.wait();
		__syncthreads();
		if (S::LINES)
			c.add_stage(memory + i % S::STAGES * Z::STAGE);
		if (begin + next < end)
			load_wgrad_stage<T, S>(g, col, begin + next, n0, flat,
				memory + next % S::STAGES * Z::STAGE);
		copies_commit();
		if (!S::LINES)
			c.add_stage(memory + i % S::STAGES * Z::STAGE);
	}
	c.wait();
	if (c.add_shares(reinterpret_cast<float4 *>(memory)))
		c.store(g, g.workspace + g.stride_rows * g.n * slice, m0, n0);
}

template <class T, class S> int launch_wgrad(const struct kx_product_wgrad &g, cudaStream_t stream)
{
	const int bytes = wgrad_sizes<T, S>::BYTES;

	if (cudaFuncSetAttribute(
		    product_wgrad_kernel<T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch_joined(product_wgrad_kernel<T, S>, g.joins,
		dim3(row_tiles<S>(g) * column_tiles<S>(g) * g.slices), S::THREADS, bytes, stream,
		g);
}

} // namespace

#endif
