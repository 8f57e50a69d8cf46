/* accumulator.c - see accumulator.h. */
#include "server/core/accumulator.h"
#include "common/assert.h"
#include "common/clones.h"
#include "server/core/aggregate.h"
#include "server/core/blocks.h"
#include "server/core/core_state.h"
#include "server/core/sessions.h"
#include "server/core/store.h"
#include "server/core/vec.h"
#include "server/core/workers.h"
#include <math.h>
#include <string.h>

/* number of sums in a block: a block stays in the L1 cache while gradients are added to it */
#define FOLD_BLOCK ((size_t)1024)

static double weight_of(const struct core *c, uint32_t images)
{
	return c->cfg.push.sum ? 1 : (double)images;
}

/* Returns 1 if the mode is downpour or ssp. These two modes can have a buffer, in which the weight
 * of a gradient depends on its staleness, not on its number of images. */
static int is_buffer(const struct core *c)
{
	return c->cfg.training.mode == MODE_DOWNPOUR || c->cfg.training.mode == MODE_SSP;
}

/* Returns the factor that turns the weighted sum of `n` gradients into the gradient of the step.
 * `weight` is the sum of the weights of these gradients. */
static double factor_of(const struct core *c, double weight, uint32_t n)
{
	if (is_buffer(c))
		return (c->cfg.push.sum ? n : 1) / weight;
	return c->cfg.push.sum || weight <= 0 ? 1 : 1 / weight;
}

/* ---- robust rules: one gradient for each authentication key, the mean over its workers ------- */

/* A rule counts keys instead of workers only if there are at least this number of keys: of two
 * keys, neither is a majority */
#define KEYS_OF_A_MAJORITY 3

static int is_robust(const struct core *c)
{
	return c->cfg.push.aggregate != AGGREGATE_MEAN;
}

static int has_session(const struct core *c, const struct worker *w)
{
	(void)c;
	return w->session.state != SESSION_FREE && w->session.state != SESSION_DEAD;
}

int accumulator_merges_keys(const struct core *c)
{
	return is_robust(c) && workers_have_keys(c, KEYS_OF_A_MAJORITY, has_session);
}

/* Returns the index of the first part before part `i` that has the same key and at least `min`
 * images, or `i` if there is none. */
static uint32_t first_of_key(const struct gradient_accumulator *a, uint32_t i, uint32_t min)
{
	for (uint32_t k = 0; k < i; k++)
		if (a->part[k].images >= min &&
			workers_same_key(a->part[k].owner, a->part[i].owner))
			return k;
	return i;
}

uint32_t accumulator_voices(const struct core *c, uint32_t min)
{
	const struct gradient_accumulator *a = &c->accumulator;
	int keys = accumulator_merges_keys(c);
	uint32_t n = 0;

	for (uint32_t i = 0; i < a->parts; i++)
		n += a->part[i].images >= min && (!keys || first_of_key(a, i, min) == i);
	return n;
}

uint32_t accumulator_gradients(const struct core *c)
{
	return is_robust(c) ? accumulator_voices(c, 1) : c->accumulator.pushes;
}

static void set_owner(const struct core *c, struct part *p, const struct worker *w)
{
	if (is_robust(c))
		memcpy(p->owner, w->session.owner, sizeof(p->owner));
}

/* ---- one running sum ------------------------------------------------------------------------ */

struct addition {
	double *sum;
	const float *g;
	double weight;
};

static double add_block(const void *arg, size_t from, size_t n)
{
	const struct addition *a = arg;
	double *sum = a->sum, weight = a->weight;

	for (size_t j = from; j < from + n; j++)
		sum[j] += weight * (double)a->g[j];
	return 0;
}

static void add_to_sum(struct core *c, const struct slices *s, double weight, double scale)
{
	for (uint32_t i = 0; i < s->n; i++) {
		const struct slice *p = &s->slice[i];
		const uint64_t n = store_n_trained(c, p);
		double *sum = c->accumulator.sum + p->offset;
		const struct addition a = {sum, p->data, weight * scale},
				      statistics = {sum + n, p->data + n, weight};

		blocks_each(&c->blocks, n, add_block, &a);
		blocks_each(&c->blocks, p->count - n, add_block, &statistics);
	}
}

void accumulator_add(struct core *c, const struct msg_push *p)
{
	accumulator_add_weighted(c, &p->slices, weight_of(c, p->images), c->store.permitted);
	accumulator_count(c, p);
}

void accumulator_count(struct core *c, const struct msg_push *p)
{
	c->accumulator.loss_sum += (double)p->loss * p->images;
	c->accumulator.images += p->images;
}

