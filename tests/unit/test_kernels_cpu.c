/* test_kernels_cpu.c - compares the cpu device with cpu-ref and with the slopes of its own losses,
 * with every instruction set of this processor, for models with odd sizes and for batches of real
 * images. The variable CNN_KX_ISA selects the instruction set. The images come from $CNN_DATA or
 * the default data directories. */
#include "tests/support/real_images.h"
#include "kernels/cpu/plan.h"
#include "tests/support/test.h"

static const char *const isas[] = {"baseline", "avx2", "avx512"};
#define N_ISAS (sizeof(isas) / sizeof(isas[0]))

static const struct odd_model tiny = {{1, 1, 1}, "fc:2"};

/* Returns 1 if this processor supports isas[i], and sets CNN_KX_ISA to isas[i]. The instruction set
 * `baseline` works on every processor. */
static int use_isa(size_t i)
{
	struct subject s;
	struct err e = {0};

	setenv("CNN_KX_ISA", isas[i], 1);
	subject_random(&s, &tiny, 1);
	struct backend_options o = {.device = "cpu", .threads = 1, .max_batch = 1};
	int rc = backend_new(&s.backend, &s.model, &o, &e);
	if (rc == PS_OK)
		assert_non_null(strstr(backend_name(s.backend), isas[i]));
	else
		assert_true(rc == PS_EUSAGE && i > 0);
	subject_release(&s);
	return rc == PS_OK;
}

TEST(every_layer_with_weights_names_its_kernels)
{
	static const struct {
		const char *device, *kernels;
	} cases[] = {
		{"cpu-ref", "conv1=reference fc1=reference fc2=reference"},
		{"cpu", "conv1=dense/sparse/none fc1=joint/joint/joint fc2=dense/dense/dense"},
	};
	struct model m;
	struct err e = {0};

	setenv("CNN_KX_ISA", "baseline", 1);
	assert_int_equal(model_parse(&m, "conv:8:5 relu pool:2 fc:1000 relu fc:10",
				 (struct shape){1, 28, 28}, &e),
		PS_OK);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct backend_options o = {
			.device = cases[i].device, .threads = 1, .max_batch = 10};
		struct backend *b;
		char text[BACKEND_KERNELS_TEXT], cut[12];

		assert_int_equal(backend_new(&b, &m, &o, &e), PS_OK);
		backend_kernels(b, 10, text, sizeof(text));
		assert_string_equal(text, cases[i].kernels);
		backend_kernels(b, 10, cut, sizeof(cut));
		assert_memory_equal(cut, text, sizeof(cut) - 1);
		assert_int_equal(strlen(cut), sizeof(cut) - 1);
		backend_free(&b);
	}
	unsetenv("CNN_KX_ISA");
}

TEST(instruction_sets_that_do_not_exist_are_refused)
{
	struct model m;
	struct backend *b;
	struct err e = {0};

	setenv("CNN_KX_ISA", "mmx", 1);
	assert_int_equal(model_parse(&m, tiny.text, tiny.input, &e), PS_OK);
	assert_int_equal(
		backend_new(&b, &m,
			&(struct backend_options){.device = "cpu", .threads = 1, .max_batch = 1},
			&e),
		PS_EUSAGE);
	assert_non_null(strstr(e.text, "CNN_KX_ISA=mmx"));
	unsetenv("CNN_KX_ISA");
}

/* The device refuses two kinds of models before it allocates memory: a padded plane that is too
 * large for 32-bit offsets, and a pool window with too many values. */
TEST(models_that_the_tables_cannot_hold_are_refused)
{
	static const char *const texts[] = {
		/* with the padding, an input of 8218 x 8218 values */
		"conv:1:3:pad=2 conv:1:4096:pad=4095 fc:2",
		/* a pool whose windows have 300 x 300 values */
		"conv:1:1 relu pool:300:pad=auto fc:2",
	};

	for (size_t i = 0; i < 2; i++) {
		struct model m;
		struct backend *b;
		struct err e = {0};
		struct backend_options o = {.device = "cpu", .threads = 1, .max_batch = 1};

		struct shape input =
			i == 0 ? (struct shape){1, 28, 28} : (struct shape){1, 300, 300};
		assert_int_equal(model_parse(&m, texts[i], input, &e), PS_OK);
		assert_int_equal(backend_new(&b, &m, &o, &e), PS_ENOMEM);
		assert_null(b);
		assert_non_null(strstr(e.text, "does not fit"));
	}
}

