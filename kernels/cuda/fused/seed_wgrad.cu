/*
 * seed_wgrad.cu - dgrad and wgrad of the seed networks in fp32, and the tiling of a batch.
 *
 * A thread handles one filter at WARP_POSITIONS positions and loops over the images. For each
 * feature the thread computes dY (10 products with the fc weights), then the value (9 products with
 * the pixels under the argmax), then both gradients (10 + 9 products). Recomputing the value costs
 * less than writing 4 bytes to memory and reading them back. The sums stay in registers until the
 * end.
 *
 * A lane handles one filter, so all lanes of a warp read the same ten d_logits of an image. Lanes
 * may select different output pixels of a window, but their loads have no bank conflicts, because
 * the patches of the four output pixels start in different banks.
 *
 * The loop processes units of eight images: every second image of a group of sixteen. The argmax of
 * these images are the same bits in each byte of a word (see seed_fprop.cu). While the block
 * computes one unit, it loads the pixels and d_logits of the next one.
 */
#include "kernels/cuda/fused/seed.cuh"

namespace
{

#define WGRAD_WARPS    8
#define WGRAD_THREADS  (WGRAD_WARPS * 32)
#define WARP_POSITIONS 2
#define IMAGE_PIXELS   (SEED_SIDE * SEED_SIDE)    /* number of pixels of an image */
#define UNIT           8                          /* number of images of a unit */
#define CHUNKS         (UNIT * IMAGE_PIXELS / 16) /* number of chunks of 16 pixels of a unit */

/* Returns the number of slices with the least cost in seed_half_wgrad_kernel. The cost is the
 * number of waves of blocks times the groups per block. The prologue and epilogue of a block take
 * as long as `overhead` groups. */
int half_slices(int blocks, int groups)
{
	const int multiprocessors = 132, overhead = 4, max_slices = groups < 24 ? groups : 24;
	int best = 1, min_cost = 0;

	for (int n = 1; n <= max_slices; n++) {
		int waves = (blocks * n + multiprocessors - 1) / multiprocessors;
		int cost = waves * ((groups + n - 1) / n + overhead);

		if (n == 1 || cost < min_cost) {
			best = n;
			min_cost = cost;
		}
	}
	return best;
}

/* Sets the tiling of the half-precision kernels. fprop has at most 756 blocks; three blocks fit on
 * a multiprocessor at a time. A warp handles at least 14 positions or, if there are fewer blocks
 * than multiprocessors, at least two. */
void tile_half(struct seed_tiling *c, int filter_groups)
{
	const int multiprocessors = 132, blocks = c->groups * c->filter_blocks;
	const int ranges = 756 / blocks, few = (multiprocessors + blocks - 1) / blocks;
	const int max_ranges = SEED_POSITIONS * c->warps_filters / (2 * 8);
	int max_slices = SEED_POSITIONS * c->warps_filters / (14 * 8);

	if (max_slices < few)
		max_slices = few < max_ranges ? few : max_ranges;
	c->half = 1;
	c->ranges = ranges < max_slices ? ranges : max_slices;
	c->ranges = c->ranges > 1 ? c->ranges : 1;
	c->lane_blocks = (filter_groups + SEED_HALF_FILTER_GROUPS - 1) / SEED_HALF_FILTER_GROUPS;
	c->position_blocks = (SEED_POSITIONS + SEED_HALF_POSITIONS - 1) / SEED_HALF_POSITIONS;
	c->slices = half_slices(c->lane_blocks * c->position_blocks, c->groups);
}

/* ---- one unit of images ---------------------------------------------------------------------- */

struct wgrad_stage {
	float pixels[UNIT * IMAGE_PIXELS];
	float dy[UNIT * SEED_ROW];
};

/* The shared memory of a block. Asynchronous copies load the pixels of the next units of images
 * into the two buffers of `bytes`, one byte per pixel. A stage has one unit, with its pixels as
 * floats and its dY. */
struct wgrad_shared {
	struct wgrad_stage stage[2];
	uint4 bytes[2][CHUNKS];
};

/* The images of a block. No kernel of the graph writes this memory, so a block may read it before
 * await_previous. */
struct image_source {
	const uint8_t *pixels;
	const uint32_t *index; /* numbers in the data set of the images of this step */
	int images;
};

/* Returns the number that image i of a unit has in the batch. */
__device__ inline int unit_image(int unit, int i)
{
	return unit / 2 * SEED_GROUP + unit % 2 + 2 * i;
}

__device__ inline void wgrad_fetch_pixels(uint4 *bytes, const struct image_source &from, int unit)
{
#pragma unroll
	for (int k = 0; k < (CHUNKS + WGRAD_THREADS - 1) / WGRAD_THREADS; k++) {
		const int i = threadIdx.x + k * WGRAD_THREADS,
			  n = unit_image(unit, i / (IMAGE_PIXELS / 16));

		if (i < CHUNKS && n < from.images)
			copy_async(&bytes[i],
				from.pixels + from.index[n] * (size_t)IMAGE_PIXELS +
					i % (IMAGE_PIXELS / 16) * 16,
				true);
	}
	copies_commit();
}

__device__ inline void wgrad_convert_pixels(struct wgrad_stage *to, const uint4 *bytes)
{
	const uint32_t *word = reinterpret_cast<const uint32_t *>(bytes);
#pragma unroll
	for (int k = 0; k < (UNIT * IMAGE_PIXELS / 4 + WGRAD_THREADS - 1) / WGRAD_THREADS; k++) {
		const int i = threadIdx.x + k * WGRAD_THREADS;
		const uint32_t v = word[i < CHUNKS * 4 ? i : 0];

		if (i < CHUNKS * 4)
			reinterpret_cast<float4 *>(to->pixels)[i] = {
				pixel_of(v, 0), pixel_of(v, 1), pixel_of(v, 2), pixel_of(v, 3)};
	}
}

__device__ inline void wgrad_load_dy(
	struct wgrad_stage *to, const struct kx_seed &s, int images, int unit)
{
	const int n = unit_image(unit, threadIdx.x / SEED_ROW);

