/*
 * elementwise.cu - layers in which each output is computed from one or two inputs at the same
 * place, for both general paths: ReLU, tanh, sigmoid, dropout, residual connections, and their
 * gradients. Tensors have values of fp32 or bf16, and the arithmetic is fp32.
 *
 * The throughput of memory limits the speed of these kernels. A thread handles vectors of 16 bytes,
 * neighbouring channels of a pixel, and loads PREFETCH of them before it stores the first. Where no
 * tensor has padding between its pixels, the number of a vector gives its place in all tensors
 * without a division. Channels of padding are zeros before and after each layer.
 */
#include "kernels/cuda/general/position.cuh"

namespace
{

#define THREADS  256
#define PREFETCH 2

/* The values of a vector of 16 bytes. */
template <class T> struct values {
	static const int N = 16 / sizeof(T);
	float v[N];
};

__device__ inline values<float> unpack(const float *, const uint4 &w)
{
	return {{__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z),
		__uint_as_float(w.w)}};
}

__device__ inline values<__nv_bfloat16> unpack(const __nv_bfloat16 *, const uint4 &w)
{
	return {{__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000),
		__uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000),
		__uint_as_float(w.z << 16), __uint_as_float(w.z & 0xffff0000),
		__uint_as_float(w.w << 16), __uint_as_float(w.w & 0xffff0000)}};
}

__device__ inline uint4 packed(const values<float> &x)
{
	return {__float_as_uint(x.v[0]), __float_as_uint(x.v[1]), __float_as_uint(x.v[2]),
		__float_as_uint(x.v[3])};
}

__device__ inline uint4 packed(const values<__nv_bfloat16> &x)
{
	return {to_bf16x2(x.v[0], x.v[1]), to_bf16x2(x.v[2], x.v[3]), to_bf16x2(x.v[4], x.v[5]),
		to_bf16x2(x.v[6], x.v[7])};
}

/* The tensors of a launch. Each output is computed from the value of `a` at the same place and a
 * value of `b`. Pixel (x, y) of the output uses pixel (x * stride, y * stride) of b or, with `up` >
 * 1, pixel (x / up, y / up) if up divides x and y. Where b has no such pixel, the value of b counts
 * as zero. b.value is NULL if there is no b. Where mask is not positive, the output is 0; mask has
 * the layout of the output, or is NULL. */
struct operands {
	struct kx_tensor a, b, out;
	int stride, up;
	const void *mask;
	size_t vectors;
	int same; /* 1: the place of a vector is the same in all tensors */
};

/* A vector of each operand, and its position in the output. */
struct vectors {
	struct position s;
	size_t at; /* offset of the vector in the output */
	uint4 a, b, mask;
};

/* Returns the vector at position `s` of the output in b, or zeros. */
template <class T> __device__ inline uint4 vector_of_b(const struct operands &o, struct position s)
{
	if (s.x % o.up || s.y % o.up)
		return {0, 0, 0, 0};
	s.x = s.x / o.up * o.stride;
	s.y = s.y / o.up * o.stride;
	if (s.c >= o.b.c || s.x >= o.b.w || s.y >= o.b.h)
		return {0, 0, 0, 0};
	return *reinterpret_cast<const uint4 *>(value_at<T>(o.b, s));
}

/* Loads vector `i`. PLACED: the caller uses the position of the vector, so the function computes it
 * even if the vector has the same place in all tensors. */
template <class T, bool PLACED>
__device__ inline struct vectors load_vectors(const struct operands &o, size_t i)
{
	struct vectors v = {{0, 0, 0, 0}, i * values<T>::N, {0, 0, 0, 0}, {0, 0, 0, 0}, {}};

	if (PLACED || !o.same)
		v.s = position_of(i, o.out, values<T>::N);
	if (o.same) {
		v.a = reinterpret_cast<const uint4 *>(o.a.value)[i];
		if (o.b.value)
			v.b = reinterpret_cast<const uint4 *>(o.b.value)[i];
	} else {
		v.at = position_offset(v.s, o.out);
		v.a = *reinterpret_cast<const uint4 *>(value_at<T>(o.a, v.s));
		if (o.b.value)
			v.b = vector_of_b<T>(o, v.s);
	}
	if (o.mask)
		v.mask = *reinterpret_cast<const uint4 *>(static_cast<const T *>(o.mask) + v.at);
	return v;
}

