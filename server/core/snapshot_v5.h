/*
 * snapshot_v5.h - reads the snapshot of release 0.1.0 (format 5) by rewriting it in the format of
 * this release. A later release may delete this file and its callers.
 *
 * A field that 0.1.0 did not store gets a fixed value:
 *
 *   options that may change at a resume   the options of this start
 *   --buffer-size                         1: 0.1.0 made one update from each gradient
 *   new counters                          0
 *   sync: the step under way              closed: its gradients belong to the next step, which
 *                                         opens when a worker joins
 *   workers                               gone: the processes of 0.1.0 speak a protocol that this
 *                                         release refuses, so none of them returns, and a new
 *                                         worker gets a slot at once. The batches that these
 *                                         workers held are free again.
 *
 * In sync mode 0.1.0 stored the sum of a step's gradients, but this release stores each gradient.
 * The rewritten snapshot has as many gradients as the step had, and their sum is the stored sum
 * (snapshot_v5.c, rewrite_parts).
 *
 * snapshot_decode checks the rewritten snapshot like any other snapshot.
 */
#ifndef SERVER_CORE_SNAPSHOT_V5_H
#define SERVER_CORE_SNAPSHOT_V5_H
#include "server/core/snapshot.h"

/* Returns 1 if the section SNAPSHOT_RUN is of format 5. */
int snapshot_v5_is(const unsigned char *run, size_t size);
/* Returns 1 if the server of 0.1.0 had stopped in an orderly way, as after SIGTERM. Such a server
 * accepted no push after this snapshot, so its log has nothing that must be replayed. `live` is the
 * section SNAPSHOT_SESSIONS. */
int snapshot_v5_is_final(const unsigned char *live, size_t size);
/*
 * Writes all sections in the current format to `out`, one after another, and their sizes to
 * new_size. If `out` is NULL, the function only computes the sizes. `now` is the configuration of
 * this start. Returns PS_ECHECKPOINT if a section is malformed.
 */
int snapshot_v5_rewrite(const unsigned char *const data[SNAPSHOT_SECTIONS],
	const size_t size[SNAPSHOT_SECTIONS], const struct core_config *now, unsigned char *out,
	size_t new_size[SNAPSHOT_SECTIONS]) PS_MUST_CHECK;

#endif
