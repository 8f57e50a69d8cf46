/* backend_contract.c - see backend_contract.h. */
#include "tests/support/backend_contract.h"

const struct odd_model contract_small = {{1, 10, 10}, "conv:33:3 relu pool:2 fc:3"};

static const char *const *contract_begin(void **state)
{
	const struct contract *c = *state;

	if (c->begin)
		c->begin();
	return c->device;
}

/* ---- tests for every device: examples computed by hand -------------------------------------- */

void pixels_are_divided_by_255_and_gradients_are_means(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		struct subject s;

		subject_random(&s, &(struct odd_model){{1, 1, 2}, "fc:2"}, 2);
		memcpy(s.pixels, (uint8_t[]){255, 51, 0, 102}, 4);
		memcpy(s.labels, (uint16_t[]){0, 1}, 4);
		memset(s.params, 0, s.model.n_params * sizeof(*s.params));
		subject_open(&s, *d, 1);
		subject_step(&s);
		const float right[] = {-0.25f, 0.05f, 0.25f, -0.05f, 0, 0};
		for (size_t i = 0; i < 6; i++)
			assert_true(fabsf(s.grad[i] - right[i]) < 1e-7f);
		assert_true(fabs(s.loss - log(2)) < 1e-7);
		subject_release(&s);
	}
}

/* Set the parameters of a conv, pool and fc network so that the conv maps each pixel value p (0 to
 * 1) to p - 2. All values that the pool reads are then negative. */
static void fill_pool_subject(struct subject *s, const uint8_t *pixels, size_t n)
{
	memcpy(s->pixels, pixels, n);
	memset(s->params, 0, s->model.n_params * sizeof(*s->params));
	s->params[s->model.tensor[0].offset] = 1;
	s->params[s->model.tensor[1].offset] = -2;
	for (size_t i = 0; i < s->model.tensor[2].count; i++)
		s->params[s->model.tensor[2].offset + i] = (float)(i + 1) * 0.25f;
}

void padded_pixels_are_never_the_argmax(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		struct subject s;

		/* The pool pads the 1 x 3 values to 2 x 4. One window has the first two values, the
		 * other one has the third value and padding. All values are negative, so if the
		 * padding counted as zeros, a zero would be the maximum. */
		subject_random(
			&s, &(struct odd_model){{1, 1, 3}, "conv:1:1 pool:2:pad=auto fc:2"}, 1);
		fill_pool_subject(&s, (uint8_t[]){51, 102, 204}, 3);
		assert_int_equal(s.model.layer[1].out.w, 2);
		subject_open(&s, *d, 1);
		subject_step(&s);
		/* The gradient of a weight of fc is the error times a pooled value. The ratio of
		 * two such gradients therefore equals the ratio of the pooled values. */
		const float *fc = s.grad + s.model.tensor[2].offset;
		assert_true(fabsf(fc[0] / fc[1] - (0.4f - 2) / (0.8f - 2)) < 1e-5f);
		subject_release(&s);
	}
}

/* Check that a pool chooses the first of four equal values. The second conv has weight zero, so
 * that all of its outputs are equal. The dropout layer keeps the device from computing several
 * layers in one fused kernel. */
static void check_first_of_equals(const char *device, const char *text)
{
	struct subject s;

	subject_random(&s, &(struct odd_model){{1, 2, 2}, text}, 1);
	memcpy(s.pixels, (uint8_t[]){51, 102, 153, 204}, 4);
	s.params[s.model.tensor[2].offset] = 0;
	subject_open(&s, device, 1);
	subject_step(&s);
	/* The gradient of the second conv's weight is its error times its input at the argmax. If
	 * the first pixel (51 / 255 = 0.2) is the argmax, this input is w1 * 0.2 + b1. */
	float error = s.grad[s.model.tensor[3].offset];
	float value = s.params[0] * 0.2f + s.params[1];
	assert_true(fabsf(error) > 1e-3f);
	assert_true(fabsf(s.grad[s.model.tensor[2].offset] - error * value) < 1e-7f);
	subject_release(&s);
}

