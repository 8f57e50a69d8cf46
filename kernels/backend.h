/*
 * backend.h - gradients of one model on one device, behind one interface.
 *
 * cpu-ref  sequential, obvious, double accumulators: the truth the others are compared with.
 * cpu      threads, SIMD chosen at run time (baseline, AVX2, AVX-512), fused conv + ReLU +
 * max-pool.
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

struct backend_options {
	const char *device; /* "auto", "cpu", "cpu-ref" ("cuda[:N]" where built in) */
	int threads;        /* >= 1; cpu-ref uses one */
	size_t max_batch;   /* most images per call of backend_gradient */
};

/* PS_EUSAGE: no such device, with the ones there are in `e`. PS_ENOMEM, PS_EDEVICE. `m` must
 * outlive it. */
int backend_new(struct backend **out, const struct model *m, const struct backend_options *o,
	struct err *e) PS_MUST_CHECK;
/* Frees and nulls *b; NULL is fine. */
void backend_free(struct backend **b);
/* For people: "cpu 2 threads avx512". Valid as long as b. */
const char *backend_name(const struct backend *b);
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

#endif
