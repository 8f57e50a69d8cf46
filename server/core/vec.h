/*
 * vec.h - all that L-BFGS does to vectors: operations on flat slices. Sums are double, in eight
 * lanes of a fixed order, so that they are the same bits on every CPU; several servers can each do
 * their slice and add the results in the servers' order.
 */
#ifndef SERVER_CORE_VEC_H
#define SERVER_CORE_VEC_H
#include <stddef.h>

double vec_dot(const float *a, const float *b, size_t n);
void vec_copy(float *to, const float *from, size_t n);
void vec_scale(float *v, double by, size_t n);
void vec_axpy(float *y, double a, const float *x, size_t n);                 /* y += a * x */
void vec_sum(float *to, const float *x, double a, const float *d, size_t n); /* to = x + a * d */
int vec_finite(const float *v, size_t n); /* all are at most 1e15 in magnitude */

/* Without libm, and a NaN in the first argument stays one. */
static inline double vec_larger(double a, double b)
{
	return b > a ? b : a;
}

static inline double vec_smaller(double a, double b)
{
	return b < a ? b : a;
}

#endif
