/* Proves the invariants numbered in common/model.h, and common/window.h beneath it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "common/model.h"
#include "common/rng.h"

static const struct shape mnist = {1, 28, 28};
static struct model m; /* large: not on the stack */

static void parse_ok(const char *text)
{
	struct err e = {0};
	int rc = model_parse(&m, text, mnist, &e);
	if (rc)
		print_error("\"%s\": %s\n", text, e.text);
	assert_int_equal(rc, PS_OK);
}

static void assert_shape(struct shape s, size_t c, size_t h, size_t w)
{
	assert_int_equal(s.c, c);
	assert_int_equal(s.h, h);
	assert_int_equal(s.w, w);
}

static void assert_tensor(size_t i, const char *name, size_t offset, size_t count)
{
	assert_true(i < m.n_tensors);
	assert_string_equal(m.tensor[i].name, name);
	assert_int_equal(m.tensor[i].offset, offset);
	assert_int_equal(m.tensor[i].count, count);
}

/* (1), and that the layers fit each other. */
static void assert_consistent(const struct model *x)
{
	size_t at = 0;
	struct shape shape = x->input;
	for (size_t i = 0; i < x->n_tensors; i++) {
		const struct tensor *t = &x->tensor[i];
		size_t count = 1;
		for (size_t d = 0; d < t->ndim; d++)
			count *= t->dim[d];
		assert_int_equal(t->count, count);
		assert_int_equal(t->offset, at);
		assert_true(count >= 1);
		at += count;
	}
	assert_int_equal(at, x->n_params);
	assert_true(x->n_params <= MODEL_MAX_PARAMS);
	for (size_t i = 0; i < x->n_layers; i++) {
		const struct layer *l = &x->layer[i];
		assert_memory_equal(&l->in, &shape, sizeof shape);
		assert_true(shape_count(l->out) >= 1 && shape_count(l->out) <= MODEL_MAX_PARAMS);
		if (l->kind == LAYER_CONV || l->kind == LAYER_POOL) {
			size_t h = shape.h + l->pad_top + l->pad_bottom - l->size;
			size_t w = shape.w + l->pad_left + l->pad_right - l->size;
			assert_int_equal(h % l->stride, 0);
			assert_int_equal(w % l->stride, 0);
			assert_int_equal(l->out.h, h / l->stride + 1);
			assert_int_equal(l->out.w, w / l->stride + 1);
			assert_true(l->pad_top == l->pad_bottom || l->pad_top + 1 == l->pad_bottom);
			if (l->stride <= l->size) /* no window lies in zeros alone */
				assert_true(l->pad_bottom < l->size && l->pad_right < l->size);
		}
		shape = l->out;
	}
	if (x->n_layers)
		assert_int_equal(x->classes, shape_count(shape));
}

static void seed_is_conv_relu_pool_fc(void **state)
{
	(void)state;
	parse_ok("seed:32");
	assert_string_equal(m.text, "conv:32:3 relu pool:2 fc:10");
	assert_int_equal(m.n_layers, 4);
	assert_int_equal(m.layer[0].kind, LAYER_CONV);
	assert_shape(m.layer[0].out, 32, 26, 26);
	assert_int_equal(m.layer[1].kind, LAYER_RELU);
	assert_int_equal(m.layer[2].kind, LAYER_POOL);
	assert_shape(m.layer[2].out, 32, 13, 13);
	assert_int_equal(m.layer[2].stride, 2);
	assert_int_equal(m.layer[3].kind, LAYER_FC);
	assert_shape(m.layer[3].out, 10, 1, 1);
	assert_int_equal(m.classes, 10);
	assert_int_equal(m.n_params, 32 * 9 + 32 + 10 * 32 * 169 + 10);
	assert_consistent(&m);
}

static void lenet5_has_lecuns_sizes(void **state)
{
	(void)state;
	parse_ok("lenet5");
	assert_shape(m.layer[0].out, 6, 28, 28);
	assert_shape(m.layer[2].out, 6, 14, 14);
	assert_shape(m.layer[3].out, 16, 10, 10);
	assert_shape(m.layer[5].out, 16, 5, 5);
	assert_shape(m.layer[6].out, 120, 1, 1);
	assert_int_equal(m.n_params, 61706); /* 156 + 2416 + 48120 + 10164 + 850 */
	assert_consistent(&m);
}

