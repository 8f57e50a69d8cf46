/*
 * tensor.cu - the forward kernels of rungs 12 and 13. The convolution runs on tensor cores, as exact
 * as fp32 (exact_conv.cuh). A warp handles eight filters and sixteen images, one row of 13 pooled
 * values after the other. It collects a row in shared memory, so that it writes whole rows to
 * memory. In rung 13 it also multiplies each pooled value by its ten fc weights, in registers.
 */
#include "kernels/cuda/fused/seed.cuh"
#include "kernels/ladder/products.cuh"

namespace
{

#define WARPS        8
#define THREADS      (32 * WARPS)
#define WARP_FILTERS 8
#define ROW          12  /* 9 weights or 10 classes, rounded up to 16 bytes */
#define FULL_CHIP    264 /* blocks: 2 on each of 132 multiprocessors */
#define ROW_VALUES   (CONV_GROUP * WARP_FILTERS * POOL_SIDE)

/* A row of a warp's pooled values: [image][filter][column]. */
struct tensor_row {
	float pooled[ROW_VALUES];
	uint8_t argmax[ROW_VALUES];
};

struct tensor_shared {
	uint32_t pixels[CONV_GROUP * IMAGE_WORDS];
	struct tensor_row row[WARPS];
	float logits[WARPS][CONV_GROUP * CLASSES];
};

/* A block handles 16 images (x), `warps` groups of 8 filters (y) and part z of the rows. */
struct tensor_tiling {
	unsigned warps;
	dim3 grid;
};

unsigned tensor_groups(const struct products *p)
{
	return (unsigned)((p->k.filters + WARP_FILTERS - 1) / WARP_FILTERS);
}

struct tensor_tiling tensor_tiling_of(const struct products *p, size_t n)
{
	unsigned groups = tensor_groups(p), warps = 1, blocks, parts;

	while (warps < WARPS && warps < groups)
		warps *= 2;
	dim3 grid((unsigned)((n + CONV_GROUP - 1) / CONV_GROUP), (groups + warps - 1) / warps);
	blocks = grid.x * grid.y;
	parts = blocks < FULL_CHIP ? FULL_CHIP / blocks : 1;
	grid.z = parts < POOL_SIDE ? parts : (unsigned)POOL_SIDE;
	return {warps, grid};
}

/* Eight filters per block: their weights as operands of the tensor cores. Filters that do not exist
 * have zeros. */
__global__ void tensor_fragments_kernel(struct products p, uint32_t *fragments)
{
	__shared__ float weight[WARP_FILTERS][ROW];
	size_t first = (size_t)blockIdx.x * WARP_FILTERS, i = threadIdx.x;

	if (i < WARP_FILTERS * ROW) {
		size_t f = first + i / ROW, w = i % ROW;

		weight[i / ROW][w] =
			f < p.k.filters && w < WEIGHTS ? p.k.params[f * WEIGHTS + w] : 0;
	}
	__syncthreads();
	conv_fragment<WINDOW>(
		fragments + (size_t)blockIdx.x * THREADS * CONV_TERMS, &weight[0][0], ROW, i);
}

/* The fc weights as [position][filter][ROW]. */
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

	for (int i = (int)threadIdx.x; i < CONV_GROUP * chunks; i += THREADS) {
		size_t n = (size_t)blockIdx.x * CONV_GROUP + (size_t)(i / chunks);
		uint4 v = {0, 0, 0, 0};

		if (n < n_images)
			v = ((const uint4 *)(p.pixels +
					     (size_t)p.index[n] * IMAGE_AREA))[i % chunks];
		conv_put(pixels, i, v);
	}
}

/* Writes row y of the images and filters of the warp. */
__device__ void tensor_write_row(const struct products &p, const struct tensor_row &row,
	size_t n_images, size_t first_filter, size_t y)
{
	for (unsigned i = threadIdx.x % 32; i < ROW_VALUES; i += 32) {
		size_t n = (size_t)blockIdx.x * CONV_GROUP + i / (WARP_FILTERS * POOL_SIDE);
		size_t f = first_filter + i / POOL_SIDE % WARP_FILTERS;
		size_t to = (n * p.k.filters + f) * POOL_AREA + y * POOL_SIDE + i % POOL_SIDE;

		if (n < n_images && f < p.k.filters) {
			p.k.pooled[to] = row.pooled[i];
			p.k.argmax[to] = row.argmax[i];
		}
	}
}

/* Adds up the logits of the filters of each warp, then of the warps, in a fixed order. */
__device__ void tensor_write_logits(const struct products &p, float (&sum)[4][CLASSES],
	float (*shared)[CONV_GROUP * CLASSES], size_t n_images)
{
	const int t = threadIdx.x % 4, warp = threadIdx.x / 32;
	const size_t slice = blockIdx.y * gridDim.z + blockIdx.z;
#pragma unroll
	for (int i = 0; i < 4; i++)
		logits_reduce_filters(sum[i], shared[warp] + (2 * t + i % 2 + i / 2 * 8) * CLASSES);
	__syncthreads();
	for (int i = (int)threadIdx.x; i < CONV_GROUP * CLASSES; i += THREADS) {
		size_t n = (size_t)blockIdx.x * CONV_GROUP + (size_t)(i / CLASSES);
		float all = 0;

		for (int w = 0; w < WARPS; w++)
			all += shared[w][i];
		if (n < n_images)
			p.partial_logits[(slice * n_images + n) * CLASSES + (size_t)(i % CLASSES)] =
				all;
	}
}

