/*
 * norms.h - compares the sizes of the workers' gradients. Honest workers compute gradients of the
 * same weights on batches of the same images, so the mean norms of their gradients agree, while the
 * norm of a single gradient varies. A worker whose mean differs sends something other than such
 * gradients: noise, values of a broken device, gradients multiplied by a factor, old gradients, or
 * zeros.
 *
 * Each worker has a moving mean of its norms. Each gradient is compared with two yardsticks: the
 * median of the workers' means, and the median of their newest norms. Norms change during a run, so
 * the core compares each gradient with the yardsticks at the time of its arrival. The size of a
 * gradient is 1 if its norm lies between the yardsticks; otherwise the size is the norm divided by
 * the nearer yardstick.
 *
 * The yardsticks that scale a gradient are those of all workers that have pushed and are not
 * stalled, so fast workers alone do not determine the medians. But the newest norm of a slow worker
 * can be old. For a rejection, the core therefore also computes the two yardsticks of the workers
 * that pushed recently (RECENT in norms.c). The smaller yardstick is then the smallest of these
 * four numbers, and the larger yardstick is the largest. With R = cfg.limits.norm_ratio:
 *
 * - a gradient of a size above CAP (1.5) is scaled down to CAP in a run with a data set. In runs
 *   without a data set and in mode sandblaster, the limit is R; in mode easgd there is no limit. In
 *   sync, a gradient is scaled when its step ends: its norm may be R times the median of the norms
 *   in the step, so neither the order of arrival nor the worker that computed a batch matters. The
 *   first updates of an honest run can make gradients thousands of times larger, and late in a run
 *   the gradient of a single image can be millions of times larger than the others. So a single
 *   gradient above the limit is not rejected, except in mode easgd;
 * - in a run with a data set, the gradients of a worker are rejected while the moving mean of their
 *   sizes is below 1/R or above R, once this mean contains at least MIN_SIZES (8) sizes. In this
 *   mean, a size above 2R counts as 2R, and a size below 1/(2R) as 1/(2R). Late in a run the norms
 *   of single images differ by factors of thousands, so the mean of a few sizes says nothing. This
 *   comparison of means does not happen in mode easgd, where the distance between a worker and the
 *   centre depends on the worker's speed. If the mean of an earlier process of the same key or name
 *   was outside these limits, the mean of a new process begins at the exceeded limit, with as many
 *   sizes as the earlier one had, but at most MIN_SIZES - 1. In this mean, a size is corrected for
 *   the number of images of the push (size_by_images in norms.c). The size above which a gradient
 *   is scaled is not corrected, so pushes of few images get no more influence on the weights: in
 *   downpour and ssp they are scaled to CAP, and in sandblaster the weight of a gradient is its
 *   number of images. In sync all pushes are of one batch;
 * - in a run without a data set, workers may train on different data. There, the gradients of a
 *   worker are rejected while the moving mean of their sizes is above SPIKE * R (25 R), once this
 *   mean contains at least MIN_SIZES sizes; no mean is too small. A size above 50 R counts as 50 R.
 *   A push that has only a part of the values, or only zeros, does not count in the means and
 *   medians, but is compared with them;
 * - with L-BFGS, which tries weights at which the gradients can be much larger or smaller than
 *   before, only gradients of the same pass are compared, because they have the same weights. The
 *   core compares them at the end of the pass: the size of a worker is the mean norm of its
 *   gradients in this pass, weighted with their numbers of images and divided by the nearer
 *   yardstick of the pass. It counts once per pass in the moving mean of the worker's sizes, and
 *   while this mean is below 1/R or above R, the gradients of the worker are rejected. No gradient
 *   is scaled, because a search compares exact sums. A new process of the same key or name
 *   continues the pass and the sizes of the earlier one;
 * - in mode easgd, a gradient is rejected if its size is above SPIKE * R (25 R);
 * - in a run with a data set, and if there are yardsticks for the gradient, the core rejects an old
 *   gradient: one that a key sends for the third time or more, although the weights have moved. If
 *   the weights have not moved, honest workers compute the same gradients again. Without keys, all
 *   workers with the same name count as one key, and so does a process without a name. The core
 *   compares a gradient with the last NORMS_RING (1024) ones of the run, accepted or repeated. So a
 *   key does not evade the rule if it sends several old gradients in turn, or sends them through
 *   several workers. Mode easgd does not have this rule either.
 *
 * If the workers that a median compares have three keys or more, one worker of each key counts in
 * the median: the one that pushed last. So a key with many workers does not decide alone. If the
 * compared workers have one or two keys although the workers of the run have three or more, there
 * are no yardsticks. Otherwise, if these workers and the sender of the gradient together have two
 * keys, the gradient may be scaled, but is not rejected for its size. If it could be rejected, the
 * key with more workers could get the workers of the other key excluded and that key quarantined.
 * If these workers and the sender all have the same key, they are compared with each other.
 *
 * No gradient is rejected by a comparison with other workers while fewer than three workers have
 * pushed recently. In a run with a data set, the yardstick is then the norm of the weights, but at
 * least the norm that they would have if each weight were 0.01. The core rejects only a gradient
 * whose norm exceeds SPIKE * R times this yardstick. With fewer than three live workers, the core
 * rejects no gradient for its norm, so these rules change nothing in a run that always has one or
 * two workers. If there are no yardsticks, but there were some earlier in the run, a gradient is
 * scaled down to R times the larger one of the last yardsticks (`yardstick` of struct fleet_norms).
 * Without this rule, the worker that comes back first after a restart could send a gradient of any
 * size. The stored yardstick slowly approaches the norms of the new gradients, in case the other
 * workers never come back. In a run without a data set, workers may train on different data, so
 * their means are not compared. If R is 0, the core compares no gradients at all.
 *
 * Promises:
 * (1) a group of fewer than half of the workers that have pushed (with three keys or more: of fewer
 *     than half of their keys) cannot get a gradient of the other workers scaled or rejected,
 *     however fast the group is (two_of_five_cannot_move_the_yardstick,
 *     a_key_with_many_slots_cannot_move_the_yardstick,
 *     two_fast_workers_of_five_get_no_other_one_rejected), and a single key cannot get the workers
 *     of another one excluded (one_key_cannot_exclude_another_one);
 * (2) a replay that was accepted before a crash counts, whatever its norm is
 *     (a_replay_counts_whatever_its_norm_is);
 * (3) after a restart, gradients are scaled even before the other workers are back
 *     (a_gradient_is_scaled_before_the_others_are_back).
 */
