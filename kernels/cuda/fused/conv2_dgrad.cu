/*
 * conv2_dgrad.cu - errors of conv2.h's convolution, and of them the gradient of the one
 * before, which they leave the registers for nothing else than.
 *
 * A block has eight images, the columns of its products, and a warp one row of the input: twelve
 * pixels of two tiles of 16 channels. So a tap shifts by whole products, and no product is of
 * zeros. Warps of rows in the middle have five rows of taps, those at the edges fewer; warps of one
 * scheduler have ten.
 *
 * Then a thread has what a product of the next gradient wants: its rows are channels again, its k
 * 2t, 2t + 1, 2t + 8, 2t + 9 are the four cells of the window over one pixel of image 2t (and then
 * 2t + 1), of which the winner gets the error and the others nothing. The columns are taps, and one
 * of ones: the bias.
 */
#include "kernels/cuda/base/common.cuh"
#include "kernels/cuda/fused/conv2.cuh"

#define IMAGES  8
#define WARPS   SECOND_IN
#define THREADS (WARPS * 32)
#define SIDE    28
#define TILES   (SECOND_CHANNELS / 16)
#define STEPS   (SECOND_FILTERS / 16)
#define CELLS   (SECOND_OUT * SECOND_OUT)
#define TURNS                                                                                      \
	4 /* blocks that share a group of images if there are few: a warp in four has a row        \
	   */
/* Words of an image's pixels, two to a word; behind them the same ones, one pixel further. With
 * these distances a warp's four images x eight taps lie in 32 banks (see tap_of). */
#define PAIRS   (SIDE / 2)
#define SHIFTED 395
#define IMAGE   788
#define WINNERS (SECOND_PIXELS * SECOND_CHANNELS + 16) /* bytes, image to image */
#define COLUMNS 32                                     /* taps, the bias, and some unused */
#define RESULTS (SECOND_TAPS + 1)
#define NO_TAP  (-1)

struct errors_shared {
	union {
		uint4 weights[SECOND_TAPS * STEPS * TILES * 32];
		float sums[SECOND_IN][COLUMNS][SECOND_CHANNELS + 4];
	};
	unsigned char error[CELLS][SECOND_FILTERS / 8][IMAGES][16];
	uint32_t pixels[IMAGES * IMAGE];
	unsigned char winners[IMAGES * WINNERS];
	float most[SECOND_IN];
};

/* What column n adds up: a tap, the bias (SECOND_TAPS), or nothing. The taps that a product has
 * side by side lie in different banks. */
__device__ static inline int tap_of(int n)
{
	const int tile = n / 8, i = n % 8;
	if (tile < 2)
		return i / 2 * SECOND_SIZE + tile + i % 2 * 2;
	if (tile == 2)
		return i < 4 ? i * SECOND_SIZE + 4 : i == 4 ? 22 : i == 5 ? 21 : NO_TAP;
	return i == 0 ? 20 : i == 1 ? 23 : i == 2 ? 24 : i == 3 ? SECOND_TAPS : NO_TAP;
}

/* Words from a window's first pixel to the tap of column n. */
__device__ static inline int column_at(int n)
{
	int tap = tap_of(n);
	if (tap == NO_TAP || tap == SECOND_TAPS)
		tap = tap_of(n / 8 * 8);
	return tap / SECOND_SIZE * PAIRS + tap % SECOND_SIZE / 2 + tap % SECOND_SIZE % 2 * SHIFTED;
}

/* ---- what a block begins with ---------------------------------------------------------------- */

__device__ static inline void fetch_weights(struct errors_shared *s, const struct kx_second &l)
{
	const uint4 *from = reinterpret_cast<const uint4 *>(l.backward);
	for (int i = threadIdx.x; i < SECOND_TAPS * STEPS * TILES * 32; i += blockDim.x)
		copy_ahead(&s->weights[i], from + i, true);
}

__device__ static inline void fetch_winners(
	struct errors_shared *s, const struct kx_second &l, int n0, int images)
{
	const int chunks = SECOND_PIXELS * SECOND_CHANNELS / 16;
	for (int i = threadIdx.x; i < IMAGES * chunks; i += blockDim.x) {
		const int image = i / chunks, at = i % chunks * 16, n = n0 + image;
		const bool here = n < images;
		copy_ahead(s->winners + image * WINNERS + at,
			l.in_winner + (here ? n : 0) * (size_t)(SECOND_PIXELS * SECOND_CHANNELS) +
				at,
			here);
	}
}

