/* checks.c - see checks.h. */
#include "server/core/checks.h"
#include "common/assert.h"
#include "server/core/batch_ledger.h"
#include "server/core/core_state.h"
#include "server/core/departure.h"
#include "server/core/effects.h"
#include "server/core/leases.h"
#include "server/core/pace.h"
#include "server/core/rights.h"
#include "server/core/run.h"
#include "server/core/sessions.h"
#include "server/core/vec.h"
#include "server/core/workers.h"
#include <math.h>
#include <string.h>

/* ---- the sample ------------------------------------------------------------------------------ */

static struct check *find_check(struct checks *k, uint32_t portion)
{
	for (uint32_t i = 0; i < k->n; i++)
		if (k->check[i].portion == portion)
			return &k->check[i];
	return NULL;
}

void checks_open(struct core *c)
{
	struct checks *k = &c->checks;
	uint32_t n = c->leases.n_portions, portions = c->cfg.leases.eval_checks;

	PS_ASSERT(k->n == 0); /* invariant 3 */
	k->ticks = 0;
	if (portions > n)
		portions = n;
	/* a repeated evaluation has another sample, because a worker that lies knows a part of the
	 * first sample by now */
	for (uint64_t draw = k->stats.outvoted << 32; k->n < portions; draw++) {
		uint32_t i = (uint32_t)(rights_sample(c, c->leases.epoch, draw) % n);

		/* if portion i is in the sample already, take the next one that is not */
		while (find_check(k, i))
			i = (i + 1) % n;
		k->check[k->n++] = (struct check){.portion = i};
	}
}

void checks_open_again(struct core *c)
{
	c->checks.n = 0;
	checks_open(c);
}

/* ---- votes ----------------------------------------------------------------------------------- */

static int has_voted(const struct core *c, const struct check *k, const struct worker *w)
{
	for (uint32_t i = 0; i < k->n; i++)
		if (k->vote[i].worker == worker_id(c, w) ||
			workers_same_key(k->vote[i].owner, w->session.owner))
			return 1;
	return 0;
}

int checks_have_begun(const struct core *c)
{
	return c->leases.evaluating && c->leases.n_evaluated == c->leases.n_portions;
}

static uint32_t images_in(const struct core *c, const struct check *k)
{
	uint32_t first = k->portion * c->leases.eval_size, left = core_eval_images(c) - first;

	return left < c->leases.eval_size ? left : c->leases.eval_size;
}

/* Returns 1 if the sums `x` and `y` over `n` images agree. Their difference may be the sum of two
 * parts: 5 % of the greater magnitude, and the larger of 2 and 0.5 % of `n`. */
static int sums_agree(double x, double y, uint32_t n)
{
	double max = vec_larger(fabs(x), fabs(y));

	return fabs(x - y) <= vec_larger(2, n / 200.0) + max / 20;
}

/* Returns 1 if the votes `a` and `b` agree. */
static int agree(const struct core *c, const struct check *k, uint32_t a, uint32_t b)
{
	const struct vote *v = &k->vote[a], *w = &k->vote[b];
	uint64_t x = v->correct, y = w->correct, far = x > y ? x - y : y - x;
	uint32_t n = images_in(c, k);

	if (far > 2 && 200 * far > n)
		return 0;
	for (size_t m = 0; m < MAX_METRICS; m++)
		if (!sums_agree(v->metric_sum[m], w->metric_sum[m], n))
			return 0;
	return sums_agree(v->loss_sum, w->loss_sum, n);
}

/* Returns 1 if each vote on `k` is of another worker and of another key. */
static int votes_differ(const struct check *k)
{
	for (uint32_t i = 0; i < k->n; i++)
		for (uint32_t j = 0; j < i; j++)
			if (k->vote[i].worker == k->vote[j].worker ||
				workers_same_key(k->vote[i].owner, k->vote[j].owner))
				return 0;
	return 1;
}

