/* winograd.cu - the transforms of winograd.h, and the chunks of images. A thread transforms the
 * tile of two neighbouring channels. */
#include "kernels/cuda/tensor/tile.cuh"
#include "kernels/cuda/tensor/winograd.h"
#include "kernels/cuda/tensor/winograd_tile.h"

namespace
{

#define THREADS 128
#define PARTS   64 /* number of partial sums for each bias gradient */
#define POINTS  KX_WINOGRAD_POINTS
#define SIDE    KX_WINOGRAD_SIDE

/* The transformed tiles are matrices [point][tile][channel]. A tile has 7 - size rows and 7 - size
 * columns of outputs. */
struct tiles {
	int count; /* number of tiles in the chunk */
	/* by_image: number of tiles of an image; by_row: number of tiles of a row; by_c2: number of
	 * pairs of channels */
	struct kx_divisor by_image, by_row, by_c2;
};

struct tile_place {
	/* y, x: row and column of the tile's first output; c: the first of two channels */
	int image, y, x, c, tile;
};

__device__ inline struct tile_place tile_place_of(const struct tiles &t, int thread, int step)
{
	const int tile = divide_by(thread, t.by_c2);
	const int image = divide_by(tile, t.by_image);
	const int rest = tile - image * (int)t.by_image.value, y = divide_by(rest, t.by_row);

	return {image, y * step, (rest - y * (int)t.by_row.value) * step,
		(thread - tile * (int)t.by_c2.value) * 2, tile};
}

/* Transforms the tiles of the input of filters of SIZE x SIZE or, if DY is set, the tiles of dY.
 * `w` describes the tensor `x`. */
template <int SIZE, bool DY>
__global__ void __launch_bounds__(THREADS, 4)
	winograd_input_kernel(const float *x, float *to, struct kx_windows w, struct tiles t)
{
	const int step = 7 - SIZE, side = DY ? step : SIDE;
	const int thread = blockIdx.x * THREADS + threadIdx.x;
	float even[POINTS], odd[POINTS];

	await_previous();
	const struct tile_place p = tile_place_of(t, thread, step);
	if (p.tile >= t.count)
		return;
	const int y0 = p.y - w.top, x0 = p.x - w.left;
	const float *from =
		x + ((long long)p.image * w.h * w.w + (long long)y0 * w.w + x0) * w.pitch + p.c;
#pragma unroll
	for (int r = 0; r < side; r++)
#pragma unroll
		for (int s = 0; s < side; s++) {
			float2 v = {0, 0};

			if ((unsigned)(y0 + r) < (unsigned)w.h &&
				(unsigned)(x0 + s) < (unsigned)w.w)
				v = load_pair(from + ((long long)r * w.w + s) * w.pitch);
			even[r * SIDE + s] = v.x;
			odd[r * SIDE + s] = v.y;
		}
	if (DY) {
		winograd_dy(even);
		winograd_dy(odd);
	} else {
		winograd_tile_input(even);
		winograd_tile_input(odd);
	}
	to += (size_t)p.tile * w.c + p.c;
#pragma unroll
	for (int i = 0; i < POINTS; i++, to += (size_t)t.count * w.c)
		store_pair(to, even[i], odd[i]);
}

/* Transforms the weights. With DGRAD the taps are in the opposite order, and the sum runs over the
 * filters. */
template <int SIZE, bool DGRAD>
__global__ void __launch_bounds__(THREADS)
	winograd_weights_kernel(const float *weights, float *to, int depth, int n)
{
	const int i = blockIdx.x * THREADS + threadIdx.x, k = i / n, j = i % n;
	float g[POINTS];

	await_previous();
	if (k >= depth)
		return;
#pragma unroll
	for (int tap = 0; tap < SIZE * SIZE; tap++) {
		const int opposite = SIZE * SIZE - 1 - tap;
		const size_t at = DGRAD ? ((size_t)opposite * n + j) * depth + k
					: ((size_t)tap * depth + k) * n + j;

		g[tap / SIZE * SIDE + tap % SIZE] = weights[at];
	}
	winograd_tile_weights(g, SIZE);
#pragma unroll
	for (int p = 0; p < POINTS; p++)
		to[((size_t)p * depth + k) * n + j] = g[p];
}

/* Stores the outputs of a tile. */
template <int SIZE>
__device__ inline void store_outputs(const struct kx_winograd &g, const struct tile_place &p,
	const float *even, const float *odd, float2 bias)
{
	const struct kx_windows &w = g.window;
#pragma unroll
	for (int i = 0; i < (7 - SIZE) * (7 - SIZE); i++) {
		const int r = i / (7 - SIZE), s = i % (7 - SIZE), y = p.y + r, x = p.x + s;
		const size_t pixel = ((size_t)p.image * w.rows + y) * w.columns + x;
		const size_t at = pixel * g.y_pitch + p.c;
		float2 v = {even[r * SIDE + s] + bias.x, odd[r * SIDE + s] + bias.y};

		if (y >= w.rows || x >= w.columns)
			continue;
		if (g.relu)
			v = {v.x < 0 ? 0 : v.x, v.y < 0 ? 0 : v.y};
		if (g.mask) {
			const float2 mask = load_pair(g.mask + at);

			v = {mask.x > 0 ? v.x : 0, mask.y > 0 ? v.y : 0};
		}
		store_pair(g.y + at, v.x, v.y);
	}
}

/* Writes the maximum of the window of 2 x 2 values at `v` to *max and returns its place. If the
 * window has a NaN, the NaN is its maximum. */
__device__ inline uint8_t max_of_window(const float *v, float *max)
{
	uint8_t place = 0;

	*max = v[0];
#pragma unroll
	for (int k = 1; k < 4; k++) {
		const float x = v[k / 2 * SIDE + k % 2];
		const bool more = x > *max || x != x;

		*max = more ? x : *max;
		place = more ? k : place;
	}
	return place;
}

/* Stores the maxima of a tile's pool windows. */
template <int SIZE>
__device__ inline void store_windows(const struct kx_winograd &g, const struct tile_place &p,
	const float *even, const float *odd, float2 bias)
{
	const struct kx_windows &w = g.window;
	const int across = (7 - SIZE) / 2, rows = w.rows / 2, columns = w.columns / 2;
#pragma unroll
	for (int i = 0; i < across * across; i++) {
		const int r = i / across, s = i % across, y = p.y / 2 + r, x = p.x / 2 + s;
		const size_t at = (((size_t)p.image * rows + y) * columns + x) * g.y_pitch + p.c;
		uint8_t argmax[2] = {};
		float2 v = {};

		if (y >= rows || x >= columns)
			continue;
		argmax[0] = max_of_window(even + r * 2 * SIDE + s * 2, &v.x);
		argmax[1] = max_of_window(odd + r * 2 * SIDE + s * 2, &v.y);
		v = {v.x + bias.x, v.y + bias.y};
		if (g.relu)
			v = {v.x < 0 ? 0 : v.x, v.y < 0 ? 0 : v.y};
		store_pair(g.y + at, v.x, v.y);
		*reinterpret_cast<uchar2 *>(g.argmax + at) = {argmax[0], argmax[1]};
	}
}

/* Transforms the products back to outputs. */
template <int SIZE>
__global__ void __launch_bounds__(THREADS, 4) winograd_output_kernel(
	const float *from, const __grid_constant__ struct kx_winograd g, struct tiles t)
{
	const int thread = blockIdx.x * THREADS + threadIdx.x;
	float even[POINTS], odd[POINTS];
	float2 bias = {0, 0};

	await_previous();
	const struct tile_place p = tile_place_of(t, thread, 7 - SIZE);
	if (p.tile >= t.count)
		return;
	from += (size_t)p.tile * g.n + p.c;
#pragma unroll
	for (int i = 0; i < POINTS; i++, from += (size_t)t.count * g.n) {
		const float2 v = load_pair(from);

		even[i] = v.x;
		odd[i] = v.y;
	}
	if (g.bias)
		bias = load_pair(g.bias + p.c);
	winograd_tile_output(even, SIZE);
	winograd_tile_output(odd, SIZE);
	if (g.pooled)
		store_windows<SIZE>(g, p, even, odd, bias);
	else
		store_outputs<SIZE>(g, p, even, odd, bias);
}

/* Adds up a part of the tiles of dY at the point whose values are sums of dY. A block has 32
 * columns. */
__global__ void __launch_bounds__(THREADS)
	winograd_bias_kernel(const float *dy, float *parts, int count, int n, int add)
{
	__shared__ float sums[THREADS];
	const int column = blockIdx.x * 32 + threadIdx.x % 32, adders = THREADS / 32;
	const int begin = (int)((long long)count * blockIdx.y / PARTS);
	const int end = (int)((long long)count * (blockIdx.y + 1) / PARTS);

	await_previous();
	dy += (size_t)KX_WINOGRAD_SUM * count * n + column;
	sums[threadIdx.x] = sum_fetched<8>(0.0f, begin + threadIdx.x / 32, column < n ? end : 0,
		adders, [=](int i) { return dy[(size_t)i * n]; });
	__syncthreads();
	if (threadIdx.x >= 32 || column >= n)
		return;
	float sum = add ? parts[(size_t)blockIdx.y * n + column] : 0;
	for (int i = 0; i < adders; i++)
		sum += sums[i * 32 + threadIdx.x];
	parts[(size_t)blockIdx.y * n + column] = sum;
}

/* Adds up the slices, transforms the gradients of the weights back, and adds up the parts of the
 * gradients of the biases. */
__global__ void __launch_bounds__(THREADS) winograd_wgrad_kernel(
	const float *slice, const float *parts, float *to, int slices, int c, int n)
{
	const int i = blockIdx.x * THREADS + threadIdx.x, values = c * n;
	float u[POINTS] = {};

	await_previous();
	if (i >= values) {
		const int column = i - values;

		if (column < n)
			to[(size_t)9 * values + column] = sum_fetched<16>(0.0f, 0, PARTS, 1,
				[=](int p) { return parts[(size_t)p * n + column]; });
		return;
	}
	for (int s = 0; s < slices; s++)
#pragma unroll
		for (int p = 0; p < POINTS; p++)
			u[p] += slice[((size_t)s * POINTS + p) * values + i];
	winograd_tile_wgrad(u);
#pragma unroll
	for (int tap = 0; tap < 9; tap++)
		to[(size_t)tap * values + i] = u[tap / 3 * SIDE + tap % 3];
}

/* Maximum number of floats of the transformed tiles and products of a chunk of images. Larger
 * chunks take more memory, and smaller chunks need more launches. */
const size_t chunk_floats = (size_t)64 << 20;
/* If a batch has fewer bytes of transformed tiles than this, most of these tiles are in the L2
 * cache. */
const size_t cached_bytes = (size_t)100 << 20;

/* Returns the number of tiles of an image. */
size_t image_tiles(const struct kx_windows &w)
{
	const size_t step = 7 - w.size;

	return ((w.rows + step - 1) / step) * ((w.columns + step - 1) / step);
}

/* Returns 1 if the products save more time than the transforms cost. The unit of all costs is one
 * product of a direct convolution. For each tile, the transforms cost `cost` for each channel of
 * the input and of the output, and the products cost 25 for each pair of these channels. Tiles at
 * the edge may extend past the image. In measurements this rule made the right choice for all
 * measured convolutions on an H100, and for those of 5 x 5 on an H200. */
int saves_more(const struct kx_windows &w, int n, size_t cost)
{
	const size_t direct = (size_t)w.rows * w.columns * w.size * w.size;
	const size_t c = w.c, pairs = c * n;

	return w.stride == 1 && w.up == 1 &&
	       direct * pairs > image_tiles(w) * (25 * pairs + cost * (c + n));
}

/* Returns the maximum number of images of a chunk of a batch of `images` images. */
size_t chunk_images(const struct kx_windows &w, int n, size_t images)
{
	const size_t image = POINTS * image_tiles(w) * ((size_t)w.c + n);
	const size_t max = chunk_floats / image;

	return max < 1 ? 1 : max < images ? max : images;
}

/* Returns the number of images of a chunk, so that all chunks of the batch are nearly equal. */
int equal_chunk(const struct kx_windows &w, int n, int images)
{
	const int max = (int)chunk_images(w, n, images), chunks = (images + max - 1) / max;

	return (images + chunks - 1) / chunks;
}

struct tiles tiles_of(const struct kx_windows &w, int images, int channels)
{
	const int step = 7 - w.size, per_image = (int)image_tiles(w);

