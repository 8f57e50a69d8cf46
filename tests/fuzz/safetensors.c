/*
 * safetensors.c - fuzzes the reader of .safetensors files, which have tensors, the text of the
 * model and the text of an evaluation. The target reads each file for a model with layers, and for
 * vector:8, whose file may list its tensors. It checks that the list of a file that was read is
 * sound.
 */
#include <stdlib.h>
#include "common/safetensors.h"
#include "common/tensor_list.h"
#include "tests/support/fuzz_input.h"

static struct model layers, vector;
static float weights[256];

static void parse_models(void)
{
	struct err e = {0};

	PS_ASSERT(model_parse(&layers, "fc:3", (struct shape){1, 2, 3}, &e) == 0 &&
		  layers.n_params <= 256);
	PS_ASSERT(model_parse(&vector, "vector:8:running=2", MODEL_MNIST, &e) == 0);
}

static void read_as_vector(const char *path)
{
	struct err e = {0};
	char *list;
	size_t line;

	int rc = safetensors_read_vector(path, &vector, weights, &list, &e);
	PS_ASSERT(rc == 0 ? !list || !tensor_list_check(
					     list, vector.n_params, vector.n_trained, &line)
			  : e.text[0] && !list);
	free(list);
}

static void read_texts(const char *path)
{
	struct err e = {0};
	char text[MODEL_MAX_TEXT], *evaluation;

	if (safetensors_model(path, text, &e) == 0)
		PS_ASSERT(memchr(text, 0, sizeof(text)));
	if (safetensors_evaluation(path, &evaluation, &e) == 0)
		free(evaluation);
	else
		PS_ASSERT(e.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct err e = {0};
	const char *path = input_file(data, size);

	if (layers.n_params == 0)
		parse_models();
	read_texts(path);
	if (safetensors_read(path, &layers, weights, &e) != 0)
		PS_ASSERT(e.text[0]);
	read_as_vector(path);
	return 0;
}
