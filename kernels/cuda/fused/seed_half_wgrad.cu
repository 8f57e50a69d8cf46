/*
 * seed_half_wgrad.cu - dgrad and wgrad of the seed networks in half precision, all on tensor cores.
 *
 * A warp handles eight filters at four positions and loops over groups of sixteen images. In every
 * product a lane handles filter lane / 4 and images 2t and 2t + 1 of each half of the group (t =
 * lane % 4), as in seed_half_fprop.cu. Eight filters at two positions make sixteen rows:
 *   dY     [filter, pos][image] = fc weight [filter, pos][class] x d_logits [class][image]
 *   value  computed again, with the hi term of the weights; cheaper than loading 2 bytes
 *   fc     [filter, pos][class] += value [filter, pos][image] x d_logits [image][class]
 *   conv   [filter, output pixel][pixel] += dY [filter, output pixel][image] x patch [image]
 * The accumulators of the first two products have the layout of the A operands of the last two. The
 * conv product has one row per output pixel: the row of the argmax gets dY, the other three rows
 * get zeros. At the end the kernel shifts the sums of the four output pixels over each other and
 * adds them up to the gradient of the nine weights. A column of ones gives the gradient of the
 * bias.
 *
 * The operands are fp16. The kernel scales the d_logits of the block's images so that the largest
 * is below 2^4. The kernel scales the fc weights of a feature so that their absolute sum is below
 * 2^11. The products then stay below 2^15. Values are at most 1.
 *
 * Four of the twenty warps are producers. The producers fill the stages of a pipeline in shared
 * memory. The sixteen consumer warps compute.
 */
#include <cuda_awbarrier_primitives.h>
#include "kernels/cuda/fused/seed_half.cuh"

