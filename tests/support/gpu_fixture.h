/*
 * gpu_fixture.h - the CUDA device under test, its precisions, and the bounds on its distance from
 * cpu-ref, which computes in double precision.
 *
 * CNN_TEST_DEVICE names another device than "cuda", to try the tests themselves: "cpu" has fp32
 * only. Without the device every test is skipped; with KX_REQUIRE_GPU=1 it fails.
 */
#ifndef TESTS_SUPPORT_GPU_FIXTURE_H
#define TESTS_SUPPORT_GPU_FIXTURE_H
#include "tests/support/backend_contract.h"

struct precision {
	const char *name;
	enum kx_precision value;
	double bound;    /* on |g - exact| / |exact| of a whole gradient */
	double rounding; /* of one value, for gradient_jump */
};

#define N_PRECISIONS 3
extern const struct precision gpu_precisions[N_PRECISIONS];
/* How many of them the device has. */
size_t gpu_n_precisions(void);

/* The first call of every test: skips it without the device, or fails it. */
void gpu_begin(void);
const char *gpu_device(void);
void gpu_open(struct subject *s, const struct precision *p);
/* The gradient of cpu-ref, which the caller frees; its loss in *loss. */
float *gpu_reference(struct subject *s, double *loss);
/* The same step again gives the same bytes. */
void gpu_repeat(struct subject *s);
/* The largest distance of a single tensor, so that a small tensor that is all wrong is found. */
double gpu_worst_tensor(const struct subject *s, const float *right);

#endif
