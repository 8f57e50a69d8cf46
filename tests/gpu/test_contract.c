/*
 * test_contract.c - tests that the CUDA device keeps the promises of kernels/backend.h. The tests
 * cover examples computed by hand, batches of different sizes in one backend, image sets that
 * change, evaluation, equal bytes for equal calls, and refusals.
 */
#include "tests/support/gpu_fixture.h"
#include "tests/support/real_images.h"

static struct contract gpu = {{NULL}, gpu_begin};

/* ---- several calls of one backend ------------------------------------------------------------ */

/* Compute the gradient of the first n images with the open backend. The caller frees the result. */
static float *step_of(struct subject *s, size_t n, double *loss)
{
	s->batch = n;
	subject_step(s);
	float *grad = s->grad;
	*loss = s->loss;
	s->grad = mem_must(s->model.n_params, sizeof(float), "test");
	return grad;
}

#define SIZES 9
static const size_t sizes[SIZES] = {100, 1, 37, 2, 99, 100, 64, 1, 3};

/* Prove that the gradient is right for each batch size, even after a batch of another size, and
 * that a repeated call gives the same bytes. */
static void prove_sizes(const char *text, const struct precision *p)
{
	struct subject s;
	double right_loss, loss, again;

	subject_real(&s, text, 200, 100);
	float *first[SIZES];
	gpu_open(&s, p);
	for (size_t i = 0; i < SIZES; i++)
		first[i] = step_of(&s, sizes[i], &loss);
	for (size_t i = SIZES; i-- > 0;) {
		float *grad = step_of(&s, sizes[i], &again);

		assert_memory_equal(grad, first[i], s.model.n_params * sizeof(float));
		free(grad);
	}
	for (size_t i = 0; i < SIZES; i++) {
		s.batch = sizes[i];
		float *right = gpu_reference(&s, &right_loss);
		double d = gradient_distance(first[i], right, s.model.n_params);
		if (!(d <= p->bound) && !(d <= 2 * gradient_jump(&s, right, p->rounding, d / 2)))
			fail_msg("%s, %zu images in %s after others: off by %g", text, sizes[i],
				p->name, d);
		free(right);
		free(first[i]);
	}
	subject_release(&s);
}

static void any_batch_size_may_follow_any_other(void **state)
{
	(void)state;
	gpu_begin();
	for (size_t p = 0; p < gpu_n_precisions(); p++) {
		prove_sizes("seed:32", &gpu_precisions[p]);
		prove_sizes("lenet5", &gpu_precisions[p]);
		prove_sizes(
			"conv:9:3:stride=2:pad=auto relu dropout:0.3 fc:10", &gpu_precisions[p]);
	}
}

/* A trainer alternates between the training images and the test images. The indices of a batch
 * always refer to the image set that was chosen last. */
static void sets_may_change_and_come_back(void **state)
{
	(void)state;
	gpu_begin();
	struct subject s;
	struct err e = {0};
	size_t correct;
	double loss, sum, again, other;
	struct kx_images test = data_test(&real_images);
	subject_real(&s, "lenet5", 0, 50);
	gpu_open(&s, gpu_precisions);
	float *first = step_of(&s, 50, &loss);
	assert_int_equal(backend_use(s.backend, &test, &e), PS_OK);
	assert_int_equal(backend_evaluate(s.backend, s.params, 0, 500, &correct, &sum), PS_OK);
	assert_int_equal(
		backend_evaluate(s.backend, s.params, test.n, 1, &correct, &other), PS_EUSAGE);
	uint32_t kept[50];
	for (size_t i = 0; i < 50; i++) {
		kept[i] = s.index[i];
		s.index[i] %= (uint32_t)test.n;
	}
	float *elsewhere = step_of(&s, 50, &other);
	assert_true(gradient_distance(elsewhere, first, s.model.n_params) > 1e-3);
	assert_int_equal(backend_use(s.backend, &s.images, &e), PS_OK);
	memcpy(s.index, kept, sizeof(kept));
	float *back = step_of(&s, 50, &again);
	assert_memory_equal(back, first, s.model.n_params * sizeof(float));
	free(first);
	free(elsewhere);
	free(back);
	subject_release(&s);
}

/* Compare local training with gradients that the same device computes, so that the results differ
 * only by rounding. */
