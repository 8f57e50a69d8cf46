/*
 * seed_half_wgrad.cu - gradients of the seed nets in low precision, all on tensor cores.
 *
 * A warp owns eight filters at four positions, its *places*, and goes through groups of sixteen
 * images. In every product lane / 4 is the filter and lane % 4, t, has the images 2t, 2t + 1 of
 * each half of the group, as in seed_half_fprop.cu. Places come in twos, for sixteen rows:
 *   error    [filter, place][image] = fc weight [filter, place][class] x error [class][image]
 *   value    made again by weights in one part: cheaper than 2 bytes to memory and back
 *   fc       [filter, place][class] += value [filter, place][image] x error [image][class]
 *   conv     [filter, cell][pixel] += error [filter, cell][image] x pixel of the patch [image]
 * What comes out of the first two has the layout that the last two want as their left factor. The
 * error stands in the row of the cell that won, zeros in the others; at the end the four cells'
 * patches, shifted, make the gradient of the nine weights, and a column of ones that of the bias.
 *
 * Errors, values and weights are scaled for fp16: errors by the largest of the block's images to
 * 2^4, fc weights by their sums to 2^11, so that the products stay below 2^15; values are below 1.
 */
#include "kernels/cuda/fused/seed_half_producer.cuh"

#define PLACES        4
#define TWOS          (PLACES / 2)
#define FILTER_GROUPS SEED_LOW_FILTER_GROUPS
#define PLACE_GROUPS  (WARPS / FILTER_GROUPS)
#define CELLS         4
#define PATCH         16 /* pixels */
#define ROW_BYTES     (SEED_SIDE * 4)
#define HALF_BYTES    (4 * PAIR_WORDS * 4) /* of a group's pairs */
static_assert(PLACES * PLACE_GROUPS == SEED_LOW_POSITIONS, "a block's positions");

/* In shared memory. */
struct shared {
	union {
		struct low_stage stage[STAGES];
		float found[WARPS][8][CELLS * PATCH + CELLS]; /* conv's sums, and the bias's */
	};
	uint4 bytes[2][SEED_GROUP * CHUNKS]; /* pixels on their way to the stages */
	uint4 fc[WARPS][TWOS][32];           /* weights as left factors */
	float fc_power[WARPS][32];           /* what they were divided by, and times 2^11 */
	float largest[THREADS / 32];
};

/* A block's share of the work, and a warp's. What lies past the last position or filter does the
 * last once more and is not wanted. */
struct share {
	int begin, end;          /* groups */
	int filter_group, first; /* place */
	bool wanted;             /* the filters; a place if it is a position */
};

__device__ static inline struct share share_of(const struct kx_seed &s, const struct seed_cut &cut)
{
	const int warp = threadIdx.x / 32, last = s.f_pad / 8 - 1;
	const int group = blockIdx.y * FILTER_GROUPS + warp % FILTER_GROUPS;
	return {(int)(cut.groups * blockIdx.z / cut.splits),
		(int)(cut.groups * (blockIdx.z + 1) / cut.splits), min(group, last),
		((int)blockIdx.x * PLACE_GROUPS + warp / FILTER_GROUPS % PLACE_GROUPS) * PLACES,
		group <= last};
}

__device__ static inline int position_of(const struct share &share, int place)
{
	return min(share.first + place, SEED_POSITIONS - 1);
}

__device__ static inline bool is_wanted(const struct share &share, int place)
{
	return share.wanted && share.first + place < SEED_POSITIONS;
}

/* Of the images begin.. to end. */
__device__ static inline float largest_error(
	const struct kx_seed &s, struct shared *shared, int begin, int end)
{
	const float4 *from = reinterpret_cast<const float4 *>(s.d_scores);
	float v = 0;
#pragma unroll 1
	for (int i = begin * 3 + threadIdx.x; i < end * 3; i += THREADS) {
		const float4 e = from[i];
		v = fmaxf(v, fmaxf(fmaxf(fabsf(e.x), fabsf(e.y)), fmaxf(fabsf(e.z), fabsf(e.w))));
	}
	const uint32_t most = __reduce_max_sync(0xffffffffu, __float_as_uint(v));
	if (threadIdx.x % 32 == 0)
		shared->largest[threadIdx.x / 32] = __uint_as_float(most);
	__syncthreads();
	v = shared->largest[min(threadIdx.x % 32, THREADS / 32 - 1)];
	return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v)));
}

