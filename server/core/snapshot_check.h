/*
 * snapshot_check.h - checks a core that snapshot.c has decoded. For snapshot.c only.
 */
#ifndef SERVER_CORE_SNAPSHOT_CHECK_H
#define SERVER_CORE_SNAPSHOT_CHECK_H
#include "server/core/core.h"

/* Why a run with the options `then` cannot be resumed with `now`: a static sentence that names the
 * option; NULL: it can. */
const char *snapshot_mismatch(const struct core_config *now, const struct core_config *then);
/* 1: all numbers are possible and agree with each other. Counts the batch ledger anew. */
int snapshot_is_consistent(struct core *c);
/* 1: the counts of the batch ledger in the session section agree with the states of the batches. */
int snapshot_sessions_are_consistent(const struct core *c);
#endif
