/* status.c - see status.h. */
#include "server/monitor/status.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/log.h"
#include "server/core/core.h"
#include "server/core/view.h"
#include "server/monitor/epoch_metrics.h"
#include "server/net/clients.h"

#define MAX_EPOCHS 20 /* maximum number of epochs in a status */

/* ---- small readings ------------------------------------------------------------------------ */

uint64_t status_rss(void)
{
	char text[128];
	FILE *f = fopen("/proc/self/statm", "re");
	char *line = f ? fgets(text, sizeof(text), f) : NULL;

	if (f)
		fclose(f);
	if (!line || !strchr(line, ' '))
		return 0;
	char *at = strchr(line, ' ');
	uint64_t resident = strtoull(at, &at, 10), shared = strtoull(at, NULL, 10);
	return (resident > shared ? resident - shared : 0) * (uint64_t)sysconf(_SC_PAGESIZE);
}

const char *status_degraded(const struct status *s)
{
	if (s->checkpointer && s->checkpointer->failing)
		return s->checkpointer->why;
	if (s->wal && s->wal->failing)
		return s->wal->why;
	return s->disk && s->disk->why[0] ? s->disk->why : NULL;
}

const char *const status_worker_states[STATUS_WORKER_STATES] = {
	"joining", "live", "suspect", "away", "dead", "excluded", "quarantined", "stalled"};

const char *status_worker_state(const struct worker_view *w)
{
	static const char *const names[] = {[SESSION_FREE] = "free",
		[SESSION_JOINING] = "joining",
		[SESSION_LIVE] = "live",
		[SESSION_SUSPECT] = "suspect",
		[SESSION_AWAY] = "away",
		[SESSION_DEAD] = "dead"};

	if (w->excluded)
		return w->quarantined ? "quarantined" : "excluded";
	return w->stalled ? "stalled" : names[w->state];
}

const char *status_reject_name(int reason)
{
	static const char *const names[REJECT_REASONS] = {[REJECT_NONE] = "none",
		[REJECT_SHAPE] = "shape",
		[REJECT_NONFINITE] = "nonfinite",
		[REJECT_NORM] = "norm",
		[REJECT_STALE] = "stale",
		[REJECT_WORK] = "work",
		[REJECT_UNKNOWN] = "unknown"};

	return names[reason];
}

static uint64_t rejected(const struct core_stats *t)
{
	uint64_t n = 0;

	for (int i = 0; i < REJECT_REASONS; i++)
		n += t->rejected[i];
	return n;
}

static int is_waiting(const struct status *s)
{
	struct hold_up_view v;

	core_hold_up(s->core, &v);
	return v.kind != HOLD_UP_NONE;
}

static const char *phase(const struct status *s)
{
	const struct core_config *cfg = core_config(s->core);

	if (s->ending || core_ending(s->core))
		return "ending";
	if (is_waiting(s) || (core_stats(s->core)->leases == 0 && cfg->training.epochs > 0))
		return "waiting";
	if (cfg->training.epochs > 0 && core_training_epoch(s->core) >= cfg->training.epochs)
		return "evaluating";
	return "training";
}

const char *status_ending(int status)
{
	switch (status) {
	case PS_EDONE:
		return "done";
	case PS_ESHUTDOWN:
		return "drained";
	case PS_EDIVERGED:
		return "diverged";
	default:
		return "aborted";
	}
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static json_t *json_count(uint64_t n)
{
	return json_integer((json_int_t)n);
}

json_t *status_rate(double images_per_s)
{
	if (images_per_s < 10)
		return json_real(round(100 * images_per_s) / 100);
	return json_count((uint64_t)images_per_s);
}

json_t *status_rejected_for(const struct core_stats *t)
{
	json_t *o = json_object();

	for (int i = 0; i < REJECT_REASONS; i++)
		if (t->rejected[i])
			json_object_set_new(o, status_reject_name(i), json_count(t->rejected[i]));
	return o;
}

/* Returns sum / n, or null if n is 0. */
static json_t *mean_or_null(double sum, uint64_t n)
{
	json_t *mean = n ? json_real(sum / (double)n) : NULL;

	return mean ? mean : json_null(); /* json_real refuses NaN */
}

static json_t *run_text(const struct core_config *cfg)
{
	char text[33];

	snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64, cfg->run.hi, cfg->run.lo);
	return json_string(text);
}