	return {images * per_image, kx_divisor(per_image),
		kx_divisor((w.columns + step - 1) / step), kx_divisor(channels / 2)};
}

dim3 pair_blocks(const struct tiles &t)
{
	return dim3((unsigned)(((size_t)t.count * t.by_c2.value + THREADS - 1) / THREADS));
}

int launch_weights(const struct kx_winograd &g, float *to, cudaStream_t stream)
{
	const dim3 blocks((unsigned)(((size_t)g.window.c * g.n + THREADS - 1) / THREADS));
	auto kernel = g.window.size == 3 ? g.dgrad ? winograd_weights_kernel<3, true>
						   : winograd_weights_kernel<3, false>
		      : g.dgrad ? winograd_weights_kernel<5, true>
					 : winograd_weights_kernel<5, false>;

	return kx_launch(kernel, blocks, THREADS, 0, stream, g.weights, to, g.window.c, g.n);
}

int launch_input(const float *x, float *to, const struct kx_windows &w, const struct tiles &t,
	cudaStream_t stream)
{
	auto kernel =
		w.size == 3 ? winograd_input_kernel<3, false> : winograd_input_kernel<5, false>;

	return kx_launch(kernel, pair_blocks(t), THREADS, 0, stream, x, to, w, t);
}

int launch_output(
	const float *from, const struct kx_winograd &g, const struct tiles &t, cudaStream_t stream)
{
	auto kernel = g.window.size == 3 ? winograd_output_kernel<3> : winograd_output_kernel<5>;

	return kx_launch(kernel, pair_blocks(t), THREADS, 0, stream, from, g, t);
}

} // namespace

