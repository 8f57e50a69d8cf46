/*
 * conv1_split.cu - conv1.h's forward of 32 filters of 5 x 5 where conv2.h's convolution
 * comes next: pooled values as it wants them, and winners. A block collects both for its positions
 * in shared memory and writes them out in long runs: a warp has 8 filters of 16 images at a time,
 * so 16 bytes of each, and stores of that kind take longer than everything else.
 */
#include "kernels/cuda/mma/exact_conv.cuh"
#include "kernels/cuda/fused/conv1.h"
#include "kernels/cuda/fused/conv2.cuh"

#define SIZE    5
#define WARPS   8
#define THREADS (WARPS * 32)
#define GROUPS  (SECOND_CHANNELS / 8)
#define MOST    18 /* positions of a block */
#define OPEN    4  /* as conv1.cu's */
/* Bytes from image to image: a warp's 8, or 4, lie in 32 banks. */
#define VALUES  (SECOND_PIECES * GROUPS * MOST * 16 + 16)
#define WINNERS (MOST * SECOND_CHANNELS + 16)

struct pieces_shared {
	struct conv_images images;
	__align__(16) unsigned char value[CONV_GROUP * VALUES];
	__align__(16) unsigned char winner[CONV_GROUP * WINNERS];
};

__device__ static inline void load_group(
	struct conv_images *to, const struct kx_batch &batch, int group)
{
	const int chunks = CONV_SIDE * CONV_SIDE / 16, n = CONV_GROUP * chunks;
	for (int i = threadIdx.x; i < n; i += THREADS) {
		const int image = group * CONV_GROUP + i / chunks;
		const bool here = image < batch.images;
		conv_fetch(to, i,
			batch.pixels +
				(here ? image_number(&batch, image) : 0) * (CONV_SIDE * CONV_SIDE),
			here);
	}
	copies_commit();
	copies_wait<0>();
	for (int i = threadIdx.x; i < n; i += THREADS)
		conv_convert(to, i);
}