static json_t *data_object(const struct core *c)
{
	const struct data_id *d = core_data(c);
	char xxh3[17];

	snprintf(xxh3, sizeof(xxh3), "%016" PRIx64, d->xxh3);
	return json_pack("{s:o, s:o, s:o, s:s, s:b}", "n_train", json_count(d->n_train), "n_test",
		json_count(d->n_test), "validate", json_count(core_config(c)->training.validate),
		"xxh3", xxh3, "fixed", core_data_is_fixed(c));
}

static json_t *epoch_object(const struct core *c, uint32_t e)
{
	const struct epoch_record *r = core_epoch(c, e);
	uint64_t tested = core_is_evaluated(c, e) ? r->eval_done : 0;

	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "epoch", json_count(e + 1),
		"images", json_count(r->images), "updates", json_count(r->updates), "loss",
		mean_or_null(r->loss_sum, r->images), "accuracy",
		tested ? epoch_accuracy_json(c, r) : json_null(), "test_loss",
		mean_or_null(r->eval_loss_sum, tested), "metrics",
		tested ? epoch_metrics(c, r) : json_object());
}

static json_t *epoch_list(const struct core *c)
{
	json_t *list = json_array();
	uint32_t n = core_training_epoch(c) + 1;

	if (n > core_config(c)->training.epochs)
		n = core_config(c)->training.epochs;
	for (uint32_t e = n > MAX_EPOCHS ? n - MAX_EPOCHS : 0; e < n; e++)
		json_array_append_new(list, epoch_object(c, e));
	return list;
}

static json_t *json_text_or_null(const char *text)
{
	return text && text[0] ? json_string(text) : json_null();
}

static json_t *time_shares(const struct tally *t)
{
	json_t *o = json_object();
	double sum = 0;

	for (int i = 0; i < TALLY_PARTS; i++) {
		json_object_set_new(o, tally_part[i], json_real(t->share[i]));
		sum += t->share[i];
	}
	if (sum > 0)
		return o;
	json_decref(o);
	return json_null();
}

const char *status_wire(enum encoding e)
{
	return e == ENCODING_BF16 ? "bf16" : e == ENCODING_F32 ? "fp32" : "";
}

static json_t *worker_object(
	const struct worker_view *w, const struct label *l, const struct tally *t, uint64_t now_ms)
{
	uint64_t silent = now_ms > w->last_message_ms ? now_ms - w->last_message_ms : 0;

	return json_pack("{s:o, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
			 "s:o, s:o, s:o, s:o, s:o}",
		"worker", json_count(w->worker), "state", status_worker_state(w), "name", w->name,
		"device", w->device, "host", json_text_or_null(l->host), "pid",
		l->pid ? json_count(l->pid) : json_null(), "address", json_text_or_null(l->address),
		"incarnation", json_count(w->incarnation), "images", json_count(w->images),
		"last_seq", json_count(w->last_seq), "durable_seq", json_count(w->durable_seq),
		"silent_ms", w->state == SESSION_AWAY ? json_null() : json_count(silent),
		"images_per_s", status_rate(t->images_per_s), "staleness",
		t->staleness < 0 ? json_null() : json_real(t->staleness), "duplicates",
		json_count(w->counts.duplicates), "rejected", json_count(w->counts.rejected),
		"refusals", json_count(w->counts.refused), "time", time_shares(t), "wire",
		json_text_or_null(status_wire(l->wire)));
}

/* Returns a list of at most `max` workers, from number `first` on. Sets *left_out to the number of
 * workers that follow the last listed one. */
static json_t *worker_list(const struct status *s, uint32_t first, size_t max, uint32_t *left_out)
{
	json_t *list = json_array();

	*left_out = 0;
	for (uint32_t i = 0; i < core_config(s->core)->sessions.max_workers; i++) {
		struct worker_view w;

		core_worker(s->core, i, &w);
		if (w.state == SESSION_FREE || w.worker < first)
			continue;
		if (json_array_size(list) == max)
			(*left_out)++;
		else
			json_array_append_new(
				list, worker_object(&w, labels_of(s->labels, w.worker),
					      tallies_of(s->tallies, w.worker), s->now_ms));
	}
	return list;
}

