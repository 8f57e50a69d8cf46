/*
 * gpu.cuh - helpers of the CUDA rungs: checked calls, memory that gpu_close frees, events that
 * become a profile, and kernels that several rungs share.
 *
 * Each rung has its own stream in struct gpu. A failed call ends the step with PS_EDEVICE and
 * CUDA's error text.
 */
#ifndef KERNELS_LADDER_GPU_CUH
#define KERNELS_LADDER_GPU_CUH
#include <cuda_runtime.h>
#include "kernels/ladder/image.h"
#include "kernels/ladder/ladder.h"
extern "C" {
#include "common/clock.h"
#include "common/mem.h"
}

#define MAX_MARKS       1024
#define MAX_ALLOCATIONS 24

struct gpu {
	cudaStream_t stream;
	struct {
		void *at;
		int on_host;
	} block[MAX_ALLOCATIONS];
	size_t n_blocks;
	/* receives the times of the phases; NULL: the step records no marks */
	struct profile *profile;
	/* the marks of a profiled step, each with an event, a name and a kind; event[0] is the
	 * start of the step */
	cudaEvent_t event[MAX_MARKS + 1];
	const char *name[MAX_MARKS];
	enum phase_kind kind[MAX_MARKS];
	size_t n_marks;
};

/* Describes the failed call in `e` and returns PS_EDEVICE. */
int gpu_failed(cudaError_t status, const char *call, struct err *e);
#define TRY(call, e)                                                                               \
	do {                                                                                       \
		cudaError_t status_ = (call);                                                      \
		if (status_ != cudaSuccess)                                                        \
			return gpu_failed(status_, #call, e);                                      \
	} while (0)
/* Checks the preceding launch. Every launch is followed by this macro. */
#define LAUNCHED(e) TRY(cudaGetLastError(), e)

int gpu_open(struct gpu *g, struct err *e) PS_MUST_CHECK;
/* Frees the stream, the events and all blocks. The caller may call gpu_close after a failed
 * gpu_open. */
void gpu_close(struct gpu *g);
enum gpu_place { GPU_DEVICE, GPU_PINNED };
int gpu_alloc(
	struct gpu *g, void **out, size_t bytes, enum gpu_place where, struct err *e) PS_MUST_CHECK;
/* Allocates `n` elements of the type that `field` points to. */
#define GPU_ALLOC(g, field, n, where, e)                                                           \
	gpu_alloc((g), (void **)&(field), (n) * sizeof(*(field)), (where), (e))

/* Begins a step. If `p` is NULL, the step records no marks. */
int gpu_begin(struct gpu *g, struct profile *p, struct err *e) PS_MUST_CHECK;
/* Ends the phase `name`, which is all work submitted to the stream since the last mark. */
int gpu_mark(struct gpu *g, const char *name, enum phase_kind kind, struct err *e) PS_MUST_CHECK;
/* Waits for the stream and adds the times of the phases to the profile. */
int gpu_end(struct gpu *g, struct err *e) PS_MUST_CHECK;

/* Implements `open` of a rung: allocates a zeroed R for task `t` and calls `allocate` to fill it.
 * After a failure *self is NULL. */
template <class R, class A>
static int gpu_rung_open(
	void **self, const struct ladder_task *t, void (*close)(void *), A allocate, struct err *e)
{
	R *r = (R *)mem_try(1, sizeof(*r));

	*self = NULL;
	if (!r)
		return err_set(e, PS_ENOMEM, "no memory for a rung");
	r->task = *t;
	int rc = allocate(r);
	if (rc)
		close(r);
	else
		*self = r;
	return rc;
}

/* ---- kernels of fused.cu, from rung 3 on ----------------------------------------------------- */

/* Device arrays for images [0, n) of a step or of a part of it. pooled, argmax, d_pooled and grad
 * have one row per image. */
struct fused {
	size_t filters, n_params;
	const float *params;
	const float *images;    /* n x IMAGE_AREA pixels, each from 0 to 1 */
	const uint16_t *labels; /* n labels */
	float *pooled;          /* n x F * POOL_AREA values */
	uint8_t *argmax;        /* n x F * POOL_AREA: 0 to 3 in row order; DEAD if ReLU gives 0 */
	float *logits;          /* n x CLASSES; d loss / d logits after fused_softmax */
	float *loss;            /* n losses */
	float *d_pooled;        /* n x F * POOL_AREA values */
	float *grad;            /* n x n_params values, overwritten */
};
enum { DEAD = 4 };

/* Allocates the rows of `rows` images. The caller provides params, images, labels and loss. */
int fused_allocate(struct gpu *g, struct fused *k, size_t rows, struct err *e);
int fused_convolve(struct gpu *g, const struct fused *k, size_t n, struct err *e);
int fused_fc(struct gpu *g, const struct fused *k, size_t n, struct err *e);
int fused_softmax(struct gpu *g, const struct fused *k, size_t n, struct err *e);
int fused_backward(struct gpu *g, const struct fused *k, size_t n, struct err *e);

/* Adds up `value` over the warp in a fixed order. Lane 0 returns the sum. */
static __device__ inline float warp_sum(float value)
{
	for (int step = 16; step > 0; step /= 2)
		value += __shfl_down_sync(0xffffffffu, value, step);
	return value;
}

#endif
