/* norms.c - see norms.h. */
#include "server/core/norms.h"
#include "common/siphash.h"
#include "server/core/blocks.h"
#include "server/core/sessions.h"
#include "server/core/state.h"
#include "server/core/store.h"
#include "server/core/vec.h"
#include "server/core/workers.h"
#include <math.h>
#include <string.h>

#define SPIKE        25.0      /* without a comparison of means, SPIKE * R is the maximum size */
#define LARGEST      1e6       /* with a comparison of means, this is the maximum size */
#define NORM_PART    (1 / 8.)  /* weight of the newest norm in a mean */
#define SIZE_PART    (1 / 32.) /* weight of the newest size in a mean */
#define CAP          1.5       /* in a run with a data set, the maximum size that is not scaled */
#define MIN_SIZES    4         /* minimum number of sizes in a mean that is compared */
#define RECENT       8         /* number of accepted pushes per live worker that count as recent */
#define SMALL_WEIGHT 0.01
#define MAJORITY_OF  3 /* minimum number of workers for a comparison */

/* ---- yardsticks ------------------------------------------------------------------------------ */

/* Accepted pushes are numbered; rejected ones do not count, because a worker may send any number of
 * them. Returns the number of the oldest push that counts as recent. The norms of a worker whose
 * newest push is older are those of gradients of much older weights. */
static uint64_t oldest_push(const struct core *c)
{
	uint64_t window = RECENT * (uint64_t)core_live_workers(c);

	return c->stats.accepted > window ? c->stats.accepted - window : 0;
}

static int may_vote_on_norms(const struct core *c, const struct worker *w)
{
	(void)c;
	return worker_is_active(w) || w->session.state == SESSION_SUSPECT;
}

/* This struct lists the workers from whose norms the medians are computed. */
struct electorate {
	uint32_t n;
	const struct worker *worker[WIRE_MAX_WORKERS];
};

/* Finds the workers whose newest push has the number `oldest` or a larger one. */
static void find_norm_voters(const struct core *c, uint64_t oldest, struct electorate *e)
{
	e->n = 0;
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		const struct worker *w = &c->worker[i];

		if (may_vote_on_norms(c, w) && w->norms.mean > 0 && w->norms.push_no >= oldest)
			e->worker[e->n++] = w;
	}
}

/* Returns 1 if the worker is the one of its key that has pushed last. */
static int is_newest_of_key(const struct electorate *e, const struct worker *w)
{
	for (uint32_t i = 0; i < e->n; i++) {
		const struct worker *o = e->worker[i];

		if (o != w && workers_same_key(o->session.owner, w->session.owner) &&
			(o->norms.push_no > w->norms.push_no ||
				(o->norms.push_no == w->norms.push_no && o < w)))
			return 0;
	}
	return 1;
}

/* Keeps one worker of each key, if there are enough keys for a majority. Returns 1 if so. */
static int represent_keys(struct electorate *e)
{
	const struct worker *newest[WIRE_MAX_WORKERS];
	uint32_t n = 0;

	for (uint32_t i = 0; i < e->n; i++)
		if (is_newest_of_key(e, e->worker[i]))
			newest[n++] = e->worker[i];
	if (n < MAJORITY_OF)
		return 0;
	e->n = n;
	for (uint32_t i = 0; i < n; i++)
		e->worker[i] = newest[i];
	return 1;
}

/* Returns 1 if gradients of worker `w` may be rejected because those of the workers of `e` differ:
 * these workers are of three keys or more, or all of the key of `w`, or have no keys. */
static int may_reject(const struct electorate *e, int has_majority, const struct worker *w)
{
	for (uint32_t i = 0; i < e->n && !has_majority; i++)
		if (workers_differ_in_key(e->worker[i]->session.owner, w->session.owner))
			return 0;
	return 1;
}

/* Returns the median of what `of` returns for the workers. The order of equal values is the order
 * of the workers' slots. */
