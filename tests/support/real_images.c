/* real_images.c - see real_images.h. */
#include "tests/support/real_images.h"

struct data real_images;

int real_load(void **state)
{
	(void)state;
	struct err e = {0};
	if (data_load(&real_images, getenv("CNN_DATA"), &e) == PS_OK)
		return 0;
	print_error("%s\n", e.text);
	return -1;
}

int real_release(void **state)
{
	(void)state;
	data_release(&real_images);
	return 0;
}

void subject_real(struct subject *s, const char *text, size_t from, size_t n)
{
	struct err e = {0};

	*s = (struct subject){.batch = n, .dropout_seed = 5, .images = data_train(&real_images)};
	if (model_parse(&s->model, text,
		    (struct shape){1, real_images.id.rows, real_images.id.cols}, &e))
		fail_msg("%s", e.text);
	uint32_t *order = mem_must(s->images.n, sizeof(*order), "test");
	rng_order(11, 0, order, s->images.n);
	s->index = mem_must(n, sizeof(*s->index), "test");
	memcpy(s->index, order + from, n * sizeof(*order));
	free(order);
	s->params = mem_must(s->model.n_params, sizeof(float), "test");
	s->grad = mem_must(s->model.n_params, sizeof(float), "test");
	model_init(&s->model, from, s->params);
}
