/* serial_lbfgs.c - see serial_lbfgs.h. */
#include "tests/support/serial_lbfgs.h"

double serial_dot(const double *a, const double *b, size_t n)
{
	double sum = 0;

	for (size_t j = 0; j < n; j++)
		sum += a[j] * b[j];
	return sum;
}

double serial_loss(const struct serial_lbfgs *q, const double *x, double *g)
{
	uint32_t batches = q->k->f.core->leases.n_batches;
	float w[CLUSTER_PARAMS];
	double f = 0;

	for (size_t j = 0; j < q->n; j++) {
		w[j] = (float)x[j];
		g[j] = 0;
	}
	for (uint32_t i = 0; i < batches; i++) {
		double one[CLUSTER_PARAMS] = {0};
		double share = (double)cluster_images(q->k, i, 1) / q->k->data.n_train;

		f += share * q->k->fn(i, w, one);
		for (size_t j = 0; j < q->n; j++)
			g[j] += share * one[j];
	}
	return f;
}

static void serial_direction(const struct serial_lbfgs *q, double *d)
{
	double a[32];

	for (size_t j = 0; j < q->n; j++)
		d[j] = -q->g[j];
	for (uint32_t i = q->pairs; i-- > 0;) {
		a[i] = serial_dot(q->s[i], d, q->n) / serial_dot(q->y[i], q->s[i], q->n);
		for (size_t j = 0; j < q->n; j++)
			d[j] -= a[i] * q->y[i][j];
	}
	if (q->pairs) {
		const double *y = q->y[q->pairs - 1];
		double scale = serial_dot(y, q->s[q->pairs - 1], q->n) / serial_dot(y, y, q->n);

		for (size_t j = 0; j < q->n; j++)
			d[j] *= scale;
	}
	for (uint32_t i = 0; i < q->pairs; i++) {
		double b = serial_dot(q->y[i], d, q->n) / serial_dot(q->y[i], q->s[i], q->n);

		for (size_t j = 0; j < q->n; j++)
			d[j] += (a[i] - b) * q->s[i][j];
	}
}

static void serial_remember(struct serial_lbfgs *q, const double *x, const double *g)
{
	double s[CLUSTER_PARAMS], y[CLUSTER_PARAMS];

	for (size_t j = 0; j < q->n; j++) {
		s[j] = x[j] - q->x[j];
		y[j] = g[j] - q->g[j];
	}
	int keep = serial_dot(y, s, q->n) > 1e-10 * serial_dot(y, y, q->n);
	if (q->pairs == q->k->f.cfg.lbfgs.history) {
		memmove(q->s[0], q->s[1], (q->pairs - 1) * sizeof(q->s[0]));
		memmove(q->y[0], q->y[1], (q->pairs - 1) * sizeof(q->y[0]));
		q->pairs--;
	}
	if (!keep)
		return;
	memcpy(q->s[q->pairs], s, sizeof(s));
	memcpy(q->y[q->pairs++], y, sizeof(y));
}

void serial_step(struct serial_lbfgs *q)
{
	double d[CLUSTER_PARAMS], x[CLUSTER_PARAMS], g[CLUSTER_PARAMS], low = 0, high = 0, f;

	serial_direction(q, d);
	double slope = serial_dot(q->g, d, q->n), length = sqrt(serial_dot(d, d, q->n));
	double step = q->pairs || length <= 1 ? 1 : 1 / length;
	for (int i = 0; i < 20; i++) {
		for (size_t j = 0; j < q->n; j++)
			x[j] = q->x[j] + step * d[j];
		f = serial_loss(q, x, g);
		q->trials++;
		int lower = f <= q->f + SERIAL_ARMIJO * step * slope + 1e-7 * fabs(q->f);
		if (lower && serial_dot(g, d, q->n) >= SERIAL_WOLFE * slope)
			break;
		if (lower)
			low = step;
		else
			high = step;
		step = high > 0 ? (low + high) / 2 : 2 * step;
	}
	serial_remember(q, x, g);
	memcpy(q->x, x, sizeof(x));
	memcpy(q->g, g, sizeof(g));
	q->f = f;
}

struct serial_lbfgs serial_begin(const struct cluster *k)
{
	struct serial_lbfgs q = {.k = k, .n = k->f.cfg.n_params};

	for (size_t j = 0; j < q.n; j++)
		q.x[j] = (double)core_weights(k->f.core)[j];
	q.f = serial_loss(&q, q.x, q.g);
	return q;
}
