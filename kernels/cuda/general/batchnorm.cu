/*
 * batchnorm.cu - batch normalisation, for both general paths. Tensors have values of fp32 or bf16.
 *
 * A block handles CHANNELS channels. A thread handles four neighbouring channels of every LANES-th
 * pixel, counted over all images. Sums have two stages: first each block adds up a chunk of the
 * pixels, then one block adds up the chunks in double precision. The number of chunks depends on
 * the sizes only, so every sum has a fixed order.
 *
 * The sums of the variance take values relative to the first value of the channel. The variance is
 * then the difference of two numbers of about the size of the variance, even if the mean is much
 * larger.
 */
#include "kernels/cuda/general/quad.cuh"

namespace
{

#define QUADS    8 /* number of groups of four channels in a block */
#define CHANNELS (4 * QUADS)
#define LANES    32
#define THREADS  (QUADS * LANES)

__device__ inline float4 operator-(float4 a, float4 b)
{
	return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w};
}

__device__ inline float4 operator*(float4 a, float4 b)
{
	return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}

/* Returns the offset of channel 0 of pixel `i`, counted over all images. */
__device__ inline size_t pixel_offset(const struct kx_tensor &t, size_t i)
{
	if (t.image == (size_t)t.h * t.w * t.c) /* the tensor has no padding */
		return i * t.c;
	const size_t x = i % t.w, y = i / t.w % t.h, n = i / t.w / t.h;

	return n * t.image + t.origin + y * t.row + x * t.c;
}

template <class T>
__device__ inline T *quad_of(const struct kx_tensor &t, size_t pixel, int channel)
{
	return reinterpret_cast<T *>(t.value) + pixel_offset(t, pixel) + channel;
}

/* Returns the first of the four channels of this thread. */
__device__ inline int channel_of_quad()
{
	return (int)(blockIdx.x * CHANNELS + threadIdx.x % QUADS * 4);
}

/* ---- sums ------------------------------------------------------------------------------------ */

struct two_sums {
	double a, b;
};

/* Returns the sums of channel threadIdx.x over all lanes, added in order; threads from CHANNELS on
 * return 0. */
template <int N> __device__ inline struct two_sums add_lanes(struct two_sums (&all)[N][CHANNELS])
{
	struct two_sums sum = {0, 0};

	__syncthreads();
	for (int i = 0; i < N && threadIdx.x < CHANNELS; i++) {
		sum.a += all[i][threadIdx.x].a;
		sum.b += all[i][threadIdx.x].b;
	}
	return sum;
}

struct two_quads {
	float4 a, b;
};

/* Adds term(pixel) over the pixels of chunk blockIdx.y, and writes the sums of the chunk. */
template <class F>
__device__ inline void sum_chunk(const struct kx_batchnorm &b, size_t pixels, int channels, F term)
{
	__shared__ struct two_sums all[LANES][CHANNELS];
	const size_t size = (pixels + gridDim.y - 1) / gridDim.y, first = blockIdx.y * size;
	const size_t end = first + size < pixels ? first + size : pixels;
	const int lane = threadIdx.x / QUADS, quad = threadIdx.x % QUADS;
	const int channel = (int)(blockIdx.x * CHANNELS + threadIdx.x);
	struct two_quads sum = {};

#pragma unroll 4
	for (size_t i = first + lane; channel_of_quad() < channels && i < end; i += LANES) {
		const struct two_quads v = term(i);

		sum.a = sum.a + v.a;
		sum.b = sum.b + v.b;
	}
	all[lane][4 * quad] = {sum.a.x, sum.b.x};
	all[lane][4 * quad + 1] = {sum.a.y, sum.b.y};
	all[lane][4 * quad + 2] = {sum.a.z, sum.b.z};
	all[lane][4 * quad + 3] = {sum.a.w, sum.b.w};
	const struct two_sums total = add_lanes(all);
	if (threadIdx.x < CHANNELS && channel < channels) {
		double *to = b.chunks + (size_t)blockIdx.y * 2 * channels + channel;

		to[0] = total.a;
		to[channels] = total.b;
	}
}

/* number of threads that add up the chunks of a channel together */
#define ADDERS (THREADS / CHANNELS)

/* Returns the sums of all chunks for channel threadIdx.x of the block. */
__device__ inline struct two_sums sum_chunks(const struct kx_batchnorm &b, int chunks, int channels)
{
	__shared__ struct two_sums all[ADDERS][CHANNELS];
	const int adder = threadIdx.x / CHANNELS, number = threadIdx.x % CHANNELS;
	const int channel = (int)(blockIdx.x * CHANNELS + number);
	struct two_sums sum = {0, 0};

#pragma unroll 4
	for (int i = adder; channel < channels && i < chunks; i += ADDERS) {
		const double *from = b.chunks + (size_t)i * 2 * channels + channel;

		sum.a += from[0];
		sum.b += from[channels];
	}
	all[adder][number] = sum;
	return add_lanes(all);
}