void of_equal_values_the_first_in_row_order_is_the_argmax(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		check_first_of_equals(*d, "conv:1:1 dropout:0 conv:1:1 pool:2 fc:2");
		check_first_of_equals(*d, "conv:1:1 conv:1:1 dropout:0 pool:2 fc:2");
	}
}

void dropout_draws_what_the_header_specifies(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		struct subject s;

		subject_random(&s, &(struct odd_model){{3, 5, 7}, "relu dropout:0.3 fc:2"}, 2);
		memset(s.params, 0, s.model.n_params * sizeof(*s.params));
		memset(s.pixels, 255, 2 * 105);
		memset(s.labels, 0, 2 * sizeof(*s.labels));
		subject_open(&s, *d, 1);
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

/* ---- tests for every device: evaluations, and calls that a device must refuse --------------- */

void evaluation_and_prediction_follow_from_the_same_logits(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		struct subject s;

		/* the device computes at most 4 images at once, so an evaluation takes many
		 * steps */
		subject_random(&s, &contract_small, 600);
		s.batch = 4;
		subject_open(&s, *d, 2);
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

/* Set the first value of tensor number `tensor` to NaN. Check that a NaN logit never counts as a
 * correct answer, and that no ReLU or maximum hides the NaN. */
static void contract_nan(const char *device, size_t tensor)
{
	struct subject s;
	size_t correct;
	double loss_sum;

	subject_random(&s, &contract_small, 40);
	subject_open(&s, device, 1);
	s.params[s.model.tensor[tensor].offset] = NAN;
	assert_int_equal(backend_evaluate(s.backend, s.params, 0, 40, &correct, &loss_sum), PS_OK);
	assert_int_equal(correct, 0);
	assert_true(isnan(loss_sum));
	subject_step(&s);
	assert_true(isnan(s.loss));
	subject_release(&s);
}

void logits_that_are_no_numbers_are_wrong_answers(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		contract_nan(*d, 0); /* a NaN in a filter, which makes all logits NaN */
		/* a NaN in a bias, which makes only the logit of class 0 NaN */
		contract_nan(*d, 3);
	}
}

void bad_indices_and_ranges_are_refused(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		struct subject s;
		struct err e = {0};
		size_t correct;
		double loss;

		subject_random(&s, &contract_small, 5);
		subject_open(&s, *d, 1);
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
		s.labels[3] = (uint16_t)s.model.classes;
		assert_int_equal(backend_use(b, &s.images, &e), PS_EUSAGE);
		assert_non_null(strstr(e.text, "image 3 has label 3"));
		assert_int_equal(
			backend_gradient(b, s.params, s.index, 1, 0, s.grad, &loss), PS_EUSAGE);
		subject_release(&s);
	}
}

void a_batch_larger_than_memory_is_refused(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		struct model m;
		struct backend *b;
		struct err e = {0};
		struct backend_options o = {.device = *d, .threads = 1, .max_batch = SIZE_MAX / 8};

		assert_int_equal(
			model_parse(&m, "conv:3:3 fc:3", (struct shape){1, 8, 8}, &e), PS_OK);
		assert_int_equal(backend_new(&b, &m, &o, &e), PS_ENOMEM);
		assert_null(b);
	}
}

/* ---- tests for every device: local training ------------------------------------------------- */

#define LOCAL_RATE 0.1f

/* Compute local training as kernels/backend.h defines it, one gradient after the other: each
 * gradient is computed at the weights that the previous step has made. A step does not change the
 * running statistics, because they are not trained. Writes the final weights to `params` and the
 * sum of the gradients to `sum`. Returns the mean loss of all steps. */
