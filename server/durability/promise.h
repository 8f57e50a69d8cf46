/*
 * promise.h - what the core's words promise, where a journal makes events durable: which of them
 * wait for it.
 *
 * Most of them do: they say that a push is decided, that an incarnation or work was given, or that
 * a worker may go, and it would be wrong if the event behind them were lost. These do not:
 *
 * - BEAT: it says what checkpoints hold;
 * - ERROR: it refuses or asks for a new HELLO, and a crash only makes whoever got it ask again. Who
 *   ends because of one keeps no push that was acknowledged: those acknowledgements had waited;
 * - STATUS, and the WELCOME of an observer: it is shown the moment, not the disk;
 * - ADMIN: of a checkpoint it comes when that is on disk; of a drain it says that it began.
 *
 * So an operator reaches a server whose disk is full.
 */
#ifndef SERVER_DURABILITY_PROMISE_H
#define SERVER_DURABILITY_PROMISE_H
#include <stdint.h>
#include "server/core/core.h"

/* Is `m` held until all is on disk that it depends on? */
int promise_waits(const struct msg *m);
/* Does what the core says after its newest step depend on that event, or on one before it? Weights,
 * and what does not wait, promise nothing that a lost event could break; the rest does. */
int promise_binds(const struct core *c, uint64_t version_before);

#endif
