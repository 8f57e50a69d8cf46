/*
 * test_odd_models.c - compares the CUDA device with cpu-ref, and with finite differences of the
 * device's losses. The odd models of gradients.h have layers whose sizes are 1, primes or next to
 * multiples of the blocks of kernels. They have strides, pads and several channels, and every kind
 * of layer in every place.
 */
#include "tests/support/gpu_fixture.h"

/* Models without ReLU and pool, so that their gradients have no jumps. With few images, few values
 * of a sum cancel each other. For these models the bounds are therefore tight in the low
 * precisions, too. */
static const struct odd_model smooth_models[] = {
	{{1, 1, 1}, "fc:2"},
	{{1, 28, 28}, "fc:129 fc:65 fc:10"},
	{{1, 9, 9}, "conv:16:3 fc:10"},
	{{3, 11, 7}, "conv:5:3:stride=2 conv:7:2 fc:4"},
	{{2, 13, 10}, "conv:33:4:stride=3 conv:17:3:pad=1 fc:3"},
	{{1, 28, 28}, "conv:32:5 conv:64:5:stride=2:pad=auto fc:33 fc:10"},
	{{4, 6, 5}, "conv:31:3:pad=2 dropout:0.25 conv:65:1 fc:7"},
	{{5, 12, 12}, "conv:9:5:pad=2 conv:24:3:pad=1 fc:130 fc:5"},
	{{12, 9, 9}, "conv:40:3:stride=2:pad=1 conv:24:3:stride=2:pad=1 fc:5"},
};
#define N_SMOOTH_MODELS (sizeof(smooth_models) / sizeof(smooth_models[0]))

/* Convolutions that tensor/winograd.h computes in fp32: 3 x 3 and 5 x 5, with and without a pool
 * after them, with images that do not fill their tiles, and with channels that do not fill the
 * blocks of the products. */
static const struct odd_model winograd_models[] = {
	{{1, 14, 12}, "conv:64:2 conv:72:3:pad=1 fc:3"},
	{{3, 12, 12},
		"conv:32:3:pad=1 relu conv:64:3:pad=1 relu pool:2 conv:136:3:pad=1 relu fc:5"},
	{{32, 12, 16}, "conv:64:3:pad=1 relu pool:2 conv:64:3:pad=2 relu fc:3"},
	{{35, 10, 14}, "conv:64:1 conv:64:5:pad=2 relu pool:2 fc:5"},
	{{3, 15, 17}, "conv:40:2 relu conv:72:5:pad=2 relu pool:2 conv:65:5:pad=4 relu fc:3"},
	{{64, 16, 17}, "conv:57:5 relu conv:130:5:pad=1 relu fc:3"},
	{{33, 18, 14}, "conv:66:1 conv:130:3:pad=2 relu pool:3:pad=auto fc:3"},
	{{64, 8, 8}, "batchnorm skip conv:64:3:pad=1 relu conv:64:3:pad=1 add fc:3"},
	{{32, 13, 9}, "relu conv:64:3 conv:32:3:stride=2 conv:64:3:pad=2:groups=2 fc:3"},
};
#define N_WINOGRAD_MODELS (sizeof(winograd_models) / sizeof(winograd_models[0]))

/* Convolutions whose groups have products of their own: with strides, pools and filters of 1 x 1,
 * with three parts of four groups each, and with one channel per group. */
static const struct odd_model grouped_models[] = {
	{{3, 12, 11}, "conv:64:1 conv:64:3:pad=1:groups=2 relu fc:3"},
	{{3, 15, 11}, "conv:80:2 relu conv:64:5:pad=2:groups=2 relu pool:2 "
		      "conv:96:3:stride=2:groups=2 fc:5"},
	{{2, 6, 7}, "conv:128:1 batchnorm relu conv:128:3:pad=1:groups=4 relu conv:64:1:groups=2 "
		    "avgpool:global fc:4"},
	{{1, 6, 6}, "conv:144:1 conv:96:3:groups=12 fc:3"},
	{{1, 8, 8}, "conv:64:1 conv:64:3:pad=1:groups=64 relu fc:2"},
};
#define N_GROUPED_MODELS (sizeof(grouped_models) / sizeof(grouped_models[0]))

