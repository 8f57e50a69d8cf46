/*
 * progress.h - the progress and speed of training: a bar on a terminal, a log line for each epoch,
 * and the times of the final result.
 *
 * Only the loop's thread may call these functions. The caller passes the time.
 */
#ifndef SERVER_MONITOR_PROGRESS_H
#define SERVER_MONITOR_PROGRESS_H
#include <stddef.h>
#include <stdint.h>
#include "server/monitor/epoch_metrics.h"

struct effect;
struct waiting;

struct progress {
	uint64_t start_ms; /* time at which the process started */
	/* time of the first grant or first update of this process; 0: none yet */
	uint64_t begin_ms;
	uint64_t end_ms; /* time at which the last epoch of the run ended; 0: it has not ended */
	/* start of the epoch under way: the time of its first lease. Before that lease: the time at
	 * which the previous epoch ended. If no epoch has ended in this process: the time of its
	 * first grant or, before that, of its start */
	uint64_t epoch_ms;
	/* numbers of images and updates when the epoch under way began */
	uint64_t epoch_images, epoch_updates;
	/* images/s of the newest epoch that ended; NaN: no epoch has ended in this process */
	double epoch_rate;
	/* time, and numbers of images and updates, at the newest measurement */
	uint64_t rate_ms, rate_images, rate_updates;
	double rate_s; /* duration of the newest measurement of the rates, in seconds */
	/* rates at the newest measurement; 0: there was no measurement yet */
	double images_per_s, updates_per_s;
	uint64_t drawn_ms;
};

void progress_init(struct progress *p, const struct core *c, uint64_t now_ms);
/* Handles EFFECT_BEGIN, EFFECT_EPOCH_BEGUN, EFFECT_TRAINED or EFFECT_EVALUATED. Logs `train
 * epoch=...`. */
void progress_effect(
	struct progress *p, const struct core *c, const struct effect *e, uint64_t now_ms);
/* Measures the rates if a second has passed since the last measurement, and redraws the bar on a
 * terminal. `waiting` may be NULL. Returns 1 if this call has measured the rates. */
int progress_tick(
	struct progress *p, const struct core *c, const struct waiting *waiting, uint64_t now_ms);
/* Called when the run ends. If the run was too short for progress_tick, measures the rates from the
 * first work to the end of training, and returns 1. */
int progress_end(struct progress *p, const struct core *c, uint64_t now_ms);
/* Returns the seconds from the first work to the end of training, or to `now_ms` if training has
 * not ended. In a run without a data set, returns the seconds to the newest push. */
double progress_seconds(const struct progress *p, const struct core *c, uint64_t now_ms);

/* Returns the newest epoch with a complete evaluation, or NULL. */
const struct epoch_record *progress_evaluated(const struct core *c);

/* This struct has the values that a progress bar shows. */
struct progress_view {
	/* epoch: epoch under way, from 1; epochs: 0 if the run has no data set */
	uint32_t epochs, epoch;
	uint32_t pass; /* sandblaster: pass of the present step, from 1; other modes: 0 */
	/* completed share of the run, 0..1, including the pass under way; 0 if the run has no fixed
	 * end. The run ends after its last epoch or at max_updates, whichever comes first. */
	double done;
	/* number of completed images, including those of the pass under way */
	uint64_t images;
	uint64_t updates, max_updates; /* max_updates is 0 if there is no limit */
	double images_per_s, updates_per_s;
	/* accuracy is NaN if no evaluation is complete, or if the run does not measure accuracy;
	 * test_loss is NaN if no evaluation is complete */
	double loss, accuracy, test_loss;
	char metrics[EPOCH_METRICS_TEXT]; /* the metrics as text, from epoch_metrics_bar */
	double eta_s;                     /* time in seconds until the run ends; < 0: not known */
	uint32_t workers;
	/* while the run waits: the text with the reason, which the bar shows instead of rate and
	 * loss; NULL: the run does not wait */
	const char *waiting;
};

void progress_read(const struct progress *p, const struct core *c, struct progress_view *v);
/* Writes the bar to `out` as one line, NUL-terminated, without a newline. If the bar would have
 * more than `columns` characters, the function leaves out parts, the least important ones first. */
void progress_bar(const struct progress_view *v, size_t columns, char *out, size_t size);

#endif
