/* test_kernels.c - proves that both CPU devices keep the promises of kernels/backend.h, and that
 * the gradients of cpu-ref are the slopes of its losses. */
#include "tests/support/backend_contract.h"
#include "kernels/device/device.h"
#include "tests/support/sanitizer.h"

static struct contract both = {{"cpu-ref", "cpu"}, NULL};

/* ---- cpu-ref: gradients are slopes ----------------------------------------------------------- */

/* Returns the slope of the loss along parameter i, by a central difference. */
static double measured_slope(struct subject *s, size_t i)
{
	const float kept = s->params[i], step = 0x1p-20f;

	s->params[i] = kept + step;
	double above = s->params[i];
	subject_step(s);
	double loss = s->loss;
	s->params[i] = kept - step;
	double width = above - (double)s->params[i];
	subject_step(s);
	s->params[i] = kept;
	return (loss - s->loss) / width;
}

/* Checks that a gradient of cpu-ref equals the slope of its loss. cpu-ref computes in double
 * precision. With a step of 1e-6, a ReLU or an argmax hardly ever changes within the step, and the
 * curvature (step^2) is negligible. Two errors remain. The rounding of the gradient to float is a
 * relative error of 6e-8. The rounding error of the loss in double is divided by the step: 1e-16 /
 * 1e-6 = 1e-10, which is 1e-7 relative to a gradient of 1e-3. The bound 1e-6 is larger than both
 * errors. A wrong index or factor in the gradient would cause an error of 1e-2 to 1. */
static void prove_slopes(const struct odd_model *o, size_t images)
{
	struct subject s;

	subject_random(&s, o, images);
	subject_open(&s, "cpu-ref", 1);
	subject_step(&s);
	size_t n = s.model.n_params;
	float *grad = mem_must(n, sizeof(*grad), "test");
	memcpy(grad, s.grad, n * sizeof(*grad));
	double difference = 0, norm = 0;
	for (size_t t = 0; t < s.model.n_tensors; t++) {
		const struct tensor *tensor = &s.model.tensor[t];

		if (tensor->offset >= s.model.n_trained)
			/* this tensor and all further ones are running statistics, which have no
			 * gradient */
			break;
		/* check only some of the values of each tensor */
		size_t stride = tensor->count / (n > 10000 ? 3 : REPETITIONS(50)) + 1;
		for (size_t k = 0; k < tensor->count; k += stride) {
			double g = grad[tensor->offset + k],
			       d = measured_slope(&s, tensor->offset + k) - g;

			difference += d * d;
			norm += g * g;
		}
	}
	if (!(difference <= 1e-12 * norm) || norm == 0)
		fail_msg("%s, %zu images: off by %g", o->text, images, sqrt(difference / norm));
	free(grad);
	subject_release(&s);
}

static void cpu_ref_gradients_are_slopes_of_the_loss_for_one_image(void **state)
{
	(void)state;
	skip_under_tsan();
	for (size_t m = 0; m < N_ODD_MODELS; m++)
		prove_slopes(&odd_models[m], 1);
	for (size_t m = 0; m < N_LAYER_MODELS; m++)
		prove_slopes(&layer_models[m], 1);
}

static void cpu_ref_gradients_are_slopes_of_the_loss_for_five_images(void **state)
{
	(void)state;
	skip_under_tsan();
	for (size_t m = 0; m < N_ODD_MODELS; m++)
		prove_slopes(&odd_models[m], 5);
	for (size_t m = 0; m < N_LAYER_MODELS; m++)
		prove_slopes(&layer_models[m], 5);
}

/* The threshold of dropout is p * 2^24, rounded up. Dropout keeps a value whose random number
 * equals the threshold. */
static void dropout_keeps_draws_that_are_at_least_the_threshold(void **state)
{
	(void)state;
	uint32_t draw = (uint32_t)(rng_mix(5 ^ rng_mix((uint64_t)3 << 40 | 7)) >> 40);
	assert_int_equal(dropout_drops(5, 3, 7, draw), 0);
	assert_int_equal(dropout_drops(5, 3, 7, draw + 1), 1);
	assert_int_equal(dropout_threshold(0), 0);
	assert_int_equal(dropout_threshold(0.25f), 1 << 22);
	assert_int_equal(dropout_threshold(0x1.000002p-10f), (1 << 14) + 1);
}