/* the two convolutions that the kernels of fused/conv2.h compute together */
#define PAIR "conv:32:5 relu pool:2 conv:64:5 relu pool:2"

/* Models for which the device has special kernels, on 28 x 28 images, with filter counts around the
 * sizes of their blocks. */
static const struct odd_model fused_models[] = {
	{{1, 28, 28}, "seed:1"},
	{{1, 28, 28}, "seed:7"},
	{{1, 28, 28}, "seed:8"},
	{{1, 28, 28}, "seed:33"},
	{{1, 28, 28}, "seed:67"},
	{{1, 28, 28}, "conv:32:3 relu pool:2 conv:5:3 relu fc:10"},
	{{1, 28, 28}, "conv:32:5 relu pool:2 fc:10"},
	{{1, 28, 28}, "conv:96:5 relu pool:2 dropout:0.3 conv:17:2 fc:3"},
	{{1, 28, 28}, "conv:64:3 relu pool:2 fc:33 relu fc:10"},
	{{1, 28, 28}, "conv:31:5 relu pool:2 fc:2"},
	{{1, 28, 28}, PAIR " fc:10"},
	{{1, 28, 28}, PAIR " fc:128 relu fc:3"},
	{{1, 28, 28}, PAIR " fc:128 relu fc:12"},
	{{1, 28, 28}, PAIR " dropout:0.5 fc:128 relu fc:13"},
	/* in tf32 and bf16, one kernel computes a convolution and its pool */
	{{1, 28, 28}, "conv:32:3 relu conv:64:3 relu pool:2 fc:128 relu fc:10"},
	{{5, 12, 12}, "conv:9:5:pad=2 relu pool:2 conv:136:3:pad=1 relu pool:2 fc:130 relu fc:10"},
	{{3, 16, 12}, "conv:5:3:pad=1 relu pool:2 conv:33:3:pad=1 relu pool:2 conv:7:1 relu fc:4"},
};
#define N_FUSED_MODELS (sizeof(fused_models) / sizeof(fused_models[0]))

/*
 * Check that the distance between the device's gradient and the exact gradient `right` is within
 * the bound. If rounding errors of the weights make the exact gradient jump, the distance may be
 * FEW times this jump, because activations are rounded, too. In fp32 such jumps must be rare, or
 * the comparison would prove nothing. If the distance is at most `loose`, the function does not
 * look for a jump.
 */
#define FEW 4
static void compare_odd_model(struct subject *s, const struct precision *p, double loose,
	const float *right, double right_loss, size_t *jumps)
{
	gpu_open(s, p);
	subject_step(s);
	gpu_repeat(s);
	double d = gradient_distance(s->grad, right, s->model.n_params), loss = s->loss;
	if (!(fabs(loss - right_loss) <= p->bound * (1 + fabs(right_loss))))
		fail_msg("%s, %zu images in %s: loss %.9g instead of %.9g", s->model.text, s->batch,
			p->name, loss, right_loss);
	if (d <= p->bound)
		return;
	++*jumps;
	if (d <= loose)
		return;
	double at_jump = gradient_jump(s, right, p->rounding, d / FEW);
	if (!(d <= FEW * at_jump))
		fail_msg("%s, %zu images in %s: gradient off by %g (the truth jumps by %g)",
			s->model.text, s->batch, p->name, d, at_jump);
}

#define TENSOR_FACTOR 8 /* the bound of one tensor, as a multiple of that of the gradient */

/* Fails if one tensor of the gradient of compare_odd_model is wrong, even a small one that hardly
 * changes the distance of the whole gradient. */
