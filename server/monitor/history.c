/* history.c - see history.h. */
#include "server/monitor/history.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/io.h"
#include "common/log.h"
#include "common/mem.h"
#include "server/config/options.h"
#include "server/core/core.h"
#include "server/core/view.h"
#include "server/monitor/epoch_metrics.h"
#include "server/monitor/membership.h"
#include "server/monitor/status.h"
#include "server/net/clients.h"

#define SAMPLE_MS 1000
/* maximum interval that restored_interval_ms computes from the samples of a file, whose times can
 * be wrong */
#define MAX_SAMPLE_MS ((uint64_t)SAMPLE_MS << 12)
#define EPOCH_BYTES   1024 /* maximum size in bytes of an epoch's line */
/* number of failed writes in a row after which the history logs the failure */
#define MAX_ERRORS 3
#define RETRY_MS   10000
/* maximum number of lines that one start adds for starts whose lines were lost */
#define MAX_LOST_STARTS 100u
/* maximum number of files that starts have renamed because they could not read them */
#define MAX_ASIDE 100

/* history_short returns at most SHORT_BYTES. SHORT_ALWAYS is the maximum number of bytes of the
 * lines that choose_always chooses. Each of the other constants is the maximum number of bytes of
 * the lines of one kind that history_short chooses in addition. If SHORT_BYTES has no room for all
 * of them, these maximums are lower, in the same proportion. */
#define SHORT_BYTES   (((size_t)1 << 20) - 1)
#define SHORT_ALWAYS  ((size_t)512 << 10)
#define SHORT_SAMPLES ((size_t)512 << 10)
#define SHORT_EPOCHS  ((size_t)192 << 10)
#define SHORT_WORKERS ((size_t)96 << 10)
#define SHORT_OTHERS  ((size_t)64 << 10)
#define SHORT_SUM     (SHORT_SAMPLES + SHORT_EPOCHS + SHORT_WORKERS + SHORT_OTHERS)

enum line_kind { LINE_OTHER, LINE_SAMPLE, LINE_WORKER, LINE_EPOCH, LINE_KINDS };

struct line {
	char *text; /* the line with its newline; owned */
	size_t bytes;
	enum line_kind kind;
	uint32_t number; /* LINE_WORKER: the worker's id; LINE_EPOCH: number of the epoch, from 1 */
	uint64_t t;      /* LINE_SAMPLE: time of the sample */
};

/* This struct describes a write to the history file. The write either makes a new file with all
 * lines, or appends the new lines to the file. */
struct job {
	uv_work_t work;
	const char *dir;
	char *text;
	size_t bytes, lines;
	size_t at; /* offset of the write in the file; 0: make a new file */
	int rc;
	int is_gone; /* 1: the write could not open the file, so the next write makes a new one */
	struct err e;
};

struct history {
	uv_loop_t *loop;
	const char *dir; /* directory of the file; NULL: the history has no file */
	struct line *line;
	size_t n, room;
	size_t bytes[LINE_KINDS]; /* number of bytes of the lines of each kind */
	/* number and bytes of the complete lines in the file; 0: write a new file */
	size_t on_disk, file_bytes;
	/* interval between samples, and time at which the next one is due */
	uint64_t sample_ms, due_ms;
	/* the history writes nothing before this time; set after a failed write */
	uint64_t write_ms;
	uint64_t newest_t; /* the highest "t" of all lines */
	/* the same moment on two clocks: "t" was start_t when clock_boot_ms returned
	 * start_boot_ms */
	uint64_t start_t, start_boot_ms;
	/* the epoch with the best accuracy or, without accuracies, with the lowest test loss; 0: no
	 * epoch has an accuracy or a test loss */
	uint32_t best_epoch;
	double best_score; /* accuracy of best_epoch or, without accuracies, minus its test loss */
	history_line_fn *listen;
	void *arg;
	int busy, failed, shortened; /* shortened: 1 if the history dropped lines during a write */
	/* 1: the last lines were added during a write, and no tick will write them */
	int ended;
	int diverged; /* 1: the previous server of this run ended because training had diverged */
	uint64_t read_term; /* the highest term of the lines in the file at the start */
	struct job job;
};

/* ---- lines ----------------------------------------------------------------------------------- */

static void drop_line(struct history *h, size_t i)
{
	h->bytes[h->line[i].kind] -= h->line[i].bytes;
	free(h->line[i].text);
	h->line[i].text = NULL;
}

/* Closes the gaps that drop_line has left in the list. After that, the next write must replace the
 * whole file. */
static void pack(struct history *h)
{
	size_t n = 0, bytes[LINE_KINDS] = {0};

	for (size_t i = 0; i < h->n; i++)
		if (h->line[i].text)
			h->line[n++] = h->line[i];
	h->n = n;
	for (size_t i = 0; i < n; i++)
		bytes[h->line[i].kind] += h->line[i].bytes;
	PS_ASSERT(memcmp(bytes, h->bytes, sizeof(bytes)) == 0); /* invariant 1 */
	h->on_disk = h->file_bytes = 0;
	h->shortened = h->busy;
}