static void cnn99_is_what_the_architecture_says(void **state)
{
	(void)state;
	parse_ok("cnn99");
	assert_string_equal(
		m.text, "conv:32:5 relu pool:2 conv:64:5 relu pool:2 fc:128 relu fc:10");
	assert_shape(m.layer[5].out, 64, 4, 4);
	assert_consistent(&m);
}

static void invariant_1_tensors_have_pytorchs_names_shapes_and_order(void **state)
{
	(void)state;
	parse_ok("conv:4:3 relu conv:8:3 pool:2 fc:16 relu fc:10");
	assert_int_equal(m.n_tensors, 8);
	assert_tensor(0, "conv1.weight", 0, 4 * 1 * 9);
	assert_tensor(1, "conv1.bias", 36, 4);
	assert_tensor(2, "conv2.weight", 40, 8 * 4 * 9);
	assert_tensor(3, "conv2.bias", 328, 8);
	assert_tensor(4, "fc1.weight", 336, 16 * 8 * 144);
	assert_tensor(5, "fc1.bias", 336 + 18432, 16);
	assert_tensor(6, "fc2.weight", 336 + 18432 + 16, 160);
	assert_tensor(7, "fc2.bias", 336 + 18432 + 16 + 160, 10);
	const size_t conv2[] = {8, 4, 3, 3}, fc1[] = {16, 1152, 0, 0};
	assert_int_equal(m.tensor[2].ndim, 4);
	assert_memory_equal(m.tensor[2].dim, conv2, sizeof conv2);
	assert_int_equal(m.tensor[4].ndim, 2);
	assert_memory_equal(m.tensor[4].dim, fc1, sizeof fc1);
	assert_int_equal(m.layer[2].weight, 2);
	assert_int_equal(m.layer[2].bias, 3);
	assert_int_equal(m.layer[1].weight, -1);
	assert_int_equal(m.layer[1].bias, -1);
	assert_consistent(&m);
}

static void vector_is_one_tensor_and_nothing_else(void **state)
{
	(void)state;
	parse_ok("vector:425000");
	assert_int_equal(m.n_layers, 0);
	assert_int_equal(m.n_tensors, 1);
	assert_tensor(0, "vector", 0, 425000);
	assert_int_equal(m.classes, 0);
	assert_int_equal(m.n_params, 425000);
	uint64_t fingerprint = m.fingerprint;
	assert_int_equal(model_parse(&m, "vector:425000", (struct shape){0, 0, 0}, NULL), PS_OK);
	assert_int_equal(m.fingerprint, fingerprint); /* it has no input to differ in */
}

static void the_canonical_text_is_one_way_to_write_a_model(void **state)
{
	(void)state;
	const struct {
		const char *typed, *canonical;
	} row[] = {
		{"  conv:032:3   relu\tpool:2 fc:10 ", "conv:32:3 relu pool:2 fc:10"},
		{"conv:8:5:stride=1:pad=0 fc:10", "conv:8:5 fc:10"},
		{"conv:8:5:pad=2:stride=3 fc:10", "conv:8:5:stride=3:pad=2 fc:10"},
		{"conv:8:5:pad=same fc:10", "conv:8:5:pad=same fc:10"},
		{"pool:3:pad=auto fc:10", "pool:3:pad=auto fc:10"},
		{"dropout:0.250 fc:2", "dropout:0.25 fc:2"},
		{"dropout:1e-1 fc:256", "dropout:0.1 fc:256"},
		{"dropout:0 fc:2", "dropout:0 fc:2"},
		{"vector:0010", "vector:10"},
	};
	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
		parse_ok(row[i].typed);
		assert_string_equal(m.text, row[i].canonical);
		uint64_t fingerprint = m.fingerprint;
		parse_ok(row[i].canonical);
		assert_string_equal(m.text, row[i].canonical);
		assert_int_equal(m.fingerprint, fingerprint);
	}
}

