/*
 * staged.cu - the fc product of rung 8. A block handles 32 images, four per warp. The block reads
 * the weights through shared memory, in tiles of 128 inputs and all ten classes. The block loads
 * the next tile while it computes the current tile.
 */
#include "kernels/ladder/products.cuh"

namespace
{

#define WARPS       8
#define THREADS     (32 * WARPS)
#define WARP_IMAGES 4
#define EACH        (WARPS * WARP_IMAGES)
#define TILE        128
#define LANE_INPUTS (TILE / 32)
#define LOADS       (TILE * CLASSES / THREADS)
#define FULL_CHIP   264 /* number of blocks: 2 on each of 132 multiprocessors */

struct tile {
	float weight[LOADS];                /* weights that the thread copies to shared memory */
	float in[WARP_IMAGES][LANE_INPUTS]; /* inputs that only this thread uses */
};

/* Loads inputs [from, from + TILE). Inputs from `end` on are zeros. `row` points to the inputs of
 * each image. */
__device__ void load_tile(const float *weight, const float *const row[WARP_IMAGES], size_t inputs,
	size_t from, size_t end, struct tile *t)
{
#pragma unroll
	for (unsigned k = 0; k < LOADS; k++) {
		unsigned w = threadIdx.x + k * THREADS;
		size_t i = from + w % TILE;

		t->weight[k] = i < end ? weight[w / TILE * inputs + i] : 0;
	}
#pragma unroll
	for (unsigned j = 0; j < LANE_INPUTS; j++) {
		size_t i = from + threadIdx.x % 32 + j * 32;
#pragma unroll
		for (int m = 0; m < WARP_IMAGES; m++)
			t->in[m][j] = i < end ? row[m][i] : 0;
	}
}

__device__ void add_tile(float sum[WARP_IMAGES][CLASSES], const float weight[CLASSES][TILE],
	const float in[WARP_IMAGES][LANE_INPUTS])
{
#pragma unroll
	for (unsigned j = 0; j < LANE_INPUTS; j++)
#pragma unroll
		for (int c = 0; c < CLASSES; c++) {
			float w = weight[c][threadIdx.x % 32 + j * 32];
#pragma unroll
			for (int m = 0; m < WARP_IMAGES; m++)
				sum[m][c] += w * in[m][j];
		}
}

/* Adds up the sums of the warp; lane 0 has the result. All sums do one shuffle step before the next
 * step starts. */
__device__ void reduce(float sum[WARP_IMAGES][CLASSES])
{
#pragma unroll
	for (int step = 16; step > 0; step /= 2)
#pragma unroll
		for (int i = 0; i < WARP_IMAGES * CLASSES; i++)
			sum[i / CLASSES][i % CLASSES] +=
				__shfl_down_sync(0xffffffffu, sum[i / CLASSES][i % CLASSES], step);
}

/* A block handles 32 images (x) and a slice of the inputs (y). The block writes the logits of these
 * images, without bias, to partial_logits. */
__global__ __launch_bounds__(THREADS, 2) void staged_logits_kernel(
	struct products p, size_t n_images, size_t part)
{
	__shared__ float weight[CLASSES][TILE];
	size_t inputs = p.k.filters * POOL_AREA, from = blockIdx.y * part;
	size_t end = from + part < inputs ? from + part : inputs;
	size_t first = (size_t)blockIdx.x * EACH + threadIdx.x / 32 * WARP_IMAGES;
	const float *fc = p.k.params + image_fc_weight(p.k.filters), *row[WARP_IMAGES];
	float sum[WARP_IMAGES][CLASSES] = {};
	struct tile next;

	for (int m = 0; m < WARP_IMAGES; m++) {
		size_t n = first + (size_t)m < n_images ? first + (size_t)m : n_images - 1;

		row[m] = p.k.pooled + n * inputs;
	}
	load_tile(fc, row, inputs, from, end, &next);
	while (from < end) {
		__syncthreads();
#pragma unroll
		for (unsigned k = 0; k < LOADS; k++)
			(&weight[0][0])[threadIdx.x + k * THREADS] = next.weight[k];
		__syncthreads();
		struct tile now = next;
		from += TILE;
		load_tile(fc, row, inputs, from, end, &next);
		add_tile(sum, weight, now.in);
	}
	reduce(sum);
	for (int m = 0; m < WARP_IMAGES && threadIdx.x % 32 == 0; m++)
		for (int c = 0; c < CLASSES && first + (size_t)m < n_images; c++)
			p.partial_logits[(blockIdx.y * n_images + first + (size_t)m) * CLASSES +
					 (size_t)c] = sum[m][c];
}

} // namespace

int staged_logits(struct gpu *g, const struct products *p, size_t n, struct err *e)
{
	size_t inputs = p->k.filters * POOL_AREA, groups = (n + EACH - 1) / EACH;
	size_t slices = groups < FULL_CHIP ? FULL_CHIP / groups : 1;

	slices = slices < MAX_SLICES ? slices : MAX_SLICES;
	/* a part consists of whole tiles; no part may be empty, because no block would write its
	 * sums */
	size_t part = ((inputs + slices - 1) / slices + TILE - 1) / TILE * TILE;
	slices = (inputs + part - 1) / part;
	staged_logits_kernel<<<dim3((unsigned)groups, (unsigned)slices), THREADS, 0, g->stream>>>(
		*p, n, part);
	LAUNCHED(e);
	int rc = gpu_mark(g, "fc", PHASE_KERNEL, e);
	return rc ? rc : products_softmax(g, p, n, slices, e);
}
