/*
 * seed_persistent_weights.cuh - a block's weights, their fragments, and a step of SGD.
 */
#ifndef KERNELS_CUDA_FUSED_SEED_PERSISTENT_WEIGHTS_CUH
#define KERNELS_CUDA_FUSED_SEED_PERSISTENT_WEIGHTS_CUH
#include "kernels/cuda/fused/seed_persistent.cuh"

#ifdef __CUDACC__
/* Fc weights of a warp's two places, and the sum of their gradients: lane has filter lane / 4, and
 * of each place classes 2t, 2t + 1, and lane t = 0 the classes 8 and 9, too. */
struct owned {
	float weight[2][2][2], sum[2][2][2];
};

__device__ static inline bool is_owned(const struct share &share, int two, int place, int eights)
{
	return two < share.twos && 2 * two + place < share.count &&
	       (eights == 0 || threadIdx.x % 4 == 0);
}

__device__ static inline size_t owned_at(
	const struct kx_seed &s, const struct share &share, int two, int place, int eights)
{
	const int lane = threadIdx.x % 32;
	const size_t p = share.begin + 2 * two + place;
	return (p * s.f_pad + share.group * FILTERS + lane / 4) * SEED_ROW + 8 * eights +
	       lane % 4 * 2;
}

#define FOR_OWNED(i, k)                                                                            \
	_Pragma("unroll") for (int i = 0; i < 2; i++) _Pragma("unroll") for (int k = 0; k < 2; k++)

__device__ static inline struct owned fetched(const volatile struct owned &from)
{
	struct owned o;
	FOR_OWNED(i, k)
	{
#pragma unroll
		for (int e = 0; e < 2; e++) {
			o.weight[i][k][e] = from.weight[i][k][e];
			o.sum[i][k][e] = from.sum[i][k][e];
		}
	}
	return o;
}

__device__ static inline void put_away(volatile struct owned &to, const struct owned &o)
{
	FOR_OWNED(i, k)
	{
#pragma unroll
		for (int e = 0; e < 2; e++) {
			to.weight[i][k][e] = o.weight[i][k][e];
			to.sum[i][k][e] = o.sum[i][k][e];
		}
	}
}

__device__ static inline void load_owned(
	struct owned *o, const struct kx_seed &s, const struct share &share, int two)
{
	FOR_OWNED(i, k)
	{
		float2 v = {};
		if (is_owned(share, two, i, k))
			v = *reinterpret_cast<const float2 *>(
				s.params.fc + owned_at(s, share, two, i, k));
		o->weight[i][k][0] = v.x;
		o->weight[i][k][1] = v.y;
		o->sum[i][k][0] = o->sum[i][k][1] = 0;
	}
}

__device__ static inline void store_owned(
	const struct owned &o, const struct kx_seed &s, const struct share &share, int two)
{
	FOR_OWNED(i, k)
	{
		if (!is_owned(share, two, i, k))
			continue;
		const size_t at = owned_at(s, share, two, i, k);
		float2 *sum = reinterpret_cast<float2 *>(s.sum.fc + at);
		*reinterpret_cast<float2 *>(s.params.fc + at) = {
			o.weight[i][k][0], o.weight[i][k][1]};
		*sum = {sum->x + o.sum[i][k][0], sum->y + o.sum[i][k][1]};
	}
}

/* Weights as left factors of the errors, divided by a power of two. */
__device__ static inline void put_pushing(struct resident *shared, const struct owned &o, int two)
{
	float bound = 0;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float sum = fabsf(o.weight[i][0][0]) + fabsf(o.weight[i][0][1]) +
			    fabsf(o.weight[i][1][0]) + fabsf(o.weight[i][1][1]);
		sum += __shfl_xor_sync(0xffffffffu, sum, 1);
		sum += __shfl_xor_sync(0xffffffffu, sum, 2);
		bound = fmaxf(bound, sum);
	}
	const float power = power_above(bound), scale = inverse(power);
	uint32_t a[2][2];
	FOR_OWNED(i, k)
	a[i][k] = two_halves(o.weight[i][k][0] * scale, o.weight[i][k][1] * scale);
	shared->pushing[two][threadIdx.x % 32] = {a[0][0], a[1][0], a[0][1], a[1][1]};
	shared->power[two][threadIdx.x % 32] = power;
}

/* And of the values, which are scaled by their filter's unit. */
__device__ static inline void put_scoring(struct resident *shared, const struct owned &o, int two)
{
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const float unit = low_unit(shared->conv[g]);
	uint16_t *to = reinterpret_cast<uint16_t *>(shared->scoring[two]);
	FOR_OWNED(i, k)
	{
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const int lane = (2 * t + e) * 4 + g / 2, word = k + 2 * i;
			if (k == 0 || t == 0)
				to[(lane * 4 + word) * 2 + g % 2] = __bfloat16_as_ushort(
					__float2bfloat16_rn(o.weight[i][k][e] * unit));
		}
	}
}

/* With the sums of all warps that had groups of images of the two places. */
__device__ static inline void descend_fc(struct owned *o, const struct resident *shared,
	const struct share &share, int two, float scale, float rate)
{
	const int lane = threadIdx.x % 32;
	const struct workers of = shared->workers[two];
	float v[8] = {};
#pragma unroll 1
	for (int w = of.first; w <= of.last; w++) {
		const int first = shared->first_two[w];
		if (first < 0)
			continue;
#pragma unroll
		for (int j = 0; j < 8; j++)
			v[j] += shared->sum.fc[w][two - first][j][lane];
	}
	FOR_OWNED(i, k)
	{
		const bool real = is_owned(share, two, i, k);
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const float g = real ? v[k * 4 + i * 2 + e] * scale : 0;
			o->sum[i][k][e] += g;
			o->weight[i][k][e] -= rate * g;
		}
	}
}

/* The fc's bias, in each block alike. A warp. */
__device__ static inline void descend_bias(struct resident *shared, int images, float rate)
{
	const int lane = threadIdx.x % 32, c = lane % SEED_CLASSES, third = lane / SEED_CLASSES;
	float v = 0;
	for (int n = third; n < images && third < 3; n += 3)
		v += shared->error[n][c];
	v += __shfl_sync(0xffffffffu, v, c + 10) + __shfl_sync(0xffffffffu, v, c + 20);
	v /= images;
	if (lane < SEED_CLASSES) {
		shared->bias_sum[lane] += v;
		shared->bias[lane] -= rate * v;
	}
}

/* The words of filter f's rows of the fragments, by a warp. */
__device__ static inline void put_fragments(struct resident *shared, int f)
{
	const int lane = threadIdx.x % 32;
	low_fragment(shared->fragments, shared->scale, shared->conv[0],
		lane / 16 * 128 + (f * 4 + lane / 4 % 4) * 4 + lane % 4);
}

/* And new fragments, a filter to a warp. */
__device__ static inline void descend_conv(struct resident *shared, float rate)
{
	const int f = threadIdx.x / 32, lane = threadIdx.x % 32;
	if (f >= FILTERS)
		return;
	if (lane < SEED_ROW) {
		float g = 0;
#pragma unroll
		for (int slice = 0; slice < CONV_SLICES; slice++)
			g += shared->conv_part[slice][f * SEED_ROW + lane];
		shared->conv_sum[f][lane] += g;
		shared->conv[f][lane] -= rate * g;
	}
	__syncwarp();
	put_fragments(shared, f);
}
#endif

#endif