static double local_by_hand(struct subject *s, float *params, float *sum)
{
	double loss = 0;
	float *kept = s->params;
	uint32_t *index = s->index;

	memset(sum, 0, s->model.n_params * sizeof(*sum));
	memcpy(params, kept, s->model.n_params * sizeof(*params));
	s->params = params;
	for (size_t j = 0; j < LOCAL_STEPS; j++) {
		s->index = index + j * s->batch;
		subject_step(s);
		s->dropout_seed++;
		loss += s->loss / LOCAL_STEPS;
		for (size_t i = 0; i < s->model.n_params; i++)
			sum[i] += s->grad[i];
		for (size_t i = 0; i < s->model.n_trained; i++)
			params[i] -= LOCAL_RATE * s->grad[i];
	}
	s->params = kept;
	s->index = index;
	s->dropout_seed -= LOCAL_STEPS;
	return loss;
}

/* Computes local training in double precision, from weights that rounding errors have changed.
 * Returns the relative change of the sum of the gradients. A rounding error that flips an argmax or
 * a ReLU makes the gradient jump. The function tries up to NEARBY random changes of the weights,
 * returns the largest result, and stops as soon as a result reaches `enough`. */
static double local_jump(struct subject *s, double rounding, double enough)
{
	const size_t n = s->model.n_params;
	float *params = mem_must(3 * n, sizeof(*params), "test"), *right = params + n;
	double max = 0;

	subject_open(s, "cpu-ref", 1);
	local_by_hand(s, params, right);
	for (uint64_t round = 0; round < NEARBY && max < enough; round++) {
		float *kept = s->params;

		s->params = params_nearby(s, rounding, round);
		local_by_hand(s, params, right + n);
		free(s->params);
		s->params = kept;
		double d = gradient_distance(right + n, right, n);
		max = d > max ? d : max;
	}
	free(params);
	return max;
}

void check_local(struct subject *s, double bound, double rounding)
{
	const size_t n = s->model.n_params;
	float *params = mem_must(2 * n, sizeof(*params), "test"), *sum = params + n;
	float *got = mem_must(4 * n, sizeof(*got), "test");
	double right = local_by_hand(s, params, sum), loss;
	char name[128];

	snprintf(name, sizeof(name), "%s", backend_name(s->backend));
	for (int round = 0; round < 2; round++) {
		float *w = got + (size_t)round * 2 * n;
		struct backend *b = s->backend;

		for (size_t i = 0; i < 2 * n; i++)
			w[i] = NAN;
		assert_int_equal(backend_local_start(b, s->params), PS_OK);
		assert_int_equal(
			backend_local_steps(b, s->index, s->batch, 2, LOCAL_RATE, s->dropout_seed),
			PS_OK);
		/* the first two steps are complete; the next call continues the same round */
		assert_int_equal(backend_local_wait(b, NULL), PS_OK);
		assert_int_equal(backend_local_steps(b, s->index + 2 * s->batch, s->batch, 1,
					 LOCAL_RATE, s->dropout_seed + 2),
			PS_OK);
		assert_int_equal(backend_local_finish(b, w, w + n), PS_OK);
		assert_int_equal(backend_local_wait(b, &loss), PS_OK);
		if (!(gradient_distance(w, params, n) <= bound) || !(fabs(loss - right) <= bound))
			fail_msg("%s on %s: weights off by %g, loss %g instead of %g",
				s->model.text, name, gradient_distance(w, params, n), loss, right);
	}
	assert_memory_equal(got, got + 2 * n, 2 * n * sizeof(*got));
	double d = gradient_distance(got + n, sum, n);
	if (!(d <= bound) && !(d <= 2 * local_jump(s, rounding, d / 2)))
		fail_msg("%s on %s: sum off by %g", s->model.text, name, d);
	free(params);
	free(got);
}

void local_training_is_one_gradient_after_the_other(void **state)
{
	static const struct odd_model models[] = {
		{{1, 10, 10}, "conv:33:3 relu pool:2 dropout:0.3 fc:3"},
		{{1, 9, 8}, "conv:9:3 batchnorm relu fc:7 batchnorm fc:3"},
	};

	for (const char *const *d = contract_begin(state); *d; d++)
		for (size_t m = 0; m < 2; m++) {
			struct subject s;

			subject_random(&s, &models[m], 3 * 17);
			s.batch = 17;
			subject_open(&s, *d, 2);
			check_local(&s, 1e-5, 0x1p-22);
			subject_release(&s);
		}
}

