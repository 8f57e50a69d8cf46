/*
 * vec.h - operations on vectors of floats, for L-BFGS and the norms of gradients. A sum is computed
 * as a fixed number of partial sums that are added in a fixed order, so it has the same bits on
 * every CPU.
 */
#ifndef SERVER_CORE_VEC_H
#define SERVER_CORE_VEC_H
#include <stddef.h>
#include <stdint.h>

/* Returns the dot product of `a` and `b`, summed in double precision. */
double vec_dot(const float *a, const float *b, size_t n);
/* Returns the sum of the squares of v, faster than vec_dot(v, v, n) and with a relative error of up
 * to 2e-6. Values below 1.1e-19 count as 0, because their squares are subnormal numbers. No
 * magnitude may exceed 1e18. */
double vec_squares(const float *v, size_t n);
/* Returns a number that depends on every value of v and on its place. A change of a single value
 * always changes the number, but an attacker can find another vector with the same number. */
uint64_t vec_print(const float *v, size_t n);
void vec_copy(float *to, const float *from, size_t n);
void vec_scale(float *v, double by, size_t n);
void vec_axpy(float *y, double a, const float *x, size_t n);                 /* y += a * x */
void vec_sum(float *to, const float *x, double a, const float *d, size_t n); /* to = x + a * d */
int vec_finite(const float *v, size_t n); /* returns 1 if no magnitude is above 1e15 */

/* vec_larger returns the larger of `a` and `b`, and vec_smaller the smaller one. Unlike fmax and
 * fmin, both return NaN if `a` is NaN, and they need no libm. */
static inline double vec_larger(double a, double b)
{
	return b > a ? b : a;
}

static inline double vec_smaller(double a, double b)
{
	return b < a ? b : a;
}

#endif
