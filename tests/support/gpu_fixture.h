/*
 * gpu_fixture.h - the CUDA device under test, its precisions, and how far its gradients may be from
 * those of cpu-ref. cpu-ref computes in double precision.
 *
 * CNN_TEST_DEVICE=cpu runs the tests on the CPU instead of "cuda", only in fp32, so that one can
 * try out the tests themselves without a GPU. With CNN_TEST_KERNELS=general, the device uses the
 * kernels of `cnn-worker --kernels general`. If the device is missing, every test is skipped, or
 * fails if KX_REQUIRE_GPU=1.
 */
#ifndef TESTS_SUPPORT_GPU_FIXTURE_H
#define TESTS_SUPPORT_GPU_FIXTURE_H
#include "tests/support/backend_contract.h"

struct precision {
	const char *name;
	enum kx_precision value;
	double bound; /* the bound on |g - exact| / |exact| for a whole gradient g */
	/* The bound on |g - exact| / |exact| of a network whose forward pass rounds to tf32 or
	 * bf16. Rounding errors of tf32 and bf16 flip some ReLUs and argmaxes. A wrong gradient has
	 * a distance of about 1. */
	double loose;
	double rounding; /* the relative rounding error of one value, for gradient_jump */
};

#define N_PRECISIONS 4
extern const struct precision gpu_precisions[N_PRECISIONS];
/* Returns the number of precisions that the device has. */
size_t gpu_n_precisions(void);

/* Every test calls gpu_begin first. If the device is missing, gpu_begin skips the test or fails
 * it. */
void gpu_begin(void);
const char *gpu_device(void);
void gpu_open(struct subject *s, const struct precision *p);
/* Does the same as gpu_open, for a backend that can only evaluate. A worker uses such a backend for
 * its evaluations. */
void gpu_open_forward(struct subject *s, const struct precision *p);
/* Compute the gradient with the device cpu-ref, on all CPUs. The caller frees the gradient. Writes
 * the loss to *loss. */
float *gpu_reference(const struct subject *s, double *loss);
/* Run the step that computed s->grad again. The new gradient and loss must have the same bytes as
 * s->grad and s->loss. */
void gpu_repeat(struct subject *s);
/* Returns the largest relative distance between a tensor of s->grad and the same tensor of `right`.
 * Unlike the distance of the whole gradient, this distance shows a small tensor that is completely
 * wrong. */
double gpu_worst_tensor(const struct subject *s, const float *right);

#endif
