/*
 * tiled.cu - rung 6: what is used often is held close. Forward: an image in shared memory, a
 * window's 16 pixels in registers for 32 filters. Backward: one kernel reads the pooled values
 * once for both layers, an fc weight column and all sums in registers.
 */
#include <stdlib.h>
#include "kernels/ladder/host.h"
#include "kernels/ladder/products.h"

#define FORWARD_FILTERS  32
#define FORWARD_THREADS  192 /* POOL_AREA in whole warps */
#define ROW              12  /* 9 weights and a bias, in whole 16 bytes */
#define BACKWARD_FILTERS 4
#define BACKWARD_THREADS 704 /* 4 * POOL_AREA in whole warps */
#define STAGE            4   /* images between two barriers */
#define FULL_CHIP        132 /* blocks: one on each multiprocessor */

static __device__ float pixel(const struct products &p, size_t n, size_t i)
{
	return p.pixels ? (float)p.pixels[(size_t)p.index[n] * IMAGE_AREA + i] * (1 / 255.0f)
			: p.k.images[n * IMAGE_AREA + i];
}

/* ---- forward ----------------------------------------------------------------------------------
 */

static __device__ void load_weights(const struct fused &k, size_t first, float (*weight)[ROW])
{
	for (size_t i = threadIdx.x; i < FORWARD_FILTERS * ROW; i += FORWARD_THREADS) {
		size_t f = first + i / ROW, w = i % ROW;
		int there = f < k.filters && w <= WEIGHTS;
		size_t from = w < WEIGHTS ? f * WEIGHTS + w : image_conv_bias(k.filters) + f;
		weight[i / ROW][w] = there ? k.params[from] : 0;
	}
}

/* Value i (row order) of the window of four whose pixels are `patch`. */
static __device__ float convolve(const float patch[4][4], const float w[ROW], int i)
{
	float sum = w[WEIGHTS];
#pragma unroll
	for (int ky = 0; ky < WINDOW; ky++)
#pragma unroll
		for (int kx = 0; kx < WINDOW; kx++)
			sum += w[ky * WINDOW + kx] * patch[i / 2 + ky][i % 2 + kx];
	return sum;
}

/* Block (32 filters, n): thread o computes pooled value o of each filter. */
static __global__ __launch_bounds__(FORWARD_THREADS) void convolve_kernel(struct products p)
{
	__shared__ float image[IMAGE_AREA];
	__shared__ __align__(16) float weight[FORWARD_FILTERS][ROW];
	size_t n = blockIdx.y, first = (size_t)blockIdx.x * FORWARD_FILTERS, o = threadIdx.x;
	for (size_t i = o; i < IMAGE_AREA; i += FORWARD_THREADS)
		image[i] = pixel(p, n, i);
	load_weights(p.k, first, weight);
	__syncthreads();
	if (o >= POOL_AREA)
		return;
	float patch[4][4];
#pragma unroll
	for (int i = 0; i < 16; i++)
		patch[i / 4][i % 4] = image[(o / POOL_SIDE * 2 + (size_t)i / 4) * IMAGE_SIDE +
					    o % POOL_SIDE * 2 + (size_t)i % 4];
	size_t last = p.k.filters - first < FORWARD_FILTERS ? p.k.filters - first : FORWARD_FILTERS;
	size_t to = (n * p.k.filters + first) * POOL_AREA + o;
	for (size_t f = 0; f < last; f++, to += POOL_AREA) {
		float w[ROW], best = 0;
		uint8_t winner = DEAD;
#pragma unroll
		for (int i = 0; i < ROW; i += 4)
			*(float4 *)(w + i) = *(const float4 *)&weight[f][i];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float sum = convolve(patch, w, i);
			winner = sum > best ? (uint8_t)i : winner;
			best = sum > best ? sum : best;
		}
		p.k.pooled[to] = best;
		p.k.winner[to] = winner;
	}
}

int tiled_convolve(struct gpu *g, const struct products *p, size_t n, struct err *e)
{
	dim3 grid((unsigned)((p->k.filters + FORWARD_FILTERS - 1) / FORWARD_FILTERS), (unsigned)n);
	convolve_kernel<<<grid, FORWARD_THREADS, 0, g->stream>>>(*p);
	LAUNCHED(e);
	return gpu_mark(g, "conv + ReLU + pool", PHASE_KERNEL, e);
}

/* ---- backward ---------------------------------------------------------------------------------
 */

