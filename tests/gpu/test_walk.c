/*
 * test_walk.c - every kernel of the CUDA device once, on little: gradients, evaluation and local
 * training of each odd model and of the nets of MNIST, in each precision. Quick enough to run under
 * compute-sanitizer, which test_sanitizer.py does.
 */
#include "tests/gpu/gpu.h"

static const struct odd_model nets[] = {
	{{1, 28, 28}, "seed:32"},
	{{1, 28, 28}, "seed:256"},
	{{1, 28, 28}, "lenet5"},
	{{1, 28, 28}, "cnn99"},
};

static void walk(const struct odd_model *o, const struct precision *p)
{
	struct subject s;
	size_t correct;
	double loss;
	subject_random(&s, o, 6);
	gpu_open(&s, p);
	subject_step(&s);
	gpu_repeat(&s);
	assert_true(isfinite(s.loss));
	for (size_t i = 0; i < s.model.n_params; i++)
		assert_true(isfinite(s.grad[i]));
	assert_int_equal(backend_evaluate(s.backend, s.params, 1, 5, &correct, &loss), PS_OK);
	assert_true(isfinite(loss));
	s.batch = 3;
	assert_int_equal(backend_local_start(s.backend, s.params), PS_OK);
	assert_int_equal(backend_local_steps(s.backend, s.index, 3, 2, 0.01f, 1, &loss), PS_OK);
	assert_int_equal(backend_local_finish(s.backend, s.params, s.grad), PS_OK);
	assert_true(isfinite(loss));
	subject_release(&s);
}

static void every_odd_model_walks_in_every_precision(void **state)
{
	(void)state;
	gpu_begin();
	for (size_t p = 0; p < n_precisions(); p++)
		for (size_t m = 0; m < N_ODD_MODELS; m++)
			walk(&odd_models[m], &precisions[p]);
}

static void every_net_of_mnist_walks_in_every_precision(void **state)
{
	(void)state;
	gpu_begin();
	for (size_t p = 0; p < n_precisions(); p++)
		for (size_t m = 0; m < sizeof nets / sizeof nets[0]; m++)
			walk(&nets[m], &precisions[p]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_odd_model_walks_in_every_precision),
		cmocka_unit_test(every_net_of_mnist_walks_in_every_precision),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
