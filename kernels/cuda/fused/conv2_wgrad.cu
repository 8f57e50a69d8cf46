/*
 * conv2_wgrad.cu - wgrad of conv2. Built for sm_90a.
 *
 * A block computes half of the filter taps and loops over its images. The sums stay in registers.
 * The 64 rows of a product are filters. A warpgroup keeps the dY of these filters in registers for
 * a whole image. The columns are channels, and K is two rows of eight positions. A tap only changes
 * the start address of the pixels in shared memory, so im2col copies nothing. Four warpgroups
 * divide the taps of the block. The bias is one more tap, with ones in place of pixels.
 */
#include "kernels/cuda/base/common.cuh"
#include "kernels/cuda/fused/conv2.cuh"
#include "kernels/cuda/mma/wgmma.cuh"

namespace
{

#define WGRAD_THREADS  512
#define WARPGROUPS     (WGRAD_THREADS / 128)
#define STAGES         3
#define TAP_BLOCKS     2 /* number of blocks that share the taps */
#define TAPS_PER_BLOCK ((CONV2_TAPS + 1) / TAP_BLOCKS)
/* maximum number of taps of a warpgroup */
#define MAX_TAPS   ((TAPS_PER_BLOCK + WARPGROUPS - 1) / WARPGROUPS)
#define OUT_PIXELS (CONV2_OUT * CONV2_OUT)
#define K_STEPS    (OUT_PIXELS / 16) /* number of products per tap and image */
#define CORE_BYTES 128               /* bytes of a core matrix: eight rows of 16 bytes */
#define ONES       2048

/* The pooled dY and argmax of an image. A thread handles two output pixels of a window for four
 * filters. */
struct pooled_dy {
	float4 dy[WGRAD_THREADS];
	uint32_t argmax[WGRAD_THREADS];
};

struct wgrad_shared {
	unsigned char in[STAGES][CONV2_TERM_BYTES];
	struct pooled_dy pooled_dy[STAGES];
	unsigned char dy[2][CONV2_FILTERS / 8][OUT_PIXELS][16]; /* gradient of the pool's input */
	uint32_t ones[ONES / 4];
	float amax[WGRAD_THREADS / 32];
};

/* Copies 4 bytes to shared memory asynchronously. */
__device__ inline void copy_word_async(void *to, const void *from)
{
	uint32_t at = shared_address(to);

	asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

/* A thread handles four filters of two output pixels, one below the other. The thread loads the dY
 * of the pool window of these pixels in wgrad_fetch_image, and scatters this dY in
 * wgrad_scatter_dy. */
struct filter_quad {
	int f, x, y;
};

/* Returns the four filters and the output pixels of this thread. Neighbouring threads handle the
 * two halves of eight filters, and neighbouring pairs of threads handle neighbouring columns. The
 * stores of a warp are therefore in 32 different banks. */
__device__ inline struct filter_quad filter_quad_of_thread()
{
	const int i = threadIdx.x;

	return {i / 16 % (CONV2_FILTERS / 8) * 8 + i % 2 * 4, i / 2 % CONV2_OUT,
		i / (2 * CONV2_FILTERS) * 2};
}

/* Starts the copies of image n of the batch, the i-th image of the block. */
__device__ inline void wgrad_fetch_image(
	struct wgrad_shared *s, const struct kx_conv2 &l, int i, int n, int images)
{
	const struct filter_quad at = filter_quad_of_thread();
	const int stage = i % STAGES, y = at.y / 2, x = at.x / 2;

	if (n < images) {
		const unsigned char *in =
			reinterpret_cast<const unsigned char *>(l.x + (size_t)n * CONV2_IMAGE);
		for (int k = threadIdx.x * 16; k < CONV2_TERM_BYTES; k += WGRAD_THREADS * 16)
			copy_async(s->in[stage] + k, in + k, true);
		copy_async(&s->pooled_dy[stage].dy[threadIdx.x],
			l.dy + n * l.y.image + l.y.origin + y * l.y.row + x * CONV2_FILTERS + at.f,
			true);
		copy_word_async(&s->pooled_dy[stage].argmax[threadIdx.x],
			l.argmax +
				(((size_t)n * CONV2_POOLED + y) * CONV2_POOLED + x) *
					CONV2_FILTERS +
				at.f);
	}
	copies_commit();
}

/* Writes dY before the pool: the thread's four filters of both output pixels. No other thread reads
 * the pooled dY of this thread. */
__device__ inline void wgrad_scatter_dy(
	unsigned char (*to)[OUT_PIXELS][16], const struct pooled_dy &from, float up)
{
	const struct filter_quad at = filter_quad_of_thread();
	const float4 d = from.dy[threadIdx.x];
	const uint32_t which = from.argmax[threadIdx.x];
	const uint32_t lo = two_halves(d.x * up, d.y * up), hi = two_halves(d.z * up, d.w * up);
#pragma unroll
	for (int below = 0; below < 2; below++) {
		const uint32_t out_pixel = 2 * below + at.x % 2;
		uint32_t mask[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			mask[i] = (which >> (8 * i) & 0xff) == out_pixel ? 0xffffu : 0;
		*reinterpret_cast<uint2 *>(
			&to[at.f / 8][(at.y + below) * CONV2_OUT + at.x][at.f % 8 * 2]) = {
			lo & (mask[0] | mask[1] << 16), hi & (mask[2] | mask[3] << 16)};
	}
}

/* The pixels of a tap as B operand: address of the first pixel, strides to the next eight channels
 * and to the next row. */
struct tap_operand {
	uint32_t at, channels, row;
};

__device__ inline struct tap_operand tap_operand_of(
	const struct wgrad_shared *s, int stage, int tap)
{
	const int ky = tap / CONV2_SIZE, kx = tap % CONV2_SIZE;

	if (tap >= CONV2_TAPS)
		return {shared_address(s->ones), 2 * CORE_BYTES, CORE_BYTES};
	return {shared_address(s->in[stage]) + (ky * CONV2_IN + kx) * 16, CONV2_GROUP_BYTES,
		CONV2_IN * 16};
}

__device__ inline void wgrad_add_tap(
	float (&d)[16], const uint4 (&a)[K_STEPS], const struct tap_operand &o)
{
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < K_STEPS; k++)
		wgmma_m64n32k16(d, a[k], wgmma_descriptor(o.at + 2 * k * o.row, o.row, o.channels));
}

/* Starts the products of a warpgroup for one image. The warpgroup has `n` taps: `first` and every
 * WARPGROUPS-th tap after it. `dy` is the address of this lane's row in the warpgroup's first
 * matrices. */
__device__ inline void wgrad_add_image(float (&d)[MAX_TAPS][16], const struct wgrad_shared *s,
	int stage, int first, int n, uint32_t dy)
{
	uint4 a[K_STEPS];
#pragma unroll
	for (int k = 0; k < K_STEPS; k++)
		a[k] = load_transposed(dy + k * (16 * 16));
	if (n == MAX_TAPS)
		wgrad_add_tap(d[MAX_TAPS - 1], a,
			tap_operand_of(s, stage, first + (MAX_TAPS - 1) * WARPGROUPS));
#pragma unroll
	for (int i = 0; i < MAX_TAPS - 1; i++)
		wgrad_add_tap(d[i], a, tap_operand_of(s, stage, first + i * WARPGROUPS));
	wgmma_commit();
}

/* Stores the sums of a tap. Rows are filters, columns are channels. */
__device__ inline void wgrad_store(float *out, const float (&d)[16], int tap, float down)
{
	const int lane = threadIdx.x % 32, f = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
	for (int i = 0; i < 16; i++) {
		const int c = i / 4 * 8 + lane % 4 * 2 + i % 2;

		if (tap < CONV2_TAPS || c == 0)
			out[(tap * CONV2_CHANNELS + c) * CONV2_FILTERS + f + i / 2 % 2 * 8] =
				d[i] * down;
	}
}

/* blockIdx.x selects the images of a block (its split-K slice), and blockIdx.y its taps. */
__global__ void __launch_bounds__(WGRAD_THREADS, 1)
	conv2_wgrad_kernel(struct kx_conv2 l, float *workspace, int images)
{
	extern __shared__ __align__(128) unsigned char memory[];
	struct wgrad_shared *s = reinterpret_cast<struct wgrad_shared *>(memory);
	const int lane = threadIdx.x % 32, step = gridDim.x;
	/* tells the compiler that all threads of a warp have the same value */
	const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
	const int first = blockIdx.y * TAPS_PER_BLOCK + group,
		  mine = (TAPS_PER_BLOCK - group + WARPGROUPS - 1) / WARPGROUPS;
	/* the address of this lane's row of four 8 x 8 matrices: the warp's filters 0 to 7 and 8 to
	 * 15 at eight positions, then the same filters at the next eight */
	const uint32_t dy =
		shared_address(s->dy) + ((threadIdx.x / 32 % 4 * 2 + lane / 8 % 2) * OUT_PIXELS +
						lane / 16 * 8 + lane % 8) *
						16;
	float d[MAX_TAPS][16] = {}, amax = 0;

	for (int i = 0; i < STAGES - 1; i++)
		wgrad_fetch_image(s, l, i, blockIdx.x + i * step, images);
	if (threadIdx.x < ONES / 4)
		s->ones[threadIdx.x] = 0x3c003c00u;
	await_previous();
	for (int i = threadIdx.x; i < (images + 7) / 8; i += WGRAD_THREADS)
		amax = fmaxf(amax, l.dy_amax[i]);
	const struct dy_scale p = dy_scale_for(block_amax(amax, s->amax));
	copies_wait<STAGES - 2>();
	if (blockIdx.x < images)
		wgrad_scatter_dy(s->dy[0], s->pooled_dy[0], p.up);
	for (int n = blockIdx.x, i = 0; n < images; n += step, i++) {
		copies_wait<STAGES - 2>();
		wgmma_fence_smem();
		__syncthreads();
		wgrad_fetch_image(s, l, i + STAGES - 1, n + (STAGES - 1) * step, images);
		wgrad_add_image(d, s, i % STAGES, first, mine,
			dy + i % 2 * (CONV2_FILTERS / 8 * OUT_PIXELS * 16));
		copies_wait<STAGES - 2>();
		if (n + step < images)
			wgrad_scatter_dy(s->dy[(i + 1) % 2], s->pooled_dy[(i + 1) % STAGES], p.up);
		wgmma_wait();
	}
	workspace += KX_WGRAD_ROWS(CONV2_TAPS * CONV2_CHANNELS) * CONV2_FILTERS * blockIdx.x;
#pragma unroll
	for (int i = 0; i < MAX_TAPS; i++)
		if (i < mine)
			wgrad_store(workspace, d[i], first + i * WARPGROUPS, p.down);
}

} // namespace

/* Returns the number of slices of the workspace: one for every two images, at most
 * CONV2_WGRAD_SLICES. A slice has 200 KB, so more slices would cost too much memory traffic. */
int kx_conv2_wgrad_slices(int images)
{
	const int slices = (images + 1) / 2;

	return slices < CONV2_WGRAD_SLICES ? slices : CONV2_WGRAD_SLICES;
}

int kx_conv2_wgrad(struct kx_conv2 l, float *workspace, int images, cudaStream_t stream)
{
	const int bytes = (int)sizeof(struct wgrad_shared);

	if (cudaFuncSetAttribute(
		    conv2_wgrad_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch(conv2_wgrad_kernel, dim3(kx_conv2_wgrad_slices(images), TAP_BLOCKS),
		WGRAD_THREADS, bytes, stream, l, workspace, images);
}