/* ---- features -------------------------------------------------------------------------------- */

struct sums {
	float fc[TWOS][2][4];        /* eight classes, the others */
	float conv[CELLS / 2][2][4]; /* cells, columns: the patch's middle; a side, and ones */
};

/* Where in shared memory a thread finds its words of a stage; bytes. */
struct lane {
	uint32_t cells, middle, side, by_image, by_class, fc;
	uint32_t place[PLACES]; /* from the first place's patch */
	uint32_t pixel;         /* all ones, or 0: it has ones at the patch's sides */
	uint32_t pick;          /* of two words, its image's half */
	__half2 slope, bias;
};

/* Values of two images, scaled. */
__device__ static inline uint32_t values_of(
	const struct low_weights<1> &w, const struct lane &at, uint32_t patch)
{
	const uint2 upper = two_shared(patch), lower = two_shared(patch + 2 * ROW_BYTES);
	const uint32_t b0 = __byte_perm(upper.x, upper.y, at.pick);
	const uint32_t b1 = __byte_perm(lower.x, lower.y, at.pick);
	uint32_t c[2][2] = {};
	mma_half_sums(c[0], w.a[0][0], b0, b1);
	mma_half_sums(c[1], w.a[0][1], b0, b1);
	const __half2 most = __hmax2(__hmax2(half_of(c[0][0]), half_of(c[0][1])),
		__hmax2(half_of(c[1][0]), half_of(c[1][1])));
	return half_bits(__hfma2_sat(most, at.slope, at.bias));
}

/* Four nibbles look up bytes: 4 to 7 in the table, 0 zero. */
__device__ static inline uint32_t look_up(uint32_t table, uint32_t nibbles)
{
	uint32_t v;
	asm("prmt.b32 %0, 0, %1, %2;" : "=r"(v) : "r"(table), "r"(nibbles));
	return v;
}

/* `winners`: four nibbles, of the images 2t and 2t + 1 of both halves. They look up upper halves of
 * fp16 ones: a cell's errors times one where it won, and zero. */
__device__ static inline void add_conv(float (&sum)[CELLS / 2][2][4], const uint32_t (&d)[2],
	uint32_t winners, uint32_t middle, const uint32_t (&side)[2])
{
	uint32_t won[CELLS][2];
#pragma unroll
	for (int cell = 0; cell < CELLS; cell++) {
		const uint32_t bytes = look_up(0x3cu << (8 * cell), winners);
		won[cell][0] = half_times(__byte_perm(bytes, 0, 0x1404), d[0]);
		won[cell][1] = half_times(__byte_perm(bytes, 0, 0x3424), d[1]);
	}
	const uint32_t m0 = word_shared(middle), m1 = word_shared(middle + HALF_BYTES);
#pragma unroll
	for (int i = 0; i < CELLS / 2; i++) {
		const uint4 a = {
			won[2 * i][0], won[2 * i + 1][0], won[2 * i][1], won[2 * i + 1][1]};
		mma_half(sum[i][0], a, m0, m1);
		mma_half(sum[i][1], a, word_shared(side[i]), word_shared(side[i] + HALF_BYTES));
	}
}

/* A group's features at two places. `stage`: bytes from the first one; e, b: errors as right
 * factors, of the halves, and of the classes. */
