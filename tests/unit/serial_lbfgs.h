/*
 * serial_lbfgs.h - L-BFGS once more, by one hand in double precision, after Nocedal & Wright 7.4,
 * with bisection for the weak Wolfe conditions (Lewis & Overton): what the server's is compared
 * with.
 */
#ifndef TESTS_UNIT_SERIAL_LBFGS_H
#define TESTS_UNIT_SERIAL_LBFGS_H
#include "tests/unit/core_modes.h"

#define ARMIJO 1e-4
#define WOLFE  0.9

struct serial {
	const struct crew *k; /* whose portions */
	size_t n;
	double x[CREW_PARAMS], g[CREW_PARAMS], f;
	double s[32][CREW_PARAMS], y[32][CREW_PARAMS]; /* the oldest pair first */
	uint32_t pairs, trials;
};

static inline double dot(const double *a, const double *b, size_t n)
{
	double sum = 0;

	for (size_t j = 0; j < n; j++)
		sum += a[j] * b[j];
	return sum;
}

static inline double serial_at(const struct serial *q, const double *x, double *g)
{
	uint32_t batches = q->k->f.core->leases.n_batches;
	float w[CREW_PARAMS];
	double f = 0;

	for (size_t j = 0; j < q->n; j++) {
		w[j] = (float)x[j];
		g[j] = 0;
	}
	for (uint32_t i = 0; i < batches; i++) {
		double one[CREW_PARAMS] = {0};
		double share = (double)crew_images(q->k, i, 1) / q->k->data.n_train;
		f += share * q->k->fn(i, w, one);
		for (size_t j = 0; j < q->n; j++)
			g[j] += share * one[j];
	}
	return f;
}

static inline void serial_direction(const struct serial *q, double *d)
{
	double a[32];

	for (size_t j = 0; j < q->n; j++)
		d[j] = -q->g[j];
	for (uint32_t i = q->pairs; i-- > 0;) {
		a[i] = dot(q->s[i], d, q->n) / dot(q->y[i], q->s[i], q->n);
		for (size_t j = 0; j < q->n; j++)
			d[j] -= a[i] * q->y[i][j];
	}
	if (q->pairs) {
		const double *y = q->y[q->pairs - 1];
		double scale = dot(y, q->s[q->pairs - 1], q->n) / dot(y, y, q->n);
		for (size_t j = 0; j < q->n; j++)
			d[j] *= scale;
	}
	for (uint32_t i = 0; i < q->pairs; i++) {
		double b = dot(q->y[i], d, q->n) / dot(q->y[i], q->s[i], q->n);
		for (size_t j = 0; j < q->n; j++)
			d[j] += (a[i] - b) * q->s[i][j];
	}
}

static inline void serial_remember(struct serial *q, const double *x, const double *g)
{
	double s[CREW_PARAMS], y[CREW_PARAMS];

	for (size_t j = 0; j < q->n; j++) {
		s[j] = x[j] - q->x[j];
		y[j] = g[j] - q->g[j];
	}
	int keep = dot(y, s, q->n) > 1e-10 * dot(y, y, q->n);
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

/* One step, by bisection for the weak Wolfe conditions (Lewis & Overton). */
static inline void serial_step(struct serial *q)
{
	double d[CREW_PARAMS], x[CREW_PARAMS], g[CREW_PARAMS], low = 0, high = 0, f;

	serial_direction(q, d);
	double slope = dot(q->g, d, q->n), length = sqrt(dot(d, d, q->n));
	double step = q->pairs || length <= 1 ? 1 : 1 / length;
	for (int i = 0; i < 20; i++) {
		for (size_t j = 0; j < q->n; j++)
			x[j] = q->x[j] + step * d[j];
		f = serial_at(q, x, g);
		q->trials++;
		int lower = f <= q->f + ARMIJO * step * slope + 1e-7 * fabs(q->f);
		if (lower && dot(g, d, q->n) >= WOLFE * slope)
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

static inline struct serial serial_begin(const struct crew *k)
{
	struct serial q = {.k = k, .n = k->f.cfg.n_params};

	for (size_t j = 0; j < q.n; j++)
		q.x[j] = (double)core_weights(k->f.core)[j];
	q.f = serial_at(&q, q.x, q.g);
	return q;
}

#endif
