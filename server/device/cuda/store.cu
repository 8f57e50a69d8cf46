/*
 * store.cu - the store module for GPUs of NVIDIA (server/device/module.h).
 *
 * The GPU reads gradients directly from page-locked memory of the host and writes the new weights
 * both to its own memory and to page-locked memory of the host, in one kernel for each piece of
 * PIECE values. Other memory of the host is copied through page-locked buffers, piece by piece,
 * while the GPU works on the previous piece. A CUDA event after each piece shows how many of the
 * new weights are valid.
 *
 * If the server defers the copies of the weights, an update writes only memory of the GPU. Workers
 * then exchange gradients and weights from GPU to GPU: a kernel reads or writes the memory of the
 * other GPU over NVLink, and computes the checksum, the sum of squares and the largest magnitude in
 * the same pass. Passes over gradients have a stream of their own, so that the GPU reads the next
 * gradients while it updates the weights.
 *
 * For a checkpoint, the GPU copies weights and state within its own memory, between two updates. A
 * stream of its own moves this copy to the host while updates continue.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <unistd.h>
#include "common/engine.h"
#include "common/gpu_memory.h"
#include "common/xxh3_lane.h"
#include "server/device/module.h"
#include "server/device/step.h"

namespace
{

/* the GPU computes an update in pieces of this number of values */
constexpr size_t PIECE = (size_t)128 << 10;
constexpr int THREADS = 256;
/* bytes of each page-locked buffer through which `kept` copies */
constexpr size_t STAGED = (size_t)8 << 20;

/* This struct has the results of a pass, in page-locked memory. */
struct pass_done {
	uint64_t xxh3;
	double squares;
	uint32_t peak;
	uint32_t number; /* number of the pass that has written these results */
};

/* This struct describes working memory for passes; only one pass uses it at a time. All members but
 * `done` point to memory of the GPU. */
struct pass_room {
	uint64_t *sums;  /* the sums of each block of XXH3 except the last one */
	double *squares; /* the sum of the squares of each block of ENGINE_BLOCK values */
	uint32_t *peak;  /* the largest magnitude in each such block */
	/* for each such block, the number of the newest pass that has completed it */
	uint32_t *ready;
	struct pass_done *done;
	uint32_t number; /* number of the newest pass */
};

struct gpu {
	int number;
	size_t n, vectors;
	float *weights, *state[PARAM_DEVICE_VECTORS]; /* memory of the GPU */
	/* the private copies of gradients of other processes, and the memory of the passes that
	 * make these copies and the copies of weights */
	float *copy[STORE_COPIES];
	struct pass_room take[STORE_COPIES], give[STORE_GIVES];
	cudaStream_t takes;     /* the stream of the passes that make private copies */
	void *pass_memory;      /* memory of the GPU for all passes */
	struct pass_done *done; /* page-locked: the results of all passes */
	/* numbers of updates. update: the newest; completed: the newest that the GPU is known to
	 * have completed; reads: the newest that reads each private copy; gives: the newest before
	 * each copy of weights */
	uint64_t update, completed, reads[STORE_COPIES], gives[STORE_GIVES];
	int reads_host; /* 1: the update under way reads a gradient in memory of the host */
	struct gpu_memory_driver driver;
	char no_import[200]; /* why memory of other processes cannot be mapped; "": it can */
	/* page-locked buffers of n values for gradients and new weights; NULL: not allocated yet */
	float *in, *out;
	cudaStream_t stream;

	/* The copy that `keep` has made: the weights and the state, one vector after the other, in
	 * memory of the GPU, or NULL. `kept` copies it through two page-locked buffers. */
	float *shadow;
	char *staged[2];
	cudaEvent_t has_shadow, is_staged[2];
	cudaStream_t snapshots;
	char kept_text[200];

	/* the update under way */
	float *to, *host; /* host: `to` if `to` is page-locked, else `out` */
	float *device_to; /* the address at which the GPU accesses `host` */
	size_t end;       /* all values before `end` have been submitted */
	size_t written;   /* number of values that are already valid in `to` */
	size_t pieces, seen;
	size_t room;
	cudaEvent_t *event; /* for each piece, an event that shows that the piece is complete */
	size_t *piece_end;
	char text[200];
};

/* Returns the text of error `rc`, or NULL if `rc` is no error. Clears an error that does not
 * concern the whole process, so that later calls do not return it. */
const char *text_of(struct gpu *g, const char *what, cudaError_t rc)
{
	if (rc == cudaSuccess)
		return nullptr;
	(void)cudaGetLastError();
	snprintf(g->text, sizeof(g->text), "%s: %s", what, cudaGetErrorString(rc));
	return g->text;
}

/* Computes the update of `count` values. Each pointer points to the first of its values. `to` is
 * memory of the host, or NULL. */
__global__ void __launch_bounds__(THREADS) update_kernel(enum device_rule rule,
	struct step_coeff coeff, double running, size_t trained, size_t count,
	float *__restrict__ weights, float *__restrict__ first, float *__restrict__ second,
	const float *__restrict__ gradient, float *__restrict__ to)
{
	const struct step_coeff c = step_constants(coeff);
	const size_t stride = (size_t)gridDim.x * blockDim.x;

	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
		float s = first ? first[i] : 0, q = second ? second[i] : 0, w;

		if (i < trained) {
			w = step_value(rule, c, weights[i], gradient[i], &s, &q);
			if (first)
				first[i] = s;
			if (second)
				second[i] = q;
		} else {
			w = step_running(running, weights[i], gradient[i]);
		}
		weights[i] = w;
		if (to)
			to[i] = w;
	}
}

