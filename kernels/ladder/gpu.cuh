/*
 * gpu.cuh - what the CUDA rungs share: checked calls, memory that one call frees, marks on the
 * stream that become a profile, and the kernels that a later rung takes over from an earlier one.
 *
 * Every rung works on the default stream of its own, `struct gpu` below; a failed call ends the
 * step with PS_EDEVICE and CUDA's own words.
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

#define MARKS_MAX  1024
#define BLOCKS_MAX 24

struct gpu {
	cudaStream_t stream;
	struct {
		void *at;
		int on_host;
	} block[BLOCKS_MAX];
	size_t n_blocks;
	/* marks of the step that is being profiled; event[0] is its beginning */
	struct profile *profile; /* NULL: marks cost nothing */
	cudaEvent_t event[MARKS_MAX + 1];
	const char *name[MARKS_MAX];
	enum phase_kind kind[MARKS_MAX];
	size_t n_marks;
};

/* Fill `e` from a failed call and return PS_EDEVICE. */
int gpu_failed(cudaError_t status, const char *call, struct err *e);
#define TRY(call, e)                                                                               \
	do {                                                                                       \
		cudaError_t status_ = (call);                                                      \
		if (status_ != cudaSuccess)                                                        \
			return gpu_failed(status_, #call, e);                                      \
	} while (0)
/* After each launch. */
#define LAUNCHED(e) TRY(cudaGetLastError(), e)

int gpu_open(struct gpu *g, struct err *e) PS_MUST_CHECK;
/* Frees every block too; fine after a failed gpu_open. */
void gpu_close(struct gpu *g);
enum gpu_place { GPU_DEVICE, GPU_PINNED };
int gpu_alloc(
	struct gpu *g, void **out, size_t bytes, enum gpu_place where, struct err *e) PS_MUST_CHECK;
/* `field` becomes room for `n` of what it points to. */
#define GPU_ALLOC(g, field, n, where, e)                                                           \
	gpu_alloc((g), (void **)&(field), (n) * sizeof *(field), (where), (e))

/* A step begins; the marks of one without a profile are not made. */
int gpu_begin(struct gpu *g, struct profile *p, struct err *e) PS_MUST_CHECK;
/* What the stream was given since the last mark is phase `name`. */
int gpu_mark(struct gpu *g, const char *name, enum phase_kind kind, struct err *e) PS_MUST_CHECK;
/* Wait for the stream, and add the marks' times to the profile. */
int gpu_end(struct gpu *g, struct err *e) PS_MUST_CHECK;

/* A rung's open: *self = a zeroed R for task `t` that `allocate` did the rest of; NULL after a
 * failure. */
template <class R, class A>
static int rung_open(
	void **self, const struct ladder_task *t, void (*close)(void *), A allocate, struct err *e)
{
	R *r = (R *)mem_try(1, sizeof *r);
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

/* Images [0, n) of a step or of a part of it, on the device; a row of `pooled`, `winner`,
 * `d_pooled`, `grad` per image. */
struct fused {
	size_t filters, n_params;
	const float *params;
	const float *images;   /* n x IMAGE_AREA, 0 to 1 */
	const uint8_t *labels; /* n */
	float *pooled;         /* n x F * POOL_AREA */
	uint8_t *argmax; /* n x F * POOL_AREA: 0 to 3 in row order, DEAD if ReLU let nothing out */
	float *logits;   /* n x CLASSES; d loss / d score after fused_softmax */
	float *loss;     /* n */
	float *d_pooled; /* n x F * POOL_AREA */
	float *grad;     /* n x n_params, overwritten */
};
enum { DEAD = 4 };

/* Room for the rows of `rows` images; params, images, labels and loss are the caller's. */
int fused_allocate(struct gpu *g, struct fused *k, size_t rows, struct err *e);
int fused_convolve(struct gpu *g, const struct fused *k, size_t n, struct err *e);
int fused_fc(struct gpu *g, const struct fused *k, size_t n, struct err *e);
int fused_softmax(struct gpu *g, const struct fused *k, size_t n, struct err *e);
int fused_backward(struct gpu *g, const struct fused *k, size_t n, struct err *e);

/* Sum of each lane's `value`, in lane 0; the order of additions is fixed. */
static __device__ inline float warp_sum(float value)
{
	for (int step = 16; step > 0; step /= 2)
		value += __shfl_down_sync(0xffffffffu, value, step);
	return value;
}

#endif
