/* aggregate.c - see aggregate.h. */
#include "server/core/aggregate.h"
#include <string.h>
#include "common/assert.h"
#include "common/clones.h"
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

struct columns {
	const float *const *g;
	uint32_t n, cut;
	float *out;
};

static double trim_block(const void *arg, size_t from, size_t n_values)
{
	const struct columns *c = arg;
	PS_UNINITIALIZED float column[WIRE_MAX_WORKERS];

	for (size_t k = from; k < from + n_values; k++) {
		for (uint32_t i = 0; i < c->n; i++)
			column[i] = c->g[i][k];
		sort(column, c->n);
		c->out[k] = middle_mean(column, c->n, c->cut);
		/* invariant 1; rounding is monotonic, so it keeps the mean in this range */
		PS_ASSERT(column[c->cut] <= c->out[k] && c->out[k] <= column[c->n - 1 - c->cut]);
	}
	return 0;
}

static void trim(const struct blocks *b, const float *const *g, uint32_t n, uint32_t cut,
	size_t n_values, float *out)
{
	blocks_each(b, n_values, trim_block, &(struct columns){g, n, cut, out});
}

/* ---- Krum ------------------------------------------------------------------------------------ */

/* number of values whose differences are computed at once, on the stack */
#define PART ((size_t)4096)

struct two {
	const float *a, *b;
};

static double squared_distance(const void *arg, size_t from, size_t n)
{
	const struct two *two = arg;
	PS_UNINITIALIZED float difference[PART];
	double sum = 0;

	for (size_t at = from; at < from + n; at += PART) {
		size_t left = from + n - at, m = left < PART ? left : PART;

		for (size_t k = 0; k < m; k++)
			difference[k] = two->a[at + k] - two->b[at + k];
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

static uint32_t krum(
	const struct blocks *b, const float *const *g, uint32_t n, uint32_t bad, size_t n_values)
{
	double distance[WIRE_MAX_WORKERS] = {0}, best_sum = 0;
	uint32_t best = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t others = 0;

		for (uint32_t j = 0; j < n; j++)
			if (j != i)
				distance[others++] = blocks_sum(
					b, n_values, squared_distance, &(struct two){g[i], g[j]});
		double sum = sum_of_nearest(distance, others, n - bad - 2);
		if (i == 0 || sum < best_sum) {
			best = i;
			best_sum = sum;
		}
	}
	PS_ASSERT(best < n); /* invariant 2 */
	return best;
}

/* ---- all rules ------------------------------------------------------------------------------- */

void aggregate(const struct blocks *b, enum aggregate_rule rule, uint32_t bad,
	const float *const *g, uint32_t n, size_t n_values, float *out)
{
	PS_ASSERT(n >= 1 && n <= WIRE_MAX_WORKERS);
	if (rule == AGGREGATE_KRUM && n >= 2 * bad + 3)
		memcpy(out, g[krum(b, g, n, bad, n_values)], n_values * sizeof(*out));
	else if (rule == AGGREGATE_TRIMMED && n > 2 * bad)
		trim(b, g, n, bad, n_values, out);
	else
		trim(b, g, n, (n - 1) / 2, n_values, out);
}
