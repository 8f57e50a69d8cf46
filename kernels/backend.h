/*
 * backend.h - gradients of one model on one device, behind one interface.
 *
 * cpu-ref  sequential, obvious, double accumulators: the truth the others are compared with.
 * cpu      threads, SIMD chosen at run time (baseline, AVX2, AVX-512), fused conv + ReLU +
 *          max-pool.
 * cuda     an NVIDIA GPU, where the program was built with CUDA; "cuda:1" is the second one.
 *
 * A pixel enters as p / 255. The loss is softmax cross-entropy; a gradient is the mean over the
 * batch's images. Max-pool: the first maximum in row order wins. ReLU passes its gradient where the
 * output is > 0. Dropout keeps a value and scales it by 1/(1-p) when rng_mix(dropout_seed ^
 * rng_mix(l << 40 | i)) >> 40 is at least p * 2^24 (l = layer number, i = n * values per image +
 * value): equal masks on every device.
 *
 * Determinism: equal arguments and threads give equal bytes.
 * Thread: a struct backend belongs to one thread at a time (it starts its own inside).
 */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/model.h"

/* A data set as bytes: image n is pixels + n * shape_count(model input), row-major; labels[n] <
 * classes. */
struct kx_images {
	const uint8_t *pixels;
	const uint8_t *labels;
	size_t n;
};

struct backend; /* opaque */

/* What products are computed in on cuda; sums are fp32 in each. The CPU devices know fp32 only. */
enum kx_precision { KX_FP32, KX_TF32, KX_BF16 };
#define KX_PRECISION_NAMES "fp32|tf32|bf16"

struct backend_options {
	const char *device; /* "auto", "cpu", "cpu-ref"; where built in "cuda", "cuda:N" */
	int threads;        /* >= 1; only cpu uses more than one */
	size_t max_batch;   /* most images per call of backend_gradient */
	int precision;      /* enum kx_precision */
};

/* PS_EUSAGE: no such device, with the ones there are in `e`. PS_ENOMEM, PS_EDEVICE. `m` must
 * outlive it. "auto" takes a GPU that answers, else it says why not and takes the CPU (fp32). */
int backend_new(struct backend **out, const struct model *m, const struct backend_options *o,
	struct err *e) PS_MUST_CHECK;
/* Frees and nulls *b; NULL is fine. */
void backend_free(struct backend **b);
/* For people: "cpu 2 threads avx512". Valid as long as b. */
const char *backend_name(const struct backend *b);
/* The kernels that compute each layer with weights in a gradient of `batch` images, as the dispatch
 * chooses them: "conv1=fused conv2=mma:3xtf32/bf16/bf16 fc1=general:ffma/ffma/ffma". Cut to `size`.
 * Three ways are those of the values, the weights' gradient and the input's gradient. */
#define BACKEND_KERNELS_TEXT 1024
void backend_kernels(const struct backend *b, size_t batch, char *text, size_t size);
/* Make `set` (borrowed, must outlive b or the next call) the one that indices refer to. A GPU
 * copies it once. */
int backend_use(struct backend *b, const struct kx_images *set, struct err *e) PS_MUST_CHECK;
/*
 * Mean gradient of images index[0..batch) at `params` into `grad` (both m->n_params floats, no
 * alias; grad is overwritten), and their mean loss. 1 <= batch <= max_batch; every index < set n:
 * checked, PS_EUSAGE.
 */
int backend_gradient(struct backend *b, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss) PS_MUST_CHECK;
/* Forward only (no dropout) over images [first, first + n): how many are right, and the sum of
 * losses. Any n. */
int backend_evaluate(struct backend *b, const float *params, size_t first, size_t n,
	size_t *correct, double *loss_sum) PS_MUST_CHECK;
/* Class probabilities (n x classes) of images [first, first + n). */
int backend_predict(struct backend *b, const float *params, size_t first, size_t n,
	float *probability) PS_MUST_CHECK;

/*
 * Local training: plain SGD with the weights kept on the device, for a worker that pushes the sum
 * of several gradients. Such a burst begins with start: from `params`, with an empty sum. steps:
 * step j of `steps` is the gradient g of images index[j * batch ..) with dropout seed dropout_seed
 * + j at the present weights; sum += g; weights -= rate * g. finish: weights and sum (NULL: not
 * wanted). wait: for the oldest burst that was not waited for; *loss (NULL: not wanted) = mean over
 * its images. One that is not finished goes on after that.
 *
 * The first three may come back before it is done: `params` is the caller's again when finish has
 * come back, and what finish was given is written when wait has. LOCAL_BURSTS may be started and
 * not waited for, so that a device need not wait for what is done with its results. No other call
 * of the backend while there is one. PS_EUSAGE: out of order.
 */
#define LOCAL_BURSTS 2
int backend_local_start(struct backend *b, const float *params) PS_MUST_CHECK;
int backend_local_steps(struct backend *b, const uint32_t *index, size_t batch, size_t steps,
	float rate, uint64_t dropout_seed) PS_MUST_CHECK;
int backend_local_finish(struct backend *b, float *params, float *sum) PS_MUST_CHECK;
int backend_local_wait(struct backend *b, double *loss) PS_MUST_CHECK;

/* Where parameters and gradients had best lie for this device (a GPU: pinned memory; any other
 * works, slower). take: zeroed, aligned to 64 bytes; NULL: no memory. Any thread, also after the
 * backend is gone. */
struct backend_memory {
	int special; /* worth a copy to get there */
	void *(*take)(size_t bytes);
	void (*give)(void *memory);
};
const struct backend_memory *backend_memory(const struct backend *b);
/* After PS_EDEVICE: which call failed first, and why, in one line; else "". Valid as long as b. */
const char *backend_why(const struct backend *b);

#endif
