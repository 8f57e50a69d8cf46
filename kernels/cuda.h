/*
 * cuda.h - the cuda device's state, between cuda.c (its life) and cuda_work.c (batches).
 *
 * Memory is taken once, at open: one block on the device (the data set is another, at `use`) and
 * pinned buffers on the host. A batch then is: copy parameters and indices in, launch the graph for
 * its size, copy the gradient out, wait.
 *
 * CUDA errors are sticky: the first is logged with its call, and every later call fails too.
 *
 * Thread: the backend's.
 */
#ifndef KERNELS_CUDA_H
#define KERNELS_CUDA_H
#include "kernels/cuda_path.h"
#include "kernels/device.h"

#define CUDA_MAX_GRAPHS  16
#define CUDA_COPY_PIECES 4

/* Kernels for `steps` batches of `batch` images, ready to launch. */
struct graph {
	size_t batch;
	int steps; /* 0: a gradient */
	cudaGraphExec_t exec;
};

struct cuda {
	const struct model *model;
	const struct cuda_path *path;
	void *net; /* the path's own */
	size_t max_batch, max_index;
	int number; /* of the device */
	char name[300];
	cudaStream_t stream;
	cudaEvent_t copied[CUDA_COPY_PIECES]; /* a piece of a gradient is on the host */
	void *memory;                         /* device */
	float *params, *grad;                 /* device; n_params, in the manifest's order */
	uint32_t *index;
	struct kx_now *now;
	double *loss;
	/* pinned, the host's side of the copies */
	void *pinned;
	float *host_params, *host_scores;
	uint32_t *host_index;
	struct kx_now *host_now;
	double *host_loss;
	uint8_t *pixels, *labels; /* device: the data set */
	struct graph graph[CUDA_MAX_GRAPHS];
	int n_graphs;
};

/* Forget the graphs: they know where things lay. */
void cuda_drop_graphs(struct cuda *c);
/* As struct device. */
int cuda_gradient(void *self, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss) PS_MUST_CHECK;
int cuda_forward(
	void *self, const float *params, size_t first, size_t n, float *scores) PS_MUST_CHECK;
int cuda_local_start(void *self, const float *params) PS_MUST_CHECK;
int cuda_local_steps(void *self, const uint32_t *index, size_t batch, size_t steps, float rate,
	uint64_t dropout_seed, double *loss) PS_MUST_CHECK;
int cuda_local_finish(void *self, float *params, float *sum) PS_MUST_CHECK;

#endif
