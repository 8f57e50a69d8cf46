/* test_kernels_torch.c - compares loss and gradients of every kind of layer with those of PyTorch
 * (tests/fixtures/layers.h, made by make_layers.py). */
#include "tests/support/gradients.h"
#include "tests/fixtures/layers.h"
#include "tests/support/test.h"

static void fill_parameters(struct subject *s)
{
	for (size_t i = 0; i < s->model.n_params; i++)
		s->params[i] = (float)(0.3 * sin(0.7 * (double)i + 1));
	for (size_t t = 0; t < s->model.n_tensors; t++) {
		const struct tensor *v = &s->model.tensor[t];

		for (size_t i = v->offset;
			strstr(v->name, "running_var") && i < v->offset + v->count; i++)
			s->params[i] = (float)(0.3 * sin(0.7 * (double)i + 1) + 1);
	}
	for (size_t i = 0; i < s->batch * shape_count(s->model.input); i++)
		s->pixels[i] = (uint8_t)(37 * i + 11);
	for (size_t i = 0; i < s->batch; i++) {
		s->labels[i] = (uint16_t)(i % s->model.classes);
		s->index[i] = (uint32_t)i;
	}
}

/* Compares the gradient of tensor `number` with PyTorch's. `right` has the norm of PyTorch's
 * gradient and its product with a fixed vector. `noise` is the error that rounding in the other
 * layers of the network may add to a gradient. */
static void check_tensor(
	const struct subject *s, size_t number, const double right[2], double noise)
{
	const struct tensor *t = &s->model.tensor[number];
	double squares = 0, product = 0;

	for (size_t j = 0; j < t->count; j++) {
		double g = (double)s->grad[t->offset + j];

		squares += g * g;
		product += g * cos(1.3 * (double)j + 0.5);
	}
	if (!(fabs(sqrt(squares) - right[0]) <= 1e-5 * right[0] + noise) ||
		!(fabs(product - right[1]) <= 1e-5 * right[0] + noise))
		fail_msg("%s %s on %s: norm %.9g, product %.9g; PyTorch says %.9g, %.9g",
			s->model.text, t->name, backend_name(s->backend), sqrt(squares), product,
			right[0], right[1]);
}

static double whole_norm(const struct torch_case *c, const struct model *m)
{
	double squares = 0;

	for (size_t t = 0; t < c->n_tensors; t++)
		if (m->tensor[t].offset < m->n_trained)
			squares += c->tensor[t][0] * c->tensor[t][0];
	return sqrt(squares);
}

static void gradients_agree(const char *device, double rounding)
{
	for (size_t i = 0; i < sizeof(torch_cases) / sizeof(torch_cases[0]); i++) {
		const struct torch_case *c = &torch_cases[i];
		struct model m;
		struct subject s;
		struct err e;

		if (model_parse(&m, c->text, MODEL_MNIST, &e))
			fail_msg("%s", e.text);
		subject_random(&s, &(struct odd_model){m.input, c->text}, c->images);
		fill_parameters(&s);
		subject_open(&s, device, 2);
		subject_step(&s);
		if (!(fabs(s.loss - c->loss) <= 1e-6))
			fail_msg("%s on %s: loss %.9g; PyTorch says %.9g", c->text, device, s.loss,
				c->loss);
		size_t correct;
		double sum;
		assert_int_equal(
			backend_evaluate(s.backend, s.params, 0, c->images, &correct, &sum), PS_OK);
		assert_true(fabs(sum / (double)c->images - c->eval_loss) <= 1e-6);
		assert_int_equal(s.model.n_tensors, c->n_tensors);
		for (size_t t = 0; t < c->n_tensors; t++)
			check_tensor(&s, t, c->tensor[t], rounding * whole_norm(c, &s.model));
		subject_release(&s);
	}
}

TEST(cpu_ref_computes_what_pytorch_computes)
{
	gradients_agree("cpu-ref", 1e-8);
}

TEST(cpu_computes_what_pytorch_computes)
{
	gradients_agree("cpu", 1e-5);
}
