/*
 * batch_ledger.h - the batch ledger: which batches of the epoch are free, leased or counted. Modes and
 * leases change it here. (Sandblaster counts them once per pass: sandblaster.c.)
 *
 * Invariants:
 * (1) a batch is counted once per epoch: batch_ledger_check lets a push in only if none of its batches
 *     is done, batch_ledger_mark marks them in the same step as the push is taken;
 *     Replays after a crash may come before their epoch opens: early.h;
 * (2) n_free and n_done count the states in batch[] exactly.
 */
#ifndef SERVER_CORE_BATCH_LEDGER_H
#define SERVER_CORE_BATCH_LEDGER_H
#include "server/core/core.h"

struct worker;

/* SHUT: sandblaster, sync: not of the step under way. */
enum { BATCH_FREE, BATCH_LEASED, BATCH_DONE, BATCH_SHUT };

/* The batch ledger: one epoch in training, at most one in evaluation. */
struct leases {
	uint32_t epoch;     /* in training; == cfg.training.epochs: all trained */
	uint32_t n_batches; /* of an epoch; 0: no data set yet */
	uint32_t n_done, n_free;
	uint8_t *batch;  /* n_batches states, room for WIRE_MAX_BATCHES */
	uint8_t *copies; /* backup copies of each that were given out */
	int evaluating;  /* epoch - 1 is in evaluation */
	uint32_t eval_size, n_portions, n_evaluated; /* images a portion; portions; done */
	uint8_t *portion;                            /* n_portions states */
};

/* May this work be counted? REJECT_NONE, REJECT_SHAPE or REJECT_WORK. */
enum reject batch_ledger_check(
	const struct core *c, const struct work *work, uint32_t images, int is_replay);
void batch_ledger_mark(struct core *c, const struct work *work);
/* Images of `epoch` whose gradients are in the weights now, or in the buffer. */
void batch_ledger_record(struct core *c, uint32_t epoch, uint64_t images, double loss_sum);
/* A new epoch: all its batches are free but those that were counted early. */
void batch_ledger_open(struct core *c);
/* Batches [first, end) are free, those before are done, those behind not open yet. */
void batch_ledger_window(struct core *c, uint32_t first, uint32_t end);
/* Give back what is undone of what `w` holds. */
void batch_ledger_release(struct core *c, struct worker *w);
uint32_t batch_ledger_images(const struct core *c, uint32_t first, uint32_t count);
/* It is of the epoch in training; a new pass or step has given its batches out anew. */
int batch_ledger_is_training(const struct core *c, const struct msg_grant *g);
/* It has this batch of the epoch in training, or, `eval`, this piece of the test set. */
int batch_ledger_holds(const struct core *c, const struct worker *w, int eval, uint32_t i);
/* Some other worker has it, too, and is in time. */
int batch_ledger_in_good_hands(
	const struct core *c, const struct worker *but, int eval, uint32_t i);
uint32_t batch_ledger_ceil_div(uint64_t a, uint64_t b);

#endif