/* Drops every second sample, and doubles the interval between new samples. */
static void thin_samples(struct history *h)
{
	size_t seen = 0;

	for (size_t i = 0; i < h->n; i++)
		if (h->line[i].kind == LINE_SAMPLE && seen++ % 2)
			drop_line(h, i);
	pack(h);
	h->sample_ms *= 2;
}

/* Drops the older half of the lines about workers, except the newest line of each worker, which has
 * the worker's name and host. */
static void drop_changes(struct history *h)
{
	const size_t half = h->bytes[LINE_WORKER] / 2;
	size_t newest[WIRE_MAX_WORKERS + 1] = {0};

	for (size_t i = 0; i < h->n; i++)
		if (h->line[i].kind == LINE_WORKER)
			newest[h->line[i].number] = i;
	for (size_t i = 0; i < h->n && h->bytes[LINE_WORKER] > half; i++)
		if (h->line[i].kind == LINE_WORKER && newest[h->line[i].number] != i)
			drop_line(h, i);
	pack(h);
}

/* Drops the older half of the lines about starts, ends and disputes, but not the first line of the
 * history, which usually is that of the first start. */
static void drop_starts(struct history *h)
{
	const size_t half = h->bytes[LINE_OTHER] / 2;

	for (size_t i = 1; i < h->n && h->bytes[LINE_OTHER] > half; i++)
		if (h->line[i].kind == LINE_OTHER)
			drop_line(h, i);
	pack(h);
}

/* Keeps promise 1 of history.h by dropping half of the lines of the kind with the most bytes. The
 * limit applies to three kinds, so this kind has at least a third of the bytes, and half of these
 * bytes are enough for the new line. */
static void stay_bounded(struct history *h)
{
	const size_t samples = h->bytes[LINE_SAMPLE], changes = h->bytes[LINE_WORKER],
		     starts = h->bytes[LINE_OTHER];

	if (samples + changes + starts <= HISTORY_BYTES)
		return;
	if (samples >= changes && samples >= starts)
		thin_samples(h);
	else if (changes >= starts)
		drop_changes(h);
	else
		drop_starts(h);
}

/* Inserts `line` as line `at`, and counts its bytes. Takes over its text, which ends in a newline;
 * the text may be NULL. */
static void insert_line(struct history *h, size_t at, struct line line)
{
	if (h->n == h->room) {
		size_t room = h->room ? 2 * h->room : 256;
		struct line *more = realloc(h->line, room * sizeof(*more));

		if (more) {
			h->line = more;
			h->room = room;
		}
	}
	if (!line.text || h->n == h->room) {
		free(line.text);
		return;
	}
	line.bytes = strlen(line.text);
	if (line.t > h->newest_t)
		h->newest_t = line.t;
	memmove(h->line + at + 1, h->line + at, (h->n - at) * sizeof(*h->line));
	h->line[at] = line;
	h->n++;
	h->bytes[line.kind] += line.bytes;
	if (h->listen)
		h->listen(h->arg, line.text);
	stay_bounded(h);
}

/* Returns the text of `o` with a newline, or NULL if there is no memory. Releases `o`. */
static char *object_text(json_t *o)
{
	char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(7)) : NULL;
	size_t n = text ? strlen(text) : 0;
	char *line = text ? realloc(text, n + 2) : NULL;

	json_decref(o);
	if (line)
		memcpy(line + n, "\n", 2);
	else
		free(text);
	return line;
}

/* Updates best_epoch and best_score from `o`, the line of epoch number `number`. */
static void note_best(struct history *h, const json_t *o, uint32_t number)
{
	const json_t *accuracy = json_object_get(o, "accuracy");
	const json_t *loss = json_object_get(o, "test_loss");
	int has_accuracy = json_is_number(accuracy);
	double score = has_accuracy ? json_number_value(accuracy) : -json_number_value(loss);

	if ((!has_accuracy && !json_is_number(loss)) || (h->best_epoch && score <= h->best_score))
		return;
	h->best_epoch = number;
	h->best_score = score;
}

static uint64_t time_of(const json_t *o)
{
	return (uint64_t)json_integer_value(json_object_get(o, "t"));
}

static uint64_t term_of(const json_t *o)
{
	return (uint64_t)json_integer_value(json_object_get(o, "term"));
}

/* Returns the time of a new last line: the wall clock at the start of the server plus the time
 * since then. So steps of the wall clock do not change the times of the history. If the clock has
 * stepped back between two starts, the history's time goes on from the newest line. */
static uint64_t next_t(struct history *h)
{
	uint64_t t = h->start_t + clock_boot_ms() - h->start_boot_ms;

	if (t < h->newest_t) {
		h->start_t += h->newest_t - t;
		t = h->newest_t;
	}
	return t;
}