namespace
{

/* ---- producer warps: the pipeline of image groups -------------------------------------------- */

#define CONSUMER_WARPS     16
#define PRODUCER_THREADS   128
#define STAGES             3
#define HALF_WGRAD_THREADS (CONSUMER_WARPS * 32 + PRODUCER_THREADS)
#define IMAGE_PIXELS       (SEED_SIDE * SEED_SIDE) /* number of pixels of an image */
#define CHUNKS             (IMAGE_PIXELS / 16)     /* number of chunks of 16 pixels per image */
#define IMAGE_PAIRS        (SEED_GROUP / 2)        /* number of pairs of images per group */
#define THREADS_PER_IMAGE  (PRODUCER_THREADS / SEED_GROUP)
/* The stride from one pair of images to the next, in words. With this stride, four pairs x two rows
 * of four pixels are in 32 different banks. The last four words of a pair are ones (ONES). */
#define PAIR_WORDS 808
#define ONES       0x3c003c00u

/* One stage of the pipeline. A word has two fp16 values. A word of `pixels` has one pixel of two
 * images. d_logits are stored twice, padded with zeros to 16 classes. A row of by_image is one
 * image, and each of its words has two classes. A row of by_class is a pair of images, and each of
 * its words has one class of both. by_image is the B operand of the dY product: a lane needs words
 * t and t + 4 (t = lane % 4), so these two are stored side by side. by_class is the B operand of
 * the fc product. */
struct half_stage {
	uint32_t pixels[IMAGE_PAIRS][PAIR_WORDS];
	uint32_t by_image[SEED_GROUP][8];
	uint32_t by_class[IMAGE_PAIRS][24];
	__mbarrier_t full, empty;
};

/* The position of a warp in the ring of stages. Producer threads arrive at `full`, and consumer
 * warps arrive at `empty`. The warps wait only at these two barriers, so a warp can be one or two
 * stages ahead of the others. */
struct pipeline_state {
	uint32_t stage; /* byte offset from the first stage */
	bool parity;
};

__device__ inline void pipeline_advance(struct pipeline_state *t)
{
	t->stage += (uint32_t)sizeof(struct half_stage);
	if (t->stage == STAGES * sizeof(struct half_stage)) {
		t->stage = 0;
		t->parity = !t->parity;
	}
}

__device__ inline struct half_stage *stage_of(
	struct half_stage *first, const struct pipeline_state &t)
{
	return reinterpret_cast<struct half_stage *>(
		reinterpret_cast<unsigned char *>(first) + t.stage);
}

/* Initialises the barriers. One thread calls this function before the first barrier of the
 * block. */
__device__ inline void init_stages(struct half_stage *stage)
{
	for (int i = 0; i < STAGES; i++) {
		__mbarrier_init(&stage[i].full, PRODUCER_THREADS);
		__mbarrier_init(&stage[i].empty, CONSUMER_WARPS);
	}
}

/* Ends the use of the barriers, so that their memory can be used for other data. */
__device__ inline void drop_stages(struct half_stage *stage)
{
	for (int i = 0; i < STAGES; i++) {
		__mbarrier_inval(&stage[i].full);
		__mbarrier_inval(&stage[i].empty);
	}
}

__device__ inline void barrier_wait(__mbarrier_t *barrier, bool parity)
{
	while (!__mbarrier_try_wait_parity(barrier, parity, 10000))
		;
}

/* Sets the padding of d_logits to zero and the constant pixels to one. */
__device__ inline void init_constants(struct half_stage *stage)
{
	for (int i = threadIdx.x; i < IMAGE_PAIRS * 24; i += HALF_WGRAD_THREADS)
		stage->by_class[0][i] = 0;
	for (int i = threadIdx.x; i < SEED_GROUP * 8; i += HALF_WGRAD_THREADS)
		stage->by_image[0][i] = 0;
	for (int i = threadIdx.x; i < IMAGE_PAIRS * 4; i += HALF_WGRAD_THREADS)
		stage->pixels[i / 4][IMAGE_PIXELS + i % 4] = ONES;
}

/* The data of a producer thread. THREADS_PER_IMAGE lanes fetch one image. Each producer warp
 * unpacks the four images that its lanes fetch. In place of images past the end of the batch, the
 * last image is used again, with d_logits of 0. */
struct producer {
	int i;                 /* index of the thread among PRODUCER_THREADS */
	const uint32_t *index; /* image numbers of this step; no kernel of the graph writes them */
	const uint8_t *pixels;
	int last; /* number of the last image of the batch */
};

/* Returns the number in the data set of the image that this thread helps to fetch. */
__device__ inline uint32_t producer_image(const struct producer &f, int group)
{
	return f.index[min(group * SEED_GROUP + f.i / THREADS_PER_IMAGE, f.last)];
}

__device__ inline void producer_fetch_pixels(
	const struct producer &f, uint4 *bytes, uint32_t number)
{
	const int first = f.i % THREADS_PER_IMAGE;
	const uint8_t *from = f.pixels + number * (size_t)IMAGE_PIXELS + first * 16;
	uint4 *to = bytes + f.i / THREADS_PER_IMAGE * CHUNKS + first;
#pragma unroll
	for (int k = 0; k < CHUNKS; k += THREADS_PER_IMAGE)
		if (k + THREADS_PER_IMAGE <= CHUNKS || k + first < CHUNKS)
			copy_async(to + k, from + 16 * k, true);
	copies_commit();
}

/* Unpacks a pair of images, four pixels at a time. All loads are issued before the first store. */
__device__ inline void expand_pair(uint32_t *to, const uint32_t *from)
{
	const int quads = IMAGE_PIXELS / 4, rounds = (quads + 31) / 32, lane = threadIdx.x % 32;
	uint32_t a[rounds], b[rounds];
#pragma unroll
	for (int k = 0; k < rounds; k++) {
		const bool here = k + 1 < rounds || 32 * k + lane < quads;

		a[k] = here ? from[32 * k + lane] : 0;
		b[k] = here ? from[32 * k + lane + quads] : 0;
	}
#pragma unroll
	for (int k = 0; k < rounds; k++) {
		const uint32_t low = __byte_perm(a[k], b[k], 0x5140);
		const uint32_t high = __byte_perm(a[k], b[k], 0x7362);

		if (k + 1 < rounds || 32 * k + lane < quads)
			reinterpret_cast<uint4 *>(to)[32 * k + lane] = {__byte_perm(low, 0, 0x4140),
				__byte_perm(low, 0, 0x4342), __byte_perm(high, 0, 0x4140),
				__byte_perm(high, 0, 0x4342)};
	}
}

__device__ inline void expand_pixels(
	const struct producer &f, struct half_stage *to, const uint4 *bytes)
{
	const int pair = f.i / 32 * 2;
	const uint32_t *from = reinterpret_cast<const uint32_t *>(bytes + 2 * pair * CHUNKS);

	expand_pair(to->pixels[pair], from);
	expand_pair(to->pixels[pair + 1], from + 2 * CHUNKS * 4);
}

#define BY_CLASS (IMAGE_PAIRS * SEED_CLASSES)
#define BY_IMAGE (SEED_GROUP * SEED_CLASSES / 2)

/* The d_logits that a thread loads: one class of two images, and two classes of one image. */
struct dy_pair {
	float2 by_class, by_image;
};

__device__ inline struct dy_pair producer_fetch_dy(
	const struct producer &f, const struct kx_seed &s, int group)
{
	const float *from = s.d_logits + (size_t)group * SEED_GROUP * SEED_ROW;
	const float *a = from + f.i / SEED_CLASSES * 2 * SEED_ROW + f.i % SEED_CLASSES;
	const float *b = from + f.i / 5 * SEED_ROW + f.i % 5 * 2;
	struct dy_pair e = {};

	if (f.i < BY_CLASS)
		e.by_class = {a[0], a[SEED_ROW]};
	if (f.i < BY_IMAGE)
		e.by_image = {b[0], b[1]};
	return e;
}

__device__ inline void producer_store_dy(
	const struct producer &f, struct half_stage *to, const struct dy_pair &e, float scale)
{
	const int word = f.i % 5;

	if (f.i < BY_CLASS)
		to->by_class[f.i / SEED_CLASSES][f.i % SEED_CLASSES] =
			two_halves(e.by_class.x * scale, e.by_class.y * scale);
	if (f.i < BY_IMAGE)
		to->by_image[f.i / 5][word % 4 * 2 + word / 4] =
			two_halves(e.by_image.x * scale, e.by_image.y * scale);
}

/* The values that a producer loads ahead. */
struct prefetched {
	uint32_t number; /* number of this thread's image in the group after the next one */
	struct dy_pair dy;
};

/* Runs the producer loop: fills each stage when the stage is empty. */
__device__ inline void produce(const struct producer &f, struct prefetched next,
	const struct kx_seed &s, struct half_stage *first, uint4 (*bytes)[SEED_GROUP * CHUNKS],
	int begin, int end, float scale)
{
	struct pipeline_state state = {0, true}; /* at the start all stages are empty */

	for (int group = begin; group < end; group++) {
		struct half_stage *stage = stage_of(first, state);
		uint4 *mine = bytes[(group - begin) % 2];
		const struct dy_pair dy = next.dy;

		next.dy = producer_fetch_dy(f, s, min(group + 1, end - 1));
		copies_wait<1>();
		__syncwarp();
		barrier_wait(&stage->empty, state.parity);
		expand_pixels(f, stage, mine);
		producer_store_dy(f, stage, dy, scale);
		(void)__mbarrier_arrive(&stage->full);
		__syncwarp();
		producer_fetch_pixels(f, mine, next.number);
		next.number = producer_image(f, group + 3);
		pipeline_advance(&state);
	}
	copies_wait<0>(); /* a block must not end while copies to its shared memory are in flight */
}

/* ---- consumer warps: tiles ------------------------------------------------------------------- */

#define WARP_POSITIONS  4
#define POSITION_PAIRS  (WARP_POSITIONS / 2)
#define FILTER_GROUPS   SEED_HALF_FILTER_GROUPS
#define POSITION_GROUPS (CONSUMER_WARPS / FILTER_GROUPS)
#define OUT_PIXELS      4
#define PATCH           16 /* number of pixels of a patch */
#define ROW_BYTES       (SEED_SIDE * 4)
/* bytes of the four image pairs in half a group of images */
#define HALF_BYTES (4 * PAIR_WORDS * 4)
static_assert(WARP_POSITIONS * POSITION_GROUPS == SEED_HALF_POSITIONS, "a block's positions");

/* The shared memory of a block. */
struct half_wgrad_shared {
	union {
		struct half_stage stage[STAGES];
		/* sums of the gradients of conv weights, then of biases */
		float conv_sums[CONSUMER_WARPS][8][OUT_PIXELS * PATCH + OUT_PIXELS];
	};
	/* memory that the pixel copies in flight write */
	uint4 bytes[2][SEED_GROUP * CHUNKS];
	uint4 fc[CONSUMER_WARPS][POSITION_PAIRS][32]; /* the fc weights as A operands */
	float fc_power[CONSUMER_WARPS][32];           /* fc = weights / fc_power * 2^11 */
	float amax[HALF_WGRAD_THREADS / 32];
};

/* The tile of a block and of a warp. Where a tile extends past the last position or filter, the
 * kernel computes the last one again, and does not store these results. */
struct half_tile {
	int begin, end;          /* the tile has groups [begin, end) of images */
	int filter_group, first; /* first: number of the first position */
	/* the filters of the tile exist; is_valid also checks that a position exists */
	bool valid;
};

__device__ inline struct half_tile half_tile_of(
	const struct kx_seed &s, const struct seed_tiling &tiling)
{
	const int warp = threadIdx.x / 32, last = s.f_pad / 8 - 1;
	const int group = blockIdx.y * FILTER_GROUPS + warp % FILTER_GROUPS;

	return {(int)(tiling.groups * blockIdx.z / tiling.slices),
		(int)(tiling.groups * (blockIdx.z + 1) / tiling.slices), min(group, last),
		((int)blockIdx.x * POSITION_GROUPS + warp / FILTER_GROUPS % POSITION_GROUPS) *
			WARP_POSITIONS,
		group <= last};
}

__device__ inline int tile_position(const struct half_tile &tile, int pos)
{
	return min(tile.first + pos, SEED_POSITIONS - 1);
}

__device__ inline bool is_valid(const struct half_tile &tile, int pos)
{
	return tile.valid && tile.first + pos < SEED_POSITIONS;
}

/* Returns the largest |d_logits| of images [begin, end). */
__device__ inline float dy_amax(
	const struct kx_seed &s, struct half_wgrad_shared *shared, int begin, int end)
{
	const float4 *from = reinterpret_cast<const float4 *>(s.d_logits);
	float v = 0;
#pragma unroll 1
	for (int i = begin * 3 + threadIdx.x; i < end * 3; i += HALF_WGRAD_THREADS) {
		const float4 e = from[i];

		v = fmaxf(v, fmaxf(fmaxf(fabsf(e.x), fabsf(e.y)), fmaxf(fabsf(e.z), fabsf(e.w))));
	}
	const uint32_t amax = __reduce_max_sync(0xffffffffu, __float_as_uint(v));
	if (threadIdx.x % 32 == 0)
		shared->amax[threadIdx.x / 32] = __uint_as_float(amax);
	__syncthreads();
	v = shared->amax[min(threadIdx.x % 32, HALF_WGRAD_THREADS / 32 - 1)];
	return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v)));
}

