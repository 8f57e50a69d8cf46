/*
 * running.h - limits how far a push moves the running statistics of batchnorm. A push contains the
 * statistics of its batches, and no norm includes them (norms.h). If the running statistics of a
 * layer are wrong, the weights of the layer are useless.
 *
 * The server cannot compute the statistics, but their scale is known: the running variance. So
 * before the values of a push are used, each mean is limited to the running mean plus or minus the
 * standard deviation (the square root of the running variance), and each variance to the range from
 * 0 to twice the running variance. A push is rejected if one of its variances is below the running
 * variance times -1. If one of five workers always pushes values at the limit, then the running
 * means differ by a quarter of a standard deviation from those without this worker, and the running
 * variances by a third. The weights do not depend on running statistics, so these limits change no
 * weight.
 *
 * The limits apply where norms_check compares gradients: with --norm-ratio, and three live workers
 * or more. The limits do not apply to the model vector:N, because the server has no list of the
 * values that are variances, nor if the weights are on a device.
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

#define RUNNING_EPS 1e-5 /* BATCHNORM_EPS of common/model.h */

/* Returns 1 if a variance in the slices, which store_check has accepted, is below the running
 * variance times -1. */
int running_is_wild(const struct core *c, const struct slices *s);
/* Returns `p` or, if its running statistics have limits, a copy of `p` in *copy whose running
 * statistics are within these limits. The values of the copy stay valid until the next step. */
const struct msg_push *running_limit(
	struct core *c, const struct msg_push *p, struct msg_push *copy);

#endif
