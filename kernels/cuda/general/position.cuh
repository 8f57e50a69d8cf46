/*
 * position.cuh - positions of values in the tensors of both general paths, and loads and stores of
 * values and of four neighbouring channels. Tensors have values of fp32 or bf16.
 */
#ifndef KERNELS_CUDA_GENERAL_POSITION_CUH
#define KERNELS_CUDA_GENERAL_POSITION_CUH
#include "kernels/cuda/general/quad.cuh"

namespace
{

struct position {
	int c, x, y, n;
};

/* Returns the position of element i of a tensor of h x w pixels with c elements each. */
template <class N> __device__ inline struct position divide_position(N i, int c, int h, int w)
{
	struct position s;

	s.c = (int)(i % (N)c);
	i /= (N)c;
	s.x = (int)(i % (N)w);
	i /= (N)w;
	s.y = (int)(i % (N)h);
	s.n = (int)(i / (N)h);
	return s;
}

/* Returns the position of element i of `p`, where an element is a group of `group` channels.
 * Divides with 32 bits if `i` has no more, because this takes a fifth of the time of a division
 * with 64 bits. */
__device__ inline struct position position_of(size_t i, const struct kx_tensor &p, int group = 1)
{
	struct position s = i >> 32 ? divide_position<size_t>(i, p.c / group, p.h, p.w)
				    : divide_position<uint32_t>((uint32_t)i, p.c / group, p.h, p.w);

	s.c *= group;
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

/* Writes the value v of a gradient, or 0 where `mask` is not positive. `mask` has the same layout,
 * or is NULL if there is no mask. */
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

/* Four neighbouring channels. The channels of every tensor are padded to a multiple of four. */
struct quad {
	float v[KX_QUAD];
};

template <class T> __device__ inline struct quad quad_at(const T *from)
{
	const float4 v = load_quad(from);

	return {{v.x, v.y, v.z, v.w}};
}

template <class T> __device__ inline void put_quad(T *to, const struct quad &q)
{
	store_quad(to, float4{q.v[0], q.v[1], q.v[2], q.v[3]});
}

template <class T>
__device__ inline T *value_at(const struct kx_tensor &p, const struct position &s)
{
	return reinterpret_cast<T *>(p.value) + position_offset(s, p);
}

/* Writes four gradients at offset `at`, or 0 where `mask` is not positive, as put_masked. */
template <class T>
__device__ inline void put_quad_masked(
	const struct kx_tensor &p, size_t at, const void *mask, struct quad v)
{
	if (mask) {
		const struct quad m = quad_at(static_cast<const T *>(mask) + at);
#pragma unroll
		for (int j = 0; j < KX_QUAD; j++)
			v.v[j] = m.v[j] > 0 ? v.v[j] : 0;
	}
	put_quad(reinterpret_cast<T *>(p.value) + at, v);
}

#define FOR_QUADS(i, tensor, images)                                                               \
	FOR_EACH (i, (size_t)(images) * (tensor).h * (tensor).w * (tensor).c / KX_QUAD)

} // namespace

#endif