/* ---- a pass over values: copy, checksum, sum of squares, largest magnitude ---------------------
 *
 * A block of PASS_THREADS threads processes ENGINE_BLOCK values, which are 32 blocks of XXH3. The
 * block reads the values as words, which are pairs of values. Warp k has words [256 k, 256 k +
 * 256), and thread t of the warp has every 32nd of these words, from number t on, so that all loads
 * are under way at once. The squares are those of vec_squares (server/core/vec.c): 32 lanes; each
 * lane adds 16 squares as float32, and then their sum as a double.
 *
 * Block 0 of the grid copies nothing. This block waits for the other blocks of threads, combines
 * their results in order, and writes the results to memory of the host, where the CPU waits for
 * them. When the CPU reads these results, all copies of the pass are complete and visible to every
 * GPU. */

constexpr int PASS_THREADS = 512, WARPS = PASS_THREADS / 32;
constexpr int WORDS = (int)ENGINE_BLOCK / 2;   /* number of words of a block of threads */
constexpr int SUM_WORDS = (int)XXH3_BLOCK / 8; /* number of words of a block of XXH3 */
/* number of blocks of XXH3 that a block of threads processes */
constexpr int SUMS = WORDS / SUM_WORDS;
constexpr int ROWS = 16, CHUNK = 32 * ROWS; /* the same numbers as in vec_squares */
/* number of sums that block 0 mixes between two barriers */
constexpr int STAGE = 128;
constexpr int STAGE_WORDS = STAGE * (int)XXH3_LANES;
constexpr unsigned ALL = 0xffffffffu;
constexpr size_t TAIL = XXH3_TAIL / sizeof(float);

static_assert(WORDS == WARPS * 2 * SUM_WORDS && CHUNK * WARPS == (int)ENGINE_BLOCK, "see above");
static_assert(2 * STAGE_WORDS <= WORDS && PASS_THREADS <= WORDS, "block 0 uses the same memory");

__constant__ const uint64_t secret[XXH3_SECRET_WORDS] = {XXH3_SECRET};
__constant__ const uint64_t start[XXH3_LANES] = {XXH3_START};

/* This struct has the arguments of a pass, besides its values. */
struct pass {
	struct pass_room room;
	const uint32_t *kept; /* the values, at a place where no other process changes them */
	size_t n, trained;
	size_t sums; /* number of blocks of XXH3 that have sums: all but the last */
	int hashes;  /* 1: compute the checksum */
};

/* Writes the sums of a block of XXH3. Thread t has word 32 q + t of this block in d[q]. */
__device__ __forceinline__ void sum_words(const uint64_t d[4], uint64_t *to)
{
	const int t = threadIdx.x % 32;
	uint64_t product = 0, plain = 0;

	for (int q = 0; q < 4; q++) {
		const int w = 32 * q + t;

		product += xxh3_product(d[q], secret[w / 8 + w % 8]);
		plain += d[q];
	}
	/* in XXH3, the word of a lane is added to the neighbouring lane */
	product += __shfl_xor_sync(ALL, plain, 1);
	product += __shfl_xor_sync(ALL, product, 8);
	product += __shfl_xor_sync(ALL, product, 16);
	if (t < 8)
		to[t] = product;
}

/* Returns the sum of lane t of vec_squares, for the first n values of a block. `chunk` has the sums
 * of the chunks. */
__device__ double lane_squares(const float *v, int n, const float (*chunk)[32], int t)
{
	double sum = 0;
	const int full = n / CHUNK;

	for (int k = 0; k < full; k++)
		sum = __dadd_rn(sum, (double)chunk[k][t]);
	for (int i = full * CHUNK + t; i < n; i += 32) {
		const double x = (double)step_normal(v[i]);

		sum = __dadd_rn(sum, __dmul_rn(x, x));
	}
	return sum;
}

/* Computes the sum of squares and the largest magnitude of a block. Only the first `trained` values
 * count in the sum of squares. */
__device__ void measure_block(const float *v, int trained, double *squares, uint32_t *peak)
{
	__shared__ float chunk[WARPS][32];
	__shared__ double lane[32];
	__shared__ uint32_t peaks[WARPS];
	const int k = threadIdx.x / 32, t = threadIdx.x % 32;
	uint32_t largest = 0;
	float sum = 0;

	for (int row = 0; row < ROWS; row++) {
		const float raw = v[k * CHUNK + row * 32 + t], x = step_normal(raw);

		largest = max(largest, __float_as_uint(raw) & 0x7fffffffu);
		sum = step_add(sum, step_mul(x, x));
	}
	chunk[k][t] = sum;
	largest = __reduce_max_sync(ALL, largest);
	if (t == 0)
		peaks[k] = largest;
	__syncthreads();
	if (k == 0)
		lane[t] = lane_squares(v, trained, chunk, t);
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	double total = 0;
	for (int i = 0; i < 32; i++)
		total = __dadd_rn(total, lane[i]);
	for (int i = 1; i < WARPS; i++)
		largest = max(largest, peaks[i]);
	*squares = total;
	*peak = largest;
}

/* Waits until the block of threads that processes block `b` of the values has completed its
 * part. */
__device__ __forceinline__ void await_part(const struct pass_room &room, size_t b)
{
	uint32_t newest;

	do
		asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
			     : "=r"(newest)
			     : "l"(room.ready + b)
			     : "memory");
	while (newest != room.number);
}

/* Loads the sums of STAGE blocks of XXH3, from number `first` on. `i` is the number of the calling
 * thread among `threads`. */
__device__ __forceinline__ void load_sums(
	const struct pass &p, size_t first, uint64_t *stage, int i, int threads)
{
	for (; i < STAGE_WORDS && first + i / XXH3_LANES < p.sums; i += threads) {
		await_part(p.room, (first + i / XXH3_LANES) / SUMS);
		stage[i] = __ldcg((const unsigned long long *)p.room.sums + first * XXH3_LANES + i);
	}
}