/* Thread values: filter lane / 4 for images 2t, 2t + 1, 2t + 8 and 2t + 9 (t = lane % 4). */
template <bool FC>
__global__ void __launch_bounds__(THREADS, 2) tensor_forward_kernel(
	struct products p, struct tensor_conv tensor, size_t n_images, unsigned filter_warps)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct tensor_shared *shared = reinterpret_cast<struct tensor_shared *>(memory);
	const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
	const unsigned warp = threadIdx.x / 32;
	const unsigned group = blockIdx.y * filter_warps + warp % filter_warps;
	const unsigned split = WARPS / filter_warps;
	const size_t first = (size_t)group * WARP_FILTERS, f = first + r;
	const int at[1][2] = {{conv_pair<WINDOW>(0, 0, t), conv_pair<WINDOW>(0, 1, t)}};
	const bool works = first < p.k.filters;
	struct tensor_row *row = &shared->row[warp];
	struct conv_weights<WINDOW> w;
	float logits[4][CLASSES] = {};

	tensor_load_images(shared->pixels, p, n_images);
	if (works)
		conv_load(&w, tensor.fragments, (int)group, lane);
	const float bias = f < p.k.filters ? p.k.params[image_conv_bias(p.k.filters) + f] : 0;
	__syncthreads();
	for (unsigned y = blockIdx.z * split + warp / filter_warps; works && y < POOL_SIDE;
		y += gridDim.z * split) {
		const uint32_t *patch = shared->pixels + r * IMAGE_WORDS + y * (2 * ROW_WORDS);
#pragma unroll 1
		for (int x = 0; x < POOL_SIDE; x++, patch++) {
			struct feature_weights fc;

			if (FC)
				fc = feature_load(
					tensor.fc + ((y * POOL_SIDE + x) * tensor.f_pad + f) * ROW);
#pragma unroll
			for (int j = 0; j < 2; j++) {
				float c[2][4] = {};

				conv_window<WINDOW>(c, w, patch + j * 8 * IMAGE_WORDS, at);
#pragma unroll
				for (int e = 0; e < 2; e++) {
					uint32_t which;
					float v = max4_argmax(
						c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &which);
					const int to = ((2 * t + e + 8 * j) * WARP_FILTERS + r) *
							       POOL_SIDE +
						       x;

					v = fmaf(v, CONV_PIXEL, bias);
					row->argmax[to] = v > 0 ? (uint8_t)which : (uint8_t)DEAD;
					v = v > 0 ? v : 0;
					row->pooled[to] = v;
					if (FC)
						logits_add(logits[2 * j + e], v, fc);
				}
			}
		}
		__syncwarp();
		tensor_write_row(p, *row, n_images, first, y);
		__syncwarp();
	}
	if (FC)
		tensor_write_logits(p, logits, shared->logits, n_images);
}

template <bool FC>
int tensor_launch(struct gpu *g, const struct products *p, const struct tensor_conv *t, size_t n,
	const struct tensor_tiling *tiling, struct err *e)
{
	const int bytes = (int)sizeof(struct tensor_shared);

	TRY(cudaFuncSetAttribute(
		    tensor_forward_kernel<FC>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
		e);
	tensor_forward_kernel<FC>
		<<<tiling->grid, THREADS, bytes, g->stream>>>(*p, *t, n, tiling->warps);
	LAUNCHED(e);
	return gpu_mark(g, FC ? "forward" : "conv + ReLU + pool", PHASE_KERNEL, e);
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
	size_t groups = tensor_groups(p), slices = (groups + WARPS - 1) / WARPS * POOL_SIDE;
	int rc;

	t->f_pad = groups * WARP_FILTERS;
	rc = GPU_ALLOC(g, t->fragments, groups * THREADS * CONV_TERMS, GPU_DEVICE, e);
	if (!rc && fc)
		rc = GPU_ALLOC(g, t->fc, POOL_AREA * t->f_pad * ROW, GPU_DEVICE, e);
	if (!rc && fc)
		rc = GPU_ALLOC(
			g, p->partial_logits, slices * p->max_batch * CLASSES, GPU_DEVICE, e);
	return rc;
}

int tensor_forward(struct gpu *g, const struct products *p, const struct tensor_conv *t, size_t n,
	struct err *e)
{
	const struct tensor_tiling tiling = tensor_tiling_of(p, n);
	int rc = tensor_pack(g, p, t, e);

	if (rc)
		return rc;
	if (!t->fc) {
		rc = tensor_launch<false>(g, p, t, n, &tiling, e);
		return rc ? rc : staged_logits(g, p, n, e);
	}
	rc = tensor_launch<true>(g, p, t, n, &tiling, e);
	return rc ? rc : products_softmax(g, p, n, tiling.grid.y * tiling.grid.z, e);
}