/* Two whole numbers below 256 as fp16: 1024 + n less 1024. */
__device__ static inline uint32_t halves_of(uint32_t low, uint32_t high)
{
	const uint32_t v = 0x64006400u | low | high << 16, from = 0x64006400u;
	const __half2 d = __hsub2(
		*reinterpret_cast<const __half2 *>(&v), *reinterpret_cast<const __half2 *>(&from));
	return *reinterpret_cast<const uint32_t *>(&d);
}

/* A thread has a row of an image. */
__device__ static inline void load_pixels(
	struct errors_shared *s, const struct kx_batch &batch, int n0)
{
	for (int i = threadIdx.x; i < IMAGES * SIDE; i += blockDim.x) {
		const int image = i / SIDE, y = i % SIDE, n = n0 + image;
		uint32_t *to = s->pixels + image * IMAGE + y * PAIRS;
		uint32_t four[SIDE / 4 + 1] = {};
		if (n < batch.images) {
			const uint32_t *from = reinterpret_cast<const uint32_t *>(
				batch.pixels + image_number(&batch, n) * (SIDE * SIDE) + y * SIDE);
#pragma unroll
			for (int k = 0; k < SIDE / 4; k++)
				four[k] = from[k];
		}
#pragma unroll
		for (int k = 0; k < SIDE / 4; k++) {
			const uint32_t v = four[k], next = four[k + 1];
			to[2 * k] = halves_of(v & 0xff, v >> 8 & 0xff);
			to[2 * k + 1] = halves_of(v >> 16 & 0xff, v >> 24);
			to[SHIFTED + 2 * k] = halves_of(v >> 8 & 0xff, v >> 16 & 0xff);
			to[SHIFTED + 2 * k + 1] = halves_of(v >> 24, next & 0xff);
		}
	}
}

/* Four filters of a window: which ones thread and turn have. Neighbours: halves of eight filters,
 * then images. */
struct quad {
	int image, f, window;
};

__device__ static inline struct quad quad_of(int i)
{
	return {i / 2 % IMAGES, i / 2 / IMAGES % (SECOND_FILTERS / 8) * 8 + i % 2 * 4,
		i / 2 / IMAGES / (SECOND_FILTERS / 8)};
}

#define QUADS (IMAGES * SECOND_FILTERS / 4 * SECOND_POOLED * SECOND_POOLED)
#define PER   ((QUADS + THREADS - 1) / THREADS) /* of a thread */

__device__ static inline float4 error_of(const struct kx_second &l, const struct quad &q, int n0)
{
	return *reinterpret_cast<const float4 *>(l.out_error + (n0 + q.image) * l.out.image +
						 l.out.origin +
						 q.window / SECOND_POOLED * l.out.row +
						 q.window % SECOND_POOLED * SECOND_FILTERS + q.f);
}

