/* Proves that common/model.h refuses texts that do not describe a model. */
#include "tests/support/model_checks.h"
#include "common/rng.h"
#include "tests/support/test.h"

TEST(errors_name_the_layer_and_say_what_would_fit)
{
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
		{"pool:3:stride=2 fc:10",
			"layer 1 \"pool:3:stride=2\": size 3 with stride 2 does not tile the input "
			"1x28x28 (28x28 with its padding); use pad=auto, or size 4"},
		{"pool:2:stride=3 fc:10", "stride 3 is larger than the size 2"},
		{"pool:2:pad=2 fc:10", "pad \"2\" is not understood; expected a number below"},
		{"pool:2:groups=2 fc:10", "\"groups=2\" is not understood; expected stride=S or "
					  "pad=P|same|auto, each once"},
		{"avgpool:3 fc:10", "input 1x28x28 is not divisible by 3; use pad=auto"},
		{"avgpool:global:pad=1 fc:10", "expected avgpool:global without options"},
		{"avgpool fc:10", "expected avgpool:SIZE"},
		{"conv:8:3:groups=3 fc:10", "the 8 filters and the 1 channels of the input must be "
					    "multiples of groups=3"},
		{"conv:8:3:groups=0 fc:10", "groups \"0\" is not a whole number"},
		{"conv:8:3:groups=1:groups=1 fc:10", "\"groups=1\" is not understood"},
		{"lrn:0 fc:10", "size \"0\" is not a whole number in [1, 4096]"},
		{"lrn:5:5 fc:10", "\"5\" is not understood; expected alpha=A"},
		{"lrn:alpha=1:alpha=1 fc:10", "\"alpha=1\" is not understood"},
		{"lrn:k=0 fc:10", "\"k=0\" is not understood"},
		{"lrn:beta=-1 fc:10", "\"beta=-1\" is not understood"},
		{"lrn:beta=1e99 fc:10", "\"beta=1e99\" is not understood"},
		{"lrn:gamma=1 fc:10", "\"gamma=1\" is not understood"},
		{"add fc:10", "layer 1 \"add\": it needs a skip before it"},
		{"skip relu add add fc:10", "layer 4 \"add\": it needs a skip"},
		{"relu skip relu fc:10", "layer 2 \"skip\": no add follows"},
		{"conv:4:1 skip conv:3:1 add fc:10", "cannot add the skip's 4x28x28 to 3x28x28"},
		{"skip conv:3:3 add fc:10", "cannot add the skip's 1x28x28 to 3x26x26"},
		{"skip:1 fc:10", "expected skip"},
		{"batchnorm:1 fc:10", "expected batchnorm"},
		{"tanh:1 fc:10", "layer 1 \"tanh:1\": expected tanh"},
		{"sigmoid:1 fc:10", "expected sigmoid"},
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
		{"fc:10 softmax", "layer 2 \"softmax\": unknown layer; the layers are conv, relu"},
		{"seed:32 relu", "stand alone"},
		{"seed:0", "layer 1 \"seed:0\""},
		{"dropout:1 fc:10", "probability \"1\" is not a number of at least 0 and below 1"},
		{"dropout:-0.5 fc:10", "probability"},
		{"dropout:nan fc:10", "probability"},
		{"dropout: fc:10", "probability"},
		/* refused, because this number rounds to 1 in float */
		{"dropout:0.99999999999 fc:10", "below 1"},
		{"conv:8:3 input:3x32x32 fc:10", "layer 2 \"input:3x32x32\": unknown layer"},
		{"input:3x32x32 input:3x32x32 fc:10", "\"input:3x32x32\": it occurs twice"},
		{"input:3x32x32x1 fc:10", "expected input:CHANNELSxROWSxCOLUMNS"},
		{"input:32 fc:10", "expected input:"},
		{"input:0x32x32 fc:10", "expected input:"},
		{"input:3x4097x32 fc:10", "expected input:"},
		{"input:3x99999999999999999999x32 fc:10", "expected input:"},
		{"input: fc:10", "expected input:"},
		{"input:3x32 x32 fc:10", "unknown layer"},
		{"input:4096x4096x4096 fc:10", "expected 1 to 268435456 values"},
		{"norm:0.5 fc:10", "\"norm:0.5\": expected norm:MEANS:DEVIATIONS"},
		{"norm:0.5:0 fc:10", "deviations of 1e-6"},
		{"norm:1.5:1 fc:10", "means of 0 to 1"},
		{"norm:nan:1 fc:10", "means of 0 to 1"},
		{"norm:0.1,0.2:0.3 fc:10", "two lists"},
		{"norm:0,0,0,0,0:1,1,1,1,1 fc:10", "1 to 4 numbers"},
		{"norm:0.1,0.2:0.3,0.4 fc:10",
			"norm has numbers for 2 channels, the images 1x28x28"},
		{"norm:0:1 norm:0:1 fc:10", "it occurs twice"},
		{"shift:0 fc:10", "expected shift:PIXELS"},
		{"shift:4096 fc:10", "expected shift:PIXELS"},
		{"flip:1 fc:10", "expected flip alone"},
		{"flip flip fc:10", "it occurs twice"},
		{"input:3x32x32", "the model text is empty"},
		{"", "the model text is empty"},
		{" \t ", "the model text is empty"},
		{"conv:8:3 relu",
			"layer 2 \"relu\": the last layer must be fc:UNITS, whose units are the "
			"classes (2 to 65536)"},
		{"fc:1", "layer 1 \"fc:1\": the units of the last layer are the classes; expected "
			 "2 to 65536"},
		{"fc:65537", "expected 2 to 65536"},
		{"vector:0", "\"vector:0\": expected a whole number in [1, 268435456]"},
		{"vector:", "\"vector:\": expected"},
		{"vector:268435457", "expected a whole number in [1, 268435456]"},
		{"vector:5 fc:10", "expected a whole number"},
		{"vector:5:running=0", "expected vector:N, or vector:N:running=S with S below N"},
		{"vector:5:running=5", "S below N"},
		{"vector:1:running=1", "S below N"},
		{"vector:5:stride=2", "S below N"},
		{"vector:5:running=2:running=2", "S below N"},
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct err e = {0};

		assert_int_equal(model_parse(&parsed, row[i].text, mnist_shape, &e), PS_EUSAGE);
		if (!strstr(e.text, row[i].says))
			fail_msg("\"%s\" says: %s", row[i].text, e.text);
	}
}

