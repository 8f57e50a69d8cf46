/*
 * modes.h - the training modes. One row of functions, struct rules, describes each mode. layout.c
 * points c->rules to the row of the run's mode; leases.c and ledger.c call its functions. Each mode
 * has a file for the code that no other mode uses:
 *
 *   downpour.c     applies each gradient when it arrives (also easgd, and the gradients of ssp)
 *   ssp.c          the same, but no worker may be too many batches ahead of the slowest worker
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

/* The state of a worker slot in mode ssp. A snapshot contains all of it. */
struct worker_ssp {
	uint64_t clock; /* grows by 1 with each counted batch of this worker */
	int racing;     /* 1: the other workers may not run far ahead of this worker */
};

/* The state of a worker slot in mode sync. A snapshot contains the first group of fields. The
 * number of a step is the version of the weights that it produces. */
struct worker_sync {
	uint64_t answered; /* the newest step that has a gradient of this worker */
	uint64_t member;   /* the step that waits for this worker; 0: no step does */

	uint64_t active_ms; /* time of the worker's newest message other than a heartbeat */
	int idle;           /* 1: the worker sends only heartbeats, so no step waits for it */
};

struct rules {
	/* Decides from the weights and the batches of push `p` whether its gradient may count.
	 * Returns REJECT_NONE, REJECT_STALE or REJECT_WORK. */
	enum reject (*check)(
		const struct core *c, const struct worker *w, const struct msg_push *p);
	/* Returns 1 if all values stay finite when push `p`, whose slices are sound, is applied. It
	 * does not apply `p`; in mode sync it may end the step under way first. */
	int (*fits)(struct core *c, const struct worker *w, const struct msg_push *p);
	/* Push `p` counts: the mode applies it at once, or keeps it for settle. */
	void (*take)(struct core *c, struct worker *w, const struct msg_push *p);
	/* Returns the maximum number of free batches that w may be granted now; 0: w waits. */
	uint32_t (*limit)(const struct core *c, const struct worker *w);
	/* Called when an epoch begins and all its batches are free. May be NULL. */
	void (*open_epoch)(struct core *c);
	/* Called at the end of each event: completes a step or a full buffer. May be NULL. */
	void (*settle)(struct core *c);
};

extern const struct rules rules_downpour, rules_ssp, rules_sync, rules_sandblaster;

/* Functions of downpour.c. Mode ssp checks and applies its gradients with them, too. */
enum reject downpour_check(const struct core *c, const struct worker *w, const struct msg_push *p);
int downpour_fits(struct core *c, const struct worker *w, const struct msg_push *p);
/* Applies the buffered gradients if the buffer is full or all batches of the epoch are counted. */
void downpour_settle(struct core *c);
void downpour_take(struct core *c, struct worker *w, const struct msg_push *p);
/* 1: as many other workers are at work as the warm start, or its ramp, allows now. */
int downpour_holds_back(const struct core *c, const struct worker *w);
/* EASGD: alpha = beta / N, the part of their distance that a worker and the centre each move
 * towards the other at an exchange. */
double easgd_part(const struct core *c);
/* The learning rate now for a gradient that is tau versions old. */
double downpour_rate(const struct core *c, uint64_t tau);
/* The staleness of push `p`: the number of versions made since its weights. */
uint64_t downpour_staleness(const struct core *c, const struct msg_push *p);

/* 1: in this mode, only gradients of the current weights count. */
static inline int mode_is_exact(enum mode m)
{
	return m == MODE_SYNC || m == MODE_SANDBLASTER;
}

#endif