#ifndef SERVER_CORE_NORMS_H
#define SERVER_CORE_NORMS_H
#include "server/core/core.h"

struct worker;

/* This struct has the norms of the gradients of a worker slot. A snapshot has a separate section
 * for these norms. */
struct worker_norms {
	/* last: the newest norm; mean: moving mean of the norms or, with L-BFGS, mean of the norms
	 * in the pass; 0: no gradient yet */
	double last, mean;
	double size;      /* moving mean of the sizes of the worker's gradients */
	uint64_t n_sizes; /* number of gradients of this worker whose size was measured so far */
	/* number of pushes of all workers that were accepted before this worker's newest one */
	uint64_t push_no;
	/* In the asynchronous modes: number of pushes of all workers that were accepted up to and
	 * including this worker's newest accepted one; 0: none. downpour.c needs it. */
	uint64_t accepted_no;
	/* with L-BFGS: number of gradients in `mean`, and number of their images */
	uint64_t pass_pushes, pass_images;
};

#ifndef NORMS_RING       /* `make fuzz` defines a smaller limit */
#define NORMS_RING 1024u /* a gradient is compared with this number of newest gradients */
#endif

/* This struct describes the newest NORMS_RING gradients of the run that were accepted, or that
 * repeated an old one. The struct takes 24 KiB. Gradient number n has the index n % NORMS_RING. */
struct recent_gradients {
	/* number of gradients so far; while n < NORMS_RING, the entries from n on have no values */
	uint64_t n;
	double norm[NORMS_RING]; /* norm of each gradient */
	/* print_of the gradient; 0: not computed, because no recent gradient had the same norm */
	uint64_t print[NORMS_RING];
	/* If the print is not 0, a number that stands for the weights of the server when the
	 * gradient with this print arrived for the first time. */
	double place[NORMS_RING];
};

/* This struct has the norms of the run. The section of the norms in a snapshot contains it, too. */
struct fleet_norms {
	/* the larger yardstick of the newest push that was compared; 0: there was none */
	double yardstick;
	struct recent_gradients recent;
};

/* Memory for the workers from whose norms the medians are computed. Nothing in it outlasts a
 * comparison. Each array has room for max_workers workers. */
struct electorate {
	uint32_t n, older; /* older: number of workers whose newest push is too old */
	const struct worker **worker;
	double *value; /* the numbers whose median is computed */
	/* a hash table with the newest worker of each key; `mask` + 1 places, a power of two that
	 * is at least 2 * max_workers */
	const struct worker **newest;
	uint32_t mask;
};

/* Includes the norm and the size of the gradient of push `p`, which store_check has accepted, in
 * the means of worker `w`. Returns REJECT_NONE or REJECT_NORM. */
enum reject norms_check(struct core *c, struct worker *w, const struct msg_push *p);
/* Called at the end of a pass of L-BFGS, while the accumulator has the gradients of the pass:
 * includes the size of each worker's gradients in this pass in the mean of its sizes. */
void norms_end_pass(struct core *c);
/* Called when a new process joins, once for each slot of the same worker: `n` are the norms of the
 * new process, which are zero at first, and `of` are the norms of that slot. If the mean of the
 * sizes in `of` is not within the limits, the process begins as if it had sent as many gradients,
 * but at most MIN_SIZES - 1, whose size was the exceeded limit. */
void norms_inherit(const struct core *c, struct worker_norms *n, const struct worker_norms *of);
/* Returns the factor, at most 1, by which the gradient of push `p` is scaled. Called once for each
 * push that is accepted. */
double norms_scale(struct core *c, const struct msg_push *p);
/* Returns the norm with which an accepted gradient of norm `norm` may move the weights when its
 * push is replayed after a crash. In sync, this norm is at most R times the yardstick of the step
 * before. */
double norms_permitted(const struct core *c, double norm);
/* Returns 1 if no gradient of the run has been compared yet, although the run compares norms. */
int norms_need_comparison(const struct core *c);
/* Returns the maximum norm that a gradient may have in the step of sync that ends now; a gradient
 * with a larger norm is scaled down to it. `is_in_step` returns 1 for the workers whose gradient
 * the step has. */
double norms_limit_of_step(
	struct core *c, int (*is_in_step)(const struct core *, const struct worker *));

#endif
