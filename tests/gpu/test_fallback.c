/*
 * test_fallback.c - tests what happens if a kernel of kernels/cuda/fused gives up, because one of
 * its thread blocks waits too long or a value leaves the range of fp16. The device then repeats the
 * batch, or the rounds in flight, with the general kernels, and the result must be the same as with
 * general kernels alone. Other tests prove that a launch of many steps gives the same bytes as
 * single steps, and that other numbers of multiprocessors change no byte.
 */
#include "tests/support/gpu_fixture.h"
#include "tests/support/test.h"
#ifdef KX_CUDA
#include "kernels/cuda/fused/seed.h"
#endif

#define STEPS 130 /* more steps than two launches make; a launch makes 60 steps */
#define BATCH 7
#ifdef KX_CUDA
#define LOSE_PIXELS KX_SEED_LOSE_PIXELS
#else
#define LOSE_PIXELS 1
#endif

/* Set the maximum time, in ns, for which thread blocks of the persistent kernel wait for each
 * other. If `ns` is 0 or LOSE_PIXELS, the kernel always gives up. */
static void set_patience(uint64_t ns)
{
#ifdef KX_CUDA
	kx_seed_timeout_ns = ns;
#else
	(void)ns;
#endif
}

static void open_kernels(struct subject *s, enum kx_precision precision, enum kx_kernels kernels)
{
	struct err e = {0};
	struct backend_options o = {.device = gpu_device(),
		.threads = 1,
		.max_batch = s->batch,
		.precision = (int)precision,
		.kernels = (int)kernels};

	backend_free(&s->backend);
	if (backend_new(&s->backend, &s->model, &o, &e) || backend_use(s->backend, &s->images, &e))
		fail_msg("%s: %s", s->model.text, e.text);
}

/* The results of two rounds: for each round the weights, the sum of the gradients, and the loss. */
struct rounds {
	float *params[2], *sum[2];
	double loss[2];
};

static void rounds_init(struct rounds *r, size_t n)
{
	for (int i = 0; i < 2; i++) {
		r->params[i] = mem_must(n, sizeof(float), "test");
		r->sum[i] = mem_must(n, sizeof(float), "test");
	}
}

static void rounds_release(struct rounds *r)
{
	for (int i = 0; i < 2; i++) {
		free(r->params[i]);
		free(r->sum[i]);
	}
}

/* Submit the first round and the beginning of the second one, wait for the losses of both, and then
 * submit the rest of the second round. */
static void run_rounds(struct subject *s, float rate, struct rounds *r)
{
	double loss;

	assert_int_equal(backend_local_start(s->backend, s->params), PS_OK);
	assert_int_equal(backend_local_steps(s->backend, s->index, 3, 2, rate, 1), PS_OK);
	assert_int_equal(backend_local_finish(s->backend, r->params[0], r->sum[0]), PS_OK);
	assert_int_equal(backend_local_start(s->backend, s->params), PS_OK);
	assert_int_equal(backend_local_steps(s->backend, s->index + 2, 4, 1, 2 * rate, 9), PS_OK);
	assert_int_equal(backend_local_wait(s->backend, &r->loss[0]), PS_OK);
	assert_int_equal(backend_local_wait(s->backend, &loss), PS_OK);
	assert_int_equal(backend_local_steps(s->backend, s->index, 2, 3, 2 * rate, 10), PS_OK);
	assert_int_equal(backend_local_finish(s->backend, r->params[1], r->sum[1]), PS_OK);
	assert_int_equal(backend_local_wait(s->backend, &r->loss[1]), PS_OK);
}

static void same_floats(const struct subject *s, const char *what, const float *a, const float *b)
{
	if (memcmp(a, b, s->model.n_params * sizeof(*a)) != 0)
		fail_msg("%s: %s differ by %g", s->model.text, what,
			gradient_distance(a, b, s->model.n_params));
}

/* Prove that a backend whose fused kernels give up computes the same as a backend with general
 * kernels. If `evaluation` is set, compare evaluations, too. */
static void prove_fall_back(
	struct subject *s, enum kx_precision precision, float rate, int evaluation)
{
	struct rounds general, tried;
	size_t correct[2];
	double loss[2], sum[2];
	float *right;

