/*
 * progress.h - how far training is and how fast: one bar on a terminal, a log line per epoch, and
 * the times that the result states.
 *
 * Thread: the loop's. Time comes in as an argument.
 */
#ifndef SERVER_MONITOR_PROGRESS_H
#define SERVER_MONITOR_PROGRESS_H
#include <stddef.h>
#include <stdint.h>

struct core;
struct effect;
struct epoch_record;
struct waiting;

struct progress {
	uint64_t start_ms; /* of the process */
	uint64_t begin_ms; /* first work given out or first update, in this life; 0: not yet */
	uint64_t end_ms;   /* last epoch over; 0: not yet */
	uint64_t epoch_ms; /* the epoch in training began, with its first lease, or this life did */
	uint64_t epoch_images, epoch_updates;        /* computed by then */
	double epoch_rate;                           /* images/s of the newest epoch that ended */
	uint64_t rate_ms, rate_images, rate_updates; /* at the newest measurement: computed */
	double images_per_s, updates_per_s;          /* over the last seconds, 0 before the first */
	uint64_t drawn_ms;
};

void progress_init(struct progress *p, const struct core *c, uint64_t now_ms);
/* EFFECT_BEGIN, EFFECT_EPOCH_BEGUN, EFFECT_TRAINED or EFFECT_EVALUATED. Logs `train epoch=...`. */
void progress_effect(
	struct progress *p, const struct core *c, const struct effect *e, uint64_t now_ms);
/* Time passed: measure the rate, redraw the bar on a terminal. `waiting` may be NULL. */
void progress_tick(
	struct progress *p, const struct core *c, const struct waiting *waiting, uint64_t now_ms);
/* From the first work to the end of training (or to now, while it goes on). */
double progress_seconds(const struct progress *p, const struct core *c, uint64_t now_ms);

/* The newest epoch whose evaluation is whole, or NULL. */
const struct epoch_record *progress_evaluated(const struct core *c);

/* What a bar shows. */
struct progress_view {
	uint32_t epochs, epoch; /* epochs 0: no data set */
	uint32_t pass;          /* sandblaster: of the step under way, from 1; other modes: 0 */
	double done;            /* of all epochs, 0..1, with the pass under way */
	uint64_t images;        /* so too */
	uint64_t updates;
	double images_per_s, updates_per_s;
	double loss, accuracy; /* accuracy < 0: none yet */
	double eta_s;          /* < 0: not known */
	uint32_t workers;
	const char *waiting; /* why no work is done, instead of rate and loss; NULL: it is */
};

void progress_look(const struct progress *p, const struct core *c, struct progress_view *v);
/* One line, NUL-terminated, without a newline. */
void progress_bar(const struct progress_view *v, char *out, size_t size);

#endif
