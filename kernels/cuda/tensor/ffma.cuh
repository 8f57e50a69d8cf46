/*
 * ffma.cuh - products of fp32 values on the FP32 units: a warp of 4 x 8 threads computes 4 * TM x
 * 8 * TN sums, and each thread TM x TN of them. The rows of a thread are four apart, so that the
 * rows that a warp loads at the same time are neighbours.
 */
#ifndef KERNELS_CUDA_TENSOR_FFMA_CUH
#define KERNELS_CUDA_TENSOR_FFMA_CUH
#include "kernels/cuda/tensor/tile.cuh"

template <int N> __device__ static inline void load_values(float *to, const unsigned char *from)
{
	static_assert(N == 2 || N == 4, "8 or 16 bytes");
	if (N == 4) {
		const float4 v = *reinterpret_cast<const float4 *>(from);

		to[0] = v.x;
		to[1] = v.y;
		to[2] = v.z;
		to[3] = v.w;
	} else {
		const float2 v = *reinterpret_cast<const float2 *>(from);

		to[0] = v.x;
		to[1] = v.y;
	}
}

/* lane_row and lane_column return the row and the column of a lane in its warp. Lanes i and i ^ 1
 * have the same column, and lanes i and i ^ 2 have the same row. If the lanes load 16 bytes each in
 * this order, shared memory serves 16 of them at a time instead of 8. */
__device__ static inline int lane_row(int lane)
{
	return lane / 16 * 2 + lane % 2;
}
__device__ static inline int lane_column(int lane)
{
	return lane / 2 % 8;
}

/* The place of a thread in the tile of its block: its first row m and column n, its number `lane`
 * among the threads of a row, and the share of the depth of a stage that it multiplies. */
struct ffma_place {
	int m, n, lane, share;
};

template <class S> __device__ static inline struct ffma_place ffma_place_of()
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int tile = warp % (S::WARPS_M * S::WARPS_N);

	return {tile % S::WARPS_M * 4 * S::TM + lane_row(lane), tile / S::WARPS_M * 8 * S::TN,
		lane_column(lane), warp / (S::WARPS_M * S::WARPS_N)};
}

/*
 * Returns an estimate of the time that `blocks` blocks need on an H200, in products per thread. A
 * multiprocessor runs `resident` blocks at a time; with fewer than eight warps the multiprocessor
 * waits for shared memory. `effort` is the time of a product, relative to the time of a product in
 * the largest tile.
 */
template <class S> static double ffma_time(size_t blocks, double depth, double effort)
{
	const size_t rounds = (blocks + SUM_MULTIPROCESSORS - 1) / SUM_MULTIPROCESSORS;
	const size_t resident = rounds < S::BLOCKS ? rounds : S::BLOCKS;
	const double warps = (double)resident * S::THREADS / 32;

	return (double)rounds * depth * S::BM * S::BN * effort /
	       (warps < 8 ? 0.3 + warps / 11.5 : 1);
}

#endif
