/*
 * downpour.c - asynchronous stochastic gradient descent (Dean 2012, DistBelief): the server applies
 * each gradient when it arrives, unless its staleness exceeds a bound. This file also contains the
 * learning rate that depends on staleness (Zhang 2016, arXiv 1511.05950), the warm start by a
 * single worker, delay compensation (Zheng 2017, DC-ASGD), and the centre of EASGD (Zhang 2015),
 * whose "gradients" are distances.
 *
 * With a buffer of K (Nguyen 2022, FedBuff, arXiv 2106.06639), K gradients of any workers make one
 * update. Staleness scales the rate of gradient g_i by a factor s_i. The update is the mean of the
 * products s_i g_i. The optimizer gets the gradient sum(s_i g_i) / sum(s_i), and its learning rate
 * is multiplied by the mean of the factors s_i. Staleness therefore also slows down an optimizer
 * that divides by the size of gradients, such as adam. As for a step of sync, --lr-scaling raises
 * the rate with the number of gradients in the update. At the end of an epoch the server applies
 * the buffered gradients even if the buffer is not full. At a drain the gradients stay in the
 * buffer, and the checkpoint contains them.
 */
#include "server/core/downpour.h"
#include "common/clones.h"
#include "server/core/accumulator.h"
#include "server/core/backups.h"
#include "server/core/batch_ledger.h"
#include "server/core/blocks.h"
#include "server/core/core_state.h"
#include "server/core/later_epochs.h"
#include "server/core/leases.h"
#include "server/core/ledger.h"
#include "server/core/norms.h"
#include "server/core/pace.h"
#include "server/core/rights.h"
#include "server/core/run.h"
#include "server/core/sessions.h"
#include "server/core/store.h"
#include "server/core/vec.h"
#include "server/core/voices.h"
#include "server/core/workers.h"
#include <float.h>
#include <math.h>
#include <string.h>

/* factor of the old mean square at each update of the mean, in adaptive delay compensation */
#define DC_DECAY 0.95
#define DC_EPS   1e-7

/* a gradient does not count if its staleness exceeds this multiple of the number of live workers */
#define STALE_PER_WORKER ((uint64_t)32)

/* Returns the number of workers that the server has or expects back after a restart. */
static uint32_t count_members(const struct core *c)
{
	uint32_t members = 0;

	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		members += w->session.state == SESSION_LIVE ||
			   w->session.state == SESSION_SUSPECT ||
			   (w->session.state == SESSION_AWAY && !w->session.overdue);
	}
	return members;
}

/* Returns the version of the weights of push `p`. After a restart from a snapshot, a worker may
 * have versions that the server has not reached again yet. For a push of such a version, the
 * function returns the version with which this term began, so that a worker cannot keep a gradient
 * fresh by the false claim of a later version. A replay keeps its version, because its code proves
 * that an earlier term has accepted the push with this version. That version may have been a false
 * claim, too, but the version decides the age of a replay only if the worker is the only one
 * (age_of). */
static uint64_t version_of(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	int is_earlier = p->base_term < c->cfg.term && w->session.born_term < c->cfg.term &&
			 !rights_of_replay(c, w, p);

	return is_earlier && p->base_version > c->store.first_version ? c->store.first_version
								      : p->base_version;
}

/* Returns how many versions the server has made since the version of the weights of push `p`. */
static uint64_t downpour_staleness(
	const struct core *c, const struct worker *w, const struct msg_push *p)
{
	uint64_t version = version_of(c, w, p);

	return version < c->store.version ? c->store.version - version : 0;
}

/* Returns the minimum staleness with which a gradient of worker `w` counts. The version of a push
 * is a claim: a worker can ask for new weights just before it pushes, or name a version with which
 * it has not computed, and its gradient would count fully while those of honest workers are scaled
 * down for their staleness. The function therefore returns the number of pushes of other workers
 * since the newest accepted push of `w`, but at most as many as there are other workers: an honest
 * worker that pulls after each push has at least this staleness anyway, except after a pause.
 * Returns 0 without --norm-ratio, in a run without a data set, and with a robust rule, which gives
 * each worker the same weight. */
static uint64_t min_staleness(const struct core *c, const struct worker *w)
{
	uint64_t before = w->norms.accepted_no, pushes = c->stats.accepted;
	uint64_t versions = pushes > before ? pushes - before : 0;
	uint32_t live = core_live_workers(c), per_version = c->cfg.push.buffer_size;

	if (c->cfg.limits.norm_ratio <= 0 || c->cfg.training.epochs == 0 || c->accumulator.part)
		return 0;
	versions /= per_version > 1 ? per_version : 1;
	return live < 2 ? 0 : versions < live - 1 ? versions : live - 1;
}

