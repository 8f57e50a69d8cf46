/* vec.c - see vec.h. */
#include "server/core/vec.h"
#include <math.h>
#include <string.h>
#include "common/clones.h"

#define LANES     8
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