__device__ static inline void spread(
	struct errors_shared *s, const struct quad &q, float4 d, uint32_t won)
{
	const uint32_t low = two_halves(d.x, d.y), high = two_halves(d.z, d.w);
#pragma unroll
	for (uint32_t cell = 0; cell < 4; cell++) {
		uint32_t mask[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			mask[i] = (won >> (8 * i) & 0xff) == cell ? 0xffffu : 0;
		const int y = q.window / SECOND_POOLED * 2 + (int)cell / 2;
		const int x = q.window % SECOND_POOLED * 2 + (int)cell % 2;
		*reinterpret_cast<uint2 *>(
			&s->error[y * SECOND_OUT + x][q.f / 8][q.image][q.f % 8 * 2]) = {
			low & (mask[0] | mask[1] << 16), high & (mask[2] | mask[3] << 16)};
	}
}

/* Errors before the pool, under a power of two: the block's. */
__device__ static inline struct power spread_all(
	struct errors_shared *s, const struct kx_second &l, int n0, int images)
{
	const int windows = SECOND_POOLED * SECOND_POOLED;
	float4 d[PER];
	uint32_t won[PER];
	float most = 0;
#pragma unroll
	for (int turn = 0; turn < PER; turn++) {
		const int i = turn * THREADS + threadIdx.x;
		const struct quad q = quad_of(i);
		d[turn] = {};
		won[turn] = 0;
		if (i < QUADS && n0 + q.image < images) {
			d[turn] = error_of(l, q, n0);
			won[turn] = *reinterpret_cast<const uint32_t *>(
				l.winner +
				((size_t)(n0 + q.image) * windows + q.window) * SECOND_FILTERS +
				q.f);
		}
	}
#pragma unroll
	for (int turn = 0; turn < PER; turn++)
		most = fmaxf(fmaxf(most, fmaxf(fabsf(d[turn].x), fabsf(d[turn].y))),
			fmaxf(fabsf(d[turn].z), fabsf(d[turn].w)));
	most = block_most(most, s->most);
	if (threadIdx.x == 0 && blockIdx.y == 0)
		l.most[blockIdx.x] = most;
	const struct power p = power_for(most);
#pragma unroll
	for (int turn = 0; turn < PER; turn++)
		if (turn * THREADS + threadIdx.x < QUADS)
			spread(s, quad_of(turn * THREADS + threadIdx.x),
				{d[turn].x * p.up, d[turn].y * p.up, d[turn].z * p.up,
					d[turn].w * p.up},
				won[turn]);
	return p;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* 16 filters of a row of taps. `at`: a lane's row of the matrices of the first two errors. */
__device__ static inline void add_step(
	float (&c)[SECOND_IN][TILES][4], uint32_t at, const uint4 *weights)
{
	uint4 w[SECOND_SIZE][TILES];
#pragma unroll
	for (int kx = 0; kx < SECOND_SIZE; kx++)
#pragma unroll
		for (int j = 0; j < TILES; j++)
			w[kx][j] = weights[(kx * STEPS * TILES + j) * 32];
#pragma unroll
	for (int x = 0; x < SECOND_OUT; x += 2) {
		const uint4 d = load_matrices(at + x * (SECOND_FILTERS * IMAGES * 2));
#pragma unroll
		for (int kx = 0; kx < SECOND_SIZE; kx++)
#pragma unroll
			for (int j = 0; j < TILES; j++) {
				mma_half(c[x + kx][j], w[kx][j], d.x, d.y);
				mma_half(c[x + 1 + kx][j], w[kx][j], d.z, d.w);
			}
	}
}

/* Errors of row y. */
__device__ static inline void add_errors(
	float (&c)[SECOND_IN][TILES][4], const struct errors_shared *s, int y)
{
	const int lane = threadIdx.x % 32;
	/* matrices: two times eight filters of one position, then of the next */
	const uint32_t at = shared_address(s->error) + lane / 16 * (SECOND_FILTERS * IMAGES * 2) +
			    lane % 16 * 16;
	for (int ky = max(0, y - SECOND_OUT + 1); ky < min(SECOND_SIZE, y + 1); ky++)
#pragma unroll 1
		for (int step = 0; step < STEPS; step++)
			add_step(c,
				at + (y - ky) * SECOND_OUT * (SECOND_FILTERS * IMAGES * 2) +
					step * (2 * IMAGES * 16),
				s->weights + ((ky * SECOND_SIZE * STEPS + step) * TILES) * 32 +
					lane);
}

/* ---- the gradient of the layer before -------------------------------------------------------- */

/* Cells 0 and 1 of a window in .x, 2 and 3 in .y: `v` (fp16) where the winner is, if it is open. */
__device__ static inline uint2 cells_of(uint32_t v, uint32_t winner)
{
	const uint32_t open = winner & 4 ? v : 0, word = winner & 1 ? open << 16 : open;
	return winner & 2 ? uint2{0, word} : uint2{word, 0};
}

/* Of pixel x, one of two images. `up`: what brings the errors into range. */
__device__ static inline void add_pixel(float (&sum)[TILES][4][4], const float (&c)[TILES][4],
	int e, float up, uint32_t winners, const uint32_t *window, const int (&at)[4])
{
	const bool ones = threadIdx.x % 32 / 4 == 3;
	uint4 a[TILES];
#pragma unroll
	for (int j = 0; j < TILES; j++) {
		const uint32_t v = two_halves(c[j][e] * up, c[j][2 + e] * up);
		const uint2 low = cells_of(v & 0xffff, winners >> (16 * j));
		const uint2 high = cells_of(v >> 16, winners >> (16 * j + 8));
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

/* Of row y; a lane's sums, in units of the errors and of pixels. */
__device__ static inline void add_first(float (&sum)[TILES][4][4], const struct errors_shared *s,
	const float (&c)[SECOND_IN][TILES][4], int y, float down)
{
	const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
	float most = 0;
	int at[4];
#pragma unroll
	for (int x = 0; x < SECOND_IN; x++)
#pragma unroll
		for (int i = 0; i < TILES * 4; i++)
			most = fmaxf(most, fabsf(c[x][i / 4][i % 4]));
	const struct power p = power_for(warp_most(most));
#pragma unroll
	for (int n = 0; n < 4; n++)
		at[n] = column_at(8 * n + r);
#pragma unroll
	for (int x = 0; x < SECOND_IN; x++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const uint32_t winners = *reinterpret_cast<const uint32_t *>(
				s->winners + (2 * t + e) * WINNERS +
				(y * SECOND_IN + x) * SECOND_CHANNELS + 4 * r);
			add_pixel(sum, c[x], e, p.up, winners,
				s->pixels + (2 * t + e) * IMAGE + 2 * y * PAIRS + x, at);
		}
#pragma unroll
	for (int i = 0; i < TILES * 4 * 4; i++)
		sum[i / 16][i / 4 % 4][i % 4] *= down * p.down;
}

__device__ static inline void put_sums(
	float (*to)[SECOND_CHANNELS + 4], const float (&sum)[TILES][4][4])
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

/* The warps' sums, in their order. */
__device__ static inline void store_first(
	const struct errors_shared *s, float *partial, int part, int warps)
{
	float *out = partial + KX_OUTER_ROWS(SECOND_TAPS) * SECOND_CHANNELS * part;
	for (int i = threadIdx.x; i < COLUMNS * SECOND_CHANNELS; i += blockDim.x) {
		const int n = i / SECOND_CHANNELS, f = i % SECOND_CHANNELS, tap = tap_of(n);
		float v = 0;
		for (int w = 0; w < warps; w++)
			v += s->sums[w][n][f];
		if (tap != NO_TAP)
			out[tap * SECOND_CHANNELS + f] = tap < SECOND_TAPS ? v / 255 : v;
	}
}

/* blockIdx: x images, y rows of the input. */
__global__ void __launch_bounds__(THREADS, 1)
	second_errors_kernel(struct kx_second l, struct kx_batch batch, float *partial)
{
	extern __shared__ __align__(128) unsigned char memory[];
	struct errors_shared *s = reinterpret_cast<struct errors_shared *>(memory);
	const int warp = threadIdx.x / 32, rows = SECOND_IN / gridDim.y;
	const int y = warp * gridDim.y + blockIdx.y, n0 = blockIdx.x * IMAGES;
	float c[SECOND_IN][TILES][4] = {}, sum[TILES][4][4] = {};

	fetch_weights(s, l);
	fetch_winners(s, l, n0, batch.images);
	copies_commit();
	load_pixels(s, batch, n0);
	await_previous();
	const struct power p = spread_all(s, l, n0, batch.images);
	copies_wait<0>();
	__syncthreads();
	if (warp < rows) {
		add_errors(c, s, y);
		add_first(sum, s, c, y, p.down / SECOND_SCALE);
	}
	__syncthreads(); /* the weights are done with */
	if (warp < rows)
		put_sums(s->sums[warp], sum);
	__syncthreads();
	store_first(s, partial, blockIdx.x * gridDim.y + blockIdx.y, rows);
}

/* Few: they would leave three of four multiprocessors idle. */
static int are_few(int images)
{
	return images <= SECOND_FEW_PARTS / TURNS * IMAGES;
}

int kx_second_error_parts(int images)
{
	return (images + IMAGES - 1) / IMAGES * (are_few(images) ? TURNS : 1);
}

int kx_second_errors(struct kx_second l, struct kx_batch batch, float *partial, cudaStream_t stream)
{
	const int bytes = (int)sizeof(struct errors_shared);
	const dim3 grid((batch.images + IMAGES - 1) / IMAGES, are_few(batch.images) ? TURNS : 1);
	if (cudaFuncSetAttribute(
		    second_errors_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(second_errors_kernel, grid, THREADS, bytes, stream, l, batch, partial);
}
