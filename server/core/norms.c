/* norms.c - see norms.h. */
#include "server/core/norms.h"
#include "common/siphash.h"
#include "server/core/accumulator.h"
#include "server/core/blocks.h"
#include "server/core/core_state.h"
#include "server/core/ledger.h"
#include "server/core/sessions.h"
#include "server/core/store.h"
#include "server/core/vec.h"
#include "server/core/workers.h"
#include <math.h>
#include <string.h>

/* in mode easgd, the maximum size of an accepted gradient is SPIKE * R; in a run without a data
 * set, this is the maximum of the mean of a worker's sizes */
#define SPIKE     25.0
#define NORM_PART (1 / 8.)  /* weight of the newest norm in a moving mean of norms */
#define SIZE_PART (1 / 32.) /* weight of the newest size in a moving mean of sizes */
#define CAP       1.5       /* in a run with a data set, the maximum size that is not scaled */
#define MIN_SIZES 8         /* a mean of fewer sizes is not compared */
/* the weights have moved if they have changed by more than this fraction of their norm */
#define MOVED 1e-4
/* Values that are not much larger than the smallest float have few bits, so gradients of such
 * values can be equal by chance. */
#define SMALLEST_NORM 1e-30
/* number of weights, at equal distances, that stand for all weights */
#define SAMPLE 1024u
/* for each live worker, this number of the newest accepted pushes counts as recent */
#define RECENT       8
#define SMALL_WEIGHT 0.01
#define MAJORITY_OF  3 /* minimum number of workers for a comparison */

/* ---- yardsticks ------------------------------------------------------------------------------ */

/* L-BFGS tries weights at which the gradients can be much larger or smaller than before, so only
 * gradients of the same pass, which all have the same weights, are compared. Returns 1 if the run
 * uses L-BFGS. */
static int compares_passes(const struct core *c)
{
	return c->cfg.optim.kind == OPTIM_LBFGS;
}

/* Accepted pushes are numbered; rejected ones do not count, because a worker may send any number of
 * them. Returns the number of the oldest push that counts as recent. If the newest push of a worker
 * is older, the norms of this worker are those of gradients of much older weights. */
static uint64_t oldest_push(const struct core *c)
{
	uint64_t window = RECENT * (uint64_t)core_live_workers(c);

	if (compares_passes(c))
		return c->stats.accepted - c->accumulator.pushes;
	return c->stats.accepted > window ? c->stats.accepted - window : 0;
}

static int may_vote_on_norms(const struct core *c, const struct worker *w)
{
	(void)c;
	return worker_is_active(w) || w->session.state == SESSION_SUSPECT;
}

/* Finds the workers whose newest push has the number `oldest` or a larger one. */
static struct electorate *find_norm_voters(const struct core *c, uint64_t oldest)
{
	struct electorate *e = c->electorate;

	e->n = e->older = 0;
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		if (!may_vote_on_norms(c, w) || w->norms.mean <= 0)
			continue;
		if (w->norms.push_no >= oldest)
			e->worker[e->n++] = w;
		else
			e->older++;
	}
	return e;
}

/* Returns the place of a key in the table e->newest: this place has the worker of the key that
 * pushed last, or NULL if the table does not have the key. The first eight characters of a key are
 * random, so keys rarely compete for the same place. */
static const struct worker **place_of_key(const struct electorate *e, const char *key)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < 8 && key[i]; i++)
		at = at * 85 + (unsigned char)key[i];
	for (;; at++) {
		const struct worker **place = &e->newest[at & e->mask];

		if (!*place || workers_same_key((*place)->session.owner, key))
			return place;
	}
}

/* Finds the worker of each key that pushed last, and returns the number of keys. A worker without a
 * key counts like a key. */
static uint32_t find_newest_of_keys(struct electorate *e)
{
	uint32_t keys = 0;

	for (uint32_t i = 0; i <= e->mask; i++)
		e->newest[i] = NULL;
	for (uint32_t i = 0; i < e->n; i++) {
		const struct worker *w = e->worker[i], *none = NULL;
		const struct worker **newest = &none;

		if (w->session.owner[0])
			newest = place_of_key(e, w->session.owner);
		keys += !*newest;
		if (!*newest || (*newest)->norms.push_no < w->norms.push_no)
			*newest = w;
	}
	return keys;
}

/* If the workers have at least MAJORITY_OF keys, keeps only the worker of each key that pushed
 * last, and returns 1. */
