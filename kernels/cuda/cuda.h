/*
 * cuda.h - the state of the cuda device, shared by cuda.c (life cycle) and work.c (batches).
 *
 * Memory is allocated once, at open: one block on the device and pinned buffers on the host. The
 * data set is another block, allocated by `use`. A batch copies parameters and indices in,
 * launches the graph for its size, copies the gradient out, and waits. Parameters and gradients
 * are copied directly from and to the caller's memory; pinned memory (cuda_memory) is fastest.
 *
 * A burst of local training has a slot with everything that it shares with the host. Input of the
 * next burst and output of the last one travel on streams of their own while the kernels of the
 * present one run.
 *
 * CUDA errors are sticky: the first one is kept with its call, and every later call fails, too.
 *
 * Thread: the backend's; cuda_memory: any.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H
#include "kernels/cuda/path.h"
#include "kernels/device.h"

#define CUDA_MAX_GRAPHS 16
#define CUDA_CHUNKS     64 /* calls of local_steps that may wait to be run, for each slot */

/* Kernels for `steps` batches of `batch` images, ready to launch. */
struct graph {
	size_t batch;
	int steps; /* 0: a gradient */
	cudaGraphExec_t exec;
};

/* What a burst shares with the host. */
struct slot {
	float *params, *grad; /* device; n_params, in the manifest's order */
	/* pinned; what the steps of this burst need, one call after the other */
	uint32_t *index;
	struct kx_now *now;
	double *loss;
	size_t n_index, n_now; /* so far */
	int finished;
	cudaEvent_t in;       /* the parameters are on the device */
	cudaEvent_t computed; /* weights and sum are there, on the device */
	cudaEvent_t out;      /* and on the host */
};

struct cuda {
	const struct model *model;
	const struct cuda_path *path;
	void *net; /* the path's own */
	size_t max_batch, max_index;
	int number; /* of the device */
	char name[300], why[300];
	cudaStream_t stream, in, out; /* kernels; parameters in; results out */
	void *memory;                 /* device */
	uint32_t *index;
	struct kx_now *now;
	double *loss;
	void *pinned;
	float *logits;                  /* pinned */
	struct slot slot[LOCAL_BURSTS]; /* a single gradient is at home in the first */
	uint8_t *pixels, *labels;       /* device: the data set */
	struct graph graph[CUDA_MAX_GRAPHS];
	int n_graphs;
};

/* Forget the graphs: they know where things lay. */
void cuda_drop_graphs(struct cuda *c);
/* As struct device. */
int cuda_gradient(void *self, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss) PS_MUST_CHECK;
int cuda_forward(
	void *self, const float *params, size_t first, size_t n, float *logits) PS_MUST_CHECK;
int cuda_local_start(void *self, int slot, const float *params) PS_MUST_CHECK;
int cuda_local_steps(void *self, int slot, const uint32_t *index, size_t batch, size_t steps,
	float rate, uint64_t dropout_seed) PS_MUST_CHECK;
int cuda_local_finish(void *self, int slot, float *params, float *sum) PS_MUST_CHECK;
int cuda_local_wait(void *self, int slot, double *loss) PS_MUST_CHECK;

#endif
