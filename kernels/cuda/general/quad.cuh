/* quad.cuh - loads and stores four neighbouring channels of fp32 or bf16. */
#ifndef KERNELS_CUDA_GENERAL_QUAD_CUH
#define KERNELS_CUDA_GENERAL_QUAD_CUH
#include "kernels/cuda/mma/gemm.cuh"

__device__ static inline float4 load_quad(const float *from)
{
	return *reinterpret_cast<const float4 *>(from);
}

__device__ static inline float4 load_quad(const __nv_bfloat16 *from)
{
	const uint2 v = *reinterpret_cast<const uint2 *>(from);

	return {__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000),
		__uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000)};
}

__device__ static inline void store_quad(float *to, float4 v)
{
	*reinterpret_cast<float4 *>(to) = v;
}

__device__ static inline void store_quad(__nv_bfloat16 *to, float4 v)
{
	*reinterpret_cast<uint2 *>(to) = {to_bf16x2(v.x, v.y), to_bf16x2(v.z, v.w)};
}

#endif