/* ---- features -------------------------------------------------------------------------------- */

struct half_sums {
	float fc[POSITION_PAIRS][2][4]; /* classes 0 to 7, then 8 to 15 */
	/* per pair of output pixels: [0] the middle rows of the patch; [1] its first or last row,
	 * and the bias */
	float conv[OUT_PIXELS / 2][2][4];
};

/* The shared-memory addresses of a thread's words in a stage, in bytes. */
struct lane_addresses {
	uint32_t patches, middle, side, by_image, by_class, fc;
	/* offset of each position's patch from the patch of the first position */
	uint32_t pos[WARP_POSITIONS];
	/* mask: all bits are 1 if the lane has a pixel, and 0 if it has the constant 1.0 */
	uint32_t pixel;
	uint32_t pick; /* __byte_perm selector: the half of this lane's image */
	__half2 slope, bias;
};

/* Computes the scaled values of two images. */
__device__ inline uint32_t half_values_of(
	const struct half_weights<1> &w, const struct lane_addresses &at, uint32_t patch)
{
	const uint2 upper = load_shared2(patch), lower = load_shared2(patch + 2 * ROW_BYTES);
	const uint32_t b0 = __byte_perm(upper.x, upper.y, at.pick);
	const uint32_t b1 = __byte_perm(lower.x, lower.y, at.pick);
	uint32_t c[2][2] = {};

	mma_half_sums(c[0], w.a[0][0], b0, b1);
	mma_half_sums(c[1], w.a[0][1], b0, b1);
	const __half2 largest = __hmax2(__hmax2(half_of(c[0][0]), half_of(c[0][1])),
		__hmax2(half_of(c[1][0]), half_of(c[1][1])));
	return half_bits(__hfma2_sat(largest, at.slope, at.bias));
}