	if (threadIdx.x < UNIT * SEED_ROW)
		to->dy[threadIdx.x] =
			n < images ? s.d_logits[n * SEED_ROW + threadIdx.x % SEED_ROW] : 0;
}

/* ---- features -------------------------------------------------------------------------------- */

/* Pixels are integers from 0 to 255 here, so values, fc sums and conv sums are 255 times as large.
 * Bias sums are not scaled. */
struct wgrad_sums {
	float fc[WARP_POSITIONS][SEED_CLASSES];
	float conv[9], bias;
};

struct wgrad_weights {
	float fc[WARP_POSITIONS][SEED_CLASSES];
	float conv[9], bias; /* bias is multiplied by 255 */
};

/* Adds the gradients of one feature to *sum. `patch` is the shared-memory address of the first
 * pixel under the argmax. */
__device__ inline void wgrad_add_feature(struct wgrad_sums *sum, const struct wgrad_weights &w,
	int pos, uint32_t patch, const float (&dy)[SEED_ROW])
{
	float x[9], v = w.bias, d = 0;
#pragma unroll
	for (int k = 0; k < 9; k++)
		x[k] = load_shared(patch + (k / 3 * SEED_SIDE + k % 3) * 4);
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		d = fmaf(dy[c], w.fc[pos][c], d);
#pragma unroll
	for (int k = 0; k < 9; k++)
		v = fmaf(w.conv[k], x[k], v);
	d = v > 0 ? d : 0;
	v = max_or_nan(v, 0);
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		sum->fc[pos][c] = fmaf(v, dy[c], sum->fc[pos][c]);
#pragma unroll
	for (int k = 0; k < 9; k++)
		sum->conv[k] = fmaf(d, x[k], sum->conv[k]);
	sum->bias += d;
}

/*
 * Adds the gradients of a unit of eight images. `argmax` has one nibble per image; image i has
 * nibble 2 * (i % 4) + i / 4. __byte_perm turns four nibbles into the byte offsets of their output
 * pixels. __dp4a with a single 1 adds one of these offsets to the address of the patch.
 */
__device__ inline void wgrad_add_unit(struct wgrad_sums *sum, const struct wgrad_weights &w,
	const uint32_t (&patch)[WARP_POSITIONS], const uint32_t (&argmax)[WARP_POSITIONS],
	const float *d_logits)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		uint32_t offsets[WARP_POSITIONS];
#pragma unroll
		for (int pos = 0; pos < WARP_POSITIONS; pos++)
			offsets[pos] = __byte_perm(0x74700400u, 0, argmax[pos] >> (16 * half));
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const int image = k % 2 * 4 + 2 * half + k / 2;
			float dy[SEED_ROW];
#pragma unroll
			for (int q = 0; q < SEED_ROW; q += 4) {
				float4 v = *reinterpret_cast<const float4 *>(
					d_logits + image * SEED_ROW + q);

				dy[q] = v.x;
				dy[q + 1] = v.y;
				dy[q + 2] = v.z;
				dy[q + 3] = v.w;
			}
#pragma unroll
			for (int pos = 0; pos < WARP_POSITIONS; pos++)
				wgrad_add_feature(sum, w, pos,
					__dp4a(offsets[pos], 1u << (8 * k), patch[pos]) +
						image * (IMAGE_PIXELS * 4),
					dy);
		}
	}
}

