/*
 * snapshot_check.h - checks a core that snapshot.c has decoded. For snapshot.c only.
 */
#ifndef SERVER_CORE_SNAPSHOT_CHECK_H
#define SERVER_CORE_SNAPSHOT_CHECK_H
#include "server/core/core.h"

/* Returns NULL if a run with the options `then` can be resumed with the options `now`. If it cannot
 * be resumed, returns a static sentence that names the option at fault. */
const char *snapshot_mismatch(const struct core_config *now, const struct core_config *then);
/* Returns 1 if all numbers of the decoded core `c` are possible and agree with each other. The
 * function also recomputes the counts of the batch ledger. */
int snapshot_is_consistent(struct core *c);
/* Returns 1 if the counts of the batch ledger in the session section agree with the states of the
 * batches. */
int snapshot_sessions_are_consistent(const struct core *c);
#endif
