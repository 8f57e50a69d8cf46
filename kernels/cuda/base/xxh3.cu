/*
 * xxh3.cu - the first part of XXH3 (common/xxh3_sums.h). One warp computes the sums of one block:
 * thread t has words t, t + 32, t + 64 and t + 96 of the block, which all belong to lane t % 8.
 */
#include "common/xxh3_secret.h"
#include "kernels/cuda/base/common.cuh"
#include "kernels/cuda/base/xxh3.h"

namespace
{

#define SUM_THREADS 256
#define ALL_LANES   0xffffffffu
#define WORDS       128 /* of a block */
#define LANES       8

__constant__ const uint64_t secret[XXH3_SECRET_WORDS] = {XXH3_SECRET};

__global__ void __launch_bounds__(SUM_THREADS)
	sum_kernel(const uint64_t *__restrict__ data, size_t blocks, uint64_t *__restrict__ sums)
{
	const size_t block = ((size_t)blockIdx.x * SUM_THREADS + threadIdx.x) / 32;
	const int t = threadIdx.x % 32;
	uint64_t product = 0, plain = 0;

	if (block >= blocks)
		return;
	for (int w = t; w < WORDS; w += 32) {
		const uint64_t d = data[block * WORDS + w], k = d ^ secret[w / LANES + w % LANES];

		product += (k & 0xffffffffu) * (k >> 32);
		plain += d;
	}
	/* the word of a lane itself counts for its neighbour */
	product += __shfl_xor_sync(ALL_LANES, plain, 1);
	product += __shfl_xor_sync(ALL_LANES, product, 8);
	product += __shfl_xor_sync(ALL_LANES, product, 16);
	if (t < LANES)
		sums[block * LANES + t] = product;
}

} // namespace

int kx_xxh3_sums(const void *data, size_t blocks, void *sums, cudaStream_t stream)
{
	const unsigned grid = (unsigned)((blocks * 32 + SUM_THREADS - 1) / SUM_THREADS);

	sum_kernel<<<grid, SUM_THREADS, 0, stream>>>(
		(const uint64_t *)data, blocks, (uint64_t *)sums);
	return cudaGetLastError() ? PS_EDEVICE : PS_OK;
}
