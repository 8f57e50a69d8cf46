/*
 * backend.h - gradients of one model on one device, behind one interface.
 *
 * There are three devices. "cpu-ref" is a sequential reference with double accumulators; tests
 * compare the other devices with it. "cpu" uses threads and SIMD (baseline, AVX2 or AVX-512, chosen
 * at run time) and fuses conv, ReLU and max-pool. "cuda" is an NVIDIA GPU, in a program built with
 * CUDA; "cuda:1" is the second GPU.
 *
 * A pixel of value v becomes the input v / 255 or, if the model has a norm, the input that
 * preprocess.h defines. If images are to be shifted or flipped, the caller does so before
 * backend_use. The loss is softmax cross-entropy. A gradient is the mean over the images of the
 * batch. Max-pool takes the first maximum in row order. ReLU passes the gradient where its output
 * is > 0. Dropout drops the same values on every device (dropout_drops in kernels/device/device.h).
 *
 * Determinism: on one device, equal arguments and an equal number of threads give equal bytes.
 * Thread: one thread at a time uses a struct backend. A device may start threads of its own.
 */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/model.h"
#include "kernels/device/types.h"

struct backend; /* opaque, see backend.c */

/* Creates a backend for model `m`, which must outlive the backend. The devices "auto" and "cuda"
 * try the GPUs, the least used one first, until the model can be opened on one
 * (kernels/cuda/choose.h). If no GPU works or has enough memory, "auto" chooses the CPU (fp32). The
 * reasons are logged. PS_EUSAGE: a bad option or an unknown device; for an unknown device, `e`
 * lists the devices of this build. PS_ENOMEM, PS_EDEVICE. */
int backend_new(struct backend **out, const struct model *m, const struct backend_options *o,
	struct err *e) PS_MUST_CHECK;
/* Frees *b and sets it to NULL. *b may be NULL. */
void backend_free(struct backend **b);
/* Returns a text for messages, such as "cpu 2 threads avx512". The text is valid until
 * backend_free. */
const char *backend_name(const struct backend *b);
/* Returns the value of backend_options.device that chooses the device of `b` again, such as
 * "cuda:1". The text is valid until backend_free. */
const char *backend_device(const struct backend *b);
/* Returns the precision in which `b` computes, a value of enum kx_precision: that of the options,
 * or KX_FP32 if the device supports no other. */
int backend_precision(const struct backend *b);
/* Writes the names of the kernels that a gradient of `batch` images uses for each layer with
 * weights: "conv1=fused conv2=mma:3xtf32/bf16/bf16 fc1=general:ffma/ffma/ffma". Three methods
 * separated by slashes are those of the forward pass (fprop), of the gradient of the weights
 * (wgrad) and of the gradient of the input (dgrad). A text that does not fit in `size` bytes is
 * cut. */
#define BACKEND_KERNELS_TEXT 1024
void backend_kernels(const struct backend *b, size_t batch, char *text, size_t size);
/* Selects the data set that indices refer to. `set` is borrowed: it must stay until the next call
 * or until backend_free. A GPU copies the data set to its own memory in this call. */
int backend_use(struct backend *b, const struct kx_images *set, struct err *e) PS_MUST_CHECK;
/*
 * Computes the mean gradient, the statistics of batchnorm and the mean loss of images
 * index[0..batch) at `params`. `params` and `grad` have m->n_params floats each and must not
 * overlap. `grad` is overwritten. PS_EUSAGE: batch is 0 or above max_batch, an index is not below
 * the data set's n, or the backend was created with `forward_only`.
 */
int backend_gradient(struct backend *b, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss) PS_MUST_CHECK;
/* Runs only the forward pass, without dropout, over images [first, first + n). n may be up to the
 * size of the data set. *correct counts the images that are classified correctly; *loss_sum is the
 * sum of their losses. */
int backend_evaluate(struct backend *b, const float *params, size_t first, size_t n,
	size_t *correct, double *loss_sum) PS_MUST_CHECK;
/* Writes the probabilities of the classes of images [first, first + n): n rows of `classes`
 * floats. */
int backend_predict(struct backend *b, const float *params, size_t first, size_t n,
	float *probability) PS_MUST_CHECK;

/*
 * Local training: plain SGD with the weights on the device, for a worker that pushes the sum of
 * several gradients. A round is a series of SGD steps:
 *
 * - backend_local_start begins a round at the weights `params` with an empty sum.
 * - backend_local_steps runs `steps` SGD steps. Step j computes the gradient g of images index[j *
 *   batch ..) at the current weights with dropout seed dropout_seed + j. Then it adds g to the sum
 *   and subtracts rate * g from the weights. Running statistics (model.h) do not change. The caller
 *   can call backend_local_steps several times in a round.
 * - backend_local_finish ends the round and requests its weights and its sum, if their pointers are
 *   not NULL.
 * - backend_local_wait waits for the oldest round in flight. If `loss` is not NULL, *loss is the
 *   mean loss of the images of this round. If backend_local_finish has not ended this round yet,
 *   the round continues after the call.
 *
 * All of these functions except backend_local_wait can return before the device has done the work.
 * The caller may reuse the `params` of backend_local_start as soon as backend_local_finish has
 * returned. The results of backend_local_finish are complete when backend_local_wait has returned.
 * Up to backend_options.rounds rounds may be in flight: with two, the device computes one round
 * while the caller uses the results of the previous round. No other function of the backend may be
 * called while a round is in flight. PS_EUSAGE: calls in the wrong order.
 */
int backend_local_start(struct backend *b, const float *params) PS_MUST_CHECK;
int backend_local_steps(struct backend *b, const uint32_t *index, size_t batch, size_t steps,
	float rate, uint64_t dropout_seed) PS_MUST_CHECK;
int backend_local_finish(struct backend *b, float *params, float *sum) PS_MUST_CHECK;
int backend_local_wait(struct backend *b, double *loss) PS_MUST_CHECK;
/* Begins a round with one gradient instead of steps of SGD; the arguments, results and errors are
 * those of backend_gradient. For such a round, `params` of backend_local_finish is NULL, and `sum`
 * receives the gradient. */
int backend_gradient_start(struct backend *b, const float *params, const uint32_t *index,
	size_t batch, uint64_t dropout_seed) PS_MUST_CHECK;
/* Returns 1 if the device computes checksums of the parameters and gradients of the model. */
int backend_hashes(const struct backend *b);
/* Sets *xxh3 to the XXH3-64 of the weights of the newest backend_gradient_start, as the device has
 * read them. Sets *xxh3 to 0 if the device computes no checksums. */
int backend_start_hash(struct backend *b, uint64_t *xxh3) PS_MUST_CHECK;
/* Returns the XXH3-64 of the gradient that the device has computed for the newest backend_gradient
 * or for the newest round that backend_local_wait has waited for. Returns 0 if the round was no
 * gradient, or if the device computes no checksums. */
uint64_t backend_sum_hash(const struct backend *b);
/* Returns 1 if backend_gradient_start returns before the gradient is computed, so that the caller
 * can do other work at the same time. */
int backend_overlaps(const struct backend *b);

/* Returns an allocator for parameters and gradients, whose memory the device copies fastest. */
const struct backend_memory *backend_memory(const struct backend *b);
/* Returns one line with the first call of the device that failed and its error, or "" if no call
 * has failed. The text is valid until backend_free. */
const char *backend_why(const struct backend *b);

#endif