/* ---- forward --------------------------------------------------------------------------------- */

template <class T>
__global__ void __launch_bounds__(THREADS)
	moments_kernel(struct kx_batchnorm b, struct kx_tensor x, int images)
{
	await_previous();
	const int c = channel_of_quad();
	const float4 shift = c < x.c ? load_quad(quad_of<T>(x, 0, c)) : float4{};

	sum_chunk(b, (size_t)images * x.h * x.w, x.c, [&](size_t i) {
		const float4 d = load_quad(quad_of<T>(x, i, c)) - shift;

		return two_quads{d, d * d};
	});
}

/* Writes mean and scale of the batch, and its statistics for the push. */
template <class T>
__global__ void __launch_bounds__(THREADS)
	statistics_kernel(struct kx_batchnorm b, struct kx_tensor x, int chunks, int images)
{
	await_previous();
	const int c = (int)(blockIdx.x * CHANNELS + threadIdx.x);
	const struct two_sums sum = sum_chunks(b, chunks, x.c);
	const double n = (double)images * x.h * x.w;

	if (threadIdx.x >= CHANNELS || c >= x.c)
		return;
	const double d = sum.a / n;
	/* a NaN is not < 0, so it stays a NaN */
	const double squares = sum.b - sum.a * d < 0 ? 0 : sum.b - sum.a * d;
	b.mean[c] = (float)((double)(float)*quad_of<T>(x, 0, c) + d);
	b.scale[c] = (float)(1 / sqrt(squares / n + b.eps));
	b.statistics[c] = b.mean[c];
	b.statistics[x.c + c] = (float)(squares / (n > 1 ? n - 1 : 1));
}

__global__ void running_kernel(struct kx_batchnorm b, int channels)
{
	await_previous();
	FOR_EACH (c, channels) {
		const float variance = b.running[channels + c];

		b.mean[c] = b.running[c];
		b.scale[c] = (float)(1 / sqrt((variance > 0 ? variance : 0) + b.eps));
	}
}

/* Loops over all pixels i of this thread. */
#define FOR_PIXELS(i, pixels)                                                                      \
	for (size_t i = blockIdx.y * (size_t)LANES + threadIdx.x / QUADS; i < (pixels);            \
		i += (size_t)gridDim.y * LANES)

template <class T>
__global__ void __launch_bounds__(THREADS)
	normalise_kernel(struct kx_batchnorm b, struct kx_tensor x, struct kx_tensor y, int images)
{
	await_previous();
	const int c = channel_of_quad();

	if (c >= x.c)
		return;
	const float4 mean = load_quad(b.mean + c), scale = load_quad(b.scale + c);
	const float4 weight = load_quad(b.weight + c), bias = load_quad(b.weight + x.c + c);
	FOR_PIXELS(i, (size_t)images * x.h * x.w)
	{
		const float4 v = (load_quad(quad_of<T>(x, i, c)) - mean) * scale;
		float4 to = weight * v + bias;

		if (b.relu)
			to = {to.x < 0 ? 0 : to.x, to.y < 0 ? 0 : to.y, to.z < 0 ? 0 : to.z,
				to.w < 0 ? 0 : to.w};
		store_quad(quad_of<T>(y, i, c), to);
	}
}

/* ---- backward -------------------------------------------------------------------------------- */

template <class T>
__global__ void __launch_bounds__(THREADS)
	dy_sums_kernel(struct kx_batchnorm b, struct kx_tensor x, struct kx_tensor dy, int images)
{
	await_previous();
	const int c = channel_of_quad();
	const float4 mean = c < x.c ? load_quad(b.mean + c) : float4{};
	const float4 scale = c < x.c ? load_quad(b.scale + c) : float4{};

	sum_chunk(b, (size_t)images * x.h * x.w, x.c, [&](size_t i) {
		const float4 d = load_quad(quad_of<T>(dy, i, c));

		return two_quads{d, d * (load_quad(quad_of<T>(x, i, c)) - mean) * scale};
	});
}

/* Writes the gradients of the weights and of the biases. */
__global__ void __launch_bounds__(THREADS)
	batchnorm_wgrad_kernel(struct kx_batchnorm b, int chunks, int channels)
{
	await_previous();
	const int c = (int)(blockIdx.x * CHANNELS + threadIdx.x);
	const struct two_sums sum = sum_chunks(b, chunks, channels);

	if (threadIdx.x >= CHANNELS || c >= channels)
		return;
	b.grad[c] = (float)sum.b;
	b.grad[channels + c] = (float)sum.a;
}

/* Writes dX (Ioffe 2015, section 3). All values of a channel share its mean and variance, so the
 * gradient of each value depends on all of them. */
