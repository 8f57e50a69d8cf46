/*
 * seed_exchange.cuh - the exchange between the blocks of the persistent kernel (seed_persistent.cu)
 * through global memory: partial logits, d_logits, conv gradients and losses.
 *
 * Each line of the exchange has a flag, which is the number of the step. The exchange uses the LL
 * protocol of NCCL, but with one flag for 16 bytes instead of one for 8. In measurements with 100
 * images, NCCL's lines of 8 bytes made seed:32 28 % slower and seed:256 11 % slower. A reader polls
 * the line until the flag is right, so the exchange needs neither fences nor counters. A writer
 * overwrites a line of an earlier step only after it has received results that every reader
 * computed after reading that line, so no reader needs the line any more.
 *
 * A block gives up when it has waited for another block for timeout_ns: it sets *trouble, computes
 * the rest of its step with what it has received, and returns. The other blocks see *trouble while
 * they wait, and return as well. A block also gives up if its own pixels do not arrive. Results of
 * a launch that has set *trouble are not valid, and later launches return at once. (The block does
 * not end with a trap, because a trap would destroy the CUDA context.)
 */
#ifndef KERNELS_CUDA_FUSED_SEED_EXCHANGE_CUH
#define KERNELS_CUDA_FUSED_SEED_EXCHANGE_CUH
#include "kernels/cuda/fused/seed_persistent.cuh"

/* ---- LL lines -------------------------------------------------------------------------------- */

/* Returns the flag of a line: the number of its step, XORed with the data, so that a reader needs
 * the whole line to check the flag. Without the XOR, ptxas splits the 128-bit load into two, and
 * the flag may be newer than the data. */
__device__ inline uint32_t ll_flag(uint32_t step, float a, float b, float c)
{
	return step ^ __float_as_uint(a) ^ __float_as_uint(b) ^ __float_as_uint(c);
}

__device__ inline void ll_store(struct ll_line *at, float a, float b, float c, uint32_t step)
{
	const uint64_t low = (uint64_t)__float_as_uint(b) << 32 | __float_as_uint(a);
	const uint64_t high = (uint64_t)ll_flag(step, a, b, c) << 32 | __float_as_uint(c);

	asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.gpu.global.b128 [%0], v; }"
		     :
		     : "l"(at), "l"(low), "l"(high)
		     : "memory");
}

/* Loads a line. `flag` of the returned line is the number of the step to which the floats of the
 * line belong. */
__device__ inline struct ll_line ll_load(const struct ll_line *at)
{
	uint64_t low, high;

	asm volatile("{ .reg .b128 v; ld.relaxed.gpu.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
		     : "=l"(low), "=l"(high)
		     : "l"(at)
		     : "memory");
	const float a = __uint_as_float((uint32_t)low), c = __uint_as_float((uint32_t)high);
	const float b = __uint_as_float((uint32_t)(low >> 32));
	return {{a, b, c}, ll_flag((uint32_t)(high >> 32), a, b, c)};
}

__device__ inline uint64_t clock_ns()
{
	uint64_t t;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}

/* Returns the time since the first call of a wait. The caller sets *begin to 0 before this call,
 * and the function stores the time of the call there. */
__device__ inline uint64_t waited_ns(uint64_t *begin)
{
	const uint64_t now = clock_ns();

	if (*begin == 0)
		*begin = now;
	return now - *begin;
}

__device__ inline void seed_give_up(const struct seed_exchange &x, struct block_state *shared)
{
	*x.trouble = KX_TROUBLE_WAIT;
	*static_cast<volatile uint32_t *>(&shared->gave_up) = 1;
}

/* Returns true if the block must stop waiting for another block. */
__device__ inline bool waited_too_long(
	const struct seed_exchange &x, struct block_state *shared, uint64_t *begin)
{
	const uint64_t waited = waited_ns(begin);
	uint32_t trouble;

	asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
		     : "=r"(trouble)
		     : "l"(x.trouble)
		     : "memory");
	if (!trouble && waited < x.timeout_ns)
		return false;
	seed_give_up(x, shared);
	return true;
}

/* Polls the first `n` of N lines until they all have the flag of `step`. The distance from one of
 * these lines to the next is `pitch` lines. */
template <int N>
__device__ inline void ll_wait(const struct seed_exchange &x, struct block_state *shared,
	struct ll_line (&w)[N], const struct ll_line *from, int pitch, int n, uint32_t step)
{
	uint64_t begin = 0;

