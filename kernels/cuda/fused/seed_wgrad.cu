/*
 * seed_wgrad.cu - gradients of the seed nets.
 *
 * A thread owns one filter at PLACES positions and goes through the images: the error of a feature
 * (10 products with its fc weights), its value once more (9 products with the pixels under the cell
 * that won; cheaper than 4 bytes to memory and back), and both gradients: 10 + 9 products. Sums
 * stay in registers until the end. Lanes are filters: the ten errors of an image are one broadcast,
 * and the four cells that lanes may look at start in different banks.
 *
 * Images come in units of eight: every second one of a forward group of sixteen, whose winners are
 * the same bits of each byte of a word (see seed_fprop.cu). While one unit is worked on, the
 * next one's pixels and errors are fetched.
 */
#include "kernels/cuda/fused/seed.cuh"

#define WARPS   8
#define THREADS (WARPS * 32)
#define PLACES  2
#define IMAGE   (SEED_SIDE * SEED_SIDE) /* pixels */
#define UNIT    8                       /* images */
#define CHUNKS  (UNIT * IMAGE / 16)     /* of 16 pixels */

/* The fewest waves of kx_seed_low_backward's blocks, each of which is long in coming up and ending.
 */
static int low_splits(int blocks, int groups)
{
	const int multiprocessors = 132, around = 4, most = groups < 24 ? groups : 24;
	int best = 1, least = 0;
	for (int n = 1; n <= most; n++) {
		int waves = (blocks * n + multiprocessors - 1) / multiprocessors;
		int cost = waves * ((groups + n - 1) / n + around);
		if (n == 1 || cost < least) {
			best = n;
			least = cost;
		}
	}
	return best;
}

/* Forward: some 756 blocks, of which a multiprocessor has three at a time, but no warp with fewer
 * than 14 positions. */
static void cut_low(struct seed_cut *c, int filter_groups)
{
	const int ranges = 756 / (c->groups * c->filter_blocks);
	const int most = SEED_POSITIONS * c->warps_filters / (14 * 8);
	c->low = 1;
	c->ranges = ranges < most ? ranges : most;
	c->ranges = c->ranges > 1 ? c->ranges : 1;
	c->lane_blocks = (filter_groups + SEED_LOW_FILTER_GROUPS - 1) / SEED_LOW_FILTER_GROUPS;
	c->position_blocks = (SEED_POSITIONS + SEED_LOW_POSITIONS - 1) / SEED_LOW_POSITIONS;
	c->splits = low_splits(c->lane_blocks * c->position_blocks, c->groups);
}

struct seed_cut kx_seed_cut(int f_pad, int low, int images)
{
	const int enough = 264; /* blocks: two for each of 132 multiprocessors */
	struct seed_cut c = {};
	int filter_groups = f_pad / 8, blocks;
	c.groups = (images + SEED_GROUP - 1) / SEED_GROUP;
	for (c.warps_filters = 8; filter_groups % c.warps_filters; c.warps_filters /= 2)
		;
	c.filter_blocks = filter_groups / c.warps_filters;
	blocks = c.groups * c.filter_blocks;
	c.ranges = blocks < enough ? enough / blocks : 1;
	/* a warp has at least two positions */
	const int most = SEED_POSITIONS * c.warps_filters / (2 * WARPS);
	c.ranges = c.ranges < most ? c.ranges : most;
	c.lane_blocks = (f_pad + 31) / 32;
	c.position_blocks = (SEED_POSITIONS + WARPS * PLACES - 1) / (WARPS * PLACES);
	blocks = c.lane_blocks * c.position_blocks;
	c.splits = blocks < enough ? enough / blocks : 1;
	c.splits = c.splits < 2 * c.groups ? c.splits : 2 * c.groups;
	c.clusters = (images + SEED_CLUSTER_IMAGES - 1) / SEED_CLUSTER_IMAGES;
	if (f_pad > 32 || c.clusters * SEED_CLUSTER > 132) /* more than there are multiprocessors */
		c.clusters = 0;
	if (c.clusters) {
		c.splits = c.clusters;
		c.position_blocks = SEED_CLUSTER;
	} else if (low && c.groups >= SEED_LOW_GROUPS) {
		cut_low(&c, filter_groups);
	}
	return c;
}

/* ---- one unit of images ---------------------------------------------------------------------- */

struct stage {
	float pixels[UNIT * IMAGE];
	float errors[UNIT * SEED_ROW];
};

/* In shared memory: two stages, and bytes of pixels on their way to the ones after. */
struct shared {
	struct stage stage[2];
	uint4 bytes[2][CHUNKS];
};

/* Which images a block goes through, from memory that no kernel of the graph writes. */
struct source {
	const uint8_t *pixels;
	const uint32_t *index; /* of this step */
	int images;
};

