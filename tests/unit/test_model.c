/* Proves the invariants and promises of common/model.h, and what common/window.h promises, which
 * model.c uses. */
#include "tests/support/model_checks.h"
#include "common/rng.h"
#include "tests/support/test.h"

TEST(seed_is_conv_relu_pool_fc)
{
	parse_model("seed:32");
	assert_string_equal(parsed.text, "conv:32:3 relu pool:2 fc:10");
	assert_int_equal(parsed.n_layers, 4);
	assert_int_equal(parsed.layer[0].kind, LAYER_CONV);
	assert_shape(parsed.layer[0].out, 32, 26, 26);
	assert_int_equal(parsed.layer[1].kind, LAYER_RELU);
	assert_int_equal(parsed.layer[2].kind, LAYER_POOL);
	assert_shape(parsed.layer[2].out, 32, 13, 13);
	assert_int_equal(parsed.layer[2].stride, 2);
	assert_int_equal(parsed.layer[3].kind, LAYER_FC);
	assert_shape(parsed.layer[3].out, 10, 1, 1);
	assert_int_equal(parsed.classes, 10);
	assert_int_equal(parsed.n_params, 32 * 9 + 32 + 10 * 32 * 169 + 10);
	assert_consistent(&parsed);
}

TEST(lenet5_has_lecuns_sizes)
{
	parse_model("lenet5");
	assert_shape(parsed.layer[0].out, 6, 28, 28);
	assert_shape(parsed.layer[2].out, 6, 14, 14);
	assert_shape(parsed.layer[3].out, 16, 10, 10);
	assert_shape(parsed.layer[5].out, 16, 5, 5);
	assert_shape(parsed.layer[6].out, 120, 1, 1);
	assert_int_equal(parsed.n_params, 61706); /* 156 + 2416 + 48120 + 10164 + 850 */
	assert_consistent(&parsed);
}

TEST(cnn99_is_what_the_architecture_says)
{
	parse_model("cnn99");
	assert_string_equal(
		parsed.text, "conv:32:5 relu pool:2 conv:64:5 relu pool:2 fc:128 relu fc:10");
	assert_shape(parsed.layer[5].out, 64, 4, 4);
	assert_consistent(&parsed);
}

TEST(invariant_1_tensors_have_pytorchs_names_shapes_and_order)
{
	parse_model("conv:4:3 relu conv:8:3 pool:2 fc:16 relu fc:10");
	assert_int_equal(parsed.n_tensors, 8);
	assert_tensor(0, "conv1.weight", 0, 4 * 1 * 9);
	assert_tensor(1, "conv1.bias", 36, 4);
	assert_tensor(2, "conv2.weight", 40, 8 * 4 * 9);
	assert_tensor(3, "conv2.bias", 328, 8);
	assert_tensor(4, "fc1.weight", 336, 16 * 8 * 144);
	assert_tensor(5, "fc1.bias", 336 + 18432, 16);
	assert_tensor(6, "fc2.weight", 336 + 18432 + 16, 160);
	assert_tensor(7, "fc2.bias", 336 + 18432 + 16 + 160, 10);
	const size_t conv2[] = {8, 4, 3, 3}, fc1[] = {16, 1152, 0, 0};
	assert_int_equal(parsed.tensor[2].ndim, 4);
	assert_memory_equal(parsed.tensor[2].dim, conv2, sizeof(conv2));
	assert_int_equal(parsed.tensor[4].ndim, 2);
	assert_memory_equal(parsed.tensor[4].dim, fc1, sizeof(fc1));
	assert_int_equal(parsed.layer[2].weight, 2);
	assert_int_equal(parsed.layer[2].bias, 3);
	assert_int_equal(parsed.layer[1].weight, -1);
	assert_int_equal(parsed.layer[1].bias, -1);
	assert_consistent(&parsed);
}

TEST(running_statistics_follow_all_other_tensors)
{
	float w[200];

	parse_model("input:1x3x3 conv:4:3 batchnorm relu fc:3 batchnorm fc:2");
	assert_int_equal(parsed.n_tensors, 14);
	assert_tensor(2, "bn1.weight", 40, 4);
	assert_tensor(3, "bn1.bias", 44, 4);
	assert_tensor(4, "fc1.weight", 48, 12);
	assert_tensor(6, "bn2.weight", 63, 3);
	assert_tensor(10, "bn1.running_mean", 77, 4);
	assert_tensor(11, "bn1.running_var", 81, 4);
	assert_tensor(12, "bn2.running_mean", 85, 3);
	assert_tensor(13, "bn2.running_var", 88, 3);
	assert_int_equal(parsed.n_trained, 77);
	assert_int_equal(parsed.n_params, 91);
	assert_int_equal(parsed.layer[1].weight, 2);
	assert_int_equal(parsed.layer[1].running, 10);
	assert_int_equal(parsed.layer[4].running, 12);
	model_init(&parsed, 3, w);
	for (size_t i = 0; i < 4; i++)
		assert_true(w[40 + i] == 1 && w[44 + i] == 0 && w[77 + i] == 0 && w[81 + i] == 1);
	assert_consistent(&parsed);
}

