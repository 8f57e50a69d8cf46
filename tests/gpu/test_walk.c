/*
 * test_walk.c - runs every kernel of the CUDA device once, on little data: a gradient, an
 * evaluation and local training of some odd models and of the networks for MNIST, in each
 * precision. Other tests check the results. This program runs under compute-sanitizer
 * (test_sanitizer.py), where a launch takes milliseconds and a large launch seconds.
 *
 *   test_walk [NUMBER]     the number of the only model to run, from 0; past the last: exit
 *                        status 3
 */
#include "tests/support/gpu_fixture.h"

static const struct odd_model nets[] = {
	/* a small batch needs one launch in fp32; in a low precision, one launch makes all steps */
	{{1, 28, 28}, "seed:8"},
	{{1, 28, 28}, "seed:40"}, /* three launches in fp32, two others in low precision */
	{{1, 28, 28}, "lenet5"},
	{{1, 28, 28}, "cnn99"},
	{{3, 11, 7}, "conv:5:3:stride=2 relu conv:7:2 relu fc:4"},
	{{1, 9, 13}, "conv:17:5:pad=same relu pool:3:pad=auto fc:3"},
	{{2, 6, 5}, "conv:18:3:pad=same relu conv:35:3:pad=1 relu pool:5:pad=auto fc:3"},
	{{1, 7, 7}, "conv:6:2 dropout:0.3 relu pool:2 dropout:0.5 fc:7 relu dropout:0.25 fc:3"},
	{{1, 12, 12}, "relu fc:97 relu fc:5"},
	{{1, 9, 9}, "conv:16:3:pad=1 relu lrn pool:3:stride=2 conv:8:3:pad=1:groups=2 sigmoid "
		    "avgpool:2:stride=1 fc:7 tanh fc:3"},
	{{2, 7, 6}, "conv:5:2 skip conv:9:3:stride=3:pad=auto relu add avgpool:global fc:3"},
	{{2, 6, 7}, "conv:9:3:pad=1 batchnorm relu conv:33:2 batchnorm pool:2:pad=auto fc:5 "
		    "batchnorm fc:3"},
	/* in fp32, Winograd's tiles */
	{{1, 12, 12},
		"conv:64:3 conv:72:3 pool:2 conv:64:5:pad=3 relu pool:2 conv:72:5:pad=4 fc:3"},
};

static void walk_model(const struct odd_model *o, const struct precision *p)
{
	struct subject s;
	size_t correct;
	double loss;

	subject_random(&s, o, strcmp(o->text, "seed:40") ? 6 : 247);
	gpu_open(&s, p);
	subject_step(&s);
	assert_true(isfinite(s.loss));
	for (size_t i = 0; i < s.model.n_params; i++)
		if (!isfinite(s.grad[i]))
			fail_msg("%s in %s: parameter %zu has the gradient %g", o->text, p->name, i,
				s.grad[i]);
	assert_int_equal(backend_evaluate(s.backend, s.params, 1, 5, &correct, &loss), PS_OK);
	assert_true(isfinite(loss));
	s.batch = 3;
	assert_int_equal(backend_local_start(s.backend, s.params), PS_OK);
	assert_int_equal(backend_local_steps(s.backend, s.index, 3, 2, 0.01f, 1), PS_OK);
	assert_int_equal(backend_local_finish(s.backend, s.params, s.grad), PS_OK);
	assert_int_equal(backend_local_wait(s.backend, &loss), PS_OK);
	assert_true(isfinite(loss));
	subject_release(&s);
}

static size_t first, end = sizeof(nets) / sizeof(nets[0]);

static void every_net_walks_in_every_precision(void **state)
{
	(void)state;
	gpu_begin();
	for (size_t m = first; m < end; m++)
		for (size_t p = 0; p < gpu_n_precisions(); p++)
			walk_model(&nets[m], &gpu_precisions[p]);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		first = strtoul(argv[1], NULL, 10);
		if (first >= end)
			return 3;
		end = first + 1;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_net_walks_in_every_precision),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