int kx_winograd_faster(struct kx_windows w, int n, size_t images)
{
	if (w.size != 3 && w.size != 5)
		return 0;
	const size_t bytes = 4 * POINTS * images * image_tiles(w) * ((size_t)w.c + n);

	return saves_more(w, n, w.size == 5 || bytes < cached_bytes ? 1400 : 2200);
}

int kx_winograd_wgrad_faster(struct kx_windows w, int n)
{
	return w.size == 3 && saves_more(w, n, 3000);
}

size_t kx_winograd_floats(struct kx_windows w, int n, size_t images)
{
	return POINTS *
	       ((size_t)w.c * n + chunk_images(w, n, images) * image_tiles(w) * ((size_t)w.c + n));
}

int kx_winograd(struct kx_winograd g, cudaStream_t stream)
{
	const struct kx_windows w = g.window;
	const int chunk = equal_chunk(w, g.n, g.images), batch = g.images;
	const int shrink = g.pooled ? 4 : 1;
	const size_t in = (size_t)w.h * w.w * w.pitch;
	const size_t out = (size_t)w.rows * w.columns / shrink * g.y_pitch;
	float *u = g.workspace, *v = u + (size_t)POINTS * w.c * g.n;
	int rc = launch_weights(g, u, stream);

	for (int first = 0; first < batch && !rc; first += chunk) {
		g.images = batch - first < chunk ? batch - first : chunk;
		const struct tiles from = tiles_of(w, g.images, w.c),
				   to = tiles_of(w, g.images, g.n);
		float *m = v + (size_t)POINTS * from.count * w.c;

		rc = launch_input(g.x, v, w, from, stream);
		if (!rc)
			rc = kx_winograd_product({.a = v,
							 .b = u,
							 .d = m,
							 .rows = from.count,
							 .depth = w.c,
							 .n = g.n,
							 .slices = 1,
							 .add = 0,
							 .group = 1},
				stream);
		if (!rc)
			rc = launch_output(m, g, to, stream);
		g.x += in * g.images;
		g.y += out * g.images;
		g.mask = g.mask ? g.mask + out * g.images : NULL;
		g.argmax = g.argmax ? g.argmax + out * g.images : NULL;
	}
	return rc;
}

