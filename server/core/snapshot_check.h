/*
 * snapshot_check.h - what snapshot.c asks of a core that it has read; for snapshot.c only.
 */
#ifndef SERVER_CORE_SNAPSHOT_CHECK_H
#define SERVER_CORE_SNAPSHOT_CHECK_H
#include "server/core/core.h"

/* Which option keeps this run from being continued: a static sentence; NULL: none. */
const char *image_differs(const struct core_config *now, const struct core_config *then);
/* 1: all numbers are possible and agree with each other. Counts the batch ledger anew. */
int image_is_sound(struct core *c);
/* 1: the counts of the batch ledger in section live agree with the states of the batches. */
int image_live_is_sound(const struct core *c);
/* What a restart changes on purpose. */
void image_revive(struct core *c);
#endif