/* Returns lane x after the `n` blocks of XXH3 whose sums begin at `sum`. */
__device__ __forceinline__ uint64_t mix_stage(uint64_t x, const uint64_t *sum, int n, uint64_t key)
{
	x += sum[0];
#pragma unroll 8
	for (int b = 1; b < n; b++)
		x = xxh3_mix_lane(x, key, sum[b * XXH3_LANES]);
	return xxh3_mix_lane(x, key, 0);
}

/* Returns the word that begins at value i; i may be odd. */
__device__ __forceinline__ uint64_t word_at(const uint32_t *values, size_t i)
{
	return __ldcg(values + i) | (uint64_t)__ldcg(values + i + 1) << 32;
}

/* Returns the checksum from the values of the lanes after all blocks but the last. Each thread of a
 * warp has the value of lane t % 8. The caller has waited until all blocks of threads have
 * completed their parts. */
__device__ uint64_t end_mix(uint64_t x, const struct pass &p)
{
	const int lane = threadIdx.x % XXH3_LANES;
	const size_t begin = p.sums * (XXH3_BLOCK / sizeof(float));
	const int stripes = (int)((p.n - begin) * sizeof(float) - 1) / (int)XXH3_STRIPE;
	uint64_t d = word_at(p.kept, p.n - XXH3_STRIPE / sizeof(float) + 2 * lane), plain = d;
	uint64_t product = xxh3_product(d, xxh3_key_at(secret, XXH3_LAST_KEY + 8 * lane));

	for (int i = 0; i < stripes; i++) {
		d = word_at(p.kept, begin + 2 * (i * XXH3_LANES + lane));
		product += xxh3_product(d, secret[i + lane]);
		plain += d;
	}
	x += product + __shfl_xor_sync(ALL, plain, 1);
	x ^= xxh3_key_at(secret, XXH3_MERGE_KEY + 8 * lane);
	uint64_t folded = xxh3_fold(x, __shfl_xor_sync(ALL, x, 1));
	folded += __shfl_xor_sync(ALL, folded, 2);
	folded += __shfl_xor_sync(ALL, folded, 4);
	return xxh3_finish(folded, p.n * sizeof(float));
}

/* Returns the checksum, in the threads of warp 0. While this warp mixes the sums, the other warps
 * load the next sums. */
__device__ uint64_t mix_stages(const struct pass &p, uint64_t *memory)
{
	const int t = threadIdx.x, lane = t % XXH3_LANES;
	const uint64_t key = secret[XXH3_STRIPES + lane];
	uint64_t x = start[lane];

	load_sums(p, 0, memory, t, PASS_THREADS);
	__syncthreads();
	for (size_t first = 0; first < p.sums; first += STAGE) {
		const int odd = first / STAGE % 2;
		const size_t left = p.sums - first;

		if (t < 32)
			x = mix_stage(x, memory + odd * STAGE_WORDS + lane,
				left < STAGE ? (int)left : STAGE, key);
		else
			load_sums(p, first + STAGE, memory + !odd * STAGE_WORDS, t - 32,
				PASS_THREADS - 32);
		__syncthreads();
	}
	return x;
}

/* Waits for all blocks of values, and adds up their squares in order. Only thread 0 gets the
 * results. */
template <bool MEASURES>
__device__ void combine_blocks(
	const struct pass &p, double *memory, double *squares, uint32_t *peak)
{
	__shared__ uint32_t peaks[WARPS];
	const size_t blocks = (p.n + ENGINE_BLOCK - 1) / ENGINE_BLOCK;
	const int t = threadIdx.x;
	uint32_t largest = 0;
	double sum = 0;

	for (size_t first = 0; first < blocks; first += PASS_THREADS) {
		const size_t left = blocks - first;

		if (t < left)
			await_part(p.room, first + t);
		if (MEASURES && t < left) {
			memory[t] = __ldcg(p.room.squares + first + t);
			largest = max(largest, __ldcg(p.room.peak + first + t));
		}
		__syncthreads();
		for (int i = 0; MEASURES && t == 0 && i < PASS_THREADS && i < left; i++)
			sum = __dadd_rn(sum, memory[i]);
		__syncthreads();
	}
	largest = __reduce_max_sync(ALL, largest);
	if (t % 32 == 0)
		peaks[t / 32] = largest;
	__syncthreads();
	for (int i = 1; t == 0 && i < WARPS; i++)
		largest = max(largest, peaks[i]);
	*squares = sum;
	*peak = largest;
}

/* Completes the pass; block 0 of the grid calls this function. `memory` is a buffer of WORDS
 * words. */
template <bool MEASURES> __device__ void complete_pass(const struct pass &p, uint64_t *memory)
{
	struct pass_done *done = p.room.done;
	uint64_t xxh3 = p.hashes ? mix_stages(p, memory) : 0;
	double squares;
	uint32_t peak;

	combine_blocks<MEASURES>(p, (double *)memory, &squares, &peak);
	if (p.hashes && threadIdx.x < 32)
		xxh3 = end_mix(xxh3, p);
	if (threadIdx.x > 0)
		return;
	done->xxh3 = xxh3;
	done->squares = squares;
	done->peak = peak;
	__threadfence_system();
	*(volatile uint32_t *)&done->number = p.room.number;
}

/* Copies p.n values, and computes their results. Each value of `from`, which another process may be
 * changing, is read once. If n is odd, the buffers have room for one more value, so that the
 * function copies whole words. */