__device__ static inline void add_two(struct sums *sum, int two, const struct low_weights<1> &w,
	const struct lane &at, const uint32_t *winners, uint32_t stage, const uint2 (&e)[2],
	const uint32_t (&b)[2][2])
{
	const uint4 fc = four_shared(at.fc + two * 32 * 16);
	uint32_t value[2][2], d[2][2]; /* place, half */
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float error[4] = {};
		mma_half(error, fc, e[half].x, e[half].y);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			value[i][half] = values_of(w, at,
				at.cells + at.place[2 * two + i] + stage + half * HALF_BYTES);
			d[i][half] = two_halves(error[2 * i], error[2 * i + 1]);
		}
	}
	const uint4 a = {value[0][0], value[1][0], value[0][1], value[1][1]};
	mma_half(sum->fc[two][0], a, b[0][0], b[0][1]);
	mma_half(sum->fc[two][1], a, b[1][0], b[1][1]);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const uint32_t place = at.place[2 * two + i];
		const uint32_t upper = at.side + (place & at.pixel) + stage;
		const uint32_t side[2] = {upper, upper + (3 * ROW_BYTES & at.pixel)};
		add_conv(sum->conv, d[i], winners[i], at.middle + place + stage, side);
	}
}

__device__ static inline void add_group(struct sums *sum, const struct low_weights<1> &w,
	const struct lane &at, const uint32_t (&winners)[PLACES], uint32_t stage)
{
	const uint32_t by_class = at.by_class + stage;
	const uint2 e[2] = {
		two_shared(at.by_image + stage), two_shared(at.by_image + stage + 8 * 8 * 4)};
	uint32_t b[2][2];
#pragma unroll
	for (int i = 0; i < 4; i++)
		b[i / 2][i % 2] = word_shared(by_class + (i / 2 * 8 + i % 2 * 4 * 24) * 4);
#pragma unroll
	for (int two = 0; two < TWOS; two++)
		add_two(sum, two, w, at, winners + 2 * two, stage, e, b);
}

/* ---- before and after ------------------------------------------------------------------------ */

/* The fc weights of the thread's filter as left factors, 2^11 / power as large; zeros for what is
 * not wanted, so that no error comes out of it. */
__device__ static inline void load_fc(
	const struct kx_seed &s, struct shared *shared, const struct share &share)
{
	const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
	const float *row = s.params.fc + (size_t)(share.filter_group * 8 + lane / 4) * SEED_ROW;
	float2 v[PLACES][2]; /* classes 2t, 2t + 1; lane t = 0: 8 and 9 */
	float bound = 0;
#pragma unroll
	for (int i = 0; i < PLACES; i++) {
		const float *from = row + (size_t)position_of(share, i) * s.f_pad * SEED_ROW;
		v[i][0] = *reinterpret_cast<const float2 *>(from + 2 * t);
		v[i][1] = *reinterpret_cast<const float2 *>(from + 8);
	}
#pragma unroll
	for (int i = 0; i < PLACES; i++) {
		const bool wanted = is_wanted(share, i);
		v[i][0] = wanted ? v[i][0] : float2{0, 0};
		v[i][1] = wanted && t == 0 ? v[i][1] : float2{0, 0};
		float sum =
			fabsf(v[i][0].x) + fabsf(v[i][0].y) + fabsf(v[i][1].x) + fabsf(v[i][1].y);
		sum += __shfl_xor_sync(0xffffffffu, sum, 1);
		sum += __shfl_xor_sync(0xffffffffu, sum, 2);
		bound = fmaxf(bound, sum);
	}
	const float power = power_above(bound), scale = 0x1p11f / power;
#pragma unroll
	for (int two = 0; two < TWOS; two++) {
		uint32_t a[2][2]; /* place, classes */
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float2 x = v[2 * two + i / 2][i % 2];
			a[i / 2][i % 2] = two_halves(x.x * scale, x.y * scale);
		}
		shared->fc[warp][two][lane] = {a[0][0], a[1][0], a[0][1], a[1][1]};
	}
	shared->fc_power[warp][lane] = power;
}

/* In a register, rather than made anew in each group. */
__device__ static inline void keep(uint32_t *v)
{
	asm volatile("" : "+r"(*v));
}