TEST(vector_is_one_tensor_and_nothing_else)
{
	parse_model("vector:425000");
	assert_int_equal(parsed.n_layers, 0);
	assert_int_equal(parsed.n_tensors, 1);
	assert_tensor(0, "vector", 0, 425000);
	assert_int_equal(parsed.classes, 0);
	assert_int_equal(parsed.n_params, 425000);
	uint64_t fingerprint = parsed.fingerprint;
	assert_int_equal(
		model_parse(&parsed, "vector:425000", (struct shape){0, 0, 0}, NULL), PS_OK);
	/* a vector has no images, so the size of the images does not matter */
	assert_int_equal(parsed.fingerprint, fingerprint);
}

TEST(the_last_values_of_a_vector_may_be_running_statistics)
{
	parse_model("vector:425");
	assert_int_equal(parsed.n_trained, 425);
	parse_model("vector:425:running=5");
	assert_tensor(0, "vector", 0, 425);
	assert_int_equal(parsed.n_params, 425);
	assert_int_equal(parsed.n_trained, 420);
}

TEST(the_canonical_text_is_one_way_to_write_a_model)
{
	const struct {
		const char *typed, *canonical;
	} row[] = {
		{"  conv:032:3   relu\tpool:2 fc:10 ", "conv:32:3 relu pool:2 fc:10"},
		{"conv:8:5:stride=1:pad=0 fc:10", "conv:8:5 fc:10"},
		{"conv:8:5:pad=2:stride=3 fc:10", "conv:8:5:stride=3:pad=2 fc:10"},
		{"conv:8:5:pad=same fc:10", "conv:8:5:pad=same fc:10"},
		{"pool:3:pad=auto fc:10", "pool:3:pad=auto fc:10"},
		{"pool:2:stride=2:pad=0 fc:10", "pool:2 fc:10"},
		{"avgpool:4:pad=same:stride=2 fc:10", "avgpool:4:stride=2:pad=same fc:10"},
		{"lrn fc:10", "lrn:5 fc:10"},
		{"lrn:3:k=2:beta=.5:alpha=1e-4 fc:10", "lrn:3:beta=0.5 fc:10"},
		{"lrn:k=1.50:alpha=0 fc:10", "lrn:5:alpha=0:k=1.5 fc:10"},
		{"skip relu  add fc:10", "skip relu add fc:10"},
		{"avgpool:global tanh  sigmoid fc:10", "avgpool:global tanh sigmoid fc:10"},
		{"conv:8:5:groups=1 conv:8:1:groups=04:pad=0 fc:10",
			"conv:8:5 conv:8:1:groups=4 fc:10"},
		{"dropout:0.250 fc:2", "dropout:0.25 fc:2"},
		{"dropout:1e-1 fc:256", "dropout:0.1 fc:256"},
		{"dropout:0.5253535213 fc:2", "dropout:0.52535355 fc:2"},
		{"dropout:0 fc:2", "dropout:0 fc:2"},
		{"vector:0010", "vector:10"},
		{"vector:0010:running=03", "vector:10:running=3"},
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		parse_model(row[i].typed);
		assert_string_equal(parsed.text, row[i].canonical);
		uint64_t fingerprint = parsed.fingerprint;
		parse_model(row[i].canonical);
		assert_string_equal(parsed.text, row[i].canonical);
		assert_int_equal(parsed.fingerprint, fingerprint);
	}
}

TEST(promise_1_the_fingerprint_is_xxh3_of_text_and_input)
{
	const char *hashed = "conv:32:3 relu pool:2 fc:10 @ 1x28x28";

	parse_model("seed:32");
	assert_int_equal(parsed.fingerprint, XXH3_64bits(hashed, strlen(hashed)));
	uint64_t one = parsed.fingerprint;
	parse_model("seed:31");
	assert_int_not_equal(parsed.fingerprint, one);
	assert_int_equal(model_parse(&parsed, "seed:32", (struct shape){1, 30, 30}, NULL), PS_OK);
	assert_int_not_equal(parsed.fingerprint, one);
}

