/*
 * model.c - fuzzes the parser of model texts. Byte 0 chooses the shape of the images; the other
 * bytes are the text.
 *
 * The target checks that the canonical text of a model gives the same model again, because a server
 * may start with the text of a STATUS. The target also checks that the tensors cover all
 * parameters, and that the shapes of consecutive layers fit.
 */
#include "common/model.h"
#include "tests/support/fuzz_input.h"

static void check_parsed_again(const struct model *m)
{
	static struct model again;
	struct err e = {0};
	size_t at = 0;

	int rc = model_parse(&again, m->text, MODEL_MNIST, &e);
	PS_ASSERT(rc == 0);
	PS_ASSERT(strcmp(again.text, m->text) == 0);
	PS_ASSERT(again.fingerprint == m->fingerprint && again.n_params == m->n_params);
	for (size_t i = 0; i < m->n_tensors; i++) {
		PS_ASSERT(m->tensor[i].offset == at);
		at += m->tensor[i].count;
	}
	PS_ASSERT(m->n_layers == 0 || at == m->n_params);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct model m;
	static const struct shape shapes[] = {{1, 28, 28}, {3, 32, 32}, {0, 0, 0}, {3, 224, 224}};
	struct input in = {data, size};
	struct shape input = shapes[input_below(&in, 4)];
	size_t classes = 1 + input_u8(&in) * 3u;
	struct err e = {0};
	char text[2 * MODEL_MAX_TEXT];

	input_line(&in, text, sizeof(text));
	if (model_parse_named(&m, text, input, classes, &e) == 0) {
		/* the canonical text contains the shape of the images, except for MNIST's shape */
		check_parsed_again(&m);
	} else {
		PS_ASSERT(e.text[0]);
	}
	return 0;
}