static double median_of(const struct electorate *e, double (*of)(const struct worker *))
{
	for (uint32_t i = 0; i < e->n; i++) {
		double x = of(e->worker[i]);
		uint32_t rank = 0;

		for (uint32_t k = 0; k < e->n; k++) {
			double y = of(e->worker[k]);

			rank += (uint32_t)(y < x || (k < i && y <= x));
		}
		if (rank == e->n / 2)
			return x;
	}
	return 0;
}

static double mean_of(const struct worker *w)
{
	return w->norms.mean;
}

static double last_of(const struct worker *w)
{
	return w->norms.last;
}

/* A gradient whose norm lies between `low` and `high` has the size 1. */
struct yardsticks {
	double low, high;
};

/* Finds the yardsticks for a gradient of worker `w`, or if `w` is NULL, for a gradient that is only
 * scaled, among the workers whose newest push has the number `oldest` or a larger one. Returns 0 if
 * there are too few such workers, if they may not reject gradients of `w`, if the run has three
 * keys or more but these workers have fewer, or if the smaller yardstick is 0. */
static int find_yardsticks(
	const struct core *c, uint64_t oldest, const struct worker *w, struct yardsticks *y)
{
	struct electorate e;

	find_norm_voters(c, oldest, &e);
	int has_majority = represent_keys(&e);
	if (e.n < MAJORITY_OF || (w && !may_reject(&e, has_majority, w)))
		return 0;
	if (!has_majority && e.worker[0]->session.owner[0] &&
		workers_have_keys(c, MAJORITY_OF, may_vote_on_norms))
		return 0;
	double mean = median_of(&e, mean_of), last = median_of(&e, last_of);

	y->low = vec_smaller(mean, last);
	y->high = vec_larger(mean, last);
	return y->low > 0;
}

/* Finds the yardsticks with which a gradient of worker `w` may be rejected. Fast workers can be
 * most of those that have pushed recently, so the yardsticks of all workers count, too. Returns 0
 * if there are none. */