/* ---- odd models ------------------------------------------------------------------------------ */

/* Compares the float results of the device `cpu` with the double results of cpu-ref. A sum has up
 * to some thousand terms, and is computed in tiles of 100 to 1000 terms. The relative error of a
 * sum is therefore about 1e-7, or 1e-6 in a layer whose terms nearly cancel. The project requires a
 * relative error of at most 1e-5. */
static void compare_gradient(struct subject *s, const float *right, double right_loss, int threads)
{
	subject_open(s, "cpu", threads);
	subject_step(s);
	/* compute the step again: now every buffer contains values of the first step, which must
	 * not change the result */
	subject_step(s);
	const size_t n = s->model.n_trained, running = s->model.n_params - n;
	double d = gradient_distance(s->grad, right, n);
	double d_running = running ? gradient_distance(s->grad + n, right + n, running) : 0;
	if (!(d <= 1e-5) || !(fabs(s->loss - right_loss) <= 1e-6) || !(d_running <= 1e-5))
		fail_msg("%s, %zu images, %s: gradient off by %g, loss %.9g instead of %.9g",
			s->model.text, s->batch, backend_name(s->backend), d, s->loss, right_loss);
}

static void odd_model_agrees(const struct odd_model *o, size_t images)
{
	struct subject s;

	subject_random(&s, o, images);
	subject_open(&s, "cpu-ref", 1);
	subject_step(&s);
	double loss = s.loss;
	float *right = s.grad;
	s.grad = mem_must(s.model.n_params, sizeof(float), "test");
	for (size_t i = 0; i < N_ISAS; i++)
		for (int threads = 1; threads <= 3 && use_isa(i); threads++)
			compare_gradient(&s, right, loss, threads);
	free(right);
	subject_release(&s);
}

static void odd_models_agree(size_t images)
{
	for (size_t m = 0; m < N_ODD_MODELS; m++)
		odd_model_agrees(&odd_models[m], images);
	for (size_t m = 0; m < N_LAYER_MODELS; m++)
		odd_model_agrees(&layer_models[m], images);
}

/* Unlike training, an evaluation uses the running statistics, and divides a batch into blocks of
 * other sizes. */
static void evaluation_agrees(const struct odd_model *o)
{
	struct subject s;
	size_t correct[2];
	double loss[2];

	unsetenv("CNN_KX_ISA");
	subject_random(&s, o, 70);
	for (size_t t = s.model.n_trained; t < s.model.n_params; t++)
		s.params[t] = 0.5f + 0.25f * (float)(t % 3);
	for (int d = 0; d < 2; d++) {
		subject_open(&s, d ? "cpu" : "cpu-ref", d ? 3 : 1);
		assert_int_equal(
			backend_evaluate(s.backend, s.params, 1, 69, &correct[d], &loss[d]), PS_OK);
	}
	if (!(fabs(loss[0] - loss[1]) <= 1e-4 * fabs(loss[0])))
		fail_msg("%s: loss %g instead of %g", s.model.text, loss[1], loss[0]);
	subject_release(&s);
}

TEST(evaluation_of_odd_models_agrees_with_cpu_ref)
{
	for (size_t m = 0; m < N_LAYER_MODELS; m++)
		evaluation_agrees(&layer_models[m]);
}

TEST(one_image_on_odd_models_agrees_with_cpu_ref)
{
	odd_models_agree(1);
}

TEST(seventeen_images_on_odd_models_agree_with_cpu_ref)
{
	odd_models_agree(17);
}

/* Check that for each algorithm for a product there is an odd model that uses it, so that no
 * algorithm stays untested. */
