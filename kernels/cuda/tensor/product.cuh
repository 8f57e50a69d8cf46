/*
 * product.cuh - fprop and dgrad of convolution and fc as implicit GEMM. product.cu multiplies on
 * tensor cores, product_fp32.cu on the FP32 units.
 *
 * A block computes BM output pixels x BN channels. Pixels of all images follow each other, so small
 * images fill a tile as well as large ones. If there are too few tiles for all multiprocessors, the
 * blocks of a cluster divide the sum over K (on Hopper and later).
 */
#ifndef KERNELS_CUDA_TENSOR_PRODUCT_CUH
#define KERNELS_CUDA_TENSOR_PRODUCT_CUH
#include <cooperative_groups.h>
#include "kernels/cuda/mma/wgmma.cuh"
#include "kernels/cuda/tensor/tile.cuh"

namespace
{

/* The base class of all tile shapes. A block computes a tile of BM x BN; a pipeline stage has ROW
 * bytes of K. SHARES warps divide the K of a stage. SPLIT: the blocks of a cluster divide K. LINES:
 * operands are stored as wgmma reads them (line_place; in tf32 only A), and in bf16 the products of
 * a stage run while the block loads another stage. UP: the tile is for windows with `up` > 1. TF32:
 * fp32 values are rounded to tf32 when they are stored. */
template <int BM_, int BN_, int ROW_, int STAGES_, int WARPS_, int BLOCKS_, int SHARES_,
	bool SPLIT_>
struct tile_shape {
	static const int BM = BM_, BN = BN_, ROW = ROW_, STAGES = STAGES_, BLOCKS = BLOCKS_;
	static const int SHARES = SHARES_;
	static const bool SPLIT = SPLIT_, LINES = false, UP = false, TF32 = true;
	static const int THREADS = 32 * WARPS_ * SHARES;
	static const int VECTORS = ROW / 16;
	/* bytes from one row to the next of A, and of B in dgrad */
	static const int PITCH = ROW + 16;
	static const int A_PASSES = BM * VECTORS / THREADS;
	static const int OCTETS = BN / KX_OCTET, OCTET_ROWS = THREADS / OCTETS;
	static const int SUM_PITCH = BN + 8, SUM_VALUES = BM * SUM_PITCH;
};

template <class T, bool DGRAD, class S> struct product_sizes {
	static const int BK = S::ROW / type_of<T>::BYTES;
	/* In dgrad, a row of B is one channel n. */
	static const bool B_LINES = DGRAD;
	static const bool B_SWIZZLED = S::LINES && sizeof(T) == 2;
	static const int B_PITCH = B_LINES ? S::PITCH : S::BN * type_of<T>::BYTES + type_of<T>::PAD;
	static const int A_BYTES = S::BM * (S::LINES ? S::ROW : S::PITCH);
	static const int B_BYTES = B_SWIZZLED ? S::BN * S::ROW : (B_LINES ? S::BN : BK) * B_PITCH;
	static const int STAGE = A_BYTES + B_BYTES;
	static const int B_VECTORS = DGRAD ? S::VECTORS : S::BN * type_of<T>::BYTES / 16;
	static const int B_PASSES = (DGRAD ? S::BN : BK) * B_VECTORS / S::THREADS;
	static const int STAGES_BYTES = S::STAGES * STAGE;
	static const int SUM_BYTES = S::SHARES * S::SUM_VALUES * 4;
	static const int BYTES = STAGES_BYTES > SUM_BYTES ? STAGES_BYTES : SUM_BYTES;

	static_assert(S::A_PASSES * S::THREADS == S::BM * S::VECTORS, "whole passes of A");
	static_assert(B_PASSES * S::THREADS == (DGRAD ? S::BN : BK) * B_VECTORS, "and of B");
};

/* The place of the next vector of K that a thread loads: tap (r, s), vector v of its channels. */
struct k_place {
	int r, s, v;
};

__device__ inline void k_advance(struct k_place *k, int step, int vectors, int size)
{
	for (k->v += step; k->v >= vectors; k->v -= vectors)
		if (++k->s == size) {
			k->s = 0;
			k->r++;
		}
}

/* A row of the tile is an output pixel: (y, x) is the input pixel under tap (0, 0), and `at` is the
 * address of this pixel or, with UP, of the image. For rows past the end, y is far outside the
 * image. */
struct tile_row {
	const unsigned char *at;
	int y, x;
};

template <class T, bool UP>
__device__ inline struct tile_row tile_row_at(const struct kx_product &g, int m)
{
	const struct kx_windows &w = g.window;
	const int quarter = g.pooled ? m % 4 : 0, window = g.pooled ? m / 4 : m;
	const int image = divide_by(window, g.by_image);
	const int rest = window - image * (int)g.by_image.value;
	int y = divide_by(rest, g.by_row), x = rest - y * (int)g.by_row.value;

	if (g.pooled) {
		y = 2 * y + quarter / 2;
		x = 2 * x + quarter % 2;
	}
	y = y * w.stride - w.top;
	x = x * w.stride - w.left;
	const long long first = (long long)image * w.h * w.w;
	const long long pixel = UP ? first : first + (long long)y * w.w + x;
	return {reinterpret_cast<const unsigned char *>(g.a) + pixel * w.pitch * (int)sizeof(T),
		m < g.rows ? y : -(1 << 24), x};
}

/* Copies vector k of a row, or zeros if there is no pixel. Without a pixel, the function does not
 * read the source. */
template <class T, bool UP>
__device__ inline void load_vector_a(
	const struct kx_product &g, const struct tile_row &row, const struct k_place &k, void *to)
{
	const struct kx_windows &w = g.window;
	const int pixel_bytes = w.pitch * (int)sizeof(T);
	int y = row.y + k.r, x = row.x + k.s, at = k.r * w.w + k.s;
	bool valid = k.r < w.size;

	if (UP) {
		valid = valid && y >= 0 && x >= 0 && y % w.up == 0 && x % w.up == 0;
		y /= w.up;
		x /= w.up;
		at = y * w.w + x;
	}
	valid = valid && (unsigned)y < (unsigned)w.h && (unsigned)x < (unsigned)w.w;
	copy_cached(to, row.at + at * (long long)pixel_bytes + k.v * 16, valid);
}

/* Returns the place of a vector in a stage of an operand with `lines` lines. */
template <bool SWIZZLED>
__device__ inline int vector_place(int line, int vector, int lines, int pitch)
{
	return SWIZZLED ? line_place(line, vector, lines) : line * pitch + vector * 16;
}

template <class T, bool DGRAD, class S>
__device__ inline void load_stage(const struct kx_product &g, const struct tile_row *rows,
	struct k_place *k, int tile, int n0, unsigned char *stage)
{
	typedef product_sizes<T, DGRAD, S> Z;
	const int tid = threadIdx.x, row = tid / S::VECTORS, vector = tid % S::VECTORS;
	const unsigned char *b = static_cast<const unsigned char *>(g.b);
#pragma unroll
	for (int i = 0; i < S::A_PASSES; i++)
		load_vector_a<T, S::UP>(g, rows[i], *k,
			stage + vector_place<S::LINES>(row + i * (S::THREADS / S::VECTORS), vector,
					S::BM, S::PITCH));
	stage += Z::A_BYTES;
	if (DGRAD) {
		const int size = g.window.size;
		const int tap = (size - 1 - k->r) * size + size - 1 - k->s;
#pragma unroll
		for (int i = 0; i < Z::B_PASSES; i++) {
			const int n = row + i * (S::THREADS / S::VECTORS);
			const bool valid = k->r < size && n0 + n < g.n;
			const size_t line = (size_t)tap * g.n + n0 + n;
			const size_t at = line * g.pitch * sizeof(T) + k->v * 16;

			copy_async(
				stage + vector_place<Z::B_SWIZZLED>(n, vector, S::BN, Z::B_PITCH),
				b + at, valid);
		}
	} else {
#pragma unroll
		for (int i = 0; i < Z::B_PASSES; i++) {
			const int r = tid / Z::B_VECTORS + i * (S::THREADS / Z::B_VECTORS);
			const int n = n0 + tid % Z::B_VECTORS * type_of<T>::VECTOR;
			const int at = tile * Z::BK + r;
			const bool valid = at < g.b_rows && n < g.n;

			copy_async(stage + vector_place<Z::B_SWIZZLED>(
						   r, tid % Z::B_VECTORS, Z::BK, Z::B_PITCH),
				b + ((size_t)at * g.pitch + n) * sizeof(T), valid);
		}
	}
	k_advance(k, S::VECTORS, g.window.c * (int)sizeof(T) / 16, g.window.size);
}

struct octet {
	float v[KX_OCTET];
};

__device__ inline struct octet load_octet(const float *from)
{
	const float4 a = reinterpret_cast<const float4 *>(from)[0];
	const float4 b = reinterpret_cast<const float4 *>(from)[1];

	return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

__device__ inline void store_octet(float *to, const struct octet &o)
{
	reinterpret_cast<float4 *>(to)[0] = {o.v[0], o.v[1], o.v[2], o.v[3]};
	reinterpret_cast<float4 *>(to)[1] = {o.v[4], o.v[5], o.v[6], o.v[7]};
}

__device__ inline void store_octet(__nv_bfloat16 *to, const struct octet &o)
{
	*reinterpret_cast<uint4 *>(to) = {to_bf16x2(o.v[0], o.v[1]), to_bf16x2(o.v[2], o.v[3]),
		to_bf16x2(o.v[4], o.v[5]), to_bf16x2(o.v[6], o.v[7])};
}

/* Stores values of a tensor. With TF32, the function rounds the values to tf32, because wgmma
 * ignores the low 13 bits of its operands in shared memory. */
template <class S> __device__ inline void store_result(float *to, struct octet o)
{
	if (S::TF32)
#pragma unroll
		for (int j = 0; j < KX_OCTET; j++)
			o.v[j] = nearest_tf32(o.v[j]);
	store_octet(to, o);
}

template <class S> __device__ inline void store_result(__nv_bfloat16 *to, const struct octet &o)
{
	store_octet(to, o);
}

/* Returns eight bits: bit j is 1 if value j is positive. */
__device__ inline uint32_t positive(const float *from)
{
	const struct octet o = load_octet(from);
	uint32_t bits = 0;
#pragma unroll
	for (int j = 0; j < KX_OCTET; j++)
		bits |= o.v[j] > 0 ? 1u << j : 0;
	return bits;
}

__device__ inline uint32_t positive(const __nv_bfloat16 *from)
{
	const uint4 four = *reinterpret_cast<const uint4 *>(from);
	const uint32_t word[4] = {four.x, four.y, four.z, four.w};
	uint32_t bits = 0;
#pragma unroll
	for (int j = 0; j < KX_OCTET; j++)
		bits |= __uint_as_float(j % 2 ? word[j / 2] & 0xffff0000u : word[j / 2] << 16) > 0
				? 1u << j
				: 0;
	return bits;
}

/* Waits for the other threads of the block, and for the blocks that divide K. */
template <class S> __device__ inline void parts_sync()
{
#if __CUDA_ARCH__ >= 900
	if (S::SPLIT) {
		cooperative_groups::this_cluster().sync();
		return;
	}
#endif
	__syncthreads();
}

/* Returns eight sums of a row of the tile, each added up over the shares of the block, in order. */
template <class S> __device__ inline struct octet block_sums(const float *from)
{
	struct octet o = load_octet(from);
#pragma unroll
	for (int k = 1; k < S::SHARES; k++) {
		const struct octet p = load_octet(from + k * S::SUM_VALUES);
#pragma unroll
		for (int j = 0; j < KX_OCTET; j++)
			o.v[j] += p.v[j];
	}
	return o;
}

/* Returns eight sums of a row of the tile, added up over the blocks of the cluster. */
template <class S> __device__ inline struct octet sums_at(const float *sums, int at, int slices)
{
#if __CUDA_ARCH__ >= 900
	if (S::SPLIT) {
		cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
		struct octet o = {};

		for (int k = 0; k < slices; k++) {
			const struct octet p = block_sums<S>(cluster.map_shared_rank(sums, k) + at);
#pragma unroll
			for (int j = 0; j < KX_OCTET; j++)
				o.v[j] += p.v[j];
		}
		return o;
	}
#endif
	return block_sums<S>(sums + at);
}

/* Applies scale, bias and ReLU. */
__device__ inline void epilogue(
	struct octet *o, const struct kx_product &g, const struct octet &bias)
{
#pragma unroll
	for (int j = 0; j < KX_OCTET; j++) {
		o->v[j] = o->v[j] * g.scale + bias.v[j];
		if (g.relu)
			o->v[j] = o->v[j] < 0 ? 0 : o->v[j];
	}
}

/* Stores rows `first`, first + OCTET_ROWS, ... below `end` of the tile. A thread always has the
 * same eight columns. */
template <class T, class S>
__device__ inline void store_rows(const struct kx_product &g, const float *sums,
	const struct octet &bias, int m0, int n, int slices, int first, int end)
{
	const int column = threadIdx.x % S::OCTETS * KX_OCTET;
	const int batch = 4; /* number of masks whose loads are in flight at a time */

	for (int r = first + threadIdx.x / S::OCTETS; r < end; r += batch * S::OCTET_ROWS) {
		uint32_t mask[batch];
#pragma unroll
		for (int i = 0; i < batch; i++) {
			const int row = r + i * S::OCTET_ROWS;

			mask[i] = 255;
			if (g.mask && row < end && m0 + row < g.rows)
				mask[i] = positive(static_cast<const T *>(g.mask) +
						   (size_t)(m0 + row) * g.d_pitch + n);
		}
#pragma unroll
		for (int i = 0; i < batch; i++) {
			const int row = r + i * S::OCTET_ROWS;

			if (row >= end || m0 + row >= g.rows)
				continue;
			struct octet o = sums_at<S>(sums, row * S::SUM_PITCH + column, slices);
			const size_t at = (size_t)(m0 + row) * g.d_pitch + n;

			epilogue(&o, g, bias);
#pragma unroll
			for (int j = 0; j < KX_OCTET; j++)
				o.v[j] = mask[i] >> j & 1 ? o.v[j] : 0;
			if (g.wide)
				store_octet(static_cast<float *>(g.d) + at, o);
			else
				store_result<S>(static_cast<T *>(g.d) + at, o);
		}
	}
}

/* Stores the maxima of the pool windows of rows [first, end). A window consists of four rows. If a
 * window has a NaN, the NaN is its maximum. */
template <class T, class S>
__device__ inline void store_pooled(const struct kx_product &g, const float *sums,
	const struct octet &bias, int m0, int n, int slices, int first, int end)
{
	const int column = threadIdx.x % S::OCTETS * KX_OCTET;

	for (int r = first + threadIdx.x / S::OCTETS * 4; r < end && m0 + r < g.rows;
		r += 4 * S::OCTET_ROWS) {
		struct octet best = sums_at<S>(sums, r * S::SUM_PITCH + column, slices);
		uint32_t argmax[2] = {0, 0};
#pragma unroll
		for (uint32_t k = 1; k < 4; k++) {
			const struct octet o =
				sums_at<S>(sums, (r + (int)k) * S::SUM_PITCH + column, slices);
#pragma unroll
			for (int j = 0; j < KX_OCTET; j++) {
				const bool more = o.v[j] > best.v[j] || o.v[j] != o.v[j];
				const uint32_t shift = j % 4 * 8;

				best.v[j] = more ? o.v[j] : best.v[j];
				argmax[j / 4] =
					more ? (argmax[j / 4] & ~(255u << shift)) | k << shift
					     : argmax[j / 4];
			}
		}
		const size_t at = (size_t)((m0 + r) / 4) * g.d_pitch + n;

		epilogue(&best, g, bias);
		store_result<S>(static_cast<T *>(g.d) + at, best);
		*reinterpret_cast<uint2 *>(g.argmax + at) = {argmax[0], argmax[1]};
	}
}

/* Stores the sums of the block, which are in shared memory, 16 bytes at a time. The blocks of a
 * cluster divide the rows. */
template <class T, bool DGRAD, class S>
__device__ inline void store_tile(
	const struct kx_product &g, const float *sums, int m0, int n0, int slice, int slices)
{
	const int column = n0 + threadIdx.x % S::OCTETS * KX_OCTET;
	const int first = S::BM / slices * slice, end = first + S::BM / slices;
	struct octet bias = {};

	if (g.bias && column < g.n)
		bias = load_octet(g.bias + column);
	parts_sync<S>();
	if (column < g.n) {
		if (!DGRAD && g.pooled)
			store_pooled<T, S>(g, sums, bias, m0, column, slices, first, end);
		else
			store_rows<T, S>(g, sums, bias, m0, column, slices, first, end);
	}
	if (S::SPLIT) /* because other blocks may still read the sums of this block */
		parts_sync<S>();
}

/* Computes fprop or dgrad. S::sums holds the sums of a thread. S::sums::add_stage adds the products
 * of a stage; only the first `left` values of K exist. With LINES in bf16, add_stage only starts
 * these products, and `wait` waits for them before a barrier. `store` writes the sums to shared
 * memory. */
template <class T, bool DGRAD, class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
	product_kernel(const __grid_constant__ struct kx_product g)
{
	typedef product_sizes<T, DGRAD, S> Z;
	extern __shared__ __align__(1024) unsigned char memory[];
	const int tid = threadIdx.x;
	const int slices = S::SPLIT ? g.slices : 1, slice = S::SPLIT ? blockIdx.x % slices : 0;
	const int m0 = blockIdx.x / slices * S::BM, n0 = blockIdx.y * S::BN;
	const int depth = g.window.size * g.window.size * g.window.c;
	const int all = (depth + Z::BK - 1) / Z::BK;
	const int begin = all * slice / slices, tiles = all * (slice + 1) / slices - begin;
	struct tile_row rows[S::A_PASSES];
	struct k_place k = {0, 0, 0};
	typename S::template sums<T, DGRAD> c;

#pragma unroll
	for (int i = 0; i < S::A_PASSES; i++)
		rows[i] = tile_row_at<T, S::UP>(
			g, m0 + tid / S::VECTORS + i * (S::THREADS / S::VECTORS));
	k_advance(&k, begin * S::VECTORS + tid % S::VECTORS, g.window.c * (int)sizeof(T) / 16,
		g.window.size);
	await_previous();
	for (int i = 0; i < S::STAGES - 1; i++) {
		if (i < tiles)
			load_stage<T, DGRAD, S>(g, rows, &k, begin + i, n0, memory + i * Z::STAGE);
		copies_commit();
	}
	for (int i = 0; i < tiles; i++) {
		const int next = i + S::STAGES - 1;

		copies_wait<S::STAGES - 2>();
		c.wait();
		__syncthreads();
		if (S::LINES)
			c.add_stage(memory + i % S::STAGES * Z::STAGE, 0);
		if (next < tiles)
			load_stage<T, DGRAD, S>(g, rows, &k, begin + next, n0,
				memory + next % S::STAGES * Z::STAGE);
		copies_commit();
		if (!S::LINES)
			c.add_stage(memory + i % S::STAGES * Z::STAGE, depth - (begin + i) * Z::BK);
	}
	c.wait();
	__syncthreads();
	c.store(reinterpret_cast<float *>(memory));
	store_tile<T, DGRAD, S>(g, reinterpret_cast<float *>(memory), m0, n0, slice, slices);
}

template <class S> size_t product_blocks(const struct kx_product &g)
{
	return (size_t)((g.rows + S::BM - 1) / S::BM) * ((g.n + S::BN - 1) / S::BN);
}

template <class T, bool DGRAD, class S>
int launch_product(const struct kx_product &g, cudaStream_t stream)
{
	const int bytes = product_sizes<T, DGRAD, S>::BYTES;

	if (cudaFuncSetAttribute(product_kernel<T, DGRAD, S>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	dim3 grid((unsigned)((g.rows + S::BM - 1) / S::BM), (g.n + S::BN - 1) / S::BN);
	return kx_launch(product_kernel<T, DGRAD, S>, grid, S::THREADS, bytes, stream, g);
}

/* Returns into how many parts the blocks of a cluster divide the depth. This number is at most
 * eight, at most the number of stages, and small enough for an H200 to run all blocks at the same
 * time. */
template <class T, class S> int product_slices(const struct kx_product &g)
{
	const size_t blocks = product_blocks<S>(g);
	const int depth = g.window.size * g.window.size * g.window.c * (int)sizeof(T);
	const int stages = (depth + S::ROW - 1) / S::ROW;
	int slices = 1;

	while (slices < 8 && 2 * slices <= stages &&
		2 * blocks * slices < SUM_MULTIPROCESSORS * S::BLOCKS)
		slices *= 2;
	return slices;
}

/* Launches a product with the shape S, whose depth the blocks of a cluster divide. */
template <class T, bool DGRAD, class S> int launch_split(struct kx_product g, cudaStream_t stream)
{
	const int bytes = product_sizes<T, DGRAD, S>::BYTES;

	g.slices = kx_code(product_kernel<T, DGRAD, S>) < 90 ? 1 : product_slices<T, S>(g);
	if (cudaFuncSetAttribute(product_kernel<T, DGRAD, S>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	dim3 grid((unsigned)((g.rows + S::BM - 1) / S::BM * g.slices), (g.n + S::BN - 1) / S::BN);
	return kx_launch_clusters(product_kernel<T, DGRAD, S>, grid, (unsigned)g.slices, S::THREADS,
		bytes, stream, g);
}

} // namespace

#endif