static int represent_keys(struct electorate *e)
{
	uint32_t n = 0;

	if (find_newest_of_keys(e) < MAJORITY_OF)
		return 0;
	for (uint32_t i = 0; i < e->n; i++) {
		const struct worker *w = e->worker[i];

		if (!w->session.owner[0] || *place_of_key(e, w->session.owner) == w)
			e->worker[n++] = w;
	}
	e->n = n;
	return 1;
}

/* Returns 1 if a gradient of worker `w` may be rejected because its norm differs from the norms of
 * the workers of `e`. This is so if these workers have at least three keys, if they all have the
 * key of `w`, or if the server has no keys. */
static int may_reject(const struct electorate *e, int has_majority, const struct worker *w)
{
	for (uint32_t i = 0; i < e->n && !has_majority; i++)
		if (workers_differ_in_key(e->worker[i]->session.owner, w->session.owner))
			return 0;
	return 1;
}

/* Returns the number that has the index `rank` when the n numbers v are sorted (FIND, Hoare 1961),
 * and changes the order of v. */
static double of_rank(double *v, uint32_t n, uint32_t rank)
{
	uint32_t from = 0, to = n - 1;

	while (from < to) {
		double pivot = v[from + (to - from) / 2];
		uint32_t i = from, k = to;

		for (;; i++, k--) {
			while (v[i] < pivot)
				i++;
			while (v[k] > pivot)
				k--;
			if (i >= k)
				break;
			double x = v[i];

			v[i] = v[k];
			v[k] = x;
		}
		/* no number up to k is above the pivot, and no number after k is below it */
		if (rank <= k)
			to = k;
		else
			from = k + 1;
	}
	return v[rank];
}

/* Returns the median of the numbers that `of` returns for the workers of `e`. */
static double median_of(const struct electorate *e, double (*of)(const struct worker *))
{
	for (uint32_t i = 0; i < e->n; i++)
		e->value[i] = of(e->worker[i]);
	return e->n ? of_rank(e->value, e->n, e->n / 2) : 0;
}

static double mean_of(const struct worker *w)
{
	return w->norms.mean;
}

static double last_of(const struct worker *w)
{
	return w->norms.last;
}

/* Returns the mean number of images of the pushes in the slot of `w`. A rejected push counts like a
 * push without images. */
static double images_per_push(const struct worker *w)
{
	const struct worker_norms *n = &w->norms;

	if (n->pass_pushes) /* with L-BFGS, whose rejected pushes are often those of a past pass */
		return (double)n->pass_images / (double)n->pass_pushes;
	return w->ledger.last_seq ? (double)w->ledger.images / (double)w->ledger.last_seq : 0;
}

/* A gradient whose norm lies between `low` and `high` has the size 1. The usual number of images of
 * a push lies between `few` and `many`. */
struct yardsticks {
	double low, high, few, many;
};

/* Finds the yardsticks for a gradient of worker `w`. If `w` is NULL, the gradient may be scaled but
 * not rejected. The yardsticks are those of the workers whose newest push has the number `oldest`
 * or a larger one. Returns 0 if there are too few such workers, if their norms may not reject
 * gradients of `w` (may_reject), if these workers have fewer than three keys although the run has
 * three or more, or if the smaller yardstick is 0. If `w` is NULL, y->few and y->many are 0. */
static int find_yardsticks(
	const struct core *c, uint64_t oldest, const struct worker *w, struct yardsticks *y)
{
	struct electorate *e = find_norm_voters(c, oldest);
	int has_majority = represent_keys(e);

	if (e->n < MAJORITY_OF || (w && !may_reject(e, has_majority, w)))
		return 0;
	if (!has_majority && e->worker[0]->session.owner[0] &&
		workers_have_keys(c, MAJORITY_OF, may_vote_on_norms))
		return 0;
	double mean = median_of(e, mean_of), last = median_of(e, last_of);

	y->low = vec_smaller(mean, last);
	y->high = vec_larger(mean, last);
	y->few = y->many = w ? median_of(e, images_per_push) : 0;
	return y->low > 0;
}

/* Finds the yardsticks with which a gradient of worker `w` may be rejected. Fast workers can be the
 * majority of the workers that have pushed recently, so the yardsticks of all workers count, too.
 * Returns 0 if there are no yardsticks. */