/* Returns the age of push `p`. After a crash the workers send again what they have pushed since the
 * snapshot, one worker after the other. The versions that these replays make say nothing about the
 * age that a gradient had when it was accepted. Replays therefore count as gradients of workers of
 * equal speed: each of the other workers has made one version meanwhile. If the run has only one
 * worker, the number of versions is the true age, also for its replays. */
static struct age age_of(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	uint32_t members = rights_of_replay(c, w, p) ? count_members(c) : 0;

	if (members > 1)
		return (struct age){members - 1, members};
	uint64_t tau = downpour_staleness(c, w, p), min = min_staleness(c, w);

	tau = tau > min ? tau : min;
	/* no rule scales a gradient for a staleness up to 1, whatever the number of workers */
	return (struct age){tau, tau > 1 ? core_live_workers(c) : 1};
}

/* Returns 1 if a gradient with staleness `tau` is too old to count. While a worker that is 20 times
 * slower than the others computes one gradient, each of the others makes about 20 versions. The
 * default limit is higher than this number, so that the gradient of such a slow worker counts. */
static int is_too_stale(const struct core *c, uint64_t tau)
{
	if (c->cfg.limits.max_staleness)
		return tau > c->cfg.limits.max_staleness;
	if (c->cfg.training.mode == MODE_SSP)
		return 0; /* not too stale: ssp bounds the staleness by the workers' clocks */
	return tau > STALE_PER_WORKER && tau > STALE_PER_WORKER * core_live_workers(c);
}

/* Returns 1 if no server can have sent the weights of push `p` to w, because their version is newer
 * than the current one. The function returns 0, however, if the worker joined before this term and
 * its weights are of an earlier term: before a crash, the server may have sent a version that it
 * has not reached again since. */
static int is_impossible(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	return p->base_version > c->store.version &&
	       (p->base_term >= c->cfg.term || w->session.born_term >= c->cfg.term);
}

enum reject downpour_check(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	/* a push that was accepted before a crash does not become too old by the crash */
	if (rights_of_replay(c, w, p))
		return REJECT_NONE;
	if (is_impossible(c, w, p) || is_too_stale(c, downpour_staleness(c, w, p)))
		return REJECT_STALE;
	/* the rules of voices.h apply only to a buffer */
	if (c->cfg.push.buffer_size <= 1)
		return REJECT_NONE;
	return voices_permit(c, w, &p->work) ? REJECT_NONE : REJECT_WORK;
}

/* Returns `x` divided by the staleness as --staleness-scaling demands (enum staleness_scaling). */
static double scaled_for_staleness(const struct core *c, double x, struct age a)
{
	double age = (double)a.tau;

	if (c->cfg.rate.staleness_scaling == STALE_CONSTANT)
		return x;
	if (c->cfg.rate.staleness_scaling == STALE_RELATIVE)
		age /= a.workers > 1 ? a.workers : 1;
	return x / (age > 1 ? age : 1);
}

/* Returns the learning rate for a gradient of this age; see enum staleness_scaling. */
static double downpour_rate(const struct core *c, struct age a)
{
	if (c->cfg.training.mode == MODE_EASGD)
		return 1;
	return scaled_for_staleness(c, store_scaled_rate(c, 1, (double)a.tau), a);
}

/* The number N of members includes those that the server expects back after a restart. If they did
 * not count, the first member that returns would move the centre as if it were the only member. */
double easgd_part(const struct core *c)
{
	uint32_t members = count_members(c);

	return c->cfg.easgd.beta / (members ? members : 1);
}

/* ---- a buffer of several gradients ----------------------------------------------------------- */

static int has_buffer(const struct core *c)
{
	return c->accumulator.sum || c->accumulator.part;
}

/* Returns the weight in the buffer of a gradient of this age; for a fresh gradient this is 1. This
 * weight does not include the factor for the number of gradients in the update, which is not known
 * yet; flush_buffer applies that factor. */
static double buffer_weight(const struct core *c, struct age a)
{
	return scaled_for_staleness(c, store_scale(c, 1, (double)a.tau), a);
}

static void record(struct core *c, uint32_t epoch, uint64_t images, double loss_sum)
{
	c->stats.updates++;
	if (c->cfg.training.epochs == 0)
		return;
	batch_ledger_record(c, epoch, images, loss_sum);
	c->epoch[epoch].updates++;
}