static json_t *counters_object(const struct status *s)
{
	const struct core_stats *t = core_stats(s->core);
	const struct check_stats *k = core_check_stats(s->core);

	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
			 "s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
		"pushes", json_count(t->pushes), "duplicates", json_count(t->duplicates),
		"rejected", json_count(rejected(t)), "rejected_for", status_rejected_for(t),
		"superseded", json_count(t->superseded), "backups", json_count(t->backups),
		"steps_short", json_count(t->steps_short), "expired", json_count(t->expired),
		"stalls", json_count(t->stalls), "refusals",
		json_count(t->refused + s->net.malformed), "gaps", json_count(t->gaps), "pulls",
		json_count(t->pulls), "leases", json_count(t->leases), "released",
		json_count(t->released), "deaths", json_count(t->deaths), "excluded",
		json_count(t->excluded), "rejoins", json_count(t->rejoins), "recoveries",
		json_count(t->recoveries), "dropped_replies", json_count(s->net.dropped),
		"zloop_rescues", json_count(s->net.rescues), "keys_refused",
		json_count(s->auth.refused), "unauthorized", json_count(s->auth.unauthorized),
		"hellos_turned_away", json_count(s->turned_away), "checks_agreed",
		json_count(k->agreed), "checks_disputed", json_count(k->disputed),
		"checks_outvoted", json_count(k->outvoted), "checks_missed",
		json_count(k->unchecked));
}

json_t *status_time(const struct status *s)
{
	return json_pack("{s:f, s:f, s:f, s:f}", "apply", s->apply_s, "verify", s->net.verify_s,
		"idle", s->idle_s, "total", s->total_s);
}

static json_t *lanes_object(const struct router_stats *n)
{
	if (!n->has_lanes)
		return json_null();
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "open", json_count(n->lanes.open),
		"gpus", json_count(n->lanes.gpus), "pushes", json_count(n->lanes.pushes), "params",
		json_count(n->lanes.params), "messages", json_count(n->lanes.messages), "torn",
		json_count(n->torn), "refused", json_count(n->lanes.refused));
}

static json_t *checkpoint_object(const struct status *s)
{
	if (!s->checkpointer)
		return json_null();
	return json_pack("{s:o, s:o, s:o, s:o, s:f}", "generation",
		json_count(s->checkpointer->generation), "saved",
		json_count(s->checkpointer->saved), "failed", json_count(s->checkpointer->failed),
		"bytes", json_count(s->checkpointer->bytes), "seconds", s->checkpointer->seconds);
}

static json_t *wal_object(const struct status *s)
{
	const struct wal_stats *t = s->wal;

	if (!t)
		return json_null();
	return json_pack("{s:o, s:o, s:o, s:o}", "events", json_count(t->events), "groups",
		json_count(t->groups), "bytes", json_count(t->bytes), "failures",
		json_count(t->failures));
}

static void set_key(json_t *o, const char *key, json_t *value)
{
	(void)json_object_set_new(o, key, value ? value : json_null());
}

/* Returns name number `i`, counted from 0, in `names`, such as "a|b|c". */
static json_t *nth_name(const char *names, int i)
{
	for (; i > 0; i--)
		names += strcspn(names, "|") + 1;
	return json_stringn(names, strcspn(names, "|"));
}

static void set_run(json_t *o, const struct core_config *cfg)
{
	set_key(o, "run", run_text(cfg));
	set_key(o, "term", json_count(cfg->term));
	set_key(o, "model", json_string(cfg->model));
	set_key(o, "n_params", json_count(cfg->n_params));
	set_key(o, "mode", nth_name(MODE_NAMES, (int)cfg->training.mode - 1));
	set_key(o, "optimizer", nth_name(OPTIM_NAMES, (int)cfg->optim.kind));
	set_key(o, "lr", json_real(cfg->rate.lr));
	set_key(o, "schedule", nth_name(SCHEDULE_NAMES, (int)cfg->schedule.kind));
	set_key(o, "seed", json_count(cfg->training.seed));
	set_key(o, "batch", json_count(cfg->training.batch_size));
	set_key(o, "epochs", json_count(cfg->training.epochs));
	set_key(o, "max_updates",
		cfg->training.max_updates ? json_count(cfg->training.max_updates) : NULL);
}