/* Returns a text with `word` repeated `n` times, then `end`. */
static const char *repeat_word(char *out, size_t size, const char *word, int n, const char *end)
{
	size_t used = 0;

	while (n-- > 0)
		used += (size_t)snprintf(out + used, size - used, "%s ", word);
	snprintf(out + used, size - used, "%s", end);
	return out;
}

TEST(invariant_2_whatever_is_too_large_is_refused)
{
	char text[1000];
	const char *row[] = {
		"fc:268435456 fc:268435456 fc:10",
		"fc:268435456",
		/* the weights alone would fit, but not the weights and the biases */
		"fc:342391 fc:10",
		/* the parameters would fit, but not the output of the layer conv */
		"conv:1000000:1 pool:28 fc:10",
		"fc:342393 fc:10", /* 784 * 342393 is just over 2^28 */
		"conv:268435456:4096:pad=auto fc:10",
		/* the parameters would fit, but not the output of the layer conv */
		"conv:268435456:1 fc:10",
		"conv:1:4096:pad=4095 conv:1:4096:pad=4095 conv:1:4096:pad=4095 fc:10",
		"conv:4096:1 conv:4096:5:pad=same conv:4096:5:pad=same fc:10",
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct err e = {0};

		assert_int_equal(model_parse(&parsed, row[i], mnist_shape, &e), PS_EUSAGE);
		assert_non_null(strstr(e.text, "268435456"));
	}
	const struct shape impossible[] = {{0, 28, 28}, {1, 0, 1}, {SIZE_MAX, SIZE_MAX, 2},
		{(size_t)1 << 32, (size_t)1 << 32, 1}, {1, 1, MODEL_MAX_PARAMS + 1}};
	for (size_t i = 0; i < sizeof(impossible) / sizeof(impossible[0]); i++)
		assert_int_equal(model_parse(&parsed, "fc:10", impossible[i], NULL), PS_EUSAGE);
	assert_int_equal(
		/* refused, because the model has too many classes */
		model_parse(&parsed, "fc:342391", mnist_shape, NULL), PS_EUSAGE);
	parse_model(repeat_word(text, sizeof(text), "relu", 63, "fc:10"));
	assert_int_equal(model_parse(&parsed, repeat_word(text, sizeof(text), "relu", 64, "fc:10"),
				 mnist_shape, NULL),
		PS_EUSAGE);
	parse_model(repeat_word(text, sizeof(text), "fc:3", 63, "fc:10"));
	/* a canonical text may have at most 511 characters */
	struct err e = {0};
	parse_model(repeat_word(text, sizeof(text), "dropout:0.1", 41, "fc:1000 relu fc:100"));
	assert_int_equal(strlen(parsed.text), MODEL_MAX_TEXT - 1);
	repeat_word(text, sizeof(text), "dropout:0.1", 41, "fc:10000 relu fc:100");
	assert_int_equal(model_parse(&parsed, text, mnist_shape, &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, "the model text grows past 511 characters"));
}