size_t kx_winograd_wgrad_floats(struct kx_windows w, int n, size_t images)
{
	const size_t count = chunk_images(w, n, images) * image_tiles(w);
	const size_t slices = (size_t)kx_winograd_slices(w.c, n, count);

	return POINTS * (slices * w.c * n + count * ((size_t)w.c + n)) + (size_t)PARTS * n;
}

/* Adds the products of the first `images` images to the sums. `parts` are the sums of the bias
 * gradients, and `v` is memory for the transformed tiles. */
static int wgrad_chunk(const struct kx_winograd_wgrad &g, struct kx_points sums, float *parts,
	float *v, int images, cudaStream_t stream)
{
	const struct kx_windows w = g.window;
	const struct kx_windows dy = {.h = w.rows,
		.w = w.columns,
		.c = g.n,
		.pitch = g.dy_pitch,
		.rows = w.rows,
		.columns = w.columns,
		.stride = 1,
		.up = 1,
		.top = 0,
		.left = 0,
		.size = w.size};
	const struct tiles tx = tiles_of(w, images, w.c), ty = tiles_of(w, images, g.n);
	float *e = v + (size_t)POINTS * tx.count * w.c;
	int rc = launch_input(g.x, v, w, tx, stream);

	if (!rc)
		rc = kx_launch(winograd_input_kernel<3, true>, pair_blocks(ty), THREADS, 0, stream,
			g.dy, e, dy, ty);
	if (!rc)
		rc = kx_launch(winograd_bias_kernel, dim3((g.n + 31) / 32, PARTS), THREADS, 0,
			stream, e, parts, ty.count, g.n, sums.add);
	sums.a = v;
	sums.b = e;
	sums.depth = tx.count;
	return rc ? rc : kx_winograd_product_across(sums, stream);
}