/* Updates the bound a->peak for one more gradient of magnitude at most `peak`. For a robust rule,
 * the bound is the largest magnitude of any gradient, because such a rule never leaves the range of
 * its gradients. */
static void note_peak(struct core *c, double weight, double peak)
{
	struct gradient_accumulator *a = &c->accumulator;

	a->peak = is_robust(c) ? vec_larger(a->peak, peak) : a->peak + weight * peak;
}

void accumulator_add_weighted(struct core *c, const struct slices *s, double weight, double scale)
{
	struct gradient_accumulator *a = &c->accumulator;

	add_to_sum(c, s, weight, scale);
	a->weight += weight;
	note_peak(c, weight, store_peak(c, s));
	a->pushes++;
}

/* ---- one gradient of each batch ------------------------------------------------------------- */

/* Copies the slices to `to`, a vector of `n` values. Values that no slice covers become zero. */
static void copy_slices(float *to, const struct slices *s, size_t n)
{
	size_t end = 0;

	for (uint32_t i = 0; i < s->n; i++) {
		const struct slice *p = &s->slice[i];

		memset(to + end, 0, (p->offset - end) * sizeof(*to));
		memcpy(to + p->offset, p->data, p->count * sizeof(*to));
		end = p->offset + p->count;
	}
	memset(to + end, 0, (n - end) * sizeof(*to));
}

static void scale_values(struct core *c, float *g, size_t n, double scale)
{
	if (scale < 1)
		blocks_scale(&c->blocks, g, scale, n);
}

void accumulator_keep(struct core *c, const struct worker *w, const struct msg_push *p)
{
	struct gradient_accumulator *a = &c->accumulator;
	double weight = weight_of(c, p->images);
	uint32_t i = a->parts;

	PS_ASSERT(i < a->room);
	float *g = a->part[i].g;

	a->parts++;
	a->pushes++;
	for (; i > 0 && a->part[i - 1].batch > p->work.first; i--)
		a->part[i] = a->part[i - 1];
	a->part[i] = (struct part){p->work.first, p->images, p->loss, g, ""};
	set_owner(c, &a->part[i], w);
	/* invariant 4 of sync.c */
	PS_ASSERT(i == 0 || a->part[i - 1].batch < a->part[i].batch);
	PS_ASSERT(i + 1 == a->parts || a->part[i].batch < a->part[i + 1].batch);
	copy_slices(g, &p->slices, c->store.n);
	scale_values(c, g, c->store.trained, c->store.permitted);
	a->images += p->images;
	a->weight += weight; /* these weights are numbers of images, or 1, so their sum is exact in
			      * any order */
	note_peak(c, weight, store_peak(c, &p->slices));
}

void accumulator_limit_norms(struct core *c, double max)
{
	struct gradient_accumulator *a = &c->accumulator;

	for (uint32_t i = 0; i < a->parts; i++) {
		float *g = a->part[i].g;
		double norm = sqrt(blocks_squares(&c->blocks, g, c->store.trained));

		scale_values(c, g, c->store.trained, norm > max ? max / norm : 1);
	}
}

/* ---- one gradient of each worker ------------------------------------------------------------- */

static struct part *reset_part(
	const struct core *c, struct part *p, const struct worker *w, float *g)
{
	*p = (struct part){.batch = worker_id(c, w) - 1, .g = g};
	set_owner(c, p, w);
	memset(g, 0, c->store.n * sizeof(*g));
	return p;
}

/* Returns the part of worker `w`. If the worker has no part yet, the function inserts a zero part;
 * the parts stay sorted by slot. If the part of the slot belongs to an earlier worker with another
 * key, the function clears this part and gives it to `w`. */
static struct part *part_of(struct core *c, const struct worker *w)
{
	struct gradient_accumulator *a = &c->accumulator;
	uint32_t i = a->parts, slot = worker_id(c, w) - 1;
	float *g;

	for (uint32_t j = 0; j < a->parts; j++) {
		struct part *p = &a->part[j];

		if (p->batch == slot)
			return workers_differ_in_key(p->owner, w->session.owner)
				       ? reset_part(c, p, w, p->g)
				       : p;
	}
	g = a->part[a->parts++].g;
	for (; i > 0 && a->part[i - 1].batch > slot; i--)
		a->part[i] = a->part[i - 1];
	return reset_part(c, &a->part[i], w, g);
}

struct movement {
	float *mean;
	const float *to; /* NULL: the values move towards 0 */
	double part, scale;
};

