/*
 * dense.cu - the backward kernels of rungs 9 and 14. A thread that propagates dY only through the
 * argmax loads nine pixels at an address that depends on the argmax. The threads of a warp then
 * read from different places, which causes bank conflicts. Here a thread keeps the 16 pixels of the
 * window in registers for two filters. The thread propagates a value through each of the four
 * output pixels: dY through the argmax, and zero through the other three.
 *
 * Rung 14 reads no pooled value from memory. The thread selects the nine pixels under the argmax
 * among those in its registers, and computes the pooled value again from them. It also propagates
 * dY through these nine pixels only.
 */
#include "kernels/ladder/products.cuh"

namespace
{

#define THREADS       192 /* number of threads: POOL_AREA rounded up to whole warps */
#define FILTERS       2   /* number of filters of a thread */
#define BLOCKS_PER_SM 2
#define STAGE         4                /* number of images between two barriers */
#define WORDS         (IMAGE_AREA / 4) /* number of words of 4 pixels per image */
#define LOADS         ((STAGE * WORDS + THREADS - 1) / THREADS)
#define ROW           12 /* number of floats of a row: 10 classes rounded up to 16 bytes */
#define FULL_CHIP     (BLOCKS_PER_SM * 132)
#define TO_UNIT       (1 / 255.0f)

/* The images that all threads of a block use. */
struct stage {
	float4 image[STAGE * WORDS];
	float4 d_logits[STAGE][ROW / 4];
};

/* The part of the next stage that a thread loads while the block computes the current one. */
struct prefetched {
	uint32_t word[LOADS];
	float d_logits;
	float in[STAGE][FILTERS];
	uint8_t argmax[STAGE][FILTERS];
};

/* The weights and sums of a thread for one pooled value. */
struct column {
	float weight[CLASSES], fc[CLASSES], conv[WEIGHTS + 1];
	float filter[WEIGHTS + 1]; /* rung 14: conv weights and bias */
};

/* Points to the thread's pooled value in the next image, for the first of its filters. */
struct place {
	const float *in; /* the pooled value; rung 14 does not use this pointer */
	const uint8_t *argmax;
	unsigned inputs; /* stride from one image to the next, in values */
	unsigned works;  /* number of filters that the thread handles, 0 to FILTERS */
};

/* Loads images [n, n + m). `from` points to the values of the thread in image n. */
template <bool RECOMPUTE>
__device__ void dense_prefetch(const struct products &p, size_t n, unsigned m,
	const struct place &from, struct prefetched *a)
{
#pragma unroll
	for (unsigned k = 0; k < LOADS; k++) {
		unsigned w = threadIdx.x + k * THREADS;

		if (w < m * WORDS)
			a->word[k] = ((const uint32_t *)(p.pixels + (size_t)p.index[n + w / WORDS] *
									    IMAGE_AREA))[w % WORDS];
	}
	if (threadIdx.x < m * CLASSES)
		a->d_logits = p.k.logits[n * CLASSES + threadIdx.x];
#pragma unroll
	for (unsigned k = 0; k < STAGE; k++)
#pragma unroll
		for (unsigned f = 0; f < FILTERS; f++) {
			unsigned at = k * from.inputs + f * POOL_AREA;
			int there = f < from.works && k < m;

			if (!RECOMPUTE)
				a->in[k][f] = there ? from.in[at] : 0;
			a->argmax[k][f] = there ? from.argmax[at] : (uint8_t)DEAD;
		}
}

/* Converts byte i of v to float: puts it in the lowest byte of 2^23 and subtracts 2^23. These two
 * operations are faster than a conversion instruction. */
__device__ float byte_value(unsigned v, unsigned i)
{
	return __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7440u + i)) - 0x1p23f;
}

__device__ void dense_store_prefetched(const struct prefetched &a, unsigned m, struct stage *s)
{
#pragma unroll
	for (unsigned k = 0; k < LOADS; k++) {
		unsigned w = threadIdx.x + k * THREADS, v = a.word[k];

		if (w < m * WORDS)
			s->image[w] = make_float4(byte_value(v, 0), byte_value(v, 1),
				byte_value(v, 2), byte_value(v, 3));
	}
	if (threadIdx.x < m * CLASSES)
		((float *)s->d_logits[threadIdx.x / CLASSES])[threadIdx.x % CLASSES] = a.d_logits;
}

/* Adds the conv gradient of one window. Pixels count from 0 to 255 here, so dY is scaled by 1 /
 * 255. */
