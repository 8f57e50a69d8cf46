/* progress.c - see progress.h. */
#include "server/monitor/progress.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "common/log.h"
#include "common/number_text.h"
#include "server/core/core.h"
#include "server/core/view.h"
#include "server/monitor/waiting.h"

#define RATE_MS 1000 /* minimum time between two measurements of the rates, in ms */
#define DRAW_MS 100
#define BAR     20 /* width of the bar in characters */

/* Returns the number of images of all pushes accepted since the start. The module measures rates
 * from this number, because it grows with each push, while the number of done images grows only at
 * the end of a pass or step. */
static uint64_t computed_images(const struct core *c)
{
	struct work_view v;

	core_work(c, &v);
	return v.computed;
}

void progress_init(struct progress *p, const struct core *c, uint64_t now_ms)
{
	const struct core_stats *s = core_stats(c);
	uint64_t computed = computed_images(c);

	*p = (struct progress){.start_ms = now_ms,
		.epoch_ms = now_ms,
		.epoch_images = computed,
		.epoch_updates = s->updates,
		.epoch_rate = (double)NAN,
		.rate_ms = now_ms,
		.rate_images = computed,
		.rate_updates = s->updates};
}

/* ---- effects of the core ------------------------------------------------------------------- */

/* Begins to measure the rates at `now_ms`, so that the time in which the server waited for the
 * first workers does not count. */
static void begin_training(struct progress *p, const struct core *c, uint64_t now_ms)
{
	uint64_t start_ms = p->start_ms;

	progress_init(p, c, now_ms);
	p->start_ms = start_ms;
	p->begin_ms = now_ms;
}

static void end_epoch(struct progress *p, const struct core *c, uint64_t now_ms)
{
	const struct core_stats *s = core_stats(c);
	double seconds = (double)(now_ms - p->epoch_ms) / 1000;
	uint64_t computed = computed_images(c), images = computed - p->epoch_images;

	p->epoch_rate = seconds > 0 && images ? (double)images / seconds : (double)NAN;
	p->epoch_ms = now_ms;
	p->epoch_images = computed;
	p->epoch_updates = s->updates;
	if (core_training_epoch(c) >= core_config(c)->training.epochs)
		p->end_ms = now_ms;
}

static void log_epoch(const struct progress *p, const struct core *c, uint32_t epoch,
	const struct epoch_record *r)
{
	char metrics[EPOCH_METRICS_TEXT], loss[NUMBER_TEXT], test_loss[NUMBER_TEXT];

	log_info("train", "epoch",
		"epoch=%u images=%llu updates=%llu loss=%s accuracy=%.4f test_loss=%s "
		"images_per_s=%.0f",
		epoch + 1, (unsigned long long)r->images, (unsigned long long)r->updates,
		number_text_loss(r->images ? r->loss_sum / (double)r->images : 0.0, loss),
		epoch_accuracy(c, r), number_text_loss(r->eval_loss_sum / r->eval_done, test_loss),
		p->epoch_rate);
	if (core_config(c)->metrics[0] == '\0')
		return;
	epoch_metrics_text(c, r, metrics);
	log_info("train", "metrics", "epoch=%u metrics=%s", epoch + 1, metrics);
}

void progress_effect(
	struct progress *p, const struct core *c, const struct effect *e, uint64_t now_ms)
{
	switch (e->kind) {
	case EFFECT_BEGIN:
		begin_training(p, c, now_ms);
		break;
	case EFFECT_EPOCH_BEGUN:
		/* the epoch starts now, so that its time does not include the previous
		 * evaluation */
		p->epoch_ms = now_ms;
		break;
	case EFFECT_TRAINED:
		end_epoch(p, c, now_ms);
		break;
	case EFFECT_EVALUATED:
		log_epoch(p, c, e->epoch, core_epoch(c, e->epoch));
		break;
	default:
		break;
	}
}

double progress_seconds(const struct progress *p, const struct core *c, uint64_t now_ms)
{
	uint64_t end = p->end_ms ? p->end_ms : now_ms;
	struct work_view work;

	core_work(c, &work);
	if (core_config(c)->training.epochs == 0 && work.push_ms)
		end = work.push_ms;
	return p->begin_ms ? (double)(end - p->begin_ms) / 1000 : 0;
}