static void flush_buffer(struct core *c)
{
	struct gradient_accumulator *a = &c->accumulator;
	/* a sum of gradients already grows with their number, so the rate must not grow, too */
	double gradients = c->cfg.push.sum ? 1 : accumulator_gradients(c);

	accumulator_mean(c, store_scratch(c));
	store_step(c, c->store.scratch, store_scaled_rate(c, gradients, 0) * a->weight / a->pushes);
	record(c, c->leases.epoch, a->images, a->loss_sum);
	accumulator_clear(c);
}

/* Returns 1 if a buffer with a robust rule waits for worker `w`, or has a gradient of it. In the
 * warm start, the buffer does not wait for the workers that get no lease yet. */
static int buffer_awaits(const struct core *c, const struct worker *w)
{
	if (!worker_is_active(w) || c->cfg.training.epochs == 0)
		return worker_is_active(w);
	return voices_has(c, w) || (voices_is_at_work(w) && !downpour_holds_back(c, w));
}

static uint32_t count_buffer_awaited(const struct core *c)
{
	uint32_t n = 0;

	if (accumulator_merges_keys(c))
		return workers_count_keys(c, buffer_awaits);
	for (uint32_t i = 0; i < c->n_slots; i++)
		n += (uint32_t)buffer_awaits(c, &c->worker[i]);
	return n;
}

/* Returns 1 if more than half of the awaited workers or keys have VOICE_PUSHES gradients each in
 * the buffer, so that the buffer does not wait any longer for those that have none. A minority
 * cannot end the wait by sending many pushes. */
static int has_waited_enough(const struct core *c)
{
	return 2 * accumulator_voices(c, VOICE_PUSHES) > count_buffer_awaited(c);
}

static int has_part(const struct core *c, uint32_t slot)
{
	const struct gradient_accumulator *a = &c->accumulator;

	for (uint32_t i = 0; i < a->parts; i++)
		if (a->part[i].batch == slot)
			return 1;
	return 0;
}

/* Marks as stalled the workers that should have pushed to the buffer, but have not. */
static void leave_behind(struct core *c)
{
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (!has_part(c, i))
			pace_left_behind(c, &c->worker[i]);
}

/* Returns 1 if the buffer is full. With a robust rule, a buffer is full if it has gradients of K
 * workers, or of all awaited workers if they are fewer than K, or if it has waited long enough for
 * the other workers (has_waited_enough). If the rule gets one gradient of each key, keys count
 * instead of workers. A buffer with all these gradients is not yet full if the rest of the epoch
 * cannot fill another one (voices_can_refill). */
static int is_full(struct core *c)
{
	const struct gradient_accumulator *a = &c->accumulator;
	uint32_t awaited, needed = c->cfg.push.buffer_size;

	if (!a->part)
		return a->pushes >= needed;
	/* not full: workers that are not back after a restart do not count as awaited, so the
	 * buffer would look full too early */
	if (c->run.recovering)
		return 0;
	awaited = count_buffer_awaited(c);
	if (accumulator_voices(c, 1) >= (awaited < needed ? awaited : needed))
		return voices_can_refill(c);
	if (!has_waited_enough(c))
		return 0;
	leave_behind(c);
	return 1;
}

void downpour_settle(struct core *c)
{
	struct gradient_accumulator *a = &c->accumulator;
	int last = c->cfg.training.epochs && a->images && c->leases.n_done == c->leases.n_batches;

	if (has_buffer(c) && a->pushes && (is_full(c) || last))
		flush_buffer(c);
}

/* Adds the images and the loss of push `p`, a replay of a later epoch, to the record of that epoch
 * at once. If the buffer counted them, they would be recorded in the epoch in training. */
static void count_at_once(struct core *c, const struct msg_push *p)
{
	batch_ledger_record(c, p->work.epoch, p->images, (double)p->loss * p->images);
	if (later_epochs_is_complete(c, p->work.epoch))
		flush_buffer(c);
}

static void count_staleness(struct core *c, struct worker *w, uint64_t tau)
{
	size_t bin = 0;

	for (uint64_t t = tau; t && bin < 15; t >>= 1)
		bin++;
	c->stats.staleness[bin]++;
	c->stats.staleness_sum += tau;
	w->counts.async_pushes++;
	w->counts.staleness_sum += tau;
}

/* ---- delay compensation: g + lambda * g * g * (w - the weights that g was computed at) ------- */

/* Returns the limit of the term that compensation adds to a value of magnitude `g`. If the run
 * compares norms, compensation at most doubles a value: otherwise a worker that puts the whole norm
 * of its gradient into one value, and waits until the weights have moved, could evade the limit of
 * its norm. A term that is larger than the gradient is also outside the range in which the
 * expansion of the gradient holds that the paper uses. */