/* Loads the weights. An invalid position gets fc weights of zero, so that its dY is zero. */
__device__ inline void wgrad_load_weights(struct wgrad_weights *w, const struct kx_seed &s, int f,
	const int (&p)[WARP_POSITIONS], const bool (&valid)[WARP_POSITIONS])
{
	const float *conv = s.params.conv + f * SEED_ROW;
#pragma unroll
	for (int k = 0; k < 9; k++)
		w->conv[k] = conv[k];
	w->bias = conv[9] * 255;
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++)
#pragma unroll
		for (int c = 0; c < SEED_CLASSES; c++)
			w->fc[i][c] =
				valid[i] ? s.params.fc[((size_t)p[i] * s.f_pad + f) * SEED_ROW + c]
					 : 0;
}

/* blockIdx.x selects the positions of a block, blockIdx.y its filters, and blockIdx.z its images.
 * Where a block extends past the last position or filter, the kernel computes the last one again,
 * and does not store these results. */
__global__ void __launch_bounds__(WGRAD_THREADS, 2) seed_wgrad_kernel(
	struct kx_seed s, struct kx_batch batch, struct seed_tiling tiling, int step)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct wgrad_shared *shared = reinterpret_cast<struct wgrad_shared *>(memory);
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int f = min(blockIdx.y * 32 + lane, s.f_pad - 1);
	const bool real = blockIdx.y * 32 + lane < s.f_pad;
	const int begin = 2 * tiling.groups * blockIdx.z / tiling.slices;
	const int end = 2 * tiling.groups * (blockIdx.z + 1) / tiling.slices;
	uint32_t patch[WARP_POSITIONS];
	bool valid[WARP_POSITIONS];
	int p[WARP_POSITIONS];
	struct wgrad_weights w;
	struct wgrad_sums sum = {};

	const struct image_source from = {batch.pixels,
		batch.index + ((size_t)batch.now->step + step) * batch.images, batch.images};
	wgrad_fetch_pixels(shared->bytes[0], from, begin);
	if (begin + 1 < end)
		wgrad_fetch_pixels(shared->bytes[1], from, begin + 1);
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++) {
		p[i] = (blockIdx.x * WGRAD_WARPS + warp) * WARP_POSITIONS + i;
		valid[i] = real && p[i] < SEED_POSITIONS;
		p[i] = min(p[i], SEED_POSITIONS - 1);
		patch[i] = shared_address(shared->stage[0].pixels) +
			   (p[i] / 13 * 2 * SEED_SIDE + p[i] % 13 * 2) * 4;
	}
	copies_wait<0>();
	__syncthreads();
	wgrad_convert_pixels(&shared->stage[0], shared->bytes[0]);
	await_previous();
	const size_t group = (size_t)SEED_POSITIONS * s.f_pad;
	const uint32_t *argmax = reinterpret_cast<const uint32_t *>(s.argmax) + begin / 2 * group +
				 (size_t)p[0] * s.f_pad + f;
	const int next_pos = (p[1] - p[0]) * s.f_pad;
	/* argmax of the group that has this unit */
	uint32_t word[WARP_POSITIONS] = {argmax[0], argmax[next_pos]};
	wgrad_load_weights(&w, s, f, p, valid);
	wgrad_load_dy(&shared->stage[0], s, batch.images, begin);
	__syncthreads();
	/* at the start of an iteration, stage `now` and the bytes of the next unit are ready */
	for (int unit = begin; unit < end; unit++) {
		const int now = (unit - begin) % 2;
		uint32_t which[WARP_POSITIONS], at[WARP_POSITIONS];
#pragma unroll
		for (int i = 0; i < WARP_POSITIONS; i++) {
			which[i] = (word[i] >> (unit % 2 * 2)) & 0x33333333u;
			at[i] = patch[i] + now * (uint32_t)sizeof(struct wgrad_stage);
		}
		if (unit % 2 && unit + 1 < end) {
			argmax += group;
			word[0] = argmax[0];
			word[1] = argmax[next_pos];
		}
		if (unit + 2 < end)
			wgrad_fetch_pixels(shared->bytes[now], from, unit + 2);
		if (unit + 1 < end)
			wgrad_load_dy(&shared->stage[1 - now], s, batch.images, unit + 1);
		wgrad_add_unit(&sum, w, at, which, shared->stage[now].dy);
		if (unit + 1 < end)
			wgrad_convert_pixels(&shared->stage[1 - now], shared->bytes[1 - now]);
		copies_wait<0>();
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++)
		if (valid[i])
			seed_store_fc_wgrad(s, sum.fc[i], CONV_PIXEL, blockIdx.z, p[i], f);
	seed_store_conv_wgrad<WGRAD_WARPS>(s, sum.conv, sum.bias, shared->stage[0].pixels,
		blockIdx.y * 32, blockIdx.z * gridDim.x + blockIdx.x);
}

} // namespace