/* ---- the bar ------------------------------------------------------------------------------- */

/* Measures the rates from the previous measurement to `now_ms`. */
static void measure_rates(struct progress *p, const struct core *c, uint64_t now_ms)
{
	const struct core_stats *s = core_stats(c);
	double seconds = (double)(now_ms - p->rate_ms) / 1000;
	uint64_t computed = computed_images(c);

	p->rate_s = seconds;
	p->images_per_s = (double)(computed - p->rate_images) / seconds;
	p->updates_per_s = (double)(s->updates - p->rate_updates) / seconds;
	p->rate_ms = now_ms;
	p->rate_images = computed;
	p->rate_updates = s->updates;
}

int progress_end(struct progress *p, const struct core *c, uint64_t now_ms)
{
	uint64_t end_ms = p->end_ms ? p->end_ms : now_ms;

	if (!p->begin_ms || p->rate_s > 0)
		return 0;
	measure_rates(p, c, end_ms > p->rate_ms ? end_ms : p->rate_ms + 1);
	return 1;
}

const struct epoch_record *progress_evaluated(const struct core *c)
{
	for (uint32_t e = core_training_epoch(c); e-- > 0;)
		if (core_is_evaluated(c, e))
			return core_epoch(c, e);
	return NULL;
}

/* Writes to *v the share of the run that is done, and the time until it ends. */
static void read_end(const struct core *c, struct progress_view *v)
{
	double all = (double)core_train_images(c) * v->epochs, images = (double)v->images;
	double max = (double)v->max_updates, updates = (double)v->updates;
	double left_s = INFINITY;

	if (all > 0)
		v->done = images / all;
	if (max > 0 && updates > v->done * max)
		v->done = updates < max ? updates / max : 1;
	if (all > 0 && v->images_per_s > 0)
		left_s = (all - images) / v->images_per_s;
	if (max > 0 && v->updates_per_s > 0)
		left_s = fmin(left_s, fmax(0, max - updates) / v->updates_per_s);
	v->eta_s = isfinite(left_s) && v->workers > 0 ? left_s : -1;
}

void progress_read(const struct progress *p, const struct core *c, struct progress_view *v)
{
	const struct core_config *cfg = core_config(c);
	const struct core_stats *s = core_stats(c);
	const struct epoch_record *tested = progress_evaluated(c);
	uint32_t epoch = core_training_epoch(c);
	struct work_view work;

	core_work(c, &work);
	*v = (struct progress_view){.epochs = cfg->training.epochs,
		.epoch = epoch < cfg->training.epochs ? epoch + 1 : cfg->training.epochs,
		.pass = work.pass,
		.images = work.images,
		.updates = s->updates,
		.max_updates = cfg->training.max_updates,
		.images_per_s = p->images_per_s,
		.updates_per_s = p->updates_per_s,
		.loss = s->loss,
		.accuracy = tested ? epoch_accuracy(c, tested) : (double)NAN,
		.test_loss = tested ? tested->eval_loss_sum / tested->eval_done : (double)NAN,
		.workers = core_live_workers(c)};
	if (tested)
		epoch_metrics_bar(c, tested, v->metrics);
	read_end(c, v);
}