TEST(odd_models_take_every_way)
{
	size_t filter[WAY_JOINT + 1] = {0}, data[WAY_JOINT + 1] = {0};

	for (size_t m = 0; m < N_ODD_MODELS; m++) {
		struct model model;
		struct plan p;
		struct err e = {0};

		assert_int_equal(
			model_parse(&model, odd_models[m].text, odd_models[m].input, &e), PS_OK);
		assert_int_equal(plan_init(&p, &model, &simd_baseline, &e), PS_OK);
		for (size_t i = 0; i < p.n_steps; i++)
			if (p.step[i].kind == STEP_WEIGHTS) {
				filter[p.step[i].filter]++;
				data[p.step[i].data]++;
			}
		plan_release(&p);
	}
	assert_true(filter[WAY_DENSE] && filter[WAY_SPARSE] && filter[WAY_JOINT]);
	assert_true(data[WAY_NONE] && data[WAY_DENSE] && data[WAY_SPARSE] && data[WAY_JOINT]);
}

/* ---- Winograd -------------------------------------------------------------------------------- */

/* The convolutions of these tests have enough channels for Winograd's algorithm. Some images do not
 * fill their tiles, some bands of tiles have several images or several rows, and some windows do
 * not fit the tiles. */
static const struct odd_model winograd_models[] = {
	{{1, 13, 11}, "conv:32:2 relu conv:33:3:pad=1 relu fc:3"},
	{{32, 10, 14}, "conv:33:3:pad=1 relu pool:2 conv:32:3:pad=same fc:3"},
	{{35, 9, 12}, "conv:32:5:pad=2 relu pool:3 fc:5"},
	{{32, 23, 22}, "conv:32:5 relu conv:31:5:pad=2 fc:3"},
	{{32, 34, 29}, "conv:32:3:pad=1 pool:3:pad=auto fc:3"},
	{{33, 36, 30}, "conv:34:3:pad=1 relu pool:3 fc:3"},
	{{32, 6, 8}, "conv:32:3:pad=1 relu conv:32:3:pad=1 fc:3"},
	{{32, 8, 8}, "batchnorm skip conv:32:3:pad=1 relu conv:32:3:pad=1 add fc:3"},
};
#define N_WINOGRAD_MODELS (sizeof(winograd_models) / sizeof(winograd_models[0]))

TEST(winograd_tiles_agree_with_cpu_ref)
{
	skip_under_tsan();
	for (size_t m = 0; m < N_WINOGRAD_MODELS; m++) {
		odd_model_agrees(&winograd_models[m], 1);
		odd_model_agrees(&winograd_models[m], 7);
	}
}

TEST(gradients_of_winograd_tiles_are_slopes_of_the_loss)
{
	skip_under_tsan();
	for (size_t m = 0; m < N_WINOGRAD_MODELS; m++) {
		struct subject s;

		unsetenv("CNN_KX_ISA");
		subject_random(&s, &winograd_models[m], 2);
		subject_open(&s, "cpu", 2);
		check_slopes(&s);
		subject_release(&s);
	}
}

/* The models above must use all of Winograd's products. There must be models with one band of tiles
 * per image, with several bands per image, and with several images per band. There must also be
 * models in which the last column of tiles, the last row of tiles, or both need fewer points. */
