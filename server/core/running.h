/*
 * running.h - limits how far a push moves the running statistics of batchnorm. A push contains the
 * statistics of its batches. No norm includes them (norms.h), and no rule of --aggregate combines
 * them (accumulator.h). If the running statistics of a layer are wrong, the weights of the layer
 * are useless.
 *
 * The rule is centered clipping (Karimireddy 2021, arXiv 2012.10333), value by value: each value is
 * clipped to a range around the running value, and then counts in the mean of the step. The server
 * cannot compute the statistics, but their scale is known: the running variance. With R =
 * cfg.limits.statistics_ratio, each mean is limited to the running mean plus or minus R / 2 running
 * deviations, and each variance to the range from 0 to R times the running variance. A push is
 * rejected if one of its variances is below the running variance times -1. Assume that R is 2 and
 * that one of five workers always pushes values at the limit. Compared with a run without this
 * worker, the running means then differ by a quarter of a deviation, and the running variances by a
 * third. The weights do not depend on running statistics, so these limits change no weight.
 *
 * The limits apply with three live workers or more. No other rule against hostile workers changes
 * running statistics. In vector:N, the list of tensors says to which values the limits apply
 * (tensors.h). The limits do not apply if gradients go from GPU to GPU (core_reads_gradients).
 *
 * Promises:
 * (1) a running variance is never negative, and one push moves no running mean by more than a tenth
 *     of its standard deviation, if the limits apply
 *     (one_push_moves_the_statistics_by_a_limited_part);
 * (2) statistics within the limits are used with all their bits
 *     (statistics_within_the_limits_are_not_changed).
 */
#ifndef SERVER_CORE_RUNNING_H
#define SERVER_CORE_RUNNING_H
#include "server/core/core.h"

#define RUNNING_EPS 1e-5 /* BATCHNORM_EPS of common/model.h, which the core does not include */

/* Returns 1 if a variance in the slices, which store_check has accepted, is below the running
 * variance times -1. */
int running_is_wild(struct core *c, const struct slices *s);
/* Returns `p` or, if its running statistics have limits, a copy of `p` in *copy whose running
 * statistics are within these limits. The values of the copy stay valid until the next step. */
const struct msg_push *running_limit(
	struct core *c, const struct msg_push *p, struct msg_push *copy);

#endif