/* Returns four bytes. A nibble selects each byte: nibbles 4 to 7 select a byte of the table,
 * and 0 selects a zero. */
__device__ inline uint32_t byte_lookup(uint32_t table, uint32_t nibbles)
{
	uint32_t v;

	asm("prmt.b32 %0, 0, %1, %2;" : "=r"(v) : "r"(table), "r"(nibbles));
	return v;
}

/* Adds the gradients of one position to the conv sums. `argmax` has four nibbles, for images 2t and
 * 2t + 1 of both halves. A nibble selects the upper byte of an fp16 1.0 for the output pixel that
 * is the argmax, and zero for the others. The product of this mask and dY is the A operand. */
__device__ inline void half_conv_wgrad(float (&sum)[OUT_PIXELS / 2][2][4], const uint32_t (&d)[2],
	uint32_t argmax, uint32_t middle, const uint32_t (&side)[2])
{
	uint32_t d_pixel[OUT_PIXELS][2];
#pragma unroll
	for (int out_pixel = 0; out_pixel < OUT_PIXELS; out_pixel++) {
		const uint32_t bytes = byte_lookup(0x3cu << (8 * out_pixel), argmax);

		d_pixel[out_pixel][0] = half_times(__byte_perm(bytes, 0, 0x1404), d[0]);
		d_pixel[out_pixel][1] = half_times(__byte_perm(bytes, 0, 0x3424), d[1]);
	}
	const uint32_t m0 = load_shared_u32(middle), m1 = load_shared_u32(middle + HALF_BYTES);
#pragma unroll
	for (int i = 0; i < OUT_PIXELS / 2; i++) {
		const uint4 a = {d_pixel[2 * i][0], d_pixel[2 * i + 1][0], d_pixel[2 * i][1],
			d_pixel[2 * i + 1][1]};

		mma_half(sum[i][0], a, m0, m1);
		mma_half(sum[i][1], a, load_shared_u32(side[i]),
			load_shared_u32(side[i] + HALF_BYTES));
	}
}