static double largest_correction(const struct core *c, double g)
{
	return c->cfg.limits.norm_ratio > 0 ? g : (double)INFINITY;
}

static float next_square(float square, double g)
{
	return (float)(DC_DECAY * (double)square + (1 - DC_DECAY) * g * g);
}

static float compensated(const struct core *c, double lambda, double g, float now, float then)
{
	double max = largest_correction(c, fabs(g));
	double by = lambda * g * g * ((double)now - (double)then);

	return (float)(g + vec_smaller(vec_larger(by, -max), max));
}

/* This struct has the arguments for the compensation of a slice. Each pointer to floats points to
 * the number that belongs to the first value of the slice: g: the gradient; now, then: the current
 * weights, and those with which the gradient was computed; square: the mean squares; out: the
 * result. */
struct compensation {
	const struct core *core;
	const float *g, *now, *then;
	float *square, *out;
};

static struct compensation compensation_of(
	const struct core *c, const float *weights_then, const struct slice *s, float *out)
{
	return (struct compensation){.core = c,
		.g = s->data,
		.now = c->store.weights + s->offset,
		.then = weights_then + s->offset,
		.square = c->store.dc_square + s->offset,
		.out = out};
}

static double compensate_block(const void *arg, size_t from, size_t n)
{
	const struct compensation *k = arg;

	for (size_t i = from; i < from + n; i++) {
		double g = (double)k->g[i], lambda = k->core->cfg.dc.lambda;

		if (k->core->cfg.dc.kind == DC_ADAPTIVE) {
			k->square[i] = next_square(k->square[i], g);
			lambda /= sqrt((double)k->square[i] + DC_EPS);
		}
		k->out[i] = compensated(k->core, lambda, g, k->now[i], k->then[i]);
	}
	return 0;
}

static void compensate(struct core *c, const float *weights_then, struct slice *s, float *out)
{
	const struct compensation k = compensation_of(c, weights_then, s, out);
	const uint64_t n = store_n_trained(c, s);

	/* the values after the gradient are statistics of batches: copy them unchanged */
	memcpy(out + n, s->data + n, (s->count - n) * sizeof(*out));
	blocks_each(&c->blocks, n, compensate_block, &k);
	s->data = out;
}

/* Compensates all slices of push `p`. If no copy has the weights of the push, the gradient stays as
 * it is, and the push is counted as uncompensated. */
static void compensate_all(
	struct core *c, const struct worker *w, const struct msg_push *p, struct slices *s)
{
	const float *then = backups_find(c, w, p);
	float *scratch = store_scratch(c);

	c->stats.uncompensated += !then;
	for (uint32_t i = 0; i < s->n; i++) {
		compensate(c, then ? then : c->store.weights, &s->slice[i],
			scratch + s->slice[i].offset);
		/* 0: the peak and the sum of squares of the compensated values are unknown */
		s->slice[i].peak = 0;
		s->slice[i].squared = 0;
	}
}

static double compensated_peak_of_block(const void *arg, size_t from, size_t n)
{
	const struct compensation *k = arg;
	double peak = 0;

	for (size_t i = from; i < from + n; i++) {
		double g = (double)k->g[i], lambda = k->core->cfg.dc.lambda;

		if (k->core->cfg.dc.kind == DC_ADAPTIVE)
			lambda /= sqrt((double)next_square(k->square[i], g) + DC_EPS);
		double x = fabs((double)compensated(k->core, lambda, g, k->now[i], k->then[i]));
		if (!(x <= peak))
			peak = x <= (double)FLT_MAX ? x : (double)INFINITY;
	}
	return peak;
}

/* Returns the largest magnitude that compensate() would produce for slice `s`, or infinity if a
 * value is NaN. */
static double compensated_peak(
	const struct core *c, const float *weights_then, const struct slice *s)
{
	const struct compensation k = compensation_of(c, weights_then, s, NULL);

	return blocks_max(&c->blocks, store_n_trained(c, s), compensated_peak_of_block, &k);
}

/* Returns an upper bound of the largest magnitude after compensation, in constant time. Returns
 * infinity if corrections have no limit and the bound would need a magnitude that is unknown. */
static double compensated_bound(const struct core *c, const float *then, double peak)
{
	double lambda = c->cfg.dc.lambda / (c->cfg.dc.kind == DC_ADAPTIVE ? sqrt(DC_EPS) : 1);
	double largest = then == c->store.weights ? 0 : backups_peak(c, then),
	       by = (double)INFINITY;

	if (then == c->store.weights)
		return peak;
	if (c->store.measured && largest > 0)
		by = lambda * peak * peak * (c->store.reach.weight + largest);
	return 1.000001 * (peak + vec_smaller(by, largest_correction(c, peak)));
}