static void local_training_of_real_nets_is_one_gradient_after_the_other(void **state)
{
	static const char *const texts[] = {"seed:32", "seed:256", "cnn99",
		"conv:16:5 tanh avgpool:2 skip conv:16:3:pad=1:groups=2 add lrn fc:10",
		"conv:16:5 batchnorm relu pool:2 conv:24:3 relu batchnorm fc:10",
		"conv:16:5 relu pool:2 dropout:0.25 fc:64 relu dropout:0.5 fc:10"};

	(void)state;
	gpu_begin();
	for (size_t p = 0; p < gpu_n_precisions(); p++)
		for (size_t m = 0; m < sizeof(texts) / sizeof(texts[0]); m++) {
			struct subject s;

			subject_real(&s, texts[m], 0, LOCAL_STEPS * 100);
			s.batch = 100;
			gpu_open(&s, &gpu_precisions[p]);
			check_local(&s, gpu_precisions[p].bound, gpu_precisions[p].rounding);
			subject_release(&s);
		}
}

/* Use batches that the persistent kernel computes in several passes, and batches that it cannot
 * compute, so that other kernels compute them. */
static void local_training_in_batches_of_any_size(void **state)
{
	static const size_t images[] = {105, 131, 208, 209, 240};

	(void)state;
	gpu_begin();
	for (size_t i = 0; i < sizeof(images) / sizeof(images[0]) && gpu_n_precisions() > 1; i++) {
		const struct precision *bf16 = &gpu_precisions[KX_BF16];
		struct subject s;

		subject_real(&s, i % 2 ? "seed:256" : "seed:32", 0, LOCAL_STEPS * images[i]);
		s.batch = images[i];
		gpu_open(&s, bf16);
		check_local(&s, bf16->bound, bf16->rounding);
		subject_release(&s);
	}
}

/* ---- evaluation ------------------------------------------------------------------------------ */

/* Check an evaluation by the open backend: `right` and `loss` are those of cpu-ref. */
static void prove_counts(struct subject *s, const struct precision *p, size_t first, size_t n,
	size_t right, double loss)
{
	size_t correct;
	double found;

	assert_int_equal(
		backend_evaluate(s->backend, s->params, first, n, &correct, &found), PS_OK);
	if (!(fabs(loss - found) <= p->bound * fabs(loss) + 1e-4))
		fail_msg(
			"%s in %s: loss %.9g instead of %.9g", s->model.text, p->name, found, loss);
	size_t wrong = right > correct ? right - correct : correct - right;
	if (wrong > (p == gpu_precisions ? 0 : n / 50))
		fail_msg("%s in %s: %zu right instead of %zu", s->model.text, p->name, correct,
			right);
}

/* Evaluate a range of images that begins at an odd number, and that has complete chunks and a
 * remainder. In fp32 the device must classify every image as cpu-ref does. */
static void prove_evaluation(const char *text)
{
	struct subject s;
	size_t right;
	double loss;
	const size_t first = 333, n = 1037;

	subject_real(&s, text, 0, 100);
	subject_open(&s, "cpu-ref", 1);
	assert_int_equal(backend_evaluate(s.backend, s.params, first, n, &right, &loss), PS_OK);
	for (size_t p = 0; p < gpu_n_precisions(); p++) {
		gpu_open(&s, &gpu_precisions[p]);
		prove_counts(&s, &gpu_precisions[p], first, n, right, loss);
		gpu_open_forward(&s, &gpu_precisions[p]);
		prove_counts(&s, &gpu_precisions[p], first, n, right, loss);
	}
	subject_release(&s);
}

static void gpu_evaluation_agrees_with_cpu_ref(void **state)
{
	(void)state;
	gpu_begin();
	prove_evaluation("seed:32");
	prove_evaluation("lenet5");
	prove_evaluation("cnn99");
	prove_evaluation("conv:7:4:stride=3 relu dropout:0.5 fc:10");
	prove_evaluation("conv:7:4:stride=3 batchnorm relu fc:10");
}

