/*
 * layers.cu - layers that only move values: images into the first plane, ReLU and pool on their
 * own, dropout. One thread per value (pool: per window), neighbours in the channel.
 */
#include <float.h>
#include "kernels/cuda/base/common.cuh"

#define THREADS 256

/* Number i of a plane's values, or of its windows, taken apart. */
struct spot {
	int c, x, y, n;
};

__device__ static inline struct spot spot_of(size_t i, const struct kx_plane &p)
{
	struct spot s;
	s.c = (int)(i % p.c);
	i /= p.c;
	s.x = (int)(i % p.w);
	i /= p.w;
	s.y = (int)(i % p.h);
	s.n = (int)(i / p.h);
	return s;
}

__device__ static inline size_t offset_of(const struct spot &s, const struct kx_plane &p)
{
	return s.n * p.image + p.origin + (size_t)s.y * p.row + (size_t)s.x * p.c + s.c;
}

static size_t plane_count(const struct kx_plane *p, int images)
{
	return (size_t)images * p->h * p->w * p->c;
}

__global__ void load_kernel(struct kx_batch batch, int channels, struct kx_plane to)
{
	await_previous();
	FOR_EACH (i, (size_t)batch.images * to.h * to.w * to.c) {
		struct spot s = spot_of(i, to);
		size_t image = image_number(&batch, s.n);
		size_t at = ((image * channels + s.c) * to.h + s.y) * to.w + s.x;
		to.value[offset_of(s, to)] = s.c < channels ? batch.pixels[at] / 255.0f : 0;
	}
}

int kx_load(struct kx_batch batch, int channels, struct kx_plane to, cudaStream_t stream)
{
	return kx_launch(load_kernel, dim3(blocks_for(plane_count(&to, batch.images), THREADS)),
		THREADS, 0, stream, batch, channels, to);
}

/* ---- pool ------------------------------------------------------------------------------------ */

struct pool {
	int size, top, left;
};

/* Rows (or columns) [*from, *to) of the input under window `o`. */
__device__ static inline void window(int o, int size, int pad, int most, int *from, int *to)
{
	*from = max(o * size - pad, 0);
	*to = min(o * size - pad + size, most);
}

/* Offset of the first maximum of the window of `s`. */
__device__ static inline size_t winner(
	const struct kx_plane &in, struct pool pool, const struct spot &s)
{
	int y0, y1, x0, x1;
	window(s.y, pool.size, pool.top, in.h, &y0, &y1);
	window(s.x, pool.size, pool.left, in.w, &x0, &x1);
	size_t best = offset_of({s.c, x0, y0, s.n}, in);
	for (int y = y0; y < y1; y++)
		for (int x = x0; x < x1; x++) {
			size_t at = offset_of({s.c, x, y, s.n}, in);
			if (in.value[at] > in.value[best])
				best = at;
		}
	return best;
}

__global__ void pool_forward_kernel(
	struct kx_plane in, struct kx_plane out, struct pool pool, int images)
{
	await_previous();
	FOR_EACH (i, (size_t)images * out.h * out.w * out.c) {
		struct spot s = spot_of(i, out);
		out.value[offset_of(s, out)] = in.value[winner(in, pool, s)];
	}
}

int kx_pool_forward(struct kx_plane in, struct kx_plane out, int size, int top, int left,
	int images, cudaStream_t stream)
{
	struct pool pool = {size, top, left};
	return kx_launch(pool_forward_kernel, dim3(blocks_for(plane_count(&out, images), THREADS)),
		THREADS, 0, stream, in, out, pool, images);
}

__global__ void pool_backward_kernel(struct kx_plane in, struct kx_plane d_in,
	struct kx_plane d_out, struct pool pool, const float *mask, int images)
{
	await_previous();
	FOR_EACH (i, (size_t)images * d_out.h * d_out.w * d_out.c) {
		struct spot s = spot_of(i, d_out);
		size_t best = winner(in, pool, s);
		float d = d_out.value[offset_of(s, d_out)];
		int y0, y1, x0, x1;
		if (mask && !(mask[best] > 0))
			d = 0;
		window(s.y, pool.size, pool.top, in.h, &y0, &y1);
		window(s.x, pool.size, pool.left, in.w, &x0, &x1);
		for (int y = y0; y < y1; y++)
			for (int x = x0; x < x1; x++) {
				size_t at = offset_of({s.c, x, y, s.n}, in);
				d_in.value[at] = at == best ? d : 0;
			}
	}
}

