/*
 * tensor.cu - the forward kernels of rungs 12, 13 and 14. The convolution runs on tensor cores, as
 * exact as fp32 (exact_conv.cuh). A block handles eight images and eight filters. The block
 * collects the pooled values in shared memory, because each image then has 5408 contiguous bytes to
 * write. From rung 13 on, the block also multiplies each pooled value by its ten fc weights, in
 * registers. In rung 14 the block stores the argmax of each pooled value, but not the value.
 */
#include "kernels/cuda/fused/seed.cuh"
#include "kernels/ladder/products.cuh"

namespace
{

#define WARPS   8
#define THREADS (32 * WARPS)
#define IMAGES  8  /* number of images of a block: the columns of m16n8k16 */
#define FILTERS 8  /* number of filters of a block */
#define ROW     12 /* number of floats of a row: 9 weights or 10 classes, rounded up to 16 bytes */
#define VALUES  (FILTERS * POOL_AREA)
/* The stride between two images in shared memory. With this stride, the values that a warp stores
 * are in 32 different banks. */
#define STRIDE (VALUES + 4)

/* The forward kernel of rung 12 computes the convolution. The kernel of rung 13 also computes the
 * fc layer. The kernel of rung 14 computes both layers and stores no pooled values. */
enum forward_level { CONV, WITH_FC, WITHOUT_VALUES };

template <enum forward_level LEVEL> struct tensor_shared {
	uint32_t pixels[IMAGES * IMAGE_WORDS];
	/* not used if LEVEL is WITHOUT_VALUES */
	float pooled[LEVEL == WITHOUT_VALUES ? 1 : IMAGES][STRIDE];
	uint8_t argmax[IMAGES][STRIDE];
	float logits[WARPS][IMAGES * CLASSES];
};

unsigned tensor_groups(const struct products *p)
{
	return (unsigned)((p->k.filters + FILTERS - 1) / FILTERS);
}

/* Writes the weights as operands of the tensor cores, eight filters per block. The operands of
 * filters that do not exist are zeros. */
__global__ void tensor_fragments_kernel(struct products p, uint32_t *fragments)
{
	__shared__ float weight[FILTERS][ROW];
	size_t first = (size_t)blockIdx.x * FILTERS, i = threadIdx.x;

	if (i < FILTERS * ROW) {
		size_t f = first + i / ROW, w = i % ROW;

		weight[i / ROW][w] =
			f < p.k.filters && w < WEIGHTS ? p.k.params[f * WEIGHTS + w] : 0;
	}
	__syncthreads();
	conv_fragment<WINDOW>(
		fragments + (size_t)blockIdx.x * THREADS * CONV_TERMS, &weight[0][0], ROW, i);
}

/* Stores the fc weights as [position][filter][ROW]. */
__global__ void tensor_fc_kernel(struct products p, size_t f_pad, float *fc)
{
	size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, c = i % ROW, f = i / ROW % f_pad;
	size_t o = i / ROW / f_pad;
	int there = c < CLASSES && f < p.k.filters;

	if (o < POOL_AREA)
		fc[i] = there ? p.k.params[image_fc_weight(p.k.filters) +
					   (c * p.k.filters + f) * POOL_AREA + o]
			      : 0;
}

__device__ void tensor_load_images(uint32_t *pixels, const struct products &p, size_t n_images)
{
	const int chunks = IMAGE_AREA / 16;

	for (int i = (int)threadIdx.x; i < IMAGES * chunks; i += THREADS) {
		size_t n = (size_t)blockIdx.x * IMAGES + (size_t)(i / chunks);
		uint4 v = {0, 0, 0, 0};

		if (n < n_images)
			v = ((const uint4 *)(p.pixels +
					     (size_t)p.index[n] * IMAGE_AREA))[i % chunks];
		conv_put(pixels, i, v);
	}
}

/* Copies the values of the block from shared memory to `to`, the place of its first value. If the
 * number of filters is a multiple of eight, the values of each image begin at a multiple of 32
 * bytes for floats, and of 8 bytes for bytes. */
template <class T, class VECTOR>
__device__ void tensor_write(
	const struct products &p, const T (*shared)[STRIDE], T *to, size_t n_images)
{
	const unsigned each = sizeof(VECTOR) / sizeof(T);
	const size_t first = (size_t)blockIdx.x * IMAGES, left = n_images - first;
	const unsigned images = left < IMAGES ? (unsigned)left : IMAGES;
	const size_t inputs = p.k.filters * POOL_AREA;

	to += first * inputs + (size_t)blockIdx.y * VALUES;
	if (p.k.filters % FILTERS == 0) {
		for (unsigned i = threadIdx.x; i < images * (VALUES / each); i += THREADS) {
			const unsigned n = i / (VALUES / each), k = i % (VALUES / each);

			((VECTOR *)(to + n * inputs))[k] = ((const VECTOR *)shared[n])[k];
		}
		return;
	}
	const size_t behind = inputs - (size_t)blockIdx.y * VALUES;
	const unsigned values = behind < VALUES ? (unsigned)behind : VALUES;
	for (unsigned i = threadIdx.x; i < images * values; i += THREADS)
		to[i / values * inputs + i % values] = shared[i / values][i % values];
}

/* Adds up the logits of the filters of each warp, then of the warps, in a fixed order. */
__device__ void tensor_write_logits(const struct products &p, float (&sum)[2][CLASSES],
	float (*shared)[IMAGES * CLASSES], size_t n_images)
{
	const unsigned t = threadIdx.x % 4, warp = threadIdx.x / 32;
	const size_t first = (size_t)blockIdx.x * IMAGES;
#pragma unroll
	for (unsigned i = 0; i < 2; i++)
		logits_reduce_filters(sum[i], shared[warp] + (2 * t + i) * CLASSES);
	__syncthreads();
	for (unsigned i = threadIdx.x; i < IMAGES * CLASSES; i += THREADS) {
		float all = 0;

		for (int w = 0; w < WARPS; w++)
			all += shared[w][i];
		if (first + i / CLASSES < n_images)
			p.partial_logits[(blockIdx.y * n_images + first) * CLASSES + i] = all;
	}
}

/* A block handles 8 images (x) and 8 filters (y), and a warp handles every eighth position. A
 * thread has filter lane / 4 for images 2t and 2t + 1 (t = lane % 4). */
template <enum forward_level LEVEL>
__global__ void __launch_bounds__(THREADS, LEVEL == CONV ? 3 : 2)
	tensor_forward_kernel(struct products p, struct tensor_conv tensor, size_t n_images)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct tensor_shared<LEVEL> *shared =
		reinterpret_cast<struct tensor_shared<LEVEL> *>(memory);
	const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
	const size_t f = (size_t)blockIdx.y * FILTERS + (size_t)r;
	const int at[1][2] = {{conv_pair<WINDOW>(0, 0, t), conv_pair<WINDOW>(0, 1, t)}};
	const uint32_t *image = shared->pixels + r * IMAGE_WORDS;
	const float *fc = tensor.fc + f * ROW;
	struct conv_weights<WINDOW> w;
	float logits[2][CLASSES] = {};