struct stage {
	float image[STAGE][IMAGE_AREA];
	float d_score[STAGE][CLASSES];
};

/* What one thread sums for its pooled value. */
struct sums {
	float fc[CLASSES];
	float conv[WEIGHTS + 1];
};

static __device__ void stage_images(
	const struct products &p, size_t first, size_t n, struct stage *s)
{
	for (size_t i = threadIdx.x; i < n * IMAGE_AREA; i += BACKWARD_THREADS)
		s->image[i / IMAGE_AREA][i % IMAGE_AREA] =
			pixel(p, first + i / IMAGE_AREA, i % IMAGE_AREA);
	for (size_t i = threadIdx.x; i < n * CLASSES; i += BACKWARD_THREADS)
		s->d_score[i / CLASSES][i % CLASSES] = p.k.score[first * CLASSES + i];
}

static __device__ void add_image(struct sums *sum, const float weight[CLASSES],
	const float *d_score, float in, const float *at, int dead)
{
	float d = 0;
#pragma unroll
	for (int c = 0; c < CLASSES; c++) {
		sum->fc[c] += d_score[c] * in;
		d += d_score[c] * weight[c];
	}
	d = dead ? 0 : d;
#pragma unroll
	for (int w = 0; w < WEIGHTS; w++)
		sum->conv[w] += d * at[w / WINDOW * IMAGE_SIDE + w % WINDOW];
	sum->conv[WEIGHTS] += d;
}

/* Sums over the threads of each filter, in a fixed order, into the chunk's row. */
static __device__ void write_conv(const struct sums &sum, size_t first, size_t filters, float *to)
{
	__shared__ float value[BACKWARD_THREADS];
	size_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, f = first + warp;
	for (int w = 0; w <= WEIGHTS; w++) {
		__syncthreads();
		value[threadIdx.x] = sum.conv[w];
		__syncthreads();
		if (warp >= BACKWARD_FILTERS || f >= filters)
			continue;
		float all = 0;
		for (size_t o = lane; o < POOL_AREA; o += 32)
			all += value[warp * POOL_AREA + o];
		all = warp_sum(all);
		if (lane == 0)
			to[w < WEIGHTS ? f * WEIGHTS + (size_t)w : image_conv_bias(filters) + f] =
				all;
	}
}

/* The fc bias is the threads' that have no pooled value, in the blocks of the first filters. */
static __device__ void add_bias(const struct stage &s, size_t n, float *sum)
{
	size_t c = threadIdx.x - BACKWARD_FILTERS * POOL_AREA;
	for (size_t m = 0; m < n && c < CLASSES; m++)
		*sum += s.d_score[m][c];
}

/* Block (4 filters, chunk): a thread for each pooled value, the chunk's images in turn. */
static __global__ __launch_bounds__(BACKWARD_THREADS) void backward_kernel(
	struct products p, size_t n_images, size_t chunk)
{
	__shared__ struct stage s;
	size_t inputs = p.k.filters * POOL_AREA, first = (size_t)blockIdx.x * BACKWARD_FILTERS;
	size_t t = threadIdx.x, o = t % POOL_AREA, i = first * POOL_AREA + t;
	size_t begin = blockIdx.y * chunk;
	size_t end = begin + chunk < n_images ? begin + chunk : n_images;
	size_t fc = image_fc_weight(p.k.filters);
	int works = t < BACKWARD_FILTERS * POOL_AREA && i < inputs;
	float weight[CLASSES], bias = 0;
	struct sums sum = {};
#pragma unroll
	for (int c = 0; c < CLASSES; c++)
		weight[c] = works ? p.k.params[fc + (size_t)c * inputs + i] : 0;
	for (size_t n = begin; n < end; n += STAGE) {
		size_t m = end - n < STAGE ? end - n : STAGE;
		float in[STAGE];
		unsigned winner[STAGE];
#pragma unroll
		for (size_t k = 0; k < STAGE; k++) {
			int there = works && k < m;
			in[k] = there ? p.k.pooled[(n + k) * inputs + i] : 0;
			winner[k] = there ? p.k.winner[(n + k) * inputs + i] : (unsigned)DEAD;
		}
		__syncthreads();
		stage_images(p, n, m, &s);
		__syncthreads();
		if (!works)
			add_bias(s, m, &bias);
#pragma unroll
		for (size_t k = 0; k < STAGE; k++)
			if (works && k < m)
				add_image(&sum, weight, s.d_score[k], in[k],
					&s.image[k][(o / POOL_SIDE * 2 + winner[k] / 2 % 2) *
							    IMAGE_SIDE +
						    o % POOL_SIDE * 2 + winner[k] % 2],
					winner[k] == DEAD);
	}
	float *to = p.part_grad + blockIdx.y * p.k.n_params;
	for (size_t c = 0; c < CLASSES && works; c++)
		to[fc + c * inputs + i] = sum.fc[c];
	if (blockIdx.x == 0 && t - BACKWARD_FILTERS * POOL_AREA < CLASSES)
		to[image_fc_bias(p.k.filters) + t - BACKWARD_FILTERS * POOL_AREA] = bias;
	write_conv(sum, first, p.k.filters, to);
}