/* Run several rounds of pipelined steps, each with its own weights and batch size. With ahead = 1,
 * each round starts before the wait for the previous round; with ahead = 0 no rounds overlap. Write
 * the sums (rounds x n_params) to `sum` and the losses to `loss`. */
static void check_rounds(struct subject *s, int ahead, float *sum, double *loss)
{
	const size_t n = s->model.n_params;
	const int rounds = 5;
	float *params = mem_must(n, sizeof(*params), "test");

	for (int i = 0; i < rounds + ahead; i++) {
		if (i < rounds) {
			for (size_t k = 0; k < n; k++)
				params[k] = s->params[k] * (1 + 0.1f * (float)i);
			assert_int_equal(backend_local_start(s->backend, params), PS_OK);
			assert_int_equal(
				backend_local_steps(s->backend, s->index + i, s->batch - (size_t)i,
					2, LOCAL_RATE, s->dropout_seed),
				PS_OK);
			assert_int_equal(
				backend_local_finish(s->backend, NULL, sum + (size_t)i * n), PS_OK);
			memset(params, 0xff, n * sizeof(*params));
		}
		if (i >= ahead)
			assert_int_equal(backend_local_wait(s->backend, &loss[i - ahead]), PS_OK);
	}
	free(params);
}

void rounds_may_overlap(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		struct subject s;
		double loss[2][5];

		subject_random(
			&s, &(struct odd_model){{1, 28, 28}, "conv:32:3 relu pool:2 fc:3"}, 2 * 17);
		s.batch = 17;
		subject_open(&s, *d, 2);
		const size_t n = 5 * s.model.n_params;
		float *sum = mem_must(2 * n, sizeof(*sum), "test");
		for (int ahead = 0; ahead < 2; ahead++)
			check_rounds(&s, ahead, sum + (size_t)ahead * n, loss[ahead]);
		assert_memory_equal(sum, sum + n, n * sizeof(*sum));
		assert_memory_equal(loss[0], loss[1], sizeof(loss[0]));
		assert_true(loss[0][0] != loss[0][1]);
		free(sum);
		subject_release(&s);
	}
}

/* Check a backend with the option rounds = 1: the caller may start the next round only after
 * backend_local_wait, and an earlier start must be refused. */
static void check_one_round(const char *device)
{
	struct subject s;
	struct err e = {0};
	struct backend_options o = {.device = device, .threads = 1, .max_batch = 5, .rounds = 1};

	subject_random(&s, &contract_small, 5);
	assert_int_equal(backend_new(&s.backend, &s.model, &o, &e), PS_OK);
	assert_int_equal(backend_use(s.backend, &s.images, &e), PS_OK);
	for (int i = 0; i < 3; i++) {
		memset(s.grad, 0xff, s.model.n_params * sizeof(float));
		assert_int_equal(backend_local_start(s.backend, s.params), PS_OK);
		assert_int_equal(backend_local_finish(s.backend, s.grad, NULL), PS_OK);
		assert_int_equal(backend_local_start(s.backend, s.params), PS_EUSAGE);
		assert_int_equal(backend_local_wait(s.backend, NULL), PS_OK);
		assert_memory_equal(s.grad, s.params, s.model.n_params * sizeof(float));
	}
	subject_release(&s);
}

/* Start each gradient before the wait for the previous one. Each gradient must equal the one that
 * backend_gradient computes for the same batch. */
