/*
 * modes.h - the training modes. One row of functions, struct rules, describes each mode. layout.c
 * points c->rules to the row of the run's mode; leases.c and ledger.c call the functions of this
 * row. Each mode has a file and a header for what no other mode uses:
 *
 *   downpour.c     applies each gradient when it arrives (also easgd, and the gradients of ssp)
 *   ssp.c          like downpour.c, but no worker begins a batch too far ahead of the slowest
 *                  worker
 *   sync.c         applies the mean of one gradient from each member of a step; all these gradients
 *                  are of the same weights
 *   sandblaster.c  sums gradients over the portions of a large batch, with backup copies, for a
 *                  first-order optimizer or L-BFGS
 *
 * "Exact" modes (sync, sandblaster) count only gradients of the current weights.
 */
#ifndef SERVER_CORE_MODES_H
#define SERVER_CORE_MODES_H
#include "server/core/core.h"

struct worker;

struct rules {
	/* Decides from the base version and the batches of push `p` whether its gradient may count.
	 * Returns REJECT_NONE if it may count, otherwise REJECT_STALE or REJECT_WORK. */
	enum reject (*check)(
		const struct core *c, const struct worker *w, const struct msg_push *p);
	/* Returns 1 if all values stay finite when push `p`, whose slices store_check has accepted,
	 * is applied. The function does not apply `p`. In mode sync it may end the step under way
	 * first. */
	int (*fits)(struct core *c, const struct worker *w, const struct msg_push *p);
	/* Takes push `p`, which counts: applies its gradient at once, or keeps it for settle. */
	void (*take)(struct core *c, struct worker *w, const struct msg_push *p);
	/* Returns 1 if replay `p` must wait for the end of the recovery. NULL: no replay must
	 * wait. */
	int (*must_wait)(const struct core *c, const struct msg_push *p);
	/* Returns the maximum number of free batches that the core may grant to w now. If the
	 * result is 0, w must wait for work. */
	uint32_t (*limit)(const struct core *c, const struct worker *w);
	/* Returns 1 if w may begin a batch now, provided that one is free. Only voices.c calls it,
	 * in modes with a buffer; NULL in all other modes. */
	int (*may_begin)(const struct core *c, const struct worker *w);
	/* Called when an epoch begins and all its batches are free. May be NULL. */
	void (*open_epoch)(struct core *c);
	/* Called at the end of each event: completes a step, or applies a full buffer. May be
	 * NULL. */
	void (*settle)(struct core *c);
};

/* Returns 1 if only gradients of the current weights count in this mode. */
static inline int mode_is_exact(enum mode m)
{
	return m == MODE_SYNC || m == MODE_SANDBLASTER;
}

#endif
