/*
 * modes.h - how gradients meet: one row of rules for each mode. layout.c makes c->rules the row of
 * the run's mode; leases.c and ledger.c ask it. What a mode shares with no other lies in its own
 * file.
 *
 *   downpour.c     each gradient is applied when it comes (also easgd, and ssp's gradients)
 *   ssp.c          ... but nobody may be more than some batches ahead of the slowest
 *   sync.c         the mean of one gradient from each member of a step, all of the same weights
 *   sandblaster.c  sums over portions of a large batch, with backup copies; sgd or L-BFGS
 *
 * "Exact" modes (sync, sandblaster) count only gradients of the weights that are current.
 */
#ifndef SERVER_CORE_MODES_H
#define SERVER_CORE_MODES_H
#include "server/core/core.h"

struct worker;

/* Of a worker slot, in mode ssp. In the snapshot. */
struct worker_ssp {
	uint64_t clock; /* batches counted from it */
	int racing;     /* the others must not leave it behind */
};

/* Of a worker slot, in mode sync. The first group is in the snapshot. */
struct worker_sync {
	uint64_t answered; /* the step (version + 1) that holds a gradient of it */
	uint64_t member;   /* the step that waits for it; 0: none does */

	uint64_t active_ms; /* its newest message other than a heartbeat */
	int idle;           /* no step waits for it before the next such message */
};

struct rules {
	/* May a gradient of these weights count? REJECT_NONE, REJECT_STALE or REJECT_WORK. */
	enum reject (*check)(
		const struct core *c, const struct worker *w, const struct msg_push *p);
	/* Its slices are sound. 1: all stays finite when it is applied. Changes no value. */
	int (*fits)(struct core *c, const struct worker *w, const struct msg_push *p);
	/* It counts: apply it, or keep it for settle. */
	void (*take)(struct core *c, struct worker *w, const struct msg_push *p);
	/* Most free batches that w may be given now; 0: it waits. */
	uint32_t (*limit)(const struct core *c, const struct worker *w);
	/* An epoch begins: all its batches are free. May be NULL. */
	void (*open_epoch)(struct core *c);
	/* At the end of each event: finish what is complete. May be NULL. */
	void (*settle)(struct core *c);
};

extern const struct rules rules_downpour, rules_ssp, rules_sync, rules_sandblaster;

/* downpour.c; ssp's gradients are checked and taken the same way */
enum reject downpour_check(const struct core *c, const struct worker *w, const struct msg_push *p);
int downpour_fits(struct core *c, const struct worker *w, const struct msg_push *p);
/* Apply the buffer, if it is full or the epoch has no more. */
void downpour_settle(struct core *c);
void downpour_take(struct core *c, struct worker *w, const struct msg_push *p);
/* As many others work as the warm start or the ramp behind it admits. */
int downpour_holds_back(const struct core *c, const struct worker *w);
/* EASGD: of its distance to the centre that a worker and the centre each close at a meeting:
 * beta / N. */
double easgd_part(const struct core *c);
/* The rate of a gradient that is tau versions old, now. */
double downpour_rate(const struct core *c, uint64_t tau);
/* Versions that have come since the weights of `p`. */
uint64_t downpour_staleness(const struct core *c, const struct msg_push *p);

/* In exact modes only gradients of the current weights count. */
static inline int mode_is_exact(enum mode m)
{
	return m == MODE_SYNC || m == MODE_SANDBLASTER;
}

#endif
