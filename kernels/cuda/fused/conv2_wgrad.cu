/*
 * conv2_wgrad.cu - weight gradients of conv2.h's convolution. Built for sm_90a.
 *
 * The sums of half of the taps stay in the registers of a block while it goes through its images.
 * The 64 rows of a product are filters, whose errors its warpgroup holds in registers for a whole
 * image, the columns channels, and k two rows of eight positions: a tap shifts where in shared
 * memory the pixels begin that they meet, and nothing is copied. Four warpgroups share the taps.
 * The bias is one tap more, which meets ones.
 */
#include "kernels/cuda/base/common.cuh"
#include "kernels/cuda/fused/conv2.cuh"
#include "kernels/cuda/mma/wgmma.cuh"

#define THREADS 512
#define GROUPS  (THREADS / 128)
#define STAGES  3
#define HALVES  2 /* blocks that share the taps */
#define TAPS    ((SECOND_TAPS + 1) / HALVES)
#define MINE    ((TAPS + GROUPS - 1) / GROUPS) /* taps of a warpgroup, at most */
#define CELLS   (SECOND_OUT * SECOND_OUT)
#define STEPS   (CELLS / 16) /* products deep that a tap is */
#define CORE    128          /* bytes of eight rows of 16 */
#define ONES    2048

/* An image's errors and winners as they come: a thread has two cells of a window, four filters. */
struct pooled {
	float4 error[THREADS];
	uint32_t winners[THREADS];
};

struct gradient_shared {
	unsigned char in[STAGES][SECOND_PIECE];
	struct pooled pooled[STAGES];
	unsigned char error[2][SECOND_FILTERS / 8][CELLS][16]; /* before the pool */
	uint32_t ones[ONES / 4];
	float most[THREADS / 32];
};

