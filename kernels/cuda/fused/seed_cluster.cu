/*
 * seed_cluster.cu - the cluster kernel: computes a small batch of a small seed network from pixels
 * to gradient slices in one launch. With three launches, most of the time would be launch latency.
 *
 * A cluster of blocks handles SEED_CLUSTER_IMAGES images. Each block handles all filters at a range
 * of the positions. Between fprop and wgrad the blocks exchange only the partial logits of their
 * positions. The partial logits of a block are a few hundred floats, which the other blocks read
 * from its shared memory. The outputs of the max-pool and their argmax stay in the shared memory of
 * the block that computed them. The kernel uses the arithmetic of seed_fprop.cu (for eight images
 * at a time) and of seed_wgrad.cu.
 */
#include <cooperative_groups.h>
#include "kernels/cuda/fused/seed.cuh"

namespace
{

#define CLUSTER_WARPS   12
#define CLUSTER_THREADS (CLUSTER_WARPS * 32)
#define CLUSTER_FILTERS 32
#define FILTER_GROUPS   (CLUSTER_FILTERS / 8)           /* fprop: number of groups of 8 filters */
#define THIRDS          (CLUSTER_WARPS / FILTER_GROUPS) /* fprop: number of ranges of positions */
#define WARP_POSITIONS  2                               /* wgrad: number of positions of a warp */
/* maximum number of positions of a block: 169 / 8, rounded up */
#define MAX_POSITIONS 22
#define IMAGE_PIXELS  (SEED_SIDE * SEED_SIDE)
#define CHUNKS        (IMAGE_PIXELS / 16)
/* The stride from one image to the next, in floats. With this stride, the 8 filters x 4 images that
 * a warp stores are in 32 different banks. */
#define VALUE_STRIDE 36

struct cluster_shared {
	uint32_t pairs[SEED_CLUSTER_IMAGES * IMAGE_WORDS]; /* pixels as mma operands */
	float pixels[SEED_CLUSTER_IMAGES * IMAGE_PIXELS];  /* pixels as floats */
	float value[MAX_POSITIONS][SEED_CLUSTER_IMAGES][VALUE_STRIDE];
	/* argmax of the pool windows; each byte has those of two images */
	uint8_t argmax[MAX_POSITIONS][CLUSTER_FILTERS][4];
	float warp_logits[CLUSTER_WARPS][SEED_CLUSTER_IMAGES * SEED_CLASSES];
	/* partial logits of this block, which the other blocks of the cluster read */
	float block_logits[SEED_CLUSTER_IMAGES * SEED_CLASSES];
	float d_logits[SEED_CLUSTER_IMAGES * SEED_ROW];
};

/* The tile of a block: images from `first` on, and `count` positions from `begin` on. */
struct block_tile {
	int first, begin, count;
};

__device__ inline void cluster_load_images(
	struct cluster_shared *to, const struct kx_batch &batch, int step, int first)
{
	for (int i = threadIdx.x; i < SEED_CLUSTER_IMAGES * CHUNKS; i += CLUSTER_THREADS) {
		const int n = first + i / CHUNKS;
		uint4 v = {};

		if (n < batch.images)
			v = reinterpret_cast<const uint4 *>(seed_image(batch, step, n))[i % CHUNKS];
		const uint32_t word[4] = {v.x, v.y, v.z, v.w};
		conv_put(to->pairs, i, v);
#pragma unroll
		for (int k = 0; k < 4; k++)
			reinterpret_cast<float4 *>(to->pixels)[4 * i + k] = {pixel_of(word[k], 0),
				pixel_of(word[k], 1), pixel_of(word[k], 2), pixel_of(word[k], 3)};
	}
}

/* ---- fprop ----------------------------------------------------------------------------------- */

/* A warp handles eight filters at a third of the positions. A thread handles one filter and two
 * images. */
__device__ inline void cluster_fprop(
	const struct kx_seed &s, struct cluster_shared *shared, const struct block_tile &tile)
{
	const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
	const int f = warp % FILTER_GROUPS * 8 + lane / 4, third = warp / FILTER_GROUPS;
	const int stride = s.f_pad * SEED_ROW;
	float logits[2][SEED_CLASSES] = {};

	if (f < s.f_pad) {
		const int at[1][2] = {{conv_pair<3>(0, 0, t), conv_pair<3>(0, 1, t)}};
		const float bias = s.params.conv[f * SEED_ROW + 9];
		struct conv_weights<3> a;

		conv_load(&a, s.fragments, warp % FILTER_GROUPS, lane);
#pragma unroll 4
		for (int i = tile.count * third / THIRDS; i < tile.count * (third + 1) / THIRDS;
			i++) {
			const int p = tile.begin + i;

			const struct feature_weights w =
				feature_load(s.params.fc + (size_t)p * stride + f * SEED_ROW);
			const uint32_t *patch = shared->pairs + lane / 4 * IMAGE_WORDS +
						p / 13 * (2 * ROW_WORDS) + p % 13;
			float c[2][4] = {};
			uint32_t which[2];
			conv_window<3>(c, a, patch, at);
#pragma unroll
			for (int e = 0; e < 2; e++) {
				float v = max4_argmax(
					c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &which[e]);

				v = max_or_nan(fmaf(v, CONV_PIXEL, bias), 0);
				shared->value[i][2 * t + e][f] = v;
				logits_add(logits[e], v, w);
			}
			shared->argmax[i][f][t] = (uint8_t)(which[0] | which[1] << 4);
		}
	}
#pragma unroll
	for (int e = 0; e < 2; e++)
		logits_reduce_filters(
			logits[e], shared->warp_logits[warp] + (2 * t + e) * SEED_CLASSES);
	__syncthreads();
	if (threadIdx.x < SEED_CLUSTER_IMAGES * SEED_CLASSES) {
		float v = 0;
#pragma unroll
		for (int w = 0; w < CLUSTER_WARPS; w++)
			v += shared->warp_logits[w][threadIdx.x];
		shared->block_logits[threadIdx.x] = v;
	}
}

/* ---- dgrad ----------------------------------------------------------------------------------- */

/* Adds up the logits of the cluster's images and writes them to warp_logits[0]. */
__device__ inline void cluster_reduce_logits(const struct kx_seed &s, struct cluster_shared *shared)
{
	const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();

	if (threadIdx.x < SEED_CLUSTER_IMAGES * SEED_CLASSES) {
		float v[SEED_CLUSTER], sum = s.params.bias[threadIdx.x % SEED_CLASSES];
#pragma unroll
		for (int r = 0; r < SEED_CLUSTER; r++)
			v[r] = cluster.map_shared_rank(shared->block_logits, r)[threadIdx.x];
#pragma unroll
		for (int r = 0; r < SEED_CLUSTER; r++)
			sum += v[r];
		shared->warp_logits[0][threadIdx.x] = sum;
	}
}

/* One warp computes softmax, d_logits and loss of an image. Every block of the cluster computes all
 * three; block 0 also writes them to global memory. */
__device__ inline void cluster_softmax(const struct kx_seed &s, const struct kx_batch &batch,
	struct cluster_shared *shared, int n, int label, bool write)
{
	const unsigned all = 0xffffffffu;
	const int lane = threadIdx.x % 32, image = threadIdx.x / 32;
	const bool real = lane < SEED_CLASSES;
	const float v = shared->warp_logits[0][image * SEED_CLASSES + (real ? lane : 0)];
	float max_logit = v;