/* Adds `o` as the last line, and releases `o`. */
static void add_object(struct history *h, json_t *o, enum line_kind kind, uint32_t number)
{
	if (kind == LINE_EPOCH)
		note_best(h, o, number);
	const uint64_t t = next_t(h);

	(void)json_object_set_new(o, "t", json_integer((json_int_t)t));
	insert_line(h, h->n,
		(struct line){.text = object_text(o), .kind = kind, .number = number, .t = t});
}

static json_t *count(uint64_t n)
{
	return json_integer((json_int_t)n);
}

static json_t *real_or_null(double x)
{
	json_t *o = json_real(x);

	return o ? o : json_null(); /* null for NaN and infinity, which json_real refuses */
}

/* Returns a line whose time is not set yet. */
static json_t *begin_object(const struct status *now, const char *kind)
{
	return json_pack("{s:i, s:s, s:o}", "t", 0, "kind", kind, "term",
		count(core_config(now->core)->term));
}

static void set(json_t *o, const char *key, json_t *value)
{
	(void)json_object_set_new(o, key, value ? value : json_null());
}

/* ---- start, end, workers, epochs ------------------------------------------------------------- */

/* Returns a flag as a boolean, a number as a number, and a name in the form that a user types. */
static json_t *option_value(const struct core_config *c, const struct config_row *row)
{
	double v = config_value(c, row);
	size_t n;

	if (row->type == CONFIG_FLAG)
		return json_boolean(v != 0);
	if (row->type == CONFIG_REAL)
		return real_or_null(v);
	if (row->type != CONFIG_ENUM)
		return json_integer((json_int_t)v);
	const char *name = config_name(row, v, &n);
	if (name[n] == '[')
		return json_sprintf("%.*s:%.0f", (int)n, name, config_value(c, row + 1));
	return json_stringn(name, n);
}

/* Returns the options of the core, and those other options that decide when the run ends and which
 * weights it saves in files. */
static json_t *options_object(const struct core_config *c, const struct options *given)
{
	json_t *o = json_object();

	for (size_t i = 0; i < config_n_rows; i++)
		if (config_rows[i].type != CONFIG_GROUP && !config_rows[i].is_suffix)
			set(o, config_rows[i].name, option_value(c, &config_rows[i]));
	set(o, "metrics", json_string(c->metrics[0] ? c->metrics : "accuracy"));
	set(o, "stop-at", given->stop_at ? json_string(given->stop_at) : NULL);
	set(o, "patience-epochs", count((uint64_t)given->patience_epochs));
	set(o, "keep", given->keep_text ? json_string(given->keep_text) : NULL);
	return o;
}

static void name_run(const struct core_config *cfg, char text[33])
{
	snprintf(text, 33, "%016" PRIx64 "%016" PRIx64, cfg->run.hi, cfg->run.lo);
}

static void add_start(
	struct history *h, const struct status *now, const struct options *given, int resumed)
{
	const struct core_config *cfg = core_config(now->core);
	json_t *o = begin_object(now, "start");
	char run[33];

	name_run(cfg, run);
	set(o, "run", json_string(run));
	set(o, "resumed", json_boolean(resumed));
	set(o, "model", json_string(cfg->model));
	set(o, "n_params", count(cfg->n_params));
	set(o, "version", count(core_stats(now->core)->version));
	set(o, "generation", count(cfg->generation));
	set(o, "options", options_object(cfg, given));
	add_object(h, o, LINE_OTHER, 0);
}

/* Adds a line for each earlier start that has no line, because its server was killed before it
 * could write one, for example on a full disk. The line has the present time, and null in the
 * fields whose values are lost. A server writes the line of its start first, so the starts without
 * a line are those after the highest term in the file. */
static void add_lost_starts(struct history *h, const struct status *now)
{
	const struct core_config *cfg = core_config(now->core);
	uint64_t term = h->read_term + 1;
	char run[33];

	name_run(cfg, run);
	if (cfg->term > MAX_LOST_STARTS && term < cfg->term - MAX_LOST_STARTS)
		term = cfg->term - MAX_LOST_STARTS;
	for (; term < cfg->term; term++) {
		json_t *o = begin_object(now, "start");

		set(o, "term", count(term));
		set(o, "run", json_string(run));
		set(o, "resumed", h->n ? json_true() : NULL);
		set(o, "model", json_string(cfg->model));
		set(o, "n_params", count(cfg->n_params));
		for (size_t i = 0; i < 3; i++)
			set(o, (const char *const[]){"version", "generation", "options"}[i], NULL);
		add_object(h, o, LINE_OTHER, 0);
	}
}

