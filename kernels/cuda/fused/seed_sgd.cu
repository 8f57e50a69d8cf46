/*
 * seed_sgd.cu - adds up the split-K slices of a gradient of a seed network. The result is a
 * gradient in the manifest's order, or a step of SGD.
 */
#include "kernels/cuda/fused/seed_half.cuh"

namespace
{

#define SGD_THREADS 256
/* number of filters per block; a fragment has all eight */
#define CONV_FILTERS 8
#define CONV_QUADS   (CONV_FILTERS * SEED_ROW / 4)
#define CONV_SLICES  (SGD_THREADS / CONV_QUADS)
/* The number of slices whose loads are in flight at a time. A thread waits once for all of these
 * loads. */
#define FEW_SLICES  4
#define MANY_SLICES 16

__device__ inline float sum_fc_slices(const struct kx_seed &s, size_t at, int slices)
{
	const float *from = s.fc_workspace + at;
	const size_t slice_stride = (size_t)SEED_POSITIONS * s.f_pad * SEED_ROW;

	return sum_fetched<MANY_SLICES>(
		0.0f, 0, slices, 1, [=](int i) { return from[i * slice_stride]; });
}

__device__ inline float sum_conv_slices(const struct kx_seed &s, size_t at, int slices)
{
	const float *from = s.conv_workspace + at;
	const size_t slice_stride = (size_t)s.f_pad * SEED_ROW;

	return sum_fetched<MANY_SLICES>(
		0.0f, 0, slices, 1, [=](int i) { return from[i * slice_stride]; });
}

#define IMAGE_SLICES (SGD_THREADS / 16)

/* One block sums over the images: column c < SEED_CLASSES sums d_logits, and column SEED_CLASSES
 * sums the losses. IMAGE_SLICES threads divide a column; the first of them returns its sum. */
__device__ inline double sum_over_images(const struct kx_seed &s, int images)
{
	__shared__ double partial[SGD_THREADS];
	const int c = threadIdx.x % 16, slice = threadIdx.x / 16;
	const float *from = c < SEED_CLASSES ? s.d_logits + c : s.loss;
	const int pitch = c < SEED_CLASSES ? SEED_ROW : 1, n = c <= SEED_CLASSES ? images : 0;
	double v = sum_fetched<MANY_SLICES>(
		0.0, slice, n, IMAGE_SLICES, [=](int i) { return (double)from[i * pitch]; });

	partial[threadIdx.x] = v;
	__syncthreads();
	v = 0;
	for (int i = 0; i < IMAGE_SLICES && slice == 0; i++)
		v += partial[i * 16 + c];
	return v;
}

/* ---- gradient in the manifest's order -------------------------------------------------------- */

__global__ void seed_gradient_kernel(
	struct kx_seed s, struct seed_tiling tiling, int images, float *grad, double *loss)
{
	const size_t n_conv = (size_t)s.f * SEED_ROW_USED;
	const size_t n_fc = (size_t)s.f * SEED_POSITIONS * SEED_CLASSES;
	const int slices = tiling.slices * tiling.position_blocks;