/* Returns the mean staleness over all applied gradients. The mean is not over updates, because an
 * update can use several gradients. */
static json_t *staleness_mean(const struct core_stats *t)
{
	uint64_t n = 0;

	for (size_t i = 0; i < sizeof(t->staleness) / sizeof(t->staleness[0]); i++)
		n += t->staleness[i];
	return mean_or_null((double)t->staleness_sum, n);
}

static void set_training(json_t *o, const struct status *s)
{
	const struct core *c = s->core;
	const struct core_stats *t = core_stats(c);
	const struct epoch_record *tested = progress_evaluated(c);
	struct progress_view v;
	struct work_view work;

	progress_read(s->progress, c, &v);
	core_work(c, &work);
	set_key(o, "training_epoch", json_count(v.epoch));
	set_key(o, "updates", json_count(t->updates));
	set_key(o, "pass", v.pass ? json_count(v.pass) : NULL);
	set_key(o, "images", json_count(v.images));
	set_key(o, "loss", json_real(t->loss));
	set_key(o, "accuracy", v.accuracy >= 0 ? json_real(v.accuracy) : NULL);
	set_key(o, "test_loss", isfinite(v.test_loss) ? json_real(v.test_loss) : NULL);
	set_key(o, "metrics", tested ? epoch_metrics(c, tested) : json_object());
	set_key(o, "learning_rate", isfinite(work.rate) ? json_real(work.rate) : NULL);
	set_key(o, "images_per_s", json_real(v.images_per_s));
	set_key(o, "updates_per_s", json_real(v.updates_per_s));
	set_key(o, "done_ratio", v.epochs || v.max_updates ? json_real(v.done) : NULL);
	set_key(o, "eta_s", v.eta_s >= 0 ? json_real(v.eta_s) : NULL);
	set_key(o, "version", json_count(t->version));
	set_key(o, "staleness_mean", staleness_mean(t));
	set_key(o, "live_workers", json_count(v.workers));
}

/* Returns a text with the reason why the run waits and the command that ends the wait, or null if
 * the run does not wait. */
static json_t *waiting_object(const struct status *s)
{
	char text[WAITING_TEXT];

	return s->waiting && is_waiting(s) && waiting_text(s->waiting, text) ? json_string(text)
									     : json_null();
}

static json_t *warning_list(const struct status *s)
{
	json_t *list = json_array();
	char text[WARNING_TEXT];

	for (int i = 0; i < WARNINGS && s->warnings; i++)
		if (warning_text(s->warnings, (enum warning)i, s->core, s->ending != 0, text))
			json_array_append_new(list, json_string(text));
	return list;
}

static json_t *quarantine_list(const struct core *c)
{
	struct quarantine_view v;
	json_t *list = json_array();

	for (uint32_t i = 0; core_quarantine(c, i, &v); i++)
		json_array_append_new(
			list, json_pack("{s:o, s:o, s:o}", "name", json_text_or_null(v.name), "key",
				      json_text_or_null(v.owner), "exclusions",
				      json_count(v.exclusions)));
	return list;
}

/* Adds the list of workers to the status `o`, and returns `o` as JSON text. Releases `o`. */
static char *text_with(json_t *o, const struct status *s, uint32_t first, size_t max_workers)
{
	uint32_t left_out;

	set_key(o, "workers", worker_list(s, first, max_workers, &left_out));
	set_key(o, "workers_left_out", json_count(left_out));
	char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
	json_decref(o);
	return text;
}

static char *workers_with(const struct status *s, uint32_t first, size_t max_workers)
{
	return text_with(json_object(), s, first, max_workers);
}

/* Returns the status as text, with at most max_workers workers. `first` is always 0; the parameter
 * exists because fitting() passes it. */