/* Number in the batch of image i of a unit. */
__device__ static inline int unit_image(int unit, int i)
{
	return unit / 2 * SEED_GROUP + unit % 2 + 2 * i;
}

__device__ static inline void fetch_pixels(uint4 *bytes, const struct source &from, int unit)
{
#pragma unroll
	for (int k = 0; k < (CHUNKS + THREADS - 1) / THREADS; k++) {
		const int i = threadIdx.x + k * THREADS, n = unit_image(unit, i / (IMAGE / 16));
		if (i < CHUNKS && n < from.images)
			copy_ahead(&bytes[i],
				from.pixels + from.index[n] * (size_t)IMAGE + i % (IMAGE / 16) * 16,
				true);
	}
	copies_commit();
}

__device__ static inline void convert_pixels(struct stage *to, const uint4 *bytes)
{
	const uint32_t *word = reinterpret_cast<const uint32_t *>(bytes);
#pragma unroll
	for (int k = 0; k < (UNIT * IMAGE / 4 + THREADS - 1) / THREADS; k++) {
		const int i = threadIdx.x + k * THREADS;
		const uint32_t v = word[i < CHUNKS * 4 ? i : 0];
		if (i < CHUNKS * 4)
			reinterpret_cast<float4 *>(to->pixels)[i] = {
				pixel_of(v, 0), pixel_of(v, 1), pixel_of(v, 2), pixel_of(v, 3)};
	}
}

__device__ static inline void load_errors(
	struct stage *to, const struct kx_seed &s, int images, int unit)
{
	const int n = unit_image(unit, threadIdx.x / SEED_ROW);
	if (threadIdx.x < UNIT * SEED_ROW)
		to->errors[threadIdx.x] =
			n < images ? s.d_scores[n * SEED_ROW + threadIdx.x % SEED_ROW] : 0;
}

/* ---- features -------------------------------------------------------------------------------- */

/* In units of a pixel: conv sums, values and what is multiplied with them are 255 times as large,
 * biases as they are. */
struct sums {
	float fc[PLACES][SEED_CLASSES];
	float conv[9], bias;
};

struct weights {
	float fc[PLACES][SEED_CLASSES];
	float conv[9], bias; /* bias: times 255 */
};

/* `patch`: where in shared memory the winning cell's first pixel lies. */
__device__ static inline void add_feature(struct sums *sum, const struct weights &w, int place,
	uint32_t patch, const float (&error)[SEED_ROW])
{
	float x[9], v = w.bias, d = 0;
#pragma unroll
	for (int k = 0; k < 9; k++)
		x[k] = load_shared(patch + (k / 3 * SEED_SIDE + k % 3) * 4);
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		d = fmaf(error[c], w.fc[place][c], d);
#pragma unroll
	for (int k = 0; k < 9; k++)
		v = fmaf(w.conv[k], x[k], v);
	d = v > 0 ? d : 0;
	v = max_or_nan(v, 0);
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		sum->fc[place][c] = fmaf(v, error[c], sum->fc[place][c]);
#pragma unroll
	for (int k = 0; k < 9; k++)
		sum->conv[k] = fmaf(d, x[k], sum->conv[k]);
	sum->bias += d;
}

/*
 * `winners`: of this unit's images, a nibble each, that of image i at nibble 2 * (i % 4) + i / 4.
 * Four of them look up the bytes from a patch's first pixel to that of cell 0..3 at once, and a
 * product with a single 1 adds one of the four to the patch's address.
 */
__device__ static inline void add_unit(struct sums *sum, const struct weights &w,
	const uint32_t (&patch)[PLACES], const uint32_t (&winners)[PLACES], const float *errors)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		uint32_t offsets[PLACES];
#pragma unroll
		for (int place = 0; place < PLACES; place++)
			offsets[place] = __byte_perm(0x74700400u, 0, winners[place] >> (16 * half));
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const int image = k % 2 * 4 + 2 * half + k / 2;
			float error[SEED_ROW];
#pragma unroll
			for (int q = 0; q < SEED_ROW; q += 4) {
				float4 v = *reinterpret_cast<const float4 *>(
					errors + image * SEED_ROW + q);
				error[q] = v.x;
				error[q + 1] = v.y;
				error[q + 2] = v.z;
				error[q + 3] = v.w;
			}
#pragma unroll
			for (int place = 0; place < PLACES; place++)
				add_feature(sum, w, place,
					__dp4a(offsets[place], 1u << (8 * k), patch[place]) +
						image * (IMAGE * 4),
					error);
		}
	}
}