template <class T, class F>
__device__ inline void store_vector(const struct operands &o, const struct vectors &v, const F &f)
{
	const T *type = nullptr;
	const values<T> a = unpack(type, v.a), b = unpack(type, v.b);
	const values<T> mask = unpack(type, v.mask);
	values<T> d;
#pragma unroll
	for (int j = 0; j < values<T>::N; j++) {
		const float x = f(a.v[j], b.v[j], v.s, j);

		d.v[j] = !o.mask || mask.v[j] > 0 ? x : 0;
	}
	*reinterpret_cast<uint4 *>(reinterpret_cast<T *>(o.out.value) + v.at) = packed(d);
}

/* f(a, b, s, j) returns value j of the vector at position s. */
template <class T, class F>
__global__ void __launch_bounds__(THREADS)
	elementwise_kernel(const __grid_constant__ struct operands o, F f)
{
	const size_t step = (size_t)gridDim.x * THREADS;

	await_previous();
	f.begin();
	for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < o.vectors;
		i += PREFETCH * step) {
		struct vectors v[PREFETCH];
#pragma unroll
		for (int k = 0; k < PREFETCH; k++)
			if (i + k * step < o.vectors)
				v[k] = load_vectors<T, F::PLACED>(o, i + k * step);
#pragma unroll
		for (int k = 0; k < PREFETCH; k++)
			if (i + k * step < o.vectors)
				store_vector<T>(o, v[k], f);
	}
}

/* ---- functions ------------------------------------------------------------------------------- */

struct anywhere {
	static const bool PLACED = false;
	__device__ void begin()
	{
	}
};

/* Returns the ReLU of x. A NaN is not < 0, so it stays a NaN. */
__device__ inline float rectified(float x)
{
	return x < 0 ? 0 : x;
}

struct relu : anywhere {
	__device__ float operator()(float x, float, const struct position &, int) const
	{
		return rectified(x);
	}
};

/* a: the input of the ReLU; b: dY */
struct relu_dgrad : anywhere {
	__device__ float operator()(float x, float dy, const struct position &, int) const
	{
		return x > 0 ? dy : 0;
	}
};

struct hyperbolic : anywhere {
	__device__ float operator()(float x, float, const struct position &, int) const
	{
		return tanhf(x);
	}
};

/* a: the output; b: dY */
struct hyperbolic_dgrad : anywhere {
	__device__ float operator()(float y, float dy, const struct position &, int) const
	{
		return dy * (1 - y * y);
	}
};

struct sigmoid {
	static const bool PLACED = true;
	int channels; /* number of channels without padding */

	__device__ void begin()
	{
	}
	__device__ float operator()(float x, float, const struct position &s, int j) const
	{
		return s.c + j < channels ? 1 / (1 + expf(-x)) : 0;
	}
};

/* a: the output; b: dY */
struct sigmoid_dgrad : anywhere {
	__device__ float operator()(float y, float dy, const struct position &, int) const
	{
		return dy * (y * (1 - y));
	}
};

struct add : anywhere {
	int rectify; /* 1: a ReLU follows */

	__device__ float operator()(float x, float other, const struct position &, int) const
	{
		return rectify ? rectified(x + other) : x + other;
	}
};

/* Computes the same function as rng_mix of common/rng.h. */
__device__ inline uint64_t rng_mix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* Drops the values that dropout_drops (device.h) drops. Its argument i counts the values of an
 * image in the order channels x rows x columns. */
struct dropout {
	static const bool PLACED = true;
	struct kx_drop drop;
	struct kx_batch batch;
	int h, w;
	uint64_t seed;

	__device__ void begin()
	{
		seed = batch.now->dropout_seed + (batch.index ? batch.now->step : 0);
	}
	__device__ float operator()(float x, float, const struct position &s, int j) const
	{
		const uint64_t c = (uint64_t)s.n * drop.channels + s.c + j;
		const uint64_t i = (c * h + s.y) * w + s.x;

		if (!batch.training)
			return x;
		return rng_mix64(seed ^ rng_mix64((uint64_t)drop.layer << 40 | i)) >> 40 <
				       drop.threshold
			       ? 0
			       : x * drop.scale;
	}
};