	tensor_load_images(shared->pixels, p, n_images);
	conv_load(&w, tensor.fragments, (int)blockIdx.y, lane);
	const float bias = f < p.k.filters ? p.k.params[image_conv_bias(p.k.filters) + f] : 0;
	__syncthreads();
	for (int o = (int)threadIdx.x / 32; o < POOL_AREA; o += WARPS) {
		const uint32_t *patch = image + o / POOL_SIDE * (2 * ROW_WORDS) + o % POOL_SIDE;
		struct feature_weights weights;
		float c[2][4] = {};

		if (LEVEL != CONV)
			weights = feature_load(fc + (size_t)o * tensor.f_pad * ROW);
		conv_window<WINDOW>(c, w, patch, at);
#pragma unroll
		for (int e = 0; e < 2; e++) {
			uint32_t which;
			float v = max4_argmax(c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &which);

			v = fmaf(v, CONV_PIXEL, bias);
			shared->argmax[2 * t + e][r * POOL_AREA + o] =
				v > 0 ? (uint8_t)which : (uint8_t)DEAD;
			v = v > 0 ? v : 0;
			if (LEVEL != WITHOUT_VALUES)
				shared->pooled[2 * t + e][r * POOL_AREA + o] = v;
			if (LEVEL != CONV)
				logits_add(logits[e], v, weights);
		}
	}
	__syncthreads();
	if (LEVEL != WITHOUT_VALUES)
		tensor_write<float, float4>(p, shared->pooled, p.k.pooled, n_images);
	tensor_write<uint8_t, uint32_t>(p, shared->argmax, p.k.argmax, n_images);
	if (LEVEL != CONV)
		tensor_write_logits(p, logits, shared->logits, n_images);
}

