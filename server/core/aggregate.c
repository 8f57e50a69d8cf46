/* aggregate.c - see aggregate.h. */
#include "server/core/aggregate.h"
#include <string.h>
#include "common/assert.h"
#include "server/core/vec.h"

/* ---- coordinate by coordinate ---------------------------------------------------------------- */

/* Sorts the values of one coordinate, one value of each gradient. Shell sort is fast enough,
 * because a step has few gradients. */
static void sort(float *v, uint32_t n)
{
	for (uint32_t gap = n / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11) {
		for (uint32_t i = gap; i < n; i++) {
			float x = v[i];
			uint32_t j = i;

			for (; j >= gap && v[j - gap] > x; j -= gap)
				v[j] = v[j - gap];
			v[j] = x;
		}
	}
}

/* Returns the mean of the sorted values without the `cut` smallest and largest ones. */
static float middle_mean(const float *v, uint32_t n, uint32_t cut)
{
	double sum = 0;

	for (uint32_t i = cut; i < n - cut; i++)
		sum += (double)v[i];
	return (float)(sum / (double)(n - 2 * cut));
}

static void trim(const float *const *g, uint32_t n, uint32_t cut, size_t n_values, float *out)
{
	float column[WIRE_MAX_WORKERS];

	for (size_t k = 0; k < n_values; k++) {
		for (uint32_t i = 0; i < n; i++)
			column[i] = g[i][k];
		sort(column, n);
		out[k] = middle_mean(column, n, cut);
	}
}

/* ---- Krum ------------------------------------------------------------------------------------ */

#define BLOCK ((size_t)4096)

static double squared_distance(const float *a, const float *b, size_t n)
{
	float difference[BLOCK];
	double sum = 0;

	for (size_t at = 0; at < n; at += BLOCK) {
		size_t m = n - at < BLOCK ? n - at : BLOCK;

		for (size_t k = 0; k < m; k++)
			difference[k] = a[at + k] - b[at + k];
		sum += vec_dot(difference, difference, m);
	}
	return sum;
}

/* Returns the sum of the `nearest` smallest of the n distances. */
static double sum_of_nearest(double *distance, uint32_t n, uint32_t nearest)
{
	double sum = 0;

	for (uint32_t i = 0; i < nearest; i++) {
		uint32_t min = i;

		for (uint32_t j = i + 1; j < n; j++)
			min = distance[j] < distance[min] ? j : min;
		double d = distance[min];
		distance[min] = distance[i];
		sum += d;
	}
	return sum;
}

static uint32_t krum(const float *const *g, uint32_t n, uint32_t bad, size_t n_values)
{
	double distance[WIRE_MAX_WORKERS] = {0}, best_sum = 0;
	uint32_t best = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t others = 0;

		for (uint32_t j = 0; j < n; j++)
			if (j != i)
				distance[others++] = squared_distance(g[i], g[j], n_values);
		double sum = sum_of_nearest(distance, others, n - bad - 2);
		if (i == 0 || sum < best_sum) {
			best = i;
			best_sum = sum;
		}
	}
	return best;
}

/* ---- all rules ------------------------------------------------------------------------------- */

void aggregate(enum aggregate_rule rule, uint32_t bad, const float *const *g, uint32_t n,
	size_t n_values, float *out)
{
	PS_ASSERT(n >= 1 && n <= WIRE_MAX_WORKERS);
	if (rule == AGGREGATE_KRUM && n >= 2 * bad + 3)
		memcpy(out, g[krum(g, n, bad, n_values)], n_values * sizeof(*out));
	else if (rule == AGGREGATE_TRIMMED && n > 2 * bad)
		trim(g, n, bad, n_values, out);
	else
		trim(g, n, (n - 1) / 2, n_values, out);
}
