/*
 * conv1.cu - see conv1.h.
 */
#include "kernels/cuda/mma/exact_conv.cuh"
#include "kernels/cuda/fused/conv1.h"

#define WARPS   8
#define THREADS (WARPS * 32)
#define AHEAD   9 /* positions whose errors are fetched at once */
#define OPEN    4 /* beside the number of the cell that won: the ReLU was open */

size_t kx_first_fragments(int size, int f)
{
	int steps = size == 3 ? conv<3>::STEPS : conv<5>::STEPS;
	return (size_t)f / 8 * steps * CONV_PIECES * 256;
}

/* ---- forward --------------------------------------------------------------------------------- */

__device__ static inline const uint8_t *image_bytes(const struct kx_batch &batch, int n)
{
	return batch.pixels + image_number(&batch, n) * (CONV_SIDE * CONV_SIDE);
}

__device__ static inline void load_group(
	struct conv_images *to, const struct kx_batch &batch, int group)
{
	const int chunks = CONV_SIDE * CONV_SIDE / 16, n = CONV_GROUP * chunks;
	for (int i = threadIdx.x; i < n; i += THREADS) {
		int image = group * CONV_GROUP + i / chunks;
		bool here = image < batch.images;
		conv_fetch(to, i, here ? image_bytes(batch, image) : batch.pixels, here);
	}
	copies_commit();
	copies_wait<0>();
	for (int i = threadIdx.x; i < n; i += THREADS)
		conv_convert(to, i);
}

/* blockIdx: x images, y filters (32), z positions. Warps: 4 x 8 filters, 2 ranges of positions. */
template <int SIZE>
__global__ void __launch_bounds__(THREADS, 2)
	forward_kernel(struct kx_first l, struct kx_batch batch)
{
	__shared__ __align__(16) struct conv_images images;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
	const int filter_group = blockIdx.y * 4 + warp % 4, f = filter_group * 8 + lane / 4;
	const int range = blockIdx.z * 2 + warp / 4, ranges = gridDim.z * 2;
	const int begin = conv<SIZE>::POSITIONS * range / ranges;
	const int end = conv<SIZE>::POSITIONS * (range + 1) / ranges;
	struct conv_weights<SIZE> w;
	int at[conv<SIZE>::STEPS][2];

	await_previous();
	const float bias = l.bias[f];
	load_group(&images, batch, blockIdx.x);
	conv_load(&w, l.fragments, filter_group, lane);
#pragma unroll
	for (int k = 0; k < conv<SIZE>::STEPS; k++) {
		at[k][0] = conv_pair<SIZE>(k, 0, t);
		at[k][1] = conv_pair<SIZE>(k, 1, t);
	}
	__syncthreads();
	for (int p = begin; p < end; p++) {
		const int y = p / conv<SIZE>::POOLED, x = p % conv<SIZE>::POOLED;
		const uint32_t *patch =
			images.pixels + lane / 4 * IMAGE_WORDS + y * (2 * ROW_WORDS) + x;
		const size_t to = l.out.origin + (size_t)y * l.out.row + x * l.out.c + f;
#pragma unroll
		for (int j = 0; j < 2; j++) {
			float c[2][4] = {};
			conv_cells<SIZE>(c, w, patch + j * 8 * IMAGE_WORDS, at);
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const int n = blockIdx.x * CONV_GROUP + j * 8 + 2 * t + e;
				uint32_t winner;
				float v = first_maximum(
					c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &winner);
				if (n >= batch.images)
					continue;
				v = max_or_nan(fmaf(v, CONV_PIXEL, bias), 0);
				l.out.value[n * l.out.image + to] = v;
				l.winner[((size_t)n * conv<SIZE>::POSITIONS + p) * l.f + f] =
					(uint8_t)(winner | (v > 0 ? OPEN : 0));
			}
		}
	}
}

template <int SIZE>
static int forward(struct kx_first l, struct kx_batch batch, cudaStream_t stream)
{
	const unsigned groups = (batch.images + CONV_GROUP - 1) / CONV_GROUP;
	const unsigned filters = l.f / FIRST_LANES, wanted = FIRST_PARTS / (groups * filters);
	const unsigned most = conv<SIZE>::POSITIONS / 8;
	dim3 grid(groups, filters, wanted < 1 ? 1 : wanted < most ? wanted : most);
	return kx_launch(forward_kernel<SIZE>, grid, THREADS, 0, stream, l, batch);
}

