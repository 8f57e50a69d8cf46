/* safetensors.c - fuzzes the reader of .safetensors files, which have tensors and the text of the
 * model. */
#include "common/safetensors.h"
#include "tests/support/fuzz_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct model m;
	static float weights[256];
	struct err e = {0};
	char text[MODEL_MAX_TEXT];
	const char *path = input_file(data, size);

	if (m.n_params == 0)
		PS_ASSERT(model_parse(&m, "fc:3", (struct shape){1, 2, 3}, &e) == 0 &&
			  m.n_params <= 256);
	if (safetensors_model(path, text, &e) == 0)
		PS_ASSERT(memchr(text, 0, sizeof(text)));
	if (safetensors_read(path, &m, weights, &e) != 0)
		PS_ASSERT(e.text[0]);
	return 0;
}