template <bool MEASURES>
__global__ void __launch_bounds__(PASS_THREADS)
	pass_kernel(const uint64_t *from, uint64_t *to, const struct pass p)
{
	__shared__ uint64_t block[MEASURES ? WORDS : 2 * STAGE_WORDS];
	const size_t b = blockIdx.x - 1, words = (p.n + 1) / 2, begin = b * WORDS;
	const size_t first = begin + (size_t)(threadIdx.x / 32) * 2 * SUM_WORDS;
	uint64_t d[2][4];

	if (p.n == 0)
		return;
	if (blockIdx.x == 0) {
		complete_pass<MEASURES>(p, block);
		return;
	}
	for (int i = 0; i < 2; i++)
		for (int q = 0; q < 4; q++) {
			const size_t w = first + i * SUM_WORDS + q * 32 + threadIdx.x % 32;

			d[i][q] = w < words ? __ldcv((const unsigned long long *)from + w) : 0;
			if (w + 1 == words && p.n % 2)
				d[i][q] &= 0xffffffffu;
		}
	for (int i = 0; i < 2; i++)
		for (int q = 0; q < 4; q++) {
			const size_t w = first + i * SUM_WORDS + q * 32 + threadIdx.x % 32;

			if (w < words)
				to[w] = d[i][q];
			if (MEASURES)
				block[w - begin] = d[i][q];
		}
	for (int i = 0; i < 2 && p.hashes; i++) {
		const size_t number = first / SUM_WORDS + i;

		if (number < p.sums) /* the condition is the same for all threads of a warp */
			sum_words(d[i], p.room.sums + number * XXH3_LANES);
	}
	if (MEASURES) {
		const size_t left = p.trained > 2 * begin ? p.trained - 2 * begin : 0;

		__syncthreads();
		measure_block((const float *)block,
			left < ENGINE_BLOCK ? (int)left : (int)ENGINE_BLOCK, &p.room.squares[b],
			&p.room.peak[b]);
	}
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	/* this fence also covers what the other threads of the block have written */
	__threadfence_system();
	*(volatile uint32_t *)&p.room.ready[b] = p.room.number;
}

size_t blocks_of(size_t n)
{
	return (n + ENGINE_BLOCK - 1) / ENGINE_BLOCK;
}

/* Returns the place *at for an array of `bytes` bytes, and moves *at behind this array. */
void *take_room(char **at, size_t bytes)
{
	void *taken = *at;

	*at += (bytes + 255) / 256 * 256;
	return taken;
}

/* Places the arrays of *r in the memory from `at` on. Returns the end of this memory. */
char *place_pass(struct pass_room *r, char *at, size_t n)
{
	r->sums = (uint64_t *)take_room(
		&at, (xxh3_blocks(n * sizeof(float)) + 1) * sizeof(struct xxh3_sum));
	r->squares = (double *)take_room(&at, blocks_of(n) * sizeof(double));
	r->peak = (uint32_t *)take_room(&at, blocks_of(n) * sizeof(uint32_t));
	r->ready = (uint32_t *)take_room(&at, blocks_of(n) * sizeof(uint32_t));
	return at;
}

/* Makes room for the passes over all values, and for the private copies. */
cudaError_t allocate_passes(struct gpu *g)
{
	const size_t passes = STORE_COPIES + STORE_GIVES;
	const size_t bytes = (size_t)(place_pass(&g->give[0], nullptr, g->n) - (char *)nullptr);
	cudaError_t rc = cudaMalloc(&g->pass_memory, passes * bytes);

	for (size_t i = 0; rc == cudaSuccess && i < STORE_COPIES; i++)
		rc = cudaMalloc((void **)&g->copy[i], (g->n + 64) * sizeof(float));
	if (rc == cudaSuccess)
		rc = cudaMemset(g->pass_memory, 0, passes * bytes);
	if (rc == cudaSuccess)
		rc = cudaHostAlloc(
			(void **)&g->done, passes * sizeof(*g->done), cudaHostAllocMapped);
	if (rc != cudaSuccess)
		return rc;
	memset((void *)g->done, 0, passes * sizeof(*g->done));
	for (size_t i = 0; i < passes; i++) {
		struct pass_room *r = i < STORE_COPIES ? &g->take[i] : &g->give[i - STORE_COPIES];

		(void)place_pass(r, (char *)g->pass_memory + i * bytes, g->n);
		r->done = &g->done[i];
		r->number = 0;
	}
	g->update = g->completed = 0;
	memset(g->reads, 0, sizeof(g->reads));
	return cudaDeviceSynchronize();
}

/* Starts a pass. If there are fewer than TAIL values, the pass computes no checksum. */
template <bool MEASURES>
cudaError_t start_pass(const void *from, void *to, cudaStream_t stream, const struct pass *p)
{
	pass_kernel<MEASURES><<<(unsigned)blocks_of(p->n) + 1, PASS_THREADS, 0, stream>>>(
		(const uint64_t *)from, (uint64_t *)to, *p);
	return cudaGetLastError();
}

int is_done(const struct pass_room *r)
{
	return __atomic_load_n(&r->done->number, __ATOMIC_ACQUIRE) == r->number;
}

/* Waits until the newest pass of `r` is complete. While it waits, the function seldom asks the
 * driver whether the stream has failed, because the driver takes long to answer. */
cudaError_t await_pass(const struct pass_room *r, cudaStream_t stream)
{
	cudaError_t rc = cudaErrorNotReady;

	for (unsigned i = 1; !is_done(r) && rc == cudaErrorNotReady; i++) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
		if (i % 1024 == 0)
			rc = cudaStreamQuery(stream);
	}
	if (is_done(r))
		return cudaSuccess;
	return rc == cudaSuccess ? cudaErrorUnknown : rc;
}

