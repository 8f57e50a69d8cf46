/*
 * view.h - what the status, the metrics and the log display about the work of the core: its
 * progress, and the reason why the core grants no work. The functions change nothing.
 */
#ifndef SERVER_CORE_VIEW_H
#define SERVER_CORE_VIEW_H
#include "server/core/core.h"

/* This struct describes the progress of the work, for display. Unlike these numbers, the counters
 * of struct core_stats include the work of a pass or step only when it has ended. */
struct work_view {
	uint64_t computed; /* number of images of all pushes accepted since this start */
	uint64_t push_ms;  /* core time of the newest decided push since this start; 0: none */
	/* number of counted images, including those of the pass or step under way */
	uint64_t images;
	/* sandblaster: number of the pass in the step under way, from 1; other modes: 0 */
	uint32_t pass;
	/* the learning rate now: --lr times the factor of the schedule; NAN: the mode easgd and
	 * L-BFGS have none */
	double rate;
};

/* This value is the reason why the core grants no work, for display. */
enum hold_up {
	HOLD_UP_NONE,
	HOLD_UP_WORKERS, /* fewer than `needed` workers with the run's data set are live */
	/* after a restart, the server waits until `needed` workers are back, at most `left_ms`
	 * more */
	HOLD_UP_RETURN,
};
struct hold_up_view {
	enum hold_up kind;
	uint32_t live, needed;
	/* number of workers that are joining: no snapshot on disk has their slots yet */
	uint32_t joining;
	uint32_t others;     /* number of live workers with another data set, which get no work */
	uint64_t other_data; /* the data set fingerprint of the first of these workers */
	uint64_t left_ms;    /* HOLD_UP_RETURN: maximum remaining time of the wait, in ms */
};

/* Writes the progress of the work to *v. */
void core_work(const struct core *c, struct work_view *v);
/* Writes the reason why the core grants no work to *v. */
void core_hold_up(const struct core *c, struct hold_up_view *v);
/* Returns 1 if the run has nothing that a new run with another model would lose: no data set is
 * fixed, the weights have not changed, no worker can push, and the run does not end. */
int core_is_blank(const struct core *c);

#endif