static void add_worker(struct history *h, const struct status *now, const struct effect *e)
{
	const struct label *l = labels_of(now->labels, e->worker);
	json_t *o = begin_object(now, "worker");
	struct worker_view v;

	core_worker(now->core, e->worker - 1, &v);
	set(o, "worker", count(v.worker));
	set(o, "change", json_string(membership_name(e->change)));
	set(o, "name", json_string(v.name));
	set(o, "host", json_string(l->host));
	set(o, "device", json_string(v.device));
	set(o, "images", count(v.images));
	add_object(h, o, LINE_WORKER, v.worker);
}

static void add_dispute(struct history *h, const struct status *now, const struct effect *e)
{
	json_t *o = begin_object(now, "dispute"), *results = json_array();

	set(o, "epoch", count(e->epoch + 1));
	set(o, "first", count(e->dispute.first));
	set(o, "images", count(e->dispute.count));
	for (uint32_t i = 0; i < e->dispute.votes; i++) {
		json_t *vote = json_object();

		set(vote, "worker", count(e->dispute.worker[i]));
		set(vote, "correct", count(e->dispute.correct[i]));
		set(vote, "loss", json_real(e->dispute.loss[i] / e->dispute.count));
		(void)json_array_append_new(results, vote);
	}
	set(o, "results", results);
	set(o, "outvoted", e->worker ? count(e->worker) : json_null());
	add_object(h, o, LINE_OTHER, 0);
}

/* Returns the line of an epoch. `rate` is the images/s of the epoch, or NaN if it is not known. */
static json_t *epoch_line(const struct status *now, uint32_t epoch, double rate)
{
	const struct epoch_record *r = core_epoch(now->core, epoch);
	json_t *o = begin_object(now, "epoch");

	set(o, "epoch", count(epoch + 1));
	set(o, "images", count(r->images));
	set(o, "updates", count(r->updates));
	set(o, "loss", real_or_null(r->loss_sum / (double)r->images));
	set(o, "accuracy", epoch_accuracy_json(now->core, r));
	set(o, "test_loss", real_or_null(r->eval_loss_sum / r->eval_done));
	set(o, "metrics", epoch_metrics(now->core, r));
	set(o, "images_per_s", real_or_null(rate));
	return o;
}

/* ---- samples --------------------------------------------------------------------------------- */

/* Returns a list with the share of the worker's time in percent for each part of tally_part, or
 * null if the shares are unknown. */
static json_t *percents(const struct tally *t)
{
	json_t *list = json_array();
	double sum = 0;

	for (int i = 0; i < TALLY_PARTS; i++) {
		json_array_append_new(list, count((uint64_t)(100 * t->share[i] + 0.5)));
		sum += t->share[i];
	}
	if (sum > 0)
		return list;
	json_decref(list);
	return json_null();
}

/* Returns a list with [worker, state, images/s, staleness or null, silent ms, percents] for each
 * worker that is not gone. */
static json_t *sample_workers(const struct status *now)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < core_config(now->core)->sessions.max_workers; i++) {
		struct worker_view w;
		const struct tally *t = tallies_of(now->tallies, i + 1);

		core_worker(now->core, i, &w);
		if (w.state == SESSION_FREE || w.state == SESSION_DEAD)
			continue;
		json_array_append_new(
			list, json_pack("[o, s, o, o, o, o]", count(w.worker),
				      status_worker_state(&w), status_rate(t->images_per_s),
				      t->staleness < 0 ? json_null() : real_or_null(t->staleness),
				      count(now->now_ms > w.last_message_ms
						      ? now->now_ms - w.last_message_ms
						      : 0),
				      percents(t)));
	}
	return list;
}

static void add_sample(struct history *h, const struct status *now)
{
	const struct core_stats *t = core_stats(now->core);
	struct progress_view v;
	struct work_view work;
	uint64_t rejected = 0;
	json_t *o = begin_object(now, "sample");

	progress_read(now->progress, now->core, &v);
	core_work(now->core, &work);
	for (int i = 0; i < REJECT_REASONS; i++)
		rejected += t->rejected[i];
	set(o, "epoch", count(v.epoch));
	set(o, "images", count(v.images));
	set(o, "updates", count(t->updates));
	set(o, "images_per_s", real_or_null(v.images_per_s));
	set(o, "learning_rate", real_or_null(work.rate));
	set(o, "loss", t->loss > 0 ? real_or_null(t->loss) : NULL);
	set(o, "live", count(v.workers));
	set(o, "pushes", count(t->pushes));
	set(o, "duplicates", count(t->duplicates));
	set(o, "rejected", count(rejected));
	if (rejected)
		set(o, "rejected_for", status_rejected_for(t));
	set(o, "refusals", count(t->refused + now->net.malformed));
	set(o, "generation", now->checkpointer ? count(now->checkpointer->generation) : NULL);
	set(o, "checkpoint_s", now->checkpointer ? real_or_null(now->checkpointer->seconds) : NULL);
	set(o, "degraded", status_degraded(now) ? json_string(status_degraded(now)) : NULL);
	set(o, "time", status_time(now));
	set(o, "workers", sample_workers(now));
	add_object(h, o, LINE_SAMPLE, 0);
}