static int holds_update(struct core *c, double peak)
{
	struct age a = c->downpour.age;

	return has_buffer(c) ? accumulator_holds(c, buffer_weight(c, a), peak)
			     : store_holds(c, peak, downpour_rate(c, a));
}

/* Returns 1 if the gradient of push `p` after compensation meets the limits of a pushed gradient,
 * and all values stay finite when it is applied. */
static int compensated_fits(struct core *c, const struct worker *w, const struct msg_push *p)
{
	const float *found = backups_find(c, w, p), *then = found ? found : c->store.weights;
	double bound = compensated_bound(c, then, store_peak(c, &p->slices)), peak = 0;

	if (bound <= STORE_MAX_VALUE && holds_update(c, bound))
		return 1;
	for (uint32_t i = 0; i < p->slices.n; i++)
		peak = vec_larger(peak, compensated_peak(c, then, &p->slices.slice[i]));
	return peak <= STORE_MAX_VALUE && holds_update(c, peak);
}

int downpour_fits(struct core *c, const struct worker *w, const struct msg_push *p)
{
	c->downpour.age = age_of(c, w, p);
	if (c->cfg.dc.kind)
		return compensated_fits(c, w, p);
	return holds_update(c, store_peak(c, &p->slices));
}

static void collect(
	struct core *c, const struct worker *w, const struct slices *s, double weight, double scale)
{
	if (c->accumulator.part)
		accumulator_average(c, w, s, weight, scale);
	else
		accumulator_add_weighted(c, s, weight, scale);
}

void downpour_take(struct core *c, struct worker *w, const struct msg_push *p)
{
	struct age a = c->downpour.age;
	PS_UNINITIALIZED struct slices compensated;
	const struct slices *s = &p->slices;

	count_staleness(c, w, rights_of_replay(c, w, p) ? a.tau : downpour_staleness(c, w, p));
	w->norms.accepted_no = c->stats.accepted;
	/* a gradient that norms.h scales down is not compensated: compensation would use the values
	 * before they are scaled, so its result could exceed the limit of the norm */
	if (c->cfg.dc.kind && c->store.permitted >= 1) {
		compensated = p->slices;
		compensate_all(c, w, p, &compensated);
		s = &compensated;
	}
	if (has_buffer(c)) {
		collect(c, w, s, buffer_weight(c, a), c->store.permitted);
		if (later_epochs_contain(c, &p->work))
			count_at_once(c, p);
		else
			accumulator_count(c, p);
	} else {
		store_apply(c, s, downpour_rate(c, a), c->store.permitted);
		record(c, p->work.epoch, p->images, (double)p->loss * p->images);
	}
	if (c->backups.n > 0 && p->seq <= w->ledger.replay_target)
		backups_hold_replayed(c, w);
}

/* Returns the number of workers that may hold a training lease at the same time. The number is 1
 * during the first `warm_start_updates` updates (the warm start), until the weights have left their
 * random initial values. At the end of the warm start the number becomes 2, and then it grows by 1
 * after every `warm_start_ramp` updates. Without this slow increase, many workers would start at
 * the same weights, and their gradients would add up to one huge step. */
static uint64_t admitted(const struct core *c)
{
	uint64_t version = c->store.version, warm = c->cfg.leases.warm_start_updates;

	if (version < warm)
		return 1;
	if (warm == 0 || c->cfg.leases.warm_start_ramp == 0)
		return UINT64_MAX;
	return 2 + (version - warm) / c->cfg.leases.warm_start_ramp;
}

int downpour_holds_back(const struct core *c, const struct worker *w)
{
	uint64_t max = admitted(c), at_work = 0;

	if (max >= c->cfg.sessions.max_workers)
		return 0;
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *o = &c->worker[i];

		at_work += o != w && worker_is_active(o) && o->lease.grant.request &&
			   o->lease.grant.kind == GRANT_TRAIN &&
			   o->lease.grant.work.epoch == c->leases.epoch;
	}
	return at_work >= max;
}

static int downpour_may_begin(const struct core *c, const struct worker *w)
{
	return !downpour_holds_back(c, w);
}

static uint32_t downpour_limit(const struct core *c, const struct worker *w)
{
	return downpour_may_begin(c, w) ? c->cfg.leases.max_batches : 0;
}

const struct rules rules_downpour = {.check = downpour_check,
	.fits = downpour_fits,
	.take = downpour_take,
	.limit = downpour_limit,
	.may_begin = downpour_may_begin,
	.settle = downpour_settle};