/* As conv_cells, of both halves of the images by turns: alone each would wait for itself. */
__device__ static inline void cells_of_both(float (&c)[2][2][4], const struct conv_weights<SIZE> &w,
	const uint32_t *patch, const int (&at)[conv<SIZE>::STEPS][2])
{
	uint32_t b[2][conv<SIZE>::STEPS][2];
#pragma unroll
	for (int i = 0; i < 4 * conv<SIZE>::STEPS; i++)
		b[i % 2][i / 4][i / 2 % 2] = patch[i % 2 * 8 * IMAGE_WORDS + at[i / 4][i / 2 % 2]];
#pragma unroll
	for (int piece = CONV_PIECES; piece-- > 0;)
#pragma unroll
		for (int k = 0; k < conv<SIZE>::STEPS; k++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				mma_bf16(c[i / 2][i % 2], w.a[k][piece][i % 2], b[i / 2][k][0],
					b[i / 2][k][1]);
}

/* Position p, number i of the block's: a warp's eight filters of all images. */
__device__ static inline void add_position(struct pieces_shared *s,
	const struct conv_weights<SIZE> &w, const int (&at)[conv<SIZE>::STEPS][2], int p, int i,
	int group, float bias)
{
	const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
	float cells[2][2][4] = {};
	uint32_t word[2][SECOND_PIECES];
	cells_of_both(cells, w,
		s->images.pixels + r * IMAGE_WORDS + p / SECOND_IN * (2 * ROW_WORDS) +
			p % SECOND_IN,
		at);
#pragma unroll
	for (int j = 0; j < 2; j++) {
		const float(&c)[2][4] = cells[j];
		float v[2], rest[2];
#pragma unroll
		for (int e = 0; e < 2; e++) {
			uint32_t winner;
			v[e] = first_maximum(c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &winner);
			v[e] = max_or_nan(fmaf(v[e], CONV_PIXEL, bias), 0);
			s->winner[(8 * j + 2 * t + e) * WINNERS + i * SECOND_CHANNELS + group * 8 +
				  r] = (unsigned char)(winner | (v[e] > 0 ? OPEN : 0));
			rest[e] = v[e] - __half2float(__float2half_rn(v[e]));
		}
		word[j][0] = two_halves(v[0], v[1]);
		word[j][1] = two_halves(rest[0], rest[1]);
	}
	/* matrices filter x image: images 0 to 7 in two pieces, then 8 to 15 */
	const int image = lane / 16 * 8 + lane % 8, piece = lane / 8 % 2;
	store_transposed(shared_address(s->value) + image * VALUES +
				 ((piece * GROUPS + group) * MOST + i) * 16,
		{word[0][0], word[0][1], word[1][0], word[1][1]});
}

/* Positions [begin, end). */
__device__ static inline void write_out(const struct pieces_shared *s, const struct kx_first &l,
	int n0, int images, int begin, int end)
{
	const int runs = SECOND_PIECES * GROUPS, winners = MOST * SECOND_CHANNELS / 16;
	const int count = end - begin;
	for (int i = threadIdx.x; i < CONV_GROUP * runs * MOST; i += THREADS) {
		const int image = i / (runs * MOST), run = i / MOST % runs, p = i % MOST;
		if (n0 + image < images && p < count)
			*reinterpret_cast<uint4 *>(l.pieces + (size_t)(n0 + image) * SECOND_IMAGE +
						   (run * SECOND_PIXELS + begin + p) * 8) =
				*reinterpret_cast<const uint4 *>(
					s->value + image * VALUES + (run * MOST + p) * 16);
	}
	for (int i = threadIdx.x; i < CONV_GROUP * winners; i += THREADS) {
		const int image = i / winners, at = i % winners * 16;
		if (n0 + image < images && at < count * SECOND_CHANNELS)
			*reinterpret_cast<uint4 *>(
				l.winner +
				((size_t)(n0 + image) * SECOND_PIXELS + begin) * SECOND_CHANNELS +
				at) =
				*reinterpret_cast<const uint4 *>(s->winner + image * WINNERS + at);
	}
}

/* blockIdx: x images, y positions. Warps: 4 x 8 filters, 2 ranges of positions. */
__global__ void __launch_bounds__(THREADS, 2)
	first_pieces_kernel(struct kx_first l, struct kx_batch batch)
{
	extern __shared__ __align__(128) unsigned char memory[];
	struct pieces_shared *s = reinterpret_cast<struct pieces_shared *>(memory);
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp % GROUPS;
	const int begin = SECOND_PIXELS * blockIdx.y / gridDim.y;
	const int end = SECOND_PIXELS * (blockIdx.y + 1) / gridDim.y;
	struct conv_weights<SIZE> w;
	int at[conv<SIZE>::STEPS][2];

	await_previous();
	const float bias = l.bias[group * 8 + lane / 4];
	load_group(&s->images, batch, blockIdx.x);
	conv_load(&w, l.fragments, group, lane);
#pragma unroll
	for (int k = 0; k < conv<SIZE>::STEPS; k++) {
		at[k][0] = conv_pair<SIZE>(k, 0, lane % 4);
		at[k][1] = conv_pair<SIZE>(k, 1, lane % 4);
	}
	__syncthreads();
	for (int from = begin; from < end; from += MOST) {
		const int to = min(from + MOST, end);
		for (int p = from + warp / GROUPS; p < to; p += WARPS / GROUPS)
			add_position(s, w, at, p, p - from, group, bias);
		__syncthreads();
		write_out(s, l, blockIdx.x * CONV_GROUP, batch.images, from, to);
		__syncthreads();
	}
}

int kx_first_pieces(struct kx_first l, struct kx_batch batch, cudaStream_t stream)
{
	const int bytes = (int)sizeof(struct pieces_shared);
	const unsigned groups = (batch.images + CONV_GROUP - 1) / CONV_GROUP;
	const unsigned wanted = FIRST_PARTS / groups, most = SECOND_PIXELS / (MOST / 2);
	const unsigned shares = wanted < 1 ? 1 : wanted < most ? wanted : most;
	if (cudaFuncSetAttribute(
		    first_pieces_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(
		first_pieces_kernel, dim3(groups, shares), THREADS, bytes, stream, l, batch);
}
