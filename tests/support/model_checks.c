/* model_checks.c - see model_checks.h. */
#include "tests/support/model_checks.h"

const struct shape mnist_shape = {1, 28, 28};

struct model parsed;

void parse_model(const char *text)
{
	struct err e = {0};
	int rc = model_parse(&parsed, text, mnist_shape, &e);

	if (rc)
		print_error("\"%s\": %s\n", text, e.text);
	assert_int_equal(rc, PS_OK);
}

void assert_shape(struct shape s, size_t c, size_t h, size_t w)
{
	assert_int_equal(s.c, c);
	assert_int_equal(s.h, h);
	assert_int_equal(s.w, w);
}

void assert_tensor(size_t i, const char *name, size_t offset, size_t count)
{
	assert_true(i < parsed.n_tensors);
	assert_string_equal(parsed.tensor[i].name, name);
	assert_int_equal(parsed.tensor[i].offset, offset);
	assert_int_equal(parsed.tensor[i].count, count);
}

void assert_consistent(const struct model *x)
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
	assert_true(x->n_params <= MODEL_MAX_PARAMS && x->n_trained <= x->n_params);
	for (size_t i = 0; i < x->n_layers; i++) {
		const struct layer *l = &x->layer[i];

		assert_memory_equal(&l->in, &shape, sizeof(shape));
		assert_true(shape_count(l->out) >= 1 && shape_count(l->out) <= MODEL_MAX_PARAMS);
		if (l->kind == LAYER_CONV || l->kind == LAYER_POOL || l->kind == LAYER_AVGPOOL) {
			size_t h = shape.h + l->pad_top + l->pad_bottom - l->size;
			size_t w = shape.w + l->pad_left + l->pad_right - l->size;

			assert_int_equal(h % l->stride, 0);
			assert_int_equal(w % l->stride, 0);
			assert_int_equal(l->out.h, h / l->stride + 1);
			assert_int_equal(l->out.w, w / l->stride + 1);
			assert_true(l->pad_top == l->pad_bottom || l->pad_top + 1 == l->pad_bottom);
			if (l->stride <= l->size) /* no window may consist only of padding */
				assert_true(l->pad_bottom < l->size && l->pad_right < l->size);
		}
		shape = l->out;
	}
	if (x->n_layers)
		assert_int_equal(x->classes, shape_count(shape));
}