static void compare_tensors(const struct subject *s, const struct precision *p, const float *right)
{
	double worst = gpu_worst_tensor(s, right);

	print_message("# %s in %s: worst tensor %.2e\n", s->model.text, p->name, worst);
	if (!(worst <= TENSOR_FACTOR * p->bound))
		fail_msg("%s in %s: a tensor is off by %g", s->model.text, p->name, worst);
}

/* Compare the gradients of batches of `images` images with those of cpu-ref; with `tensors`, also
 * each tensor of these gradients. In fp32, at most max_jumps of the models may have a gradient
 * whose distance exceeds the bound. */
static void compare_odd_models(
	const struct odd_model *models, size_t n, size_t images, size_t max_jumps, int tensors)
{
	size_t jumps[sizeof(gpu_precisions) / sizeof(gpu_precisions[0])] = {0};

	gpu_begin();
	for (size_t m = 0; m < n; m++) {
		struct subject s;
		double loss;

		subject_random(&s, &models[m], images);
		float *right = gpu_reference(&s, &loss);
		for (size_t p = 0; p < gpu_n_precisions(); p++) {
			const struct precision *one = &gpu_precisions[p];

			compare_odd_model(&s, one, one->loose, right, loss, &jumps[p]);
			if (tensors)
				compare_tensors(&s, one, right);
		}
		free(right);
		subject_release(&s);
	}
	for (size_t p = 0; p < gpu_n_precisions(); p++)
		print_message("# %zu images, %s: %zu of %zu models at a jump\n", images,
			gpu_precisions[p].name, jumps[p], n);
	assert_in_range(jumps[0], 0, max_jumps);
}

static void odd_models_agree_with_ref(
	const struct odd_model *models, size_t n, size_t images, size_t max_jumps)
{
	compare_odd_models(models, n, images, max_jumps, 0);
}

static void one_image_agrees_with_cpu_ref(void **state)
{
	(void)state;
	odd_models_agree_with_ref(odd_models, N_ODD_MODELS, 1, 0);
}

static void seventeen_images_agree_with_cpu_ref(void **state)
{
	(void)state;
	odd_models_agree_with_ref(odd_models, N_ODD_MODELS, 17, 1);
}

static void one_hundred_and_thirty_images_agree_with_cpu_ref(void **state)
{
	(void)state;
	odd_models_agree_with_ref(odd_models, N_ODD_MODELS, 130, 2);
}

static void every_kind_of_layer_agrees_with_cpu_ref(void **state)
{
	(void)state;
	odd_models_agree_with_ref(layer_models, N_LAYER_MODELS, 1, 0);
	odd_models_agree_with_ref(layer_models, N_LAYER_MODELS, 17, 1);
	odd_models_agree_with_ref(layer_models, N_LAYER_MODELS, 130, 2);
}

/* Check that winograd.h computes a product of each of the models above in fp32. */
static void prove_tiles(size_t images)
{
	char text[BACKEND_KERNELS_TEXT];

	for (size_t m = 0; m < N_WINOGRAD_MODELS; m++) {
		struct subject s;

		subject_random(&s, &winograd_models[m], images);
		gpu_open(&s, &gpu_precisions[0]);
		backend_kernels(s.backend, images, text, sizeof(text));
		print_message("# %s: %s\n", s.model.text, text);
		assert_non_null(strstr(text, "winograd"));
		subject_release(&s);
	}
}

static void convolutions_in_tiles_agree_with_cpu_ref(void **state)
{
	(void)state;
	gpu_begin();
	if (strcmp(gpu_device(), "cpu") != 0)
		prove_tiles(20);
	odd_models_agree_with_ref(winograd_models, N_WINOGRAD_MODELS, 1, 1);
	odd_models_agree_with_ref(winograd_models, N_WINOGRAD_MODELS, 7, 1);
	odd_models_agree_with_ref(winograd_models, N_WINOGRAD_MODELS, 20, 2);
}

