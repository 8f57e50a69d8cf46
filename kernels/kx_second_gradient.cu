/*
 * kx_second_gradient.cu - weight gradients of kx_second.h's convolution.
 *
 * 801 x 64 sums stay in the registers of a block of 16 warps while it goes through its images: warp
 * (half of the channels, half of the taps, quarter of the filters) has 13 or 12 tiles of 16 x 16.
 * One product's k are the eight positions of a row; a tap shifts which pixels they meet.
 */
#include "kernels/kx_gemm.cuh"
#include "kernels/kx_second.h"

#define WARPS   16
#define THREADS (WARPS * 32)
#define STAGES  3
#define TAPS    (SECOND_SIZE * SECOND_SIZE)
#define HALF    13 /* taps of the first half */
#define PIXELS  (SECOND_IN * SECOND_IN)
#define CELLS   (SECOND_OUT * SECOND_OUT)
/* Floats from pixel to pixel, and cell to cell: 4 of them x 8 channels or filters lie in 32 banks.
 */
#define PIXEL (SECOND_CHANNELS + 8)
#define CELL  (SECOND_FILTERS + 8)

struct stage {
	float in[PIXELS * PIXEL];
	float error[CELLS * CELL];
};

__device__ static inline void load_image(
	struct stage *s, const struct kx_second &l, int n, bool here)
{
	const int in_quads = SECOND_CHANNELS / 4, error_quads = SECOND_FILTERS / 4;
	const float *in = l.in.value + n * l.in.image + l.in.origin;
	const float *error = l.conv_error + n * l.conv.image + l.conv.origin;
	for (int i = threadIdx.x; i < PIXELS * in_quads && here; i += THREADS) {
		int c = i % in_quads * 4, pixel = i / in_quads;
		copy_ahead(s->in + pixel * PIXEL + c,
			in + pixel / SECOND_IN * l.in.row + pixel % SECOND_IN * SECOND_CHANNELS + c,
			true);
	}
	for (int i = threadIdx.x; i < CELLS * error_quads && here; i += THREADS) {
		int f = i % error_quads * 4, cell = i / error_quads;
		copy_ahead(s->error + cell * CELL + f,
			error + cell / SECOND_OUT * l.conv.row +
				cell % SECOND_OUT * SECOND_FILTERS + f,
			true);
	}
	copies_commit();
}

/* A warp's share of an image. `in`, `error`: at its channels and filters. FIRST: of the taps. */
template <int FIRST, int COUNT>
__device__ static inline void add_image(
	float (&c)[HALF][2][4], float (&bias)[2], const float *in, const float *error)
{
#pragma unroll 1
	for (int y = 0; y < SECOND_OUT; y++) {
		uint32_t b[2][2];
#pragma unroll
		for (int n = 0; n < 2; n++) {
			float low = error[y * SECOND_OUT * CELL + 8 * n];
			float high = error[(y * SECOND_OUT + 4) * CELL + 8 * n];
			bias[n] += low + high;
			b[n][0] = to_tf32(low);
			b[n][1] = to_tf32(high);
		}
#pragma unroll
		for (int i = 0; i < COUNT; i++) {
			const int tap = FIRST + i;
			const float *at =
				in + y * (SECOND_IN * PIXEL) +
				(tap / SECOND_SIZE * SECOND_IN + tap % SECOND_SIZE) * PIXEL;
			/* cut off by the tensor core instead of rounded: 2^-12 of bias */
			const uint32_t a[4] = {__float_as_uint(at[0]), __float_as_uint(at[8]),
				__float_as_uint(at[4 * PIXEL]), __float_as_uint(at[4 * PIXEL + 8])};
			mma_tf32(c[i][0], a, b[0]);
			mma_tf32(c[i][1], a, b[1]);
		}
	}
}

__global__ void __launch_bounds__(THREADS, 1)
	second_gradient_kernel(struct kx_second l, float *partial, int images)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct stage *stage = reinterpret_cast<struct stage *>(memory);
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, r = lane / 4, t = lane % 4;
	const int c0 = warp % 2 * 16, later = warp / 2 % 2, f0 = warp / 4 * 16;
	const int step = gridDim.x;
	float c[HALF][2][4] = {}, bias[2] = {};

	await_previous();
	for (int i = 0; i < STAGES - 1; i++) {
		int n = blockIdx.x + i * step;
		load_image(&stage[i], l, n, n < images);
	}
	for (int n = blockIdx.x, i = 0; n < images; n += step, i++) {
		const struct stage *s = &stage[i % STAGES];
		const int ahead = n + (STAGES - 1) * step;
		copies_wait<STAGES - 2>();
		__syncthreads();
		load_image(&stage[(i + STAGES - 1) % STAGES], l, ahead, ahead < images);
		const float *in = s->in + t * PIXEL + c0 + r, *error = s->error + t * CELL + f0 + r;
		if (later)
			add_image<HALF, TAPS - HALF>(c, bias, in, error);
		else
			add_image<0, HALF>(c, bias, in, error);
	}
	const int rows = TAPS * SECOND_CHANNELS;
	float *out = partial + KX_OUTER_ROWS(rows) * SECOND_FILTERS * blockIdx.x;
#pragma unroll
	for (int i = 0; i < HALF; i++) {
		const int tap = later * HALF + i;
#pragma unroll
		for (int q = 0; q < 4; q++) {
			const int k = tap * SECOND_CHANNELS + c0 + r + q % 2 * 8;
			const int f = f0 + q / 2 * 8 + 2 * t;
			const float *v = &c[i][q / 2][q % 2 * 2];
			if (tap < TAPS)
				*reinterpret_cast<float2 *>(out + k * SECOND_FILTERS + f) = {
					v[0], v[1]};
		}
	}
#pragma unroll
	for (int n = 0; n < 2; n++) {
		bias[n] += __shfl_xor_sync(0xffffffffu, bias[n], 1);
		bias[n] += __shfl_xor_sync(0xffffffffu, bias[n], 2);
		if (c0 == 0 && !later && t == 0)
			out[rows * SECOND_FILTERS + f0 + 8 * n + r] = bias[n];
	}
}

int kx_second_gradient(struct kx_second l, float *partial, int images, cudaStream_t stream)
{
	const int bytes = STAGES * (int)sizeof(struct stage);
	if (cudaFuncSetAttribute(
		    second_gradient_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(second_gradient_kernel, dim3(SECOND_PARTS), THREADS, bytes, stream, l,
		partial, images);
}
