/*
 * dense_layers.cu - the patches of the first layer, the gradients of fused pools, and the loss, on
 * dense tensors of bf16 or fp32.
 */
#include "kernels/cuda/tensor/tile.cuh"

namespace
{

#define THREADS 256

size_t dense_count(const struct kx_dense &p, int images)
{
	return (size_t)images * p.h * p.w * p.c;
}

/* ---- first layer ----------------------------------------------------------------------------- */

__device__ inline void put_octet(float *to, const float (&v)[KX_OCTET])
{
	reinterpret_cast<float4 *>(to)[0] = {v[0], v[1], v[2], v[3]};
	reinterpret_cast<float4 *>(to)[1] = {v[4], v[5], v[6], v[7]};
}

__device__ inline void put_octet(__nv_bfloat16 *to, const float (&v)[KX_OCTET])
{
	*reinterpret_cast<uint4 *>(to) = {to_bf16x2(v[0], v[1]), to_bf16x2(v[2], v[3]),
		to_bf16x2(v[4], v[5]), to_bf16x2(v[6], v[7])};
}

__device__ inline float value_of(uint8_t pixel, int channel, const struct kx_patches &p)
{
	const int i = p.norm.n > 1 ? channel : 0;

	if (p.whole)
		return pixel;
	return p.norm.n ? (pixel / 255.0f - p.norm.mean[i]) / p.norm.deviation[i] : pixel / 255.0f;
}

/* A thread writes eight values of a patch. */
template <class T>
__global__ void patches_kernel(struct kx_batch batch, const __grid_constant__ struct kx_patches p,
	struct kx_divisor by_octets, struct kx_divisor by_image, struct kx_divisor by_row,
	struct kx_divisor by_channels, struct kx_divisor by_size, T *to)
{
	await_previous();
	const struct kx_windows &w = p.window;
	const int plane = w.h * w.w, n = batch.images * (int)by_image.value * (int)by_octets.value;
	const int ones = p.ones ? p.taps * p.channels : -1;

	for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n;
		i += (int)(gridDim.x * blockDim.x)) {
		const int pixel = divide_by(i, by_octets);
		const int k0 = (i - pixel * (int)by_octets.value) * KX_OCTET;
		const int image = divide_by(pixel, by_image);
		const int rest = pixel - image * (int)by_image.value;
		const int row = divide_by(rest, by_row);
		const int y = row * w.stride - w.top;
		const int x = (rest - row * (int)by_row.value) * w.stride - w.left;
		const size_t first = image_number(&batch, image) * plane * p.channels;
		const uint8_t *from = batch.pixels + first;
		int tap = divide_by(k0, by_channels), c = k0 - tap * p.channels;
		int tap_y = divide_by(tap, by_size), tap_x = tap - tap_y * (int)by_size.value;
		float v[KX_OCTET];
#pragma unroll
		for (int j = 0; j < KX_OCTET; j++) {
			const bool in = tap < p.taps && (unsigned)(y + tap_y) < (unsigned)w.h &&
					(unsigned)(x + tap_x) < (unsigned)w.w;

			v[j] = in ? value_of(from[c * plane + (y + tap_y) * w.w + x + tap_x], c, p)
				  : 0;
			if (k0 + j == ones)
				v[j] = p.whole ? 255 : 1;
			if (++c < p.channels)
				continue;
			c = 0;
			tap++;
			if (++tap_x == w.size) {
				tap_x = 0;
				tap_y++;
			}
		}
		put_octet(to + (size_t)i * KX_OCTET, v);
	}
}

/* ---- pool ------------------------------------------------------------------------------------ */

/* Returns a word of a vector where the maxima are at place k of their windows, and else zeros. */
__device__ inline uint32_t unpool_word(const float *, uint32_t word, uint32_t argmax, uint32_t k)
{
	return (argmax & 255) == k ? word : 0;
}
__device__ inline uint32_t unpool_word(
	const __nv_bfloat16 *, uint32_t word, uint32_t argmax, uint32_t k)
{
	return ((argmax & 255) == k ? word & 0xffff : 0) |
	       ((argmax >> 8 & 255) == k ? word & 0xffff0000 : 0);
}

/* A thread handles a vector of 16 bytes of one window, so that neighbouring threads write
 * neighbouring vectors. */
template <class T>
__global__ void unpool_kernel(const T *pooled, const uint8_t *argmax, T *full, int c, int n,
	struct kx_divisor by_vectors, struct kx_divisor by_row)
{
	/* number of values in a vector of 16 bytes, and in a word of 4 bytes */
	const int vector = 16 / sizeof(T), word = vector / 4;

