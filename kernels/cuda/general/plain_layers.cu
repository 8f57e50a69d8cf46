/*
 * plain_layers.cu - layers without weights that both general paths run: tanh, sigmoid, pools whose
 * windows overlap, have padding or compute a mean, LRN, and residual connections. Tensors have
 * values of fp32 or bf16; sums are fp32. One thread computes one value, so every sum has a fixed
 * order. Neighbouring threads handle neighbouring channels. Channels of padding are zeros before
 * and after each layer.
 */
#include "kernels/cuda/mma/gemm.cuh"

namespace
{

#define THREADS 256

struct position {
	int c, x, y, n;
};

__device__ inline struct position position_of(size_t i, const struct kx_tensor &p)
{
	struct position s;

	s.c = (int)(i % p.c);
	i /= p.c;
	s.x = (int)(i % p.w);
	i /= p.w;
	s.y = (int)(i % p.h);
	s.n = (int)(i / p.h);
	return s;
}

__device__ inline size_t position_offset(const struct position &s, const struct kx_tensor &p)
{
	return s.n * p.image + p.origin + (size_t)s.y * p.row + (size_t)s.x * p.c + s.c;
}

template <class T> __device__ inline float get(const struct kx_tensor &p, size_t at)
{
	return (float)reinterpret_cast<const T *>(p.value)[at];
}

template <class T> __device__ inline float get(const struct kx_tensor &p, const struct position &s)
{
	return get<T>(p, position_offset(s, p));
}

template <class T>
__device__ inline void put(const struct kx_tensor &p, const struct position &s, float v)
{
	reinterpret_cast<T *>(p.value)[position_offset(s, p)] = (T)v;
}

/* Writes a value of a gradient: 0 where `mask` (same layout; NULL: none) is not positive. */
template <class T>
__device__ inline void put_masked(
	const struct kx_tensor &p, const struct position &s, const void *mask, float v)
{
	const size_t at = position_offset(s, p);
	const bool open = !mask || (float)static_cast<const T *>(mask)[at] > 0;

	reinterpret_cast<T *>(p.value)[at] = (T)(open ? v : 0);
}

#define FOR_POSITIONS(i, tensor, images)                                                           \
	FOR_EACH (i, (size_t)(images) * (tensor).h * (tensor).w * (tensor).c)

/* ---- tanh, sigmoid --------------------------------------------------------------------------- */

template <class T>
__global__ void curve_kernel(
	struct kx_tensor in, struct kx_tensor out, struct kx_curve curve, int images)
{
	await_previous();
	FOR_POSITIONS(i, out, images)
	{
		const struct position s = position_of(i, out);
		const float v = get<T>(in, s);
		const float y = curve.sigmoid ? 1 / (1 + expf(-v)) : tanhf(v);

		put<T>(out, s, s.c < curve.channels ? y : 0);
	}
}

template <class T>
__global__ void curve_dgrad_kernel(struct kx_tensor out, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_curve curve, const void *mask, int images)
{
	await_previous();
	FOR_POSITIONS(i, dx, images)
	{
		const struct position s = position_of(i, dx);
		const float y = get<T>(out, s);
		const float slope = curve.sigmoid ? y * (1 - y) : 1 - y * y;

		put_masked<T>(dx, s, mask, s.c < curve.channels ? get<T>(dy, s) * slope : 0);
	}
}

/* ---- pools ----------------------------------------------------------------------------------- */

/* The rows (or columns) [*from, *to) of the input under window `o`. */
__device__ inline void window_of(
	int o, int size, int stride, int pad, int limit, int *from, int *to)
{
	*from = max(o * stride - pad, 0);
	*to = min(o * stride - pad + size, limit);
}

/* The windows [*from, *to) over row (or column) `i` of the input. */
__device__ inline void windows_over(
	int i, int size, int stride, int pad, int limit, int *from, int *to)
{
	const int behind = i + pad - size; /* the last row whose window ends before i */

	*from = behind < 0 ? 0 : behind / stride + 1;
	*to = min((i + pad) / stride + 1, limit);
}

/* The first maximum of the window of output `o`, in row order. A NaN is none unless it is the first
 * value. */
template <class T>
__device__ inline struct position maximum_of(
	const struct kx_tensor &in, const struct kx_pooling &p, const struct position &o)
{
	int y0, y1, x0, x1;

	window_of(o.y, p.rows, p.stride, p.top, in.h, &y0, &y1);
	window_of(o.x, p.columns, p.stride, p.left, in.w, &x0, &x1);
	struct position best = {o.c, x0, y0, o.n};
	float top = get<T>(in, best);
	for (int y = y0; y < y1; y++)
		for (int x = x0; x < x1; x++) {
			const struct position s = {o.c, x, y, o.n};
			const float v = get<T>(in, s);

			if (v > top) {
				top = v;
				best = s;
			}
		}
	return best;
}

template <class T>
__global__ void max_pool_kernel(
	struct kx_tensor in, struct kx_tensor out, struct kx_pooling p, int images)
{
	await_previous();
	FOR_POSITIONS(i, out, images)
	{
		const struct position s = position_of(i, out);

		put<T>(out, s, get<T>(in, maximum_of<T>(in, p, s)));
	}
}

/* A value collects the gradients of the windows whose maximum it is. */
template <class T>
__global__ void max_pool_dgrad_kernel(struct kx_tensor in, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_pooling p, const void *mask, int images)
{
	await_previous();
	FOR_POSITIONS(i, dx, images)
	{
		const struct position s = position_of(i, dx);
		int y0, y1, x0, x1;
		float sum = 0;

		windows_over(s.y, p.rows, p.stride, p.top, dy.h, &y0, &y1);
		windows_over(s.x, p.columns, p.stride, p.left, dy.w, &x0, &x1);
		for (int y = y0; y < y1; y++)
			for (int x = x0; x < x1; x++) {
				const struct position o = {s.c, x, y, s.n};
				const struct position best = maximum_of<T>(in, p, o);

				if (best.y == s.y && best.x == s.x)
					sum += get<T>(dy, o);
			}
		put_masked<T>(dx, s, mask, sum);
	}
}

template <class T>
__global__ void mean_pool_kernel(
	struct kx_tensor in, struct kx_tensor out, struct kx_pooling p, int images)
{
	await_previous();
	FOR_POSITIONS(i, out, images)
	{
		const struct position s = position_of(i, out);
		int y0, y1, x0, x1;
		float sum = 0;

		window_of(s.y, p.rows, p.stride, p.top, in.h, &y0, &y1);
		window_of(s.x, p.columns, p.stride, p.left, in.w, &x0, &x1);
		for (int y = y0; y < y1; y++)
			for (int x = x0; x < x1; x++)
				sum += get<T>(in, {s.c, x, y, s.n});
		put<T>(out, s, sum / (float)(p.rows * p.columns));
	}
}

template <class T>
__global__ void mean_pool_dgrad_kernel(
	struct kx_tensor dx, struct kx_tensor dy, struct kx_pooling p, const void *mask, int images)
{
	await_previous();
	FOR_POSITIONS(i, dx, images)
	{
		const struct position s = position_of(i, dx);
		int y0, y1, x0, x1;
		float sum = 0;

		windows_over(s.y, p.rows, p.stride, p.top, dy.h, &y0, &y1);
		windows_over(s.x, p.columns, p.stride, p.left, dy.w, &x0, &x1);
		for (int y = y0; y < y1; y++)
			for (int x = x0; x < x1; x++)
				sum += get<T>(dy, {s.c, x, y, s.n});
		put_masked<T>(dx, s, mask, sum / (float)(p.rows * p.columns));
	}
}

/* ---- LRN ------------------------------------------------------------------------------------- */

/* The base of the power of channel c at the pixel of `s`. */
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

template <class T>
__global__ void lrn_kernel(struct kx_tensor in, struct kx_tensor out, struct kx_lrn l, int images)
{
	await_previous();
	FOR_POSITIONS(i, out, images)
	{
		const struct position s = position_of(i, out);
		float v = 0;

		if (s.c < l.channels)
			v = get<T>(in, s) * powf(lrn_base_at<T>(in, l, s, s.c), -l.beta);
		put<T>(out, s, v);
	}
}

/* A value gets the gradient of its own output, and that of the outputs whose base it is part of. */
template <class T>
__global__ void lrn_dgrad_kernel(struct kx_tensor in, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_lrn l, const void *mask, int images)
{
	await_previous();
	FOR_POSITIONS(i, dx, images)
	{
		const struct position s = position_of(i, dx);
		const int end = min(s.c + l.size / 2 + 1, l.channels);
		float own = 0, through = 0;

		for (int c = max(s.c - (l.size - 1) / 2, 0); c < end && s.c < l.channels; c++) {
			const struct position o = {c, s.x, s.y, s.n};
			const float base = lrn_base_at<T>(in, l, o, c), power = powf(base, -l.beta);
			const float d = get<T>(dy, o);

			if (c == s.c)
				own = d * power;
			through += d * get<T>(in, o) * power / base;
		}
		const float v = get<T>(in, s);
		put_masked<T>(dx, s, mask,
			s.c < l.channels ? own - 2 * l.alpha * l.beta * v * through : 0);
	}
}

/* ---- residual connections -------------------------------------------------------------------- */

/* `from`: the value of the skip, of which every stride-th row and column is added; NULL: none. */
template <class T>
__global__ void add_kernel(
	struct kx_tensor in, struct kx_tensor from, struct kx_tensor out, int stride, int images)
{
	await_previous();
	FOR_POSITIONS(i, out, images)
	{
		const struct position s = position_of(i, out);
		float v = get<T>(in, s);

		if (from.value && s.c < from.c)
			v += get<T>(from, {s.c, s.x * stride, s.y * stride, s.n});
		put<T>(out, s, v);
	}
}

/* The gradient of the input of a skip (`added`: that of the add's output) or, without `added`, of
 * an add. */
template <class T>
__global__ void add_dgrad_kernel(struct kx_tensor dx, struct kx_tensor dy, struct kx_tensor added,
	int stride, const void *mask, int images)
{
	await_previous();
	FOR_POSITIONS(i, dx, images)
	{
		const struct position s = position_of(i, dx);
		float v = get<T>(dy, s);

		if (added.value && s.x % stride == 0 && s.y % stride == 0 &&
			s.x / stride < added.w && s.y / stride < added.h)
			v += get<T>(added, {s.c, s.x / stride, s.y / stride, s.n});
		put_masked<T>(dx, s, mask, v);
	}
}

unsigned spot_blocks(const struct kx_tensor &p, int images)
{
	return blocks_for((size_t)images * p.h * p.w * p.c, THREADS);
}

} // namespace