static void groups_agree_with_cpu_ref(void **state)
{
	(void)state;
	odd_models_agree_with_ref(grouped_models, N_GROUPED_MODELS, 1, 0);
	odd_models_agree_with_ref(grouped_models, N_GROUPED_MODELS, 17, 1);
	odd_models_agree_with_ref(grouped_models, N_GROUPED_MODELS, 40, 2);
}

/* The tiles of this batch do not fit into one chunk of winograd.h. */
static void chunks_of_tiles_agree_with_cpu_ref(void **state)
{
	static const struct odd_model large = {
		{1, 96, 96}, "conv:32:1 conv:64:3:pad=1 avgpool:8 fc:3"};

	(void)state;
	odd_models_agree_with_ref(&large, 1, 35, 0);
}

static void whole_networks_agree_with_cpu_ref(void **state)
{
	static const struct odd_model networks[] = {
		{{3, 67, 67}, "alexnet"},
		{{3, 32, 32}, "resnet8"},
		{{3, 16, 16}, "cifar"},
	};

	(void)state;
	odd_models_agree_with_ref(networks, sizeof(networks) / sizeof(networks[0]), 9, 1);
}

static void fused_kernels_agree_with_cpu_ref(void **state)
{
	static const size_t images[] = {1, 15, 16, 17, 141};

	(void)state;
	for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++)
		odd_models_agree_with_ref(fused_models, N_FUSED_MODELS, images[i], 2);
}

/* Some kernels use one block of threads per image, but at most 264 blocks. With more images, a
 * block computes several images. */
static void more_images_than_blocks_agree_with_cpu_ref(void **state)
{
	static const struct odd_model few[] = {
		{{1, 28, 28}, "seed:9"},
		{{1, 28, 28}, "seed:67"},
		{{1, 28, 28}, "conv:32:5 relu pool:2 fc:10"},
		{{1, 28, 28}, "conv:32:3 relu pool:2 fc:33 relu fc:10"},
		{{1, 28, 28}, PAIR " fc:10"},
	};

	(void)state;
	odd_models_agree_with_ref(few, sizeof(few) / sizeof(few[0]), 601, 1);
}

/* The kernels of fused/conv2.h divide the work differently for each of these batch sizes. Only tf32
 * and bf16 use these kernels. */
static void pairs_of_convolutions_agree_however_they_are_cut(void **state)
{
	static const size_t images[] = {133, 265, 529};
	static const struct odd_model pair = {{1, 28, 28}, PAIR " fc:10"};

	(void)state;
	gpu_begin();
	for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++) {
		struct subject s;
		size_t jumps = 0;
		double loss;

		subject_random(&s, &pair, images[i]);
		float *right = gpu_reference(&s, &loss);
		for (size_t p = 1; p < gpu_n_precisions(); p++)
			compare_odd_model(&s, &gpu_precisions[p], 0, right, loss, &jumps);
		free(right);
		subject_release(&s);
	}
}

/* With bf16, seed networks run no kernel of fp32, whatever the batch size and the filters. */
static void seed_networks_in_bf16_have_kernels_of_bf16(void **state)
{
	static const char *const nets[] = {
		"seed:1", "seed:8", "seed:32", "seed:40", "seed:256", "seed:264", "seed:272"};
	static const size_t images[] = {1, 16, 104, 105, 128, 160, 208, 209, 240, 241, 313};
	char text[BACKEND_KERNELS_TEXT];

	(void)state;
	gpu_begin();
	for (size_t m = 0; m < sizeof(nets) / sizeof(nets[0]) && gpu_n_precisions() > 1; m++) {
		const struct odd_model seed = {{1, 28, 28}, nets[m]};
		struct subject s;

		subject_random(&s, &seed, 313);
		gpu_open(&s, &gpu_precisions[KX_BF16]);
		for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++) {
			backend_kernels(s.backend, images[i], text, sizeof(text));
			if (strstr(text, "fused:fp32") || strstr(text, "fused:cluster"))
				fail_msg("%s, %zu images in bf16: %s", nets[m], images[i], text);
		}
		subject_release(&s);
	}
}