	for (int d = 16; d; d /= 2)
		max_logit = max_or_nan(max_logit, __shfl_xor_sync(all, max_logit, d));
	const float exp_logit = expf(v - max_logit);
	float sum = real ? exp_logit : 0;
	for (int d = 16; d; d /= 2)
		sum += __shfl_xor_sync(all, sum, d);
	const bool real_image = n < batch.images;
	const float dy =
		real && real_image ? (exp_logit / sum - (lane == label)) / batch.images : 0;
	if (lane < SEED_ROW)
		shared->d_logits[image * SEED_ROW + lane] = dy;
	if (!write || !real_image)
		return;
	if (lane < SEED_ROW)
		s.d_logits[n * SEED_ROW + lane] = dy;
	if (lane == label)
		s.loss[n] = logf(sum) - (v - max_logit);
}

/* ---- wgrad ----------------------------------------------------------------------------------- */

struct cluster_sums {
	float fc[WARP_POSITIONS][SEED_CLASSES];
	float conv[9], bias;
};

/* Adds the gradients of one feature to the sums. `patch` is the shared-memory address of the first
 * pixel under the argmax. */
__device__ inline void cluster_add_feature(struct cluster_sums *sum, const float (&w)[SEED_CLASSES],
	int pos, uint32_t patch, float v, const float (&dy)[SEED_ROW])
{
	float d = 0;
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		d = fmaf(dy[c], w[c], d);
	d = v > 0 ? d : 0;
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		sum->fc[pos][c] = fmaf(v, dy[c], sum->fc[pos][c]);
#pragma unroll
	for (int k = 0; k < 9; k++)
		sum->conv[k] =
			fmaf(d, load_shared(patch + (k / 3 * SEED_SIDE + k % 3) * 4), sum->conv[k]);
	sum->bias += d;
}

/* Adds the gradients of the thread's filter at the thread's positions to the sums, image by
 * image. */
__device__ inline void cluster_wgrad(struct cluster_sums *sum,
	const float (&w)[WARP_POSITIONS][SEED_CLASSES], const struct cluster_shared *shared, int f,
	const int (&pos)[WARP_POSITIONS], const uint32_t (&patch)[WARP_POSITIONS])
{
	uint32_t which[WARP_POSITIONS];
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++)
		which[i] = *reinterpret_cast<const uint32_t *>(shared->argmax[pos[i]][f]);
#pragma unroll
	for (int image = 0; image < SEED_CLUSTER_IMAGES; image++) {
		float dy[SEED_ROW];
#pragma unroll
		for (int q = 0; q < SEED_ROW; q++)
			dy[q] = shared->d_logits[image * SEED_ROW + q];
#pragma unroll
		for (int i = 0; i < WARP_POSITIONS; i++) {
			/* byte offsets of output pixels 0 to 3 in the patch */
			const uint32_t offsets =
				__byte_perm(0x74700400u, 0, which[i] >> (16 * (image / 4)));
			cluster_add_feature(sum, w[i], i,
				__dp4a(offsets, 1u << (8 * (image % 4)), patch[i]) +
					image * (IMAGE_PIXELS * 4),
				shared->value[pos[i]][image][f], dy);
		}
	}
}