__device__ static inline struct lane lane_of(
	struct shared *shared, const struct share &share, const struct low_scale &scale)
{
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32;
	const struct low_stage *stage = &shared->stage[0];
	const bool pixel = g < 4; /* at the patch's sides, or a one */
	uint32_t patch[PLACES];
#pragma unroll
	for (int i = 0; i < PLACES; i++) {
		const int p = position_of(share, i);
		patch[i] = (p / 13 * 2 * SEED_SIDE + p % 13 * 2) * 4;
	}
	const uint32_t row = shared_address(stage->pixels[t]);
	struct lane at = {
		shared_address(&stage->pixels[g / 2][t / 2 * SEED_SIDE + t % 2 * 2]) + patch[0],
		row + patch[0] + ((1 + g / 4) * SEED_SIDE + g % 4) * 4,
		pixel ? row + patch[0] + g * 4 : row + (IMAGE + g % 4) * 4,
		shared_address(&stage->by_image[g][2 * t]), shared_address(&stage->by_class[t][g]),
		shared_address(&shared->fc[warp][0][threadIdx.x % 32]), {}, pixel ? ~0u : 0,
		g % 2 ? 0x7632u : 0x5410u, __float2half2_rn(scale.slope),
		__float2half2_rn(scale.bias)};
#pragma unroll
	for (int i = 0; i < PLACES; i++)
		at.place[i] = patch[i] - patch[0];
	keep(&at.cells);
	keep(&at.middle);
	keep(&at.side);
	keep(&at.by_image);
	keep(&at.by_class);
	keep(&at.pick);
	return at;
}

/* All of a warp's groups. */
__device__ static inline void work(
	struct sums *sum, const struct kx_seed &s, struct shared *shared, const struct share &share)
{
	const int lane = threadIdx.x % 32, row = s.f_pad * 4;
	const size_t group = (size_t)SEED_POSITIONS * row;
	const uint16_t *winners = low_winners(s, share.begin, share.first) +
				  (share.filter_group * 8 + lane / 4) * 4 + lane % 4;
	uint32_t next[PLACES];
	struct turn turn = {0, false};
	struct low_weights<1> w;
	low_load(&w, low_fragments(s, share.filter_group), low_scales(s, share.filter_group), lane);
	const struct lane at = lane_of(shared, share, w.scale);
#pragma unroll
	for (int i = 0; i < PLACES; i++)
		next[i] = winners[i * row];
	winners += group;
	for (int left = share.end - share.begin; left > 0; left--) {
		uint32_t now[PLACES];
#pragma unroll
		for (int i = 0; i < PLACES; i++) {
			now[i] = next[i];
			if (left > 1)
				next[i] = winners[i * row];
		}
		winners += group;
		struct low_stage *stage = stage_of(shared->stage, turn);
		wait_for(&stage->full, turn.parity);
		add_group(sum, w, at, now, turn.stage);
		__syncwarp();
		if (lane == 0)
			(void)__mbarrier_arrive(&stage->empty);
		turn_next(&turn);
	}
}

/* A warp's sums, scaled back: fc to memory, conv to shared memory. */
__device__ static inline void put_sums(const struct kx_seed &s, struct shared *shared,
	const struct sums &sum, const struct share &share, float error_power)
{
	const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
	const int f = share.filter_group * 8 + lane / 4;
	const float unit = reinterpret_cast<const struct low_scale *>(s.low_scales)[f].unit;
	const float fc = unit * 0x1p-4f * error_power;
#pragma unroll
	for (int i = 0; i < PLACES; i++) {
		const float(&v)[2][4] = sum.fc[i / 2];
		const size_t p = (size_t)blockIdx.z * SEED_POSITIONS + share.first + i;
		float *row = s.fc_parts + (p * s.f_pad + f) * SEED_ROW;
		const int at = i % 2 * 2;
		if (!is_wanted(share, i))
			continue;
		*reinterpret_cast<float2 *>(row + 2 * t) = {v[0][at] * fc, v[0][at + 1] * fc};
		if (t < 2) /* classes 8, 9 and two that are none */
			*reinterpret_cast<float2 *>(row + 8 + 2 * t) = {
				v[1][at] * fc, v[1][at + 1] * fc};
	}
	const float bias = shared->fc_power[warp][lane] * 0x1p-15f * error_power;
	const float pixel = bias * (CONV_PIXEL / PIXEL_HALF);
#pragma unroll
	for (int cell = 0; cell < CELLS; cell++) {
		const float *middle = &sum.conv[cell / 2][0][cell % 2 * 2];
		const float *side = &sum.conv[cell / 2][1][cell % 2 * 2];
		float *found = shared->found[warp][lane / 4], *patch = found + cell * PATCH;
		*reinterpret_cast<float2 *>(patch + 4 + 2 * t) = {
			middle[0] * pixel, middle[1] * pixel};
		if (t < 2)
			*reinterpret_cast<float2 *>(patch + cell / 2 * 12 + 2 * t) = {
				side[0] * pixel, side[1] * pixel};
		if (t == 2)
			found[CELLS * PATCH + cell] = side[0] * bias;
	}
}

