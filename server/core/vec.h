/*
 * vec.h - operations on vectors of floats, for L-BFGS. Sums are computed in double precision, in
 * eight lanes of a fixed order, so that they have the same bits on every CPU.
 */
#ifndef SERVER_CORE_VEC_H
#define SERVER_CORE_VEC_H
#include <stddef.h>

double vec_dot(const float *a, const float *b, size_t n);
void vec_copy(float *to, const float *from, size_t n);
void vec_scale(float *v, double by, size_t n);
void vec_axpy(float *y, double a, const float *x, size_t n);                 /* y += a * x */
void vec_sum(float *to, const float *x, double a, const float *d, size_t n); /* to = x + a * d */
int vec_finite(const float *v, size_t n); /* returns 1 if no magnitude is above 1e15 */

/* vec_larger and vec_smaller do not need libm. If `a` is NaN, both functions return NaN. */
static inline double vec_larger(double a, double b)
{
	return b > a ? b : a;
}

static inline double vec_smaller(double a, double b)
{
	return b < a ? b : a;
}

#endif
