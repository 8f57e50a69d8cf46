/*
 * plain_layers.cu - pools and LRN, for both general paths. Tensors have values of fp32 or bf16;
 * sums are fp32. One thread computes the values of four channels or, for wide windows of LRN, one
 * value, so every sum has a fixed order. Neighbouring threads handle neighbouring channels.
 * Channels of padding are zeros before and after each layer.
 */
#include "kernels/cuda/general/position.cuh"

namespace
{

#define THREADS 256

/* ---- pools ----------------------------------------------------------------------------------- */

/* Sets [*from, *to) to the rows (or columns) of the input under window `o`. */
__device__ inline void window_of(
	int o, int size, int stride, int pad, int limit, int *from, int *to)
{
	*from = max(o * stride - pad, 0);
	*to = min(o * stride - pad + size, limit);
}

/* Sets [*from, *to) to the windows over row (or column) `i` of the input. */
__device__ inline void windows_over(
	int i, int size, int stride, int pad, int limit, int *from, int *to)
{
	const int behind = i + pad - size; /* the last row whose window ends before i */

	*from = behind < 0 ? 0 : behind / stride + 1;
	*to = min((i + pad) / stride + 1, limit);
}

/* The maximum of a window is its first maximum in row order. A NaN is the maximum only if it is the
 * first value. Unless argmax is NULL, argmax gets the place of each maximum in its window: the
 * values of a window, padding included, are numbered row by row. */
template <class T>
__global__ void max_pool_kernel(
	struct kx_tensor in, struct kx_tensor out, struct kx_pooling p, uint8_t *argmax, int images)
{
	await_previous();
	FOR_QUADS(i, out, images)
	{
		const struct position s = position_of(i, out, KX_QUAD);
		int y0, y1, x0, x1;

		window_of(s.y, p.rows, p.stride, p.top, in.h, &y0, &y1);
		window_of(s.x, p.columns, p.stride, p.left, in.w, &x0, &x1);
		const T *first = value_at<T>(in, {s.c, x0, y0, s.n});
		const int top_row = s.y * p.stride - p.top, left = s.x * p.stride - p.left;
		const int first_place = (y0 - top_row) * p.columns + x0 - left;
		int place[KX_QUAD] = {first_place, first_place, first_place, first_place};
		struct quad top = quad_at(first);
		for (int y = 0; y < y1 - y0; y++)
			for (int x = 0; x < x1 - x0; x++) {
				const struct quad v =
					quad_at(first + (size_t)y * in.row + (size_t)x * in.c);
#pragma unroll
				for (int j = 0; j < KX_QUAD; j++) {
					const bool more = v.v[j] > top.v[j];

					top.v[j] = more ? v.v[j] : top.v[j];
					place[j] =
						more ? first_place + y * p.columns + x : place[j];
				}
			}
		put_quad(value_at<T>(out, s), top);
		if (argmax)
			*reinterpret_cast<uchar4 *>(argmax + i * KX_QUAD) = {(uint8_t)place[0],
				(uint8_t)place[1], (uint8_t)place[2], (uint8_t)place[3]};
	}
}

/* Clears *best[j] unless `v`, the value of pixel (x, y), is the maximum of the window of output
 * pixel (ox, oy). */
template <class T>
__device__ inline void compare_window(const struct kx_tensor &in, const struct kx_pooling &p,
	const struct position &s, const struct quad &v, int ox, int oy, bool (&best)[KX_QUAD])
{
	const int prefetch = 3; /* number of values of a row whose loads are in flight at a time */
	int y0, y1, x0, x1;

	window_of(oy, p.rows, p.stride, p.top, in.h, &y0, &y1);
	window_of(ox, p.columns, p.stride, p.left, in.w, &x0, &x1);
	for (int y = y0; y < y1; y++) {
		const T *row = value_at<T>(in, {s.c, 0, y, s.n});

		for (int x = x0; x < x1; x += prefetch) {
			struct quad e[prefetch];
#pragma unroll
			for (int k = 0; k < prefetch; k++)
				if (x + k < x1)
					e[k] = quad_at(row + (size_t)(x + k) * in.c);
#pragma unroll
			for (int k = 0; k < prefetch; k++) {
				const bool earlier = y < s.y || (y == s.y && x + k < s.x);
				const bool first = y == y0 && x + k == x0;
#pragma unroll
				for (int j = 0; j < KX_QUAD && x + k < x1; j++)
					best[j] = best[j] &&
						  (!earlier       ? !(e[k].v[j] > v.v[j])
							  : first ? e[k].v[j] < v.v[j]
								  : !(e[k].v[j] >= v.v[j]));
			}
		}
	}
}

/* A value collects the gradients of the windows whose maximum it is. */
template <class T>
__global__ void max_pool_dgrad_kernel(struct kx_tensor in, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_pooling p, const void *mask, int images)
{
	await_previous();
	FOR_QUADS(i, dx, images)
	{
		const struct position s = position_of(i, dx, KX_QUAD);
		const struct quad v = quad_at(value_at<T>(in, s));
		const size_t at = position_offset(s, dx);
		struct quad sum = {};
		int y0, y1, x0, x1;

		windows_over(s.y, p.rows, p.stride, p.top, dy.h, &y0, &y1);
		windows_over(s.x, p.columns, p.stride, p.left, dy.w, &x0, &x1);
		for (int y = y0; y < y1; y++)
			for (int x = x0; x < x1; x++) {
				const struct quad d = quad_at(value_at<T>(dy, {s.c, x, y, s.n}));
				bool best[KX_QUAD] = {true, true, true, true};

				compare_window<T>(in, p, s, v, x, y, best);
#pragma unroll
				for (int j = 0; j < KX_QUAD; j++)
					sum.v[j] += best[j] ? d.v[j] : 0;
			}
		put_quad_masked<T>(dx, at, mask, sum);
	}
}

/* Does the same as max_pool_dgrad_kernel, but with the places of the maxima, which max_pool_kernel
 * has stored. */
template <class T>
__global__ void max_pool_argmax_dgrad_kernel(struct kx_tensor dx, struct kx_tensor dy,
	struct kx_pooling p, const uint8_t *argmax, const void *mask, int images)
{
	await_previous();
	FOR_QUADS(i, dx, images)
	{
		const struct position s = position_of(i, dx, KX_QUAD);
		const size_t at = position_offset(s, dx);
		struct quad sum = {};
		int y0, y1, x0, x1;

		windows_over(s.y, p.rows, p.stride, p.top, dy.h, &y0, &y1);
		windows_over(s.x, p.columns, p.stride, p.left, dy.w, &x0, &x1);
		for (int y = y0; y < y1; y++)
			for (int x = x0; x < x1; x++) {
				const int place = (s.y - y * p.stride + p.top) * p.columns + s.x -
						  x * p.stride + p.left;
				const size_t window = ((size_t)s.n * dy.h + y) * dy.w + x;
				const uchar4 top = *reinterpret_cast<const uchar4 *>(
					argmax + window * dy.c + s.c);
				const struct quad d = quad_at(value_at<T>(dy, {s.c, x, y, s.n}));

				sum.v[0] += top.x == place ? d.v[0] : 0;
				sum.v[1] += top.y == place ? d.v[1] : 0;
				sum.v[2] += top.z == place ? d.v[2] : 0;
				sum.v[3] += top.w == place ? d.v[3] : 0;
			}
		put_quad_masked<T>(dx, at, mask, sum);
	}
}

/* Adds the values of four channels of rows y0 to y1 and columns x0 to x1 of image n. */
template <class T>
__device__ inline struct quad quad_sum(
	const struct kx_tensor &p, int c, int n, int y0, int y1, int x0, int x1)
{
	struct quad sum = {};

	for (int y = y0; y < y1; y++) {
		const T *row = value_at<T>(p, {c, x0, y, n});

		for (int x = 0; x < x1 - x0; x++) {
			const struct quad v = quad_at(row + (size_t)x * p.c);
#pragma unroll
			for (int j = 0; j < KX_QUAD; j++)
				sum.v[j] += v.v[j];
		}
	}
	return sum;
}

__device__ inline struct quad quad_part(const struct quad &sum, const struct kx_pooling &p)
{
	const float n = (float)(p.rows * p.columns);

	return {{sum.v[0] / n, sum.v[1] / n, sum.v[2] / n, sum.v[3] / n}};
}

template <class T>
__global__ void mean_pool_kernel(
	struct kx_tensor in, struct kx_tensor out, struct kx_pooling p, int images)
{
	await_previous();
	FOR_QUADS(i, out, images)
	{
		const struct position s = position_of(i, out, KX_QUAD);
		int y0, y1, x0, x1;

		window_of(s.y, p.rows, p.stride, p.top, in.h, &y0, &y1);
		window_of(s.x, p.columns, p.stride, p.left, in.w, &x0, &x1);
		put_quad(value_at<T>(out, s),
			quad_part(quad_sum<T>(in, s.c, s.n, y0, y1, x0, x1), p));
	}
}

template <class T>
__global__ void mean_pool_dgrad_kernel(
	struct kx_tensor dx, struct kx_tensor dy, struct kx_pooling p, const void *mask, int images)
{
	await_previous();
	FOR_QUADS(i, dx, images)
	{
		const struct position s = position_of(i, dx, KX_QUAD);
		int y0, y1, x0, x1;

		windows_over(s.y, p.rows, p.stride, p.top, dy.h, &y0, &y1);
		windows_over(s.x, p.columns, p.stride, p.left, dy.w, &x0, &x1);
		put_quad_masked<T>(dx, position_offset(s, dx), mask,
			quad_part(quad_sum<T>(dy, s.c, s.n, y0, y1, x0, x1), p));
	}
}

/* ---- LRN ------------------------------------------------------------------------------------- */

/* Returns the base k + alpha * the sum of squares: LRN divides channel c of the pixel of `s` by a
 * power of this base. */
template <class T>
__device__ inline float lrn_base_at(
	const struct kx_tensor &in, const struct kx_lrn &l, struct position s, int c)
{
	const int end = min(c + (l.size - 1) / 2 + 1, l.channels);
	float sum = 0;

	for (s.c = max(c - l.size / 2, 0); s.c < end; s.c++) {
		const float v = get<T>(in, s);

		sum += v * v;
	}
	return l.k + l.alpha * sum;
}

/* Returns base^-beta. The base is positive, so the special cases of powf are not needed. */
__device__ inline float lrn_power(float base, const struct kx_lrn &l)
{
	return exp2f(-l.beta * log2f(base));
}

template <class T>
__global__ void lrn_kernel(struct kx_tensor in, struct kx_tensor out, struct kx_lrn l, int images)
{
	await_previous();
	FOR_POSITIONS(i, out, images)
	{
		const struct position s = position_of(i, out);
		float v = 0;

		if (s.c < l.channels)
			v = get<T>(in, s) * lrn_power(lrn_base_at<T>(in, l, s, s.c), l);
		put<T>(out, s, v);
	}
}

/* LRN windows of at most LRN_NARROW channels: a thread computes four channels. */
#define LRN_NARROW 5
#define LRN_REACH  2 /* maximum distance of a channel from the centre of such a window */

/* The squares of the channels c - 4 to c + 7 of a pixel, and the values of channels c to c + 3. */
struct lrn_values {
	float square[3 * KX_QUAD];
	struct quad own;
};

/* Loads a struct lrn_values for c = s.c. The squares of channels that do not exist are zeros. */
template <class T>
__device__ inline struct lrn_values lrn_values_at(
	const struct kx_tensor &in, const struct kx_lrn &l, const struct position &s)
{
	const T *at = value_at<T>(in, s);
	struct lrn_values v = {{}, quad_at(at)};
#pragma unroll
	for (int k = 0; k < 3; k++) {
		const int first = s.c + (k - 1) * KX_QUAD;
		struct quad q = {};

		if (k == 1)
			q = v.own;
		else if (first >= 0 && first < l.channels)
			q = quad_at(at + (k - 1) * KX_QUAD);
#pragma unroll
		for (int j = 0; j < KX_QUAD; j++)
			v.square[k * KX_QUAD + j] = q.v[j] * q.v[j];
	}
	return v;
}

/* Returns the base of channel s.c + j, as lrn_base_at does. */
__device__ inline float lrn_narrow_base(const struct lrn_values &v, const struct kx_lrn &l, int j)
{
	float sum = 0;
#pragma unroll
	for (int d = -LRN_REACH; d <= LRN_REACH; d++)
		sum += d >= -(l.size / 2) && d <= (l.size - 1) / 2 ? v.square[KX_QUAD + j + d] : 0;
	return l.k + l.alpha * sum;
}

/* Does the same as lrn_kernel for narrow windows. */
template <class T>
__global__ void lrn_narrow_kernel(
	struct kx_tensor in, struct kx_tensor out, struct kx_lrn l, int images)
{
	await_previous();
	FOR_QUADS(i, out, images)
	{
		const struct position s = position_of(i, out, KX_QUAD);
		const struct lrn_values v = lrn_values_at<T>(in, l, s);
		struct quad y = {};
#pragma unroll
		for (int j = 0; j < KX_QUAD; j++)
			if (s.c + j < l.channels)
				y.v[j] = v.own.v[j] * lrn_power(lrn_narrow_base(v, l, j), l);
		put_quad(value_at<T>(out, s), y);
	}
}

#define LANES     32
#define ALL_LANES 0xffffffffu

/* Does the same as lrn_dgrad_kernel for narrow windows. The lanes of a warp have consecutive groups
 * of four channels, `n` in the tensor. The first and the last lane compute only the gradients
 * through a base that their neighbours need. */
template <class T>
__global__ void lrn_narrow_dgrad_kernel(struct kx_tensor in, struct kx_tensor dx,
	struct kx_tensor dy, struct kx_lrn l, const void *mask, size_t n)
{
	const size_t step = (size_t)gridDim.x * (blockDim.x / LANES) * (LANES - 2);
	const int lane = (int)threadIdx.x % LANES, before = l.size / 2, after = (l.size - 1) / 2;
	const size_t warp = blockIdx.x * (size_t)(blockDim.x / LANES) + threadIdx.x / LANES;

