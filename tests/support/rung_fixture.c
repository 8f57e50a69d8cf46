/* rung_fixture.c - see rung_fixture.h. */
#include "tests/support/rung_fixture.h"

void rung_open(struct rung_fixture *l, const struct rung *rung, size_t filters, size_t max_batch)
{
	char text[32];
	struct err e = {0};

	snprintf(text, sizeof(text), "seed:%zu", filters);
	const struct odd_model o = {{1, 28, 28}, text};
	*l = (struct rung_fixture){.rung = rung};
	subject_random(&l->subject, &o, max_batch);
	l->task = (struct ladder_task){.model = &l->subject.model,
		.threads = 1,
		.set = &l->subject.images,
		.filters = filters,
		.max_batch = max_batch};
	l->params = ladder_floats(l->subject.model.n_params);
	l->grad = ladder_floats(l->subject.model.n_params);
	memcpy(l->params, l->subject.params, l->subject.model.n_params * sizeof(float));
	if (rung->open(&l->self, &l->task, &e))
		fail_msg("%s: %s", rung->name, e.text);
}

void rung_close(struct rung_fixture *l)
{
	l->rung->close(l->self);
	subject_release(&l->subject);
	free(l->params);
	free(l->grad);
}

void rung_step(struct rung_fixture *l, size_t n)
{
	struct err e = {0};
	struct ladder_batch b = {l->params, l->subject.index, n};

	for (size_t i = 0; i < l->subject.model.n_params; i++)
		l->grad[i] = NAN;
	l->loss = NAN;
	if (l->rung->step(l->self, &b, l->grad, &l->loss, NULL, &e))
		fail_msg("%s: %s", l->rung->name, e.text);
}

/* Returns the largest relative distance of a single tensor from the reference. The distance of the
 * whole gradient would hide an error in a small tensor. */
static double rung_worst_tensor(const struct rung_fixture *l)
{
	const struct model *m = &l->subject.model;
	double worst = 0;

	for (size_t t = 0; t < m->n_tensors; t++) {
		size_t at = m->tensor[t].offset;

		double d =
			gradient_distance(l->grad + at, l->subject.grad + at, m->tensor[t].count);
		/* if d is NaN, the comparison is false, and `worst` becomes NaN */
		worst = d <= worst ? worst : d;
	}
	return worst;
}

void rung_agrees(struct rung_fixture *l, size_t n)
{
	struct subject *s = &l->subject;

	rung_step(l, n);
	s->batch = n;
	subject_open(s, "cpu-ref", 1);
	subject_step(s);
	double d = gradient_distance(l->grad, s->grad, s->model.n_params), loss = s->loss;
	const double tolerance = ladder_bounds(l->rung)->tolerance;
	if (fabs(l->loss - loss) <= tolerance * loss &&
		((d <= tolerance && rung_worst_tensor(l) <= 5 * tolerance) ||
			d <= 2 * gradient_jump(s, s->grad, 0x1p-22, d / 2)))
		return;
	fail_msg("%s, %s, %zu images: gradient off by %g, loss %.9g instead of %.9g", l->rung->name,
		s->model.text, n, d, l->loss, loss);
}

void rung_level(struct rung_fixture *l)
{
	const struct tensor *weight = &l->subject.model.tensor[0], *bias = weight + 1;

	for (size_t i = 0; i < weight->count; i++)
		l->params[weight->offset + i] = l->subject.params[weight->offset + i] = 0;
	for (size_t i = 0; i < bias->count; i++)
		l->params[bias->offset + i] = l->subject.params[bias->offset + i] = 0.5f;
}