static void invariant_2_the_fingerprint_is_xxh3_of_text_and_input(void **state)
{
	(void)state;
	const char *hashed = "conv:32:3 relu pool:2 fc:10 @ 1x28x28";
	parse_ok("seed:32");
	assert_int_equal(m.fingerprint, XXH3_64bits(hashed, strlen(hashed)));
	uint64_t one = m.fingerprint;
	parse_ok("seed:31");
	assert_int_not_equal(m.fingerprint, one);
	assert_int_equal(model_parse(&m, "seed:32", (struct shape){1, 30, 30}, NULL), PS_OK);
	assert_int_not_equal(m.fingerprint, one);
}

static void assert_pads(size_t top, size_t left, size_t bottom, size_t right)
{
	assert_int_equal(m.layer[0].pad_top, top);
	assert_int_equal(m.layer[0].pad_left, left);
	assert_int_equal(m.layer[0].pad_bottom, bottom);
	assert_int_equal(m.layer[0].pad_right, right);
}

static void pad_same_keeps_the_size_divided_by_the_stride(void **state)
{
	(void)state;
	parse_ok("conv:2:5:pad=same fc:10");
	assert_pads(2, 2, 2, 2);
	assert_shape(m.layer[0].out, 2, 28, 28);
	parse_ok("conv:2:4:pad=same fc:10"); /* odd: bottom and right get the extra one */
	assert_pads(1, 1, 2, 2);
	assert_shape(m.layer[0].out, 2, 28, 28);
	parse_ok("conv:2:3:stride=2:pad=same fc:10");
	assert_pads(0, 0, 1, 1);
	assert_shape(m.layer[0].out, 2, 14, 14);
	parse_ok("conv:2:5:stride=3:pad=same fc:10");
	assert_pads(2, 2, 2, 2);
	assert_shape(m.layer[0].out, 2, 10, 10);
}

static void pad_auto_adds_the_least_that_makes_it_fit(void **state)
{
	(void)state;
	parse_ok("pool:3:pad=auto fc:10"); /* 28 -> 30 */
	assert_pads(1, 1, 1, 1);
	assert_shape(m.layer[0].out, 1, 10, 10);
	parse_ok("pool:29:pad=auto fc:10");
	assert_pads(0, 0, 1, 1);
	assert_shape(m.layer[0].out, 1, 1, 1);
	parse_ok("pool:2:pad=auto fc:10"); /* fits: nothing to add */
	assert_pads(0, 0, 0, 0);
	parse_ok("conv:2:3:stride=2:pad=auto fc:10");
	assert_pads(0, 0, 1, 1);
	assert_shape(m.layer[0].out, 2, 14, 14);
	parse_ok("conv:2:31:pad=auto fc:10");
	assert_pads(1, 1, 2, 2);
	assert_int_equal(
		model_parse(&m, "pool:4:pad=auto fc:10", (struct shape){3, 5, 8}, NULL), 0);
	assert_pads(1, 0, 2, 0); /* each axis by itself */
	assert_consistent(&m);
}

