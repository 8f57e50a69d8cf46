/*
 * norms.h - compares the sizes of the workers' gradients. Honest workers compute gradients of the
 * same weights on batches of the same images, so the mean norms of their gradients agree, while the
 * norm of a single gradient varies. A worker whose mean differs sends something other than such
 * gradients: noise, values of a broken device, gradients times a factor, old gradients again, or
 * zeros.
 *
 * Each worker has a moving mean of its norms. Each gradient is compared with two yardsticks: the
 * median of the workers' means, and the median of their newest norms. Norms change during a run, so
 * the core compares each gradient with the yardsticks at the time of its arrival. The size of a
 * gradient is 1 if its norm lies between the yardsticks; otherwise the size is the norm divided by
 * the nearer yardstick.
 *
 * The yardsticks that scale a gradient are those of all workers that have pushed and are not
 * stalled, so fast workers alone do not determine the medians. But the norms of slow workers are
 * old. For a rejection, the core therefore also computes the two yardsticks of the workers that
 * pushed recently (RECENT in norms.c). The smaller yardstick is then the smallest of these four
 * numbers, and the larger yardstick is the largest. With R = cfg.limits.norm_ratio:
 *
 * - a gradient of a size above CAP (1.5) is scaled down to CAP in a run with a data set. In runs
 *   without a data set and in mode sandblaster, the limit is R; in mode easgd there is no limit. In
 *   sync, a gradient is scaled when its step ends: its norm may be R times the median of the norms
 *   in the step, so neither the order of arrival nor the worker that computed a batch matters. The
 *   first updates of an honest run can make gradients thousands of times larger, so a single
 *   gradient above the limit is not rejected, except as described below;
 * - in a run with a data set, the gradients of a worker are rejected while the moving mean of their
 *   sizes is below 1/R or above R, once this mean contains at least MIN_SIZES (4) sizes. In this
 *   mean, a size above 2R counts as 2R, and a size below 1/(2R) as 1/(2R). So one gradient of any
 *   size does not move the mean of four sizes above R. This comparison of means does not happen in
 *   mode easgd, where the distance between a worker and the centre depends on the worker's speed.
 *   A new process continues the mean of an earlier one of its key or name that was not within
 *   these limits, as three sizes at the limit: its next size decides;
 * - a gradient is rejected if its size is above LARGEST (a million), or, where the means are not
 *   compared, above SPIKE * R (25 R);
 * - in a run with a data set, a gradient that comes for the third time or more from a key, but with
 *   other weights, is rejected, because the key sends an old gradient again and again. Without
 *   keys, the rule applies to the gradients of all workers with the same name, or of a process
 *   without a name. The core compares a gradient with the last NORMS_RING (1024) ones of the run,
 *   accepted or repeated, so neither a number of old gradients in turn nor a number of workers
 *   helps. In mode easgd, the core does not compare gradients in this way either.
 *
 * If the workers that a median compares have three keys or more, only the worker of each key that
 * pushed last counts in the median, so a key with many workers does not decide alone. If they have
 * one or two keys although the workers of the run have three or more, there are no yardsticks. If
 * they and the worker that sent the gradient have two keys, no gradient is rejected for its size in
 * these comparisons, only scaled: otherwise the key with more workers would get the workers of the
 * other key excluded, and that key into quarantine. If they have one key, its workers are compared
 * with each other.
 *
 * No gradient is rejected in this way while fewer than three workers have pushed recently. In a run
 * with a data set, the core then compares gradients with the norm of the weights instead, or that
 * of weights of 0.01 if this is larger, and rejects only those whose norm exceeds SPIKE * R times
 * this norm. With fewer than three live workers, the core rejects no gradient for its norm, so
 * these rules change nothing in a run that always has one or two workers. If there are no
 * yardsticks, but there were some earlier in the run, a gradient is scaled down to R times
 * `yardstick` of struct fleet_norms, the larger one of the last yardsticks. So the worker that
 * comes back first after a restart cannot send a gradient of any size. This yardstick slowly
 * approaches the norms of the new gradients, in case the other workers never come back. In a run
 * without a data set, workers may train on different data, so their means are not compared. If R is
 * 0, the core compares no gradients at all.
 *
 * Promises:
 * (1) fewer than half of the workers that have pushed, or of their keys if these are three or more,
 *     get no gradient of the others scaled or rejected, however fast they are
 *     (two_of_five_cannot_move_the_yardstick, a_key_with_many_slots_cannot_move_the_yardstick,
 *     two_fast_workers_of_five_get_no_other_one_rejected), and a single key cannot get the workers
 *     of another one excluded (one_key_cannot_exclude_another_one);
 * (2) a replay that was accepted before a crash counts, whatever its norm is
 *     (a_replay_counts_whatever_its_norm_is);
 * (3) a restart does not end the scaling, also before the other workers are back
 *     (a_gradient_is_scaled_before_the_others_are_back).
 */
#ifndef SERVER_CORE_NORMS_H
#define SERVER_CORE_NORMS_H
#include "server/core/core.h"

struct worker;

/* This struct has the norms of the gradients of a worker slot. A snapshot has a separate section
 * for these norms. */
struct worker_norms {
	/* last: the newest norm; mean: moving mean of the norms; 0: no gradient yet */
	double last, mean;
	double size;      /* moving mean of the sizes of the worker's gradients */
	uint64_t n_sizes; /* number of sizes so far */
	uint64_t push_no; /* number of pushes that were accepted before the newest gradient */
};

#ifndef NORMS_RING       /* `make fuzz` defines a smaller limit */
#define NORMS_RING 1024u /* number of newest gradients with which a gradient is compared */
#endif

/* This struct describes the newest NORMS_RING gradients of the run that were accepted, or that
 * repeated an old one. The struct takes 24 KiB. Gradient number n has the index n % NORMS_RING. */
struct recent_gradients {
	uint64_t n;                 /* number of gradients so far */
	double norm[NORMS_RING];    /* the norm of each */
	uint64_t print[NORMS_RING]; /* print_of the gradient, or 0 if its norm was new */
	/* the base version of the gradient, or of the gradient that it repeated */
	uint64_t version[NORMS_RING];
};

/* This struct has the norms of the run. The section of the norms in a snapshot contains it, too. */
struct fleet_norms {
	/* the larger yardstick of the newest push that was compared; 0: there was none */
	double yardstick;
	struct recent_gradients recent;
};

/* Includes the norm and the size of the gradient of push `p`, which store_check has accepted, in
 * the means of worker `w`. Returns REJECT_NONE or REJECT_NORM. */
enum reject norms_check(struct core *c, struct worker *w, const struct msg_push *p);
/* Called when a new process joins, once for each slot of the same worker: `n` are the norms of the
 * new process, which are zero at first, and `of` are the norms of that slot. If the mean of the
 * sizes in `of` is not within the limits, the process begins as if MIN_SIZES - 1 of its sizes had
 * been at the limit. */
void norms_inherit(const struct core *c, struct worker_norms *n, const struct worker_norms *of);
/* Returns the factor, at most 1, by which the gradient of push `p` is scaled. Called once for each
 * push that is accepted. */
double norms_scale(struct core *c, const struct msg_push *p);
/* Returns the largest norm of a gradient in the step of sync that ends now. `is_in_step` returns 1
 * for the workers whose gradient the step has. */
double norms_limit_of_step(
	struct core *c, int (*is_in_step)(const struct core *, const struct worker *));

#endif
