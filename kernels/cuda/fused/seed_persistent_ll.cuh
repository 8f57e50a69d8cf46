/*
 * seed_persistent_ll.cuh - what the blocks tell each other: see seed_persistent.cu.
 */
#ifndef KERNELS_CUDA_FUSED_SEED_PERSISTENT_LL_CUH
#define KERNELS_CUDA_FUSED_SEED_PERSISTENT_LL_CUH
#include "kernels/cuda/fused/seed_persistent_fprop.cuh"

#define LEAST_PARTS 4  /* of the positions: a block has room for a quarter */
#define MOST_PARTS  32 /* more would each be too little */
static_assert(TWOS >= (SEED_POSITIONS / LEAST_PARTS + 2) / 2, "a part's positions");
static_assert(SEED_RESIDENT_IMAGES * 4 <= THREADS, "a thread to each word of errors");
static_assert(SEED_SCORE_WORDS * 3 == SEED_ROW && CONV_WORDS * 3 == CONV_VALUES, "three a word");

#define ERROR_SCALE 0x1p15f /* of p - y for fp16 */

#ifdef __CUDACC__
/* ---- words ----------------------------------------------------------------------------------- */

/* With the step is what the numbers are, bit by bit, so that whoever reads a word needs all of it:
 * else ptxas makes two loads of one, and the step may be of a newer word than the number. */
__device__ static inline uint32_t sealed(uint32_t step, float a, float b, float c)
{
	return step ^ __float_as_uint(a) ^ __float_as_uint(b) ^ __float_as_uint(c);
}

__device__ static inline void tell(struct seed_word *at, float a, float b, float c, uint32_t step)
{
	const uint64_t low = (uint64_t)__float_as_uint(b) << 32 | __float_as_uint(a);
	const uint64_t high = (uint64_t)sealed(step, a, b, c) << 32 | __float_as_uint(c);
	asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.gpu.global.b128 [%0], v; }"
		     :
		     : "l"(at), "l"(low), "l"(high)
		     : "memory");
}

__device__ static inline struct seed_word heard(const struct seed_word *at)
{
	uint64_t low, high;
	asm volatile("{ .reg .b128 v; ld.relaxed.gpu.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
		     : "=l"(low), "=l"(high)
		     : "l"(at)
		     : "memory");
	const float a = __uint_as_float((uint32_t)low), c = __uint_as_float((uint32_t)high);
	const float b = __uint_as_float((uint32_t)(low >> 32));
	return {{a, b, c}, sealed((uint32_t)(high >> 32), a, b, c)};
}

/* N words of a step, every `pitch` words, of which the thread wants the first `n`. */
template <int N>
__device__ static inline void await_words(
	struct seed_word (&w)[N], const struct seed_word *from, int pitch, int n, uint32_t step)
{
	bool here;
	do {
		here = true;
#pragma unroll
		for (int i = 0; i < N; i++)
			if (i < n)
				w[i] = heard(from + i * pitch);
#pragma unroll
		for (int i = 0; i < N; i++)
			here = here && (i >= n || w[i].step == step);
	} while (!here);
}

/* ---- scores and errors ----------------------------------------------------------------------- */

__device__ static inline void tell_scores(const struct kx_seed &s, const struct resident *shared,
	const struct share &share, uint32_t step)
{
	const int n = threadIdx.x / 4, quad = threadIdx.x % 4;
	if (n >= share.images)
		return;
	const float3 v = add_scores(shared, n, quad);
	tell(s.exchange.scores + ((size_t)n * gridDim.x + blockIdx.x) * 4 + quad, v.x, v.y, v.z,
		step);
}

/* What all blocks tell of the block's own images. */
__device__ static inline void await_scores(
	const struct kx_seed &s, struct resident *shared, const struct share &share, uint32_t step)
{
	const int words = gridDim.x * 4;
#pragma unroll 1
	for (int i = threadIdx.x; i < share.owned * words; i += THREADS) {
		const int n = blockIdx.x + i / words * gridDim.x;
		struct seed_word w[1];
		await_words(w, s.exchange.scores + (size_t)n * words + i % words, 0, 1, step);
#pragma unroll
		for (int c = 0; c < 3; c++)
			(&shared->told[0][0])[3 * i + c] = w[0].v[c];
	}
}

/* Of the warp's image, and the bias: lane c < SEED_CLASSES has class c, the others nothing. */
__device__ static inline float sum_scores(const struct resident *shared)
{
	const int lane = threadIdx.x % 32, blocks = gridDim.x;
	const float *from = shared->told[threadIdx.x / 32 * blocks];
	float v[SEED_CLASSES] = {}, score = -INFINITY;
#pragma unroll 1
	for (int b = lane; b < blocks; b += 32)
#pragma unroll
		for (int c = 0; c < SEED_CLASSES; c++)
			v[c] += from[b * SEED_ROW + c];
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++) {
#pragma unroll
		for (int d = 16; d; d /= 2)
			v[c] += __shfl_xor_sync(0xffffffffu, v[c], d);
		score = lane == c ? v[c] + shared->bias[c] : score;
	}
	return score;
}