TEST(the_text_has_the_images_unless_they_are_mnists)
{
	const struct {
		const char *typed, *canonical;
	} row[] = {
		{"input:1x28x28 fc:10", "fc:10"},
		{"input:28x28 fc:10", "fc:10"},
		{"input:03x032x32 fc:10", "input:3x32x32 fc:10"},
		{"input:32x16 fc:10", "input:1x32x16 fc:10"},
		{"flip  shift:02 norm:0.130:0.30810 fc:10", "norm:0.13:0.3081 shift:2 flip fc:10"},
		{"norm:0.5:1e-3 input:3x4x4 fc:300", "input:3x4x4 norm:0.5:0.001 fc:300"},
		{"norm:0.1,0.2,0.3:1,2,3 input:3x4x4 fc:2",
			"input:3x4x4 norm:0.1,0.2,0.3:1,2,3 fc:2"},
		{"flip lenet5",
			"flip conv:6:5:pad=same relu pool:2 conv:16:5 relu pool:2 fc:120 relu "
			"fc:84 relu fc:10"},
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		parse_model(row[i].typed);
		assert_string_equal(parsed.text, row[i].canonical);
		uint64_t fingerprint = parsed.fingerprint;
		parse_model(row[i].canonical);
		assert_string_equal(parsed.text, row[i].canonical);
		assert_int_equal(parsed.fingerprint, fingerprint);
		assert_consistent(&parsed);
	}
	assert_int_equal(model_parse(&parsed, "fc:10", (struct shape){3, 2, 5}, NULL), PS_OK);
	assert_string_equal(parsed.text, "input:3x2x5 fc:10");
	parse_model("input:3x4x4 norm:0.5:0.25 shift:2 flip fc:2");
	assert_shape(parsed.input, 3, 4, 4);
	assert_int_equal(parsed.preprocess.n_norm, 1);
	assert_true(parsed.preprocess.mean[0] == 0.5f && parsed.preprocess.deviation[0] == 0.25f);
	assert_int_equal(parsed.preprocess.shift, 2);
	assert_int_equal(parsed.preprocess.flip, 1);
	/* only fc is a layer, because norm, shift and flip describe the images */
	assert_int_equal(parsed.n_layers, 1);
}

TEST(names_end_with_the_classes_that_are_asked_for)
{
	char text[MODEL_MAX_TEXT];
	const char *const name[] = {"seed:4", "lenet5", "cnn99", "cifar", "resnet8", "alexnet"};

	for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
		assert_int_equal(
			model_parse_named(&parsed, name[i], (struct shape){0, 0, 0}, 100, NULL),
			PS_OK);
		assert_int_equal(parsed.classes, 100);
		assert_consistent(&parsed);
		assert_int_equal(parsed.input.c, i >= 3 ? 3 : 1);
		snprintf(text, sizeof(text), "%s", parsed.text);
		parse_model(text);
		assert_int_equal(parsed.classes, 100);
	}
	assert_int_equal(
		model_parse_named(&parsed, "norm:0:050 fc:10", (struct shape){1, 28, 28}, 10, NULL),
		0);
	snprintf(text, sizeof(text), "%s", parsed.text);
	/* the canonical text, which has a number with an exponent and a sign, must be valid */
	parse_model(text);
	assert_string_equal(parsed.text, text);
	assert_int_equal(model_parse_named(&parsed, "cifar", (struct shape){0, 0, 0}, 10, NULL), 0);
	assert_string_equal(parsed.text,
		"input:3x32x32 norm:0.4914,0.4822,0.4465:0.247,0.2435,0.2616 shift:4 flip "
		"conv:32:3:pad=1 relu conv:32:3:pad=1 relu pool:2 conv:64:3:pad=1 relu "
		"conv:64:3:pad=1 relu pool:2 fc:512 relu dropout:0.5 fc:10");
	assert_int_equal(
		model_parse_named(&parsed, "cifar", (struct shape){3, 64, 64}, 10, NULL), 0);
	assert_shape(parsed.input, 3, 64, 64);
}

