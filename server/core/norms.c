/* norms.c - see norms.h. */
#include "server/core/norms.h"
#include "server/core/blocks.h"
#include "server/core/sessions.h"
#include "server/core/state.h"
#include "server/core/store.h"
#include "server/core/vec.h"
#include "server/core/workers.h"
#include <math.h>

#define SPIKE       25.0      /* without a comparison of means, the largest size is SPIKE * R */
#define LARGEST     1e6       /* with a comparison of means, the largest size */
#define NORM_PART   (1 / 8.)  /* weight of the newest norm in a mean */
#define SIZE_PART   (1 / 32.) /* weight of the newest size in a mean */
#define MIN_SIZES   4         /* minimum number of sizes in a mean that is compared */
#define RECENT      8         /* number of recent pushes for each live worker */
#define MAJORITY_OF 3         /* minimum number of workers for a comparison */

/* ---- yardsticks ------------------------------------------------------------------------------ */

/* Pushes are numbered. Returns the number of the oldest push that counts as recent. The medians
 * leave out a worker whose newest push is older, because its norms are those of gradients of much
 * older weights. */
static uint64_t oldest_push(const struct core *c)
{
	uint64_t window = RECENT * (uint64_t)core_live_workers(c);

	return c->stats.pushes > window ? c->stats.pushes - window : 0;
}

static int is_recent(const struct worker *w, uint64_t oldest)
{
	return (w->session.state == SESSION_LIVE || w->session.state == SESSION_SUSPECT) &&
	       w->norms.mean > 0 && w->norms.push_no >= oldest;
}

/* Returns the median of what `of` returns for the `n` recent workers. The order of equal values is
 * the order of the workers' slots. */
static double median_of(
	const struct core *c, uint64_t oldest, uint32_t n, double (*of)(const struct worker *))
{
	const struct worker *end = c->worker + c->cfg.sessions.max_workers;

	for (const struct worker *w = c->worker; w < end; w++) {
		uint32_t rank = 0;

		if (!is_recent(w, oldest))
			continue;
		for (const struct worker *o = c->worker; o < end; o++)
			rank += (uint32_t)(is_recent(o, oldest) &&
					   (of(o) < of(w) || (o < w && of(o) <= of(w))));
		if (rank == n / 2)
			return of(w);
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

/* Sets *low and *high to the smaller and the larger yardstick. Returns 0 if too few workers pushed
 * recently, or if the smaller yardstick is 0. */
static int find_yardsticks(const struct core *c, double *low, double *high)
{
	uint64_t oldest = oldest_push(c);
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++)
		n += (uint32_t)is_recent(&c->worker[i], oldest);
	if (n < MAJORITY_OF)
		return 0;
	double mean = median_of(c, oldest, n, mean_of), last = median_of(c, oldest, n, last_of);

	*low = vec_smaller(mean, last);
	*high = vec_larger(mean, last);
	return *low > 0;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Returns the norm of the gradient of push `p`. The norm of a sum over batches grows with the
 * number of batches, so the function divides it by this number. */
static double norm_of(const struct core *c, const struct msg_push *p)
{
	uint32_t batches = c->cfg.push.sum && p->work.count ? p->work.count : 1;

	return store_norm(c, &p->slices) / batches;
}

static double size_of(double norm, double low, double high)
{
	return norm > high ? norm / high : norm < low ? norm / low : 1;
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
 * computed with its initial weights, so the norm of the weights serves as the yardstick. */
static enum reject check_early(struct core *c, double norm)
{
	const double limit = SPIKE * c->cfg.limits.norm_ratio;
	const float *w = c->store.weights;
	double squares = 0;

	if (c->cfg.training.epochs == 0 || core_live_workers(c) < MAJORITY_OF)
		return REJECT_NONE;
	store_complete(c);
	squares = blocks_dot(&c->blocks, w, w, c->store.trained);
	return squares > 0 && norm > limit * sqrt(squares) ? REJECT_NORM : REJECT_NONE;
}

/* Returns 1 if the worker has sent its last gradient again, although it had other weights. Remembers
 * the gradient. The values are compared by a number that is computed only if two norms in a row are
 * equal: a gradient is therefore found when it comes for the third time. */
static int is_the_last_again(struct worker_norms *n, const struct msg_push *p, double norm)
{
	int is_equal = norm > 0 && norm >= n->last && norm <= n->last;
	uint64_t print = is_equal ? store_print(&p->slices) : 0;
	int again = is_equal && print == n->print && p->base_version != n->version;

	n->print = print;
	if (!again) /* in sync, the worker gets a rejected batch again, at the same weights: the old
		     * gradient must be rejected again */
		n->version = p->base_version;
	return again;
}

enum reject norms_check(struct core *c, struct worker *w, const struct msg_push *p)
{
	const double ratio = c->cfg.limits.norm_ratio;
	struct worker_norms *n = &w->norms;
	double low, high;

	if (ratio <= 0)
		return REJECT_NONE;
	double norm = norm_of(c, p);
	int compared = find_yardsticks(c, &low, &high);
	double size = compared ? size_of(norm, low, high) : 1;
	int again = is_the_last_again(n, p, norm);

	n->mean = mean_with(n->push_no < oldest_push(c) ? 0 : n->mean, norm, NORM_PART);
	n->last = norm;
	n->push_no = c->stats.pushes;
	if (!compared)
		return check_early(c, norm);
	count_size(n, size, ratio);
	if (size > largest_size(c) || (again && compares_means(c)))
		return REJECT_NORM;
	return compares_means(c) && n->n_sizes >= MIN_SIZES &&
			       (n->size > ratio || n->size < 1 / ratio)
		       ? REJECT_NORM
		       : REJECT_NONE;
}

double norms_scale(const struct core *c, const struct msg_push *p)
{
	const double ratio = c->cfg.limits.norm_ratio;
	double low, high;

	if (ratio <= 0 || c->cfg.training.mode == MODE_EASGD || !find_yardsticks(c, &low, &high))
		return 1;
	double size = size_of(norm_of(c, p), low, high);

	return size > ratio ? ratio / size : 1;
}