static void seed_networks_agree_at_every_batch_size(void **state)
{
	static const size_t images[] = {105, 128, 199, 208, 209, 240};
	static const struct odd_model nets[] = {{{1, 28, 28}, "seed:5"}, {{1, 28, 28}, "seed:32"},
		{{1, 28, 28}, "seed:250"}, {{1, 28, 28}, "seed:272"}};

	(void)state;
	for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++)
		odd_models_agree_with_ref(nets, sizeof(nets) / sizeof(nets[0]), images[i], 2);
}

/* The range of fp16 is 6e-8 to 65504, so the device scales the gradients of the activations into
 * this range. The scaling must work for gradients of any magnitude. `scale` is a factor for the
 * weights of the last layer. */
static void agree_scaled(const struct odd_model *o, float scale)
{
	struct subject s;
	double loss;

	gpu_begin();
	subject_random(&s, o, 17);
	const struct tensor *last = &s.model.tensor[s.model.n_tensors - 2];
	for (size_t i = 0; i < last->count; i++)
		s.params[last->offset + i] *= scale;
	float *right = gpu_reference(&s, &loss);
	for (size_t p = 0; p < gpu_n_precisions(); p++) {
		gpu_open(&s, &gpu_precisions[p]);
		subject_step(&s);
		double worst = gpu_worst_tensor(&s, right);
		if (!(worst <= 0x1p-7))
			fail_msg("%s in %s, weights x %g: a tensor is off by %g", o->text,
				gpu_precisions[p].name, (double)scale, worst);
	}
	free(right);
	subject_release(&s);
}

static void errors_of_any_size_keep_their_digits(void **state)
{
	static const struct odd_model pair = {{1, 28, 28}, PAIR " fc:10"};

	(void)state;
	agree_scaled(&pair, 1e-20f);
	agree_scaled(&pair, 1e-9f);
	agree_scaled(&pair, 1e9f);
}

static void nets_without_jumps_are_within_the_bound_of_each_precision(void **state)
{
	const size_t batches[] = {1, 2, 3};

	(void)state;
	for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++)
		for (size_t m = 0; m < N_SMOOTH_MODELS; m++) {
			struct subject s;
			size_t jumps = 0;
			double loss;

			gpu_begin();
			subject_random(&s, &smooth_models[m], batches[i]);
			float *right = gpu_reference(&s, &loss);
			for (size_t p = 0; p < gpu_n_precisions(); p++) {
				const struct precision *one = &gpu_precisions[p];

				compare_odd_model(&s, one, 0, right, loss, &jumps);
				/* where values cancel, rounding to tf32 or bf16 makes a larger
				 * difference */
				if (jumps && one->loose <= one->bound)
					fail_msg("%s, %zu images in %s: gradient off by %g",
						s.model.text, s.batch, one->name,
						gradient_distance(s.grad, right, s.model.n_params));
				jumps = 0;
			}
			free(right);
			subject_release(&s);
		}
}

static void many_images_on_nets_without_jumps_agree_with_cpu_ref(void **state)
{
	(void)state;
	odd_models_agree_with_ref(smooth_models, N_SMOOTH_MODELS, 64, 0);
	odd_models_agree_with_ref(smooth_models, N_SMOOTH_MODELS, 101, 0);
}

/* The models have enough pixels and channels for the largest tiles of all products, but fill no
 * tile completely. */
static void large_tiles_agree_with_cpu_ref(void **state)
{
	static const struct odd_model large[] = {
		{{1, 56, 56}, "conv:40:1 conv:72:2 conv:64:2 fc:3"},
		{{3, 60, 60},
			"conv:40:3:pad=1 relu conv:72:3:pad=1 relu pool:2 conv:33:1 relu fc:5"},
		{{2, 75, 75}, "conv:130:3:stride=2 conv:136:1 avgpool:global fc:5"},
	};

	(void)state;
	compare_odd_models(large, sizeof(large) / sizeof(large[0]), 7, 1, 1);
}

