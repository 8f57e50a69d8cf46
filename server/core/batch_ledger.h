/*
 * batch_ledger.h - the batch ledger records which batches of the epoch are free, leased or done.
 * The modes and leases.c change these states with the functions below. (Sandblaster counts a batch
 * once per pass: sandblaster.c.)
 *
 * Invariants:
 * (1) a batch is counted once per epoch: batch_ledger_check permits a push only if none of its
 *     batches is done, and batch_ledger_mark marks them as done in the same step that takes the
 *     push. After a crash, a replayed push may arrive before its epoch opens; later_epochs.h
 *     describes this case (asserted by batch_ledger_mark; mutant batch-twice);
 * (2) n_free is always the number of batches in batch[] that are BATCH_FREE, and n_done the number
 *     of those that are BATCH_DONE (asserted by mark_done for the sum of both numbers, by
 *     grant_training in leases.c for a free batch when n_free is not 0, and by leases_advance in
 *     leases.c for both numbers at the end of an epoch; tests/support/core_invariants.c).
 */
#ifndef SERVER_CORE_BATCH_LEDGER_H
#define SERVER_CORE_BATCH_LEDGER_H
#include "server/core/core.h"

struct worker;

/* BATCH_SHUT: the batch does not belong to the step under way (sandblaster and sync) */
enum { BATCH_FREE, BATCH_LEASED, BATCH_DONE, BATCH_SHUT };

/* The batch ledger. At any time, one epoch is in training, and at most one epoch is in
 * evaluation. */
struct leases {
	/* number of the epoch in training, from 0; cfg.training.epochs when all epochs are
	 * trained */
	uint32_t epoch;
	uint32_t n_batches; /* number of batches in each epoch; 0: the run has no data set yet */
	uint32_t n_done, n_free;
	/* states of the n_batches batches; the array has room for WIRE_MAX_BATCHES */
	uint8_t *batch;
	uint8_t *copies; /* for each batch, how many workers hold a backup copy of it */
	int evaluating;  /* 1: the previous epoch (epoch - 1) is in evaluation */
	/* eval_size: images of a portion of the evaluation; n_portions, n_evaluated: number of all
	 * portions and of the evaluated ones */
	uint32_t eval_size, n_portions, n_evaluated;
	/* states of the n_portions portions: BATCH_FREE, BATCH_LEASED or BATCH_DONE */
	uint8_t *portion;
	/* 1: EFFECT_EPOCH_BEGUN was emitted for this epoch; no snapshot has this flag */
	int announced;
};

/* Returns REJECT_NONE if `work` with `images` images may be counted. Returns REJECT_WORK if a part
 * of it is already counted, if it is of an earlier epoch or, in sandblaster, if it is not of the
 * step under way. Returns REJECT_SHAPE if it is of a later epoch or cannot be work of this run. But
 * if is_replay is 1, `work` may be of a later epoch (later_epochs.h). */
enum reject batch_ledger_check(
	const struct core *c, const struct work *work, uint32_t images, int is_replay);
void batch_ledger_mark(struct core *c, const struct work *work);
/* Called when the gradients of `images` images are in the weights or in the buffer: adds the images
 * and the sum of their losses to the record of epoch `epoch`. */
void batch_ledger_record(struct core *c, uint32_t epoch, uint64_t images, double loss_sum);
/* Opens the epoch in training: sets its batches to BATCH_FREE, except those that replayed pushes
 * have already delivered (later_epochs.h), which it sets to BATCH_DONE. */
void batch_ledger_open(struct core *c);
/* Sets the batches [first, end) to BATCH_FREE, and all batches from `end` on to BATCH_SHUT. All
 * batches before `first` are done. */
void batch_ledger_window(struct core *c, uint32_t first, uint32_t end);
/* Releases the grant of worker `w`. A batch of the grant that is not done becomes free unless
 * another worker holds it. A portion that is not done becomes free unless another worker holds it
 * and is not late (pace.h). */
void batch_ledger_release(struct core *c, struct worker *w);
uint32_t batch_ledger_images(const struct core *c, uint32_t first, uint32_t count);
/* Returns 1 if grant `g` is for batches of the epoch in training. In an exact mode (sync,
 * sandblaster), the grant must also be for the current weights, because each new pass or step
 * grants its batches again. */
int batch_ledger_is_training(const struct core *c, const struct msg_grant *g);
/* Returns 1 if worker `w` holds batch `i` of the epoch in training or, if `eval` is 1, portion `i`
 * of the test set. */
int batch_ledger_holds(const struct core *c, const struct worker *w, int eval, uint32_t i);
/* Returns 1 if a worker other than `but` holds the batch or portion `i` and is not late. The
 * parameters `eval` and `i` mean the same as in batch_ledger_holds. */
int batch_ledger_in_good_hands(
	const struct core *c, const struct worker *but, int eval, uint32_t i);
uint32_t batch_ledger_ceil_div(uint64_t a, uint64_t b);

#endif