TEST(winograd_models_take_every_kind_of_band)
{
	static const struct simd *const sets[] = {&simd_baseline, &simd_avx2, &simd_avx512};
	size_t forward = 0, backward = 0, sizes[2] = {0}, bands = 0, images = 0;
	size_t narrow = 0, low = 0, both = 0;

	for (size_t i = 0; i < N_ISAS; i++)
		for (size_t m = 0; m < N_WINOGRAD_MODELS; m++) {
			struct model model;
			struct plan p;
			struct err e = {0};

			assert_int_equal(model_parse(&model, winograd_models[m].text,
						 winograd_models[m].input, &e),
				PS_OK);
			assert_int_equal(plan_init(&p, &model, sets[i], &e), PS_OK);
			for (size_t k = 0; k < p.n_steps; k++) {
				const struct step *s = &p.step[k];

				forward += s->forward == WAY_WINOGRAD;
				backward += s->data == WAY_WINOGRAD;
				sizes[0] += s->winograd.size == 2;
				sizes[1] += s->winograd.size == 4;
				bands += s->winograd.bands > 1;
				images += s->winograd.images > 1;
				narrow += s->winograd.narrow && !s->winograd.low;
				low += s->winograd.low && !s->winograd.narrow;
				both += s->winograd.low && s->winograd.narrow;
			}
			plan_release(&p);
		}
	assert_true(forward && backward && sizes[0] && sizes[1] && bands && images);
	assert_true(narrow && low && both);
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Models whose plan is cut into segments (plan.h), because an fc layer has many weights. The last
 * one has a skip around this layer, so it has one segment. */
static const struct {
	struct odd_model model;
	size_t segments;
} segment_models[] = {
	{{{3, 28, 28}, "conv:16:3:pad=1 tanh conv:32:3:pad=1 avgpool:2 conv:48:3:pad=1 avgpool:2 "
		       "fc:128 fc:10"},
		3},
	{{{3, 16, 16}, "conv:24:3:pad=1 lrn skip conv:24:3:pad=1 tanh conv:24:3:pad=1 add "
		       "dropout:0.3 fc:64 fc:5"},
		2},
	{{{4, 18, 16}, "conv:16:5 pool:4:stride=2 dropout:0.2 conv:40:3:groups=2:pad=1 "
		       "fc:300 fc:512 tanh fc:3"},
		2},
	{{{1, 10, 10}, "fc:512 skip fc:512 tanh fc:512 add fc:3"}, 1},
};
#define N_SEGMENT_MODELS (sizeof(segment_models) / sizeof(segment_models[0]))

TEST(models_in_segments_agree_with_cpu_ref)
{
	skip_under_tsan();
	for (size_t m = 0; m < N_SEGMENT_MODELS; m++) {
		odd_model_agrees(&segment_models[m].model, 1);
		odd_model_agrees(&segment_models[m].model, 23);
	}
}

TEST(many_weights_cut_a_plan_into_segments)
{
	for (size_t m = 0; m < N_SEGMENT_MODELS; m++) {
		const struct odd_model *o = &segment_models[m].model;
		struct model model;
		struct plan p;
		struct err e = {0};

		assert_int_equal(model_parse(&model, o->text, o->input, &e), PS_OK);
		assert_int_equal(plan_init(&p, &model, &simd_baseline, &e), PS_OK);
		assert_int_equal(p.n_segments, segment_models[m].segments);
		assert_int_equal(p.segment[0].begin, 0);
		for (size_t k = 1; k < p.n_segments; k++)
			assert_int_equal(p.segment[k].begin, p.segment[k - 1].end);
		assert_int_equal(p.segment[p.n_segments - 1].end, p.n_steps);
		plan_release(&p);
	}
}

/* ---- joint steps ----------------------------------------------------------------------------- */

/* Models with joint steps (joint.h). The joint steps have one or several channels. Some are the
 * first or the last step of the model, some follow each other, and some are beside batchnorm. No
 * size is a multiple of the length of a SIMD vector. */
static const struct odd_model joint_models[] = {
	{{3, 9, 13}, "conv:31:3 relu fc:131 relu fc:3"},
	{{1, 23, 29}, "fc:397 relu fc:661 tanh fc:71"},
	{{2, 33, 35}, "fc:117 dropout:0.4 fc:5"},
	{{3, 9, 13}, "batchnorm conv:31:3 relu fc:131"},
};
#define N_JOINT_MODELS (sizeof(joint_models) / sizeof(joint_models[0]))

/* Returns the number of joint steps of the model. In joint_models, each step with many weights is a
 * joint step. */
static size_t count_joint_steps(const struct odd_model *o)
{
	struct model model;
	struct plan p;
	struct err e = {0};
	size_t joint = 0;

	assert_int_equal(model_parse(&model, o->text, o->input, &e), PS_OK);
	assert_int_equal(plan_init(&p, &model, &simd_baseline, &e), PS_OK);
	for (size_t i = 0; i < p.n_steps; i++)
		joint += p.step[i].forward == WAY_JOINT;
	plan_release(&p);
	return joint;
}

/* A lane is the part of one thread of the team in the work on a batch (kernels/cpu/lane.h). With
 * 150 images a lane of a small team needs two rounds, and with one image some lanes have no
 * image. */
TEST(joint_steps_agree_with_cpu_ref)
{
	static const size_t images[] = {1, 23, 150};

	skip_under_tsan();
	for (size_t m = 0; m < N_JOINT_MODELS; m++) {
		assert_true(count_joint_steps(&joint_models[m]) > 0);
		for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++)
			odd_model_agrees(&joint_models[m], images[i]);
	}
}