const char *module_take(void *self, size_t at, const void *from, size_t n, size_t trained)
{
	struct gpu *g = (struct gpu *)self;
	struct pass_room *r = &g->take[at];
	cudaError_t rc = cudaSuccess;

	r->number++;
	const struct pass p = {*r, (const uint32_t *)g->copy[at], n, trained < n ? trained : n,
		xxh3_blocks(n * sizeof(float)), n >= TAIL};
	if (g->reads[at] > g->completed) {
		rc = cudaStreamSynchronize(g->stream);
		g->completed = g->update;
	}
	if (rc == cudaSuccess)
		rc = start_pass<true>(from, g->copy[at], g->takes, &p);
	return text_of(g, "copy of a gradient", rc);
}

void read_results(const struct pass_room *r, struct store_pass *pass)
{
	*pass = {r->done->xxh3, r->done->squares, r->done->peak};
}

const char *module_taken(void *self, size_t at, const float **copy, struct store_pass *pass)
{
	struct gpu *g = (struct gpu *)self;
	cudaError_t rc = await_pass(&g->take[at], g->takes);

	*copy = g->copy[at];
	read_results(&g->take[at], pass);
	return text_of(g, "copy of a gradient", rc);
}

const char *module_give(void *self, size_t at, void *to, int hashes)
{
	struct gpu *g = (struct gpu *)self;
	struct pass_room *r = &g->give[at];

	r->number++;
	g->gives[at] = g->update;
	const struct pass p = {*r, (const uint32_t *)g->weights, g->n, 0,
		xxh3_blocks(g->n * sizeof(float)), hashes && g->n >= TAIL};
	return text_of(g, "copy of weights", start_pass<false>(g->weights, to, g->stream, &p));
}

const char *module_given(void *self, size_t at, int waits, int *done, struct store_pass *pass)
{
	struct gpu *g = (struct gpu *)self;
	const struct pass_room *r = &g->give[at];
	cudaError_t rc = waits ? await_pass(r, g->stream) : cudaSuccess;

	*done = is_done(r);
	if (!*done)
		return text_of(g, "copy of weights", rc);
	if (g->gives[at] > g->completed)
		g->completed = g->gives[at];
	read_results(r, pass);
	return nullptr;
}

/* ---- memory of other processes --------------------------------------------------------------- */

/* Makes, exports and maps memory of each GPU once, so that the driver opens all files for this
 * before the server enters its sandbox. */
void warm_up_import(struct gpu *g, int count)
{
	for (int i = 0; i < count; i++) {
		void *made = nullptr, *taken = nullptr;
		size_t bytes = 1;
		int fd = -1;
		CUresult rc = gpu_memory_make(&g->driver, i, &bytes, &made, &fd);

		if (rc == CUDA_SUCCESS) {
			rc = gpu_memory_take(&g->driver, fd, g->number, bytes, &taken);
			close(fd);
			gpu_memory_unmap(&g->driver, made, bytes);
		}
		if (rc == CUDA_SUCCESS)
			gpu_memory_unmap(&g->driver, taken, bytes);
		else if (i == g->number)
			snprintf(g->no_import, sizeof(g->no_import),
				"the driver cannot share memory of the GPU (error %d)", (int)rc);
	}
}

const char *module_import(void *self, int fd, size_t bytes, void **memory, int *is_own)
{
	struct gpu *g = (struct gpu *)self;
	cudaPointerAttributes a;

	*memory = nullptr;
	*is_own = 1;
	if (g->no_import[0])
		return g->no_import;
	CUresult rc = gpu_memory_take(&g->driver, fd, g->number, bytes, memory);
	if (rc == CUDA_SUCCESS) {
		if (cudaPointerGetAttributes(&a, *memory) == cudaSuccess)
			*is_own = a.device == g->number;
		else
			(void)cudaGetLastError();
		return nullptr;
	}
	snprintf(g->text, sizeof(g->text),
		"the server's GPU cannot map the memory of the worker's GPU (error %d)", (int)rc);
	return g->text;
}

void module_drop(void *self, void *memory, size_t bytes)
{
	struct gpu *g = (struct gpu *)self;

	(void)cudaStreamSynchronize(g->takes);
	(void)cudaStreamSynchronize(g->stream);
	gpu_memory_unmap(&g->driver, memory, bytes);
}

/* ---- memory of this process ------------------------------------------------------------------ */

/* Returns the address of `memory` for the GPU if the memory is page-locked or of this GPU,
 * otherwise NULL. */
const void *mapped(const void *memory)
{
	cudaPointerAttributes a;

	if (cudaPointerGetAttributes(&a, memory) != cudaSuccess) {
		(void)cudaGetLastError();
		return nullptr;
	}
	return a.type == cudaMemoryTypeHost || a.type == cudaMemoryTypeDevice ? a.devicePointer
									      : nullptr;
}

cudaError_t ensure_device_buffer(const struct gpu *g, float **buffer)
{
	return *buffer ? cudaSuccess
		       : cudaHostAlloc((void **)buffer, g->n * sizeof(float), cudaHostAllocDefault);
}

void release_shadow(struct gpu *g)
{
	(void)cudaFree(g->shadow);
	g->shadow = nullptr;
	for (int i = 0; i < 2; i++) {
		(void)cudaFreeHost(g->staged[i]);
		g->staged[i] = nullptr;
	}
}