template <enum forward_level LEVEL>
int tensor_launch(struct gpu *g, const struct products *p, const struct tensor_conv *t, size_t n,
	struct err *e)
{
	const int bytes = (int)sizeof(struct tensor_shared<LEVEL>);

	dim3 grid((unsigned)((n + IMAGES - 1) / IMAGES), tensor_groups(p));
	TRY(cudaFuncSetAttribute(tensor_forward_kernel<LEVEL>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
		e);
	tensor_forward_kernel<LEVEL><<<grid, THREADS, bytes, g->stream>>>(*p, *t, n);
	LAUNCHED(e);
	return gpu_mark(g, LEVEL == CONV ? "conv + ReLU + pool" : "forward", PHASE_KERNEL, e);
}

/* Brings the weights into the order of the kernels. */
int tensor_pack(struct gpu *g, const struct products *p, const struct tensor_conv *t, struct err *e)
{
	const size_t n = POOL_AREA * t->f_pad * ROW;

	tensor_fragments_kernel<<<tensor_groups(p), THREADS, 0, g->stream>>>(*p, t->fragments);
	LAUNCHED(e);
	if (t->fc) {
		tensor_fc_kernel<<<(unsigned)((n + THREADS - 1) / THREADS), THREADS, 0,
			g->stream>>>(*p, t->f_pad, t->fc);
		LAUNCHED(e);
	}
	return gpu_mark(g, "weights in order", PHASE_KERNEL, e);
}

} // namespace

int tensor_allocate(struct gpu *g, struct tensor_conv *t, struct products *p, int fc, struct err *e)
{
	const size_t groups = tensor_groups(p);
	int rc;

	t->f_pad = groups * FILTERS;
	rc = GPU_ALLOC(g, t->fragments, groups * THREADS * CONV_TERMS, GPU_DEVICE, e);
	if (!rc && fc)
		rc = GPU_ALLOC(g, t->fc, POOL_AREA * t->f_pad * ROW, GPU_DEVICE, e);
	if (!rc && fc)
		rc = GPU_ALLOC(
			g, p->partial_logits, groups * p->max_batch * CLASSES, GPU_DEVICE, e);
	return rc;
}

int tensor_conv_forward(struct gpu *g, const struct products *p, const struct tensor_conv *t,
	size_t n, struct err *e)
{
	int rc = tensor_pack(g, p, t, e);

	if (rc)
		return rc;
	if (!t->fc) {
		rc = tensor_launch<CONV>(g, p, t, n, e);
		return rc ? rc : staged_logits(g, p, n, e);
	}
	rc = p->k.pooled ? tensor_launch<WITH_FC>(g, p, t, n, e)
			 : tensor_launch<WITHOUT_VALUES>(g, p, t, n, e);
	return rc ? rc : products_softmax(g, p, n, tensor_groups(p), e);
}