/* 4 bytes to shared memory. */
__device__ static inline void copy_word(void *to, const void *from)
{
	uint32_t at = shared_address(to);
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

/* Four filters of a cell, and of the one below it, are a thread's: it fetches their window's errors
 * ... */
struct spot {
	int f, x, y;
};

/* Neighbours: halves of eight filters, then columns, so that what they write lies in 32 banks. */
__device__ static inline struct spot spot_of_thread()
{
	const int i = threadIdx.x;
	return {i / 16 % (SECOND_FILTERS / 8) * 8 + i % 2 * 4, i / 2 % SECOND_OUT,
		i / (2 * SECOND_FILTERS) * 2};
}

/* The block's image number i, n of the batch. */
__device__ static inline void fetch_image(
	struct gradient_shared *s, const struct kx_second &l, int i, int n, int images)
{
	const struct spot at = spot_of_thread();
	const int stage = i % STAGES, y = at.y / 2, x = at.x / 2;
	if (n < images) {
		const unsigned char *in =
			reinterpret_cast<const unsigned char *>(l.in + (size_t)n * SECOND_IMAGE);
		for (int k = threadIdx.x * 16; k < SECOND_PIECE; k += THREADS * 16)
			copy_ahead(s->in[stage] + k, in + k, true);
		copy_ahead(&s->pooled[stage].error[threadIdx.x],
			l.out_error + n * l.out.image + l.out.origin + y * l.out.row +
				x * SECOND_FILTERS + at.f,
			true);
		copy_word(&s->pooled[stage].winners[threadIdx.x],
			l.winner +
				(((size_t)n * SECOND_POOLED + y) * SECOND_POOLED + x) *
					SECOND_FILTERS +
				at.f);
	}
	copies_commit();
}

/* ... and, when they are there, puts down both; nobody else looks at them. */
__device__ static inline void spread(
	unsigned char (*to)[CELLS][16], const struct pooled &from, float up)
{
	const struct spot at = spot_of_thread();
	const float4 d = from.error[threadIdx.x];
	const uint32_t won = from.winners[threadIdx.x];
	const uint32_t low = two_halves(d.x * up, d.y * up), high = two_halves(d.z * up, d.w * up);
#pragma unroll
	for (int below = 0; below < 2; below++) {
		const uint32_t cell = 2 * below + at.x % 2;
		uint32_t mask[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			mask[i] = (won >> (8 * i) & 0xff) == cell ? 0xffffu : 0;
		*reinterpret_cast<uint2 *>(
			&to[at.f / 8][(at.y + below) * SECOND_OUT + at.x][at.f % 8 * 2]) = {
			low & (mask[0] | mask[1] << 16), high & (mask[2] | mask[3] << 16)};
	}
}

/* Where the pixels begin that a tap meets, and the bytes to the next eight channels and to the next
 * row of pixels. */
struct operand {
	uint32_t at, channels, row;
};

__device__ static inline struct operand operand_of(
	const struct gradient_shared *s, int stage, int tap)
{
	const int ky = tap / SECOND_SIZE, kx = tap % SECOND_SIZE;
	if (tap >= SECOND_TAPS)
		return {shared_address(s->ones), 2 * CORE, CORE};
	return {shared_address(s->in[stage]) + (ky * SECOND_IN + kx) * 16, SECOND_GROUP,
		SECOND_IN * 16};
}

__device__ static inline void add_tap(
	float (&d)[16], const uint4 (&a)[STEPS], const struct operand &o)
{
	wgmma_begin();
#pragma unroll
	for (int k = 0; k < STEPS; k++)
		wgmma_half_k(d, a[k], wgmma_operand(o.at + 2 * k * o.row, o.row, o.channels));
}

/* A warpgroup's share of an image, under way: `first` tap and every GROUPS-th one, `n` of them.
 * `error`: a lane's row of its first matrices. */
__device__ static inline void add_image(float (&d)[MINE][16], const struct gradient_shared *s,
	int stage, int first, int n, uint32_t error)
{
	uint4 a[STEPS];
#pragma unroll
	for (int k = 0; k < STEPS; k++)
		a[k] = load_transposed(error + k * (16 * 16));
	if (n == MINE)
		add_tap(d[MINE - 1], a, operand_of(s, stage, first + (MINE - 1) * GROUPS));
#pragma unroll
	for (int i = 0; i < MINE - 1; i++)
		add_tap(d[i], a, operand_of(s, stage, first + i * GROUPS));
	wgmma_commit();
}

/* Sums of a tap: rows are filters, columns channels. */
__device__ static inline void store(float *out, const float (&d)[16], int tap, float down)
{
	const int lane = threadIdx.x % 32, f = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
	for (int i = 0; i < 16; i++) {
		const int c = i / 4 * 8 + lane % 4 * 2 + i % 2;
		if (tap < SECOND_TAPS || c == 0)
			out[(tap * SECOND_CHANNELS + c) * SECOND_FILTERS + f + i / 2 % 2 * 8] =
				d[i] * down;
	}
}

/* blockIdx: x a share of the images, y taps. */
__global__ void __launch_bounds__(THREADS, 1)
	second_gradient_kernel(struct kx_second l, float *partial, int images)
{
	extern __shared__ __align__(128) unsigned char memory[];
	struct gradient_shared *s = reinterpret_cast<struct gradient_shared *>(memory);
	const int lane = threadIdx.x % 32, step = gridDim.x;
	const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); /* as the compiler sees */
	const int first = blockIdx.y * TAPS + group, mine = (TAPS - group + GROUPS - 1) / GROUPS;
	/* matrices: eight filters and the next, then those of the next eight positions */
	const uint32_t error =
		shared_address(s->error) +
		((threadIdx.x / 32 % 4 * 2 + lane / 8 % 2) * CELLS + lane / 16 * 8 + lane % 8) * 16;
	float d[MINE][16] = {}, most = 0;

	for (int i = 0; i < STAGES - 1; i++)
		fetch_image(s, l, i, blockIdx.x + i * step, images);
	if (threadIdx.x < ONES / 4)
		s->ones[threadIdx.x] = 0x3c003c00u;
	await_previous();
	for (int i = threadIdx.x; i < (images + 7) / 8; i += THREADS)
		most = fmaxf(most, l.most[i]);
	const struct power p = power_for(block_most(most, s->most));
	copies_wait<STAGES - 2>();
	if (blockIdx.x < images)
		spread(s->error[0], s->pooled[0], p.up);
	for (int n = blockIdx.x, i = 0; n < images; n += step, i++) {
		copies_wait<STAGES - 2>();
		wgmma_written();
		__syncthreads();
		fetch_image(s, l, i + STAGES - 1, n + (STAGES - 1) * step, images);
		add_image(d, s, i % STAGES, first, mine,
			error + i % 2 * (SECOND_FILTERS / 8 * CELLS * 16));
		copies_wait<STAGES - 2>();
		if (n + step < images)
			spread(s->error[(i + 1) % 2], s->pooled[(i + 1) % STAGES], p.up);
		wgmma_wait();
	}
	partial += KX_OUTER_ROWS(SECOND_TAPS * SECOND_CHANNELS) * SECOND_FILTERS * blockIdx.x;
#pragma unroll
	for (int i = 0; i < MINE; i++)
		if (i < mine)
			store(partial, d[i], first + i * GROUPS, p.down);
}

/* Each of at least two images, for its sums are 200 KB. */
int kx_second_parts(int images)
{
	const int parts = (images + 1) / 2;
	return parts < SECOND_PARTS ? parts : SECOND_PARTS;
}

int kx_second_gradient(struct kx_second l, float *partial, int images, cudaStream_t stream)
{
	const int bytes = (int)sizeof(struct gradient_shared);
	if (cudaFuncSetAttribute(
		    second_gradient_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(second_gradient_kernel, dim3(kx_second_parts(images), HALVES), THREADS,
		bytes, stream, l, partial, images);
}
