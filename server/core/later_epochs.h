/*
 * later_epochs.h - batches of later epochs. After a crash, a worker may replay a push of epoch e +
 * 1 before the other workers have replayed the pushes that complete epoch e. The server applies the
 * replayed push at once, as it did before the crash. This module notes the batches of the push, and
 * the core marks them as done when their epoch opens.
 *
 * Invariants:
 * (1) only replays of pushes that were accepted before the crash are noted (asserted by accept_push
 *     in ledger.c; tests/sim/replays.c);
 * (2) all noted epochs are later than the epoch in training (asserted by later_epochs_note and
 *     later_epochs_take; tests/unit/test_core_later_replays.c);
 * (3) a batch is noted once (asserted by later_epochs_note; tests/sim/verdict.c).
 *
 * Promises:
 * (1) the notes are saved in the same snapshot as the weights that the push has changed
 *     (tests/sim/verdict.c, mutant later-replay-not-saved).
 */
#ifndef SERVER_CORE_LATER_EPOCHS_H
#define SERVER_CORE_LATER_EPOCHS_H
#include "server/core/core.h"

#define MAX_LATER_EPOCHS 65536u /* maximum number of noted pushes */

struct later_epochs {
	uint32_t n;
	struct work *work; /* the noted work: n entries, with room for MAX_LATER_EPOCHS */
};

/* Returns 1 if `work` is of an epoch after the epoch in training. */
int later_epochs_contain(const struct core *c, const struct work *work);
/* Returns REJECT_NONE if a replay of `work` may be counted now, REJECT_WORK if a part of it is
 * already noted, and REJECT_SHAPE if it is no work of this run or if MAX_LATER_EPOCHS pushes are
 * already noted. */
enum reject later_epochs_check(const struct core *c, const struct work *work);
void later_epochs_note(struct core *c, const struct work *work);
/* Returns 1 if the noted pushes contain all batches of `epoch`. */
int later_epochs_is_complete(const struct core *c, uint32_t epoch);
/* Removes the next noted work of the epoch in training and writes it to *work. *at must be 0 at the
 * first call; the function advances it. Returns 0 if no noted work is left. */
int later_epochs_take(struct core *c, uint32_t *at, struct work *work);

#endif