/* ---- the file -------------------------------------------------------------------------------- */

static int append(struct job *j)
{
	char path[4096 + 16];

	snprintf(path, sizeof(path), "%s/" HISTORY_FILE, j->dir);
	int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		j->is_gone = 1;
		return err_set(&j->e, PS_EIO, "%s: open: %s", path, strerror(errno));
	}
	int failed = lseek(fd, (off_t)j->at, SEEK_SET) < 0 || io_write_all(fd, j->text, j->bytes);
	if (failed) {
		err_set(&j->e, PS_EIO, "%s: write: %s", path, strerror(errno));
		/* if this fails, too, the next start repairs the file */
		if (ftruncate(fd, (off_t)j->at) != 0)
			err_set(&j->e, PS_EIO, "%s: truncate: %s", path, strerror(errno));
	}
	close(fd);
	return failed ? PS_EIO : PS_OK;
}

/* Carries out the write that job `work->data` describes. Runs on a thread of the pool. */
static void write_lines(uv_work_t *work)
{
	struct job *j = work->data;
	const struct file_part part = {j->text, j->bytes};

	j->rc = j->at ? append(j) : file_replace(j->dir, HISTORY_FILE, &part, 1, &j->e);
}

/* Returns the number of bytes of lines [from, to). */
static size_t bytes_of_lines(const struct history *h, size_t from, size_t to)
{
	size_t bytes = 0;

	for (size_t i = from; i < to; i++)
		bytes += h->line[i].bytes;
	return bytes;
}

static void note_written(struct history *h)
{
	const struct job *j = &h->job;

	if (j->rc) {
		if (++h->failed == MAX_ERRORS)
			log_warn("history", "failed", "reason=\"%s\"", j->e.text);
		if (j->is_gone)
			h->on_disk = h->file_bytes = 0;
		h->write_ms = UINT64_MAX;
		return;
	}
	if (h->failed >= MAX_ERRORS)
		log_info("history", "works_again", "lines=%zu", j->lines);
	h->failed = 0;
	if (h->shortened)
		return;
	/* invariant 2: the write has appended the lines that follow those of the file */
	PS_ASSERT(j->at == h->file_bytes && j->lines <= h->n - h->on_disk);
	PS_ASSERT(j->bytes == bytes_of_lines(h, h->on_disk, h->on_disk + j->lines));
	h->on_disk += j->lines;
	h->file_bytes += j->bytes;
}

static char *join_lines(const struct history *h, size_t from, size_t *bytes)
{
	const size_t n = bytes_of_lines(h, from, h->n);
	char *text = mem_try(n + 1, 1), *at = text;

	for (size_t i = from; text && i < h->n; i++) {
		memcpy(at, h->line[i].text, h->line[i].bytes);
		at += h->line[i].bytes;
	}
	*bytes = n;
	return text;
}

static void on_written(uv_work_t *work, int status);

static void begin_write(struct history *h, uint64_t now_ms)
{
	struct job *j = &h->job;

	if (h->write_ms == UINT64_MAX) /* UINT64_MAX means that the newest write has failed */
		h->write_ms = now_ms + RETRY_MS;
	if (!h->dir || h->busy || h->on_disk == h->n || now_ms < h->write_ms)
		return;
	*j = (struct job){.dir = h->dir, .at = h->file_bytes, .lines = h->n - h->on_disk};
	j->text = join_lines(h, h->on_disk, &j->bytes);
	if (!j->text)
		return;
	j->work.data = j;
	h->busy = 1;
	(void)uv_queue_work(h->loop, &j->work, write_lines, on_written);
}

static void on_written(uv_work_t *work, int status)
{
	struct history *h = (struct history *)((char *)work - offsetof(struct history, job.work));

	if (status != 0)
		h->job.rc = err_set(&h->job.e, PS_EIO, "%s", uv_strerror(status));
	h->busy = 0;
	note_written(h);
	h->shortened = 0;
	free(h->job.text);
	h->job.text = NULL;
	if (h->ended) {
		h->ended = 0;
		h->write_ms = 0; /* do not wait after a failed write: this is the last attempt */
		begin_write(h, 0);
	}
}

void history_effect(struct history *h, const struct status *now, const struct effect *e)
{
	if (e->kind == EFFECT_WORKER)
		add_worker(h, now, e);
	else if (e->kind == EFFECT_DISPUTED)
		add_dispute(h, now, e);
	else if (e->kind == EFFECT_EVALUATED)
		add_object(h, epoch_line(now, e->epoch, now->progress->epoch_rate), LINE_EPOCH,
			e->epoch + 1);
	begin_write(h, now->now_ms);
}

void history_tick(struct history *h, const struct status *now)
{
	if (now->now_ms >= h->due_ms) {
		h->due_ms = now->now_ms + h->sample_ms;
		add_sample(h, now);
	}
	begin_write(h, now->now_ms);
}