/* Launches KERNEL for values of the type, with a thread for each value of `tensor`. */
#define LAUNCH(KERNEL, tensor, ...)                                                                \
	(bf16 ? kx_launch(KERNEL<__nv_bfloat16>, dim3(spot_blocks(tensor, images)), THREADS, 0,    \
			stream, __VA_ARGS__, images)                                               \
	      : kx_launch(KERNEL<float>, dim3(spot_blocks(tensor, images)), THREADS, 0, stream,    \
			__VA_ARGS__, images))

int kx_curve(struct kx_tensor x, struct kx_tensor y, struct kx_curve curve, int images, int bf16,
	cudaStream_t stream)
{
	return LAUNCH(curve_kernel, y, x, y, curve);
}

int kx_curve_dgrad(struct kx_tensor y, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_curve curve, const void *mask, int images, int bf16, cudaStream_t stream)
{
	return LAUNCH(curve_dgrad_kernel, dx, y, dx, dy, curve, mask);
}

int kx_max_pool(struct kx_tensor x, struct kx_tensor y, struct kx_pooling p, int images, int bf16,
	cudaStream_t stream)
{
	return LAUNCH(max_pool_kernel, y, x, y, p);
}

int kx_max_pool_dgrad(struct kx_tensor x, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_pooling p, const void *mask, int images, int bf16, cudaStream_t stream)
{
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
	return LAUNCH(lrn_kernel, y, x, y, l);
}

int kx_lrn_dgrad(struct kx_tensor x, struct kx_tensor dx, struct kx_tensor dy, struct kx_lrn l,
	const void *mask, int images, int bf16, cudaStream_t stream)
{
	return LAUNCH(lrn_dgrad_kernel, dx, x, dx, dy, l, mask);
}

int kx_add(struct kx_tensor x, struct kx_tensor from, struct kx_tensor y, int stride, int images,
	int bf16, cudaStream_t stream)
{
	return LAUNCH(add_kernel, y, x, from, y, stride);
}

int kx_add_dgrad(struct kx_tensor dx, struct kx_tensor dy, struct kx_tensor added, int stride,
	const void *mask, int images, int bf16, cudaStream_t stream)
{
	return LAUNCH(add_dgrad_kernel, dx, dx, dy, added, stride, mask);
}
