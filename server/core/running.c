/* running.c - see running.h. */
#include "server/core/running.h"
#include "server/core/core_state.h"
#include "server/core/store.h"
#include "server/core/vec.h"
#include <math.h>
#include <string.h>

#define MAJORITY 3 /* with fewer live workers, the limits do not apply */

static int has_limits(const struct core *c)
{
	return c->cfg.running.n > 0 && c->cfg.limits.statistics_ratio > 0 &&
	       core_reads_gradients(&c->cfg) && core_live_workers(c) >= MAJORITY;
}

/* The running statistics of a batchnorm: the `n` means from `mean` on, then their variances. */
struct norm_layer {
	size_t mean, n;
};

static struct norm_layer layer_of(const struct core *c, uint32_t i)
{
	return (struct norm_layer){
		c->store.trained + c->cfg.running.norm[i].first, c->cfg.running.norm[i].channels};
}

/* Finds the values [from, to) of slice `s` that are in [begin, begin + n). */
static void find_common(const struct slice *s, size_t begin, size_t n, size_t *from, size_t *to)
{
	size_t end = s->offset + s->count;

	*from = begin > s->offset ? begin : s->offset;
	*to = begin + n < end ? begin + n : end;
}

static int has_negative(const struct core *c, const struct slice *s)
{
	size_t from, to;

	for (uint32_t i = 0; i < c->cfg.running.n; i++) {
		const struct norm_layer l = layer_of(c, i);

		find_common(s, l.mean + l.n, l.n, &from, &to);
		for (size_t k = from; k < to; k++)
			if ((double)s->data[k - s->offset] <
				-(double)c->store.weights[k] - RUNNING_EPS)
				return 1;
	}
	return 0;
}

int running_is_wild(struct core *c, const struct slices *s)
{
	int wild = 0;

	if (!has_limits(c))
		return 0;
	store_fetch_weights(c);
	for (uint32_t i = 0; i < s->n && !wild; i++)
		wild = has_negative(c, &s->slice[i]);
	return wild;
}

static float limit_value(double value, double min, double max)
{
	return (float)vec_larger(min, vec_smaller(max, value));
}

/* Limits the statistics of batchnorm `l` that slice `s` has, and writes them to their places in
 * `out`, which has room for the running statistics of all batchnorms. */
static void limit_layer(
	const struct core *c, const struct slice *s, const struct norm_layer *l, float *out)
{
	const float *now = c->store.weights, *data = s->data;
	const double ratio = c->cfg.limits.statistics_ratio;
	const size_t first = c->store.trained;
	size_t from, to;

	find_common(s, l->mean, l->n, &from, &to);
	for (size_t k = from; k < to; k++) {
		double mean = (double)now[k];
		double deviation = sqrt(vec_larger(0, (double)now[k + l->n]) + RUNNING_EPS);
		double distance = ratio / 2 * deviation;

		out[k - first] =
			limit_value((double)data[k - s->offset], mean - distance, mean + distance);
	}
	find_common(s, l->mean + l->n, l->n, &from, &to);
	for (size_t k = from; k < to; k++) {
		double max = ratio * vec_larger(0, (double)now[k]) + RUNNING_EPS;

		out[k - first] = limit_value((double)data[k - s->offset], 0, max);
	}
}

/* Appends to `to` a slice like `s`, but with the `count` values `data`, which begin at `offset`. */
static void append_part(
	struct slices *to, const struct slice *s, size_t offset, size_t count, const float *data)
{
	struct slice *part = &to->slice[to->n++];

	*part = *s;
	part->offset = offset;
	part->count = count;
	part->data = data;
}

const struct msg_push *running_limit(
	struct core *c, const struct msg_push *p, struct msg_push *copy)
{
	const size_t first = c->store.trained;
	float *out = c->store.running;

	if (!has_limits(c))
		return p;
	store_fetch_weights(c); /* also completes the pending update, which may still read `out` */
	*copy = *p;
	copy->slices.n = 0;
	for (uint32_t i = 0; i < p->slices.n; i++) {
		const struct slice *s = &p->slices.slice[i];
		size_t end = s->offset + s->count, middle = first > s->offset ? first : s->offset;

		if (s->offset < first)
			append_part(&copy->slices, s, s->offset,
				(end < first ? end : first) - s->offset, s->data);
		/* without room for one slice more, the statistics of this push do not count */
		if (end <= first || copy->slices.n == WIRE_MAX_SLICES)
			continue;
		/* first copy all values; those that belong to no batchnorm have no limits */
		memcpy(out + (middle - first), s->data + (middle - s->offset),
			(end - middle) * sizeof(*out));
		for (uint32_t k = 0; k < c->cfg.running.n; k++) {
			const struct norm_layer l = layer_of(c, k);

			limit_layer(c, s, &l, out);
		}
		append_part(&copy->slices, s, middle, end - middle, out + (middle - first));
	}
	if (c->store.checked == &p->slices)
		/* the copy has the same sum of squares as `p`, because running statistics do not
		 * count in it */
		c->store.checked = &copy->slices;
	return copy;
}