/* ---- launch ---------------------------------------------------------------------------------- */

const struct kx_tensor none = {nullptr, 0, 0, 0, 0, 0, 0};

/* Returns 1 if tensor p has the size of `out` and no padding between its pixels. */
int dense_as(const struct kx_tensor &p, const struct kx_tensor &out)
{
	return p.h == out.h && p.w == out.w && p.c == out.c && p.origin == 0 &&
	       p.row == p.w * p.c && p.image == (size_t)p.h * p.row;
}

template <class T, class F>
int launch_elementwise(struct operands o, const F &f, int images, cudaStream_t stream)
{
	o.same = dense_as(o.a, o.out) && dense_as(o.out, o.out) &&
		 (!o.b.value || (dense_as(o.b, o.out) && o.stride == 1 && o.up == 1));
	o.vectors = (size_t)images * o.out.h * o.out.w * o.out.c / values<T>::N;
	return kx_launch(elementwise_kernel<T, F>, dim3(blocks_for(o.vectors, PREFETCH * THREADS)),
		THREADS, 0, stream, o, f);
}

template <class F>
int elementwise(const struct operands &o, const F &f, int images, int bf16, cudaStream_t stream)
{
	return bf16 ? launch_elementwise<__nv_bfloat16>(o, f, images, stream)
		    : launch_elementwise<float>(o, f, images, stream);
}

/* Returns the operands of a layer whose output is computed from tensors at the same places. */
struct operands operands_of(const struct kx_tensor &a, const struct kx_tensor &b,
	const struct kx_tensor &out, const void *mask)
{
	return {a, b, out, 1, 1, mask, 0, 0};
}

} // namespace

int kx_relu(struct kx_tensor x, struct kx_tensor y, int images, int bf16, cudaStream_t stream)
{
	return elementwise(operands_of(x, none, y, NULL), relu{}, images, bf16, stream);
}

int kx_relu_dgrad(struct kx_tensor x, struct kx_tensor dx, struct kx_tensor dy, const void *mask,
	int images, int bf16, cudaStream_t stream)
{
	return elementwise(operands_of(x, dy, dx, mask), relu_dgrad{}, images, bf16, stream);
}

int kx_curve(struct kx_tensor x, struct kx_tensor y, struct kx_curve curve, int images, int bf16,
	cudaStream_t stream)
{
	const struct operands o = operands_of(x, none, y, NULL);

	if (curve.sigmoid)
		return elementwise(o, sigmoid{curve.channels}, images, bf16, stream);
	return elementwise(o, hyperbolic{}, images, bf16, stream);
}

int kx_curve_dgrad(struct kx_tensor y, struct kx_tensor dx, struct kx_tensor dy,
	struct kx_curve curve, const void *mask, int images, int bf16, cudaStream_t stream)
{
	const struct operands o = operands_of(y, dy, dx, mask);

	if (curve.sigmoid)
		return elementwise(o, sigmoid_dgrad{}, images, bf16, stream);
	return elementwise(o, hyperbolic_dgrad{}, images, bf16, stream);
}

int kx_dropout(struct kx_tensor from, struct kx_tensor to, struct kx_drop drop, const void *mask,
	struct kx_batch batch, int bf16, cudaStream_t stream)
{
	const struct dropout f = {drop, batch, to.h, to.w, 0};

	return elementwise(operands_of(from, none, to, mask), f, batch.images, bf16, stream);
}

int kx_add(struct kx_tensor x, struct kx_tensor from, struct kx_tensor y, int stride, int relu,
	int images, int bf16, cudaStream_t stream)
{
	struct operands o = operands_of(x, from, y, NULL);
	struct add f;

	f.rectify = relu;
	o.stride = stride;
	return elementwise(o, f, images, bf16, stream);
}

int kx_add_dgrad(struct kx_tensor dx, struct kx_tensor dy, struct kx_tensor added, int stride,
	const void *mask, int images, int bf16, cudaStream_t stream)
{
	struct operands o = operands_of(dy, added, dx, mask);
	struct add f;

	f.rectify = 0;
	o.up = stride;
	return elementwise(o, f, images, bf16, stream);
}