/* A place that is not wanted gets zeros, so that no error comes out of it. */
__device__ static inline void load_weights(struct weights *w, const struct kx_seed &s, int f,
	const int (&p)[PLACES], const bool (&wanted)[PLACES])
{
	const float *conv = s.params.conv + f * SEED_ROW;
#pragma unroll
	for (int k = 0; k < 9; k++)
		w->conv[k] = conv[k];
	w->bias = conv[9] * 255;
#pragma unroll
	for (int i = 0; i < PLACES; i++)
#pragma unroll
		for (int c = 0; c < SEED_CLASSES; c++)
			w->fc[i][c] =
				wanted[i] ? s.params.fc[((size_t)p[i] * s.f_pad + f) * SEED_ROW + c]
					  : 0;
}

/* blockIdx: x positions, y filters, z images. What lies past the last position or filter does the
 * last once more and is not wanted. */
__global__ void __launch_bounds__(THREADS, 2)
	backward_kernel(struct kx_seed s, struct kx_batch batch, struct seed_cut cut, int step)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct shared *shared = reinterpret_cast<struct shared *>(memory);
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int f = min(blockIdx.y * 32 + lane, s.f_pad - 1);
	const bool real = blockIdx.y * 32 + lane < s.f_pad;
	const int begin = 2 * cut.groups * blockIdx.z / cut.splits;
	const int end = 2 * cut.groups * (blockIdx.z + 1) / cut.splits;
	uint32_t patch[PLACES];
	bool wanted[PLACES];
	int p[PLACES];
	struct weights w;
	struct sums sum = {};

	const struct source from = {batch.pixels,
		batch.index + ((size_t)batch.now->step + step) * batch.images, batch.images};
	fetch_pixels(shared->bytes[0], from, begin);
	if (begin + 1 < end)
		fetch_pixels(shared->bytes[1], from, begin + 1);
#pragma unroll
	for (int i = 0; i < PLACES; i++) {
		p[i] = (blockIdx.x * WARPS + warp) * PLACES + i;
		wanted[i] = real && p[i] < SEED_POSITIONS;
		p[i] = min(p[i], SEED_POSITIONS - 1);
		patch[i] = shared_address(shared->stage[0].pixels) +
			   (p[i] / 13 * 2 * SEED_SIDE + p[i] % 13 * 2) * 4;
	}
	copies_wait<0>();
	__syncthreads();
	convert_pixels(&shared->stage[0], shared->bytes[0]);
	await_previous();
	const size_t group = (size_t)SEED_POSITIONS * s.f_pad;
	const uint32_t *winners = reinterpret_cast<const uint32_t *>(s.winners) +
				  begin / 2 * group + (size_t)p[0] * s.f_pad + f;
	const int next_place = (p[1] - p[0]) * s.f_pad;
	uint32_t word[PLACES] = {winners[0], winners[next_place]}; /* of the unit's group */
	load_weights(&w, s, f, p, wanted);
	load_errors(&shared->stage[0], s, batch.images, begin);
	__syncthreads();
	/* at the top: stage `turn` is ready, and the bytes for the other one are */
	for (int unit = begin; unit < end; unit++) {
		const int turn = (unit - begin) % 2;
		uint32_t won[PLACES], at[PLACES];
#pragma unroll
		for (int i = 0; i < PLACES; i++) {
			won[i] = (word[i] >> (unit % 2 * 2)) & 0x33333333u;
			at[i] = patch[i] + turn * (uint32_t)sizeof(struct stage);
		}
		if (unit % 2 && unit + 1 < end) {
			winners += group;
			word[0] = winners[0];
			word[1] = winners[next_place];
		}
		if (unit + 2 < end)
			fetch_pixels(shared->bytes[turn], from, unit + 2);
		if (unit + 1 < end)
			load_errors(&shared->stage[1 - turn], s, batch.images, unit + 1);
		add_unit(&sum, w, at, won, shared->stage[turn].errors);
		if (unit + 1 < end)
			convert_pixels(&shared->stage[1 - turn], shared->bytes[1 - turn]);
		copies_wait<0>();
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < PLACES; i++)
		if (wanted[i])
			seed_fc_out(s, sum.fc[i], CONV_PIXEL, blockIdx.z, p[i], f);
	seed_conv_out<WARPS>(s, sum.conv, sum.bias, shared->stage[0].pixels, blockIdx.y * 32,
		blockIdx.z * gridDim.x + blockIdx.x);
}

int kx_seed_backward(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	struct seed_cut c = kx_seed_cut(s.f_pad, s.low, batch.images);
	const int bytes = (int)sizeof(struct shared);
	if (cudaFuncSetAttribute(
		    backward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(backward_kernel, dim3(c.position_blocks, c.lane_blocks, c.splits), THREADS,
		bytes, stream, s, batch, c, step);
}
