/*
 * seed_persistent.cu - steps of training of the seed nets in low precision with all of the net in
 * the multiprocessors: one launch, however many steps.
 *
 * A block has eight filters at a part of the positions, and of these, for as long as the launch
 * lasts, the weights, and in each step the pixels and values of all images. So a gradient needs no
 * parts of it in memory but the conv's, and nothing waits for a launch. Blocks tell each other
 * three things a step:
 *   what each adds to the scores, to an image's block, which sums them up
 *   its errors, to all blocks
 *   the conv's gradient at a part of the positions, to the blocks of the same filters
 * in words that carry the number of the step they are of, so that who waits for a word reads it
 * until it is there, and no fence and no counter is in between. A word is written anew when all who
 * read it have answered with what it made of it. Each sum is in a fixed order. The launch is
 * cooperative: all blocks run at once.
 *
 * Products, layouts and scales are those of seed_half_fprop.cu and seed_half_wgrad.cu, but
 * the error's gate and cell come from the value that was kept; and an error, p - y, is at most 1,
 * so that all are scaled by 2^15, and fc weights by their sums to 1.
 */
#include "kernels/cuda/fused/seed_persistent_wgrad.cuh"
#include "kernels/cuda/fused/seed_persistent_ll.cuh"
#include "kernels/cuda/fused/seed_persistent_weights.cuh"

/* ---- before the first step ------------------------------------------------------------------- */

/* What is read though nobody writes it: of missing images and positions, and of idle warps. */
__device__ static inline void put_zeros(struct resident *shared)
{
	for (int i = threadIdx.x; i < TWOS * 32; i += THREADS)
		shared->scoring[0][i] = {};
	for (int i = threadIdx.x; i < TILES * TILE * 8; i += THREADS)
		shared->by_image[0][i] = 0;
	for (int i = threadIdx.x; i < TILES * TILE / 2 * 24; i += THREADS)
		shared->by_class[0][i] = 0;
	for (int i = threadIdx.x; i < (int)(sizeof shared->score / sizeof(float)); i += THREADS)
		(&shared->score[0][0][0][0])[i] = 0;
}

__device__ static inline void put_tables(struct resident *shared, const struct share &share)
{
	const int i = threadIdx.x;
	if (i == 0) {
		shared->high = ~3u;
		__mbarrier_init(&shared->fetched, 1);
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	}
	if (i < share.tiles)
		shared->adders[i] = find_adders(share, i);
	if (i < share.twos)
		shared->workers[i] = find_workers(share, i);
	if (i < WARPS)
		shared->first_two[i] = find_first_two(share, i);
	if (i < PLACES) {
		const int p = share.begin + min(i, share.count - 1);
		shared->place[i] = (p / 13 * 2 - share.first_row) * ROW_WORDS + p % 13;
	}
}

