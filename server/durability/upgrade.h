/*
 * upgrade.h - resumes from a checkpoint of release 0.1.0. This release cannot replay a write-ahead
 * log of 0.1.0. A later release may delete this file together with server/core/snapshot_v5.c. The
 * main thread calls this function before it runs the loop.
 */
#ifndef SERVER_DURABILITY_UPGRADE_H
#define SERVER_DURABILITY_UPGRADE_H
#include "common/checkpoint.h"
#include "server/config/options.h"

/*
 * Converts `c` to the sections that this release reads if release 0.1.0 wrote `c`. Returns 1 if it
 * has converted `c`; the caller must then replay no log. Returns 0 if `c` is of this release.
 * Returns PS_EDATA if the content of `c` is bad. Returns PS_ECHECKPOINT if a log of 0.1.0 follows
 * `c`, and --accept-rollback is not set. Other errors: PS_EIO, PS_ENOMEM. On failure *c is
 * unchanged. The function changes no file.
 */
int upgrade_checkpoint(const struct options *o, struct checkpoint *c, struct err *e) PS_MUST_CHECK;

#endif