	await_previous();
	for (size_t from = warp * (LANES - 2); from < n; from += step) {
		const size_t i = from + lane - 1;
		/* an i below 0 wraps around to a large number, so it is not in the tensor */
		const bool in_tensor = i < n;
		const struct position s = position_of(in_tensor ? i : 0, dx, KX_QUAD);
		const struct lrn_values v = lrn_values_at<T>(in, l, s);
		const struct quad d = quad_at(value_at<T>(dy, s));
		/* own gradients, and gradients through the bases of channels c - 2 to c + 5 */
		float own[KX_QUAD], through[KX_QUAD + 2 * LRN_REACH];
#pragma unroll
		for (int j = 0; j < KX_QUAD; j++) {
			const bool real = in_tensor && s.c + j < l.channels;
			const float base = lrn_narrow_base(v, l, j), power = lrn_power(base, l);

			own[j] = real ? d.v[j] * power : 0;
			through[LRN_REACH + j] = real ? d.v[j] * v.own.v[j] * power / base : 0;
		}
#pragma unroll
		for (int j = 0; j < LRN_REACH; j++) {
			const float left = __shfl_up_sync(ALL_LANES, through[KX_QUAD + j], 1);
			const float right = __shfl_down_sync(ALL_LANES, through[LRN_REACH + j], 1);

			through[j] = s.c > 0 ? left : 0;
			through[LRN_REACH + KX_QUAD + j] = s.c + KX_QUAD < dx.c ? right : 0;
		}
		if (!in_tensor || lane == 0 || lane == LANES - 1)
			continue;
		struct quad g = {};
#pragma unroll
		for (int j = 0; j < KX_QUAD; j++) {
			float sum = 0;
#pragma unroll
			for (int k = -LRN_REACH; k <= LRN_REACH; k++)
				sum += k >= -after && k <= before ? through[LRN_REACH + j + k] : 0;
			if (s.c + j < l.channels)
				g.v[j] = own[j] - 2 * l.alpha * l.beta * v.own.v[j] * sum;
		}
		put_quad_masked<T>(dx, position_offset(s, dx), mask, g);
	}
}

#define LRN_THREADS 1024

/* Computes dX of LRN. A value gets the gradient of its own output, and the gradients of the outputs
 * whose base contains the value. The threads of a block have consecutive values, so the values of
 * neighbouring channels are in the same block. The threads at either end compute only numbers that
 * other threads need: a square, or a gradient that passes through a base. */
template <class T>
__global__ void lrn_dgrad_kernel(struct kx_tensor in, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_lrn l, const void *mask, size_t n)
{
	__shared__ float square[LRN_THREADS], through[LRN_THREADS];
	const int tid = (int)threadIdx.x, before = l.size / 2, after = (l.size - 1) / 2;
	const int threads = (int)blockDim.x, step = threads - 4 * before;

	await_previous();
	for (size_t from = (size_t)blockIdx.x * step; from < n; from += (size_t)gridDim.x * step) {
		/* the number of this thread's value in the tensor; the first 2 * before threads may
		 * have no value */
		const size_t i = from + tid - 2 * before;
		/* an i below 0 wraps around to a large number, so it is not in the tensor */
		const bool in_tensor = i < n;
		const struct position s = position_of(in_tensor ? i : 0, dx);
		const bool real = in_tensor && s.c < l.channels;
		const float v = real ? get<T>(in, s) : 0, d = real ? get<T>(dy, s) : 0;
		float own = 0, sum = 0;

		square[tid] = v * v;
		__syncthreads();
		if (real && tid >= before && tid < threads - before) {
			const int c0 = max(s.c - before, 0), c1 = min(s.c + after + 1, l.channels);

			for (int c = c0; c < c1; c++)
				sum += square[tid + c - s.c];
			const float base = l.k + l.alpha * sum, power = lrn_power(base, l);

			own = d * power;
			sum = d * v * power / base;
		}
		through[tid] = sum;
		__syncthreads();
		if (in_tensor && tid >= 2 * before && tid < threads - 2 * before) {
			const int c0 = max(s.c - after, 0), c1 = min(s.c + before + 1, l.channels);

			sum = 0;
			for (int c = c0; c < c1; c++)
				sum += through[tid + c - s.c];
			put_masked<T>(dx, s, mask, real ? own - 2 * l.alpha * l.beta * v * sum : 0);
		}
	}
}

/* Computes the same as lrn_dgrad_kernel, for windows with more channels than a block of
 * lrn_dgrad_kernel has room for. */
template <class T>
__global__ void lrn_dgrad_wide_kernel(struct kx_tensor in, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_lrn l, const void *mask, size_t n)
{
	await_previous();
	FOR_EACH (i, n) {
		const struct position s = position_of(i, dx);
		const int end = min(s.c + l.size / 2 + 1, l.channels);
		float own = 0, sum = 0;

		for (int c = max(s.c - (l.size - 1) / 2, 0); c < end && s.c < l.channels; c++) {
			const struct position o = {c, s.x, s.y, s.n};
			const float base = lrn_base_at<T>(in, l, o, c), power = lrn_power(base, l);
			const float d = get<T>(dy, o);

			if (c == s.c)
				own = d * power;
			sum += d * get<T>(in, o) * power / base;
		}
		put_masked<T>(dx, s, mask,
			s.c < l.channels ? own - 2 * l.alpha * l.beta * get<T>(in, s) * sum : 0);
	}
}

unsigned quad_blocks(const struct kx_tensor &p, int images)
{
	return blocks_for((size_t)images * p.h * p.w * p.c / KX_QUAD, THREADS);
}

} // namespace