/* The block's filters: sums over its places, in the order of the warps, and over the cells. */
__device__ static inline void conv_out(
	const struct kx_seed &s, const struct shared *shared, int f0, int part)
{
	const int f = threadIdx.x / SEED_ROW, k = threadIdx.x % SEED_ROW;
	float v[PLACE_GROUPS * CELLS], sum = 0;
	if (f >= FILTER_GROUPS * 8 || f0 + f >= s.f_pad)
		return;
#pragma unroll
	for (int i = 0; i < PLACE_GROUPS * CELLS; i++) {
		const int warp = f / 8 + i / CELLS * FILTER_GROUPS, cell = i % CELLS;
		const int pixel = (k / 3 + cell / 2) * 4 + k % 3 + cell % 2;
		v[i] = shared->found[warp][f % 8]
				    [k < 9 ? cell * PATCH + pixel : CELLS * PATCH + cell];
	}
#pragma unroll
	for (int i = 0; i < PLACE_GROUPS * CELLS; i++)
		sum += v[i];
	s.conv_parts[((size_t)part * s.f_pad + f0 + f) * SEED_ROW + k] = k < 10 ? sum : 0;
}

/* blockIdx: x positions, y filters, z images. */
__global__ void __launch_bounds__(THREADS, 1)
	low_backward_kernel(struct kx_seed s, struct kx_batch batch, struct seed_cut cut, int step)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct shared *shared = reinterpret_cast<struct shared *>(memory);
	const bool feeds = threadIdx.x >= WARPS * 32;
	const struct share share = share_of(s, cut);
	const struct feeder feeder = {(int)threadIdx.x - WARPS * 32,
		batch.index + ((size_t)batch.now->step + step) * batch.images, batch.pixels,
		batch.images - 1};
	struct fed fed = {};
	struct sums sum = {};
	if (feeds) {
		const uint32_t number[2] = {
			feeder_number(feeder, share.begin), feeder_number(feeder, share.begin + 1)};
		fed.number = feeder_number(feeder, share.begin + 2);
		fetch_pixels(feeder, shared->bytes[0], number[0]);
		fetch_pixels(feeder, shared->bytes[1], number[1]);
	}
	if (threadIdx.x == 0)
		open_stages(shared->stage);
	for (int i = 0; i < STAGES; i++)
		put_constants(&shared->stage[i]);
	await_previous();
	if (feeds)
		fed.errors = fetch_errors(feeder, s, share.begin);
	else
		load_fc(s, shared, share);
	const float power = power_above(
		largest_error(s, shared, share.begin * SEED_GROUP, share.end * SEED_GROUP));
	if (feeds)
		feed(feeder, fed, s, shared->stage, shared->bytes, share.begin, share.end,
			0x1p4f / power);
	else
		work(&sum, s, shared, share);
	__syncthreads(); /* the stages' place is wanted */
	if (!feeds)
		put_sums(s, shared, sum, share, power);
	__syncthreads();
	conv_out(s, shared, blockIdx.y * FILTER_GROUPS * 8, blockIdx.z * gridDim.x + blockIdx.x);
}

int kx_seed_low_backward(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	const struct seed_cut c = kx_seed_cut(s.f_pad, s.low, batch.images);
	const int bytes = (int)sizeof(struct shared);
	if (cudaFuncSetAttribute(
		    low_backward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(low_backward_kernel, dim3(c.position_blocks, c.lane_blocks, c.splits),
		THREADS, bytes, stream, s, batch, c, step);
}