int kx_first_forward(struct kx_first l, struct kx_batch batch, cudaStream_t stream)
{
	if (l.pieces)
		return kx_first_pieces(l, batch, stream);
	return l.size == 3 ? forward<3>(l, batch, stream) : forward<5>(l, batch, stream);
}

/* ---- gradient -------------------------------------------------------------------------------- */

__device__ static inline const uint32_t *image_words(const struct kx_batch &batch, int n)
{
	return reinterpret_cast<const uint32_t *>(image_bytes(batch, n));
}

/* A lane is a filter, a warp every eighth position; the sums stay in registers. The four cells that
 * lanes may look at start in different banks. */
template <int SIZE>
__device__ static inline void add_image(float (&sum)[SIZE * SIZE], float *bias,
	const struct kx_first &l, const float *pixels, int n, int f)
{
	const uint8_t *winner = l.winner + (size_t)n * conv<SIZE>::POSITIONS * l.f + f;
	const float *error = l.error + n * l.out.image + l.out.origin + f;
	const int warp = threadIdx.x / 32;
	for (int p0 = 0; p0 < conv<SIZE>::POSITIONS; p0 += WARPS * AHEAD) {
		int won[AHEAD];
		float d[AHEAD];
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			const int p = min(p0 + i * WARPS + warp, conv<SIZE>::POSITIONS - 1);
			const int y = p / conv<SIZE>::POOLED, x = p % conv<SIZE>::POOLED;
			won[i] = winner[(size_t)p * l.f];
			d[i] = error[(size_t)y * l.out.row + x * l.out.c];
			const bool here = p0 + i * WARPS + warp < conv<SIZE>::POSITIONS;
			d[i] = here && won[i] & OPEN ? d[i] : 0;
			won[i] = (2 * y + won[i] / 2 % 2) * CONV_SIDE + 2 * x + won[i] % 2;
		}
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
#pragma unroll
			for (int k = 0; k < SIZE * SIZE; k++)
				sum[k] = fmaf(d[i],
					pixels[won[i] + k / SIZE * CONV_SIDE + k % SIZE], sum[k]);
			*bias += d[i];
		}
	}
}

/* blockIdx: x a share of the images, y filters. */
template <int SIZE>
__global__ void __launch_bounds__(THREADS, 2)
	gradient_kernel(struct kx_first l, struct kx_batch batch)
{
	const int taps = SIZE * SIZE, words = CONV_SIDE * CONV_SIDE / 4;
	__shared__ float4 pixels[2][words];
	__shared__ float reduced[WARPS][32];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int f = blockIdx.y * FIRST_LANES + lane;
	float sum[taps] = {}, bias = 0;

	await_previous();
	uint32_t four = 0;
	if (threadIdx.x < words && blockIdx.x < batch.images)
		four = image_words(batch, blockIdx.x)[threadIdx.x];
	for (int n = blockIdx.x, turn = 0; n < batch.images; n += gridDim.x, turn ^= 1) {
		if (threadIdx.x < words) {
			pixels[turn][threadIdx.x] = {pixel_of(four, 0), pixel_of(four, 1),
				pixel_of(four, 2), pixel_of(four, 3)};
		}
		__syncthreads();
		const int next = n + gridDim.x; /* on its way while this one is added */
		if (threadIdx.x < words && next < batch.images)
			four = image_words(batch, next)[threadIdx.x];
		add_image<SIZE>(sum, &bias, l, reinterpret_cast<const float *>(pixels[turn]), n, f);
	}
	float *out = l.partial + KX_OUTER_ROWS(taps) * l.f * blockIdx.x;
#pragma unroll
	for (int k = 0; k <= taps; k++) {
		__syncthreads();
		reduced[warp][lane] = k < taps ? sum[k < taps ? k : 0] * CONV_PIXEL : bias;
		__syncthreads();
		if (warp == 0) {
			float v = 0;
			for (int i = 0; i < WARPS; i++)
				v += reduced[i][lane];
			out[(size_t)k * l.f + f] = v;
		}
	}
}

int kx_first_gradient(struct kx_first l, struct kx_batch batch, cudaStream_t stream)
{
	dim3 grid(FIRST_PARTS, l.f / FIRST_LANES);
	if (l.size == 3)
		return kx_launch(gradient_kernel<3>, grid, THREADS, 0, stream, l, batch);
	return kx_launch(gradient_kernel<5>, grid, THREADS, 0, stream, l, batch);
}