static int find_limits(const struct core *c, const struct worker *w, struct yardsticks *y)
{
	struct yardsticks all;

	if (!find_yardsticks(c, oldest_push(c), w, y))
		return 0;
	if (!compares_passes(c) && c->electorate->older && find_yardsticks(c, 0, w, &all)) {
		y->low = vec_smaller(y->low, all.low);
		y->high = vec_larger(y->high, all.high);
		y->few = vec_smaller(y->few, all.few);
		y->many = vec_larger(y->many, all.many);
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

/* Returns the size with which a gradient over `images` images counts when the server decides about
 * a rejection. Honest gradients over n and over N > n images consist of the same mean and of noise,
 * which falls with the root of the number of images, so the gradient over n images is up to
 * sqrt(N / n) times as large. A slow worker gets small leases and pushes fewer images than the
 * others, so without this correction it could be excluded. */
static double size_by_images(double size, double images, const struct yardsticks *y)
{
	if (size > 1 && images < y->many)
		return vec_larger(1, size * sqrt(images / y->many));
	if (size < 1 && images > y->few && y->few > 0)
		return vec_smaller(1, size * sqrt(images / y->few));
	return size;
}

static double mean_with(double mean, double x, double part)
{
	return mean > 0 ? mean + part * (x - mean) : x;
}

static int has_data_set(const struct core *c)
{
	return c->cfg.training.epochs > 0;
}

/* Returns 1 if all workers compute gradients of the same data at nearly the same weights. */
static int compares_means(const struct core *c)
{
	return has_data_set(c) && c->cfg.training.mode != MODE_EASGD;
}

/* Returns 1 if the norm of push `p` belongs in the means and medians. In a run without a data set,
 * a push may contain only a part of the gradient, whose norm says nothing about the norms of whole
 * gradients, and the gradients may be 0 most of the time. */
static int is_typical(const struct core *c, const struct msg_push *p, double norm)
{
	const uint64_t end = c->store.trained;
	uint64_t values = 0;

	for (uint32_t i = 0; i < p->slices.n; i++) {
		const struct slice *s = &p->slices.slice[i];
		uint64_t left = s->offset < end ? end - s->offset : 0;

		values += s->count < left ? s->count : left;
	}
	return has_data_set(c) || (norm > 0 && values == end);
}

/* Returns the maximum of the mean size of a worker's gradients. */
static double largest_mean(const struct core *c)
{
	return (has_data_set(c) ? 1 : SPIKE) * c->cfg.limits.norm_ratio;
}

/* Returns the minimum of the mean size of a worker's gradients; 0: there is none. */
static double smallest_mean(const struct core *c)
{
	return has_data_set(c) ? 1 / c->cfg.limits.norm_ratio : 0;
}

static void count_size(struct worker_norms *n, double size, double max)
{
	n->n_sizes++;
	double part = vec_larger(1 / (double)n->n_sizes, SIZE_PART);

	n->size = mean_with(n->size, vec_larger(vec_smaller(size, 2 * max), 1 / (2 * max)), part);
}

/* Checks a gradient with norm `norm` while there is no yardstick. The first gradients of a run are
 * computed with its initial weights, so the norm of the weights serves as the yardstick. A push can
 * make the weights almost 0, so the yardstick is at least the norm that the weights would have if
 * each were SMALL_WEIGHT. */
static enum reject check_early(struct core *c, double norm)
{
	const double limit = SPIKE * c->cfg.limits.norm_ratio;
	const float *w = c->store.weights;
	double squares = 0;

	if (!has_data_set(c) || core_live_workers(c) < MAJORITY_OF)
		return REJECT_NONE;
	store_fetch_weights(c);
	squares = blocks_dot(&c->blocks, w, w, c->store.trained);
	double min = SMALL_WEIGHT * SMALL_WEIGHT * (double)c->store.trained;

	return squares > 0 && norm > limit * sqrt(vec_larger(squares, min)) ? REJECT_NORM
									    : REJECT_NONE;
}

/* Returns a number that stands for the values of the gradient and for its sender. The sender is the
 * worker's key or, if the server has no keys, the worker's name or, if it has no name, its process.
 * The number depends on the sender because two workers can compute the same gradient, and the
 * second one must not count as a repetition of the first. The number also depends on the secret of
 * the run. */
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

/* Returns the number of entries of the ring that are in use. */
static size_t entries_of(const struct recent_gradients *r)
{
	return r->n < NORMS_RING ? (size_t)r->n : NORMS_RING;
}

/* Returns 1 if one of the recent gradients has the norm `norm`. */
static int has_known_norm(const struct recent_gradients *r, double norm)
{
	const size_t n = entries_of(r);
	int known = 0;

	for (size_t i = 0; i < n; i++)
		known |= r->norm[i] >= norm && r->norm[i] <= norm;
	return known && norm > SMALLEST_NORM;
}

/* This struct says where the present weights are. When the weights move, `at` changes by about the
 * distance of the move, except in rare directions. The weights count as moved if `at` has changed
 * by more than `far`. */
struct place {
	double at, far;
};

/* Computes the place of the present weights: a sum in which half of the sampled weights have the
 * opposite sign. */
static struct place place_of_weights(struct core *c)
{
	const size_t n = c->store.trained, step = n / SAMPLE + 1;
	const float *w = c->store.weights;
	struct place p = {0};
	double squares = 0;

	store_fetch_weights(c);
	for (size_t i = 0; i < n; i += step) {
		double x = (double)w[i];

		p.at += (uint64_t)i * 0x9e3779b97f4a7c15u >> 63 ? x : -x;
		squares += x * x;
	}
	p.far = MOVED * sqrt(squares);
	return p;
}

/* Searches the recent gradients for one that has this print, and that the server received when the
 * weights were at another place than `now`. Returns 1 if there is one. Sets *at to the place of the
 * weights when the server received the gradient with this print for the first time, as far as it
 * remembers. While the weights do not move, honest workers compute the same gradient of the same
 * batch again: in sync, because a rejected batch is computed again, and in all modes when the
 * learning rate is almost 0. */
static int find_for_other_weights(
	const struct recent_gradients *r, uint64_t print, struct place now, double *at)
{
	const size_t n = entries_of(r);

	*at = now.at;
	for (size_t i = 0; i < n; i++) {
		if (r->print[i] != print)
			continue;
		*at = r->place[i];
		if (fabs(now.at - *at) > now.far)
			return 1;
	}
	return 0;
}

static void remember_gradient(struct recent_gradients *r, double norm, uint64_t print, double place)
{
	const uint64_t i = r->n++ % NORMS_RING;

	r->norm[i] = norm;
	r->print[i] = print;
	r->place[i] = place;
}

/* Returns 1 if the gradients of a worker are rejected because of the mean of their sizes. */
static int mean_is_bad(const struct core *c, const struct worker_norms *n)
{
	return n->n_sizes >= MIN_SIZES && (n->size > largest_mean(c) || n->size < smallest_mean(c));
}

/* Checks the norm `norm` of a gradient over `images` images. `y` is NULL if there is no yardstick.
 * Only in runs with a data set has the server checked the number of images. */
static enum reject check_size(struct core *c, struct worker_norms *n, double norm, double images,
	const struct yardsticks *y)
{
	if (compares_passes(c))
		return mean_is_bad(c, n) ? REJECT_NORM : REJECT_NONE;
	if (!y)
		return check_early(c, norm);
	double size = size_of(norm, y);

	if (compares_means(c))
		size = size_by_images(size, images, y);
	count_size(n, size, largest_mean(c));
	int is_bad = c->cfg.training.mode == MODE_EASGD ? size > SPIKE * c->cfg.limits.norm_ratio
							: mean_is_bad(c, n);

	return is_bad ? REJECT_NORM : REJECT_NONE;
}

/* Includes a gradient over `images` images in the mean of its pass. Each gradient has its number of
 * images as its weight, as in the sum of the pass, so that a worker cannot hide a large one among
 * many small ones. */
static void note_in_pass(const struct core *c, struct worker_norms *n, double norm, uint64_t images)
{
	/* L-BFGS needs a data set, for which the core has checked that a push has images */
	double weight = images > 0 ? (double)images : 1;

	if (n->push_no < oldest_push(c))
		*n = (struct worker_norms){.size = n->size, .n_sizes = n->n_sizes};
	n->pass_pushes++;
	n->mean += (norm - n->mean) * weight / ((double)n->pass_images + weight);
	n->pass_images += images;
	n->last = norm;
	n->push_no = c->stats.accepted;
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

	if (compares_passes(c))
		note_in_pass(c, n, norm, p->images);
	else if (is_typical(c, p, norm)) {
		n->mean = mean_with(n->push_no < oldest_push(c) ? 0 : n->mean, norm, NORM_PART);
		n->last = norm;
		n->push_no = c->stats.accepted;
	}
	enum reject r = check_size(c, n, norm, p->images, compared ? &y : NULL);
	double place = 0;
	int again = print && find_for_other_weights(recent, print, place_of_weights(c), &place) &&
		    compared;

	/* remember a repeated gradient, too, so that it stays among the recent ones */
	if (compares_means(c) && (again || r == REJECT_NONE))
		remember_gradient(recent, norm, print, place);
	return again ? REJECT_NORM : r;
}

void norms_end_pass(struct core *c)
{
	const uint64_t oldest = oldest_push(c);
	struct yardsticks y;

	if (c->cfg.limits.norm_ratio <= 0 || !compares_passes(c))
		return;
	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];
		struct worker_norms *n = &w->norms;

		if (n->mean <= 0 || n->push_no < oldest || !find_yardsticks(c, oldest, w, &y))
			continue;
		double size = size_by_images(size_of(n->mean, &y), images_per_push(w), &y);

		count_size(n, size, largest_mean(c));
	}
}