static char *status_with(const struct status *s, uint32_t first, size_t max_workers)
{
	json_t *o = json_object();

	set_key(o, "state", json_string(phase(s)));
	set_key(o, "ending", s->ending ? json_string(status_ending(s->ending)) : NULL);
	set_key(o, "stop_reason", json_text_or_null(s->stop_reason));
	set_key(o, "waiting", waiting_object(s));
	set_key(o, "degraded", json_text_or_null(status_degraded(s)));
	set_key(o, "warnings", warning_list(s));
	set_run(o, core_config(s->core));
	set_training(o, s);
	set_key(o, "epoch_records", epoch_list(s->core));
	set_key(o, "quarantine", quarantine_list(s->core));
	set_key(o, "counters", counters_object(s));
	set_key(o, "checkpoint", checkpoint_object(s));
	set_key(o, "wal", wal_object(s));
	set_key(o, "time", status_time(s));
	set_key(o, "lanes", lanes_object(&s->net));
	set_key(o, "data", data_object(s->core));
	set_key(o, "log_level", json_string(log_level_name(log_get_level())));
	set_key(o, "connections", json_count(s->net.port.connections));
	set_key(o, "rss_bytes", json_count(s->rss_bytes));
	set_key(o, "uptime_s", json_real((double)(s->now_ms - s->progress->start_ms) / 1000));
	return text_with(o, s, first, max_workers);
}

static size_t slots_in_use(const struct core *c)
{
	size_t n = 0;

	for (uint32_t i = 0; i < core_config(c)->sessions.max_workers; i++) {
		struct worker_view w;

		core_worker(c, i, &w);
		n += w.state != SESSION_FREE;
	}
	return n;
}

size_t status_max_text(uint32_t max_text)
{
	if (max_text < WIRE_MIN_TEXT)
		return WIRE_MIN_TEXT;
	return max_text < WIRE_MAX_TEXT ? max_text : WIRE_MAX_TEXT;
}

/* Returns the result of `text_of` with as many workers as fit into `max_text` bytes. */
static char *fitting(const struct status *s, uint32_t first, size_t max_text,
	char *(*text_of)(const struct status *s, uint32_t first, size_t max_workers))
{
	size_t max = slots_in_use(s->core);

	for (;;) {
		char *text = text_of(s, first, max);
		size_t n = text ? strlen(text) : 0;

		if (n <= max_text)
			return text;
		free(text);
		if (max == 0)
			return NULL;
		/* try with fewer workers than this ratio, because the text also has other fields */
		max = max * max_text / n;
		max -= max / 16;
	}
}

char *status_json(const struct status *s, size_t max_text)
{
	return fitting(s, 0, max_text, status_with);
}

char *status_workers_json(const struct status *s, uint32_t first, size_t max_text)
{
	return fitting(s, first, max_text, workers_with);
}

char *status_whole_json(const struct status *s)
{
	return status_with(s, 0, slots_in_use(s->core));
}

char *status_result(const struct status *s)
{
	const struct core *c = s->core;
	const struct core_config *cfg = core_config(c);
	const struct core_stats *t = core_stats(c);
	const struct epoch_record *last = progress_evaluated(c);
	json_t *o = json_object(), *images = json_array();

	for (uint32_t e = 0; e < cfg->training.epochs; e++)
		json_array_append_new(images, json_count(core_epoch(c, e)->images));
	set_key(o, "status", json_string(status_ending(s->ending)));
	set_key(o, "stop_rule", json_boolean(s->stop_reason != NULL));
	set_key(o, "warnings", warning_list(s));
	set_key(o, "accuracy", last ? epoch_accuracy_json(c, last) : NULL);
	set_key(o, "metrics", last ? epoch_metrics(c, last) : json_object());
	set_key(o, "loss", last ? mean_or_null(last->eval_loss_sum, last->eval_done) : NULL);
	set_key(o, "updates", json_count(t->updates));
	set_key(o, "images", json_count(t->images));
	set_key(o, "images_per_epoch", images);
	set_key(o, "seconds", json_real(progress_seconds(s->progress, s->core, s->now_ms)));
	set_key(o, "seconds_total", json_real((double)(s->now_ms - s->progress->start_ms) / 1000));
	set_key(o, "duplicates", json_count(t->duplicates));
	set_key(o, "rejected", json_count(rejected(t)));
	set_key(o, "superseded", json_count(t->superseded));
	set_key(o, "steps_short", json_count(t->steps_short));
	set_key(o, "refusals", json_count(t->refused + s->net.malformed));
	set_key(o, "data", data_object(c));
	set_key(o, "run", run_text(cfg));
	set_key(o, "term", json_count(cfg->term));
	char *text = json_dumps(o, JSON_REAL_PRECISION(9));
	json_decref(o);
	return text;
}
