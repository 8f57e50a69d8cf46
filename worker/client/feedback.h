/*
 * feedback.h - rounds gradients to bfloat16 for --wire bf16, and feeds the rounding errors back.
 *
 * Before a value of a push is rounded, the rounding error of the same element of the previous push
 * is added to it. The difference between the sum of all gradients and the sum of all sent values is
 * therefore only the newest rounding error, however many pushes there are. Without this feedback,
 * small values beside large ones would be lost in each push. The method is error feedback: F. Seide
 * et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
 * Training of Speech DNNs", Interspeech 2014; S. P. Karimireddy et al., "Error Feedback Fixes
 * SignSGD and other Gradient Compression Schemes", ICML 2019.
 *
 * A push is rounded once, when the program makes it. All its transmissions share the rounded bytes,
 * so a replay has the same bytes (outbox.h). If the server rejects a push, the rounding errors of
 * this push are still added to the next one.
 *
 * Promises:
 * (1) the sum of the sent values plus the error is the sum of the gradients, up to float32's own
 *     rounding (the_sums_differ_by_the_newest_error_only);
 * (2) the error of a value that is not finite is 0 (what_is_not_finite_leaves_no_error).
 *
 * Thread: the program's.
 */
#ifndef WORKER_CLIENT_FEEDBACK_H
#define WORKER_CLIENT_FEEDBACK_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

struct feedback {
	float *error;  /* n_params values; NULL if gradients travel as float32 */
	size_t n_kept; /* only the errors of the first n_kept values are fed back */
	int pending;   /* 0 if all errors are 0 */
};

/* Prepares the feedback for gradients of `n` values. The last values of a gradient may be running
 * statistics of batchnorm. Each push measures these anew, so only the first `n_kept` values are fed
 * back. PS_ENOMEM. */
int feedback_init(struct feedback *f, size_t n, size_t n_kept) PS_MUST_CHECK;
void feedback_release(struct feedback *f);
/* Rounds the values [offset, offset + count) of a gradient, which are at `values`, and writes them
 * to `to` as bfloat16. */
void feedback_round(
	struct feedback *f, const float *values, uint64_t offset, size_t count, void *to);
/* Adds the errors to values that travel as float32, and forgets these errors. Returns 0 if there is
 * no error to add. */
int feedback_add(struct feedback *f, float *values, uint64_t offset, size_t count);

#endif