	await_previous();
	for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n;
		i += (int)(gridDim.x * blockDim.x)) {
		const int window = divide_by(i, by_vectors), y = divide_by(window, by_row);
		const int x = window - y * (int)by_row.value;
		const size_t width = 2 * (size_t)by_row.value;
		const uint4 v = reinterpret_cast<const uint4 *>(pooled)[i];
		const uint32_t *places = reinterpret_cast<const uint32_t *>(argmax);
		const uint32_t low = places[i * (size_t)word];
		const uint32_t high = places[i * (size_t)word + word - 1];
		T *to = full + (2 * y * width + 2 * (size_t)x) * c +
			(i - window * (int)by_vectors.value) * vector;
#pragma unroll
		for (uint32_t k = 0; k < 4; k++)
			*reinterpret_cast<uint4 *>(to + (k / 2 * width + k % 2) * c) = {
				unpool_word(to, v.x, low, k),
				unpool_word(to, v.y, low >> 8 * word, k),
				unpool_word(to, v.z, word == 2 ? high : low >> 16, k),
				unpool_word(to, v.w, word == 2 ? high >> 16 : low >> 24, k)};
	}
}

/* ---- loss ------------------------------------------------------------------------------------ */

#define ALL_LANES 0xffffffffu

/* One warp computes one image. */
template <class T>
__global__ void dense_loss_kernel(const float *logits, T *d_logits, float *loss, int classes,
	int width, struct kx_batch batch)
{
	await_previous();
	const int lane = threadIdx.x % 32;
	const int n = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
	if (n >= batch.images)
		return;
	const float *s = logits + (size_t)n * width;
	T *d = d_logits + (size_t)n * width;
	const int label = batch.labels[image_number(&batch, n)];
	float top = -INFINITY, sum = 0;
	for (int c = lane; c < classes; c += 32)
		top = fmaxf(top, s[c]);
	for (int k = 16; k; k /= 2)
		top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, k));
	for (int c = lane; c < classes; c += 32)
		sum += expf(s[c] - top);
	for (int k = 16; k; k /= 2)
		sum += __shfl_xor_sync(ALL_LANES, sum, k);
	for (int c = lane; c < width; c += 32) {
		const float p = c < classes ? expf(s[c] - top) / sum - (c == label) : 0;

		store_one(d + c, p / batch.images);
	}
	if (lane == 0)
		loss[n] = logf(sum) - (s[label] - top);
}

template <class T>
int patches(struct kx_batch batch, struct kx_patches p, T *to, cudaStream_t stream)
{
	const int pixels = p.window.rows * p.window.columns;
	const size_t n = (size_t)batch.images * pixels * (p.columns / KX_OCTET);

	return kx_launch(patches_kernel<T>, dim3(blocks_for(n, THREADS)), THREADS, 0, stream, batch,
		p, kx_divisor(p.columns / KX_OCTET), kx_divisor(pixels),
		kx_divisor(p.window.columns), kx_divisor(p.channels), kx_divisor(p.window.size),
		to);
}

/* An untyped pointer that converts itself to the pointer type of a kernel's parameter. */
struct values {
	const void *at;
	template <class T> operator T *() const
	{
		return const_cast<T *>(static_cast<const T *>(at));
	}
};

} // namespace

int kx_patches(struct kx_batch batch, struct kx_patches p, void *to, enum kx_type type,
	cudaStream_t stream)
{
	return type == KX_TYPE_BF16 ? patches(batch, p, static_cast<__nv_bfloat16 *>(to), stream)
				    : patches(batch, p, static_cast<float *>(to), stream);
}

/* Launches KERNEL for values of `type`, with about `n` threads or, if `n` is large, with fewer
 * threads that loop. */
#define LAUNCH(KERNEL, n, ...)                                                                     \
	(type == KX_TYPE_BF16 ? kx_launch(KERNEL<__nv_bfloat16>, dim3(blocks_for(n, THREADS)),     \
					THREADS, 0, stream, __VA_ARGS__)                           \
			      : kx_launch(KERNEL<float>, dim3(blocks_for(n, THREADS)), THREADS, 0, \
					stream, __VA_ARGS__))

int kx_unpool(struct kx_dense pooled, const uint8_t *argmax, struct kx_dense full, int images,
	enum kx_type type, cudaStream_t stream)
{
	const int vector = type == KX_TYPE_BF16 ? 8 : 4;
	const int n = (int)(dense_count(pooled, images) / vector);

	return LAUNCH(unpool_kernel, n, values{pooled.value}, argmax, values{full.value}, pooled.c,
		n, kx_divisor(pooled.c / vector), kx_divisor(pooled.w));
}

int kx_dense_loss(const float *logits, void *d_logits, float *loss, int classes, int width,
	struct kx_batch batch, enum kx_type type, cudaStream_t stream)
{
	const int threads = 128, per_block = threads / 32;
	const int grid = (batch.images + per_block - 1) / per_block;

	return type == KX_TYPE_BF16
		       ? kx_launch(dense_loss_kernel<__nv_bfloat16>, dim3(grid), threads, 0, stream,
				 logits, values{d_logits}, loss, classes, width, batch)
		       : kx_launch(dense_loss_kernel<float>, dim3(grid), threads, 0, stream, logits,
				 values{d_logits}, loss, classes, width, batch);
}