/* Removes check `k` from the list of open checks. */
static void close_check(struct checks *all, struct check *k)
{
	size_t after = (size_t)(&all->check[all->n] - (k + 1));

	PS_ASSERT(votes_differ(k)); /* invariant 1 */
	memmove(k, k + 1, after * sizeof(*k));
	all->n--;
}

/* Reports the votes of check `k`, which do not agree. `outvoted` is the index of the vote with
 * which both other votes disagree, or CHECK_VOTES if nobody is accused. */
static void report(struct core *c, const struct check *k, uint32_t outvoted)
{
	struct effect *e = effects_add(c, EFFECT_DISPUTED, 0);

	e->epoch = c->leases.epoch - 1;
	if (outvoted < CHECK_VOTES) {
		e->worker = k->vote[outvoted].worker;
		e->incarnation = k->vote[outvoted].incarnation;
	}
	e->dispute = (struct dispute){
		.first = k->portion * c->leases.eval_size, .count = images_in(c, k), .votes = k->n};
	for (uint32_t i = 0; i < k->n; i++) {
		e->dispute.worker[i] = k->vote[i].worker;
		e->dispute.correct[i] = k->vote[i].correct;
		e->dispute.loss[i] = k->vote[i].loss_sum;
	}
}

/* Adds `x` to *sum, unless the sum would not stay finite. */
static void add_finite(double *sum, double x)
{
	if (isfinite(*sum + x))
		*sum += x;
}

/* Adds vote `by` to the record of the epoch. */
static void record_vote(struct core *c, const struct check *k, uint32_t by)
{
	struct epoch_record *r = &c->epoch[c->leases.epoch - 1];
	const struct vote *v = &k->vote[by];

	r->eval_done += images_in(c, k);
	r->eval_correct += v->correct;
	add_finite(&r->eval_loss_sum, v->loss_sum);
	for (size_t m = 0; m < MAX_METRICS; m++)
		add_finite(&r->metric_sum[m], v->metric_sum[m]);
}

static void accuse(struct core *c, const struct check *k, uint32_t outvoted)
{
	const struct vote *v = &k->vote[outvoted];
	struct worker *w = worker_find(c, v->worker);

	if (w && (w->session.incarnation != v->incarnation || w->quarantine.excluded ||
			 w->session.state == SESSION_FREE || w->session.state == SESSION_DEAD))
		w = NULL;
	c->checks.stats.outvoted++;
	report(c, k, outvoted);
	quarantine_strike(c, w, v->owner, v->name);
}

/* Decides on check `k`, which has three votes. The first two votes do not agree. */
static void count_votes(struct core *c, const struct check *k)
{
	int first = agree(c, k, 0, 2), second = agree(c, k, 1, 2);

	if (first == second) { /* the third vote agrees with both others, or with none */
		c->checks.stats.disputed++;
		report(c, k, CHECK_VOTES);
		record_vote(c, k, 0);
		return;
	}
	record_vote(c, k, second ? 1 : 0);
	accuse(c, k, second ? 0 : 1);
}

int checks_hold(const struct core *c, uint32_t i)
{
	for (uint32_t n = 0; n < c->checks.n; n++)
		if (c->checks.check[n].portion == i)
			return 1;
	return 0;
}

int checks_on_result(struct core *c, struct worker *w, uint32_t i, const struct msg_result *r)
{
	struct check *k = find_check(&c->checks, i);
	struct vote *v;

	if (!k || has_voted(c, k, w) || (k->n > 0 && !checks_have_begun(c)))
		return 0;
	PS_ASSERT(k->n < CHECK_VOTES);
	v = &k->vote[k->n++];
	*v = (struct vote){.worker = worker_id(c, w),
		.incarnation = w->session.incarnation,
		.correct = r->correct,
		.loss_sum = r->loss_sum};
	memcpy(v->owner, w->session.owner, sizeof(v->owner));
	PS_ASSERT(votes_differ(k)); /* invariant 1 */
	memcpy(v->name, w->session.name, sizeof(v->name));
	memcpy(v->metric_sum, r->metric_sum, sizeof(v->metric_sum));
	if (k->n == 1)
		return 0;
	w->lease.since_results = 0;
	if (k->n == 2 && !agree(c, k, 0, 1))
		return 1; /* the check stays open: a third worker's vote decides it */
	if (k->n == 2) {
		c->checks.stats.agreed++;
		record_vote(c, k, 0);
	} else {
		count_votes(c, k);
	}
	close_check(&c->checks, k);
	return 1;
}