int kx_winograd_wgrad(struct kx_winograd_wgrad g, cudaStream_t stream)
{
	const struct kx_windows w = g.window;
	const int chunk = equal_chunk(w, g.n, g.images), batch = g.images;
	const size_t values = (size_t)w.c * g.n;
	struct kx_points sums = {.a = NULL,
		.b = NULL,
		.d = g.workspace,
		.rows = w.c,
		.depth = 0,
		.n = g.n,
		.slices = kx_winograd_slices(w.c, g.n, chunk * image_tiles(w)),
		.add = 0,
		.group = 1};
	float *parts = sums.d + POINTS * sums.slices * values, *v = parts + (size_t)PARTS * g.n;
	int rc = PS_OK;

	for (int first = 0; first < batch && !rc; first += chunk, sums.add = 1) {
		const int images = batch - first < chunk ? batch - first : chunk;

		rc = wgrad_chunk(g, sums, parts, v, images, stream);
		g.x += (size_t)images * w.h * w.w * w.pitch;
		g.dy += (size_t)images * w.rows * w.columns * g.dy_pitch;
	}
	if (rc)
		return rc;
	return kx_launch(winograd_wgrad_kernel,
		dim3((unsigned)((values + g.n + THREADS - 1) / THREADS)), THREADS, 0, stream,
		sums.d, parts, g.gradients, sums.slices, w.c, g.n);
}
