/*
 * real.h - subjects of kernel tests whose images are real: $CNN_DATA or the usual places.
 */
#ifndef TESTS_UNIT_REAL_H
#define TESTS_UNIT_REAL_H
#include "tests/unit/gradients.h"
#include "worker/data/dataset.h"

static struct data real; /* loaded once, by real_load */

static inline int real_load(void **state)
{
	(void)state;
	struct err e = {0};
	if (data_load(&real, getenv("CNN_DATA"), &e) == PS_OK)
		return 0;
	print_error("%s\n", e.text);
	return -1;
}

static inline int real_release(void **state)
{
	(void)state;
	data_release(&real);
	return 0;
}

/* Images from place `from` of a mixed order, all in one batch. */
static inline void subject_real(struct subject *s, const char *text, size_t from, size_t n)
{
	struct err e = {0};
	*s = (struct subject){.batch = n, .dropout_seed = 5, .images = data_train(&real)};
	if (model_parse(&s->model, text, (struct shape){1, real.id.rows, real.id.cols}, &e))
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

#endif
