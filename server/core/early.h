/*
 * early.h - batches of epochs still to come. A worker whose push was accepted in epoch e + 1 before
 * a crash may replay it before the others have replayed what ends epoch e. The push counts at once,
 * as it did then; its batches are noted here and marked when their epoch opens.
 *
 * Invariants:
 * (1) only replays of what had been accepted come here: batch_ledger_check (tests/sim/replays.c);
 * (2) the epochs noted are all after the one in training;
 * (3) a batch is noted once, and what is noted is saved with the weights that it has changed
 *     (tests/sim/verdict.c, mutant early-replay-not-saved).
 */
#ifndef SERVER_CORE_EARLY_H
#define SERVER_CORE_EARLY_H
#include "server/core/core.h"

#define EARLY_MAX 65536u /* pushes */

struct early {
	uint32_t n;
	struct work *work; /* room for EARLY_MAX */
};

/* It is of an epoch after the one in training. */
int early_is(const struct core *c, const struct work *work);
/* May a replay of this work be counted now? REJECT_NONE, REJECT_SHAPE or REJECT_WORK. */
enum reject early_check(const struct core *c, const struct work *work);
void early_note(struct core *c, const struct work *work);
/* All batches of this epoch are noted. */
int early_is_complete(const struct core *c, uint32_t epoch);
/* Take what is noted of the epoch in training, one after another, from *at (0) on; 0: no more. */
int early_take(struct core *c, uint32_t *at, struct work *work);

#endif