static void append_text(char *out, size_t size, size_t *at, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static void append_text(char *out, size_t size, size_t *at, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	int n = vsnprintf(out + *at, size - *at, fmt, ap);
	va_end(ap);
	*at += n < 0 ? 0 : (size_t)n < size - *at ? (size_t)n : size - *at - 1;
}

/* Writes the bar of a run that waits: the progress so far, and the reason of the wait. */
static void waiting_bar(const struct progress_view *v, char *out, size_t size)
{
	size_t at = 0;

	out[0] = '\0';
	if (v->epochs > 0 && v->done > 0)
		append_text(out, size, &at, "epoch %u/%u %d %%  ", v->epoch, v->epochs,
			(int)(v->done * 100));
	else if (v->updates > 0)
		append_text(out, size, &at, "%llu updates  ", (unsigned long long)v->updates);
	append_text(out, size, &at, "%s", v->waiting);
}

/* Writes the result of the newest evaluation, such as "  accuracy 97.00 %". */
static void append_result(const struct progress_view *v, char *out, size_t size, size_t *at)
{
	char text[NUMBER_TEXT];

	if (v->accuracy >= 0)
		append_text(out, size, at, "  accuracy %.2f %%", 100 * v->accuracy);
	else if (isfinite(v->test_loss))
		append_text(out, size, at, "  test loss %s", number_text_loss(v->test_loss, text));
	append_text(out, size, at, "%s", v->metrics);
}

/* Writes the share of the run that is done, with a bar of `width` characters, or without a bar if
 * `width` is 0. */
static void append_done(
	const struct progress_view *v, int width, char *out, size_t size, size_t *at)
{
	int full = v->done >= 1 ? width : (int)(v->done * width);

	if (width)
		append_text(out, size, at, " [%.*s%.*s]", full, "####################",
			width - full, "....................");
	append_text(out, size, at, " %3d %%", (int)(v->done * 100));
}

/* What a bar leaves out, so that it fits into the columns of a terminal. Each value also leaves out
 * what the values before it leave out. */
enum leave_out {
	LEAVE_OUT_NOTHING,
	LEAVE_OUT_HALF_OF_BAR,
	LEAVE_OUT_BAR,
	LEAVE_OUT_LOSS, /* leaves out the loss, but only if there is the result of an evaluation */
	LEAVE_OUT_RATE,
	LEAVE_OUT_WORKERS,
	LEAVE_OUT_STEPS,
};

static void write_bar(const struct progress_view *v, enum leave_out less, char *out, size_t size)
{
	int width = less >= LEAVE_OUT_BAR ? 0 : less >= LEAVE_OUT_HALF_OF_BAR ? BAR / 2 : BAR;
	int has_result = v->accuracy >= 0 || isfinite(v->test_loss) || v->metrics[0];
	size_t at = 0;
	char text[NUMBER_TEXT];

	if (v->epochs > 0)
		append_text(out, size, &at, "epoch %u/%u", v->epoch, v->epochs);
	else
		append_text(out, size, &at, "%llu updates", (unsigned long long)v->updates);
	/* The bar names the pass, because in a line search each new pass computes the images of the
	 * step again. */
	if (v->pass > 1)
		append_text(out, size, &at, " pass %u", v->pass);
	if (v->epochs > 0 || v->max_updates > 0)
		append_done(v, width, out, size, &at);
	if (less < LEAVE_OUT_RATE)
		append_text(out, size, &at, "  %.0f %s/s",
			v->epochs > 0 ? v->images_per_s : v->updates_per_s,
			v->epochs > 0 ? "images" : "updates");
	if (less < LEAVE_OUT_LOSS || !has_result)
		append_text(out, size, &at, "  loss %s", number_text_loss(v->loss, text));
	append_result(v, out, size, &at);
	if (v->eta_s >= 0)
		append_text(out, size, &at, "  ETA %s", number_text_time(v->eta_s, text));
	if (less < LEAVE_OUT_WORKERS)
		append_text(
			out, size, &at, "  %u worker%s", v->workers, v->workers == 1 ? "" : "s");
}

void progress_bar(const struct progress_view *v, size_t columns, char *out, size_t size)
{
	if (v->waiting) {
		waiting_bar(v, out, size);
		return;
	}
	for (int less = LEAVE_OUT_NOTHING; less < LEAVE_OUT_STEPS; less++) {
		write_bar(v, (enum leave_out)less, out, size);
		if (strlen(out) <= columns)
			return;
	}
}

int progress_tick(
	struct progress *p, const struct core *c, const struct waiting *waiting, uint64_t now_ms)
{
	char line[256], why[WAITING_TEXT];
	struct progress_view v;

	int measured = now_ms - p->rate_ms >= RATE_MS;

	if (measured)
		measure_rates(p, c, now_ms);
	if (!log_on_terminal() || now_ms - p->drawn_ms < DRAW_MS)
		return measured;
	p->drawn_ms = now_ms;
	progress_read(p, c, &v);
	if (waiting && waiting_text(waiting, why))
		v.waiting = why;
	progress_bar(&v, log_columns(), line, sizeof(line));
	log_progress(line);
	return measured;
}
