/*
 * softmax_loss.cu - softmax cross-entropy. One warp computes one image.
 */
#include "kernels/cuda/base/common.cuh"

namespace
{

#define THREADS   128
#define ALL_LANES 0xffffffffu

__device__ inline float loss_warp_max(float v)
{
	for (int d = 16; d; d /= 2)
		v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, d));
	return v;
}

__device__ inline float loss_warp_sum(float v)
{
	for (int d = 16; d; d /= 2)
		v += __shfl_xor_sync(ALL_LANES, v, d);
	return v;
}

__global__ void loss_kernel(const float *logits, float *d_logits, float *loss, int classes,
	int width, struct kx_batch batch)
{
	await_previous();
	const int lane = threadIdx.x % 32;
	const int n = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
	if (n >= batch.images)
		return;
	const float *s = logits + (size_t)n * width;
	float *d = d_logits + (size_t)n * width;
	const int label = batch.labels[image_number(&batch, n)];
	float max_logit = -INFINITY, sum = 0;
	for (int c = lane; c < classes; c += 32)
		max_logit = fmaxf(max_logit, s[c]);
	max_logit = loss_warp_max(max_logit);
	for (int c = lane; c < classes; c += 32)
		sum += expf(s[c] - max_logit);
	sum = loss_warp_sum(sum);
	for (int c = lane; c < width; c += 32) {
		float p = c < classes ? expf(s[c] - max_logit) / sum - (c == label) : 0;

		d[c] = p / batch.images;
	}
	if (lane == 0)
		loss[n] = logf(sum) - (s[label] - max_logit);
}

} // namespace

int kx_loss(const float *logits, float *d_logits, float *loss, int classes, int width,
	struct kx_batch batch, cudaStream_t stream)
{
	const int per_block = THREADS / 32;

	return kx_launch(loss_kernel, dim3((batch.images + per_block - 1) / per_block), THREADS, 0,
		stream, logits, d_logits, loss, classes, width, batch);
}