TEST(evaluation_of_joint_steps_agrees_with_cpu_ref)
{
	for (size_t m = 0; m < N_JOINT_MODELS; m++)
		evaluation_agrees(&joint_models[m]);
}

TEST(gradients_of_joint_steps_are_slopes_of_the_loss)
{
	skip_under_tsan();
	for (size_t m = 0; m < N_JOINT_MODELS; m++) {
		struct subject s;

		unsetenv("CNN_KX_ISA");
		subject_random(&s, &joint_models[m], 3);
		subject_open(&s, "cpu", 2);
		check_slopes(&s);
		subject_release(&s);
	}
}

/* Every layer of this model is a joint step. With each number of threads, the products of these
 * steps are divided in another way, but each sum is added up in the same order. */
TEST(joint_steps_give_the_same_bytes_with_any_number_of_threads)
{
	static const struct odd_model model = {{1, 23, 29}, "fc:397 relu fc:661 tanh fc:401"};
	struct subject s;

	assert_int_equal(count_joint_steps(&model), 3);
	subject_random(&s, &model, 101);
	const size_t bytes = s.model.n_params * sizeof(float);
	float *first = mem_must(1, bytes, "test");

	for (size_t i = 0; i < N_ISAS; i++)
		for (int threads = 1; threads <= 7 && use_isa(i); threads++) {
			subject_open(&s, "cpu", threads);
			subject_step(&s);
			if (threads == 1)
				memcpy(first, s.grad, bytes);
			assert_memory_equal(s.grad, first, bytes);
		}
	free(first);
	subject_release(&s);
}

/* ---- slopes ---------------------------------------------------------------------------------- */

TEST(cpu_gradients_are_slopes_of_the_loss)
{
	skip_under_tsan();
	for (size_t i = 0; i < N_ISAS; i++)
		for (size_t m = 0; m < N_ODD_MODELS && use_isa(i); m++) {
			struct subject s;

			subject_random(&s, &odd_models[m], 3);
			subject_open(&s, "cpu", 2);
			check_slopes(&s);
			subject_release(&s);
		}
	for (size_t m = 0; m < N_LAYER_MODELS; m++) {
		struct subject s;

		unsetenv("CNN_KX_ISA");
		subject_random(&s, &layer_models[m], 3);
		subject_open(&s, "cpu", 2);
		check_slopes(&s);
		subject_release(&s);
	}
}

/* ---- real batches ---------------------------------------------------------------------------- */

/* Compares the gradient of the device `cpu` with `right`. The error must be at most 1e-5. The error
 * may be larger if the true gradient jumps near these weights, because a ReLU or an argmax
 * flips. */
static void compare_real(struct subject *s, const float *right, size_t *jumps)
{
	subject_open(s, "cpu", 2);
	subject_step(s);
	double d = gradient_distance(s->grad, right, s->model.n_params), at_jump;
	if (d <= 1e-5)
		return;
	at_jump = gradient_jump(s, right, 0x1p-22, d / 2);
	++*jumps;
	print_message(
		"%s: cpu differs by %g, where the truth jumps by %g\n", s->model.text, d, at_jump);
	if (!(d <= 2 * at_jump))
		fail_msg("%s with %s: gradient off by %g", s->model.text, getenv("CNN_KX_ISA"), d);
}

/* For two batches of `n` images, compares the gradients of the device `cpu` with those of cpu-ref.
 * At most one of about six comparisons may be at weights where the true gradient jumps. */
static void real_batches_agree(const char *text, size_t n)
{
	size_t jumps = 0;

	for (size_t batch = 0; batch < 2; batch++) {
		struct subject s;

		subject_real(&s, text, batch * n, n);
		subject_open(&s, "cpu-ref", 1);
		subject_step(&s);
		float *right = s.grad;
		s.grad = mem_must(s.model.n_params, sizeof(float), "test");
		for (size_t i = 0; i < N_ISAS; i++)
			if (use_isa(i))
				compare_real(&s, right, &jumps);
		free(right);
		subject_release(&s);
	}
	assert_true(jumps <= 1);
}