/* Adds the gradients of the features of an image group at two positions to *sum. `stage` is the
 * byte offset of the stage. `e` and `b` are the d_logits as B operands: e[half of the images],
 * b[half of the classes]. */
__device__ inline void half_add_pair(struct half_sums *sum, int pair,
	const struct half_weights<1> &w, const struct lane_addresses &at, const uint32_t *argmax,
	uint32_t stage, const uint2 (&e)[2], const uint32_t (&b)[2][2])
{
	const uint4 fc = load_shared4(at.fc + pair * 32 * 16);
	uint32_t value[2][2], d[2][2]; /* layout [position][half of the images] */
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float dy[4] = {};

		mma_half(dy, fc, e[half].x, e[half].y);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			value[i][half] = half_values_of(w, at,
				at.patches + at.pos[2 * pair + i] + stage + half * HALF_BYTES);
			d[i][half] = two_halves(dy[2 * i], dy[2 * i + 1]);
		}
	}
	const uint4 a = {value[0][0], value[1][0], value[0][1], value[1][1]};
	mma_half(sum->fc[pair][0], a, b[0][0], b[0][1]);
	mma_half(sum->fc[pair][1], a, b[1][0], b[1][1]);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const uint32_t pos = at.pos[2 * pair + i];
		const uint32_t upper = at.side + (pos & at.pixel) + stage;
		const uint32_t side[2] = {upper, upper + (3 * ROW_BYTES & at.pixel)};

		half_conv_wgrad(sum->conv, d[i], argmax[i], at.middle + pos + stage, side);
	}
}