void gradients_may_overlap(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		struct subject s;
		double loss[5], right;

		subject_random(
			&s, &(struct odd_model){{1, 28, 28}, "conv:32:3 relu pool:2 fc:3"}, 2 * 17);
		s.batch = 17;
		subject_open(&s, *d, 2);
		const size_t n = s.model.n_params;
		float *params = mem_must(2 * n, sizeof(*params), "test");
		float *got = mem_must(5 * n, sizeof(*got), "test");
		for (size_t i = 0; i < 6; i++) {
			if (i < 5) {
				for (size_t k = 0; k < n; k++)
					params[k] = s.params[k] * (1 + 0.1f * (float)i);
				assert_int_equal(backend_gradient_start(s.backend, params,
							 s.index + i, s.batch - i, s.dropout_seed),
					PS_OK);
				assert_int_equal(
					backend_local_finish(s.backend, NULL, got + i * n), PS_OK);
				memset(params, 0xff, n * sizeof(*params));
			}
			if (i > 0)
				assert_int_equal(
					backend_local_wait(s.backend, &loss[i - 1]), PS_OK);
		}
		for (size_t i = 0; i < 5; i++) {
			for (size_t k = 0; k < n; k++)
				params[k] = s.params[k] * (1 + 0.1f * (float)i);
			assert_int_equal(backend_gradient(s.backend, params, s.index + i,
						 s.batch - i, s.dropout_seed, params + n, &right),
				PS_OK);
			assert_memory_equal(got + i * n, params + n, n * sizeof(*got));
			assert_true(fabs(loss[i] - right) <= 1e-12 * fabs(right));
		}
		assert_int_equal(
			backend_gradient_start(s.backend, s.params, s.index, 0, s.dropout_seed),
			PS_EUSAGE);
		free(got);
		free(params);
		subject_release(&s);
	}
}

void rounds_out_of_order_are_refused(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		struct subject s;

		subject_random(&s, &contract_small, 5);
		subject_open(&s, *d, 1);
		struct backend *b = s.backend;
		float *w = mem_must(LOCAL_ROUNDS * s.model.n_params, sizeof(*w), "test");
		assert_int_equal(backend_local_wait(b, NULL), PS_EUSAGE);
		assert_int_equal(backend_local_finish(b, w, NULL), PS_EUSAGE);
		assert_int_equal(backend_local_steps(b, s.index, 5, 1, 1, 0), PS_EUSAGE);
		for (size_t i = 0; i < LOCAL_ROUNDS; i++) {
			assert_int_equal(backend_local_start(b, s.params), PS_OK);
			assert_int_equal(backend_local_start(b, s.params), PS_EUSAGE);
			assert_int_equal(
				backend_local_finish(b, w + i * s.model.n_params, NULL), PS_OK);
		}
		assert_int_equal(backend_local_start(b, s.params), PS_EUSAGE);
		for (size_t i = 0; i < LOCAL_ROUNDS; i++) {
			assert_int_equal(backend_local_wait(b, NULL), PS_OK);
			assert_memory_equal(
				w + i * s.model.n_params, s.params, s.model.n_params * sizeof(*w));
		}
		assert_int_equal(backend_local_wait(b, NULL), PS_EUSAGE);
		free(w);
		subject_release(&s);
		check_one_round(*d);
	}
}

void local_training_without_steps_changes_nothing(void **state)
{
	for (const char *const *d = contract_begin(state); *d; d++) {
		struct subject s;
		double loss;

		subject_random(&s, &contract_small, 5);
		subject_open(&s, *d, 1);
		struct backend *b = s.backend;
		const size_t bytes = s.model.n_params * sizeof(float);
		float *w = mem_must(bytes, 1, "test");
		assert_int_equal(backend_local_start(b, s.params), PS_OK);
		assert_int_equal(backend_local_steps(b, s.index, 6, 1, 1, 0), PS_EUSAGE);
		assert_int_equal(backend_local_steps(b, s.index, 5, 0, 1, 0), PS_EUSAGE);
		s.index[4] = 5;
		assert_int_equal(backend_local_steps(b, s.index, 5, 1, 1, 0), PS_EUSAGE);
		assert_int_equal(backend_local_finish(b, w, s.grad), PS_OK);
		assert_int_equal(backend_local_wait(b, &loss), PS_OK);
		assert_true(loss == 0);
		assert_memory_equal(w, s.params, bytes);
		for (size_t i = 0; i < s.model.n_params; i++)
			assert_true(s.grad[i] == 0);
		free(w);
		subject_release(&s);
	}
}