void release_memory(struct gpu *g)
{
	(void)cudaFree(g->weights);
	for (size_t i = 0; i < PARAM_DEVICE_VECTORS; i++) {
		(void)cudaFree(g->state[i]);
		g->state[i] = nullptr;
	}
	(void)cudaFreeHost(g->in);
	(void)cudaFreeHost(g->out);
	for (size_t i = 0; i < STORE_COPIES; i++) {
		(void)cudaFree(g->copy[i]);
		g->copy[i] = nullptr;
	}
	release_shadow(g);
	(void)cudaFree(g->pass_memory);
	(void)cudaFreeHost((void *)g->done);
	g->weights = g->in = g->out = nullptr;
	g->pass_memory = nullptr;
	g->done = nullptr;
	for (size_t i = 0; i < g->room; i++)
		(void)cudaEventDestroy(g->event[i]);
	free(g->event);
	free(g->piece_end);
	g->event = nullptr;
	g->piece_end = nullptr;
	g->room = 0;
	g->to = nullptr;
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Runs the kernels once, so that the driver loads them. */
cudaError_t warm_up_update(struct gpu *g)
{
	update_kernel<<<1, THREADS, 0, g->stream>>>(
		DEVICE_SGD, {}, 0, 0, 0, nullptr, nullptr, nullptr, nullptr, nullptr);
	pass_kernel<true><<<1, PASS_THREADS, 0, g->stream>>>(nullptr, nullptr, {});
	pass_kernel<false><<<1, PASS_THREADS, 0, g->stream>>>(nullptr, nullptr, {});
	cudaError_t rc = cudaGetLastError();

	return rc == cudaSuccess ? cudaStreamSynchronize(g->stream) : rc;
}

cudaError_t open_snapshots(struct gpu *g)
{
	cudaEvent_t *const events[] = {&g->has_shadow, &g->is_staged[0], &g->is_staged[1]};
	cudaError_t rc = cudaStreamCreateWithFlags(&g->snapshots, cudaStreamNonBlocking);

	for (int i = 0; rc == cudaSuccess && i < 3; i++)
		rc = cudaEventCreateWithFlags(events[i], cudaEventDisableTiming);
	return rc;
}

const char *module_open(void **self, int number, char name[STORE_MODULE_NAME])
{
	static struct gpu the_gpu, no_gpu; /* no_gpu: only for the text of an error */
	struct gpu *g = &the_gpu;
	cudaDeviceProp prop;
	int count = 0;
	const char *why = text_of(&no_gpu, "the CUDA driver", cudaGetDeviceCount(&count));

	*self = nullptr;
	if (why)
		return why;
	if (number >= count) {
		snprintf(no_gpu.text, sizeof(no_gpu.text), "no such GPU: this machine has %d",
			count);
		return no_gpu.text;
	}
	*g = {};
	g->number = number;
	why = text_of(g, "the GPU", cudaSetDevice(number));
	if (!why)
		why = text_of(g, "the GPU", cudaGetDeviceProperties(&prop, number));
	if (!why)
		why = text_of(
			g, "the GPU", cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking));
	if (!why)
		why = text_of(
			g, "the GPU", cudaStreamCreateWithFlags(&g->takes, cudaStreamNonBlocking));
	if (!why)
		why = text_of(g, "the GPU", open_snapshots(g));
	if (!why)
		why = text_of(g, "the kernel", warm_up_update(g));
	if (why)
		return why;
	if (gpu_memory_load(&g->driver))
		warm_up_import(g, count);
	else
		snprintf(g->no_import, sizeof(g->no_import), "the driver is too old");
	snprintf(name, STORE_MODULE_NAME, "%.*s", STORE_MODULE_NAME - 1, prop.name);
	*self = g;
	return nullptr;
}

const char *module_allocate(void *self, size_t n, size_t vectors)
{
	struct gpu *g = (struct gpu *)self;
	/* each part of an update begins a new piece, and so does each gap before a part, which
	 * copy_gap copies */
	const size_t room = n / PIECE + 64;

	release_memory(g);
	g->n = n;
	g->vectors = vectors;
	cudaError_t rc = cudaMalloc((void **)&g->weights, n * sizeof(float));
	for (size_t i = 0; rc == cudaSuccess && i < vectors; i++)
		rc = cudaMalloc((void **)&g->state[i], n * sizeof(float));
	if (rc == cudaSuccess)
		rc = allocate_passes(g);
	g->event = (cudaEvent_t *)calloc(room, sizeof(*g->event));
	g->piece_end = (size_t *)calloc(room, sizeof(*g->piece_end));
	if (rc == cudaSuccess && (!g->event || !g->piece_end))
		rc = cudaErrorMemoryAllocation;
	for (; rc == cudaSuccess && g->room < room; g->room++)
		rc = cudaEventCreateWithFlags(&g->event[g->room], cudaEventDisableTiming);
	return text_of(g, "allocation", rc);
}

/* ---- updates --------------------------------------------------------------------------------- */

const char *module_load(void *self, const float *weights, float *const state[PARAM_DEVICE_VECTORS])
{
	struct gpu *g = (struct gpu *)self;
	const size_t bytes = g->n * sizeof(float);
	cudaError_t rc = cudaMemcpy(g->weights, weights, bytes, cudaMemcpyHostToDevice);

	for (size_t i = 0; rc == cudaSuccess && i < g->vectors; i++)
		rc = cudaMemcpy(g->state[i], state[i], bytes, cudaMemcpyHostToDevice);
	if (rc == cudaSuccess)
		rc = cudaDeviceSynchronize();
	return text_of(g, "load", rc);
}

/* Notes that the computation and the copies of all values before value `end` have been
 * submitted. */
cudaError_t end_piece(struct gpu *g, size_t end)
{
	if (g->pieces == g->room)
		return cudaErrorInvalidValue;
	g->piece_end[g->pieces] = end;
	g->end = end;
	return cudaEventRecord(g->event[g->pieces++], g->stream);
}