__device__ inline void half_add_group(struct half_sums *sum, const struct half_weights<1> &w,
	const struct lane_addresses &at, const uint32_t (&argmax)[WARP_POSITIONS], uint32_t stage)
{
	const uint32_t by_class = at.by_class + stage;
	const uint2 e[2] = {
		load_shared2(at.by_image + stage), load_shared2(at.by_image + stage + 8 * 8 * 4)};
	uint32_t b[2][2];
#pragma unroll
	for (int i = 0; i < 4; i++)
		b[i / 2][i % 2] = load_shared_u32(by_class + (i / 2 * 8 + i % 2 * 4 * 24) * 4);
#pragma unroll
	for (int pair = 0; pair < POSITION_PAIRS; pair++)
		half_add_pair(sum, pair, w, at, argmax + 2 * pair, stage, e, b);
}

/* ---- prologue and epilogue ------------------------------------------------------------------- */

/* Stores the fc weights of the thread's filter as A operands, scaled by 2^11 / power. The weights
 * of an invalid position are zero, so that its dY is zero. */
__device__ inline void half_load_fc(
	const struct kx_seed &s, struct half_wgrad_shared *shared, const struct half_tile &tile)
{
	const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
	const float *row = s.params.fc + (size_t)(tile.filter_group * 8 + lane / 4) * SEED_ROW;
	float2 v[WARP_POSITIONS][2]; /* classes 2t, 2t + 1; lanes with t = 0 also have 8 and 9 */
	float bound = 0;
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++) {
		const float *from = row + (size_t)tile_position(tile, i) * s.f_pad * SEED_ROW;

		v[i][0] = *reinterpret_cast<const float2 *>(from + 2 * t);
		v[i][1] = *reinterpret_cast<const float2 *>(from + 8);
	}
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++) {
		const bool valid = is_valid(tile, i);

		v[i][0] = valid ? v[i][0] : float2{0, 0};
		v[i][1] = valid && t == 0 ? v[i][1] : float2{0, 0};
		float sum =
			fabsf(v[i][0].x) + fabsf(v[i][0].y) + fabsf(v[i][1].x) + fabsf(v[i][1].y);
		sum += __shfl_xor_sync(0xffffffffu, sum, 1);
		sum += __shfl_xor_sync(0xffffffffu, sum, 2);
		bound = fmaxf(bound, sum);
	}
	const float power = power_above(bound), scale = 0x1p11f / power;
#pragma unroll
	for (int pair = 0; pair < POSITION_PAIRS; pair++) {
		uint32_t a[2][2]; /* layout [position][half of the classes] */
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float2 x = v[2 * pair + i / 2][i % 2];

			a[i / 2][i % 2] = two_halves(x.x * scale, x.y * scale);
		}
		shared->fc[warp][pair][lane] = {a[0][0], a[1][0], a[0][1], a[1][1]};
	}
	shared->fc_power[warp][lane] = power;
}

/* Keeps a value in a register. Without this function the compiler would compute the value again for
 * each group. */
__device__ inline void keep_in_register(uint32_t *v)
{
	asm volatile("" : "+r"(*v));
}

__device__ inline struct lane_addresses lane_addresses_of(struct half_wgrad_shared *shared,
	const struct half_tile &tile, const struct half_scale &scale)
{
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32;
	const struct half_stage *stage = &shared->stage[0];
	/* true: the lane has a pixel of the first or last row; false: it has the constant 1.0 */
	const bool pixel = g < 4;
	uint32_t patch[WARP_POSITIONS];
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++) {
		const int p = tile_position(tile, i);

		patch[i] = (p / 13 * 2 * SEED_SIDE + p % 13 * 2) * 4;
	}
	const uint32_t row = shared_address(stage->pixels[t]);
	struct lane_addresses at = {
		shared_address(&stage->pixels[g / 2][t / 2 * SEED_SIDE + t % 2 * 2]) + patch[0],
		row + patch[0] + ((1 + g / 4) * SEED_SIDE + g % 4) * 4,
		pixel ? row + patch[0] + g * 4 : row + (IMAGE_PIXELS + g % 4) * 4,
		shared_address(&stage->by_image[g][2 * t]), shared_address(&stage->by_class[t][g]),
		shared_address(&shared->fc[warp][0][threadIdx.x % 32]), {}, pixel ? ~0u : 0,
		g % 2 ? 0x7632u : 0x5410u, __float2half2_rn(scale.slope),
		__float2half2_rn(scale.bias)};
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++)
		at.pos[i] = patch[i] - patch[0];
	keep_in_register(&at.patches);
	keep_in_register(&at.middle);
	keep_in_register(&at.side);
	keep_in_register(&at.by_image);
	keep_in_register(&at.by_class);
	keep_in_register(&at.pick);
	return at;
}