	rounds_init(&general, s->model.n_params);
	rounds_init(&tried, s->model.n_params);
	open_kernels(s, precision, KX_KERNELS_GENERAL);
	run_rounds(s, rate, &general);
	assert_int_equal(
		backend_evaluate(s->backend, s->params, 0, 5, &correct[0], &sum[0]), PS_OK);
	subject_step(s);
	right = s->grad;
	loss[0] = s->loss;
	assert_true(isfinite(loss[0]));
	s->grad = mem_must(s->model.n_params, sizeof(float), "test");

	open_kernels(s, precision, KX_KERNELS_AUTO);
	run_rounds(s, rate, &tried);
	for (int i = 0; i < 2; i++) {
		same_floats(s, "weights of a round", tried.params[i], general.params[i]);
		same_floats(s, "sums of a round", tried.sum[i], general.sum[i]);
		if (!(isfinite(general.loss[i]) && tried.loss[i] == general.loss[i]))
			fail_msg("%s: the loss of a round is %g instead of %g", s->model.text,
				tried.loss[i], general.loss[i]);
	}
	open_kernels(s, precision, KX_KERNELS_AUTO);
	subject_step(s);
	loss[1] = s->loss;
	same_floats(s, "gradients", s->grad, right);
	assert_true(loss[0] == loss[1]);
	open_kernels(s, precision, KX_KERNELS_AUTO);
	assert_int_equal(
		backend_evaluate(s->backend, s->params, 0, 5, &correct[1], &sum[1]), PS_OK);
	if (evaluation && !(correct[0] == correct[1] && sum[0] == sum[1]))
		fail_msg("%s: %zu of 5 are right, loss %g, instead of %zu, %g", s->model.text,
			correct[1], sum[1], correct[0], sum[0]);
	free(right);
	rounds_release(&general);
	rounds_release(&tried);
}

static void prove_that_waits_end(uint64_t patience)
{
	static const struct odd_model nets[] = {
		{{1, 28, 28}, "seed:8"}, {{1, 28, 28}, "seed:256"}, {{1, 28, 28}, "seed:64"}};
	static const size_t images[] = {9, 9, 131}; /* with 131 images, a step takes two passes */

	gpu_begin();
	for (size_t i = 0; i < sizeof(nets) / sizeof(nets[0]) && gpu_n_precisions() > 1; i++) {
		struct subject s;

		subject_random(&s, &nets[i], images[i]);
		set_patience(patience);
		prove_fall_back(&s, KX_BF16, 0.01f, 0);
		set_patience(2000000000);
		subject_release(&s);
	}
}

TEST(a_block_that_waits_too_long_costs_nothing_but_time)
{
	prove_that_waits_end(0);
}

/* The first thread block waits in vain for pixels, and gives up after a second. */
TEST(pixels_that_never_arrive_cost_nothing_but_time)
{
	prove_that_waits_end(LOSE_PIXELS);
}

/* In two cases, values leave the range of fp16: the first convolution has large weights and the
 * second one small weights, or the first one has small weights and the second one large weights. */
TEST(values_beyond_fp16_are_right)
{
	static const struct odd_model net = {{1, 28, 28}, "cnn99"};
	static const float scales[][2] = {{1e6f, 1e-6f}, {1e-5f, 1e5f}};

	gpu_begin();
	for (size_t i = 0; i < 2 && gpu_n_precisions() > 1; i++) {
		struct subject s;

		subject_random(&s, &net, 9);
		/* the weights (0 and 2) and the biases (1 and 3) of the two convolutions */
		for (size_t t = 0; t < 4; t++) {
			const struct tensor *w = &s.model.tensor[t];

			for (size_t k = 0; k < w->count && (t == 0 || t == 2); k++)
				s.params[w->offset + k] *= scales[i][t / 2];
		}
		prove_fall_back(&s, KX_TF32, 1e-12f, 1);
		prove_fall_back(&s, KX_BF16, 1e-12f, 1);
		subject_release(&s);
	}
}

/* The general kernels, which work for any network, must give the same bytes on GPUs with different
 * numbers of multiprocessors. */