int kx_pool_backward(struct kx_plane in, struct kx_plane d_in, struct kx_plane d_out, int size,
	int top, int left, const float *mask, int images, cudaStream_t stream)
{
	struct pool pool = {size, top, left};
	return kx_launch(pool_backward_kernel,
		dim3(blocks_for(plane_count(&d_out, images), THREADS)), THREADS, 0, stream, in,
		d_in, d_out, pool, mask, images);
}

/* ---- relu ------------------------------------------------------------------------------------ */

__global__ void relu_forward_kernel(struct kx_plane in, struct kx_plane out, int images)
{
	await_previous();
	FOR_EACH (i, (size_t)images * out.h * out.w * out.c) {
		struct spot s = spot_of(i, out);
		float v = in.value[offset_of(s, in)];
		out.value[offset_of(s, out)] = v < 0 ? 0 : v;
	}
}

int kx_relu_forward(struct kx_plane in, struct kx_plane out, int images, cudaStream_t stream)
{
	return kx_launch(relu_forward_kernel, dim3(blocks_for(plane_count(&out, images), THREADS)),
		THREADS, 0, stream, in, out, images);
}

__global__ void relu_backward_kernel(struct kx_plane in, struct kx_plane d_in,
	struct kx_plane d_out, const float *mask, int images)
{
	await_previous();
	FOR_EACH (i, (size_t)images * d_out.h * d_out.w * d_out.c) {
		struct spot s = spot_of(i, d_out);
		size_t at = offset_of(s, in);
		bool open = in.value[at] > 0 && (!mask || mask[at] > 0);
		d_in.value[at] = open ? d_out.value[offset_of(s, d_out)] : 0;
	}
}

int kx_relu_backward(struct kx_plane in, struct kx_plane d_in, struct kx_plane d_out,
	const float *mask, int images, cudaStream_t stream)
{
	return kx_launch(relu_backward_kernel,
		dim3(blocks_for(plane_count(&d_out, images), THREADS)), THREADS, 0, stream, in,
		d_in, d_out, mask, images);
}

/* ---- dropout --------------------------------------------------------------------------------- */

/* rng_mix of common/rng.h */
__device__ static inline uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* The rule of backend.h; the model counts values channels x rows x columns. */
__device__ static inline bool drops(const struct kx_batch &batch, const struct kx_drop &drop,
	const struct kx_plane &p, const struct spot &s)
{
	uint64_t seed = batch.now->dropout_seed + (batch.index ? batch.now->step : 0);
	uint64_t i = (((uint64_t)s.n * drop.channels + s.c) * p.h + s.y) * p.w + s.x;
	return mix(seed ^ mix((uint64_t)drop.layer << 40 | i)) >> 40 < drop.threshold;
}

__global__ void dropout_kernel(struct kx_plane in, struct kx_plane out, struct kx_drop drop,
	const float *mask, struct kx_batch batch)
{
	await_previous();
	FOR_EACH (i, (size_t)batch.images * out.h * out.w * out.c) {
		struct spot s = spot_of(i, out);
		size_t at = offset_of(s, out);
		float v = in.value[offset_of(s, in)];
		if (batch.training)
			v = drops(batch, drop, out, s) ? 0 : v * drop.scale;
		out.value[at] = mask && !(mask[at] > 0) ? 0 : v;
	}
}

int kx_dropout(struct kx_plane in, struct kx_plane out, struct kx_drop drop, const float *mask,
	struct kx_batch batch, cudaStream_t stream)
{
	return kx_launch(dropout_kernel, dim3(blocks_for(plane_count(&out, batch.images), THREADS)),
		THREADS, 0, stream, in, out, drop, mask, batch);
}