int tiled_backward(struct gpu *g, const struct products *p, size_t n, size_t chunks, struct err *e)
{
	dim3 grid((unsigned)((p->k.filters + BACKWARD_FILTERS - 1) / BACKWARD_FILTERS),
		(unsigned)chunks);
	backward_kernel<<<grid, BACKWARD_THREADS, 0, g->stream>>>(*p, n, (n + chunks - 1) / chunks);
	LAUNCHED(e);
	return gpu_mark(g, "backward", PHASE_KERNEL, e);
}

size_t tiled_chunks(const struct products *p, size_t n)
{
	size_t blocks = (p->k.filters + BACKWARD_FILTERS - 1) / BACKWARD_FILTERS;
	return products_chunks(p, n, blocks, FULL_CHIP);
}

/* ---- the rung ---------------------------------------------------------------------------------
 */

struct tiled_rung {
	struct ladder_task task;
	struct gpu gpu;
	struct host_batch host;
	struct host_target input;
	struct products p;
};

static void tiled_close(void *self)
{
	struct tiled_rung *r = (struct tiled_rung *)self;
	gpu_close(&r->gpu);
	host_batch_release(&r->host);
	free(r);
}

static int allocate(struct tiled_rung *r, struct err *e)
{
	size_t n = r->task.max_batch, n_params = r->task.model->n_params;
	int rc = gpu_open(&r->gpu, e);
	if (!rc)
		rc = host_batch_init(&r->host, n, 0, n_params, e);
	if (!rc)
		rc = host_target_init(&r->input, &r->gpu, n, n_params, e);
	r->p.k.params = r->input.params;
	r->p.k.images = r->input.images;
	r->p.k.labels = r->input.labels;
	return rc ? rc : products_allocate(&r->gpu, &r->p, &r->task, e);
}

static int tiled_open(void **self, const struct ladder_task *t, struct err *e)
{
	struct tiled_rung *r = (struct tiled_rung *)mem_try(1, sizeof *r);
	*self = NULL;
	if (!r)
		return err_set(e, PS_ENOMEM, "no memory for a rung");
	r->task = *t;
	int rc = allocate(r, e);
	if (rc)
		tiled_close(r);
	else
		*self = r;
	return rc;
}

static int tiled_step(void *self, const struct ladder_batch *b, float *grad, double *loss,
	struct profile *profile, struct err *e)
{
	struct tiled_rung *r = (struct tiled_rung *)self;
	size_t chunks = tiled_chunks(&r->p, b->n);
	int rc = host_batch_send(&r->host, &r->gpu, &r->task, b, &r->input, profile, e);
	if (!rc)
		rc = tiled_convolve(&r->gpu, &r->p, b->n, e);
	if (!rc)
		rc = products_score(&r->gpu, &r->p, b->n, e);
	if (!rc)
		rc = tiled_backward(&r->gpu, &r->p, b->n, chunks, e);
	if (!rc)
		rc = products_mean(&r->gpu, &r->p, b->n, chunks, e);
	if (!rc)
		rc = host_batch_take(
			&r->host, &r->gpu, b->n, r->p.grad, r->p.k.loss, grad, loss, e);
	return rc;
}

extern "C" const struct rung rung_tiled = {
	.name = "tiled",
	.changes = "Image in shared memory, 16 pixels in registers for 32 filters; one backward "
		   "kernel "
		   "reads the pooled values once for both layers.",
	.predicts =
		"Forward 3.1 GFLOP with 12 multiply-adds a load: 0.12 ms; backward 2.4 GFLOP and "
		"0.22 GB once: 0.15 ms; fc 0.08 ms. 0.35 ms of kernels, but the step is copies: "
		"1.5 ms",
	.needs_gpu = 1,
	.open = tiled_open,
	.step = tiled_step,
	.train = NULL,
	.close = tiled_close,
};