void history_end(struct history *h, const struct status *now)
{
	add_sample(h, now);
	/* make this line after the sample, so that the line's time is not before that of the
	 * sample */
	json_t *o = begin_object(now, "end");
	set(o, "status", json_string(status_ending(now->ending)));
	set(o, "stop_reason", now->stop_reason ? json_string(now->stop_reason) : NULL);
	add_object(h, o, LINE_OTHER, 0);
	h->ended = 1;
	h->write_ms = 0; /* do not wait after a failed write: this is the last attempt */
	begin_write(h, now->now_ms);
}

int history_busy(const struct history *h)
{
	return h && h->busy;
}

char *history_text(const struct history *h)
{
	size_t bytes;

	return join_lines(h, 0, &bytes);
}

/* ---- the short history ----------------------------------------------------------------------- */

/* Says whether the short history contains a line: no, or because of choose_every or
 * choose_always. */
enum choice { CHOICE_NONE, CHOICE_NORMAL, CHOICE_ALWAYS };

/* Chooses every n-th line of a kind and the last one. Lines that choose_always has chosen stay
 * chosen, and do not count: the function takes every n-th one of the other lines. Returns the
 * number of bytes of the lines that this function has chosen. */
static size_t choose_every(
	const struct history *h, enum line_kind kind, size_t every, unsigned char *chosen)
{
	size_t seen = 0, last = h->n, bytes = 0;

	for (size_t i = 0; i < h->n; i++)
		if (h->line[i].kind == kind && chosen[i] != CHOICE_ALWAYS) {
			chosen[i] = seen++ % every == 0 ? CHOICE_NORMAL : CHOICE_NONE;
			bytes += chosen[i] ? h->line[i].bytes : 0;
			last = i;
		}
	if (last < h->n && !chosen[last]) {
		chosen[last] = CHOICE_NORMAL;
		bytes += h->line[last].bytes;
	}
	return bytes;
}

/* Chooses the lines of a kind for the short history: all of them if they have at most `max` bytes,
 * otherwise every n-th one and the last one. */
static void choose_evenly(
	const struct history *h, enum line_kind kind, size_t max, unsigned char *chosen)
{
	size_t every = 1 + h->bytes[kind] / (max + 1);

	/* lines have different lengths, so the chosen ones can have more than `max` bytes: try a
	 * larger n */
	while (choose_every(h, kind, every, chosen) > max && every <= h->n)
		every++;
}

/* Chooses the newest lines of a kind, as long as the chosen lines have at most `max` bytes
 * together. */
static void choose_newest(
	const struct history *h, enum line_kind kind, size_t max, unsigned char *chosen)
{
	size_t bytes = 0;

	for (size_t i = h->n; i-- > 0;)
		if (h->line[i].kind == kind && chosen[i] != CHOICE_ALWAYS) {
			bytes += h->line[i].bytes;
			chosen[i] = bytes <= max ? CHOICE_NORMAL : CHOICE_NONE;
		}
}

/* Chooses the first line, the line of the best epoch and the newest line of each worker, but not
 * more than SHORT_ALWAYS bytes. Returns the number of bytes of these lines. */
static size_t choose_always(const struct history *h, unsigned char *chosen)
{
	unsigned char seen[WIRE_MAX_WORKERS + 1] = {0};
	size_t bytes = 0;

	for (size_t i = h->n; i-- > 0;) {
		const struct line *l = &h->line[i];
		const int newest = l->kind == LINE_WORKER && !seen[l->number];
		const int best = l->kind == LINE_EPOCH && l->number == h->best_epoch;

		if (newest)
			seen[l->number] = 1;
		if ((i == 0 || newest || best) && bytes + l->bytes <= SHORT_ALWAYS) {
			chosen[i] = CHOICE_ALWAYS;
			bytes += l->bytes;
		}
	}
	return bytes;
}