/* Weights but the fc's. */
__device__ static inline void load_weights(
	struct resident *shared, const struct kx_seed &s, const struct share &share)
{
	const int i = threadIdx.x;
	if (i < CONV_VALUES) {
		(&shared->conv[0][0])[i] = s.params.conv[share.group * CONV_VALUES + i];
		(&shared->conv_sum[0][0])[i] = 0;
	}
	if (i < SEED_ROW) {
		shared->bias[i] = s.params.bias[i];
		shared->bias_sum[i] = 0;
	}
	__syncthreads();
	if (i / 32 < FILTERS)
		put_fragments(shared, i / 32);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* A launch. */
struct run {
	struct kx_seed s;
	struct kx_batch batch;
	struct kx_now *now; /* NULL: a gradient alone */
	double *loss;
	int parts, steps;
};

/* Everybody's errors. Returns the loss of the warp's image, in one of its lanes. */
__device__ static inline float exchange(struct resident *shared, const struct run &run, int step,
	int label, uint32_t after, uint32_t number)
{
	const struct share &share = shared->share;
	const int warp = threadIdx.x / 32;
	float loss = 0;
	tell_scores(run.s, shared, share, number);
	await_scores(run.s, shared, share, number);
	__syncwarp(); /* lanes leave their loops one by one */
	__syncthreads();
	if (warp < share.owned)
		loss = make_errors(run.s, shared, label, number);
	if (step + 1 < run.steps)
		fetch_pixels(shared, run.batch, share, shared->number[(step + 1) % 2]);
	if (threadIdx.x < share.images)
		shared->number[step % 2][threadIdx.x] = after;
	await_errors(run.s, shared, share, number);
	__syncwarp();
	__syncthreads();
	return loss;
}

#define FOR_TWOS(i, two)                                                                           \
	_Pragma("unroll 1") for (int i = 0, two = threadIdx.x / 32; two < share.twos;              \
				 i++, two += WARPS)

/* From the block's gradients to new weights. */
__device__ static inline void descend(struct resident *shared, const struct run &run,
	volatile struct owned *mine, float error, float rate, int step, uint32_t number)
{
	const struct share &share = shared->share;
	struct seed_word *conv = run.s.exchange.conv + share.group * run.parts * CONV_WORDS;
	tell_conv(conv + share.part * CONV_WORDS, shared, number);
	FOR_TWOS(i, two)
	{
		struct owned o = fetched(mine[i]);
		descend_fc(&o, shared, share, two, shared->scale[threadIdx.x % 32 / 4].unit * error,
			rate);
		put_pushing(shared, o, two);
		put_away(mine[i], o);
	}
	if (threadIdx.x / 32 == WARPS - 1)
		descend_bias(shared, share.images, rate);
	if (step + 1 < run.steps)
		put_pixels(shared, share, step % 2 == 0);
	await_conv(shared, conv, run.parts, number);
	__syncwarp();
	__syncthreads();
	descend_conv(shared, rate);
	__syncthreads();
	FOR_TWOS(i, two)
	put_scoring(shared, fetched(mine[i]), two);
	__syncthreads();
}

/* ---- after the last one ---------------------------------------------------------------------- */

/* Back to memory, by the block that is a group's first, and the first of all. */
__device__ static inline void finish(
	const struct resident *shared, const struct kx_seed &s, const struct share &share)
{
	const int i = threadIdx.x, at = share.group * FILTERS * SEED_ROW + i;
	if (share.part > 0)
		return;
	if (i < FILTERS * SEED_ROW) {
		s.params.conv[at] = (&shared->conv[0][0])[i];
		s.sum.conv[at] += (&shared->conv_sum[0][0])[i];
	}
	if (i < 256)
		seed_fragment(s, share.group, shared->conv[0], i);
	if (blockIdx.x == 0 && i < SEED_ROW) {
		s.params.bias[i] = shared->bias[i];
		s.sum.bias[i] += shared->bias_sum[i];
	}
}

/* Losses of the blocks' images to the first block's first warp, which ends the launch. */
__device__ static inline void end(
	const struct run &run, const struct share &share, double loss, uint32_t number)
{
	const int warp = threadIdx.x / 32;
	if (warp < share.owned)
		tell_loss(run.s.exchange.losses + blockIdx.x + warp * gridDim.x, loss, number);
	if (blockIdx.x > 0 || warp > 0)
		return;
	loss = await_losses(run.s.exchange.losses, share.images, number);
	if (threadIdx.x > 0)
		return;
	*run.s.exchange.steps = number; /* everybody has read it: they were all heard */
	if (run.now) {
		run.now->step += run.steps;
		*run.loss += loss;
	} else {
		*run.loss = loss / share.images;
	}
}

/* blockIdx: groups of filters x parts of the positions. */
__global__ void __launch_bounds__(THREADS, 1) resident_kernel(struct run run)
{
	extern __shared__ __align__(16) unsigned char memory[];
	struct resident *shared = reinterpret_cast<struct resident *>(memory);
	const struct share &share = shared->share;
	const int i = threadIdx.x, own = blockIdx.x + i / 32 * gridDim.x;
	const float error = 1 / (ERROR_SCALE * run.batch.images);
	const float rate = run.now ? run.now->rate : 0;
	uint32_t number = __ldcg(run.s.exchange.steps);
	double loss = 0;
	/* in local memory, on purpose: forward and backward want the registers */
	volatile struct owned mine[(TWOS + WARPS - 1) / WARPS];
	if (i == 0)
		shared->share = share_of(run.parts, run.batch.images);
	put_zeros(shared);
	__syncthreads();
	put_tables(shared, share);
	for (int step = 0; step < 2 && step < run.steps && i < share.images; step++)
		shared->number[step][i] = (uint32_t)seed_number(run.batch, step, i);
	load_weights(shared, run.s, share);
	fetch_pixels(shared, run.batch, share, shared->number[0]);
	FOR_TWOS(k, two)
	{
		struct owned o;
		load_owned(&o, run.s, share, two);
		put_pushing(shared, o, two);
		put_scoring(shared, o, two);
		put_away(mine[k], o);
	}
	put_pixels(shared, share, false);
	__syncthreads();
	for (int step = 0; step < run.steps; step++) {
		int label = 0;
		uint32_t after = 0; /* number of an image of the step after next */
		number++;
		if (i / 32 < share.owned)
			label = run.batch.labels[shared->number[step % 2][own]];
		if (step + 2 < run.steps && i < share.images)
			after = (uint32_t)seed_number(run.batch, step + 2, i);
		forward(shared, share);
		__syncthreads();
		loss += exchange(shared, run, step, label, after, number);
		struct found found = {};
		backward(&found, shared, share);
		__syncthreads(); /* the values' place is wanted */
		put_found(shared, found, error);
		__syncthreads();
		descend(shared, run, mine, error, rate, step, number);
	}
	FOR_TWOS(k, two)
	store_owned(fetched(mine[k]), run.s, share, two);
	finish(shared, run.s, share);
	end(run, share, loss, number);
}

/* ---- the host's side ------------------------------------------------------------------------- */

int kx_seed_resident_parts(struct kx_seed s, int images)
{
	const int groups = s.f_pad / FILTERS;
	const int blocks = s.multiprocessors < MOST_BLOCKS ? s.multiprocessors : MOST_BLOCKS;
	const int parts = blocks / groups < MOST_PARTS ? blocks / groups : MOST_PARTS;
	if (!s.low || images > SEED_RESIDENT_IMAGES || parts < LEAST_PARTS)
		return 0;
	return images <= groups * parts * WARPS ? parts : 0;
}

int kx_seed_resident(struct kx_seed s, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream)
{
	const struct run run = {
		s, batch, now, loss, kx_seed_resident_parts(s, batch.images), steps};
	const int bytes = (int)sizeof(struct resident);
	cudaLaunchAttribute attribute = {};
	cudaLaunchConfig_t config = {};
	attribute.id = cudaLaunchAttributeCooperative;
	attribute.val.cooperative = 1;
	config.gridDim = dim3(s.f_pad / FILTERS * run.parts);
	config.blockDim = dim3(THREADS);
	config.dynamicSmemBytes = bytes;
	config.stream = stream;
	config.attrs = &attribute;
	config.numAttrs = 1;
	if (cudaFuncSetAttribute(
		    resident_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) ||
		cudaLaunchKernelEx(&config, resident_kernel, run))
		return PS_EDEVICE;
	return KX_LAUNCHED();
}
