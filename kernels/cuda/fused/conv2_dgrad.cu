/*
 * conv2_dgrad.cu - dgrad of conv2, followed by wgrad of conv1 in the same kernel. The dY of conv1
 * never leaves the registers.
 *
 * dgrad: a block handles eight images, which are the columns of its products. A warp computes one
 * row of the input: twelve pixels x two tiles of 16 channels. Each product adds one filter tap to
 * one pixel, and taps that fall outside the output have no product. A warp for a row in the middle
 * adds five rows of taps, and a warp for a row at the edge adds fewer rows. The warps of each
 * scheduler add ten rows of taps in all, so the schedulers are balanced.
 *
 * wgrad of conv1: the accumulators of dgrad already have the layout of the A operand of the next
 * product. The rows of this operand are channels. One pooled pixel of conv1 has a pool window of
 * four output pixels. For thread t (lane % 4), the four output pixels of a window are k = 2t, 2t +
 * 1, 2t + 8 and 2t + 9 of a product: the argmax gets dY, the other three get zero. There is one
 * product for image 2t and one for image 2t + 1. The columns are filter taps and a column of ones
 * for the bias.
 */
#include "kernels/cuda/base/common.cuh"
#include "kernels/cuda/fused/conv2.cuh"

namespace
{

#define DGRAD_IMAGES  8
#define DGRAD_WARPS   CONV2_IN
#define DGRAD_THREADS (DGRAD_WARPS * 32)
#define SIDE          28
#define TILES         (CONV2_CHANNELS / 16)
#define STEPS         (CONV2_FILTERS / 16)
#define OUT_PIXELS    (CONV2_OUT * CONV2_OUT)
#define ROW_BLOCKS    4 /* number of blocks that share a group of images in a small batch */
/* Offsets in the pixels of an image, in words of two pixels. SHIFTED_COPY is the start of a copy
 * that is shifted by one pixel. With these strides the four images x eight taps that a warp loads
 * are in 32 different banks (see tap_of). */
#define PAIRS        (SIDE / 2)
#define SHIFTED_COPY 395
#define IMAGE_STRIDE 788
/* stride from one image to the next in the argmax, in bytes */
#define ARGMAX_STRIDE (CONV2_PIXELS * CONV2_CHANNELS + 16)
/* number of columns: the taps, the bias, and unused columns */
#define COLUMNS 32
#define NO_TAP  (-1)

struct dgrad_shared {
	union {
		uint4 weights[CONV2_TAPS * STEPS * TILES * 32];
		float sums[CONV2_IN][COLUMNS][CONV2_CHANNELS + 4];
	};
	unsigned char dy[OUT_PIXELS][CONV2_FILTERS / 8][DGRAD_IMAGES][16];
	uint32_t pixels[DGRAD_IMAGES * IMAGE_STRIDE];
	unsigned char argmax[DGRAD_IMAGES * ARGMAX_STRIDE];
	float amax[CONV2_IN];
};

/* Returns the tap that column n sums; CONV2_TAPS for the bias; NO_TAP for an unused column. The
 * taps of neighbouring columns are in different banks. */
__device__ inline int tap_of(int n)
{
	const int tile = n / 8, i = n % 8;

	if (tile < 2)
		return i / 2 * CONV2_SIZE + tile + i % 2 * 2;
	if (tile == 2)
		return i < 4 ? i * CONV2_SIZE + 4 : i == 4 ? 22 : i == 5 ? 21 : NO_TAP;
	return i == 0 ? 20 : i == 1 ? 23 : i == 2 ? 24 : i == 3 ? CONV2_TAPS : NO_TAP;
}

/* Returns the word offset of the tap of column n from the first pixel of the window. For a column
 * without a tap, returns the offset of some valid tap. */
__device__ inline int column_offset(int n)
{
	int tap = tap_of(n);

	if (tap == NO_TAP || tap == CONV2_TAPS)
		tap = tap_of(n / 8 * 8);
	return tap / CONV2_SIZE * PAIRS + tap % CONV2_SIZE / 2 +
	       tap % CONV2_SIZE % 2 * SHIFTED_COPY;
}

/* ---- loads ----------------------------------------------------------------------------------- */

__device__ inline void dgrad_fetch_weights(struct dgrad_shared *s, const struct kx_conv2 &l)
{
	const uint4 *from = reinterpret_cast<const uint4 *>(l.w_dgrad);

	for (int i = threadIdx.x; i < CONV2_TAPS * STEPS * TILES * 32; i += blockDim.x)
		copy_async(&s->weights[i], from + i, true);
}

__device__ inline void dgrad_fetch_argmax(
	struct dgrad_shared *s, const struct kx_conv2 &l, int n0, int images)
{
	const int chunks = CONV2_PIXELS * CONV2_CHANNELS / 16;