/* Evaluations must not disturb gradients, and gradients must not disturb evaluations. */
static void evaluation_between_steps_changes_nothing(void **state)
{
	(void)state;
	gpu_begin();
	for (size_t p = 0; p < gpu_n_precisions(); p++) {
		struct subject s;
		size_t correct[2];
		double loss[3];

		subject_real(&s, "cnn99", 0, 41);
		gpu_open(&s, &gpu_precisions[p]);
		float *first = step_of(&s, 41, &loss[2]);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(backend_evaluate(s.backend, s.params, 500, 700,
						 &correct[i], &loss[i]),
				PS_OK);
			subject_step(&s);
			assert_memory_equal(s.grad, first, s.model.n_params * sizeof(float));
			assert_true(s.loss == loss[2]);
		}
		assert_int_equal(correct[0], correct[1]);
		assert_true(loss[0] == loss[1]);
		/* a new backend, whose memory has other addresses, must compute the same
		 * gradient */
		gpu_open(&s, &gpu_precisions[p]);
		subject_step(&s);
		assert_memory_equal(s.grad, first, s.model.n_params * sizeof(float));
		free(first);
		subject_release(&s);
	}
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void devices_and_precisions_that_do_not_exist_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *device, *says;
	} bad[] = {{"cuda:99", "cuda:99"}, {"cuda:x", "cuda:x"}, {"cuda:-1", "cuda:-1"},
		{"cuda:", "cuda:"}};
	gpu_begin();
	struct model m;
	struct err parse = {0};
	assert_int_equal(model_parse(&m, "fc:2", (struct shape){1, 4, 4}, &parse), PS_OK);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct backend_options o = {.device = bad[i].device, .threads = 1, .max_batch = 1};
		struct backend *b;
		struct err e = {0};

		assert_int_not_equal(backend_new(&b, &m, &o, &e), PS_OK);
		assert_null(b);
		if (!strstr(e.text, bad[i].says) || strchr(e.text, '\n'))
			fail_msg("--device %s: \"%s\"", bad[i].device, e.text);
	}
}

static void names_say_which_gpu_and_precision(void **state)
{
	(void)state;
	gpu_begin();
	for (size_t p = 0; p < gpu_n_precisions(); p++) {
		struct subject s;

		subject_random(&s, &contract_small, 1);
		gpu_open(&s, &gpu_precisions[p]);
		const char *name = backend_name(s.backend);
		assert_memory_equal(name, gpu_device(), strcspn(gpu_device(), ":"));
		if (gpu_n_precisions() > 1)
			assert_non_null(strstr(name, gpu_precisions[p].name));
		subject_release(&s);
	}
}

int main(void)
{
	gpu.device[0] = gpu_device();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(pixels_are_divided_by_255_and_gradients_are_means, &gpu),
		cmocka_unit_test_prestate(padded_pixels_are_never_the_argmax, &gpu),
		cmocka_unit_test_prestate(
			of_equal_values_the_first_in_row_order_is_the_argmax, &gpu),
		cmocka_unit_test_prestate(dropout_draws_what_the_header_specifies, &gpu),
		cmocka_unit_test_prestate(
			evaluation_and_prediction_follow_from_the_same_logits, &gpu),
		cmocka_unit_test_prestate(logits_that_are_no_numbers_are_wrong_answers, &gpu),
		cmocka_unit_test_prestate(bad_indices_and_ranges_are_refused, &gpu),
		cmocka_unit_test_prestate(a_batch_larger_than_memory_is_refused, &gpu),
		cmocka_unit_test_prestate(local_training_is_one_gradient_after_the_other, &gpu),
		cmocka_unit_test_prestate(local_training_without_steps_changes_nothing, &gpu),
		cmocka_unit_test_prestate(rounds_may_overlap, &gpu),
		cmocka_unit_test_prestate(gradients_may_overlap, &gpu),
		cmocka_unit_test_prestate(rounds_out_of_order_are_refused, &gpu),
		cmocka_unit_test(local_training_of_real_nets_is_one_gradient_after_the_other),
		cmocka_unit_test(local_training_in_batches_of_any_size),
		cmocka_unit_test(any_batch_size_may_follow_any_other),
		cmocka_unit_test(sets_may_change_and_come_back),
		cmocka_unit_test(gpu_evaluation_agrees_with_cpu_ref),
		cmocka_unit_test(evaluation_between_steps_changes_nothing),
		cmocka_unit_test(devices_and_precisions_that_do_not_exist_are_refused),
		cmocka_unit_test(names_say_which_gpu_and_precision),
	};
	return cmocka_run_group_tests(tests, real_load, real_release);
}
