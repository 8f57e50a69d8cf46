/*
 * seed_cluster.cu - a small batch of the seed nets from pixels to the parts of its gradient in one
 * launch, where three would mostly wait for each other.
 *
 * A cluster of blocks has IMAGES images, each of its blocks a share of the positions and all
 * filters. Between forward and backward the blocks need nothing of each other but what their
 * positions add to the scores: a few hundred floats, read from each other's shared memory. Values
 * and winners stay in the block. Products and sums are those of seed_fprop.cu, eight images
 * at a time, and seed_wgrad.cu.
 */
#include <cooperative_groups.h>
#include "kernels/cuda/fused/seed.cuh"

#define IMAGES  SEED_CLUSTER_IMAGES
#define WARPS   12
#define THREADS (WARPS * 32)
#define FILTERS 32
#define GROUPS  (FILTERS / 8)    /* of filters, a warp each; forward */
#define THIRDS  (WARPS / GROUPS) /* of the block's positions, likewise */
#define PLACES  2                /* positions of a thread; backward */
#define MOST    22               /* positions of a block, 169 / 8 and the rest */
#define IMAGE   (SEED_SIDE * SEED_SIDE)
#define CHUNKS  (IMAGE / 16)
/* Floats from image to image: a warp stores 8 filters x 4 images in 32 banks. */
#define VALUE_ROW 36

struct small_shared {
	uint32_t pairs[IMAGES * IMAGE_WORDS]; /* pixels for the tensor cores ... */
	float pixels[IMAGES * IMAGE];         /* ... and one by one */
	float value[MOST][IMAGES][VALUE_ROW];
	uint8_t winner[MOST][FILTERS][4]; /* two images to a byte, a nibble each */
	float of_warp[WARPS][IMAGES * SEED_CLASSES];
	float of_block[IMAGES * SEED_CLASSES]; /* read by the cluster */
	float errors[IMAGES * SEED_ROW];
};

/* What a block has: images first.. and positions begin.. */
struct share {
	int first, begin, count;
};

