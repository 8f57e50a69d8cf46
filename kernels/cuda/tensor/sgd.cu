/*
 * sgd.cu - adds up the split-K slices of kx_product_wgrad and runs a step of SGD, for all layers in
 * one launch. A thread handles four values; where there are many slices, several threads share
 * them.
 */
#include "kernels/cuda/mma/gemm.cuh"
#include "kernels/cuda/tensor/tensor.h"

namespace
{

#define THREADS  256
#define PREFETCH 4 /* number of slices whose loads are in flight */

__host__ __device__ inline size_t values_of(const struct kx_layer &l)
{
	return (size_t)(l.w.taps * l.w.c_pad + 1) * l.w.f_pad;
}

/* Returns the number of threads that share the slices of four values. */
__host__ __device__ inline int adders_of(const struct kx_layer &l)
{
	return l.slices <= 4 ? 1 : l.slices <= 32 ? 4 : 16;
}

/* The last block of the grid adds up the losses. */
__device__ inline void add_losses(const struct kx_losses &l, struct kx_now *now)
{
	__shared__ double partial[THREADS];

	partial[threadIdx.x] = sum_fetched<4>(
		0.0, threadIdx.x, l.images, THREADS, [=](int i) { return (double)l.loss[i]; });
	for (int d = THREADS / 2; d; d /= 2) {
		__syncthreads();
		if (threadIdx.x < d)
			partial[threadIdx.x] += partial[threadIdx.x + d];
	}
	if (threadIdx.x == 0) {
		*l.sum += partial[0];
		now->step++;
	}
}

/* Returns gradient `g` of the weight of channel c and filter f, or 0 if c and f are in different
 * groups. */
__device__ inline float in_group(const struct kx_weights &w, int c, int f, float g)
{
	return c / (w.c / w.groups) == f / (w.f / w.groups) ? g : 0;
}

__global__ void __launch_bounds__(THREADS) product_sgd_kernel(
	const __grid_constant__ struct kx_layers all, struct kx_losses losses, struct kx_now *now)
{
	__shared__ float4 partial[THREADS];
	int n = 0;

	await_previous();
	if (blockIdx.x == all.block[all.n]) {
		add_losses(losses, now);
		return;
	}
	while (n + 1 < all.n && blockIdx.x >= all.block[n + 1])
		n++;
	const struct kx_layer &l = all.layer[n];
	const int adders = adders_of(l), lanes = THREADS / adders;
	const int lane = threadIdx.x % lanes, adder = threadIdx.x / lanes;
	const size_t i = ((size_t)(blockIdx.x - all.block[n]) * lanes + lane) * 4;
	const bool in = i < values_of(l);
	const size_t stride = KX_WGRAD_ROWS(l.w.taps * l.w.c_pad) * l.w.f_pad;
	const float *from = l.workspace + i;
	float4 g = sum_fetched<PREFETCH>(float4{}, adder, in ? l.slices : 0, adders,
		[=](int s) { return *reinterpret_cast<const float4 *>(from + s * stride); });

	if (adders > 1) {
		partial[threadIdx.x] = g;
		__syncthreads();
		for (int k = 1; k < adders && adder == 0; k++)
			g = g + partial[k * lanes + lane];
	}
	if (adder > 0 || !in)
		return;
	if (l.w.groups > 1 && i < (size_t)l.w.taps * l.w.c_pad * l.w.f_pad) {
		const int c = (int)(i / l.w.f_pad % l.w.c_pad), f = (int)(i % l.w.f_pad);

		g = {in_group(l.w, c, f, g.x), in_group(l.w, c, f + 1, g.y),
			in_group(l.w, c, f + 2, g.z), in_group(l.w, c, f + 3, g.w)};
	}
	const float rate = now->rate;
	float4 value = *reinterpret_cast<float4 *>(l.value + i);
	float4 sum = *reinterpret_cast<float4 *>(l.sum + i);
	if (!l.fixed)
		value = {value.x - rate * g.x, value.y - rate * g.y, value.z - rate * g.z,
			value.w - rate * g.w};
	*reinterpret_cast<float4 *>(l.value + i) = value;
	*reinterpret_cast<float4 *>(l.sum + i) = sum + g;
	if (l.bf16)
		*reinterpret_cast<uint2 *>(l.bf16 + i) = {
			to_bf16x2(value.x, value.y), to_bf16x2(value.z, value.w)};
}

} // namespace

int kx_product_sgd(
	struct kx_layers all, struct kx_losses losses, struct kx_now *now, cudaStream_t stream)
{
	all.block[0] = 0;
	for (int n = 0; n < all.n; n++) {
		const size_t values = 4 * (size_t)(THREADS / adders_of(all.layer[n]));

		all.block[n + 1] =
			all.block[n] + (unsigned)((values_of(all.layer[n]) + values - 1) / values);
	}
	return kx_launch_joined(product_sgd_kernel, all.joins,
		dim3(all.block[all.n] + (losses.loss != NULL)), THREADS, 0, stream, all, losses,
		now);
}