TEST(results_do_not_depend_on_the_multiprocessors)
{
	static const struct odd_model nets[] = {{{1, 28, 28}, "seed:40"},
		{{1, 28, 28}, "fc:512 relu fc:10"},
		{{3, 11, 7}, "conv:64:3:pad=1 relu fc:40 relu fc:4"},
		{{16, 12, 12}, "conv:64:3:pad=1 batchnorm relu conv:64:3 relu pool:2 fc:4"}};

	gpu_begin();
	for (size_t m = 0; m < sizeof(nets) / sizeof(nets[0]); m++)
		for (size_t p = 0; p < gpu_n_precisions(); p++) {
			const enum kx_precision precision = gpu_precisions[p].value;
			struct subject s;
			float *first;

			subject_random(&s, &nets[m], 130);
			open_kernels(&s, precision, KX_KERNELS_GENERAL);
			subject_step(&s);
			first = s.grad;
			s.grad = mem_must(s.model.n_params, sizeof(float), "test");
			for (size_t i = 0; i < 2; i++) {
				setenv("CNN_TEST_MULTIPROCESSORS", i ? "160" : "9", 1);
				open_kernels(&s, precision, KX_KERNELS_GENERAL);
				subject_step(&s);
				same_floats(&s, "gradients", s.grad, first);
			}
			unsetenv("CNN_TEST_MULTIPROCESSORS");
			free(first);
			subject_release(&s);
		}
}

/* Train for STEPS steps of s->batch images, in calls of up to max_steps steps. */
static void train_in_rounds(struct subject *s, size_t max_steps, struct rounds *r)
{
	assert_int_equal(backend_local_start(s->backend, s->params), PS_OK);
	for (size_t i = 0, n; i < STEPS; i += n) {
		n = STEPS - i < max_steps ? STEPS - i : max_steps;
		assert_int_equal(backend_local_steps(s->backend, s->index + i * s->batch, s->batch,
					 n, 0.01f, 1 + i),
			PS_OK);
	}
	assert_int_equal(backend_local_finish(s->backend, r->params[0], r->sum[0]), PS_OK);
	assert_int_equal(backend_local_wait(s->backend, &r->loss[0]), PS_OK);
}

/* Prove that launches of many steps of `batch` images give the bytes of launches of one step. */
static void prove_single_steps(const struct odd_model *net, const struct precision *p, size_t batch)
{
	struct subject s;
	struct rounds one, many;

	subject_random(&s, net, STEPS * batch);
	rounds_init(&one, s.model.n_params);
	rounds_init(&many, s.model.n_params);
	s.batch = batch;
	gpu_open(&s, p);
	train_in_rounds(&s, 1, &one);
	train_in_rounds(&s, STEPS, &many);
	same_floats(&s, "weights", one.params[0], many.params[0]);
	same_floats(&s, "sums", one.sum[0], many.sum[0]);
	assert_true(fabs(one.loss[0] - many.loss[0]) <= 1e-9 * fabs(one.loss[0]));
	rounds_release(&one);
	rounds_release(&many);
	subject_release(&s);
}

TEST(launches_of_many_steps_are_single_steps)
{
	static const struct odd_model nets[] = {{{1, 28, 28}, "seed:8"}, {{1, 28, 28}, "seed:40"},
		{{1, 28, 28}, "seed:256"}, {{1, 28, 28}, "cnn99"}, {{1, 28, 28}, "lenet5"},
		{{3, 11, 7}, "conv:5:3:stride=2 relu dropout:0.3 conv:7:2 relu fc:4"},
		{{1, 9, 8}, "conv:16:3:pad=1 lrn skip conv:16:3:pad=1:groups=2 relu add fc:4"},
		{{1, 9, 8}, "conv:16:3 batchnorm relu fc:9 batchnorm fc:4"}};

	gpu_begin();
	for (size_t m = 0; m < sizeof(nets) / sizeof(nets[0]); m++)
		for (size_t p = 0; p < gpu_n_precisions(); p++)
			prove_single_steps(&nets[m], &gpu_precisions[p], BATCH);
}

/* In these batches a step of the persistent kernel takes several passes. */
TEST(launches_of_many_passes_are_single_steps)
{
	static const struct odd_model nets[] = {
		{{1, 28, 28}, "seed:60"}, {{1, 28, 28}, "seed:128"}, {{1, 28, 28}, "seed:256"}};

	gpu_begin();
	for (size_t m = 0; m < sizeof(nets) / sizeof(nets[0]) && gpu_n_precisions() > 1; m++) {
		prove_single_steps(&nets[m], &gpu_precisions[KX_BF16], 131);
		prove_single_steps(&nets[m], &gpu_precisions[KX_BF16], 208);
	}
}
