/*
 * host.cuh - the host's half of the first CUDA rungs: pageable buffers through which a batch goes
 * to the device as floats, and through which every image's gradient comes back to be summed here.
 */
#ifndef KERNELS_LADDER_HOST_CUH
#define KERNELS_LADDER_HOST_CUH
#include "kernels/ladder/gpu.cuh"

struct host_batch {
	size_t n_params;
	float *images;   /* of a batch */
	uint8_t *labels; /* of a batch */
	float *loss;     /* of a batch */
	float *grads;    /* of a batch, if rows > 0 */
};

/* `rows`: how many images' gradients come back at once; 0: they are summed on the device. */
int host_batch_init(struct host_batch *h, size_t max_batch, size_t rows, size_t n_params,
	struct err *e) PS_MUST_CHECK;
void host_batch_release(struct host_batch *h);

/* Where a batch goes on the device. */
struct host_target {
	float *params, *images;
	uint8_t *labels;
};

int host_target_init(struct host_target *t, struct gpu *g, size_t max_batch, size_t n_params,
	struct err *e) PS_MUST_CHECK;

/* Begins the step: gathers the batch, and puts it and the parameters on their way. */
int host_batch_send(struct host_batch *h, struct gpu *g, const struct ladder_task *t,
	const struct ladder_batch *b, const struct host_target *to, struct profile *p,
	struct err *e) PS_MUST_CHECK;
/* Ends the step: n rows of gradients and losses come back and become their means. */
int host_batch_sum(struct host_batch *h, struct gpu *g, size_t n, const float *grads,
	const float *losses, float *grad, double *loss, struct err *e) PS_MUST_CHECK;
/* Ends the step of a rung whose device has the mean gradient: it and the losses come back. */
int host_batch_take(struct host_batch *h, struct gpu *g, size_t n, const float *mean,
	const float *losses, float *grad, double *loss, struct err *e) PS_MUST_CHECK;

#endif
