/*
 * test_kernels.c - kernels/backend.h as both devices keep it, and cpu-ref itself: its gradients are
 * the slopes of its losses.
 */
#include "tests/unit/gradients.h"
#include "kernels/device.h"

static const char *const both[] = {"cpu-ref", "cpu"};
static const struct odd_model small = {{1, 10, 10}, "conv:33:3 relu pool:2 fc:3"};

/* ---- cpu-ref: gradients are slopes ----------------------------------------------------------- */

/* Slope of the loss along parameter i, by central difference. */
static double slope(struct subject *s, size_t i)
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

/*
 * cpu-ref computes in double, so the step can be so small (1e-6) that hardly ever a ReLU or a
 * winner changes within it, and that curvature (step^2) is nothing. What is left: the gradient's
 * rounding to float (6e-8), and the loss's in double over the step (1e-16 / 1e-6 = 1e-10, with
 * gradients around 1e-3: 1e-7). 1e-6 leaves room; a wrong index or factor gives 1e-2 to 1.
 */
static void prove_slopes(const struct odd_model *o, size_t images)
{
	struct subject s;
	subject_random(&s, o, images);
	subject_open(&s, "cpu-ref", 1);
	subject_step(&s);
	size_t n = s.model.n_params;
	float *grad = mem_must(n, sizeof *grad, "test");
	memcpy(grad, s.grad, n * sizeof *grad);
	double difference = 0, norm = 0;
	for (size_t t = 0; t < s.model.n_tensors; t++) {
		const struct tensor *tensor = &s.model.tensor[t];
		size_t stride =
			tensor->count / (n > 10000 ? 3 : 50) + 1; /* a sample of each tensor */
		for (size_t k = 0; k < tensor->count; k += stride) {
			double g = grad[tensor->offset + k], d = slope(&s, tensor->offset + k) - g;
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
	skip_where_races_are_watched_for();
	for (size_t m = 0; m < N_ODD_MODELS; m++)
		prove_slopes(&odd_models[m], 1);
}

static void cpu_ref_gradients_are_slopes_of_the_loss_for_five_images(void **state)
{
	(void)state;
	skip_where_races_are_watched_for();
	for (size_t m = 0; m < N_ODD_MODELS; m++)
		prove_slopes(&odd_models[m], 5);
}

/* ---- both devices: worked by hand ------------------------------------------------------------ */

/* fc:2 with zero weights: probabilities 1/2, loss ln 2, gradient (p - y) * pixel / 255. */
static void pixels_are_divided_by_255_and_gradients_are_means(void **state)
{
	(void)state;
	for (size_t d = 0; d < 2; d++) {
		struct subject s;
		subject_random(&s, &(struct odd_model){{1, 1, 2}, "fc:2"}, 2);
		memcpy(s.pixels, (uint8_t[]){255, 51, 0, 102}, 4);
		memcpy(s.labels, (uint8_t[]){0, 1}, 2);
		memset(s.params, 0, s.model.n_params * sizeof *s.params);
		subject_open(&s, both[d], 1);
		subject_step(&s);
		const float right[] = {-0.25f, 0.05f, 0.25f, -0.05f, 0, 0};
		for (size_t i = 0; i < 6; i++)
			assert_true(fabsf(s.grad[i] - right[i]) < 1e-7f);
		assert_true(fabs(s.loss - log(2)) < 1e-7);
		subject_release(&s);
	}
}

/* One filter passes each pixel on as p - 2, so that all scores are below zero. */
static void fill_pool_subject(struct subject *s, const uint8_t *pixels, size_t n)
{
	memcpy(s->pixels, pixels, n);
	memset(s->params, 0, s->model.n_params * sizeof *s->params);
	s->params[s->model.tensor[0].offset] = 1;
	s->params[s->model.tensor[1].offset] = -2;
	for (size_t i = 0; i < s->model.tensor[2].count; i++)
		s->params[s->model.tensor[2].offset + i] = (float)(i + 1) * 0.25f;
}

/* The filter's gradient is the winner's pixel times its error, so it tells who won. */
static void padded_cells_never_win_and_the_first_maximum_does(void **state)
{
	(void)state;
	for (size_t d = 0; d < 2; d++) {
		struct subject s;
		/* 1x3 pixels, padded to 2x4: windows {0, 1} and {2}; all values are negative */
		subject_random(
			&s, &(struct odd_model){{1, 1, 3}, "conv:1:1 pool:2:pad=auto fc:2"}, 1);
		fill_pool_subject(&s, (uint8_t[]){51, 102, 204}, 3);
		assert_int_equal(s.model.layer[1].out.w, 2);
		subject_open(&s, both[d], 1);
		subject_step(&s);
		/* fc's weight gradient is error times pooled value: its ratios show the values */
		const float *fc = s.grad + s.model.tensor[2].offset;
		assert_true(fabsf(fc[0] / fc[1] - (0.4f - 2) / (0.8f - 2)) < 1e-5f);
		subject_release(&s);
	}
}

/* The second conv has zero weights, so that its cells tie; dropout keeps layers from being fused.
 */
static void prove_first_of_equals(const char *device, const char *text)
{
	struct subject s;
	subject_random(&s, &(struct odd_model){{1, 2, 2}, text}, 1);
	memcpy(s.pixels, (uint8_t[]){51, 102, 153, 204}, 4);
	s.params[s.model.tensor[2].offset] = 0;
	subject_open(&s, device, 1);
	subject_step(&s);
	/* d weight2 = error * value of the winner = error * (w1 * 0.2 + b1) */
	float error = s.grad[s.model.tensor[3].offset];
	float value = s.params[0] * 0.2f + s.params[1];
	assert_true(fabsf(error) > 1e-3f);
	assert_true(fabsf(s.grad[s.model.tensor[2].offset] - error * value) < 1e-7f);
	subject_release(&s);
}

static void of_equal_cells_the_first_in_row_order_gets_the_error(void **state)
{
	(void)state;
	for (size_t d = 0; d < 2; d++) {
		prove_first_of_equals(both[d], "conv:1:1 dropout:0 conv:1:1 pool:2 fc:2");
		prove_first_of_equals(both[d], "conv:1:1 conv:1:1 dropout:0 pool:2 fc:2");
	}
}

/* Zero weights again: the gradient of weight i is +-1/2 times what dropout made of pixel i. */
static void dropout_draws_what_the_header_specifies(void **state)
{
	(void)state;
	for (size_t d = 0; d < 2; d++) {
		struct subject s;
		subject_random(&s, &(struct odd_model){{3, 5, 7}, "relu dropout:0.3 fc:2"}, 2);
		memset(s.params, 0, s.model.n_params * sizeof *s.params);
		memset(s.pixels, 255, 2 * 105);
		memset(s.labels, 0, 2);
		subject_open(&s, both[d], 1);
		subject_step(&s);
		size_t dropped = 0;
		for (size_t i = 0; i < 105; i++) {
			float sum = 0;
			for (uint64_t n = 0; n < 2; n++) {
				uint64_t draw =
					rng_mix(99 ^ rng_mix((uint64_t)1 << 40 | (n * 105 + i)));
				int keeps = (double)(draw >> 40) >= (double)0.3f * 0x1p24;
				sum += keeps ? 1 / 0.7f : 0;
				dropped += !keeps;
			}
			assert_true(fabsf(s.grad[i] + sum / 4) < 1e-6f);
		}
		assert_in_range(dropped, 40, 90);
		subject_release(&s);
	}
}

/* A draw of exactly the threshold keeps; p * 2^24 that is no whole number is rounded up. */
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

/* ---- both devices: evaluation and refusals --------------------------------------------------- */

static void evaluation_and_prediction_follow_from_the_same_scores(void **state)
{
	(void)state;
	for (size_t d = 0; d < 2; d++) {
		struct subject s;
		subject_random(&s, &small, 600); /* several chunks */
		s.batch = 4;
		subject_open(&s, both[d], 2);
		float p[598 * 3];
		size_t classes = s.model.classes, correct, right = 0;
		double loss_sum, sum = 0;
		assert_int_equal(backend_predict(s.backend, s.params, 2, 598, p), PS_OK);
		assert_int_equal(
			backend_evaluate(s.backend, s.params, 2, 598, &correct, &loss_sum), PS_OK);
		for (size_t i = 0; i < 598; i++) {
			float total = 0;
			size_t best = 0;
			for (size_t c = 0; c < classes; c++) {
				total += p[i * classes + c];
				best = p[i * classes + c] > p[i * classes + best] ? c : best;
			}
			assert_true(fabsf(total - 1) < 1e-6f);
			right += best == s.labels[i + 2];
			sum -= log((double)p[i * classes + s.labels[i + 2]]);
		}
		assert_int_equal(correct, right);
		assert_true(fabs(loss_sum - sum) < 1e-3);
		for (size_t i = 0; i < 4; i++)
			s.index[i] = (uint32_t)i;
		assert_int_equal(
			backend_evaluate(s.backend, s.params, 0, 4, &correct, &loss_sum), PS_OK);
		subject_step(&s);
		assert_true(fabs(loss_sum / 4 - s.loss) < 1e-6);
		subject_release(&s);
	}
}

/* What is no number must never count as a right answer, nor hide behind a ReLU or a maximum. */
static void scores_that_are_no_numbers_are_wrong_answers(void **state)
{
	(void)state;
	for (size_t d = 0; d < 4; d++) {
		struct subject s;
		size_t correct;
		double loss_sum;
		subject_random(&s, &small, 40);
		subject_open(&s, both[d % 2], 1);
		/* a filter that spoils all scores, or only the score of class 0 */
		s.params[d < 2 ? 0 : s.model.tensor[3].offset] = NAN;
		assert_int_equal(
			backend_evaluate(s.backend, s.params, 0, 40, &correct, &loss_sum), PS_OK);
		assert_int_equal(correct, 0);
		assert_true(isnan(loss_sum));
		subject_step(&s);
		assert_true(isnan(s.loss));
		subject_release(&s);
	}
}

static void bad_indices_and_ranges_are_refused(void **state)
{
	(void)state;
	for (size_t d = 0; d < 2; d++) {
		struct subject s;
		struct err e = {0};
		size_t correct;
		double loss;
		subject_random(&s, &small, 5);
		subject_open(&s, both[d], 1);
		struct backend *b = s.backend;
		s.index[4] = 5;
		assert_int_equal(
			backend_gradient(b, s.params, s.index, 5, 0, s.grad, &loss), PS_EUSAGE);
		assert_int_equal(
			backend_gradient(b, s.params, s.index, 0, 0, s.grad, &loss), PS_EUSAGE);
		assert_int_equal(
			backend_gradient(b, s.params, s.index, 6, 0, s.grad, &loss), PS_EUSAGE);
		assert_int_equal(backend_evaluate(b, s.params, 3, 3, &correct, &loss), PS_EUSAGE);
		assert_int_equal(
			backend_evaluate(b, s.params, SIZE_MAX, 2, &correct, &loss), PS_EUSAGE);
		assert_int_equal(backend_evaluate(b, s.params, 5, 0, &correct, &loss), PS_OK);
		assert_int_equal(backend_predict(b, s.params, 0, 6, s.grad), PS_EUSAGE);
		s.labels[3] = (uint8_t)s.model.classes;
		assert_int_equal(backend_use(b, &s.images, &e), PS_EUSAGE);
		assert_non_null(strstr(e.text, "image 3 has label 3"));
		assert_int_equal(
			backend_gradient(b, s.params, s.index, 1, 0, s.grad, &loss), PS_EUSAGE);
		subject_release(&s);
	}
}

static void bad_options_are_refused_with_what_would_be_right(void **state)
{
	(void)state;
	static const struct {
		const char *model;
		struct backend_options o;
		const char *says;
	} bad[] = {
		{"fc:2", {"gpu", 1, 1}, "cpu-ref"},
		{"fc:2", {"cp", 1, 1}, "cpu-ref"},
		{"fc:2", {"cpu", 0, 1}, "expected 1 to"},
		{"fc:2", {"cpu", 100000, 1}, "expected 1 to"},
		{"fc:2", {"cpu-ref", 1, 0}, "at least one"},
		{"vector:3", {"cpu", 1, 1}, "no layers"},
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct model m;
		struct backend *b;
		struct err e = {0};
		assert_int_equal(model_parse(&m, bad[i].model, (struct shape){1, 4, 4}, &e), PS_OK);
		assert_int_equal(backend_new(&b, &m, &bad[i].o, &e), PS_EUSAGE);
		assert_null(b);
		assert_non_null(strstr(e.text, bad[i].says));
	}
}

/* A batch that a server asks for may be larger than memory. */
static void a_batch_larger_than_memory_is_refused(void **state)
{
	(void)state;
	for (size_t d = 0; d < 2; d++) {
		struct model m;
		struct backend *b;
		struct err e = {0};
		struct backend_options o = {both[d], 1, SIZE_MAX / 8};
		assert_int_equal(
			model_parse(&m, "conv:3:3 fc:3", (struct shape){1, 8, 8}, &e), PS_OK);
		assert_int_equal(backend_new(&b, &m, &o, &e), PS_ENOMEM);
		assert_null(b);
	}
}

static void names_say_device_threads_and_instruction_set(void **state)
{
	(void)state;
	struct subject s;
	subject_random(&s, &odd_models[0], 1);
	subject_open(&s, "cpu-ref", 1);
	assert_string_equal(backend_name(s.backend), "cpu-ref");
	subject_open(&s, "auto", 2);
	assert_int_equal(strncmp(backend_name(s.backend), "cpu 2 threads ", 14), 0);
	subject_release(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cpu_ref_gradients_are_slopes_of_the_loss_for_one_image),
		cmocka_unit_test(cpu_ref_gradients_are_slopes_of_the_loss_for_five_images),
		cmocka_unit_test(pixels_are_divided_by_255_and_gradients_are_means),
		cmocka_unit_test(padded_cells_never_win_and_the_first_maximum_does),
		cmocka_unit_test(of_equal_cells_the_first_in_row_order_gets_the_error),
		cmocka_unit_test(dropout_draws_what_the_header_specifies),
		cmocka_unit_test(dropout_keeps_draws_that_are_at_least_the_threshold),
		cmocka_unit_test(evaluation_and_prediction_follow_from_the_same_scores),
		cmocka_unit_test(scores_that_are_no_numbers_are_wrong_answers),
		cmocka_unit_test(bad_indices_and_ranges_are_refused),
		cmocka_unit_test(bad_options_are_refused_with_what_would_be_right),
		cmocka_unit_test(a_batch_larger_than_memory_is_refused),
		cmocka_unit_test(names_say_device_threads_and_instruction_set),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
