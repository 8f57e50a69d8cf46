/*
 * kx_params.cu - parameters between the manifest's order and that of the products, and plain SGD.
 */
#include "kernels/kx_common.cuh"

#define THREADS 256

/* One thread per value of `forward`; the neighbour is the next filter. */
__global__ void pack_kernel(
	const float *params, struct kx_weights w, float *forward, float *backward, float *bias_pad)
{
	await_previous();
	FOR_EACH (i, (size_t)w.taps * w.c_pad * w.f_pad) {
		int f = (int)(i % w.f_pad), c = (int)(i / w.f_pad % w.c_pad);
		size_t tap = i / w.f_pad / w.c_pad;
		bool real = f < w.f && c < w.c;
		float v = real ? params[w.weight + ((size_t)f * w.c + c) * w.taps + tap] : 0;
		forward[i] = v;
		if (backward)
			backward[tap * w.to_tap + (size_t)f * w.to_f + c] = v;
		if (i < (size_t)w.f_pad)
			bias_pad[i] = i < (size_t)w.f ? params[w.bias + i] : 0;
	}
}

int kx_pack(const float *params, struct kx_weights w, float *forward, float *backward,
	float *bias_pad, cudaStream_t stream)
{
	size_t n = (size_t)w.taps * w.c_pad * w.f_pad;
	return kx_launch(pack_kernel, dim3(blocks_for(n, THREADS)), THREADS, 0, stream, params, w,
		forward, backward, bias_pad);
}

/* A thread per slice of a value, SLICES of the splits one beside the other, BATCH fetched at a
 * time; 32 neighbouring values, the row of biases (k = taps * c_pad) included. */
template <int SLICES, int BATCH>
__global__ void unpack_kernel(const float *partial, int splits, struct kx_weights w, float *grad)
{
	await_previous();
	__shared__ float part[SLICES][32];
	const int m = w.taps * w.c_pad, slice = threadIdx.x / 32, lane = threadIdx.x % 32;
	const size_t split = KX_OUTER_ROWS(m) * w.f_pad, n = (size_t)(m + 1) * w.f_pad;
	const size_t i = blockIdx.x * (size_t)32 + lane;
	const float *from = partial + i;
	float sum = sum_ahead<BATCH>(
		0.0f, slice, i < n ? splits : 0, SLICES, [=](int s) { return from[s * split]; });
	part[slice][lane] = sum;
	__syncthreads();
	if (slice != 0 || i >= n)
		return;
	for (int s = 1; s < SLICES; s++)
		sum += part[s][lane];
	int f = (int)(i % w.f_pad), k = (int)(i / w.f_pad);
	int tap = k / w.c_pad, c = k % w.c_pad;
	if (f < w.f && k == m)
		grad[w.bias + f] = sum;
	else if (f < w.f && c < w.c)
		grad[w.weight + ((size_t)f * w.c + c) * w.taps + tap] = sum;
}

int kx_unpack(
	const float *partial, int splits, struct kx_weights w, float *grad, cudaStream_t stream)
{
	const unsigned blocks = (unsigned)(((size_t)(w.taps * w.c_pad + 1) * w.f_pad + 31) / 32);
	if (blocks < 132 && splits >= 32) /* few values of many splits */
		return kx_launch(unpack_kernel<32, 8>, dim3(blocks), 32 * 32, 0, stream, partial,
			splits, w, grad);
	if (splits >= 32)
		return kx_launch(unpack_kernel<8, 8>, dim3(blocks), 8 * 32, 0, stream, partial,
			splits, w, grad);
	return kx_launch(
		unpack_kernel<8, 2>, dim3(blocks), 8 * 32, 0, stream, partial, splits, w, grad);
}

__global__ void update_kernel(
	float *params, float *sum, const float *grad, size_t n, struct kx_now *now)
{
	await_previous();
	const float rate = now->rate;
	FOR_EACH (i, n) {
		sum[i] += grad[i];
		params[i] -= rate * grad[i];
	}
	if (blockIdx.x == 0 && threadIdx.x == 0)
		now->step++;
}

int kx_update(float *params, float *sum, const float *grad, size_t n, struct kx_now *now,
	cudaStream_t stream)
{
	return kx_launch(update_kernel, dim3(blocks_for(n, THREADS)), THREADS, 0, stream, params,
		sum, grad, n, now);
}

int kx_runs_here(void)
{
	struct cudaFuncAttributes a;
	if (cudaFuncGetAttributes(&a, update_kernel) == cudaSuccess)
		return PS_OK;
	cudaGetLastError();
	return PS_EDEVICE;
}
