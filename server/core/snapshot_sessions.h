/*
 * snapshot_sessions.h - the sections of an image that a restart does not want and a journal does:
 * under which configuration the core runs, and everything that is true only while the process
 * lives. For snapshot.c.
 */
#ifndef SERVER_CORE_SNAPSHOT_SESSIONS_H
#define SERVER_CORE_SNAPSHOT_SESSIONS_H
#include "server/core/core.h"
#include "server/core/cursor.h"

/* Every field of the configuration; reading refuses what no option table would let in. */
void live_put_config(struct cursor *k, struct core_config *cfg);
/* Connections, liveness, and how far snapshots and the end have come. The other sections were read
 * before. */
void live_put_state(struct cursor *k, struct core *c);

#endif
