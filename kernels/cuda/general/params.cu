/*
 * params.cu - copies parameters between the manifest's order and the order of the kernels, adds up
 * split-K slices, and runs plain SGD. One launch handles up to KX_LAYERS layers. A block handles
 * consecutive values of one layer.
 */
#include "kernels/cuda/mma/exact_conv.cuh"
#include "kernels/cuda/fused/conv2.cuh"

namespace
{

#define THREADS  256
#define LANES    32
#define VALUES   (4 * LANES)       /* number of values of a block */
#define ADDERS   (THREADS / LANES) /* number of threads that share the slices of four values */
#define PREFETCH 9                 /* number of slices whose loads are in flight at a time */

__host__ __device__ inline size_t kx_layer_values(const struct kx_layer &l)
{
	return (size_t)(l.w.taps * l.w.c_pad + 1) * l.w.f_pad;
}

/* One parameter of a layer. */
struct param {
	int f, c, tap, bias, real; /* real: 0 if the value is padding */
	size_t param;              /* offset of the parameter in the manifest's vector */
};

/* Returns the parameter whose value is number first + i of the layer. `first` is the same in all
 * threads of a block, and only its division needs 64 bits. */
__device__ inline struct param param_at(const struct kx_weights &w, size_t first, unsigned i)
{
	const unsigned k0 = (unsigned)(first / w.f_pad);
	const unsigned f0 = (unsigned)(first - (size_t)k0 * w.f_pad) + i;
	const unsigned k = k0 + f0 / w.f_pad, tap = k / w.c_pad;
	const int f = (int)(f0 % w.f_pad), c = (int)(k - tap * w.c_pad), bias = (int)tap == w.taps;
	const int channels = w.c / w.groups, group = f / (w.f / w.groups);
	const int own = c - group * channels; /* number of the channel in the filter's group */
	const size_t weight = w.weight + ((size_t)f * channels + own) * w.taps + tap;
	const bool real = f < w.f && (bias || (c < w.c && own >= 0 && own < channels));

	return {f, c, (int)tap, bias, real, bias ? w.bias + f : weight};
}

/* Returns the layer of this block and sets *first to the block's first value. */
__device__ inline const struct kx_layer &layer_of_block(const struct kx_layers &all, size_t *first)
{
	int n = 0;

	while (n + 1 < all.n && blockIdx.x >= all.block[n + 1])
		n++;
	*first = (size_t)(blockIdx.x - all.block[n]) * VALUES;
	return all.layer[n];
}

/* Writes a weight to every copy that kernels read. */
__device__ inline void store_param(
	const struct kx_layer &l, const struct param &v, size_t i, float value)
{
	l.value[i] = value;
	if (l.bf16)
		l.bf16[i] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
	if (v.bias)
		return;
	if (l.dgrad)
		l.dgrad[v.tap * l.w.to_tap + (size_t)v.f * l.w.to_f + v.c] = value;
	if (l.conv1 && l.conv1_size == 3)
		conv_store_weight<3>(l.conv1, v.f, v.tap, value);
	if (l.conv1 && l.conv1_size == 5)
		conv_store_weight<5>(l.conv1, v.f, v.tap, value);
	if (l.conv2_fprop) {
		conv2_store_weight(l.conv2_fprop, l.conv2_dgrad, v.f, v.c, v.tap, value);
		if (fabsf(value) >= CONV2_MAX_WEIGHT)
			*l.trouble = KX_TROUBLE_RANGE;
	}
}

__global__ void pack_kernel(const __grid_constant__ struct kx_layers all, const float *params)
{
	size_t first;

	await_previous();
	const struct kx_layer &l = layer_of_block(all, &first);
	const unsigned i = threadIdx.x;
	if (first + i >= kx_layer_values(l))
		return;
	const struct param v = param_at(l.w, first, i);
	store_param(l, v, first + i, v.real ? params[v.param] : 0);
}

__global__ void unpack_kernel(const __grid_constant__ struct kx_layers all, int sums, float *params)
{
	size_t first;

	await_previous();
	const struct kx_layer &l = layer_of_block(all, &first);
	const unsigned i = threadIdx.x;
	if (first + i >= kx_layer_values(l))
		return;
	const struct param v = param_at(l.w, first, i);
	if (v.real)
		params[v.param] = sums ? l.sum[first + i] : l.value[first + i];
}

/* Each of ADDERS groups of threads adds up its share of the slices, in order. */
__device__ inline void sum_slices(
	const struct kx_layer &l, size_t first, float4 (&partial)[ADDERS][LANES])
{
	const int adder = threadIdx.x / LANES, lane = threadIdx.x % LANES;
	const size_t slice_stride = KX_WGRAD_ROWS(l.w.taps * l.w.c_pad) * l.w.f_pad / 4;
	const float4 *from = reinterpret_cast<const float4 *>(l.workspace + first) + lane;

	partial[adder][lane] = sum_fetched<PREFETCH>(float4{}, adder,
		first + 4 * lane < kx_layer_values(l) ? l.slices : 0, ADDERS,
		[=](int s) { return from[s * slice_stride]; });
}

/* The last block of the grid, after those of the layers, adds up the losses. */
__device__ inline void sum_losses(const struct kx_losses &l)
{
	__shared__ double partial[THREADS];

	partial[threadIdx.x] = sum_fetched<4>(
		0.0, threadIdx.x, l.images, THREADS, [=](int i) { return (double)l.loss[i]; });
	for (int d = THREADS / 2; d; d /= 2) {
		__syncthreads();
		if (threadIdx.x < d)
			partial[threadIdx.x] += partial[threadIdx.x + d];
	}
	if (threadIdx.x == 0)
		*l.sum = l.add ? *l.sum + partial[0] : partial[0] / l.images;
}

/* Writes the gradient to grad. If grad is NULL, runs a step of SGD instead. */
__global__ void __launch_bounds__(THREADS)
	split_k_reduce_kernel(const __grid_constant__ struct kx_layers all, struct kx_losses losses,
		float *grad, struct kx_now *now)
{
	__shared__ float4 partial[ADDERS][LANES];
	size_t first;

	await_previous();
	if (blockIdx.x == all.block[all.n]) {
		sum_losses(losses);
		if (now && threadIdx.x == 0)
			now->step++;
		return;
	}
	const struct kx_layer &l = layer_of_block(all, &first);
	const unsigned i = threadIdx.x;
	const bool mine = i < VALUES && first + i < kx_layer_values(l);
	const float rate = grad ? 0 : now->rate;
	const float value = grad || !mine ? 0 : l.value[first + i];
	const float sum = grad || !mine ? 0 : l.sum[first + i];
	sum_slices(l, first, partial);
	__syncthreads();
	if (!mine)
		return;
	const struct param v = param_at(l.w, first, i);
	float g = 0;
	for (int s = 0; s < ADDERS; s++)
		g += reinterpret_cast<const float *>(partial[s])[i];
	if (!v.real)
		return;
	if (grad) {
		grad[v.param] = g;
	} else {
		l.sum[first + i] = sum + g;
		store_param(l, v, first + i, l.fixed ? value : value - rate * g);
	}
}

/* Fills all->block and returns the number of blocks. */
unsigned assign_blocks(struct kx_layers *all)
{
	all->block[0] = 0;
	for (int n = 0; n < all->n; n++) {
		all->block[n + 1] =
			all->block[n] +
			(unsigned)((kx_layer_values(all->layer[n]) + VALUES - 1) / VALUES);
	}
	return all->block[all->n];
}

} // namespace