TEST(real_batches_of_seed_32_agree_with_cpu_ref)
{
	skip_under_tsan();
	real_batches_agree("seed:32", 100);
}

TEST(real_batches_of_lenet5_agree_with_cpu_ref)
{
	skip_under_tsan();
	real_batches_agree("lenet5", 37);
}

TEST(real_batches_of_cnn99_agree_with_cpu_ref)
{
	skip_under_tsan();
	real_batches_agree("cnn99", 7);
}

TEST(real_batches_of_a_strided_padded_net_agree_with_cpu_ref)
{
	real_batches_agree("conv:12:5:stride=2:pad=auto relu conv:20:3:pad=1 relu "
			   "pool:4:pad=auto fc:50 relu fc:10",
		21);
}

TEST(real_batches_of_winograd_nets_agree_with_cpu_ref)
{
	skip_under_tsan();
	real_batches_agree("conv:32:3:pad=1 relu conv:32:3 relu pool:2 fc:10", 7);
	real_batches_agree("conv:32:5:pad=2 relu pool:2 conv:48:5:pad=2 relu pool:2 fc:10", 7);
}

TEST(real_batches_of_a_dropout_net_agree_with_cpu_ref)
{
	skip_under_tsan();
	real_batches_agree("conv:16:5 relu pool:2 dropout:0.25 fc:64 relu dropout:0.5 fc:10", 21);
}

TEST(evaluation_agrees_with_cpu_ref)
{
	skip_under_tsan();
	for (size_t i = 0; i < N_ISAS; i++) {
		struct subject s;
		size_t correct[2];
		double loss[2];

		if (!use_isa(i))
			continue;
		subject_real(&s, "lenet5", 0, 16);
		for (int d = 0; d < 2; d++) {
			subject_open(&s, d ? "cpu" : "cpu-ref", d ? 3 : 1);
			assert_int_equal(backend_evaluate(s.backend, s.params, 1000, 37,
						 &correct[d], &loss[d]),
				PS_OK);
		}
		assert_int_equal(correct[0], correct[1]);
		assert_true(fabs(loss[0] - loss[1]) < 1e-4);
		subject_release(&s);
	}
}

/* ---- equal results -------------------------------------------------------------------------- */

/* The result must be the same after other batches and evaluations, which leave other values in
 * every buffer. */
TEST(equal_arguments_give_equal_bytes)
{
	static const char *const texts[] = {"seed:32", "lenet5",
		"conv:16:5 relu pool:2 dropout:0.25 fc:64 relu dropout:0.5 fc:10",
		"fc:400 relu fc:10", "conv:32:3 relu conv:32:3:pad=1 relu pool:2 fc:10",
		"conv:8:3:pad=auto batchnorm relu skip conv:8:3:pad=1:groups=2 batchnorm add fc:10",
		"conv:8:3:pad=auto relu lrn avgpool:3:stride=2:pad=same tanh fc:10"};

	for (size_t m = 0; m < sizeof(texts) / sizeof(texts[0]); m++)
		for (int threads = 1; threads <= 5; threads += 2) {
			struct subject s;
			size_t correct;
			double loss_sum;

			unsetenv("CNN_KX_ISA");
			subject_real(&s, texts[m], 0, 41);
			subject_open(&s, "cpu", threads);
			subject_step(&s);
			double loss = s.loss;
			float *first = s.grad;
			s.grad = mem_must(s.model.n_params, sizeof(float), "test");
			s.batch = 3;
			s.dropout_seed++;
			subject_step(&s);
			assert_int_equal(backend_evaluate(s.backend, s.params, 500, 200, &correct,
						 &loss_sum),
				PS_OK);
			s.batch = 41;
			s.dropout_seed--;
			subject_step(&s);
			assert_memory_equal(s.grad, first, s.model.n_params * sizeof(float));
			assert_memory_equal(&s.loss, &loss, sizeof(loss));
			/* a new backend, whose memory is elsewhere, must give the same result */
			subject_open(&s, "cpu", threads);
			subject_step(&s);
			assert_memory_equal(s.grad, first, s.model.n_params * sizeof(float));
			free(first);
			subject_release(&s);
		}
}

TEST_GROUP(real_load, real_release)
