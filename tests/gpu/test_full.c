/*
 * test_full.c - tests which device a backend uses if GPUs have no free memory (small_gpu.c). The
 * test of the order in which GPUs are tried is test_choose.c.
 */
#include <stdlib.h>
#include "tests/support/gpu_fixture.h"
#include "tests/support/test.h"
#ifdef KX_CUDA
#include <cuda_runtime_api.h>
#endif

/* Open `device` and compute a gradient, which must be that of cpu-ref. The GPUs whose number is
 * less than `full` have no free memory. Writes the name of the device that was used to `used`. */
static int open_and_use(const char *device, const char *full, char used[32], struct err *e)
{
	struct subject s;
	const struct backend_options o = {.device = device, .threads = 1, .max_batch = 20};
	int rc;

	setenv("CNN_TEST_FULL", full, 1);
	*e = (struct err){0};
	used[0] = '\0';
	subject_random(&s, &contract_small, 20);
	rc = backend_new(&s.backend, &s.model, &o, e);
	if (!rc) {
		double loss;
		float *right;

		assert_int_equal(backend_use(s.backend, &s.images, e), PS_OK);
		subject_step(&s);
		right = gpu_reference(&s, &loss);
		assert_true(gpu_worst_tensor(&s, right) < 1e-3);
		free(right);
		snprintf(used, 32, "%s", backend_device(s.backend));
	}
	subject_release(&s);
	unsetenv("CNN_TEST_FULL");
	return rc;
}

TEST(auto_takes_the_cpu_if_no_gpu_has_memory)
{
	char used[32];
	struct err e;

	gpu_begin();
	if (gpu_n_precisions() == 1)
		skip(); /* the device under test is a CPU */
	unsetenv("SLURM_LOCALID");
	assert_int_equal(open_and_use("auto", "64", used, &e), PS_OK);
	assert_string_equal(used, "cpu");
	assert_int_equal(open_and_use("cuda", "64", used, &e), PS_ENOMEM);
	assert_non_null(strstr(e.text, "memory on the GPU"));
	assert_int_equal(
		open_and_use("auto", "0", used, &e), PS_OK); /* nothing is left of the failures */
	assert_memory_equal(used, "cuda:", 5);
}

TEST(a_full_gpu_is_skipped_for_another_one)
{
#ifdef KX_CUDA
	char used[32];
	struct err e;
	int n;

	gpu_begin();
	if (gpu_n_precisions() == 1 || cudaGetDeviceCount(&n) || n < 2)
		skip();
	unsetenv("SLURM_LOCALID");
	for (int i = 0; i < 2; i++) {
		assert_int_equal(open_and_use(i ? "auto" : "cuda", "1", used, &e), PS_OK);
		assert_memory_equal(used, "cuda:", 5);
		assert_string_not_equal(used, "cuda:0");
	}
	assert_int_equal(open_and_use("cuda:0", "1", used, &e), PS_ENOMEM);
#else
	skip();
#endif
}
