/*
 * upgrade.h - resumes what release 0.1.0 left: its checkpoints, not its write-ahead log. A later
 * release may delete this file together with server/core/snapshot_v5.c. Thread: main, before the
 * loop.
 */
#ifndef SERVER_DURABILITY_UPGRADE_H
#define SERVER_DURABILITY_UPGRADE_H
#include "common/checkpoint.h"
#include "server/config/options.h"

/*
 * 0: `c` is of this release. 1: it was of 0.1.0, and its sections are replaced by those that this
 * release reads; no log needs to be replayed behind it. PS_EDATA: its content is refused.
 * PS_ECHECKPOINT: a log of 0.1.0 follows it, and --accept-rollback is not given. PS_EIO, PS_ENOMEM.
 * On failure *c is unchanged. No file is changed in any case.
 */
int upgrade_checkpoint(const struct options *o, struct checkpoint *c, struct err *e) PS_MUST_CHECK;

#endif