/* Runs the consumer loop: adds the gradients of each group when the stage of the group is full. */
__device__ inline void consume(struct half_sums *sum, const struct kx_seed &s,
	struct half_wgrad_shared *shared, const struct half_tile &tile)
{
	const int lane = threadIdx.x % 32, row = s.f_pad * 4;
	const size_t group = (size_t)SEED_POSITIONS * row;
	const uint16_t *argmax = half_argmax(s, tile.begin, tile.first) +
				 (tile.filter_group * 8 + lane / 4) * 4 + lane % 4;
	uint32_t next[WARP_POSITIONS];
	struct pipeline_state state = {0, false};
	struct half_weights<1> w;

	half_load(
		&w, half_fragments(s, tile.filter_group), half_scales(s, tile.filter_group), lane);
	const struct lane_addresses at = lane_addresses_of(shared, tile, w.scale);
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++)
		next[i] = argmax[i * row];
	argmax += group;
	for (int left = tile.end - tile.begin; left > 0; left--) {
		uint32_t now[WARP_POSITIONS];
#pragma unroll
		for (int i = 0; i < WARP_POSITIONS; i++) {
			now[i] = next[i];
			if (left > 1)
				next[i] = argmax[i * row];
		}
		argmax += group;
		struct half_stage *stage = stage_of(shared->stage, state);
		barrier_wait(&stage->full, state.parity);
		half_add_group(sum, w, at, now, state.stage);
		__syncwarp();
		if (lane == 0)
			(void)__mbarrier_arrive(&stage->empty);
		pipeline_advance(&state);
	}
}

/* Scales the sums of a warp back. Writes the fc sums to global memory and the conv sums to shared
 * memory. */
__device__ inline void half_put_sums(const struct kx_seed &s, struct half_wgrad_shared *shared,
	const struct half_sums &sum, const struct half_tile &tile, float dy_power)
{
	const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
	const int f = tile.filter_group * 8 + lane / 4;
	const float unit = reinterpret_cast<const struct half_scale *>(s.half_scales)[f].unit;
	const float fc = unit * 0x1p-4f * dy_power;
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++) {
		const float(&v)[2][4] = sum.fc[i / 2];
		const size_t p = (size_t)blockIdx.z * SEED_POSITIONS + tile.first + i;
		float *row = s.fc_workspace + (p * s.f_pad + f) * SEED_ROW;
		const int at = i % 2 * 2;
		if (!is_valid(tile, i))
			continue;
		*reinterpret_cast<float2 *>(row + 2 * t) = {v[0][at] * fc, v[0][at + 1] * fc};
		if (t < 2) /* classes 8 and 9, and two values of padding */
			*reinterpret_cast<float2 *>(row + 8 + 2 * t) = {
				v[1][at] * fc, v[1][at + 1] * fc};
	}
	const float bias = shared->fc_power[warp][lane] * 0x1p-15f * dy_power;
	const float pixel = bias * (CONV_PIXEL / PIXEL_HALF);
#pragma unroll
	for (int out_pixel = 0; out_pixel < OUT_PIXELS; out_pixel++) {
		const float *middle = &sum.conv[out_pixel / 2][0][out_pixel % 2 * 2];
		const float *side = &sum.conv[out_pixel / 2][1][out_pixel % 2 * 2];
		float *conv_sums = shared->conv_sums[warp][lane / 4],
		      *patch = conv_sums + out_pixel * PATCH;

		*reinterpret_cast<float2 *>(patch + 4 + 2 * t) = {
			middle[0] * pixel, middle[1] * pixel};
		if (t < 2)
			*reinterpret_cast<float2 *>(patch + out_pixel / 2 * 12 + 2 * t) = {
				side[0] * pixel, side[1] * pixel};
		if (t == 2)
			conv_sums[OUT_PIXELS * PATCH + out_pixel] = side[0] * bias;
	}
}