__device__ static inline void load_images(
	struct small_shared *to, const struct kx_batch &batch, int step, int first)
{
	for (int i = threadIdx.x; i < IMAGES * CHUNKS; i += THREADS) {
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

/* ---- forward --------------------------------------------------------------------------------- */

/* A warp: eight filters at a third of the positions. A thread: one filter, two images. */
__device__ static inline void forward(
	const struct kx_seed &s, struct small_shared *shared, const struct share &share)
{
	const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
	const int f = warp % GROUPS * 8 + lane / 4, third = warp / GROUPS;
	const int stride = s.f_pad * SEED_ROW;
	float score[2][SEED_CLASSES] = {};
	if (f < s.f_pad) {
		const int at[1][2] = {{conv_pair<3>(0, 0, t), conv_pair<3>(0, 1, t)}};
		const float bias = s.params.conv[f * SEED_ROW + 9];
		struct conv_weights<3> a;
		conv_load(&a, s.fragments, warp % GROUPS, lane);
#pragma unroll 4
		for (int i = share.count * third / THIRDS; i < share.count * (third + 1) / THIRDS;
			i++) {
			const int p = share.begin + i;
			const struct feature_weights w =
				feature_load(s.params.fc + (size_t)p * stride + f * SEED_ROW);
			const uint32_t *patch = shared->pairs + lane / 4 * IMAGE_WORDS +
						p / 13 * (2 * ROW_WORDS) + p % 13;
			float c[2][4] = {};
			uint32_t won[2];
			conv_cells<3>(c, a, patch, at);
#pragma unroll
			for (int e = 0; e < 2; e++) {
				float v = first_maximum(
					c[0][e], c[0][2 + e], c[1][e], c[1][2 + e], &won[e]);
				v = max_or_nan(fmaf(v, CONV_PIXEL, bias), 0);
				shared->value[i][2 * t + e][f] = v;
				score_add(score[e], v, w);
			}
			shared->winner[i][f][t] = (uint8_t)(won[0] | won[1] << 4);
		}
	}
#pragma unroll
	for (int e = 0; e < 2; e++)
		scores_add_filters(score[e], shared->of_warp[warp] + (2 * t + e) * SEED_CLASSES);
	__syncthreads();
	if (threadIdx.x < IMAGES * SEED_CLASSES) {
		float v = 0;
#pragma unroll
		for (int w = 0; w < WARPS; w++)
			v += shared->of_warp[w][threadIdx.x];
		shared->of_block[threadIdx.x] = v;
	}
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* The scores of the cluster's images, into of_warp[0]. */
__device__ static inline void add_blocks(const struct kx_seed &s, struct small_shared *shared)
{
	const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
	if (threadIdx.x < IMAGES * SEED_CLASSES) {
		float v[SEED_CLUSTER], sum = s.params.bias[threadIdx.x % SEED_CLASSES];
#pragma unroll
		for (int r = 0; r < SEED_CLUSTER; r++)
			v[r] = cluster.map_shared_rank(shared->of_block, r)[threadIdx.x];
#pragma unroll
		for (int r = 0; r < SEED_CLUSTER; r++)
			sum += v[r];
		shared->of_warp[0][threadIdx.x] = sum;
	}
}

/* A warp per image. Each block has its own; the cluster's first writes them down. */
__device__ static inline void errors_of(const struct kx_seed &s, const struct kx_batch &batch,
	struct small_shared *shared, int n, int label, bool write)
{
	const unsigned all = 0xffffffffu;
	const int lane = threadIdx.x % 32, image = threadIdx.x / 32;
	const bool real = lane < SEED_CLASSES;
	const float v = shared->of_warp[0][image * SEED_CLASSES + (real ? lane : 0)];
	float most = v;
	for (int d = 16; d; d /= 2)
		most = max_or_nan(most, __shfl_xor_sync(all, most, d));
	const float power = expf(v - most);
	float sum = real ? power : 0;
	for (int d = 16; d; d /= 2)
		sum += __shfl_xor_sync(all, sum, d);
	const bool here = n < batch.images;
	const float error = real && here ? (power / sum - (lane == label)) / batch.images : 0;
	if (lane < SEED_ROW)
		shared->errors[image * SEED_ROW + lane] = error;
	if (!write || !here)
		return;
	if (lane < SEED_ROW)
		s.d_scores[n * SEED_ROW + lane] = error;
	if (lane == label)
		s.loss[n] = logf(sum) - (v - most);
}

/* ---- backward -------------------------------------------------------------------------------- */

struct sums {
	float fc[PLACES][SEED_CLASSES];
	float conv[9], bias;
};

/* `patch`: where in shared memory the winning cell's first pixel lies. */
__device__ static inline void add_feature(struct sums *sum, const float (&w)[SEED_CLASSES],
	int place, uint32_t patch, float v, const float (&error)[SEED_ROW])
{
	float d = 0;
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		d = fmaf(error[c], w[c], d);
	d = v > 0 ? d : 0;
#pragma unroll
	for (int c = 0; c < SEED_CLASSES; c++)
		sum->fc[place][c] = fmaf(v, error[c], sum->fc[place][c]);
#pragma unroll
	for (int k = 0; k < 9; k++)
		sum->conv[k] =
			fmaf(d, load_shared(patch + (k / 3 * SEED_SIDE + k % 3) * 4), sum->conv[k]);
	sum->bias += d;
}

/* A thread's filter at its positions, images one after the other. */
__device__ static inline void backward(struct sums *sum, const float (&w)[PLACES][SEED_CLASSES],
	const struct small_shared *shared, int f, const int (&place)[PLACES],
	const uint32_t (&patch)[PLACES])
{
	uint32_t won[PLACES];
#pragma unroll
	for (int i = 0; i < PLACES; i++)
		won[i] = *reinterpret_cast<const uint32_t *>(shared->winner[place[i]][f]);
#pragma unroll
	for (int image = 0; image < IMAGES; image++) {
		float error[SEED_ROW];
#pragma unroll
		for (int q = 0; q < SEED_ROW; q++)
			error[q] = shared->errors[image * SEED_ROW + q];
#pragma unroll
		for (int i = 0; i < PLACES; i++) {
			/* bytes from a patch's first pixel to that of cell 0..3 */
			const uint32_t offsets =
				__byte_perm(0x74700400u, 0, won[i] >> (16 * (image / 4)));
			add_feature(sum, w[i], i,
				__dp4a(offsets, 1u << (8 * (image % 4)), patch[i]) +
					image * (IMAGE * 4),
				shared->value[place[i]][image][f], error);
		}
	}
}

/* blockIdx: the cluster, and which of its blocks. */
__global__ void __launch_bounds__(THREADS, 1)
	small_kernel(struct kx_seed s, struct kx_batch batch, int step)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct small_shared *shared = reinterpret_cast<struct small_shared *>(memory);
	const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
	const int rank = blockIdx.x % SEED_CLUSTER, split = blockIdx.x / SEED_CLUSTER;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int f = min(lane, s.f_pad - 1); /* a lane past the last filter does it once more */
	const int begin = SEED_POSITIONS * rank / SEED_CLUSTER;
	const struct share share = {
		split * IMAGES, begin, SEED_POSITIONS * (rank + 1) / SEED_CLUSTER - begin};
	const int n = share.first + warp;
	const int label = batch.labels[seed_number(batch, step, min(n, batch.images - 1))];
	bool wanted[PLACES];
	int place[PLACES];
	uint32_t patch[PLACES];
	float w[PLACES][SEED_CLASSES];
	struct sums sum = {};

	load_images(shared, batch, step, share.first);
#pragma unroll
	for (int i = 0; i < PLACES; i++) {
		wanted[i] = warp * PLACES + i < share.count && lane < s.f_pad;
		place[i] = min(warp * PLACES + i, share.count - 1);
		const int p = share.begin + place[i];
		patch[i] =
			shared_address(shared->pixels) + (p / 13 * 2 * SEED_SIDE + p % 13 * 2) * 4;
	}
	__syncthreads();
	await_previous();
	forward(s, shared, share);
#pragma unroll
	for (int i = 0; i < PLACES; i++) {
		const size_t p = (size_t)share.begin + place[i];
#pragma unroll
		for (int c = 0; c < SEED_CLASSES; c++)
			w[i][c] = wanted[i] ? s.params.fc[(p * s.f_pad + f) * SEED_ROW + c] : 0;
	}
	cluster.sync();
	add_blocks(s, shared);
	cluster.barrier_arrive(); /* the others' shared memory is not read any more */
	__syncthreads();
	if (warp < IMAGES)
		errors_of(s, batch, shared, n, label, rank == 0);
	__syncthreads();
	backward(&sum, w, shared, f, place, patch);
#pragma unroll
	for (int i = 0; i < PLACES; i++)
		if (wanted[i])
			seed_fc_out(s, sum.fc[i], 1, split, share.begin + place[i], f);
	seed_conv_out<WARPS>(s, sum.conv, sum.bias, shared->pixels, 0, blockIdx.x);
	cluster.barrier_wait();
}

int kx_seed_small(struct kx_seed s, struct kx_batch batch, int step, cudaStream_t stream)
{
	const int clusters = kx_seed_cut(s.f_pad, s.low, batch.images).clusters;
	const int bytes = (int)sizeof(struct small_shared);
	if (cudaFuncSetAttribute(small_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
		return PS_EDEVICE;
	return kx_launch_clusters(small_kernel, dim3(clusters * SEED_CLUSTER), SEED_CLUSTER,
		THREADS, bytes, stream, s, batch, step);
}