static void bad_options_are_refused_with_what_would_be_right(void **state)
{
	(void)state;
	static const struct {
		const char *model;
		struct backend_options o;
		const char *says;
	} bad[] = {
		{"fc:2", {.device = "gpu", .threads = 1, .max_batch = 1}, "cpu-ref"},
		{"fc:2", {.device = "cp", .threads = 1, .max_batch = 1}, "cpu-ref"},
		{"fc:2", {.device = "cpu", .threads = 0, .max_batch = 1}, "expected 1 to"},
		{"fc:2", {.device = "cpu", .threads = 100000, .max_batch = 1}, "expected 1 to"},
		{"fc:2", {.device = "cpu-ref", .threads = 1, .max_batch = 0}, "at least one"},
		{"fc:2", {.device = "cpu", .threads = 1, .max_batch = 1, .kernels = 2},
			"auto|general"},
		{"fc:2", {.device = "cpu", .threads = 1, .max_batch = 1, .rounds = 3},
			"expected 0 to 2"},
		{"vector:3", {.device = "cpu", .threads = 1, .max_batch = 1}, "no layers"},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct model m;
		struct backend *b;
		struct err e = {0};

		assert_int_equal(model_parse(&m, bad[i].model, (struct shape){1, 4, 4}, &e), PS_OK);
		assert_int_equal(backend_new(&b, &m, &bad[i].o, &e), PS_EUSAGE);
		assert_null(b);
		assert_non_null(strstr(e.text, bad[i].says));
	}
}

static void a_backend_for_forward_passes_computes_no_gradients(void **state)
{
	(void)state;
	struct subject s;
	struct err e;
	size_t correct;
	double loss;

	subject_random(&s, &odd_models[0], 3);
	struct backend_options o = {
		.device = "cpu", .threads = 2, .max_batch = 3, .forward_only = 1};
	assert_int_equal(backend_new(&s.backend, &s.model, &o, &e), PS_OK);
	assert_int_equal(backend_use(s.backend, &s.images, &e), PS_OK);
	assert_int_equal(
		backend_evaluate(s.backend, s.params, 0, s.images.n, &correct, &loss), PS_OK);
	assert_int_equal(
		backend_gradient(s.backend, s.params, s.index, 1, 0, s.grad, &loss), PS_EUSAGE);
	assert_int_equal(backend_local_start(s.backend, s.params), PS_EUSAGE);
	subject_release(&s);
}

static void names_say_device_threads_and_instruction_set(void **state)
{
	(void)state;
	struct subject s;
	subject_random(&s, &odd_models[0], 1);
	subject_open(&s, "cpu-ref", 1);
	assert_string_equal(backend_name(s.backend), "cpu-ref");
	subject_open(&s, "auto", 2);
	/* if "auto" has chosen no GPU, it must have chosen the CPU */
	if (strncmp(backend_name(s.backend), "cuda:", 5) != 0) {
		assert_int_equal(strncmp(backend_name(s.backend), "cpu 2 threads ", 14), 0);
		assert_string_equal(backend_device(s.backend), "cpu");
	}
	subject_release(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cpu_ref_gradients_are_slopes_of_the_loss_for_one_image),
		cmocka_unit_test(cpu_ref_gradients_are_slopes_of_the_loss_for_five_images),
		cmocka_unit_test_prestate(pixels_are_divided_by_255_and_gradients_are_means, &both),
		cmocka_unit_test_prestate(padded_pixels_are_never_the_argmax, &both),
		cmocka_unit_test_prestate(
			of_equal_values_the_first_in_row_order_is_the_argmax, &both),
		cmocka_unit_test_prestate(dropout_draws_what_the_header_specifies, &both),
		cmocka_unit_test(dropout_keeps_draws_that_are_at_least_the_threshold),
		cmocka_unit_test_prestate(
			evaluation_and_prediction_follow_from_the_same_logits, &both),
		cmocka_unit_test_prestate(logits_that_are_no_numbers_are_wrong_answers, &both),
		cmocka_unit_test_prestate(bad_indices_and_ranges_are_refused, &both),
		cmocka_unit_test(bad_options_are_refused_with_what_would_be_right),
		cmocka_unit_test_prestate(a_batch_larger_than_memory_is_refused, &both),
		cmocka_unit_test_prestate(local_training_is_one_gradient_after_the_other, &both),
		cmocka_unit_test_prestate(local_training_without_steps_changes_nothing, &both),
		cmocka_unit_test_prestate(rounds_may_overlap, &both),
		cmocka_unit_test_prestate(gradients_may_overlap, &both),
		cmocka_unit_test_prestate(rounds_out_of_order_are_refused, &both),
		cmocka_unit_test(a_backend_for_forward_passes_computes_no_gradients),
		cmocka_unit_test(names_say_device_threads_and_instruction_set),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