static int find_limits(const struct core *c, const struct worker *w, struct yardsticks *y)
{
	struct yardsticks all;

	if (!find_yardsticks(c, oldest_push(c), w, y))
		return 0;
	if (find_yardsticks(c, 0, w, &all)) {
		y->low = vec_smaller(y->low, all.low);
		y->high = vec_larger(y->high, all.high);
	}
	return 1;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Returns the norm of the gradient of push `p`. The norm of a sum over batches grows with the
 * number of batches, so the function divides it by this number. */
static double norm_of(const struct core *c, const struct msg_push *p)
{
	uint32_t batches = c->cfg.push.sum && p->work.count ? p->work.count : 1;

	return store_norm(c, &p->slices) / batches;
}

static double size_of(double norm, const struct yardsticks *y)
{
	return norm > y->high ? norm / y->high : norm < y->low ? norm / y->low : 1;
}

static double mean_with(double mean, double x, double part)
{
	return mean > 0 ? mean + part * (x - mean) : x;
}

static int compares_means(const struct core *c)
{
	return c->cfg.training.epochs > 0 && c->cfg.training.mode != MODE_EASGD;
}

/* Returns the size above which a single gradient is rejected. */
static double largest_size(const struct core *c)
{
	const double ratio = c->cfg.limits.norm_ratio;

	return compares_means(c) ? vec_larger(LARGEST, ratio) : SPIKE * ratio;
}

static void count_size(struct worker_norms *n, double size, double ratio)
{
	n->n_sizes++;
	double part = vec_larger(1 / (double)n->n_sizes, SIZE_PART);

	n->size =
		mean_with(n->size, vec_larger(vec_smaller(size, 2 * ratio), 1 / (2 * ratio)), part);
}

/* Checks a gradient with norm `norm` while there is no yardstick. The first gradients of a run are
 * computed with its initial weights, so the norm of the weights serves as the yardstick. A push can
 * make the weights almost 0, so the yardstick is at least the norm of weights of SMALL_WEIGHT. */
static enum reject check_early(struct core *c, double norm)
{
	const double limit = SPIKE * c->cfg.limits.norm_ratio;
	const float *w = c->store.weights;
	double squares = 0;

	if (c->cfg.training.epochs == 0 || core_live_workers(c) < MAJORITY_OF)
		return REJECT_NONE;
	store_fetch_weights(c);
	squares = blocks_dot(&c->blocks, w, w, c->store.trained);
	double min = SMALL_WEIGHT * SMALL_WEIGHT * (double)c->store.trained;

	return squares > 0 && norm > limit * sqrt(vec_larger(squares, min)) ? REJECT_NORM
									    : REJECT_NONE;
}

/* Returns a number for the values of the gradient and the worker's key, its name without keys, or
 * its process without both. The number depends on the secret of the run. The number depends on the
 * sender, because two workers can compute the same gradient, and the second one must not count as a
 * repetition of the first. */
static uint64_t print_of(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	const struct worker_session *s = &w->session;
	const char *who = s->owner[0] ? s->owner : s->name;
	uint64_t word[2 + (WIRE_MAX_NAME + 1) / 8] = {store_print(c, &p->slices)};

	if (who[0])
		memcpy(&word[2], who, strlen(who));
	else
		word[1] = (uint64_t)worker_id(c, w) << 32 | s->incarnation;
	return siphash(c->cfg.proof_key, word, sizeof(word) / sizeof(word[0]));
}

/* Returns 1 if one of the recent gradients has the norm `norm`. */
static int has_known_norm(const struct recent_gradients *r, double norm)
{
	int known = 0;

	for (size_t i = 0; i < NORMS_RING; i++) /* an unused entry is 0 */
		known |= r->norm[i] >= norm && r->norm[i] <= norm;
	return known && norm > 0;
}

/* Finds the gradient with this print among the recent ones, if it was for weights of another
 * version than `*version`, which the function then sets to the version of the found gradient. A
 * gradient of the same version is no repetition: in sync, a rejected batch is computed again with
 * the same weights. Returns 1 if there is such a gradient. */
static int find_for_other_weights(
	const struct recent_gradients *r, uint64_t print, uint64_t *version)
{
	for (size_t i = 0; i < NORMS_RING; i++)
		if (r->print[i] == print && r->version[i] != *version) {
			*version = r->version[i];
			return 1;
		}
	return 0;
}

static void remember_gradient(
	struct recent_gradients *r, double norm, uint64_t print, uint64_t version)
{
	const uint64_t i = r->n++ % NORMS_RING;

	r->norm[i] = norm;
	r->print[i] = print;
	r->version[i] = version;
}

/* Checks the norm `norm` of a gradient of worker `w`. `y` is NULL if there is no yardstick. */
static enum reject check_size(
	struct core *c, struct worker_norms *n, double norm, const struct yardsticks *y)
{
	const double ratio = c->cfg.limits.norm_ratio;

	if (!y)
		return check_early(c, norm);
	double size = size_of(norm, y);

	count_size(n, size, ratio);
	if (size > largest_size(c))
		return REJECT_NORM;
	return compares_means(c) && n->n_sizes >= MIN_SIZES &&
			       (n->size > ratio || n->size < 1 / ratio)
		       ? REJECT_NORM
		       : REJECT_NONE;
}

/* Two gradients are the same if print_of returns the same number for both. The core computes this
 * number only for a gradient whose norm is among the recent ones. It therefore has no number for
 * the first gradient with a certain norm, and recognises a gradient only when it comes for the
 * third time. */
enum reject norms_check(struct core *c, struct worker *w, const struct msg_push *p)
{
	struct recent_gradients *recent = &c->norms.recent;
	struct worker_norms *n = &w->norms;
	struct yardsticks y;

	if (c->cfg.limits.norm_ratio <= 0)
		return REJECT_NONE;
	double norm = norm_of(c, p);
	int compared = find_limits(c, w, &y);
	uint64_t print = compares_means(c) && has_known_norm(recent, norm) ? print_of(c, w, p) : 0;

	n->mean = mean_with(n->push_no < oldest_push(c) ? 0 : n->mean, norm, NORM_PART);
	n->last = norm;
	n->push_no = c->stats.accepted;
	enum reject r = check_size(c, n, norm, compared ? &y : NULL);
	uint64_t version = p->base_version;
	int again = compared && print && find_for_other_weights(recent, print, &version);

	/* remember a repeated gradient, too, so that it stays among the recent ones */
	if (compares_means(c) && (again || r == REJECT_NONE))
		remember_gradient(recent, norm, print, version);
	return again ? REJECT_NORM : r;
}

void norms_inherit(const struct core *c, struct worker_norms *n, const struct worker_norms *of)
{
	const double ratio = c->cfg.limits.norm_ratio;

	if (of->n_sizes == 0 || (of->size < ratio && of->size > 1 / ratio))
		return;
	n->size = vec_larger(n->size, of->size < ratio ? 1 / ratio : ratio);
	n->n_sizes = MIN_SIZES - 1;
}

/* Returns the size above which a gradient is scaled down. In sandblaster, pushes have unequal
 * numbers of batches, and a gradient of fewer batches is larger, because it averages less noise
 * out. */
static double largest_unscaled(const struct core *c)
{
	const double ratio = c->cfg.limits.norm_ratio;
	int has_cap = compares_means(c) && c->cfg.training.mode != MODE_SANDBLASTER;

	return has_cap ? vec_smaller(CAP, ratio) : ratio;
}

/* Called while there are no yardsticks: returns the factor by which a gradient of norm `norm` is
 * scaled so that it does not exceed R times the last yardstick of the run. Also moves this
 * yardstick towards `norm`. */
static double follow(struct core *c, double norm)
{
	double last = c->norms.yardstick, max = last * c->cfg.limits.norm_ratio;

	if (last <= 0)
		return 1;
	c->norms.yardstick = mean_with(last, vec_smaller(norm, max), SIZE_PART);
	return norm > max ? max / norm : 1;
}

double norms_scale(struct core *c, const struct msg_push *p)
{
	const double ratio = c->cfg.limits.norm_ratio;
	struct yardsticks y;

	if (ratio <= 0 || c->cfg.training.mode == MODE_EASGD || c->cfg.training.mode == MODE_SYNC)
		return 1;
	if (!find_yardsticks(c, 0, NULL, &y))
		return follow(c, norm_of(c, p));
	double size = size_of(norm_of(c, p), &y), max = largest_unscaled(c);

	c->norms.yardstick = y.high;
	return size > max ? max / size : 1;
}

double norms_limit_of_step(
	struct core *c, int (*is_in_step)(const struct core *, const struct worker *))
{
	const double ratio = c->cfg.limits.norm_ratio, before = c->norms.yardstick;
	struct yardsticks y;
	struct electorate e = {0};

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++)
		if (is_in_step(c, &c->worker[i]) && c->worker[i].norms.mean > 0)
			e.worker[e.n++] = &c->worker[i];
	int decides = represent_keys(&e) || (e.n >= MAJORITY_OF && !e.worker[0]->session.owner[0]);
	double norm = median_of(&e, last_of);
	if (decides)
		c->norms.yardstick = norm;
	else if (find_yardsticks(c, 0, NULL, &y))
		c->norms.yardstick = y.high;
	else if (before <= 0)
		return (double)INFINITY;
	else { /* as in follow */
		if (norm > 0)
			c->norms.yardstick =
				mean_with(before, vec_smaller(norm, ratio * before), SIZE_PART);
		return ratio * before;
	}
	return ratio * c->norms.yardstick;
}
