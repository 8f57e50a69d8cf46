/*
 * modes.h - how gradients meet: one row of rules for each mode. leases.c and ledger.c ask the row;
 * what a mode shares with no other lies in its own file.
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

struct rules {
	int exact; /* GRANT says which version, a push covers the whole grant */
	/* May a gradient of these weights count? REJECT_NONE, REJECT_STALE or REJECT_WORK. */
	enum reject (*judge)(
		const struct core *c, const struct worker *w, const struct msg_push *p);
	/* Its slices are sound. 1: all stays finite when it is applied. Changes no value. */
	int (*fits)(struct core *c, const struct worker *w, const struct msg_push *p);
	/* It counts: apply it, or keep it for settle. */
	void (*take)(struct core *c, struct worker *w, const struct msg_push *p);
	/* Most free batches that w may be given now; 0: it waits. */
	uint32_t (*allow)(const struct core *c, const struct worker *w);
	/* An epoch begins: all its batches are free. May be NULL. */
	void (*open)(struct core *c);
	/* At the end of each event: finish what is complete. May be NULL. */
	void (*settle)(struct core *c);
};

extern const struct rules rules_downpour, rules_ssp, rules_sync, rules_sandblaster;
const struct rules *rules_of(const struct core *c);

/* downpour.c; ssp's gradients are judged and taken the same way */
enum reject downpour_judge(const struct core *c, const struct worker *w, const struct msg_push *p);
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

/*
 * accumulator.c: the gradients of a step. Sandblaster adds them as they come, in double precision,
 * so that their order hardly matters; so do the asynchronous modes with a buffer, each gradient
 * with a weight of its own. Sync keeps one gradient of each batch and adds them in the order of the
 * batches when the step ends, so that their order of arrival does not matter at all. That takes
 * n_params floats for each gradient of a step; memory is touched by those that came.
 */
struct part {
	uint32_t batch, images;
	float loss;
	float *g; /* n_params */
};
struct gather {
	double *sum;       /* n_params; NULL: no running sum */
	struct part *part; /* room for `room`, `pushes` in use, by batch; NULL: none are kept */
	uint32_t room;
	double weight, loss_sum; /* loss_sum: of the running sum */
	uint64_t images;
	uint32_t pushes;
	double peak;  /* bound of the magnitudes in sum */
	int measured; /* peak is valid; never saved */
};
/* 1: the step that takes the sum with `p` in it leaves all finite. */
int gather_fits(struct core *c, const struct worker *w, const struct msg_push *p);
void gather_add(struct core *c, const struct msg_push *p);
/* The same of `s` in place of p's slices, `weight` times. */
void gather_add_weighted(
	struct core *c, const struct msg_push *p, const struct slices *s, double weight);
/* 1: the step with a gradient of at most `peak` in magnitude more leaves all finite. */
int gather_holds(struct core *c, double weight, double peak);
void gather_keep(struct core *c, const struct msg_push *p);
/* The weighted mean of what was gathered into `g` (n_params floats); with cfg.push.sum the sum. */
void gather_mean(const struct core *c, float *g);
double gather_loss_sum(const struct core *c);
void gather_clear(struct core *c);
/* Are these the weights that are current, bit for bit? Also those of an earlier term, if
 * this one began with them. */
int gather_is_current(const struct core *c, const struct msg_push *p);

#endif
