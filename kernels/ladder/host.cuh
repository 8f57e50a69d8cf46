/*
 * host.cuh - the host side of the first CUDA rungs. A batch goes to the device as floats through
 * pageable buffers. The gradients of all images come back through these buffers, and the host adds
 * them up.
 */
#ifndef KERNELS_LADDER_HOST_CUH
#define KERNELS_LADDER_HOST_CUH
#include "kernels/ladder/gpu.cuh"

struct host_batch {
	size_t n_params;
	float *images;    /* images of a batch */
	uint16_t *labels; /* labels of a batch */
	float *loss;      /* losses of a batch */
	float *grads;     /* gradients of a batch, if rows > 0 */
};

/* `rows` is the number of per-image gradients that are copied to the host at a time. If `rows` is
 * 0, the device adds up the gradients. */
int host_batch_init(struct host_batch *h, size_t max_batch, size_t rows, size_t n_params,
	struct err *e) PS_MUST_CHECK;
void host_batch_release(struct host_batch *h);

/* The device buffers of a batch. */
struct host_target {
	float *params, *images;
	uint16_t *labels;
};

int host_target_init(struct host_target *t, struct gpu *g, size_t max_batch, size_t n_params,
	struct err *e) PS_MUST_CHECK;

/* Begins a step: gathers the batch and starts the copies of batch and parameters to the device. */
int host_batch_send(struct host_batch *h, struct gpu *g, const struct ladder_task *t,
	const struct ladder_batch *b, const struct host_target *to, struct profile *p,
	struct err *e) PS_MUST_CHECK;
/* Ends a step: copies n rows of gradients and losses to the host and computes their means. */
int host_batch_sum(struct host_batch *h, struct gpu *g, size_t n, const float *grads,
	const float *losses, float *grad, double *loss, struct err *e) PS_MUST_CHECK;
/* Ends a step of a rung that computes the mean gradient on the device: copies the mean gradient and
 * the losses to the host. */
int host_batch_take(struct host_batch *h, struct gpu *g, size_t n, const float *mean,
	const float *losses, float *grad, double *loss, struct err *e) PS_MUST_CHECK;

#endif