/* Adds up the conv sums of the block's filters over warps and output pixels, in a fixed order, and
 * stores them. */
__device__ inline void half_store_conv(
	const struct kx_seed &s, const struct half_wgrad_shared *shared, int f0, int slice)
{
	const int f = threadIdx.x / SEED_ROW, k = threadIdx.x % SEED_ROW;
	float v[POSITION_GROUPS * OUT_PIXELS], sum = 0;

	if (f >= FILTER_GROUPS * 8 || f0 + f >= s.f_pad)
		return;
#pragma unroll
	for (int i = 0; i < POSITION_GROUPS * OUT_PIXELS; i++) {
		const int warp = f / 8 + i / OUT_PIXELS * FILTER_GROUPS, out_pixel = i % OUT_PIXELS;
		const int pixel = (k / 3 + out_pixel / 2) * 4 + k % 3 + out_pixel % 2;

		v[i] = shared->conv_sums[warp][f % 8][k < 9 ? out_pixel * PATCH + pixel
							    : OUT_PIXELS * PATCH + out_pixel];
	}
#pragma unroll
	for (int i = 0; i < POSITION_GROUPS * OUT_PIXELS; i++)
		sum += v[i];
	s.conv_workspace[((size_t)slice * s.f_pad + f0 + f) * SEED_ROW + k] = k < 10 ? sum : 0;
}

/* blockIdx.x selects the positions of a block, blockIdx.y its filters, and blockIdx.z its
 * images. */
__global__ void __launch_bounds__(HALF_WGRAD_THREADS, 1) seed_half_wgrad_kernel(
	struct kx_seed s, struct kx_batch batch, struct seed_tiling tiling, int step)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct half_wgrad_shared *shared = reinterpret_cast<struct half_wgrad_shared *>(memory);
	const bool is_producer = threadIdx.x >= CONSUMER_WARPS * 32;
	const struct half_tile tile = half_tile_of(s, tiling);
	const struct producer producer = {(int)threadIdx.x - CONSUMER_WARPS * 32,
		batch.index + ((size_t)batch.now->step + step) * batch.images, batch.pixels,
		batch.images - 1};
	struct prefetched prefetched = {};
	struct half_sums sum = {};
	if (is_producer) {
		const uint32_t number[2] = {producer_image(producer, tile.begin),
			producer_image(producer, tile.begin + 1)};

		prefetched.number = producer_image(producer, tile.begin + 2);
		producer_fetch_pixels(producer, shared->bytes[0], number[0]);
		producer_fetch_pixels(producer, shared->bytes[1], number[1]);
	}
	if (threadIdx.x == 0)
		init_stages(shared->stage);
	for (int i = 0; i < STAGES; i++)
		init_constants(&shared->stage[i]);
	await_previous();
	if (is_producer)
		prefetched.dy = producer_fetch_dy(producer, s, tile.begin);
	else
		half_load_fc(s, shared, tile);
	const float power =
		power_above(dy_amax(s, shared, tile.begin * SEED_GROUP, tile.end * SEED_GROUP));
	if (is_producer)
		produce(producer, prefetched, s, shared->stage, shared->bytes, tile.begin, tile.end,
			0x1p4f / power);
	else
		consume(&sum, s, shared, tile);
	__syncthreads();
	if (threadIdx.x == 0)
		drop_stages(shared->stage);
	__syncthreads(); /* because conv_sums reuses the memory of the stages */
	if (!is_producer)
		half_put_sums(s, shared, sum, tile, power);
	__syncthreads();
	half_store_conv(
		s, shared, blockIdx.y * FILTER_GROUPS * 8, blockIdx.z * gridDim.x + blockIdx.x);
}

} // namespace

int kx_seed_half_wgrad(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	const struct seed_tiling c = kx_seed_tiling(s.f_pad, s.half, batch.images);
	const int bytes = (int)sizeof(struct half_wgrad_shared);

	if (cudaFuncSetAttribute(
		    seed_half_wgrad_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(seed_half_wgrad_kernel, dim3(c.position_blocks, c.lane_blocks, c.slices),
		HALF_WGRAD_THREADS, bytes, stream, s, batch, c, step);
}