int kx_pack(struct kx_layers all, const float *params, cudaStream_t stream)
{
	const unsigned blocks = assign_blocks(&all);

	if (blocks == 0)
		return PS_OK;
	return kx_launch(pack_kernel, dim3(blocks), VALUES, 0, stream, all, params);
}

int kx_unpack(struct kx_layers all, int sums, float *params, cudaStream_t stream)
{
	const unsigned blocks = assign_blocks(&all);

	if (blocks == 0)
		return PS_OK;
	return kx_launch(unpack_kernel, dim3(blocks), VALUES, 0, stream, all, sums, params);
}

int kx_reduce_gradient(
	struct kx_layers all, struct kx_losses losses, float *grad, cudaStream_t stream)
{
	const unsigned blocks = assign_blocks(&all) + (losses.loss != NULL);

	if (blocks == 0)
		return PS_OK;
	return kx_launch_joined(split_k_reduce_kernel, all.joins, dim3(blocks), THREADS, 0, stream,
		all, losses, grad, (struct kx_now *)NULL);
}

int kx_sgd_step(
	struct kx_layers all, struct kx_losses losses, struct kx_now *now, cudaStream_t stream)
{
	const unsigned blocks = assign_blocks(&all) + (losses.loss != NULL);

	if (blocks == 0)
		return PS_OK;
	return kx_launch(split_k_reduce_kernel, dim3(blocks), THREADS, 0, stream, all, losses,
		(float *)NULL, now);
}

int kx_runs_here(void)
{
	return kx_code(split_k_reduce_kernel) > 0;
}