/* Launches KERNEL for values of the type, with a thread for each four channels of `tensor`. */
#define LAUNCH(KERNEL, tensor, ...)                                                                \
	(bf16 ? kx_launch(KERNEL<__nv_bfloat16>, dim3(quad_blocks(tensor, images)), THREADS, 0,    \
			stream, __VA_ARGS__, images)                                               \
	      : kx_launch(KERNEL<float>, dim3(quad_blocks(tensor, images)), THREADS, 0, stream,    \
			__VA_ARGS__, images))

int kx_max_pool(struct kx_tensor x, struct kx_tensor y, struct kx_pooling p, uint8_t *argmax,
	int images, int bf16, cudaStream_t stream)
{
	return LAUNCH(max_pool_kernel, y, x, y, p, argmax);
}

int kx_max_pool_dgrad(struct kx_tensor x, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_pooling p, const uint8_t *argmax, const void *mask, int images, int bf16,
	cudaStream_t stream)
{
	if (argmax)
		return LAUNCH(max_pool_argmax_dgrad_kernel, dx, dx, dy, p, argmax, mask);
	return LAUNCH(max_pool_dgrad_kernel, dx, x, dx, dy, p, mask);
}

int kx_mean_pool(struct kx_tensor x, struct kx_tensor y, struct kx_pooling p, int images, int bf16,
	cudaStream_t stream)
{
	return LAUNCH(mean_pool_kernel, y, x, y, p);
}