static void errors_name_the_layer_and_say_what_would_fit(void **state)
{
	(void)state;
	const struct {
		const char *text, *says;
	} row[] = {
		{"conv:32:2 relu pool:2 fc:10", "layer 3 \"pool:2\": input 32x27x27 is not "
						"divisible by 2; use pad=auto, or "
						"conv size 3 before it"},
		{"pool:3 fc:10",
			"layer 1 \"pool:3\": input 1x28x28 is not divisible by 3; use pad=auto"},
		{"conv:8:3:stride=2 fc:10",
			"stride 2 does not tile the input 1x28x28 (28x28 with its "
			"padding); use pad=auto, or size 4"},
		{"conv:8:29 fc:10",
			"layer 1 \"conv:8:29\": size 29 is larger than the input 1x28x28; use "
			"pad=auto, or size 28"},
		{"conv:8:1:stride=2:pad=same fc:10", "size 1 with stride 2 does not tile the input "
						     "1x28x28 (28x28 with its padding); "
						     "use pad=auto, or size 2"},
		{"conv:4:3:pad=3 fc:10",
			"pad \"3\" is not understood; expected a number below the size, "
			"same or auto"},
		{"conv:4:3:pad=2:pad=2 fc:10", "\"pad=2\" is not understood; expected"},
		{"conv:4:3:dilation=2 fc:10", "\"dilation=2\" is not understood"},
		{"conv:4:3:stride=0 fc:10", "stride \"0\" is not a whole number in [1, 4096]"},
		{"conv:4:3:stride=2:stride=2 fc:10", "\"stride=2\" is not understood"},
		{"pool:2:stride=2 fc:10",
			"\"stride=2\" is not understood; expected pad=auto, once"},
		{"pool:2:pad=1 fc:10", "pad \"1\" is not understood; expected auto"},
		{"conv:8 fc:10", "expected conv:FILTERS:SIZE[:stride=S][:pad=P|same|auto]"},
		{"relu:1 fc:10", "layer 1 \"relu:1\": expected relu"},
		{"conv:0:3 fc:10",
			"number of filters \"0\" is not a whole number in [1, 268435456]"},
		{"conv:-1:3 fc:10", "number of filters \"-1\""},
		{"conv::3 fc:10", "number of filters \"\""},
		{"conv:8:3x fc:10", "size \"3x\""},
		{"conv:99999999999999999999:3 fc:10", "is not a whole number"},
		{"conv:4:3:stride=1:pad=0:x:y fc:10",
			"layer 1 \"conv:4:3:stride=1:pad=0:x:y\": more than 6"},
		{"fc:00000000000000000000000000000000000000000000000000000000000010",
			"layer 1 \"fc:0000"},
		{"fc:00000000000000000000000000000000000000000000000000000000000010",
			"longer than 63"},
		{"fc:10 softmax", "layer 2 \"softmax\": unknown layer; there are conv, relu"},
		{"seed:32 relu", "stand alone"},
		{"seed:0", "layer 1 \"seed:0\""},
		{"dropout:1 fc:10", "probability \"1\" is not a number of at least 0 and below 1"},
		{"dropout:-0.5 fc:10", "probability"},
		{"dropout:nan fc:10", "probability"},
		{"dropout: fc:10", "probability"},
		{"dropout:0.99999999999 fc:10", "below 1"}, /* 1 as a float */
		{"", "the model text is empty"},
		{" \t ", "the model text is empty"},
		{"conv:8:3 relu",
			"layer 2 \"relu\": the last layer must be fc:UNITS, whose units are the "
			"classes (2 to 256)"},
		{"fc:1", "layer 1 \"fc:1\": the units of the last layer are the classes; expected "
			 "2 to 256"},
		{"fc:257", "expected 2 to 256"},
		{"vector:0", "\"vector:0\": expected a whole number in [1, 268435456]"},
		{"vector:", "\"vector:\": expected"},
		{"vector:268435457", "expected a whole number in [1, 268435456]"},
		{"vector:5 fc:10", "expected a whole number"},
	};
	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct err e = {0};
		assert_int_equal(model_parse(&m, row[i].text, mnist, &e), PS_EUSAGE);
		if (!strstr(e.text, row[i].says))
			fail_msg("\"%s\" says: %s", row[i].text, e.text);
	}
}

/* A text of `n` times `word`, then `end`. */
static const char *repeat(char *out, size_t size, const char *word, int n, const char *end)
{
	size_t used = 0;
	while (n-- > 0)
		used += (size_t)snprintf(out + used, size - used, "%s ", word);
	snprintf(out + used, size - used, "%s", end);
	return out;
}