template <class T>
__global__ void __launch_bounds__(THREADS) batchnorm_dgrad_kernel(struct kx_batchnorm b,
	struct kx_tensor x, struct kx_tensor dx, struct kx_tensor dy, const void *mask, int images)
{
	await_previous();
	const int c = channel_of_quad();
	const float part = 1 / ((float)images * (float)(x.h * x.w));
	const float4 share = {part, part, part, part};

	if (c >= x.c)
		return;
	const float4 mean = load_quad(b.mean + c), scale = load_quad(b.scale + c);
	const float4 factor = load_quad(b.weight + c) * scale;
	const float4 dw = load_quad(b.grad + c), db = load_quad(b.grad + x.c + c);
	FOR_PIXELS(i, (size_t)images * x.h * x.w)
	{
		T *to = quad_of<T>(dx, i, c);
		const float4 v = (load_quad(quad_of<T>(x, i, c)) - mean) * scale;
		const float4 d = load_quad(quad_of<T>(dy, i, c));
		float4 e = factor * (d - (db + v * dw) * share);

		if (mask) {
			const float4 m = load_quad(static_cast<const T *>(mask) +
						   (to - reinterpret_cast<T *>(dx.value)));

			e = {m.x > 0 ? e.x : 0, m.y > 0 ? e.y : 0, m.z > 0 ? e.z : 0,
				m.w > 0 ? e.w : 0};
		}
		store_quad(to, e);
	}
}

#define CHUNK (2 * LANES) /* minimum number of pixels of a chunk */
/* Maximum number of parts of the pixels in kernels without sums, for each multiprocessor. */
#define PARTS 8

/* Returns the grid for all channels and for at most max_parts parts of the pixels. Each part except
 * the last one has at least min_pixels pixels. */
dim3 grid_of(const struct kx_tensor &x, int images, size_t min_pixels, size_t max_parts)
{
	const size_t parts = ((size_t)images * x.h * x.w + min_pixels - 1) / min_pixels;

	return dim3((unsigned)((x.c + CHANNELS - 1) / CHANNELS),
		(unsigned)(parts < max_parts ? parts : max_parts));
}

template <class T>
int batchnorm_in(struct kx_batchnorm b, struct kx_tensor x, struct kx_tensor y, int images,
	int training, cudaStream_t stream)
{
	const dim3 grid = grid_of(x, images, CHUNK, KX_BATCHNORM_CHUNKS);
	int rc;

	if (training) {
		rc = kx_launch(moments_kernel<T>, grid, THREADS, 0, stream, b, x, images);
		if (!rc)
			rc = kx_launch(statistics_kernel<T>, dim3(grid.x), THREADS, 0, stream, b, x,
				(int)grid.y, images);
	} else {
		rc = kx_launch(running_kernel, dim3(blocks_for((size_t)x.c, THREADS)), THREADS, 0,
			stream, b, x.c);
	}
	if (rc)
		return rc;
	return kx_launch(normalise_kernel<T>,
		grid_of(x, images, LANES, PARTS * kx_multiprocessors()), THREADS, 0, stream, b, x,
		y, images);
}

template <class T>
int batchnorm_back(struct kx_batchnorm b, struct kx_tensor x, struct kx_tensor dx,
	struct kx_tensor dy, const void *mask, int images, cudaStream_t stream)
{
	const dim3 grid = grid_of(x, images, CHUNK, KX_BATCHNORM_CHUNKS);
	int rc = kx_launch(dy_sums_kernel<T>, grid, THREADS, 0, stream, b, x, dy, images);

	if (!rc)
		rc = kx_launch(batchnorm_wgrad_kernel, dim3(grid.x), THREADS, 0, stream, b,
			(int)grid.y, x.c);
	if (rc || !dx.value)
		return rc;
	return kx_launch(batchnorm_dgrad_kernel<T>,
		grid_of(x, images, LANES, PARTS * kx_multiprocessors()), THREADS, 0, stream, b, x,
		dx, dy, mask, images);
}

} // namespace

int kx_batchnorm(struct kx_batchnorm b, struct kx_tensor x, struct kx_tensor y, int images,
	int training, int bf16, cudaStream_t stream)
{
	return bf16 ? batchnorm_in<__nv_bfloat16>(b, x, y, images, training, stream)
		    : batchnorm_in<float>(b, x, y, images, training, stream);
}

int kx_batchnorm_backward(struct kx_batchnorm b, struct kx_tensor x, struct kx_tensor dx,
	struct kx_tensor dy, const void *mask, int images, int bf16, cudaStream_t stream)
{
	return bf16 ? batchnorm_back<__nv_bfloat16>(b, x, dx, dy, mask, images, stream)
		    : batchnorm_back<float>(b, x, dx, dy, mask, images, stream);
}