/* Test product_taps.cu, which in tf32 computes the wgrad of filters of 3 x 3 if the batch has
 * enough work to fill the GPU. The sizes are odd on purpose: the images do not consist of whole
 * chunks of rows, and the thread blocks do not get equal numbers of chunks. */
static void all_taps_in_a_block_agree_with_cpu_ref(void **state)
{
	static const struct odd_model models[] = {
		{{1, 52, 47}, "conv:64:2 conv:64:3:pad=1 avgpool:global fc:3"},
		{{3, 22, 9}, "conv:96:3 conv:256:3 fc:3"},
		{{2, 58, 40}, "conv:32:1 conv:64:3:pad=2 fc:3"},
	};
	static const size_t images[] = {43, 101, 37};

	(void)state;
	for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
		odd_models_agree_with_ref(&models[m], 1, 5, 0);
		compare_odd_models(&models[m], 1, images[m], 0, 1);
	}
}

/* The NaN that a GPU computes has all mantissa bits set, so a rounding that adds to these bits
 * turns it into zero. */
static void a_nan_weight_makes_the_loss_nan(void **state)
{
	static const union {
		uint32_t bits;
		float value;
	} nan_of_gpu = {.bits = 0x7fffffff};

	(void)state;
	gpu_begin();
	for (size_t m = 0; m < N_SMOOTH_MODELS; m++)
		for (size_t p = 0; p < gpu_n_precisions(); p++) {
			struct subject s;

			subject_random(&s, &smooth_models[m], 17);
			s.params[0] = nan_of_gpu.value;
			gpu_open(&s, &gpu_precisions[p]);
			subject_step(&s);
			if (!isnan(s.loss))
				fail_msg("%s in %s: loss %g with a NaN weight", s.model.text,
					gpu_precisions[p].name, s.loss);
			subject_release(&s);
		}
}

static void gradients_are_slopes_of_the_loss(void **state)
{
	(void)state;
	gpu_begin();
	for (size_t m = 0; m < N_ODD_MODELS; m++) {
		struct subject s;

		subject_random(&s, &odd_models[m], 3);
		gpu_open(&s, &gpu_precisions[0]);
		check_slopes(&s);
		subject_release(&s);
	}
}

int main(int argc, char **argv)
{
	if (argc > 1) /* run only the tests whose names match this pattern */
		cmocka_set_test_filter(argv[1]);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_image_agrees_with_cpu_ref),
		cmocka_unit_test(seventeen_images_agree_with_cpu_ref),
		cmocka_unit_test(one_hundred_and_thirty_images_agree_with_cpu_ref),
		cmocka_unit_test(every_kind_of_layer_agrees_with_cpu_ref),
		cmocka_unit_test(convolutions_in_tiles_agree_with_cpu_ref),
		cmocka_unit_test(groups_agree_with_cpu_ref),
		cmocka_unit_test(chunks_of_tiles_agree_with_cpu_ref),
		cmocka_unit_test(whole_networks_agree_with_cpu_ref),
		cmocka_unit_test(fused_kernels_agree_with_cpu_ref),
		cmocka_unit_test(more_images_than_blocks_agree_with_cpu_ref),
		cmocka_unit_test(pairs_of_convolutions_agree_however_they_are_cut),
		cmocka_unit_test(seed_networks_in_bf16_have_kernels_of_bf16),
		cmocka_unit_test(seed_networks_agree_at_every_batch_size),
		cmocka_unit_test(errors_of_any_size_keep_their_digits),
		cmocka_unit_test(nets_without_jumps_are_within_the_bound_of_each_precision),
		cmocka_unit_test(many_images_on_nets_without_jumps_agree_with_cpu_ref),
		cmocka_unit_test(large_tiles_agree_with_cpu_ref),
		cmocka_unit_test(all_taps_in_a_block_agree_with_cpu_ref),
		cmocka_unit_test(a_nan_weight_makes_the_loss_nan),
		cmocka_unit_test(gradients_are_slopes_of_the_loss),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