void norms_inherit(const struct core *c, struct worker_norms *n, const struct worker_norms *of)
{
	const double max = largest_mean(c), min = smallest_mean(c);

	if (compares_passes(c) && of->pass_pushes && of->push_no >= oldest_push(c)) {
		if (of->push_no >= n->push_no)
			*n = *of; /* its pushes are in the sum of this pass */
		return;
	}
	if (of->n_sizes == 0 || (of->size < max && of->size > min))
		return;
	n->size = vec_larger(n->size, of->size < max ? min : max);
	if (n->n_sizes < of->n_sizes)
		n->n_sizes = of->n_sizes < MIN_SIZES ? of->n_sizes : MIN_SIZES - 1;
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

/* Called while there are no yardsticks: returns the factor by which the gradient of push `p` is
 * scaled so that its norm does not exceed R times the last yardstick of the run. If the norm is
 * typical, the function also moves the last yardstick towards it. */
static double follow(struct core *c, const struct msg_push *p)
{
	double last = c->norms.yardstick, max = last * c->cfg.limits.norm_ratio;
	double norm = norm_of(c, p);

	if (last <= 0)
		return 1;
	if (is_typical(c, p, norm))
		c->norms.yardstick = mean_with(last, vec_smaller(norm, max), SIZE_PART);
	return norm > max ? max / norm : 1;
}

double norms_scale(struct core *c, const struct msg_push *p)
{
	const double ratio = c->cfg.limits.norm_ratio;
	struct yardsticks y;

	if (ratio <= 0 || c->cfg.training.mode == MODE_EASGD || c->cfg.training.mode == MODE_SYNC ||
		compares_passes(c))
		return 1;
	if (!find_yardsticks(c, 0, NULL, &y))
		return follow(c, p);
	double size = size_of(norm_of(c, p), &y), max = largest_unscaled(c);

	c->norms.yardstick = y.high;
	return size > max ? max / size : 1;
}

double norms_permitted(const struct core *c, double norm)
{
	const double max = c->cfg.limits.norm_ratio * c->norms.yardstick;

	return c->cfg.training.mode == MODE_SYNC && max > 0 ? vec_smaller(norm, max)
							    : c->store.permitted * norm;
}

int norms_need_comparison(const struct core *c)
{
	return c->cfg.limits.norm_ratio > 0 && c->norms.yardstick <= 0;
}

double norms_limit_of_step(
	struct core *c, int (*is_in_step)(const struct core *, const struct worker *))
{
	const double ratio = c->cfg.limits.norm_ratio, before = c->norms.yardstick;
	struct electorate *e = c->electorate;
	struct yardsticks y;

	e->n = 0;
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (is_in_step(c, &c->worker[i]) && c->worker[i].norms.mean > 0)
			e->worker[e->n++] = &c->worker[i];
	int decides = represent_keys(e) || (e->n >= MAJORITY_OF && !e->worker[0]->session.owner[0]);
	double norm = median_of(e, last_of);
	if (decides && norm > 0)
		c->norms.yardstick = norm;
	else if (find_yardsticks(c, 0, NULL, &y))
		c->norms.yardstick = y.high;
	else if (before <= 0)
		return (double)INFINITY;
	else { /* the same steps as in follow() */
		if (norm > 0)
			c->norms.yardstick =
				mean_with(before, vec_smaller(norm, ratio * before), SIZE_PART);
		return ratio * before;
	}
	return ratio * c->norms.yardstick;
}
