/*
 * test_sticky.c - tests that an error of the device is sticky: until the process ends, every later
 * call returns PS_EDEVICE, and no call hangs or crashes. The program has only this test, because
 * afterwards its process cannot use the GPU.
 */
#include "tests/support/gpu_fixture.h"
#include "tests/gpu/poison.h"
#include "tests/support/test.h"

TEST(after_an_error_of_the_device_every_call_fails)
{
	struct subject s;
	struct err e = {0};
	struct backend *other;
	size_t correct;
	double loss;
	float p[3];

	gpu_begin();
	if (gpu_n_precisions() == 1)
		skip(); /* the device under test is a CPU, so the process has no CUDA context */
	subject_random(&s, &contract_small, 20);
	gpu_open(&s, gpu_precisions);
	subject_step(&s);
	assert_true(poison() > 0);
	struct backend *b = s.backend;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(
			backend_gradient(b, s.params, s.index, 20, 0, s.grad, &loss), PS_EDEVICE);
		assert_int_equal(backend_evaluate(b, s.params, 0, 20, &correct, &loss), PS_EDEVICE);
		assert_int_equal(backend_predict(b, s.params, 0, 1, p), PS_EDEVICE);
	}
	assert_int_equal(backend_use(b, &s.images, &e), PS_EDEVICE);
	assert_null(strchr(e.text, '\n'));
	assert_true(strlen(e.text) > 10);
	struct backend_options o = {.device = gpu_device(), .threads = 1, .max_batch = 1};
	assert_int_equal(backend_new(&other, &s.model, &o, &e), PS_EDEVICE);
	assert_null(other);
	subject_release(&s);
}