static const char *random_layer(struct rng *r, char *out, size_t size)
{
	static const char *const pads[] = {"", "", ":pad=1", ":pad=same", ":pad=auto", ":pad=auto"};
	size_t a = rng_below(r, 9) + 1, b = rng_below(r, 7) + 1, c = rng_below(r, 3) + 1;
	const char *pad = pads[rng_below(r, 6)];

	static const char *const plain[] = {"tanh", "sigmoid", "avgpool:global", "lrn:3:k=1",
		"skip relu add", "skip", "add", "batchnorm"};
	switch (rng_below(r, 9)) {
	case 6:
		snprintf(out, size, "%s", plain[rng_below(r, 8)]);
		break;
	case 7:
		snprintf(out, size, "conv:%zu:%zu:groups=%zu%s", 2 * a, b, c, pad);
		break;
	case 8:
		snprintf(out, size, "%s:%zu:stride=%zu%s", a > 4 ? "pool" : "avgpool", c + 1, c,
			pad);
		break;
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

TEST(random_models_hold_the_invariants_or_say_which_layer)
{
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

			snprintf(text + used, sizeof(text) - used, "%s ",
				random_layer(&r, layer, sizeof(layer)));
		}
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "fc:%u",
			(unsigned)rng_below(&r, 20) + 2);
		struct shape input = {
			rng_below(&r, 3) + 1, rng_below(&r, 30) + 1, rng_below(&r, 30) + 1};
		if (model_parse(&parsed, text, input, &e) != PS_OK) {
			assert_non_null(strstr(e.text, "layer "));
			continue;
		}
		good++;
		assert_consistent(&parsed);
		assert_int_equal(model_parse(&again, parsed.text, input, &e), PS_OK);
		assert_string_equal(parsed.text, again.text);
		assert_int_equal(parsed.fingerprint, again.fingerprint);
		assert_int_equal(parsed.n_layers, again.n_layers);
		assert_int_equal(parsed.n_params, again.n_params);
	}
	assert_in_range(good, 5000, 19000);
}

TEST(damaged_texts_never_do_more_than_fail)
{
	const uint64_t seed = 21;

	const char *start =
		"conv:6:5:stride=1:pad=same relu pool:2:pad=auto dropout:0.25 fc:84 fc:10";
	const char *images = "input:3x8x9 norm:0.25,0.5,0.5:1,2,0.5 shift:2 flip fc:10";
	const char letters[] = "0123456789:= .-edropulfcnvstiax\n\xff";
	print_message("seed %llu\n", (unsigned long long)seed);
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	for (int i = 0; i < 50000; i++) {
		char text[128];
		struct err e = {0};

		snprintf(text, sizeof(text), "%s", i % 2 ? start : images);
		for (uint64_t n = rng_below(&r, 4); n > 0; n--)
			text[rng_below(&r, strlen(images))] =
				letters[rng_below(&r, sizeof(letters) - 1)];
		if (rng_below(&r, 4) == 0)
			text[rng_below(&r, strlen(images))] = '\0';
		int rc = model_parse(&parsed, text, mnist_shape, &e);
		assert_true(rc == PS_OK || (rc == PS_EUSAGE && e.text[0] && !strchr(e.text, '\n')));
		if (rc == PS_OK)
			assert_consistent(&parsed);
	}
}