/* blockIdx.x is cluster * SEED_CLUSTER + rank of the block in the cluster. */
__global__ void __launch_bounds__(CLUSTER_THREADS, 1)
	seed_cluster_kernel(struct kx_seed s, struct kx_batch batch, int step)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct cluster_shared *shared = reinterpret_cast<struct cluster_shared *>(memory);
	const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
	const int rank = blockIdx.x % SEED_CLUSTER, split = blockIdx.x / SEED_CLUSTER;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	/* lanes without a filter of their own repeat the last filter */
	const int f = min(lane, s.f_pad - 1);
	const int begin = SEED_POSITIONS * rank / SEED_CLUSTER;
	const struct block_tile tile = {split * SEED_CLUSTER_IMAGES, begin,
		SEED_POSITIONS * (rank + 1) / SEED_CLUSTER - begin};
	const int n = tile.first + warp;
	const int label = batch.labels[seed_number(batch, step, min(n, batch.images - 1))];
	bool valid[WARP_POSITIONS];
	int pos[WARP_POSITIONS];
	uint32_t patch[WARP_POSITIONS];
	float w[WARP_POSITIONS][SEED_CLASSES];
	struct cluster_sums sum = {};

	cluster_load_images(shared, batch, step, tile.first);
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++) {
		valid[i] = warp * WARP_POSITIONS + i < tile.count && lane < s.f_pad;
		pos[i] = min(warp * WARP_POSITIONS + i, tile.count - 1);
		const int p = tile.begin + pos[i];
		patch[i] =
			shared_address(shared->pixels) + (p / 13 * 2 * SEED_SIDE + p % 13 * 2) * 4;
	}
	__syncthreads();
	await_previous();
	cluster_fprop(s, shared, tile);
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++) {
		const size_t p = (size_t)tile.begin + pos[i];
#pragma unroll
		for (int c = 0; c < SEED_CLASSES; c++)
			w[i][c] = valid[i] ? s.params.fc[(p * s.f_pad + f) * SEED_ROW + c] : 0;
	}
	cluster.sync();
	cluster_reduce_logits(s, shared);
	/* this block no longer reads the shared memory of the other blocks */
	cluster.barrier_arrive();
	__syncthreads();
	if (warp < SEED_CLUSTER_IMAGES)
		cluster_softmax(s, batch, shared, n, label, rank == 0);
	__syncthreads();
	cluster_wgrad(&sum, w, shared, f, pos, patch);
#pragma unroll
	for (int i = 0; i < WARP_POSITIONS; i++)
		if (valid[i])
			seed_store_fc_wgrad(s, sum.fc[i], 1, split, tile.begin + pos[i], f);
	seed_store_conv_wgrad<CLUSTER_WARPS>(s, sum.conv, sum.bias, shared->pixels, 0, blockIdx.x);
	cluster.barrier_wait();
}

} // namespace

int kx_seed_cluster(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	const int clusters = kx_seed_tiling(s.f_pad, s.half, batch.images).clusters;
	const int bytes = (int)sizeof(struct cluster_shared);

	if (cudaFuncSetAttribute(
		    seed_cluster_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch_clusters(seed_cluster_kernel, dim3(clusters * SEED_CLUSTER), SEED_CLUSTER,
		CLUSTER_THREADS, bytes, stream, s, batch, step);
}
