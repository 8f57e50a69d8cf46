/*
 * classifier.cu - the kernels of classifier.h.
 *
 * Both products load their operands directly from global memory. The order of K does not matter if
 * both operands use the same one. Thread t of four therefore loads k = 4t to 4t + 3 of sixteen with
 * one 16-byte load per row, which serves two m16n8k8. The warps of a block divide K in the hidden
 * kernel and the columns in the dgrad kernel.
 */
#include "kernels/cuda/mma/gemm.cuh"
#include "kernels/cuda/fused/classifier.h"

namespace
{

#define CLASSIFIER_IMAGES 32 /* number of images per block: two tiles */
#define HIDDEN_WARPS      8
#define HIDDEN_THREADS    (HIDDEN_WARPS * 32)
#define HIDDEN_COLUMNS    32 /* number of columns per block: four tiles */

/* Adds the products of 16 values of K to a tile. `a` has rows r and r + 8, and `b` has column r,
 * with r = lane / 4. */
__device__ inline void add_k16(float *c, const float4 (&a)[2], const float4 &b)
{
	const float x[2][4] = {{a[0].x, a[0].y, a[0].z, a[0].w}, {a[1].x, a[1].y, a[1].z, a[1].w}};
	const float y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
	for (int k = 0; k < 4; k += 2) {
		uint32_t hi[4], lo[4], w[2], w_lo[2];
#pragma unroll
		for (int q = 0; q < 4; q++)
			split_hi_lo(x[q % 2][k + q / 2], &hi[q], &lo[q]);
#pragma unroll
		for (int q = 0; q < 2; q++)
			split_hi_lo(y[k + q], &w[q], &w_lo[q]);
		mma_tf32(c, lo, w);
		mma_tf32(c, hi, w_lo);
		mma_tf32(c, hi, w);
	}
}

/* ---- hidden layer ---------------------------------------------------------------------------- */

/* Multiplies the warp's share of the inputs, sixteen at a time. */
__device__ inline void hidden_add_inputs(
	float (&c)[2][4][4], const struct kx_classifier &h, int n0, int unit0, int images)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, r = lane / 4;
	const int k_share = h.inputs / HIDDEN_WARPS, begin = warp * k_share + lane % 4 * 4;
	const float *weight = h.transposed + (size_t)(unit0 + r) * h.inputs + begin;
	const float *in[2][2];
#pragma unroll
	for (int i = 0; i < 4; i++)
		in[i / 2][i % 2] = h.x + (size_t)min(n0 + r + 8 * i, images - 1) * h.inputs + begin;
#pragma unroll 2
	for (int k = 0; k < k_share; k += 16) {
		float4 a[2][2], b[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			a[i / 2][i % 2] = *reinterpret_cast<const float4 *>(in[i / 2][i % 2] + k);
#pragma unroll
		for (int j = 0; j < 4; j++)
			b[j] = *reinterpret_cast<const float4 *>(
				weight + (size_t)(8 * j) * h.inputs + k);
#pragma unroll
		for (int i = 0; i < 2; i++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				add_k16(c[i][j], a[i], b[j]);
	}
}

/* blockIdx.x selects the images of a block, and blockIdx.y its units. */
__global__ void __launch_bounds__(HIDDEN_THREADS, 1)
	classifier_hidden_kernel(struct kx_classifier h, int images)
{
	__shared__ float4 k_share[HIDDEN_WARPS][8][32];
	const int n0 = blockIdx.x * CLASSIFIER_IMAGES, unit0 = blockIdx.y * HIDDEN_COLUMNS;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float c[2][4][4] = {};

	await_previous();
	hidden_add_inputs(c, h, n0, unit0, images);
#pragma unroll
	for (int i = 0; i < 8; i++)
		k_share[warp][i][lane] = {c[i / 4][i % 4][0], c[i / 4][i % 4][1],
			c[i / 4][i % 4][2], c[i / 4][i % 4][3]};
	__syncthreads();
	/* each warp adds up the shares of K of one tile, in order */
	float4 sum = k_share[0][warp][lane];
	for (int i = 1; i < HIDDEN_WARPS; i++)
		sum = sum + k_share[i][warp][lane];
	const int n = n0 + warp / 4 * 16 + lane / 4, unit = unit0 + warp % 4 * 8 + lane % 4 * 2;
	const float2 bias = *reinterpret_cast<const float2 *>(h.bias + unit);
	const float v[4] = {sum.x + bias.x, sum.y + bias.y, sum.z + bias.x, sum.w + bias.y};
#pragma unroll
	for (int i = 0; i < 2; i++)
		if (n + 8 * i < images)
			*reinterpret_cast<float2 *>(
				h.hidden + (size_t)(n + 8 * i) * CLASSIFIER_UNITS + unit) = {
				v[2 * i] < 0 ? 0 : v[2 * i], v[2 * i + 1] < 0 ? 0 : v[2 * i + 1]};
}

/* ---- logits, loss and dgrad ------------------------------------------------------------------ */

/* number of threads of classifier_kernel */
#define CLASSIFIER_THREADS 512
/* number of threads per image */
#define IMAGE_THREADS    (CLASSIFIER_THREADS / CLASSIFIER_IMAGES)
#define UNITS_PER_THREAD (CLASSIFIER_UNITS / IMAGE_THREADS)
/* number of tiles of 8 columns per warp */
#define COLUMN_TILES (CLASSIFIER_INPUTS / (CLASSIFIER_THREADS / 32) / 8)
#define PREFETCH     4 /* number of K steps whose dgrad weights are loaded ahead */
/* The stride from one image to the next, in floats. With this stride, the 16-byte loads of two rows
 * are in 32 different banks. */
#define PITCH (CLASSIFIER_UNITS + 16)

struct classifier_shared {
	float class_weight[CLASSIFIER_UNITS][CLASSIFIER_CLASSES];
	float d_hidden[CLASSIFIER_IMAGES][PITCH];
};

/* Computes the logits of an image. Thread j of the image multiplies units IMAGE_THREADS * i + j.
 * When the function returns, every thread of the image has all logits. */
__device__ inline void classifier_logits(float (&logit)[CLASSIFIER_CLASSES],
	float (&hidden)[UNITS_PER_THREAD], const struct classifier_shared &s,
	const struct kx_classifier &h, int n, bool here)
{
	const int mine = threadIdx.x % IMAGE_THREADS;
#pragma unroll
	for (int i = 0; i < UNITS_PER_THREAD; i++)
		hidden[i] = here ? h.hidden[(size_t)n * CLASSIFIER_UNITS + IMAGE_THREADS * i + mine]
				 : 0;
#pragma unroll
	for (int i = 0; i < UNITS_PER_THREAD; i++)
#pragma unroll
		for (int k = 0; k < CLASSIFIER_CLASSES; k++)
			logit[k] = fmaf(
				hidden[i], s.class_weight[IMAGE_THREADS * i + mine][k], logit[k]);
#pragma unroll
	for (int k = 0; k < CLASSIFIER_CLASSES; k++) {
#pragma unroll
		for (int d = 1; d < IMAGE_THREADS; d *= 2)
			logit[k] += __shfl_xor_sync(0xffffffffu, logit[k], d);
		logit[k] += k < h.classes ? h.class_bias[k] : 0;
	}
}

/* Replaces the logits by d_logits and returns the loss. */
__device__ inline float classifier_softmax(
	float (&logit)[CLASSIFIER_CLASSES], int classes, int label, int images)
{
	float max_logit = -INFINITY, sum = 0, label_logit = 0;
#pragma unroll
	for (int k = 0; k < CLASSIFIER_CLASSES; k++) {
		max_logit = k < classes ? fmaxf(max_logit, logit[k]) : max_logit;
		label_logit = k == label ? logit[k] : label_logit;
	}
#pragma unroll
	for (int k = 0; k < CLASSIFIER_CLASSES; k++) {
		logit[k] = k < classes ? expf(logit[k] - max_logit) : 0;
		sum += logit[k];
	}
	const float scale = 1 / sum, mean = 1.0f / images;
#pragma unroll
	for (int k = 0; k < CLASSIFIER_CLASSES; k++)
		logit[k] = (logit[k] * scale - (k == label ? 1.0f : 0.0f)) * mean;
	return logf(sum) - (label_logit - max_logit);
}

/* Stores one value per class. Each thread of an image writes a few classes. */
__device__ inline void classifier_store_classes(
	float *to, const float (&v)[CLASSIFIER_CLASSES], int width, int n)
{
#pragma unroll
	for (int k = 0; k < CLASSIFIER_CLASSES; k++)
		if (k % IMAGE_THREADS == threadIdx.x % IMAGE_THREADS && k < width)
			to[(size_t)n * width + k] = v[k];
}

/* Computes the logits of an image. If TRAINING, also computes the loss, d_logits and d_hidden, and
 * writes d_hidden to shared memory. Blocks with blockIdx.y = 0 write all results to global
 * memory. */
template <bool TRAINING>
__device__ inline void classifier_classify(
	struct classifier_shared *s, const struct kx_classifier &h, int images, int n, int label)
{
	const int mine = threadIdx.x % IMAGE_THREADS;
	const bool here = n < images, writes = here && blockIdx.y == 0;
	float logit[CLASSIFIER_CLASSES] = {}, hidden[UNITS_PER_THREAD];

	classifier_logits(logit, hidden, *s, h, n, here);
	if (writes)
		classifier_store_classes(h.logits, logit, h.width, n);
	if (!TRAINING)
		return;
	const float loss = classifier_softmax(logit, h.classes, label, images);
	if (writes) {
		classifier_store_classes(h.d_logits, logit, h.width, n);
		if (mine == 0)
			h.loss[n] = loss;
	}
#pragma unroll
	for (int i = 0; i < UNITS_PER_THREAD; i++) {
		const int unit = IMAGE_THREADS * i + mine;
		float d = 0;
#pragma unroll
		for (int k = 0; k < CLASSIFIER_CLASSES; k++)
			d = fmaf(logit[k], s->class_weight[unit][k], d);
		d = hidden[i] > 0 ? d : 0;
		s->d_hidden[threadIdx.x / IMAGE_THREADS][unit] = d;
		if (writes)
			h.d_hidden[(size_t)n * CLASSIFIER_UNITS + unit] = d;
	}
}

/* Loads the weights of K step k (sixteen units) for the columns of the warp. */
__device__ inline void classifier_fetch_weights(
	float4 (&b)[COLUMN_TILES], const float *weight, int k)
{
#pragma unroll
	for (int j = 0; j < COLUMN_TILES; j++)
		b[j] = *reinterpret_cast<const float4 *>(
			weight + 8 * j * CLASSIFIER_UNITS + 16 * k);
}

/* Computes the warp's columns of dX. `weight` points to this lane's first weight. `next` holds the
 * weights of the first PREFETCH K steps. */
__device__ inline void classifier_add_dx(float (&c)[2][COLUMN_TILES][4],
	const struct classifier_shared *s, const float *weight,
	float4 (&next)[PREFETCH][COLUMN_TILES])
{
	const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
#pragma unroll
	for (int k = 0; k < CLASSIFIER_UNITS / 16; k++) {
		float4 a[2][2], b[COLUMN_TILES];
#pragma unroll
		for (int j = 0; j < COLUMN_TILES; j++)
			b[j] = next[k % PREFETCH][j];
		if (k + PREFETCH < CLASSIFIER_UNITS / 16)
			classifier_fetch_weights(next[k % PREFETCH], weight, k + PREFETCH);
#pragma unroll
		for (int i = 0; i < 4; i++)
			a[i / 2][i % 2] = *reinterpret_cast<const float4 *>(
				&s->d_hidden[r + 8 * i][16 * k + 4 * t]);
#pragma unroll
		for (int i = 0; i < 2; i++)
#pragma unroll
			for (int j = 0; j < COLUMN_TILES; j++)
				add_k16(c[i][j], a[i], b[j]);
	}
}

__device__ inline void classifier_store_dx(const struct kx_classifier &h,
	const float (&c)[2][COLUMN_TILES][4], int n0, int column0, int images)
{
	const int lane = threadIdx.x % 32;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int n = n0 + lane / 4 + 8 * i;

		if (n >= images)
			continue;
#pragma unroll
		for (int j = 0; j < COLUMN_TILES; j++) {
			const size_t at = (size_t)n * h.inputs + column0 + 8 * j + lane % 4 * 2;
			float2 v = {c[i / 2][j][i % 2 * 2], c[i / 2][j][i % 2 * 2 + 1]};

			if (h.mask) {
				const float2 mask = *reinterpret_cast<const float2 *>(h.mask + at);

				v = {mask.x > 0 ? v.x : 0, mask.y > 0 ? v.y : 0};
			}
			*reinterpret_cast<float2 *>(h.dx + at) = v;
		}
	}
}

/* blockIdx.x selects the images of a block, and blockIdx.y (only if TRAINING) its inputs. */
template <bool TRAINING>
__global__ void __launch_bounds__(CLASSIFIER_THREADS, 1)
	classifier_kernel(struct kx_classifier h, struct kx_batch batch)
{
	__shared__ __align__(16) struct classifier_shared s;
	const int n0 = blockIdx.x * CLASSIFIER_IMAGES, n = n0 + threadIdx.x / IMAGE_THREADS;
	const int column0 = blockIdx.y * CLASSIFIER_INPUTS + threadIdx.x / 32 * (8 * COLUMN_TILES);
	const float *weight = h.weight +
			      (size_t)(column0 + threadIdx.x % 32 / 4) * CLASSIFIER_UNITS +
			      threadIdx.x % 4 * 4;
	float c[2][COLUMN_TILES][4] = {};
	float4 next[PREFETCH][COLUMN_TILES];

#pragma unroll
	for (int k = 0; k < PREFETCH && TRAINING; k++)
		classifier_fetch_weights(next[k], weight, k);
	for (int i = threadIdx.x; i < CLASSIFIER_UNITS * CLASSIFIER_CLASSES;
		i += CLASSIFIER_THREADS) {
		const int unit = i / CLASSIFIER_CLASSES, k = i % CLASSIFIER_CLASSES;

		s.class_weight[unit][k] = k < h.classes ? h.class_weight[unit * h.width + k] : 0;
	}
	const int label = TRAINING && n < batch.images ? batch.labels[image_number(&batch, n)] : 0;
	await_previous();
	__syncthreads();
	classifier_classify<TRAINING>(&s, h, batch.images, n, label);
	if (!TRAINING)
		return;
	__syncthreads();
	classifier_add_dx(c, &s, weight, next);
	classifier_store_dx(h, c, n0, column0, batch.images);
}

} // namespace

int kx_classifier_hidden(struct kx_classifier h, int images, cudaStream_t stream)
{
	const dim3 grid((images + CLASSIFIER_IMAGES - 1) / CLASSIFIER_IMAGES,
		CLASSIFIER_UNITS / HIDDEN_COLUMNS);
	return kx_launch(classifier_hidden_kernel, grid, HIDDEN_THREADS, 0, stream, h, images);
}

int kx_classifier_logits(struct kx_classifier h, int images, cudaStream_t stream)
{
	struct kx_batch batch = {};

	batch.images = images;
	return kx_launch(classifier_kernel<false>,
		dim3((images + CLASSIFIER_IMAGES - 1) / CLASSIFIER_IMAGES), CLASSIFIER_THREADS, 0,
		stream, h, batch);
}

int kx_classifier_dgrad(struct kx_classifier h, struct kx_batch batch, cudaStream_t stream)
{
	const dim3 grid((batch.images + CLASSIFIER_IMAGES - 1) / CLASSIFIER_IMAGES,
		h.inputs / CLASSIFIER_INPUTS);
	return kx_launch(classifier_kernel<true>, grid, CLASSIFIER_THREADS, 0, stream, h, batch);
}