	do {
#pragma unroll 1
		for (int left = POLLS; left > 0; left--) {
			bool here = true;
#pragma unroll
			for (int i = 0; i < N; i++)
				if (i < n)
					w[i] = ll_load(from + i * pitch);
#pragma unroll
			for (int i = 0; i < N; i++)
				here = here && (i >= n || w[i].flag == step);
			if (here)
				return;
		}
	} while (!waited_too_long(x, shared, &begin));
}

/* ---- logits and d_logits --------------------------------------------------------------------- */

/* Adds up the partial logits of an image over the block's warps, for three classes. */
__device__ inline float3 sum_warp_logits(const struct block_state *shared, int n, int quad)
{
	const struct tile_warps a = shared->tile_warps[n / TILE_IMAGES];
	float3 v = {0, 0, 0};
#pragma unroll 1
	for (int w = a.first; w <= a.last; w++) {
		const float *from =
			shared->logits[w][a.second >> w & 1][n % TILE_IMAGES] + 3 * quad;
		v.x += from[0];
		v.y += from[1];
		v.z += from[2];
	}
	return v;
}

__device__ inline void ll_store_logits(const struct kx_seed &s, const struct block_state *shared,
	const struct block_tile &block, uint32_t step)
{
	const int n = threadIdx.x / 4, quad = threadIdx.x % 4;

	if (n >= block.images)
		return;
	const float3 v = sum_warp_logits(shared, n, quad);
	ll_store(s.exchange.logits + ((size_t)n * gridDim.x + blockIdx.x) * 4 + quad, v.x, v.y, v.z,
		step);
}

/* Receives the partial logits of the images that this block owns, from all blocks. */
__device__ inline void ll_wait_logits(const struct kx_seed &s, struct block_state *shared,
	const struct block_tile &block, uint32_t step)
{
	const int lines = gridDim.x * 4;
#pragma unroll 1
	for (int i = threadIdx.x; i < block.own_images * lines; i += THREADS) {
		const int n = blockIdx.x + i / lines * gridDim.x;
		struct ll_line w[1];

		ll_wait(s.exchange, shared, w, s.exchange.logits + (size_t)n * lines + i % lines, 0,
			1, step);
#pragma unroll
		for (int c = 0; c < 3; c++)
			(&shared->block_logits[0][0])[3 * i + c] = w[0].v[c];
	}
}

/* Adds up the logits of the warp's image over all blocks. Lane c < SEED_CLASSES returns the logit
 * of class c, and the other lanes return -INFINITY. */
__device__ inline float sum_block_logits(const struct block_state *shared)
{
	const int lane = threadIdx.x % 32, blocks = gridDim.x;
	const float *from = shared->block_logits[threadIdx.x / 32 * blocks];
	float v[SEED_CLASSES] = {}, logits = -INFINITY;
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
		logits = lane == c ? v[c] + shared->bias[c] : logits;
	}
	return logits;
}

/* One warp computes the softmax of an image and sends its d_logits. The lane of the label returns
 * the loss, and the other lanes return 0. If the batch does not have this image (`here`), its
 * d_logits and its loss are 0. */
__device__ inline float ll_store_d_logits(const struct kx_seed &s, const struct block_state *shared,
	int label, bool here, uint32_t step)
{
	const unsigned all = 0xffffffffu;
	const int n = blockIdx.x + threadIdx.x / 32 * gridDim.x;
	const int lane = threadIdx.x % 32;
	const bool real = lane < SEED_CLASSES;
	const float v = sum_block_logits(shared);
	float max_logit = v;

	for (int d = 8; d; d /= 2)
		max_logit = max_or_nan(max_logit, __shfl_xor_sync(all, max_logit, d));
	const float exp_logit = real ? expf(v - max_logit) : 0;
	float sum = exp_logit;
	for (int d = 8; d; d /= 2)
		sum += __shfl_xor_sync(all, sum, d);
	const float dy = real && here ? exp_logit / sum - (lane == label) : 0;
	const float a = __shfl_sync(all, dy, 3 * lane), b = __shfl_sync(all, dy, 3 * lane + 1);
	const float c = __shfl_sync(all, dy, 3 * lane + 2);
	if (lane < 4)
		ll_store(s.exchange.d_logits + n * 4 + lane, a, b, c, step);
	return lane == label && here ? logf(sum) - (v - max_logit) : 0;
}