TEST(alexnet_has_krizhevskys_sizes)
{
	assert_int_equal(
		model_parse_named(&parsed, "alexnet", (struct shape){0, 0, 0}, 1000, NULL), PS_OK);
	assert_shape(parsed.input, 3, 224, 224);
	assert_shape(parsed.layer[0].out, 96, 55, 55);
	assert_shape(parsed.layer[3].out, 96, 27, 27);
	assert_shape(parsed.layer[7].out, 256, 13, 13);
	assert_shape(parsed.layer[14].out, 256, 6, 6);
	assert_int_equal(parsed.n_params, 60965224);
	assert_consistent(&parsed);
}

static void assert_pads(size_t top, size_t left, size_t bottom, size_t right)
{
	assert_int_equal(parsed.layer[0].pad_top, top);
	assert_int_equal(parsed.layer[0].pad_left, left);
	assert_int_equal(parsed.layer[0].pad_bottom, bottom);
	assert_int_equal(parsed.layer[0].pad_right, right);
}

TEST(pad_same_keeps_the_size_divided_by_the_stride)
{
	parse_model("conv:2:5:pad=same fc:10");
	assert_pads(2, 2, 2, 2);
	assert_shape(parsed.layer[0].out, 2, 28, 28);
	/* if the number of added rows or columns is odd, the bottom or the right gets one more */
	parse_model("conv:2:4:pad=same fc:10");
	assert_pads(1, 1, 2, 2);
	assert_shape(parsed.layer[0].out, 2, 28, 28);
	parse_model("conv:2:3:stride=2:pad=same fc:10");
	assert_pads(0, 0, 1, 1);
	assert_shape(parsed.layer[0].out, 2, 14, 14);
	parse_model("conv:2:5:stride=3:pad=same fc:10");
	assert_pads(2, 2, 2, 2);
	assert_shape(parsed.layer[0].out, 2, 10, 10);
}

TEST(pad_auto_adds_the_least_that_makes_it_fit)
{
	parse_model("pool:3:pad=auto fc:10"); /* 28 -> 30 */
	assert_pads(1, 1, 1, 1);
	assert_shape(parsed.layer[0].out, 1, 10, 10);
	parse_model("pool:29:pad=auto fc:10");
	assert_pads(0, 0, 1, 1);
	assert_shape(parsed.layer[0].out, 1, 1, 1);
	parse_model("pool:2:pad=auto fc:10"); /* the window fits, so no padding is added */
	assert_pads(0, 0, 0, 0);
	parse_model("conv:2:3:stride=2:pad=auto fc:10");
	assert_pads(0, 0, 1, 1);
	assert_shape(parsed.layer[0].out, 2, 14, 14);
	parse_model("conv:2:31:pad=auto fc:10");
	assert_pads(1, 1, 2, 2);
	assert_int_equal(
		model_parse(&parsed, "pool:4:pad=auto fc:10", (struct shape){3, 5, 8}, NULL), 0);
	assert_pads(1, 0, 2, 0); /* each axis has its own padding */
	assert_consistent(&parsed);
}

TEST(initial_weights_are_the_specified_draws)
{
	static float w[10000];

	parse_model("seed:2");
	assert_true(parsed.n_params < 10000);
	assert_true(parsed.tensor[0].init_bound == 1.0 / 3.0 &&
		    parsed.tensor[1].init_bound == 1.0 / 3.0);
	assert_true(parsed.tensor[2].init_bound == 1 / sqrt(2 * 13 * 13));
	model_init(&parsed, 7, w);
	/* the expected values come from the Python program that test_rng.c describes */
	const float conv[] = {-0x1.9d1940p-3f, 0x1.eb1306p-3f, -0x1.9aeeb0p-7f, -0x1.60c36ap-7f};
	const float bias[] = {-0x1.0d8162p-2f, 0x1.8032aep-4f};
	const float fc[] = {-0x1.8ddcf6p-6f, 0x1.4545bcp-5f};
	assert_memory_equal(w, conv, sizeof(conv));
	assert_memory_equal(w + parsed.tensor[1].offset, bias, sizeof(bias));
	assert_memory_equal(w + parsed.tensor[2].offset, fc, sizeof(fc));
	for (size_t t = 0; t < parsed.n_tensors; t++)
		for (size_t i = 0; i < parsed.tensor[t].count; i++)
			assert_true(fabs((double)w[parsed.tensor[t].offset + i]) <=
				    parsed.tensor[t].init_bound);
}

TEST(a_vector_starts_at_zero)
{
	float w[5] = {1, 2, 3, 4, 5};

	parse_model("vector:4");
	model_init(&parsed, 7, w);
	for (size_t i = 0; i < 4; i++)
		assert_true(w[i] == 0 && !signbit(w[i]));
	assert_true(w[4] == 5);
}
