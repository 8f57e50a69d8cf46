/*
 * xxh3.cu - the first part of XXH3 (common/xxh3_sums.h). One warp computes the sums of one block:
 * thread t has words t, t + 32, t + 64 and t + 96 of the block, which all belong to lane t % 8. One
 * more warp copies the last bytes of the input (`tail`).
 */
#include "common/xxh3_lane.h"
#include "kernels/cuda/base/common.cuh"
#include "kernels/cuda/base/xxh3.h"

namespace
{

#define SUM_THREADS 256
#define ALL_LANES   0xffffffffu
#define WORDS       ((int)XXH3_BLOCK / 8)
#define LANES       ((int)XXH3_LANES)
#define TAIL_VALUES ((int)XXH3_TAIL / 4)

__constant__ const uint64_t secret[XXH3_SECRET_WORDS] = {XXH3_SECRET};

__global__ void __launch_bounds__(SUM_THREADS)
	sum_kernel(const uint64_t *__restrict__ data, size_t blocks, uint64_t *__restrict__ sums,
		const uint32_t *__restrict__ end, uint32_t *__restrict__ tail)
{
	const size_t block = ((size_t)blockIdx.x * SUM_THREADS + threadIdx.x) / 32;
	const int t = threadIdx.x % 32;
	uint64_t product = 0, plain = 0;

	for (int i = t; block == blocks && i < TAIL_VALUES; i += 32)
		tail[i] = end[i - TAIL_VALUES];
	if (block >= blocks)
		return;
	for (int w = t; w < WORDS; w += 32) {
		const uint64_t d = data[block * WORDS + w];

		product += xxh3_product(d, secret[w / LANES + w % LANES]);
		plain += d;
	}
	/* in XXH3, a lane adds its product to its own sum, and its word to the sum of the
	 * neighbouring lane */
	product += __shfl_xor_sync(ALL_LANES, plain, 1);
	product += __shfl_xor_sync(ALL_LANES, product, 8);
	product += __shfl_xor_sync(ALL_LANES, product, 16);
	if (t < LANES)
		sums[block * LANES + t] = product;
}

} // namespace

int kx_xxh3_sums(const void *data, size_t bytes, void *sums, void *tail, cudaStream_t stream)
{
	const size_t blocks = xxh3_blocks(bytes);
	const unsigned grid = (unsigned)(((blocks + 1) * 32 + SUM_THREADS - 1) / SUM_THREADS);

	sum_kernel<<<grid, SUM_THREADS, 0, stream>>>((const uint64_t *)data, blocks,
		(uint64_t *)sums, (const uint32_t *)((const char *)data + bytes), (uint32_t *)tail);
	return cudaGetLastError() ? PS_EDEVICE : PS_OK;
}