/* An image's errors, by a warp. Returns the loss, to one of its lanes. */
__device__ static inline float make_errors(
	const struct kx_seed &s, const struct resident *shared, int label, uint32_t step)
{
	const unsigned all = 0xffffffffu;
	const int n = blockIdx.x + threadIdx.x / 32 * gridDim.x;
	const int lane = threadIdx.x % 32;
	const bool real = lane < SEED_CLASSES;
	const float v = sum_scores(shared);
	float most = v;
	for (int d = 8; d; d /= 2)
		most = max_or_nan(most, __shfl_xor_sync(all, most, d));
	const float power = real ? expf(v - most) : 0;
	float sum = power;
	for (int d = 8; d; d /= 2)
		sum += __shfl_xor_sync(all, sum, d);
	const float error = real ? power / sum - (lane == label) : 0;
	const float a = __shfl_sync(all, error, 3 * lane),
		    b = __shfl_sync(all, error, 3 * lane + 1);
	const float c = __shfl_sync(all, error, 3 * lane + 2);
	if (lane < 4)
		tell(s.exchange.errors + n * 4 + lane, a, b, c, step);
	return lane == label ? logf(sum) - (v - most) : 0;
}

/* Everybody's errors into shared memory. */
__device__ static inline void await_errors(
	const struct kx_seed &s, struct resident *shared, const struct share &share, uint32_t step)
{
	const int n = threadIdx.x / 4, quad = threadIdx.x % 4;
	if (n >= share.images)
		return;
	struct seed_word w[1];
	await_words(w, s.exchange.errors + threadIdx.x, 0, 1, step);
	uint16_t *classes = reinterpret_cast<uint16_t *>(shared->by_class[n / 2]) + n % 2;
	uint16_t *image = reinterpret_cast<uint16_t *>(shared->by_image[n]);
#pragma unroll
	for (int k = 0; k < 3; k++) {
		const int c = 3 * quad + k, pair = c / 2;
		const uint16_t half = __half_as_ushort(__float2half_rn(w[0].v[k] * ERROR_SCALE));
		shared->error[n][c] = w[0].v[k];
		image[(pair % 4 * 2 + pair / 4) * 2 + c % 2] = half;
		classes[c * 2] = half;
	}
}

/* ---- the conv's gradient, losses ------------------------------------------------------------- */

/* The conv's gradient at the block's positions, in the order of its warps: a word, which is a row
 * of a filter's weights or its bias, is summed up by sixteen lanes, for four cells and quarters of
 * the warps. */
__device__ static inline void tell_conv(
	struct seed_word *to, const struct resident *shared, uint32_t step)
{
	const int word = threadIdx.x / 16, f = word / 4, row = word % 4, cell = threadIdx.x % CELLS;
	const int quarter = threadIdx.x / CELLS % 4,
		  stride = sizeof shared->sum.conv[0] / sizeof(float);
	const float *from =
		shared->sum.conv[quarter * (WARPS / 4)][f] +
		(row < 3 ? cell * PATCH + (row + cell / 2) * 4 + cell % 2 : CELLS * PATCH + cell);
	float v[3] = {};
	static_assert(CONV_WORDS * 16 == THREADS, "sixteen lanes to a word");
#pragma unroll
	for (int w = 0; w < WARPS / 4; w++)
#pragma unroll
		for (int j = 0; j < 3; j++)
			v[j] += row < 3 || j == 0 ? from[w * stride + j] : 0;
#pragma unroll
	for (int j = 0; j < 3; j++)
#pragma unroll
		for (int d = 1; d < 16; d *= 2)
			v[j] += __shfl_xor_sync(0xffffffffu, v[j], d);
	if (threadIdx.x % 16 == 0)
		tell(to + word, v[0], v[1], v[2], step);
}

/* The conv's, in each block of the group alike. `from`: the group's parts, of which a slice of the
 * threads has every CONV_SLICES-th. */
__device__ static inline void await_conv(
	struct resident *shared, const struct seed_word *from, int parts, uint32_t step)
{
	const int most = (MOST_PARTS + CONV_SLICES - 1) / CONV_SLICES;
	const int word = threadIdx.x % CONV_WORDS, slice = threadIdx.x / CONV_WORDS;
	const int n = max(parts - slice + CONV_SLICES - 1, 0) / CONV_SLICES;
	struct seed_word w[most];
	await_words(w, from + slice * CONV_WORDS + word, CONV_SLICES * CONV_WORDS, n, step);
#pragma unroll
	for (int j = 0; j < 3; j++) {
		float v = 0;
#pragma unroll
		for (int k = 0; k < most; k++)
			v += k < n ? w[k].v[j] : 0;
		shared->conv_part[slice][3 * word + j] = v;
	}
}

/* A double is the sum of three floats. */
__device__ static inline void tell_loss(struct seed_word *to, double loss, uint32_t step)
{
	for (int d = 16; d; d /= 2)
		loss += __shfl_xor_sync(0xffffffffu, loss, d);
	const float a = (float)loss, b = (float)(loss - a), c = (float)(loss - a - b);
	if (threadIdx.x % 32 == 0)
		tell(to, a, b, c, step);
}

/* The losses of all blocks' images, by one warp. */
__device__ static inline double await_losses(
	const struct seed_word *from, int images, uint32_t step)
{
	double v = 0;
	for (int n = threadIdx.x; n < images; n += 32) {
		struct seed_word w[1];
		await_words(w, from + n, 0, 1, step);
		v += (double)w[0].v[0] + w[0].v[1] + w[0].v[2];
	}
	__syncwarp();
	for (int d = 16; d; d /= 2)
		v += __shfl_xor_sync(0xffffffffu, v, d);
	return v;
}

#endif

#endif