static void invariant_3_whatever_is_too_large_is_refused(void **state)
{
	(void)state;
	char text[1000];
	const char *row[] = {
		"fc:268435456 fc:268435456 fc:10",
		"fc:268435456",
		"fc:342391 fc:10",              /* its weights fit, its biases do not */
		"conv:1000000:1 pool:28 fc:10", /* all parameters fit, the conv's output does not */
		"fc:342393 fc:10",              /* 784 * 342393 is just over 2^28 */
		"conv:268435456:4096:pad=auto fc:10",
		"conv:268435456:1 fc:10", /* parameters fit, its output does not */
		"conv:1:4096:pad=4095 conv:1:4096:pad=4095 conv:1:4096:pad=4095 fc:10",
		"conv:4096:1 conv:4096:5:pad=same conv:4096:5:pad=same fc:10",
	};
	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct err e = {0};
		assert_int_equal(model_parse(&m, row[i], mnist, &e), PS_EUSAGE);
		assert_non_null(strstr(e.text, "268435456"));
	}
	const struct shape impossible[] = {{0, 28, 28}, {1, 0, 1}, {SIZE_MAX, SIZE_MAX, 2},
		{(size_t)1 << 32, (size_t)1 << 32, 1}, {1, 1, MODEL_MAX_PARAMS + 1}};
	for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++)
		assert_int_equal(model_parse(&m, "fc:10", impossible[i], NULL), PS_EUSAGE);
	assert_int_equal(model_parse(&m, "fc:342391", mnist, NULL), PS_EUSAGE); /* classes */
	parse_ok(repeat(text, sizeof text, "relu", 63, "fc:10"));
	assert_int_equal(
		model_parse(&m, repeat(text, sizeof text, "relu", 64, "fc:10"), mnist, NULL),
		PS_EUSAGE);
	parse_ok(repeat(text, sizeof text, "fc:3", 31, "fc:10"));
	assert_int_equal(
		model_parse(&m, repeat(text, sizeof text, "fc:3", 32, "fc:10"), mnist, NULL),
		PS_EUSAGE);
	/* 511 characters fit, 512 do not */
	struct err e = {0};
	parse_ok(repeat(text, sizeof text, "dropout:0.1", 41, "fc:1000 relu fc:100"));
	assert_int_equal(strlen(m.text), MODEL_MAX_TEXT - 1);
	repeat(text, sizeof text, "dropout:0.1", 41, "fc:10000 relu fc:100");
	assert_int_equal(model_parse(&m, text, mnist, &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, "the model text grows past 511 characters"));
}

static const char *random_layer(struct rng *r, char *out, size_t size)
{
	static const char *const pads[] = {"", "", ":pad=1", ":pad=same", ":pad=auto", ":pad=auto"};
	size_t a = rng_below(r, 9) + 1, b = rng_below(r, 7) + 1, c = rng_below(r, 3) + 1;
	const char *pad = pads[rng_below(r, 6)];
	switch (rng_below(r, 6)) {
	case 0:
	case 1:
		snprintf(out, size, "conv:%zu:%zu:stride=%zu%s", a, b, c, pad);
		break;
	case 2:
		snprintf(out, size, "pool:%zu%s", c + 1, c > 1 ? ":pad=auto" : "");
		break;
	case 3:
		snprintf(out, size, "relu");
		break;
	case 4:
		snprintf(out, size, "dropout:0.%zu", b);
		break;
	default:
		snprintf(out, size, "fc:%zu", a + 1);
	}
	return out;
}

static void random_models_hold_the_invariants_or_say_which_layer(void **state)
{
	(void)state;
	const uint64_t seed = 20;
	static struct model again;
	size_t good = 0;
	print_message("seed %llu\n", (unsigned long long)seed);
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	for (int i = 0; i < 20000; i++) {
		char text[MODEL_MAX_TEXT] = "", layer[64];
		struct err e = {0};
		for (uint64_t n = rng_below(&r, 6); n > 0; n--) {
			size_t used = strlen(text);
			snprintf(text + used, sizeof text - used, "%s ",
				random_layer(&r, layer, sizeof layer));
		}
		snprintf(text + strlen(text), sizeof text - strlen(text), "fc:%u",
			(unsigned)rng_below(&r, 20) + 2);
		struct shape input = {
			rng_below(&r, 3) + 1, rng_below(&r, 30) + 1, rng_below(&r, 30) + 1};
		if (model_parse(&m, text, input, &e) != PS_OK) {
			assert_non_null(strstr(e.text, "layer "));
			continue;
		}
		good++;
		assert_consistent(&m);
		assert_int_equal(model_parse(&again, m.text, input, &e), PS_OK);
		assert_string_equal(m.text, again.text);
		assert_int_equal(m.fingerprint, again.fingerprint);
		assert_int_equal(m.n_layers, again.n_layers);
		assert_int_equal(m.n_params, again.n_params);
	}
	assert_in_range(good, 5000, 19000);
}

