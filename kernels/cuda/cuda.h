/*
 * cuda.h - the state of the cuda device, shared by cuda.c (life cycle), work.c (batches) and
 * open_path.c (memory, and the path that runs the model), from the highest layer to the lowest.
 *
 * `open` allocates the memory: a block for the device and one for its path on the GPU, and pinned
 * buffers on the host. The data set has its own memory, which `use` allocates, and so has the log
 * of a round (struct round_log). `gradient` copies parameters and indices to the GPU, launches the
 * graph of the batch size, copies the result to the host, and waits. Parameters and gradients are
 * copied directly from and to the caller's memory. The copies are fastest if this memory is pinned
 * (cuda_memory).
 *
 * Each round of local training uses a slot with all data that it shares with the host. Two more
 * streams copy the input of the next round and the output of the previous round while the kernels
 * of the current round run. A single gradient is a round, too.
 *
 * Kernels of fused/ may give up (enum kx_trouble). If a kernel has given up, the calls that wait
 * for results open a path without kernels of fused/, and use this path to repeat the batch or the
 * rounds in flight.
 *
 * CUDA errors are sticky: after the first error every call fails. `why` keeps the first error and
 * the call that reported it.
 *
 * Thread: one thread at a time uses a device, as device.h says. Any thread may call cuda_memory.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H
#include "common/xxh3_sums.h"
#include "kernels/cuda/path.h"
#include "kernels/device/device.h"

#define CUDA_MAX_GRAPHS 16
#define CUDA_CHUNKS     64 /* maximum number of pending calls of local_steps per slot */

/* A CUDA graph of the kernels for `steps` batches of `batch` images. */
struct graph {
	size_t batch;
	int steps; /* 0 or less: the graph computes one gradient, in slot -steps */
	cudaGraphExec_t exec;
};

/* The result of a batch or round, apart from its vectors. */
struct result {
	double loss;
	uint32_t trouble; /* a value of enum kx_trouble */
};

/* The arguments of a call of local_steps. */
struct round_call {
	/* first: position of the call's first index in round_log.index */
	size_t batch, steps, first;
	uint64_t dropout_seed;
	float rate;
};

/* The data with which a round can be repeated, except the weights at its start, which are in
 * slot.start. */
struct round_log {
	struct round_call *call;
	uint32_t *index;
	size_t n_calls, max_calls, n_index, max_index;
	float *params, *sum; /* the arguments of local_finish */
	/* number of images of the round's only gradient; 0: the round is local training */
	size_t gradient;
};

/* The data that a round shares with the host. */
struct slot {
	float *params, *grad; /* memory of the device: n_params values in the manifest's order */
	float *start;         /* memory of the device: the weights at the start of the round */
	/* pinned; the arguments of the steps of this round, call after call */
	uint32_t *index;
	struct kx_now *now;
	struct result *result;
	size_t n_index, n_now; /* number of used entries of `index` and of `now` */
	/* active: 1: the round is in flight; finished: 1: local_finish has ended it */
	int active, finished;
	struct round_log log; /* used only if c->may_fail is 1 */
	cudaEvent_t in;       /* event: the parameters are on the device */
	cudaEvent_t computed; /* event: weights and sum are complete on the device */
	cudaEvent_t out;      /* event: weights and sum are on the host */
	/* pinned memory that the GPU writes, for the checksums (common/xxh3_sums.h). start_sums and
	 * tail are the sums and the last bytes of the weights at the start of the round, as the GPU
	 * has read them. grad_sums and grad_tail are the sums and the last bytes of the round's
	 * gradient */
	struct xxh3_sum *start_sums, *grad_sums;
	char *tail, *grad_tail;
	cudaEvent_t hashed; /* event: start_sums and tail are on the host */
};

extern const struct device device_cuda;

struct cuda {
	const struct model *model;
	const struct cuda_path *path;
	void *net; /* the state of the path */
	size_t max_batch, max_index;
	struct path_options options;
	int gpu; /* number of the GPU among the visible ones */
	char option[16], name[300], why[300];
	/* streams of the kernels, of incoming parameters and of outgoing results */
	cudaStream_t stream, in, out;
	void *memory, *path_memory; /* memory of the device */
	int may_fail;               /* 1: a kernel may give up, as in struct cuda_path */
	uint32_t *index;
	struct kx_now *now;
	struct result *result;
	void *pinned;
	float *logits;                  /* pinned memory of the host */
	struct slot slot[LOCAL_ROUNDS]; /* cuda_gradient and cuda_forward use slot 0 */
	int rounds;                     /* number of slots with memory */
	uint8_t *pixels;                /* memory of the device: the data set */
	uint16_t *labels;
	size_t max_images; /* number of images for which `pixels` and `labels` have room */
	/* number of XXH3 blocks in a vector of parameters for which the GPU computes sums; 0: the
	 * GPU computes none */
	size_t n_sums;
	/* started: slot of the gradient that was started last; waited: slot of the round that was
	 * waited for last, if it was one gradient; NULL: none */
	struct slot *started, *waited;
	struct graph graph[CUDA_MAX_GRAPHS];
	int n_graphs;
};

/* Reports an error of `open` or `use` in the caller's struct err. */
int cuda_failed(cudaError_t rc, const char *what, struct err *e);
/* Opens the first path that can run the model, and allocates its memory. */
int cuda_open_path(struct cuda *c, struct err *e) PS_MUST_CHECK;
void cuda_close_path(struct cuda *c);
/* Destroys the graphs. Call cuda_drop_graphs before the memory that the graphs refer to moves. */
void cuda_drop_graphs(struct cuda *c);
/* These functions do what the members of struct device with the same names do. */
int cuda_gradient(void *self, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss) PS_MUST_CHECK;
int cuda_forward(
	void *self, const float *params, size_t first, size_t n, float *logits) PS_MUST_CHECK;
int cuda_local_start(void *self, int slot, const float *params) PS_MUST_CHECK;
int cuda_local_steps(void *self, int slot, const uint32_t *index, size_t batch, size_t steps,
	float rate, uint64_t dropout_seed) PS_MUST_CHECK;
int cuda_local_finish(void *self, int slot, float *params, float *sum) PS_MUST_CHECK;
int cuda_local_wait(void *self, int slot, double *loss) PS_MUST_CHECK;
int cuda_hashes(const void *self);
int cuda_start_hash(void *self, uint64_t *xxh3) PS_MUST_CHECK;
void cuda_sum_hash(const void *self, uint64_t *xxh3);
int cuda_gradient_start(void *self, int slot, const float *params, const uint32_t *index,
	size_t batch, uint64_t dropout_seed) PS_MUST_CHECK;

#endif
