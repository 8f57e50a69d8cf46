/*
 * gpu_fixture.h - the CUDA device under test, its precisions, and the bounds on its distance from
 * cpu-ref. cpu-ref computes in double precision.
 *
 * CNN_TEST_DEVICE names another device than "cuda", to try out the tests themselves; "cpu" has fp32
 * only. CNN_TEST_KERNELS=general: as --kernels general. Without the device every test is skipped,
 * or fails if KX_REQUIRE_GPU=1.
 */
#ifndef TESTS_SUPPORT_GPU_FIXTURE_H
#define TESTS_SUPPORT_GPU_FIXTURE_H
#include "tests/support/backend_contract.h"

struct precision {
	const char *name;
	enum kx_precision value;
	double bound; /* the bound on |g - exact| / |exact| of a whole gradient */
	/* The bound on |g - exact| / |exact| where rounded values decide ReLUs and pools:
	 * forward in tf32 and bf16. A gradient that is computed wrong is off by about 1. */
	double loose;
	double rounding; /* the relative rounding error of one value, for gradient_jump */
};

#define N_PRECISIONS 4
extern const struct precision gpu_precisions[N_PRECISIONS];
/* The number of precisions that the device has. */
size_t gpu_n_precisions(void);

/* Every test calls gpu_begin first. Without the device it skips the test or fails it. */
void gpu_begin(void);
const char *gpu_device(void);
void gpu_open(struct subject *s, const struct precision *p);
/* The gradient of cpu-ref, which the caller frees. Its loss goes to *loss. */
float *gpu_reference(struct subject *s, double *loss);
/* Repeat the same step. It must give the same bytes. */
void gpu_repeat(struct subject *s);
/* The relative distance of the tensor that differs most. It shows a small tensor that is
 * completely wrong. */
double gpu_worst_tensor(const struct subject *s, const float *right);

#endif