char *history_short(const struct history *h)
{
	unsigned char *chosen = mem_try(h->n + 1, 1);
	size_t n = 0;

	if (!chosen)
		return NULL;
	const double room = (double)(SHORT_BYTES - choose_always(h, chosen)) / SHORT_SUM,
		     part = room < 1 ? room : 1;
	choose_evenly(h, LINE_SAMPLE, (size_t)(part * SHORT_SAMPLES), chosen);
	choose_evenly(h, LINE_EPOCH, (size_t)(part * SHORT_EPOCHS), chosen);
	choose_newest(h, LINE_WORKER, (size_t)(part * SHORT_WORKERS), chosen);
	choose_newest(h, LINE_OTHER, (size_t)(part * SHORT_OTHERS), chosen);
	for (size_t i = 0; i < h->n; i++)
		n += chosen[i] ? h->line[i].bytes : 0;
	char *text = mem_try(n + 1, 1), *at = text;
	for (size_t i = 0; text && i < h->n; i++)
		if (chosen[i]) {
			memcpy(at, h->line[i].text, h->line[i].bytes);
			at += h->line[i].bytes;
		}
	free(chosen);
	return text;
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Returns the "kind" of line `o`, or NULL if the line is incomplete or is not a line of a
 * history. */
static const char *line_kind_of(const json_t *o)
{
	return json_is_integer(json_object_get(o, "t"))
		       ? json_string_value(json_object_get(o, "kind"))
		       : NULL;
}

/* Finds the kind and the number of a line, as struct line defines them. Returns 0 if a history
 * cannot contain such a line. */
static int sort_line(const struct status *now, const json_t *o, const char *kind,
	enum line_kind *is, uint32_t *number)
{
	const json_int_t epoch = json_integer_value(json_object_get(o, "epoch")),
			 worker = json_integer_value(json_object_get(o, "worker"));

	*is = LINE_OTHER;
	*number = 0;
	if (strcmp(kind, "sample") == 0) {
		*is = LINE_SAMPLE;
	} else if (strcmp(kind, "worker") == 0) {
		if (worker < 1 || worker > WIRE_MAX_WORKERS)
			return 0;
		*is = LINE_WORKER;
		*number = (uint32_t)worker;
	} else if (strcmp(kind, "epoch") == 0) {
		if (epoch < 1 || epoch > core_config(now->core)->training.epochs)
			return 0;
		*is = LINE_EPOCH;
		*number = (uint32_t)epoch;
	}
	return 1;
}

static char *copy_line(const char *text, size_t n)
{
	char *copy = mem_try(n + 2, 1);

	if (copy) {
		memcpy(copy, text, n);
		copy[n] = '\n';
	}
	return copy;
}

static void note_divergence(struct history *h, const char *kind, const json_t *o)
{
	const char *status = json_string_value(json_object_get(o, "status"));

	if (strcmp(kind, "start") == 0)
		h->diverged = 0;
	else if (strcmp(kind, "end") == 0)
		h->diverged = status && strcmp(status, status_ending(PS_EDIVERGED)) == 0;
}

/* Keeps a line of the file if it is complete, belongs to the run, and does not contradict the core.
 * The function marks in `seen` the epochs whose lines it has kept. */
static void keep_line(struct history *h, const struct status *now, const char *text, size_t n,
	unsigned char *seen, int *of_run)
{
	json_t *o = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
	const char *kind = line_kind_of(o);
	enum line_kind is = LINE_OTHER;
	uint32_t number = 0;
	char run[33];

	name_run(core_config(now->core), run);
	if (kind && strcmp(kind, "start") == 0) {
		const char *of = json_string_value(json_object_get(o, "run"));

		*of_run = of && strcmp(of, run) == 0;
	}
	if (kind && term_of(o) > h->read_term)
		h->read_term = term_of(o);
	int keep = kind && *of_run && sort_line(now, o, kind, &is, &number);
	if (keep && is == LINE_EPOCH) {
		keep = n <= EPOCH_BYTES && !seen[number - 1] &&
		       core_is_evaluated(now->core, number - 1);
		if (keep) {
			seen[number - 1] = 1;
			note_best(h, o, number);
		}
	}
	if (keep)
		note_divergence(h, kind, o);
	const uint64_t t = time_of(o);
	json_decref(o);
	if (keep)
		insert_line(h, h->n,
			(struct line){
				.text = copy_line(text, n), .kind = is, .number = number, .t = t});
}

/* Adds the line of an epoch that the core has and the file lacks, before the lines of later epochs.
 * The time at which this epoch ended is not known. Its line gets the time of the next epoch's line
 * or, if no later epoch has a line, that of the newest line. With the present time, the history
 * would not show for how long no server ran. */
static void add_missing_epoch(struct history *h, const struct status *now, uint32_t epoch)
{
	json_t *o = epoch_line(now, epoch, (double)NAN), *next;
	size_t at = 0;

	while (at < h->n && (h->line[at].kind != LINE_EPOCH || h->line[at].number <= epoch))
		at++;
	next = at < h->n ? json_loads(h->line[at].text, 0, NULL) : NULL;
	if (next)
		set(o, "t", json_incref(json_object_get(next, "t")));
	else
		set(o, "t", count(h->newest_t ? h->newest_t : next_t(h)));
	json_decref(next);
	note_best(h, o, epoch + 1);
	insert_line(h, at,
		(struct line){.text = object_text(o), .kind = LINE_EPOCH, .number = epoch + 1});
}

static void add_missing_epochs(
	struct history *h, const struct status *now, const unsigned char *seen)
{
	for (uint32_t i = 0; i < core_config(now->core)->training.epochs; i++)
		if (core_is_evaluated(now->core, i) && !seen[i])
			add_missing_epoch(h, now, i);
}

/* Renames a file that cannot be read, so that the new file does not replace it. If it cannot be
 * renamed, this process writes no history to the disk. */
static void set_aside(struct history *h, const char *path, const char *reason)
{
	char aside[4096 + 32];

	for (int i = 1; i <= MAX_ASIDE; i++) {
		snprintf(aside, sizeof(aside), "%s.%d", path, i);
		if (access(aside, F_OK) == 0)
			continue;
		if (rename(path, aside) != 0)
			break;
		log_warn("history", "set_aside", "to=%s reason=\"%s\"", aside, reason);
		return;
	}
	log_warn("history", "off",
		"reason=\"%s; the server cannot rename the file, and leaves it as it is\"", reason);
	h->dir = NULL;
}

static void read_lines(struct history *h, const struct status *now, unsigned char *seen)
{
	char path[4096 + 16];
	int of_run = 0;
	void *data;
	size_t size;
	struct err e;

	snprintf(path, sizeof(path), "%s/" HISTORY_FILE, h->dir);
	if (access(path, F_OK) != 0)
		return;
	if (file_read(path,
		    2 * HISTORY_BYTES +
			    EPOCH_BYTES * (size_t)core_config(now->core)->training.epochs,
		    &data, &size, &e)) {
		set_aside(h, path, e.text);
		return;
	}
	const char *at = data, *end = at + size, *stop;
	for (; at < end && (stop = memchr(at, '\n', (size_t)(end - at))); at = stop + 1)
		keep_line(h, now, at, (size_t)(stop - at), seen, &of_run);
	free(data);
}

/* Reads the lines of the file, and drops and adds lines as promises 2 and 4 of history.h demand. */
static int restore(struct history *h, const struct status *now, int resumed, struct err *e)
{
	uint32_t epochs = core_config(now->core)->training.epochs;
	unsigned char *seen = mem_try(epochs + 1u, 1);

	if (!seen)
		return err_set(e, PS_ENOMEM, "no memory for the history");
	if (h->dir)
		read_lines(h, now, seen);
	const int has_lines = h->n > 0;
	/* the lines of missing epochs get old times, so add them before the lost starts */
	if (has_lines)
		add_missing_epochs(h, now, seen);
	if (h->dir && resumed)
		add_lost_starts(h, now);
	if (!has_lines)
		add_missing_epochs(h, now, seen);
	free(seen);
	return PS_OK;
}

static int compare_steps(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Returns the interval at which the restored samples were taken: the median of their distances,
 * rounded to an interval that thin_samples makes. The distance of two samples does not count if the
 * server started between them. */
static uint64_t restored_interval_ms(const struct history *h)
{
	uint64_t *step = mem_try(h->n + 1, sizeof(*step)), ms = SAMPLE_MS, last = 0;
	size_t n = 0;

	if (!step)
		return ms;
	for (size_t i = 0; i < h->n; i++) {
		const struct line *l = &h->line[i];

		if (l->kind == LINE_SAMPLE) {
			if (last && l->t > last)
				step[n++] = l->t - last;
			last = l->t;
		} else if (l->kind == LINE_OTHER) {
			last = 0;
		}
	}
	qsort(step, n, sizeof(*step), compare_steps);
	while (n && ms < MAX_SAMPLE_MS && step[n / 2] > ms + ms / 2)
		ms *= 2;
	free(step);
	return ms;
}

int history_new(struct history **out, uv_loop_t *loop, const char *dir, const struct status *now,
	const struct options *given, int resumed, struct err *e)
{
	struct history *h = *out = mem_try(1, sizeof(*h));

	if (!h)
		return err_set(e, PS_ENOMEM, "no memory for the history");
	h->loop = loop;
	h->dir = dir;
	h->sample_ms = SAMPLE_MS;
	h->start_t = log_wall_ms();
	h->start_boot_ms = clock_boot_ms();
	int rc = restore(h, now, resumed, e);
	if (rc) {
		history_free(out);
		return rc;
	}
	h->sample_ms = restored_interval_ms(h);
	add_start(h, now, given, resumed);
	begin_write(h, now->now_ms);
	return PS_OK;
}

int history_diverged(const struct history *h)
{
	return h->diverged;
}

void history_labels(const struct history *h, struct labels *labels)
{
	for (size_t i = 0; i < h->n; i++) {
		json_t *o = h->line[i].kind == LINE_WORKER ? json_loads(h->line[i].text, 0, NULL)
							   : NULL;
		const char *host = json_string_value(json_object_get(o, "host"));

		if (host)
			labels_restore(labels, h->line[i].number, host);
		json_decref(o);
	}
}

void history_free(struct history **h)
{
	if (!*h)
		return;
	for (size_t i = 0; i < (*h)->n; i++)
		free((*h)->line[i].text);
	free((*h)->line);
	free((*h)->job.text);
	free(*h);
	*h = NULL;
}

void history_listen(struct history *h, history_line_fn *line, void *arg)
{
	h->listen = line;
	h->arg = arg;
}