__device__ void push(struct column *to, const float patch[4][4], float d, unsigned argmax)
{
	float at[4];
#pragma unroll
	for (unsigned i = 0; i < 4; i++)
		at[i] = argmax == i ? d * TO_UNIT : 0;
#pragma unroll
	for (int w = 0; w < WEIGHTS; w++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			to->conv[w] += at[i] * patch[w / WINDOW + i / 2][w % WINDOW + i % 2];
	to->conv[WEIGHTS] += argmax == DEAD ? 0 : d;
}

/* Selects the nine pixels under the argmax. */
__device__ void select_pixels(float under[WEIGHTS], const float patch[4][4], unsigned argmax)
{
	float rows[WINDOW][4];
#pragma unroll
	for (int i = 0; i < WINDOW * 4; i++)
		rows[i / 4][i % 4] = argmax & 2 ? patch[i / 4 + 1][i % 4] : patch[i / 4][i % 4];
#pragma unroll
	for (int w = 0; w < WEIGHTS; w++)
		under[w] = argmax & 1 ? rows[w / WINDOW][w % WINDOW + 1]
				      : rows[w / WINDOW][w % WINDOW];
}

/* Computes a pooled value again from the nine pixels under its argmax. */
__device__ float pooled_again(
	const float filter[WEIGHTS + 1], const float under[WEIGHTS], unsigned argmax)
{
	float sum = 0;
#pragma unroll
	for (int w = 0; w < WEIGHTS; w++)
		sum += filter[w] * under[w];
	return argmax == DEAD ? 0 : sum * TO_UNIT + filter[WEIGHTS];
}

/* Adds the conv gradient of one window. Only the pixels under the argmax count. */
__device__ void push_under(struct column *to, const float under[WEIGHTS], float d, unsigned argmax)
{
	const float dead_or_d = argmax == DEAD ? 0 : d, unit = dead_or_d * TO_UNIT;
#pragma unroll
	for (int w = 0; w < WEIGHTS; w++)
		to->conv[w] += unit * under[w];
	to->conv[WEIGHTS] += dead_or_d;
}

/* Adds the gradients of image k of the stage to the sums. The window of the thread starts at pixel
 * `corner`. */
template <bool RECOMPUTE>
__device__ void dense_add_image(struct column column[FILTERS], const struct stage &s, unsigned k,
	unsigned corner, const float in[FILTERS], const uint8_t argmax[FILTERS])
{
	const float *image = (const float *)(s.image + k * WORDS) + corner;
	float d_logits[ROW], patch[4][4];
#pragma unroll
	for (int i = 0; i < ROW / 4; i++)
		*(float4 *)(d_logits + 4 * i) = s.d_logits[k][i];
#pragma unroll
	for (int i = 0; i < 8; i++)
		*(float2 *)&patch[i / 2][i % 2 * 2] =
			*(const float2 *)(image + i / 2 * IMAGE_SIDE + i % 2 * 2);
#pragma unroll
	for (int f = 0; f < FILTERS; f++) {
		float d = 0, under[WEIGHTS], value;

		if (RECOMPUTE) {
			select_pixels(under, patch, argmax[f]);
			value = pooled_again(column[f].filter, under, argmax[f]);
		} else {
			value = in[f];
		}
#pragma unroll
		for (int c = 0; c < CLASSES; c++) {
			column[f].fc[c] += d_logits[c] * value;
			d += d_logits[c] * column[f].weight[c];
		}
		if (RECOMPUTE)
			push_under(&column[f], under, d, argmax[f]);
		else
			push(&column[f], patch, d, argmax[f]);
	}
}

/* Adds the gradient of the fc bias. Threads without a pooled value compute it, one class each. */
__device__ void dense_add_bias(const struct stage &s, unsigned m, float *sum)
{
	unsigned c = threadIdx.x - POOL_AREA;

	for (unsigned k = 0; k < m && c < CLASSES; k++)
		*sum += ((const float *)s.d_logits[k])[c];
}

/* Adds up the sums of the block's threads in a fixed order and writes them to `to`, the part_grad
 * of the chunk. The sums of threads from POOL_AREA on are zero. */
__device__ void dense_write_conv(
	const struct column column[FILTERS], size_t first, size_t filters, float *to)
{
	__shared__ float part[FILTERS][WEIGHTS + 1][THREADS / 32];
#pragma unroll
	for (int f = 0; f < FILTERS; f++)
#pragma unroll
		for (int w = 0; w <= WEIGHTS; w++) {
			float sum = warp_sum(column[f].conv[w]);

			if (threadIdx.x % 32 == 0)
				part[f][w][threadIdx.x / 32] = sum;
		}
	__syncthreads();
	size_t f = first + threadIdx.x / (WEIGHTS + 1), w = threadIdx.x % (WEIGHTS + 1);
	if (threadIdx.x >= FILTERS * (WEIGHTS + 1) || f >= filters)
		return;
	float sum = 0;
	for (int warp = 0; warp < THREADS / 32; warp++)
		sum += part[f - first][w][warp];
	to[w < WEIGHTS ? f * WEIGHTS + w : image_conv_bias(filters) + f] = sum;
}

__device__ void write_fc(const struct products &p, const struct column column[FILTERS], size_t i,
	unsigned works, float bias, float *to)
{
	size_t inputs = p.k.filters * POOL_AREA, fc = image_fc_weight(p.k.filters);
#pragma unroll
	for (unsigned f = 0; f < FILTERS; f++)
#pragma unroll
		for (unsigned c = 0; c < CLASSES; c++)
			if (f < works)
				to[fc + c * inputs + i + f * POOL_AREA] = column[f].fc[c];
	if (blockIdx.x == 0 && threadIdx.x - POOL_AREA < CLASSES)
		to[image_fc_bias(p.k.filters) + threadIdx.x - POOL_AREA] = bias;
}

/* Loads the conv weights and the bias of a filter. */
__device__ void load_filter(const struct products &p, size_t f, float filter[WEIGHTS + 1])
{
#pragma unroll
	for (int w = 0; w < WEIGHTS; w++)
		filter[w] = p.k.params[f * WEIGHTS + w];
	filter[WEIGHTS] = p.k.params[image_conv_bias(p.k.filters) + f];
}

/* A block handles two filters (x) and a chunk of images (y). Thread o handles pooled value o of
 * both filters and loops over the images. */
template <bool RECOMPUTE>
__global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void backward_kernel(
	struct products p, size_t n_images, size_t chunk)
{
	__shared__ struct stage s;
	size_t inputs = p.k.filters * POOL_AREA, first = (size_t)blockIdx.x * FILTERS;
	size_t n = blockIdx.y * chunk, end = n + chunk < n_images ? n + chunk : n_images;
	unsigned o = threadIdx.x, left = (unsigned)(p.k.filters - first);
	unsigned works = o >= POOL_AREA ? 0 : left < FILTERS ? left : FILTERS;
	size_t i = first * POOL_AREA + o;
	struct column column[FILTERS] = {};
	struct place from = {
		p.k.pooled + n * inputs + i, p.k.argmax + n * inputs + i, (unsigned)inputs, works};
	struct prefetched a;
	float bias = 0;
#pragma unroll
	for (unsigned f = 0; f < FILTERS; f++)
#pragma unroll
		for (unsigned c = 0; c < CLASSES; c++)
			column[f].weight[c] = f < works ? p.k.params[image_fc_weight(p.k.filters) +
								     c * inputs + i + f * POOL_AREA]
							: 0;
#pragma unroll
	for (unsigned f = 0; f < FILTERS; f++)
		if (RECOMPUTE && f < works)
			load_filter(p, first + f, column[f].filter);
	unsigned m = end - n < STAGE ? (unsigned)(end - n) : STAGE;
	unsigned corner = o / POOL_SIDE * 2 * IMAGE_SIDE + o % POOL_SIDE * 2;
	dense_prefetch<RECOMPUTE>(p, n, m, from, &a);
	while (m > 0) {
		__syncthreads();
		dense_store_prefetched(a, m, &s);
		__syncthreads();
		struct prefetched now = a;
		unsigned present = m;
		n += m;
		from.in += m * inputs;
		from.argmax += m * inputs;
		m = end - n < STAGE ? (unsigned)(end - n) : STAGE;
		dense_prefetch<RECOMPUTE>(p, n, m, from, &a);
		if (!works)
			dense_add_bias(s, present, &bias);
#pragma unroll
		for (unsigned k = 0; k < STAGE; k++)
			if (works && k < present)
				dense_add_image<RECOMPUTE>(
					column, s, k, corner, now.in[k], now.argmax[k]);
	}
	float *to = p.part_grad + blockIdx.y * p.k.n_params;
	write_fc(p, column, i, works, bias, to);
	dense_write_conv(column, first, p.k.filters, to);
}

} // namespace

int dense_backward(struct gpu *g, const struct products *p, size_t n, size_t chunks, struct err *e)
{
	const dim3 grid((unsigned)((p->k.filters + FILTERS - 1) / FILTERS), (unsigned)chunks);
	const size_t chunk = (n + chunks - 1) / chunks;

	if (p->k.pooled)
		backward_kernel<false><<<grid, THREADS, 0, g->stream>>>(*p, n, chunk);
	else
		backward_kernel<true><<<grid, THREADS, 0, g->stream>>>(*p, n, chunk);
	LAUNCHED(e);
	return gpu_mark(g, "backward", PHASE_KERNEL, e);
}

size_t dense_chunks(const struct products *p, size_t n)
{
	return products_chunks(p, n, (p->k.filters + FILTERS - 1) / FILTERS, FULL_CHIP);
}
