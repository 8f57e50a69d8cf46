/*
 * serial_lbfgs.h - a reference implementation for tests of the server's L-BFGS. The reference is
 * serial, computes in double precision, and follows Nocedal & Wright 7.4. The line search is a
 * bisection for the weak Wolfe conditions (Lewis & Overton).
 */
#ifndef TESTS_SUPPORT_SERIAL_LBFGS_H
#define TESTS_SUPPORT_SERIAL_LBFGS_H
#include "tests/support/core_cluster.h"

#define SERIAL_ARMIJO 1e-4
#define SERIAL_WOLFE  0.9

struct serial_lbfgs {
	/* the cluster whose data set and gradient function the reference uses */
	const struct cluster *k;
	size_t n;
	double x[CLUSTER_PARAMS], g[CLUSTER_PARAMS], f;
	/* the pairs of L-BFGS, the oldest pair first */
	double s[32][CLUSTER_PARAMS], y[32][CLUSTER_PARAMS];
	uint32_t pairs, trials;
};

/* Returns a reference that starts at the weights of the cluster's core. */
struct serial_lbfgs serial_begin(const struct cluster *k);
/* Returns the mean loss at `x` over the whole data set, and writes its gradient to `g`. */
double serial_loss(const struct serial_lbfgs *q, const double *x, double *g);
void serial_step(struct serial_lbfgs *q);
double serial_dot(const double *a, const double *b, size_t n);

#endif