int kx_mean_pool_dgrad(struct kx_tensor dx, struct kx_tensor dy, struct kx_pooling p,
	const void *mask, int images, int bf16, cudaStream_t stream)
{
	return LAUNCH(mean_pool_dgrad_kernel, dx, dx, dy, p, mask);
}

int kx_lrn(struct kx_tensor x, struct kx_tensor y, struct kx_lrn l, int images, int bf16,
	cudaStream_t stream)
{
	if (l.size <= LRN_NARROW)
		return LAUNCH(lrn_narrow_kernel, y, x, y, l);
	return LAUNCH(lrn_kernel, y, x, y, l);
}

/* Does the same as LAUNCH, but with a block of `threads` threads for each `step` of n values. */
#define LAUNCH_N(KERNEL, step, threads, ...)                                                       \
	(bf16 ? kx_launch(KERNEL<__nv_bfloat16>, dim3(blocks_for(n, step)), threads, 0, stream,    \
			__VA_ARGS__)                                                               \
	      : kx_launch(KERNEL<float>, dim3(blocks_for(n, step)), threads, 0, stream,            \
			__VA_ARGS__))

int kx_lrn_dgrad(struct kx_tensor x, struct kx_tensor dx, struct kx_tensor dy, struct kx_lrn l,
	const void *mask, int images, int bf16, cudaStream_t stream)
{
	const size_t n = (size_t)images * dx.h * dx.w * dx.c;
	const unsigned ends = 4 * ((unsigned)l.size / 2);
	const unsigned threads = ends < THREADS / 2 ? THREADS : LRN_THREADS;
	const unsigned warp_values = KX_QUAD * (LANES - 2),
		       block_values = THREADS / LANES * warp_values;

	if (l.size <= LRN_NARROW)
		return LAUNCH_N(lrn_narrow_dgrad_kernel, block_values, THREADS, x, dx, dy, l, mask,
			n / KX_QUAD);
	if (ends > LRN_THREADS / 2)
		return LAUNCH_N(lrn_dgrad_wide_kernel, THREADS, THREADS, x, dx, dy, l, mask, n);
	return LAUNCH_N(lrn_dgrad_kernel, threads - ends, threads, x, dx, dy, l, mask, n);
}
