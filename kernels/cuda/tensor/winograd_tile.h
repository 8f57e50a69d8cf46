/*
 * winograd_tile.h - Winograd's transforms of one tile, for the GPU and for a test without a GPU.
 *
 * A tile of 6 x 6 inputs gives 4 x 4 outputs of a filter of 3 x 3, or 2 x 2 outputs of 5 x 5. Both
 * filters use the points 0, 1, -1, 2, -2 and infinity (kernels/cpu/winograd.h), so they share the
 * transform of the input:
 *
 *   output = A' [(G g G') * (B' d B)] A   with the input d, the weights g, ' for transposition
 *
 * Each function transforms an array of 36 values in place. Value (r, s) of a tile, of a filter or
 * of an output is at r * 6 + s.
 */
#ifndef KERNELS_CUDA_TENSOR_WINOGRAD_TILE_H
#define KERNELS_CUDA_TENSOR_WINOGRAD_TILE_H

#ifdef __CUDACC__
#define WINOGRAD_INLINE __device__ static inline
#else
#define WINOGRAD_INLINE static inline
#endif
#ifdef __CUDA_ARCH__
#define WINOGRAD_UNROLL _Pragma("unroll")
#else
#define WINOGRAD_UNROLL
#endif

#define KX_WINOGRAD_SIDE 6
/* The point where every factor of A is 1. At this point, the transform of a tile of dY is the sum
 * of its values. */
#define KX_WINOGRAD_SUM 7

/* Multiplies six values, `step` apart, by B'. */
WINOGRAD_INLINE void winograd_times_b(float *v, int step)
{
	const float a = v[0], b = v[step], c = v[2 * step], d = v[3 * step], e = v[4 * step],
		    f = v[5 * step];
	const float even1 = e - 4 * c, odd1 = d - 4 * b, even2 = e - c, odd2 = 2 * (d - b);

	v[0] = 4 * a - 5 * c + e;
	v[step] = even1 + odd1;
	v[2 * step] = even1 - odd1;
	v[3 * step] = even2 + odd2;
	v[4 * step] = even2 - odd2;
	v[5 * step] = 4 * b - 5 * d + f;
}

/* Multiplies `size` weights by G, which makes six values. */
WINOGRAD_INLINE void winograd_times_g(float *v, int step, int size)
{
	const float a = v[0], b = v[step], c = v[2 * step];
	const float d = size > 3 ? v[3 * step] : 0, e = size > 3 ? v[4 * step] : 0;
	const float even1 = a + c + e, odd1 = b + d;
	const float even2 = a + 4 * c + 16 * e, odd2 = 2 * b + 8 * d;

	v[0] = a / 4;
	v[step] = (even1 + odd1) / -6;
	v[2 * step] = (even1 - odd1) / -6;
	v[3 * step] = (even2 + odd2) / 24;
	v[4 * step] = (even2 - odd2) / 24;
	v[5 * step] = size > 3 ? e : c;
}

/* Multiplies six values by A', which makes 7 - size values. */
WINOGRAD_INLINE void winograd_times_a(float *v, int step, int size)
{
	const float even1 = v[step] + v[2 * step], odd1 = v[step] - v[2 * step];
	const float even2 = v[3 * step] + v[4 * step], odd2 = v[3 * step] - v[4 * step];
	const float last = v[5 * step];

	v[0] = v[0] + even1 + even2;
	v[step] = odd1 + 2 * odd2 + (size > 3 ? last : 0);
	if (size > 3)
		return;
	v[2 * step] = even1 + 4 * even2;
	v[3 * step] = odd1 + 8 * odd2 + last;
}

/* Multiplies four gradients by A, which makes six values. */
WINOGRAD_INLINE void winograd_times_a_back(float *v, int step)
{
	const float a = v[0], b = v[step], c = v[2 * step], d = v[3 * step];
	const float even1 = a + c, odd1 = b + d, even2 = a + 4 * c, odd2 = 2 * b + 8 * d;

	v[step] = even1 + odd1;
	v[2 * step] = even1 - odd1;
	v[3 * step] = even2 + odd2;
	v[4 * step] = even2 - odd2;
	v[5 * step] = d;
}

/* Multiplies six values by G', which makes the gradients of three weights. */
WINOGRAD_INLINE void winograd_times_g_back(float *v, int step)
{
	const float even1 = (v[step] + v[2 * step]) / 6, odd1 = (v[step] - v[2 * step]) / 6;
	const float even2 = (v[3 * step] + v[4 * step]) / 24;
	const float odd2 = (v[3 * step] - v[4 * step]) / 24;

	v[0] = v[0] / 4 - even1 + even2;
	v[step] = 2 * odd2 - odd1;
	v[2 * step] = 4 * even2 - even1 + v[5 * step];
}

/* Replaces d by B' d B. */
WINOGRAD_INLINE void winograd_tile_input(float *d)
{
	WINOGRAD_UNROLL
	for (int i = 0; i < KX_WINOGRAD_SIDE; i++)
		winograd_times_b(d + i, KX_WINOGRAD_SIDE);
	WINOGRAD_UNROLL
	for (int i = 0; i < KX_WINOGRAD_SIDE; i++)
		winograd_times_b(d + i * KX_WINOGRAD_SIDE, 1);
}

/* The weights g of a filter of size x size become G g G'. */
WINOGRAD_INLINE void winograd_tile_weights(float *g, int size)
{
	WINOGRAD_UNROLL
	for (int i = 0; i < size; i++)
		winograd_times_g(g + i, KX_WINOGRAD_SIDE, size);
	WINOGRAD_UNROLL
	for (int i = 0; i < KX_WINOGRAD_SIDE; i++)
		winograd_times_g(g + i * KX_WINOGRAD_SIDE, 1, size);
}

/* The products m become the outputs A' m A of a filter of size x size. */
WINOGRAD_INLINE void winograd_tile_output(float *m, int size)
{
	WINOGRAD_UNROLL
	for (int i = 0; i < KX_WINOGRAD_SIDE; i++)
		winograd_times_a(m + i, KX_WINOGRAD_SIDE, size);
	WINOGRAD_UNROLL
	for (int i = 0; i < 7 - size; i++)
		winograd_times_a(m + i * KX_WINOGRAD_SIDE, 1, size);
}

/* Replaces the gradients e of 4 x 4 outputs by A e A'. */
WINOGRAD_INLINE void winograd_dy(float *e)
{
	WINOGRAD_UNROLL
	for (int i = 0; i < 4; i++)
		winograd_times_a_back(e + i, KX_WINOGRAD_SIDE);
	WINOGRAD_UNROLL
	for (int i = 0; i < KX_WINOGRAD_SIDE; i++)
		winograd_times_a_back(e + i * KX_WINOGRAD_SIDE, 1);
}

/* The gradients u of transformed weights become the gradients G' u G of a filter of 3 x 3. */
WINOGRAD_INLINE void winograd_tile_wgrad(float *u)
{
	WINOGRAD_UNROLL
	for (int i = 0; i < KX_WINOGRAD_SIDE; i++)
		winograd_times_g_back(u + i, KX_WINOGRAD_SIDE);
	WINOGRAD_UNROLL
	for (int i = 0; i < 3; i++)
		winograd_times_g_back(u + i * KX_WINOGRAD_SIDE, 1);
}

#endif
