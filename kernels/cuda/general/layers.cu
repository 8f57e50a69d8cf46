/*
 * layers.cu - the load of pixels into the first tensor, and pools whose windows cover each value
 * once, for the path cuda_net. One thread computes one value or, in the pool kernels, one window.
 * Neighbouring threads handle neighbouring channels.
 */
#include <float.h>
#include "kernels/cuda/base/common.cuh"

namespace
{

#define THREADS 256

/* The coordinates of value (or window) number i of a tensor. */
struct coord {
	int c, x, y, n;
};

__device__ inline struct coord coord_of(size_t i, const struct kx_tensor &p)
{
	struct coord s;

	s.c = (int)(i % p.c);
	i /= p.c;
	s.x = (int)(i % p.w);
	i /= p.w;
	s.y = (int)(i % p.h);
	s.n = (int)(i / p.h);
	return s;
}

__device__ inline size_t coord_offset(const struct coord &s, const struct kx_tensor &p)
{
	return s.n * p.image + p.origin + (size_t)s.y * p.row + (size_t)s.x * p.c + s.c;
}

size_t tensor_count(const struct kx_tensor *p, int images)
{
	return (size_t)images * p->h * p->w * p->c;
}

__device__ inline float normalised(float v, int channel, const struct kx_norm &norm)
{
	const int i = norm.n > 1 ? channel : 0;

	return norm.n ? (v - norm.mean[i]) / norm.deviation[i] : v;
}

__global__ void load_kernel(
	struct kx_batch batch, int channels, struct kx_norm norm, struct kx_tensor to)
{
	await_previous();
	FOR_EACH (i, (size_t)batch.images * to.h * to.w * to.c) {
		struct coord s = coord_of(i, to);
		size_t image = image_number(&batch, s.n);
		size_t at = ((image * channels + s.c) * to.h + s.y) * to.w + s.x;

		to.value[coord_offset(s, to)] =
			s.c < channels ? normalised(batch.pixels[at] / 255.0f, s.c, norm) : 0;
	}
}

/* ---- pool ------------------------------------------------------------------------------------ */

struct pool_window {
	int size, top, left;
};

/* Sets [*from, *to) to the rows (or columns) of the input under window `o`. */
__device__ inline void window_range(int o, int size, int pad, int limit, int *from, int *to)
{
	*from = max(o * size - pad, 0);
	*to = min(o * size - pad + size, limit);
}

/* Returns the offset of the first maximum in the window of `s`. */
__device__ inline size_t pool_argmax(
	const struct kx_tensor &in, struct pool_window pool, const struct coord &s)
{
	int y0, y1, x0, x1;

	window_range(s.y, pool.size, pool.top, in.h, &y0, &y1);
	window_range(s.x, pool.size, pool.left, in.w, &x0, &x1);
	size_t argmax = coord_offset({s.c, x0, y0, s.n}, in);
	for (int y = y0; y < y1; y++)
		for (int x = x0; x < x1; x++) {
			size_t at = coord_offset({s.c, x, y, s.n}, in);

			if (in.value[at] > in.value[argmax])
				argmax = at;
		}
	return argmax;
}

__global__ void pool_fprop_kernel(
	struct kx_tensor in, struct kx_tensor out, struct pool_window pool, int images)
{
	await_previous();
	FOR_EACH (i, (size_t)images * out.h * out.w * out.c) {
		struct coord s = coord_of(i, out);

		out.value[coord_offset(s, out)] = in.value[pool_argmax(in, pool, s)];
	}
}

__global__ void pool_dgrad_kernel(struct kx_tensor in, struct kx_tensor dx, struct kx_tensor dy,
	struct pool_window pool, const float *mask, int images)
{
	await_previous();
	FOR_EACH (i, (size_t)images * dy.h * dy.w * dy.c) {
		struct coord s = coord_of(i, dy);
		size_t argmax = pool_argmax(in, pool, s);
		float d = dy.value[coord_offset(s, dy)];
		int y0, y1, x0, x1;

		if (mask && !(mask[argmax] > 0))
			d = 0;
		window_range(s.y, pool.size, pool.top, in.h, &y0, &y1);
		window_range(s.x, pool.size, pool.left, in.w, &x0, &x1);
		for (int y = y0; y < y1; y++)
			for (int x = x0; x < x1; x++) {
				size_t at = coord_offset({s.c, x, y, s.n}, in);

				dx.value[at] = at == argmax ? d : 0;
			}
	}
}

} // namespace

int kx_load(struct kx_batch batch, int channels, struct kx_norm norm, struct kx_tensor to,
	cudaStream_t stream)
{
	return kx_launch(load_kernel, dim3(blocks_for(tensor_count(&to, batch.images), THREADS)),
		THREADS, 0, stream, batch, channels, norm, to);
}

int kx_pool_fprop(struct kx_tensor in, struct kx_tensor out, int size, int top, int left,
	int images, cudaStream_t stream)
{
	struct pool_window pool = {size, top, left};

	return kx_launch(pool_fprop_kernel, dim3(blocks_for(tensor_count(&out, images), THREADS)),
		THREADS, 0, stream, in, out, pool, images);
}

int kx_pool_dgrad(struct kx_tensor in, struct kx_tensor dx, struct kx_tensor dy, int size, int top,
	int left, const float *mask, int images, cudaStream_t stream)
{
	struct pool_window pool = {size, top, left};

	return kx_launch(pool_dgrad_kernel, dim3(blocks_for(tensor_count(&dy, images), THREADS)),
		THREADS, 0, stream, in, dx, dy, pool, mask, images);
}