static void damaged_texts_never_do_more_than_fail(void **state)
{
	(void)state;
	const uint64_t seed = 21;
	const char *start =
		"conv:6:5:stride=1:pad=same relu pool:2:pad=auto dropout:0.25 fc:84 fc:10";
	const char letters[] = "0123456789:= .-edropulfcnvstiax\n\xff";
	print_message("seed %llu\n", (unsigned long long)seed);
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	for (int i = 0; i < 50000; i++) {
		char text[128];
		struct err e = {0};
		snprintf(text, sizeof text, "%s", start);
		for (uint64_t n = rng_below(&r, 4); n > 0; n--)
			text[rng_below(&r, strlen(start))] =
				letters[rng_below(&r, sizeof letters - 1)];
		if (rng_below(&r, 4) == 0)
			text[rng_below(&r, strlen(start))] = '\0';
		int rc = model_parse(&m, text, mnist, &e);
		assert_true(rc == PS_OK || (rc == PS_EUSAGE && e.text[0] && !strchr(e.text, '\n')));
		if (rc == PS_OK)
			assert_consistent(&m);
	}
}

static void initial_weights_are_the_specified_draws(void **state)
{
	(void)state;
	static float w[10000];
	parse_ok("seed:2");
	assert_true(m.n_params < 10000);
	assert_true(m.tensor[0].init_bound == 1.0 / 3.0 && m.tensor[1].init_bound == 1.0 / 3.0);
	assert_true(m.tensor[2].init_bound == 1 / sqrt(2 * 13 * 13));
	model_init(&m, 7, w);
	/* from the Python program of test_rng.c */
	const float conv[] = {-0x1.9d1940p-3f, 0x1.eb1306p-3f, -0x1.9aeeb0p-7f, -0x1.60c36ap-7f};
	const float bias[] = {-0x1.0d8162p-2f, 0x1.8032aep-4f};
	const float fc[] = {-0x1.8ddcf6p-6f, 0x1.4545bcp-5f};
	assert_memory_equal(w, conv, sizeof conv);
	assert_memory_equal(w + m.tensor[1].offset, bias, sizeof bias);
	assert_memory_equal(w + m.tensor[2].offset, fc, sizeof fc);
	for (size_t t = 0; t < m.n_tensors; t++)
		for (size_t i = 0; i < m.tensor[t].count; i++)
			assert_true(
				fabs((double)w[m.tensor[t].offset + i]) <= m.tensor[t].init_bound);
}

static void a_vector_starts_at_zero(void **state)
{
	(void)state;
	float w[5] = {1, 2, 3, 4, 5};
	parse_ok("vector:4");
	model_init(&m, 7, w);
	for (size_t i = 0; i < 4; i++)
		assert_true(w[i] == 0 && !signbit(w[i]));
	assert_true(w[4] == 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(seed_is_conv_relu_pool_fc),
		cmocka_unit_test(lenet5_has_lecuns_sizes),
		cmocka_unit_test(cnn99_is_what_the_architecture_says),
		cmocka_unit_test(invariant_1_tensors_have_pytorchs_names_shapes_and_order),
		cmocka_unit_test(vector_is_one_tensor_and_nothing_else),
		cmocka_unit_test(the_canonical_text_is_one_way_to_write_a_model),
		cmocka_unit_test(invariant_2_the_fingerprint_is_xxh3_of_text_and_input),
		cmocka_unit_test(pad_same_keeps_the_size_divided_by_the_stride),
		cmocka_unit_test(pad_auto_adds_the_least_that_makes_it_fit),
		cmocka_unit_test(errors_name_the_layer_and_say_what_would_fit),
		cmocka_unit_test(invariant_3_whatever_is_too_large_is_refused),
		cmocka_unit_test(random_models_hold_the_invariants_or_say_which_layer),
		cmocka_unit_test(damaged_texts_never_do_more_than_fail),
		cmocka_unit_test(initial_weights_are_the_specified_draws),
		cmocka_unit_test(a_vector_starts_at_zero),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