/* Copies the weights up to value `end`, which no part of the update changes. */
cudaError_t copy_gap(struct gpu *g, size_t end)
{
	if (g->end >= end || !g->to)
		return cudaSuccess;
	cudaError_t rc = cudaMemcpyAsync(g->host + g->end, g->weights + g->end,
		(end - g->end) * sizeof(float), cudaMemcpyDeviceToHost, g->stream);
	return rc == cudaSuccess ? end_piece(g, end) : rc;
}

const char *module_begin(void *self, float *to)
{
	struct gpu *g = (struct gpu *)self;
	cudaError_t rc = cudaSuccess;

	g->to = g->host = to;
	g->device_to = to ? (float *)mapped(to) : nullptr;
	g->reads_host = 0;
	if (to && !g->device_to) {
		rc = ensure_device_buffer(g, &g->out);
		g->host = g->out;
		g->device_to = rc == cudaSuccess ? (float *)mapped(g->out) : nullptr;
	}
	g->end = g->written = g->pieces = g->seen = 0;
	return text_of(g, "update", rc);
}

/* Starts the kernel for the values [at, at + n), whose gradient is at `from`. */
cudaError_t launch_update(
	struct gpu *g, const struct device_step *s, size_t at, size_t n, const float *from)
{
	update_kernel<<<(unsigned)((n + THREADS - 1) / THREADS), THREADS, 0, g->stream>>>(s->rule,
		s->coeff, s->running, s->trained > at ? s->trained - at : 0, n, g->weights + at,
		g->state[0] ? g->state[0] + at : nullptr, g->state[1] ? g->state[1] + at : nullptr,
		from, g->device_to ? g->device_to + at : nullptr);
	return cudaGetLastError();
}

/* Returns the index of the private copy that begins at `values`, or STORE_COPIES if none does. */
size_t copy_at(const struct gpu *g, const float *values)
{
	size_t i = 0;

	while (i < STORE_COPIES && values != g->copy[i])
		i++;
	return i;
}

const char *module_step(void *self, const struct device_step *s)
{
	struct gpu *g = (struct gpu *)self;
	const size_t copy = copy_at(g, s->gradient);

	if (copy < STORE_COPIES)
		g->reads[copy] = ++g->update;
	if (!g->to && copy < STORE_COPIES)
		return text_of(g, "update", launch_update(g, s, s->offset, s->count, s->gradient));
	g->reads_host = 1;
	const float *gradient = (const float *)mapped(s->gradient);
	cudaError_t rc = copy_gap(g, s->offset);
	const int direct = gradient != nullptr;

	if (rc == cudaSuccess && !direct) {
		rc = ensure_device_buffer(g, &g->in);
		gradient = rc == cudaSuccess ? (const float *)mapped(g->in) : nullptr;
	}
	for (size_t done = 0; rc == cudaSuccess && done < s->count; done += PIECE) {
		const size_t left = s->count - done, n = left < PIECE ? left : PIECE;
		const size_t at = s->offset + done;
		/* the buffer has its own place for each weight, so the parts do not overwrite each
		 * other */
		const float *from = gradient + (direct ? done : at);

		if (!direct)
			memcpy(g->in + at, s->gradient + done, n * sizeof(float));
		rc = launch_update(g, s, at, n, from);
		if (rc == cudaSuccess)
			rc = end_piece(g, at + n);
	}
	return text_of(g, "update", rc);
}

const char *module_wait(void *self, size_t n)
{
	struct gpu *g = (struct gpu *)self;

	if (!g->to) {
		const int waits = g->reads_host;

		g->reads_host = 0;
		return waits ? text_of(g, "update", cudaStreamSynchronize(g->stream)) : nullptr;
	}
	cudaError_t rc = copy_gap(g, g->n);

	/* the events of a stream happen in order, so it is enough to wait for the piece that has
	 * value n - 1 */
	while (g->seen < g->pieces && (g->seen ? g->piece_end[g->seen - 1] : 0) < n) {
		if (rc == cudaSuccess && g->piece_end[g->seen] >= n)
			rc = cudaEventSynchronize(g->event[g->seen]);
		g->seen++;
	}
	if (rc == cudaSuccess && g->host != g->to && n > g->written)
		memcpy(g->to + g->written, g->host + g->written, (n - g->written) * sizeof(float));
	g->written = n;
	return text_of(g, "update", rc);
}

const char *module_fetch(void *self, float *const state[PARAM_DEVICE_VECTORS])
{
	struct gpu *g = (struct gpu *)self;
	cudaError_t rc = cudaStreamSynchronize(g->stream);

	for (size_t i = 0; rc == cudaSuccess && i < g->vectors; i++)
		rc = cudaMemcpy(
			state[i], g->state[i], g->n * sizeof(float), cudaMemcpyDeviceToHost);
	return text_of(g, "fetch", rc);
}

const char *module_weights(void *self, float *to)
{
	struct gpu *g = (struct gpu *)self;
	cudaError_t rc = cudaMemcpyAsync(
		to, g->weights, g->n * sizeof(float), cudaMemcpyDeviceToHost, g->stream);

	if (rc == cudaSuccess)
		rc = cudaStreamSynchronize(g->stream);
	return text_of(g, "copy of weights", rc);
}

/* ---- snapshots ------------------------------------------------------------------------------- */

/* Allocates the memory that `keep` and `kept` use, if it is not allocated yet. */
cudaError_t ensure_shadow(struct gpu *g)
{
	const size_t bytes = (1 + g->vectors) * g->n * sizeof(float);

	if (g->shadow)
		return cudaSuccess;
	cudaError_t rc = cudaMalloc((void **)&g->shadow, bytes);
	for (int i = 0; rc == cudaSuccess && i < 2; i++)
		rc = cudaHostAlloc((void **)&g->staged[i], bytes < STAGED ? bytes : STAGED,
			cudaHostAllocDefault);
	if (rc != cudaSuccess)
		release_shadow(g);
	return rc;
}