	for (int i = threadIdx.x; i < DGRAD_IMAGES * chunks; i += blockDim.x) {
		const int image = i / chunks, at = i % chunks * 16, n = n0 + image;
		const bool here = n < images;

		copy_async(s->argmax + image * ARGMAX_STRIDE + at,
			l.x_argmax + (here ? n : 0) * (size_t)(CONV2_PIXELS * CONV2_CHANNELS) + at,
			here);
	}
}

/* Converts two integers below 256 to fp16, as (1024 + n) - 1024. */
__device__ inline uint32_t pixels_to_half(uint32_t low, uint32_t high)
{
	const uint32_t v = 0x64006400u | low | high << 16, from = 0x64006400u;
	const __half2 d = __hsub2(
		*reinterpret_cast<const __half2 *>(&v), *reinterpret_cast<const __half2 *>(&from));

	return *reinterpret_cast<const uint32_t *>(&d);
}

/* Loads the pixels. A thread converts one row of an image. */
__device__ inline void dgrad_load_pixels(
	struct dgrad_shared *s, const struct kx_batch &batch, int n0)
{
	for (int i = threadIdx.x; i < DGRAD_IMAGES * SIDE; i += blockDim.x) {
		const int image = i / SIDE, y = i % SIDE, n = n0 + image;
		uint32_t *to = s->pixels + image * IMAGE_STRIDE + y * PAIRS;
		uint32_t bytes[SIDE / 4 + 1] = {};

		if (n < batch.images) {
			const uint32_t *from = reinterpret_cast<const uint32_t *>(
				batch.pixels + image_number(&batch, n) * (SIDE * SIDE) + y * SIDE);
#pragma unroll
			for (int k = 0; k < SIDE / 4; k++)
				bytes[k] = from[k];
		}
#pragma unroll
		for (int k = 0; k < SIDE / 4; k++) {
			const uint32_t v = bytes[k], next = bytes[k + 1];

			to[2 * k] = pixels_to_half(v & 0xff, v >> 8 & 0xff);
			to[2 * k + 1] = pixels_to_half(v >> 16 & 0xff, v >> 24);
			to[SHIFTED_COPY + 2 * k] = pixels_to_half(v >> 8 & 0xff, v >> 16 & 0xff);
			to[SHIFTED_COPY + 2 * k + 1] = pixels_to_half(v >> 24, next & 0xff);
		}
	}
}

/* The four filters of a pool window that a thread handles. Neighbouring threads handle the two
 * halves of eight filters, and neighbouring pairs of threads handle neighbouring images. */
struct filter_quad {
	int image, f, window;
};

__device__ inline struct filter_quad filter_quad_of(int i)
{
	return {i / 2 % DGRAD_IMAGES, i / 2 / DGRAD_IMAGES % (CONV2_FILTERS / 8) * 8 + i % 2 * 4,
		i / 2 / DGRAD_IMAGES / (CONV2_FILTERS / 8)};
}

#define QUADS (DGRAD_IMAGES * CONV2_FILTERS / 4 * CONV2_POOLED * CONV2_POOLED)
/* maximum number of filter quads (struct filter_quad) of a thread */
#define QUADS_PER_THREAD ((QUADS + DGRAD_THREADS - 1) / DGRAD_THREADS)

__device__ inline float4 load_dy(const struct kx_conv2 &l, const struct filter_quad &q, int n0)
{
	return *reinterpret_cast<const float4 *>(l.dy + (n0 + q.image) * l.y.image + l.y.origin +
						 q.window / CONV2_POOLED * l.y.row +
						 q.window % CONV2_POOLED * CONV2_FILTERS + q.f);
}

__device__ inline void dgrad_scatter_dy(
	struct dgrad_shared *s, const struct filter_quad &q, float4 d, uint32_t which)
{
	const uint32_t low = two_halves(d.x, d.y), high = two_halves(d.z, d.w);
#pragma unroll
	for (uint32_t out_pixel = 0; out_pixel < 4; out_pixel++) {
		uint32_t mask[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			mask[i] = (which >> (8 * i) & 0xff) == out_pixel ? 0xffffu : 0;
		const int y = q.window / CONV2_POOLED * 2 + (int)out_pixel / 2;
		const int x = q.window % CONV2_POOLED * 2 + (int)out_pixel % 2;
		*reinterpret_cast<uint2 *>(
			&s->dy[y * CONV2_OUT + x][q.f / 8][q.image][q.f % 8 * 2]) = {
			low & (mask[0] | mask[1] << 16), high & (mask[2] | mask[3] << 16)};
	}
}

/* Writes the gradient of the pool's input to shared memory, multiplied by a power of two that the
 * block chooses. */
__device__ inline struct dy_scale dgrad_scatter_all_dy(
	struct dgrad_shared *s, const struct kx_conv2 &l, int n0, int images)
{
	const int windows = CONV2_POOLED * CONV2_POOLED;
	float4 d[QUADS_PER_THREAD];
	uint32_t which[QUADS_PER_THREAD];
	float amax = 0;
#pragma unroll
	for (int i_quad = 0; i_quad < QUADS_PER_THREAD; i_quad++) {
		const int i = i_quad * DGRAD_THREADS + threadIdx.x;
		const struct filter_quad q = filter_quad_of(i);

		d[i_quad] = {};
		which[i_quad] = 0;
		if (i < QUADS && n0 + q.image < images) {
			d[i_quad] = load_dy(l, q, n0);
			which[i_quad] = *reinterpret_cast<const uint32_t *>(
				l.argmax +
				((size_t)(n0 + q.image) * windows + q.window) * CONV2_FILTERS +
				q.f);
		}
	}
#pragma unroll
	for (int i_quad = 0; i_quad < QUADS_PER_THREAD; i_quad++)
		amax = fmaxf(fmaxf(amax, fmaxf(fabsf(d[i_quad].x), fabsf(d[i_quad].y))),
			fmaxf(fabsf(d[i_quad].z), fabsf(d[i_quad].w)));
	amax = block_amax(amax, s->amax);
	if (threadIdx.x == 0 && blockIdx.y == 0)
		l.dy_amax[blockIdx.x] = amax;
	const struct dy_scale p = dy_scale_for(amax);
#pragma unroll
	for (int i_quad = 0; i_quad < QUADS_PER_THREAD; i_quad++)
		if (i_quad * DGRAD_THREADS + threadIdx.x < QUADS)
			dgrad_scatter_dy(s, filter_quad_of(i_quad * DGRAD_THREADS + threadIdx.x),
				{d[i_quad].x * p.up, d[i_quad].y * p.up, d[i_quad].z * p.up,
					d[i_quad].w * p.up},
				which[i_quad]);
	return p;
}

/* ---- dgrad ----------------------------------------------------------------------------------- */

/* Adds the products of 16 filters and a row of taps to the sums. `at` is the address of this lane's
 * row in the matrices of the first two output pixels. */
__device__ inline void dgrad_add_step(
	float (&c)[CONV2_IN][TILES][4], uint32_t at, const uint4 *weights)
{
	uint4 w[CONV2_SIZE][TILES];
#pragma unroll
	for (int kx = 0; kx < CONV2_SIZE; kx++)
#pragma unroll
		for (int j = 0; j < TILES; j++)
			w[kx][j] = weights[(kx * STEPS * TILES + j) * 32];
#pragma unroll
	for (int x = 0; x < CONV2_OUT; x += 2) {
		const uint4 d = load_matrices(at + x * (CONV2_FILTERS * DGRAD_IMAGES * 2));
#pragma unroll
		for (int kx = 0; kx < CONV2_SIZE; kx++)
#pragma unroll
			for (int j = 0; j < TILES; j++) {
				mma_half(c[x + kx][j], w[kx][j], d.x, d.y);
				mma_half(c[x + 1 + kx][j], w[kx][j], d.z, d.w);
			}
	}
}

/* Computes dX of row y. */
__device__ inline void dgrad_add_row(
	float (&c)[CONV2_IN][TILES][4], const struct dgrad_shared *s, int y)
{
	const int lane = threadIdx.x % 32;
	/* four matrices: two groups of eight filters of one output pixel, then two of the next */
	const uint32_t at = shared_address(s->dy) + lane / 16 * (CONV2_FILTERS * DGRAD_IMAGES * 2) +
			    lane % 16 * 16;

	for (int ky = max(0, y - CONV2_OUT + 1); ky < min(CONV2_SIZE, y + 1); ky++)
#pragma unroll 1
		for (int k_step = 0; k_step < STEPS; k_step++)
			dgrad_add_step(c,
				at + (y - ky) * CONV2_OUT * (CONV2_FILTERS * DGRAD_IMAGES * 2) +
					k_step * (2 * DGRAD_IMAGES * 16),
				s->weights + ((ky * CONV2_SIZE * STEPS + k_step) * TILES) * 32 +
					lane);
}

/* ---- wgrad of conv1 -------------------------------------------------------------------------- */

/* Returns the four output pixels of a window as fp16: 0 and 1 in .x, 2 and 3 in .y. The output
 * pixel of the argmax is `v` if the ReLU passes the gradient; the others are zero. */
__device__ inline uint2 to_window(uint32_t v, uint32_t argmax)
{
	const uint32_t open = argmax & 4 ? v : 0, word = argmax & 1 ? open << 16 : open;

	return argmax & 2 ? uint2{0, word} : uint2{word, 0};
}

/* Adds the products of one pixel of one image (e = 0 or 1) to the sums. `up` is the scale of dY. */
__device__ inline void wgrad1_add_pixel(float (&sum)[TILES][4][4], const float (&c)[TILES][4],
	int e, float up, uint32_t argmax, const uint32_t *window, const int (&at)[4])
{
	const bool ones = threadIdx.x % 32 / 4 == 3;
	uint4 a[TILES];
#pragma unroll
	for (int j = 0; j < TILES; j++) {
		const uint32_t v = two_halves(c[j][e] * up, c[j][2 + e] * up);
		const uint2 low = to_window(v & 0xffff, argmax >> (16 * j));
		const uint2 high = to_window(v >> 16, argmax >> (16 * j + 8));

		a[j] = {low.x, high.x, low.y, high.y};
	}
#pragma unroll
	for (int n = 0; n < 4; n++) {
		uint32_t top = window[at[n]], bottom = window[at[n] + PAIRS];

		if (n == 3 && ones)
			top = bottom = 0x3c003c00u;
#pragma unroll
		for (int j = 0; j < TILES; j++)
			mma_half(sum[j][n], a[j], top, bottom);
	}
}

/* Adds the products of row y to `sum`, then scales `sum` back. The pixels in these products are
 * integers from 0 to 255, not values from 0 to 1. */
__device__ inline void wgrad1_add_row(float (&sum)[TILES][4][4], const struct dgrad_shared *s,
	const float (&c)[CONV2_IN][TILES][4], int y, float down)
{
	const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
	float amax = 0;
	int at[4];
#pragma unroll
	for (int x = 0; x < CONV2_IN; x++)
#pragma unroll
		for (int i = 0; i < TILES * 4; i++)
			amax = fmaxf(amax, fabsf(c[x][i / 4][i % 4]));
	const struct dy_scale p = dy_scale_for(warp_amax(amax));
#pragma unroll
	for (int n = 0; n < 4; n++)
		at[n] = column_offset(8 * n + r);
#pragma unroll
	for (int x = 0; x < CONV2_IN; x++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const uint32_t argmax = *reinterpret_cast<const uint32_t *>(
				s->argmax + (2 * t + e) * ARGMAX_STRIDE +
				(y * CONV2_IN + x) * CONV2_CHANNELS + 4 * r);

			wgrad1_add_pixel(sum, c[x], e, p.up, argmax,
				s->pixels + (2 * t + e) * IMAGE_STRIDE + 2 * y * PAIRS + x, at);
		}
#pragma unroll
	for (int i = 0; i < TILES * 4 * 4; i++)
		sum[i / 16][i / 4 % 4][i % 4] *= down * p.down;
}

__device__ inline void wgrad1_put_sums(
	float (*to)[CONV2_CHANNELS + 4], const float (&sum)[TILES][4][4])
{
	const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
#pragma unroll
	for (int j = 0; j < TILES; j++)
#pragma unroll
		for (int n = 0; n < 4; n++)
#pragma unroll
			for (int q = 0; q < 4; q++)
				to[8 * n + 2 * t + q % 2][4 * r + 2 * j + q / 2] = sum[j][n][q];
}

/* Adds up the sums of the warps in order and stores them as a slice of the workspace. */
__device__ inline void wgrad1_store(
	const struct dgrad_shared *s, float *partial, int slice, int warps)
{
	float *out = partial + KX_WGRAD_ROWS(CONV2_TAPS) * CONV2_CHANNELS * slice;

	for (int i = threadIdx.x; i < COLUMNS * CONV2_CHANNELS; i += blockDim.x) {
		const int n = i / CONV2_CHANNELS, f = i % CONV2_CHANNELS, tap = tap_of(n);
		float v = 0;

		for (int w = 0; w < warps; w++)
			v += s->sums[w][n][f];
		if (tap != NO_TAP)
			out[tap * CONV2_CHANNELS + f] = tap < CONV2_TAPS ? v / 255 : v;
	}
}

/* blockIdx.x selects the images of a block, and blockIdx.y its rows of the input. */
__global__ void __launch_bounds__(DGRAD_THREADS, 1)
	conv2_dgrad_kernel(struct kx_conv2 l, struct kx_batch batch, float *partial)
{
	extern __shared__ __align__(128) unsigned char memory[];
	struct dgrad_shared *s = reinterpret_cast<struct dgrad_shared *>(memory);
	const int warp = threadIdx.x / 32, rows = CONV2_IN / gridDim.y;
	const int y = warp * gridDim.y + blockIdx.y, n0 = blockIdx.x * DGRAD_IMAGES;
	float c[CONV2_IN][TILES][4] = {}, sum[TILES][4][4] = {};

	dgrad_fetch_weights(s, l);
	dgrad_fetch_argmax(s, l, n0, batch.images);
	copies_commit();
	dgrad_load_pixels(s, batch, n0);
	await_previous();
	const struct dy_scale p = dgrad_scatter_all_dy(s, l, n0, batch.images);
	copies_wait<0>();
	__syncthreads();
	if (warp < rows) {
		dgrad_add_row(c, s, y);
		wgrad1_add_row(sum, s, c, y, p.down / CONV2_SCALE);
	}
	__syncthreads(); /* because the sums reuse the memory of the weights */
	if (warp < rows)
		wgrad1_put_sums(s->sums[warp], sum);
	__syncthreads();
	wgrad1_store(s, partial, blockIdx.x * gridDim.y + blockIdx.y, rows);
}

/* Returns 1 if one block per group of images would leave three of four multiprocessors idle. */
int few_images(int images)
{
	return images <= CONV2_DGRAD_SLICES / ROW_BLOCKS * DGRAD_IMAGES;
}

} // namespace

int kx_conv2_dgrad_slices(int images)
{
	return (images + DGRAD_IMAGES - 1) / DGRAD_IMAGES * (few_images(images) ? ROW_BLOCKS : 1);
}

int kx_conv2_dgrad(struct kx_conv2 l, struct kx_batch batch, float *partial, cudaStream_t stream)
{
	const int bytes = (int)sizeof(struct dgrad_shared);

	const dim3 grid((batch.images + DGRAD_IMAGES - 1) / DGRAD_IMAGES,
		few_images(batch.images) ? ROW_BLOCKS : 1);
	if (cudaFuncSetAttribute(
		    conv2_dgrad_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(conv2_dgrad_kernel, grid, DGRAD_THREADS, bytes, stream, l, batch, partial);
}