static double move_block(const void *arg, size_t from, size_t n)
{
	const struct movement *m = arg;
	float *mean = m->mean;

	for (size_t i = from; i < from + n; i++)
		mean[i] += (float)(m->part *
				   (m->scale * (m->to ? (double)m->to[i] : 0) - (double)mean[i]));
	return 0;
}

/* Moves the `n` values of `mean` towards `scale` times `to`, by the fraction `part` of the way. If
 * `to` is NULL, moves them towards 0. */
static void move(
	const struct core *c, float *mean, const float *to, size_t n, double part, double scale)
{
	blocks_each(&c->blocks, n, move_block, &(struct movement){mean, to, part, scale});
}

void accumulator_average(
	struct core *c, const struct worker *w, const struct slices *s, double weight, double scale)
{
	struct gradient_accumulator *a = &c->accumulator;
	struct part *p = part_of(c, w);
	double by = 1 / (double)++p->images;
	size_t end = 0;

	for (uint32_t i = 0; i < s->n; i++) {
		const struct slice *slice = &s->slice[i];

		move(c, p->g + end, NULL, slice->offset - end, by, 1);
		const uint64_t n = store_n_trained(c, slice);

		move(c, p->g + slice->offset, slice->data, n, by, scale);
		move(c, p->g + slice->offset + n, slice->data + n, slice->count - n, by, 1);
		end = slice->offset + slice->count;
	}
	move(c, p->g + end, NULL, c->store.n - end, by, 1);
	a->weight += weight;
	a->pushes++;
	note_peak(c, weight, store_peak(c, s));
}

/* Writes the mean of the statistics of `n` gradients to `out`. No robust rule combines statistics:
 * the median of variances is not the variance of all images. */
static void mean_statistics(const struct core *c, const float *const *g, uint32_t n, float *out)
{
	for (size_t k = c->store.trained; k < c->store.n; k++) {
		double sum = 0;

		for (uint32_t i = 0; i < n; i++)
			sum += (double)g[i][k];
		out[k] = (float)(sum / (double)n);
	}
}

/* Combines the gradients of the parts by a robust rule, and the statistics of the parts by their
 * mean. If each key counts once, the function first replaces the first part of each key by the mean
 * of all parts of this key. The function adds the parts of a key in the order of the array
 * `part`. */
static void combine(struct core *c, float *out)
{
	struct gradient_accumulator *a = &c->accumulator;
	const float *g[WIRE_MAX_WORKERS];
	uint32_t merged[WIRE_MAX_WORKERS] = {0}, n = 0;
	int keys = accumulator_merges_keys(c);

	for (uint32_t i = 0; i < a->parts; i++) {
		uint32_t first = keys ? first_of_key(a, i, 1) : i;

		if (first == i)
			g[n++] = a->part[i].g;
		else
			move(c, a->part[first].g, a->part[i].g, c->store.n,
				1 / (double)(1 + ++merged[first]), 1);
	}
	PS_ASSERT(n == accumulator_voices(c, 1));
	aggregate(&c->blocks, c->cfg.push.aggregate, c->cfg.push.bad_workers, g, n,
		c->store.trained, out);
	mean_statistics(c, g, n, out);
	if (c->cfg.push.sum)
		blocks_scale(&c->blocks, out, n, c->store.trained);
}

/* Writes the weighted sums of values [at, at + n) of all gradients to `sum`. The function adds the
 * gradients in the order of their batches, so the order in which they arrived does not change the
 * sums. */
static void fold_block(const struct core *c, size_t at, size_t n, double *sum)
{
	const struct gradient_accumulator *a = &c->accumulator;

	memset(sum, 0, n * sizeof(*sum));
	for (uint32_t i = 0; i < a->parts; i++) {
		double weight = weight_of(c, a->part[i].images);
		const float *g = a->part[i].g + at;

		for (size_t j = 0; j < n; j++)
			sum[j] += weight * (double)g[j];
	}
}

/* ---- does the step stay finite? -------------------------------------------------------------- */

static double sum_peak(const double *sum, size_t n)
{
	double peak = 0;

	for (size_t i = 0; i < n; i++)
		peak = vec_larger(peak, fabs(sum[i]));
	return peak;
}

static double magnitude_peak(const struct core *c, const float *v, size_t n)
{
	PS_UNINITIALIZED struct slices s;

	s.n = 1;
	s.slice[0] = (struct slice){.count = n, .data = v};
	return store_peak(c, &s);
}

