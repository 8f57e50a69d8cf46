/*
 * tiled.cu - the kernels of rung 7, with tiles in registers and shared memory. The forward kernel
 * keeps an image in shared memory and the 16 pixels of a window in registers for 32 filters. The
 * backward kernel reads each pooled value only once, for the gradients of conv and of fc. This
 * kernel keeps a column of fc weights and all sums in registers, loads the next images while it
 * computes the current ones, and reads the images as bytes from the data set on the device.
 */
#include "kernels/ladder/products.cuh"

namespace
{

#define FORWARD_FILTERS 32
#define FORWARD_THREADS 192 /* number of threads: POOL_AREA in whole warps */
/* number of floats of a row: 9 weights and a bias, or 10 classes, rounded up to 16 bytes */
#define ROW              12
#define BACKWARD_FILTERS 2
/* number of threads: 2 * POOL_AREA rounded up to whole warps */
#define BACKWARD_THREADS 352
/* number of blocks of tiled_backward_kernel per multiprocessor */
#define BLOCKS_PER_SM 2
#define STAGE         4                /* number of images between two barriers */
#define WORDS         (IMAGE_AREA / 4) /* number of words of 4 pixels per image */
#define LOADS         ((STAGE * WORDS + BACKWARD_THREADS - 1) / BACKWARD_THREADS)
#define FULL_CHIP     (BLOCKS_PER_SM * 132)
#define TO_UNIT       (1 / 255.0f)

__device__ const uint8_t *tiled_image(const struct products &p, size_t n)
{
	return p.pixels + (size_t)p.index[n] * IMAGE_AREA;
}

/* ---- forward --------------------------------------------------------------------------------- */

__device__ void load_weights(const struct fused &k, size_t first, float (*weight)[ROW])
{
	for (size_t i = threadIdx.x; i < FORWARD_FILTERS * ROW; i += FORWARD_THREADS) {
		size_t f = first + i / ROW, w = i % ROW;
		int there = f < k.filters && w <= WEIGHTS;
		size_t from = w < WEIGHTS ? f * WEIGHTS + w : image_conv_bias(k.filters) + f;

		weight[i / ROW][w] = there ? k.params[from] : 0;
	}
}

/* Computes output pixel i (row order) of a pool window. `patch` has the pixels under the window. */
__device__ float convolve(const float patch[4][4], const float w[ROW], int i)
{
	float sum = w[WEIGHTS];
#pragma unroll
	for (int ky = 0; ky < WINDOW; ky++)
#pragma unroll
		for (int kx = 0; kx < WINDOW; kx++)
			sum += w[ky * WINDOW + kx] * patch[i / 2 + ky][i % 2 + kx];
	return sum;
}

/* A block handles 32 filters (x) and image n (y). Thread o computes pooled value o of each
 * filter. */
__global__ __launch_bounds__(FORWARD_THREADS) void tiled_convolve_kernel(struct products p)
{
	__shared__ float image[IMAGE_AREA];

	__shared__ __align__(16) float weight[FORWARD_FILTERS][ROW];
	size_t n = blockIdx.y, first = (size_t)blockIdx.x * FORWARD_FILTERS, o = threadIdx.x;
	const uint8_t *pixels = tiled_image(p, n);
	for (size_t i = o; i < IMAGE_AREA; i += FORWARD_THREADS)
		image[i] = (float)pixels[i] * TO_UNIT;
	load_weights(p.k, first, weight);
	__syncthreads();
	if (o >= POOL_AREA)
		return;
	float patch[4][4];
#pragma unroll
	for (int i = 0; i < 16; i++)
		patch[i / 4][i % 4] = image[(o / POOL_SIDE * 2 + (size_t)i / 4) * IMAGE_SIDE +
					    o % POOL_SIDE * 2 + (size_t)i % 4];
	size_t last = p.k.filters - first < FORWARD_FILTERS ? p.k.filters - first : FORWARD_FILTERS;
	size_t to = (n * p.k.filters + first) * POOL_AREA + o;
	for (size_t f = 0; f < last; f++, to += POOL_AREA) {
		float w[ROW], best = 0;
		uint8_t argmax = DEAD;
#pragma unroll
		for (int i = 0; i < ROW; i += 4)
			*(float4 *)(w + i) = *(const float4 *)&weight[f][i];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float sum = convolve(patch, w, i);

			argmax = sum > best ? (uint8_t)i : argmax;
			best = sum > best ? sum : best;
		}
		p.k.pooled[to] = best;
		p.k.argmax[to] = argmax;
	}
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The images that all threads of a block use. */
struct stage {
	float4 image[STAGE * WORDS];
	float4 d_logits[STAGE][ROW / 4];
};

/* The part of the next stage that a thread loads while the block computes the current one. */
struct prefetched {
	uint32_t word[LOADS];
	float d_logits;
	float in[STAGE];
	uint8_t argmax[STAGE];
};

/* The gradient sums of a thread for its pooled value. */
struct sums {
	float fc[CLASSES];
	float conv[WEIGHTS + 1];
};

/* Loads images [n, n + m). `i` is the number of the thread's pooled value; `works` is 0 if it has
 * none. */
__device__ void tiled_prefetch(
	const struct products &p, size_t n, unsigned m, size_t i, int works, struct prefetched *a)
{
	size_t inputs = p.k.filters * POOL_AREA;
#pragma unroll
	for (unsigned k = 0; k < LOADS; k++) {
		unsigned w = threadIdx.x + k * BACKWARD_THREADS;

		if (w < m * WORDS)
			a->word[k] = ((const uint32_t *)tiled_image(p, n + w / WORDS))[w % WORDS];
	}
	if (threadIdx.x < m * CLASSES)
		a->d_logits = p.k.logits[n * CLASSES + threadIdx.x];
#pragma unroll
	for (unsigned k = 0; k < STAGE; k++) {
		int there = works && k < m;

		a->in[k] = there ? p.k.pooled[(n + k) * inputs + i] : 0;
		a->argmax[k] = there ? p.k.argmax[(n + k) * inputs + i] : (uint8_t)DEAD;
	}
}

__device__ void tiled_store_prefetched(const struct prefetched &a, unsigned m, struct stage *s)
{
#pragma unroll
	for (unsigned k = 0; k < LOADS; k++) {
		unsigned w = threadIdx.x + k * BACKWARD_THREADS, v = a.word[k];

		if (w < m * WORDS)
			s->image[w] = make_float4((float)(v & 255) * TO_UNIT,
				(float)(v >> 8 & 255) * TO_UNIT, (float)(v >> 16 & 255) * TO_UNIT,
				(float)(v >> 24) * TO_UNIT);
	}
	if (threadIdx.x < m * CLASSES)
		((float *)s->d_logits[threadIdx.x / CLASSES])[threadIdx.x % CLASSES] = a.d_logits;
}

__device__ void tiled_add_image(struct sums *sum, const float weight[CLASSES], const float4 *logits,
	float in, const float *at, int dead)
{
	float d_logits[ROW], d = 0;
#pragma unroll
	for (int i = 0; i < ROW / 4; i++)
		*(float4 *)(d_logits + 4 * i) = logits[i];
#pragma unroll
	for (int c = 0; c < CLASSES; c++) {
		sum->fc[c] += d_logits[c] * in;
		d += d_logits[c] * weight[c];
	}
	d = dead ? 0 : d;
#pragma unroll
	for (int w = 0; w < WEIGHTS; w++)
		sum->conv[w] += d * at[w / WINDOW * IMAGE_SIDE + w % WINDOW];
	sum->conv[WEIGHTS] += d;
}

/* Adds the gradients of the images of a stage to the sums. The window of the thread starts at pixel
 * `corner` of each image. */
__device__ void add_stage(struct sums *sum, const float weight[CLASSES], const struct stage &s,
	const struct prefetched &now, unsigned m, unsigned corner)
{
	const float *image = (const float *)s.image;
#pragma unroll
	for (unsigned k = 0; k < STAGE; k++) {
		unsigned argmax = now.argmax[k];

		if (k < m)
			tiled_add_image(sum, weight, s.d_logits[k], now.in[k],
				image + k * IMAGE_AREA + corner + argmax / 2 % 2 * IMAGE_SIDE +
					argmax % 2,
				argmax == DEAD);
	}
}

/* Adds the gradient of the fc bias. The threads without a pooled value compute it, one class
 * each. */
__device__ void tiled_add_bias(const struct stage &s, unsigned m, float *sum)
{
	unsigned c = threadIdx.x - BACKWARD_FILTERS * POOL_AREA;

	for (unsigned k = 0; k < m && c < CLASSES; k++)
		*sum += ((const float *)s.d_logits[k])[c];
}

/* Adds up the sums of the threads of each filter in a fixed order and writes them to `to`, the
 * part_grad of the chunk. */
__device__ void tiled_write_conv(const struct sums &sum, size_t first, size_t filters, float *to)
{
	__shared__ float value[BACKWARD_THREADS];
	size_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, f = first + warp;
#pragma unroll
	for (int w = 0; w <= WEIGHTS; w++) {
		__syncthreads();
		value[threadIdx.x] = sum.conv[w];
		__syncthreads();
		if (warp >= BACKWARD_FILTERS || f >= filters)
			continue;
		float all = 0;
		for (size_t o = lane; o < POOL_AREA; o += 32)
			all += value[warp * POOL_AREA + o];
		all = warp_sum(all);
		if (lane == 0)
			to[w < WEIGHTS ? f * WEIGHTS + (size_t)w : image_conv_bias(filters) + f] =
				all;
	}
}

/* A block handles two filters (x) and a chunk of images (y). A thread handles one pooled value and
 * loops over the images. */
__global__ __launch_bounds__(BACKWARD_THREADS, BLOCKS_PER_SM) void tiled_backward_kernel(
	struct products p, size_t n_images, size_t chunk)
{
	__shared__ struct stage s;
	size_t inputs = p.k.filters * POOL_AREA, first = (size_t)blockIdx.x * BACKWARD_FILTERS;
	size_t fc = image_fc_weight(p.k.filters), n = blockIdx.y * chunk;
	size_t end = n + chunk < n_images ? n + chunk : n_images;
	unsigned t = threadIdx.x, o = t % POOL_AREA;
	size_t i = first * POOL_AREA + t;
	int works = t < BACKWARD_FILTERS * POOL_AREA && i < inputs;
	float weight[CLASSES], bias = 0;
	struct sums sum = {};
	struct prefetched a;
#pragma unroll
	for (int c = 0; c < CLASSES; c++)
		weight[c] = works ? p.k.params[fc + (size_t)c * inputs + i] : 0;
	unsigned m = end - n < STAGE ? (unsigned)(end - n) : STAGE;
	tiled_prefetch(p, n, m, i, works, &a);
	while (m > 0) {
		__syncthreads();
		tiled_store_prefetched(a, m, &s);
		__syncthreads();
		struct prefetched now = a;
		unsigned present = m;
		n += m;
		m = end - n < STAGE ? (unsigned)(end - n) : STAGE;
		tiled_prefetch(p, n, m, i, works, &a);
		if (works)
			add_stage(&sum, weight, s, now, present,
				o / POOL_SIDE * 2 * IMAGE_SIDE + o % POOL_SIDE * 2);
		else
			tiled_add_bias(s, present, &bias);
	}
	float *to = p.part_grad + blockIdx.y * p.k.n_params;
	for (size_t c = 0; c < CLASSES && works; c++)
		to[fc + c * inputs + i] = sum.fc[c];
	if (blockIdx.x == 0 && t - BACKWARD_FILTERS * POOL_AREA < CLASSES)
		to[image_fc_bias(p.k.filters) + t - BACKWARD_FILTERS * POOL_AREA] = bias;
	tiled_write_conv(sum, first, p.k.filters, to);
}

} // namespace

int tiled_convolve(struct gpu *g, const struct products *p, size_t n, struct err *e)
{
	dim3 grid((unsigned)((p->k.filters + FORWARD_FILTERS - 1) / FORWARD_FILTERS), (unsigned)n);
	tiled_convolve_kernel<<<grid, FORWARD_THREADS, 0, g->stream>>>(*p);
	LAUNCHED(e);
	return gpu_mark(g, "conv + ReLU + pool", PHASE_KERNEL, e);
}

int tiled_backward(struct gpu *g, const struct products *p, size_t n, size_t chunks, struct err *e)
{
	dim3 grid((unsigned)((p->k.filters + BACKWARD_FILTERS - 1) / BACKWARD_FILTERS),
		(unsigned)chunks);
	tiled_backward_kernel<<<grid, BACKWARD_THREADS, 0, g->stream>>>(
		*p, n, (n + chunks - 1) / chunks);
	LAUNCHED(e);
	return gpu_mark(g, "backward", PHASE_KERNEL, e);
}

size_t tiled_chunks(const struct products *p, size_t n)
{
	size_t blocks = (p->k.filters + BACKWARD_FILTERS - 1) / BACKWARD_FILTERS;

	return products_chunks(p, n, blocks, FULL_CHIP);
}