const char *module_keep(void *self, int *keeps)
{
	struct gpu *g = (struct gpu *)self;
	const size_t bytes = g->n * sizeof(float);
	cudaError_t rc = ensure_shadow(g);

	*keeps = rc == cudaSuccess;
	if (rc == cudaErrorMemoryAllocation) {
		(void)cudaGetLastError();
		return nullptr;
	}
	for (size_t i = 0; rc == cudaSuccess && i <= g->vectors; i++)
		rc = cudaMemcpyAsync(g->shadow + i * g->n, i ? g->state[i - 1] : g->weights, bytes,
			cudaMemcpyDeviceToDevice, g->stream);
	if (rc == cudaSuccess)
		rc = cudaEventRecord(g->has_shadow, g->stream);
	return text_of(g, "copy for a checkpoint", rc);
}

/* Copies memory of the GPU to `to`. The GPU fills one buffer while the CPU empties the other. */
cudaError_t stream_out(const struct gpu *g, const char *from, char *to, size_t bytes)
{
	const size_t pieces = (bytes + STAGED - 1) / STAGED;
	cudaError_t rc = cudaSuccess;

	for (size_t i = 0; rc == cudaSuccess && i <= pieces; i++) {
		if (i < pieces) {
			const size_t at = i * STAGED, left = bytes - at;

			rc = cudaMemcpyAsync(g->staged[i % 2], from + at,
				left < STAGED ? left : STAGED, cudaMemcpyDeviceToHost,
				g->snapshots);
			if (rc == cudaSuccess)
				rc = cudaEventRecord(g->is_staged[i % 2], g->snapshots);
		}
		if (rc == cudaSuccess && i > 0) {
			const size_t at = (i - 1) * STAGED, left = bytes - at;

			rc = cudaEventSynchronize(g->is_staged[(i - 1) % 2]);
			if (rc == cudaSuccess)
				memcpy(to + at, g->staged[(i - 1) % 2],
					left < STAGED ? left : STAGED);
		}
	}
	return rc;
}

/* Uses only the members of *g that `keep` has set for it, because another thread may call the other
 * functions at the same time. */
const char *module_kept(void *self, void *weights, void *const state[PARAM_DEVICE_VECTORS])
{
	struct gpu *g = (struct gpu *)self;
	cudaError_t rc = cudaSetDevice(g->number);

	if (rc == cudaSuccess)
		rc = cudaStreamWaitEvent(g->snapshots, g->has_shadow, 0);
	for (size_t i = 0; rc == cudaSuccess && i <= g->vectors; i++)
		rc = stream_out(g, (const char *)(g->shadow + i * g->n),
			(char *)(i ? state[i - 1] : weights), g->n * sizeof(float));
	if (rc == cudaSuccess)
		return nullptr;
	snprintf(g->kept_text, sizeof(g->kept_text), "copy for a checkpoint: %s",
		cudaGetErrorString(rc));
	return g->kept_text;
}

const char *module_readable(void *self, const float **values, size_t n)
{
	struct gpu *g = (struct gpu *)self;

	if (copy_at(g, *values) == STORE_COPIES)
		return nullptr;
	cudaError_t rc = ensure_device_buffer(g, &g->in);
	if (rc == cudaSuccess)
		rc = cudaMemcpyAsync(
			g->in, *values, n * sizeof(float), cudaMemcpyDeviceToHost, g->stream);
	if (rc == cudaSuccess)
		rc = cudaStreamSynchronize(g->stream);
	*values = g->in;
	return text_of(g, "copy of a gradient", rc);
}

/* ---- memory of the host ---------------------------------------------------------------------- */

void module_pin(void *self, void *memory, size_t bytes)
{
	(void)self;
	if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) != cudaSuccess)
		/* ignore the error: without the registration, copies go through a buffer */
		(void)cudaGetLastError();
}

void module_unpin(void *self, void *memory)
{
	(void)self;
	if (cudaHostUnregister(memory) != cudaSuccess)
		(void)cudaGetLastError();
}

void *store_allocate_host(size_t bytes)
{
	void *memory = nullptr;

	if (cudaHostAlloc(&memory, bytes, cudaHostAllocDefault) != cudaSuccess) {
		(void)cudaGetLastError();
		return nullptr;
	}
	return memset(memory, 0, bytes);
}

void store_release_host(void *memory)
{
	(void)cudaFreeHost(memory);
}

void module_close(void *self)
{
	struct gpu *g = (struct gpu *)self;

	(void)cudaStreamSynchronize(g->takes);
	(void)cudaStreamSynchronize(g->snapshots);
	release_memory(g);
	(void)cudaEventDestroy(g->has_shadow);
	for (int i = 0; i < 2; i++)
		(void)cudaEventDestroy(g->is_staged[i]);
	(void)cudaStreamDestroy(g->snapshots);
	(void)cudaStreamDestroy(g->takes);
	(void)cudaStreamDestroy(g->stream);
	*g = {};
}

const struct store_module module = {STORE_MODULE_ABI, module_open, module_allocate, module_load,
	module_begin, module_step, module_wait, module_fetch, module_weights, module_keep,
	module_kept, module_readable, module_import, module_drop, module_take, module_taken,
	module_give, module_given, module_pin, module_unpin, store_allocate_host,
	store_release_host, module_close};

} // namespace

extern "C" __attribute__((visibility("default"))) const struct store_module *cnnps_store_module(
	void)
{
	return &module;
}