/* Receives the d_logits of all images and stores them in shared memory. */
__device__ inline void ll_wait_d_logits(const struct kx_seed &s, struct block_state *shared,
	const struct block_tile &block, uint32_t step)
{
	const int n = threadIdx.x / 4, quad = threadIdx.x % 4;

	if (n >= block.images)
		return;
	struct ll_line w[1];
	ll_wait(s.exchange, shared, w, s.exchange.d_logits + threadIdx.x, 0, 1, step);
	uint16_t *classes = reinterpret_cast<uint16_t *>(shared->dy_by_class[n / 2]) + n % 2;
	uint16_t *image = reinterpret_cast<uint16_t *>(shared->dy_by_image[n]);
#pragma unroll
	for (int k = 0; k < 3; k++) {
		const int c = 3 * quad + k, class_pair = c / 2;
		const uint16_t half = __half_as_ushort(__float2half_rn(w[0].v[k] * DY_SCALE));

		shared->d_logits[n][c] = w[0].v[k];
		image[(class_pair % 4 * 2 + class_pair / 4) * 2 + c % 2] = half;
		classes[c * 2] = half;
	}
}

/* ---- conv gradient, losses ------------------------------------------------------------------- */

/* Sends the conv gradient of the block's positions, summed in a fixed order. A line is a row of
 * three weights of a filter, or its bias. Sixteen lanes add up a line: four output pixels x four
 * quarters of the warps. */
__device__ inline void ll_store_conv(
	struct ll_line *to, const struct block_state *shared, uint32_t step)
{
	const int line = threadIdx.x / 16, f = line / 4, row = line % 4,
		  out_pixel = threadIdx.x % OUT_PIXELS;
	const int quarter = threadIdx.x / OUT_PIXELS % 4,
		  stride = sizeof(shared->sum.conv[0]) / sizeof(float);
	const float *from = shared->sum.conv[quarter * (WARPS / 4)][f] +
			    (row < 3 ? out_pixel * PATCH + (row + out_pixel / 2) * 4 + out_pixel % 2
				     : OUT_PIXELS * PATCH + out_pixel);
	float v[3] = {};

	static_assert(CONV_LINES * 16 == THREADS, "sixteen lanes to a word");
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
		ll_store(to + line, v[0], v[1], v[2], step);
}

/* Receives the conv gradient. Every block of the filter group computes the same sum. `from` has the
 * lines of all ranges of the group. CONV_LINES threads form an adder, which adds up every
 * CONV_ADDERS-th range. */
__device__ inline void ll_wait_conv(const struct seed_exchange &x, struct block_state *shared,
	const struct ll_line *from, int ranges, uint32_t step)
{
	const int max_lines = (MAX_RANGES + CONV_ADDERS - 1) / CONV_ADDERS;
	const int line = threadIdx.x % CONV_LINES, adder = threadIdx.x / CONV_LINES;
	const int n = max(ranges - adder + CONV_ADDERS - 1, 0) / CONV_ADDERS;
	struct ll_line w[max_lines];

	ll_wait(x, shared, w, from + adder * CONV_LINES + line, CONV_ADDERS * CONV_LINES, n, step);
#pragma unroll
	for (int j = 0; j < 3; j++) {
		float v = 0;
#pragma unroll
		for (int k = 0; k < max_lines; k++)
			v += k < n ? w[k].v[j] : 0;
		shared->conv_part[adder][3 * line + j] = v;
	}
}

/* Sends the loss of an image, which is a double, as three floats whose sum is this double. */
__device__ inline void ll_store_loss(struct ll_line *to, double loss, uint32_t step)
{
	for (int d = 16; d; d /= 2)
		loss += __shfl_xor_sync(0xffffffffu, loss, d);
	const float a = (float)loss, b = (float)(loss - a), c = (float)(loss - a - b);
	if (threadIdx.x % 32 == 0)
		ll_store(to, a, b, c, step);
}

/* One warp receives and adds up the losses of all images. */
__device__ inline double ll_wait_losses(
	const struct seed_exchange &x, struct block_state *shared, int images, uint32_t step)
{
	double v = 0;

	for (int n = threadIdx.x; n < images; n += 32) {
		struct ll_line w[1];

		ll_wait(x, shared, w, x.losses + n, 0, 1, step);
		v += (double)w[0].v[0] + w[0].v[1] + w[0].v[2];
	}
	__syncwarp();
	for (int d = 16; d; d /= 2)
		v += __shfl_xor_sync(0xffffffffu, v, d);
	return v;
}

#endif
