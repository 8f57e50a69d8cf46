/* vec.c - see vec.h. */
#include "server/core/vec.h"
#include <math.h>
#include <string.h>
#include "common/clones.h"
#include "common/subnormals.h"

#define LANES     8
#define SQUARES   32
#define ROWS      16
#define MAX_SOUND 1e15f

PS_CLONES double vec_dot(const float *a, const float *b, size_t n)
{
	double lane[LANES] = {0};
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lane[j] += (double)a[i + j] * (double)b[i + j];
	for (; i < n; i++)
		lane[i % LANES] += (double)a[i] * (double)b[i];
	return ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
	       ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

/* Adds up ROWS squares of each lane as float before it adds this sum to a double, because a
 * conversion to double takes longer than a square. The loops over the lanes have a fixed length, so
 * every instruction set adds the same numbers in the same order. */
PS_CLONES static double squares(const float *v, size_t n)
{
	double sum[SQUARES] = {0}, total = 0;
	size_t i = 0;

	while (i + SQUARES * ROWS <= n) {
		float lane[SQUARES] = {0};

		for (size_t row = 0; row < ROWS; row++, i += SQUARES)
			for (size_t j = 0; j < SQUARES; j++)
				lane[j] += v[i + j] * v[i + j];
		for (size_t j = 0; j < SQUARES; j++)
			sum[j] += (double)lane[j];
	}
	for (; i < n; i++)
		sum[i % SQUARES] += (double)v[i] * (double)v[i];
	for (size_t j = 0; j < SQUARES; j++)
		total += sum[j];
	return total;
}

double vec_squares(const float *v, size_t n)
{
	struct subnormals before = subnormals_are_0();
	double sum = squares(v, n);

	subnormals_restore(before);
	return sum;
}

/* Computes a polynomial modulo 2^64 whose coefficients are the bits of the values. */
uint64_t vec_print(const float *v, size_t n)
{
	uint64_t lane[LANES] = {0}, print = n;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, &v[i], sizeof(bits));
		lane[i % LANES] = lane[i % LANES] * UINT64_C(0xd6e8feb86659fd93) + bits;
	}
	for (size_t j = 0; j < LANES; j++)
		print = print * UINT64_C(0x9e3779b97f4a7c15) + lane[j];
	return print;
}

void vec_copy(float *to, const float *from, size_t n)
{
	memcpy(to, from, n * sizeof(*to));
}

PS_CLONES void vec_scale(float *v, double by, size_t n)
{
	for (size_t i = 0; i < n; i++)
		v[i] = (float)(by * (double)v[i]);
}

PS_CLONES void vec_axpy(float *restrict y, double a, const float *restrict x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		y[i] = (float)((double)y[i] + a * (double)x[i]);
}

PS_CLONES void vec_sum(
	float *restrict to, const float *restrict x, double a, const float *restrict d, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (float)((double)x[i] + a * (double)d[i]);
}

PS_CLONES int vec_finite(const float *v, size_t n)
{
	int wild = 0;

	for (size_t i = 0; i < n; i++)
		wild |= !(fabsf(v[i]) <= MAX_SOUND);
	return !wild;
}