static void measure_sum(struct core *c)
{
	struct gradient_accumulator *a = &c->accumulator;
	PS_UNINITIALIZED double block[FOLD_BLOCK];

	a->measured = 1;
	a->peak = a->pushes && a->sum ? sum_peak(a->sum, c->store.n) : 0;
	for (uint32_t i = 0; is_robust(c) && i < a->parts; i++)
		a->peak = vec_larger(a->peak, magnitude_peak(c, a->part[i].g, c->store.n));
	for (size_t at = 0; !is_robust(c) && a->parts && at < c->store.n; at += FOLD_BLOCK) {
		size_t left = c->store.n - at, n = left < FOLD_BLOCK ? left : FOLD_BLOCK;

		fold_block(c, at, n, block);
		a->peak = vec_larger(a->peak, sum_peak(block, n));
	}
}

/* Returns 1 if all values stay finite when one more gradient is added, whose weight is `weight` and
 * whose magnitudes are at most `peak`. The learning rate can still change before the step, so the
 * function assumes the highest possible rate: schedules only lower the rate, and no rule multiplies
 * it by more than --max-workers or --buffer-size (accumulator_gradients). */
static int fits_sum(struct core *c, double weight, double peak)
{
	const struct gradient_accumulator *a = &c->accumulator;
	double mean = (a->peak + weight * peak) * factor_of(c, a->weight + weight, a->pushes + 1);
	double robust = vec_larger(a->peak, peak) * (c->cfg.push.sum ? a->parts + 1 : 1);
	double sum = is_robust(c) ? robust : mean;
	double max = vec_larger(c->cfg.sessions.max_workers, c->cfg.push.buffer_size);

	return store_holds(c, sum, c->cfg.rate.lr * max);
}

int accumulator_holds(struct core *c, double weight, double peak)
{
	if (c->accumulator.measured && fits_sum(c, weight, peak))
		return 1;
	measure_sum(c);
	return fits_sum(c, weight, peak);
}

int accumulator_fits(struct core *c, const struct worker *w, const struct msg_push *p)
{
	(void)w;
	return accumulator_holds(c, weight_of(c, p->images), store_peak(c, &p->slices));
}

/* ---- all methods ----------------------------------------------------------------------------- */

double accumulator_loss_sum(const struct core *c)
{
	const struct gradient_accumulator *a = &c->accumulator;
	double sum = a->loss_sum;

	for (uint32_t i = 0; i < a->parts; i++)
		sum += (double)a->part[i].loss * a->part[i].images;
	return sum;
}

/* Writes values [at, at + n) of the combined gradient to `g`. `sum` has the weighted sums of these
 * values. With cfg.push.sum, the result is the sum of the gradients. The values from store.trained
 * on are not gradients but statistics of batches (docs/models.md, "Batch normalisation"): there the
 * result is always the mean. */
static void mean_block(const struct core *c, float *g, const double *sum, size_t at, size_t n)
{
	const struct gradient_accumulator *a = &c->accumulator;
	const double by = factor_of(c, a->weight, a->pushes);
	const double by_running = a->weight > 0 ? 1 / a->weight : 1;

	const size_t left = at < c->store.trained ? c->store.trained - at : 0;
	const size_t trained = left < n ? left : n;

	for (size_t i = 0; i < trained; i++)
		g[at + i] = (float)(by * sum[i]);
	for (size_t i = trained; i < n; i++)
		g[at + i] = (float)(by_running * sum[i]);
}

struct combination {
	const struct core *core;
	float *g;
};

static double combine_block(const void *arg, size_t from, size_t n)
{
	const struct combination *m = arg;
	const struct core *c = m->core;
	PS_UNINITIALIZED double sum[FOLD_BLOCK];

	if (!c->accumulator.part) {
		mean_block(c, m->g, c->accumulator.sum + from, from, n);
		return 0;
	}
	for (size_t at = from; at < from + n; at += FOLD_BLOCK) {
		size_t left = from + n - at, part = left < FOLD_BLOCK ? left : FOLD_BLOCK;

		fold_block(c, at, part, sum);
		mean_block(c, m->g, sum, at, part);
	}
	return 0;
}

void accumulator_mean(struct core *c, float *g)
{
	if (is_robust(c)) {
		combine(c, g);
		return;
	}
	blocks_each(&c->blocks, c->store.n, combine_block, &(struct combination){c, g});
}

void accumulator_clear(struct core *c)
{
	struct gradient_accumulator *a = &c->accumulator;

	if (a->sum)
		memset(a->sum, 0, c->store.n * sizeof(*a->sum));
	a->weight = a->loss_sum = a->peak = 0;
	a->images = 0;
	a->pushes = a->parts = 0;
}