struct seed_tiling kx_seed_tiling(int f_pad, int half, int images)
{
	/* number of blocks that keep the whole GPU busy: two on each of 132 multiprocessors */
	const int enough = 264;
	struct seed_tiling c = {};
	int filter_groups = f_pad / 8, blocks;

	c.groups = (images + SEED_GROUP - 1) / SEED_GROUP;
	for (c.warps_filters = 8; filter_groups % c.warps_filters; c.warps_filters /= 2)
		;
	c.filter_blocks = filter_groups / c.warps_filters;
	blocks = c.groups * c.filter_blocks;
	c.ranges = blocks < enough ? enough / blocks : 1;
	/* limits the ranges, so that a warp handles at least two positions */
	const int max_slices = SEED_POSITIONS * c.warps_filters / (2 * WGRAD_WARPS);
	c.ranges = c.ranges < max_slices ? c.ranges : max_slices;
	c.lane_blocks = (f_pad + 31) / 32;
	c.position_blocks = (SEED_POSITIONS + WGRAD_WARPS * WARP_POSITIONS - 1) /
			    (WGRAD_WARPS * WARP_POSITIONS);
	blocks = c.lane_blocks * c.position_blocks;
	c.slices = blocks < enough ? enough / blocks : 1;
	c.slices = c.slices < 2 * c.groups ? c.slices : 2 * c.groups;
	c.clusters = (images + SEED_CLUSTER_IMAGES - 1) / SEED_CLUSTER_IMAGES;
	/* the cluster kernel is for fp32; with more blocks than multiprocessors, some blocks would
	 * start only when others have ended */
	if (half || f_pad > 32 || c.clusters * SEED_CLUSTER > 132)
		c.clusters = 0;
	if (c.clusters) {
		c.slices = c.clusters;
		c.position_blocks = SEED_CLUSTER;
	}
	if (half)
		tile_half(&c, filter_groups);
	return c;
}

int kx_seed_wgrad(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	struct seed_tiling c = kx_seed_tiling(s.f_pad, s.half, batch.images);
	const int bytes = (int)sizeof(struct wgrad_shared);

	if (cudaFuncSetAttribute(
		    seed_wgrad_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(seed_wgrad_kernel, dim3(c.position_blocks, c.lane_blocks, c.slices),
		WGRAD_THREADS, bytes, stream, s, batch, c, step);
}