	FOR_EACH (i, n_fc) {
		int p = (int)(i % SEED_POSITIONS), f = (int)(i / SEED_POSITIONS % s.f);
		int c = (int)(i / SEED_POSITIONS / s.f);

		grad[n_conv + i] =
			sum_fc_slices(s, ((size_t)p * s.f_pad + f) * SEED_ROW + c, tiling.slices);
	}
	FOR_EACH (i, n_conv) {
		int k = (int)(i % SEED_ROW_USED), f = (int)(i / SEED_ROW_USED);

		grad[seed_conv_at(s, f, k)] = sum_conv_slices(s, (size_t)f * SEED_ROW + k, slices);
	}
	if (blockIdx.x != 0)
		return;
	const double v = sum_over_images(s, images);
	if (threadIdx.x < SEED_CLASSES)
		grad[n_conv + n_fc + threadIdx.x] = (float)v;
	else if (threadIdx.x == SEED_CLASSES)
		*loss = v / images;
}

/* ---- SGD step -------------------------------------------------------------------------------- */

__device__ inline void sgd_value(float *param, float *sum, float g, float rate)
{
	*sum += g;
	*param -= rate * g;
}

__device__ inline void sgd_fc(
	const struct kx_seed &s, int slices, int block, int blocks, float rate)
{
	const size_t n = (size_t)SEED_POSITIONS * s.f_pad * SEED_ROW / 4;

	for (size_t i = (size_t)block * SGD_THREADS + threadIdx.x; i < n;
		i += (size_t)blocks * SGD_THREADS) {
		const float4 *from = reinterpret_cast<const float4 *>(s.fc_workspace) + i;
		float4 sum = reinterpret_cast<float4 *>(s.sum.fc)[i];
		float4 param = reinterpret_cast<float4 *>(s.params.fc)[i];
		const auto slice = [=](int k) { return from[k * n]; };
		const float4 g = slices <= FEW_SLICES
					 ? sum_fetched<FEW_SLICES>(float4{}, 0, slices, 1, slice)
					 : sum_fetched<MANY_SLICES>(float4{}, 0, slices, 1, slice);

		sgd_value(&param.x, &sum.x, g.x, rate);
		sgd_value(&param.y, &sum.y, g.y, rate);
		sgd_value(&param.z, &sum.z, g.z, rate);
		sgd_value(&param.w, &sum.w, g.w, rate);
		reinterpret_cast<float4 *>(s.sum.fc)[i] = sum;
		reinterpret_cast<float4 *>(s.params.fc)[i] = param;
	}
}

/* Updates CONV_FILTERS filters and writes their new fragments. A thread adds up every
 * CONV_SLICES-th slice, four values at a time. */
__device__ inline void sgd_conv(const struct kx_seed &s, int slices, int block, float rate)
{
	const int values = CONV_FILTERS * SEED_ROW, quad = threadIdx.x % CONV_QUADS,
		  slice = threadIdx.x / CONV_QUADS;
	const size_t f0 = (size_t)block * CONV_FILTERS, at = f0 * SEED_ROW;
	const size_t slice_stride = (size_t)s.f_pad * SEED_ROW / 4;
	const float4 *from = reinterpret_cast<const float4 *>(s.conv_workspace + at) + quad;

	__shared__ __align__(16) float partial[CONV_SLICES][values];
	__shared__ float updated[values];
	static_assert(SGD_THREADS == CONV_FILTERS * 32, "a thread to each word of a fragment");
	if (slice < CONV_SLICES)
		*reinterpret_cast<float4 *>(&partial[slice][4 * quad]) =
			sum_fetched<MANY_SLICES>(float4{}, slice, slices, CONV_SLICES,
				[=](int i) { return from[i * slice_stride]; });
	__syncthreads();
	if (threadIdx.x < values) {
		float g = 0;
#pragma unroll
		for (int i = 0; i < CONV_SLICES; i++)
			g += partial[i][threadIdx.x];
		sgd_value(&s.params.conv[at + threadIdx.x], &s.sum.conv[at + threadIdx.x], g, rate);
		updated[threadIdx.x] = s.params.conv[at + threadIdx.x];
	}
	__syncthreads();
	seed_fragment(s, block, updated, threadIdx.x);
}

__device__ inline void sgd_bias_and_loss(
	const struct kx_seed &s, int images, struct kx_now *now, int steps, double *loss)
{
	const int c = threadIdx.x;
	const double v = sum_over_images(s, images);

	if (c < SEED_CLASSES)
		sgd_value(&s.params.bias[c], &s.sum.bias[c], (float)v, now->rate);
	else if (c == SEED_CLASSES)
		*loss += v;
	else if (c == SEED_CLASSES + 1)
		now->step += steps;
}

/* blockIdx: one block for the fc bias and the losses, then conv_blocks blocks, then the blocks of
 * the fc weights. */
__global__ void __launch_bounds__(SGD_THREADS)
	seed_sgd_kernel(struct kx_seed s, struct seed_tiling tiling, int images, struct kx_now *now,
		int steps, double *loss, int conv_blocks)
{
	const int block = blockIdx.x;

	await_previous();
	if (block == 0)
		sgd_bias_and_loss(s, images, now, steps, loss);
	else if (block <= conv_blocks)
		sgd_conv(s, tiling.slices * tiling.position_blocks, block - 1, now->rate);
	else
		sgd_fc(s, tiling.slices, block - 1 - conv_blocks, gridDim.x - 1 - conv_blocks,
			now->rate);
}

/* ---- copy to the manifest's order ------------------------------------------------------------ */

__global__ void seed_unpack_kernel(struct kx_seed s, struct seed_params from, float *manifest)
{
	const size_t n_conv = (size_t)s.f * SEED_ROW_USED;
	const size_t n_fc = (size_t)s.f * SEED_POSITIONS * SEED_CLASSES;

	FOR_EACH (i, n_fc) {
		size_t p = i % SEED_POSITIONS, f = i / SEED_POSITIONS % s.f;
		size_t c = i / SEED_POSITIONS / s.f;

		manifest[n_conv + i] = from.fc[(p * s.f_pad + f) * SEED_ROW + c];
	}
	FOR_EACH (i, n_conv) {
		int k = (int)(i % SEED_ROW_USED), f = (int)(i / SEED_ROW_USED);

		manifest[seed_conv_at(s, f, k)] = from.conv[f * SEED_ROW + k];
	}
	FOR_EACH (i, SEED_CLASSES)
		manifest[n_conv + n_fc + i] = from.bias[i];
}

} // namespace

int kx_seed_reduce_gradient(
	struct kx_seed s, int images, float *grad, double *loss, cudaStream_t stream)
{
	struct seed_tiling c = kx_seed_tiling(s.f_pad, s.half, images);
	size_t n = (size_t)s.f * SEED_POSITIONS * SEED_CLASSES;

	seed_gradient_kernel<<<blocks_for(n, SGD_THREADS), SGD_THREADS, 0, stream>>>(
		s, c, images, grad, loss);
	return KX_LAUNCHED();
}

int kx_seed_sgd_step(struct kx_seed s, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream)
{
	struct seed_tiling c = kx_seed_tiling(s.f_pad, s.half, batch.images);
	int conv_blocks = (s.f_pad + CONV_FILTERS - 1) / CONV_FILTERS;
	size_t fc = (size_t)SEED_POSITIONS * s.f_pad * SEED_ROW / 4;
	unsigned blocks = 1 + (unsigned)conv_blocks + blocks_for(fc, SGD_THREADS);

	return kx_launch(seed_sgd_kernel, dim3(blocks), SGD_THREADS, 0, stream, s, c, batch.images,
		now, steps, loss, conv_blocks);
}

int kx_seed_unpack(struct kx_seed s, struct seed_params from, float *manifest, cudaStream_t stream)
{
	size_t n = (size_t)s.f * SEED_POSITIONS * SEED_CLASSES;

	seed_unpack_kernel<<<blocks_for(n, SGD_THREADS), SGD_THREADS, 0, stream>>>(
		s, from, manifest);
	return KX_LAUNCHED();
}