/* ---- the workers that check ------------------------------------------------------------------ */

static int may_check(const struct core *c, const struct check *k, const struct worker *w)
{
	return worker_is_active(w) && worker_is_of_run(c, w) && !has_voted(c, k, w);
}

/* Returns 1 if a worker that is not late computes the portion of check `k`. */
static int is_in_progress(const struct core *c, const struct check *k)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		if (!w->pace.late && may_check(c, k, w) && batch_ledger_holds(c, w, 1, k->portion))
			return 1;
	}
	return 0;
}

int checks_find(const struct core *c, const struct worker *w, uint32_t *i)
{
	for (uint32_t n = 0; n < c->checks.n && checks_have_begun(c); n++) {
		const struct check *k = &c->checks.check[n];

		if (!may_check(c, k, w) || is_in_progress(c, k))
			continue;
		*i = k->portion;
		return 1;
	}
	return 0;
}

static int is_hopeless(const struct core *c, const struct check *k)
{
	if (c->checks.ticks >= CHECK_TICKS)
		return 1;
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (may_check(c, k, &c->worker[i]))
			return 0;
	return !c->run.recovering;
}

int checks_settle(struct core *c)
{
	struct checks *all = &c->checks;

	for (uint32_t i = all->n; i-- > 0;) {
		struct check *k = &all->check[i];

		if (!is_hopeless(c, k))
			continue;
		if (k->n > 1) {
			all->stats.disputed++;
			report(c, k, CHECK_VOTES);
		} else {
			all->stats.unchecked++;
		}
		record_vote(c, k, 0);
		close_check(all, k);
	}
	PS_ASSERT(all->n == 0 || all->ticks < CHECK_TICKS); /* invariant 2 */
	return all->n == 0;
}

/* Returns 1 if the evaluation must still wait for a vote on check `k`. This is so while a worker
 * that is not late computes the portion of `k`, or computes work that it got before the checks
 * began: when this work is done, the worker asks for a check. A worker that takes a portion again
 * and again without a vote does not count. */
static int expects_vote(const struct core *c, const struct check *k)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];
		uint32_t max = (uint32_t)batch_ledger_holds(c, w, 1, k->portion);

		if (may_check(c, k, w) && w->lease.grant.request && w->pace.left && !w->pace.late &&
			w->lease.since_results <= max)
			return 1;
	}
	return 0;
}

void checks_tick(struct core *c)
{
	int expected = 0;

	if (!checks_have_begun(c) || c->run.recovering)
		return;
	for (uint32_t i = 0; i < c->checks.n; i++)
		expected |= expects_vote(c, &c->checks.check[i]);
	c->checks.ticks += !expected;
}

int checks_fit(const struct core *c)
{
	const struct checks *all = &c->checks;
	const struct leases *l = &c->leases;

	for (uint32_t i = 0; i < all->n; i++) {
		const struct check *k = &all->check[i];

		if (!l->evaluating || k->portion >= l->n_portions ||
			(k->n > 0) != (l->portion[k->portion] == BATCH_DONE))
			return 0;
		for (uint32_t j = 0; j < i; j++)
			if (all->check[j].portion == k->portion)
				return 0;
		if (!votes_differ(k))
			return 0;
		for (uint32_t v = 0; v < k->n; v++)
			if (k->vote[v].worker == 0 || !isfinite(k->vote[v].loss_sum) ||
				k->vote[v].correct > images_in(c, k))
				return 0;
	}
	return 1;
}

const struct check_stats *core_check_stats(const struct core *c)
{
	return &c->checks.stats;
}
