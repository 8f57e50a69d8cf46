/*
 * metrics.c - writes the server's metrics as Prometheus text. The format requires that the lines of
 * one metric are consecutive. The names of counters end in _total.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/version.h"
#include "server/core/core.h"
#include "server/core/view.h"
#include "server/net/clients.h"
#include "server/monitor/epoch_metrics.h"
#include "server/monitor/status.h"

static void metric(FILE *f, const char *name, const char *type, const char *help, double value)
{
	fprintf(f, "# HELP cnnps_%s %s\n# TYPE cnnps_%s %s\ncnnps_%s %.17g\n", name, help, name,
		type, name, value);
}

static void metric_counter(FILE *f, const char *name, const char *help, uint64_t value)
{
	fprintf(f, "# HELP cnnps_%s %s\n# TYPE cnnps_%s counter\ncnnps_%s %" PRIu64 "\n", name,
		help, name, name, value);
}

static void put_rejected(FILE *f, const struct core_stats *t)
{
	fprintf(f, "# HELP cnnps_rejected_total Pushes decided against, by reason.\n"
		   "# TYPE cnnps_rejected_total counter\n");
	for (int i = REJECT_NONE + 1; i < REJECT_REASONS; i++)
		fprintf(f, "cnnps_rejected_total{reason=\"%s\"} %" PRIu64 "\n",
			status_reject_name(i), t->rejected[i]);
}

/* Writes the histogram of staleness. Bin i of the core counts tau < 2^i; the last bin has no upper
 * bound. */
static void put_staleness(FILE *f, const struct core_stats *t)
{
	const int bins = (int)(sizeof(t->staleness) / sizeof(t->staleness[0]));
	uint64_t below = 0;

	fprintf(f, "# HELP cnnps_staleness Versions between a gradient's weights and its update.\n"
		   "# TYPE cnnps_staleness histogram\n");
	for (int i = 0; i < bins; i++) {
		below += t->staleness[i];
		if (i < bins - 1)
			fprintf(f, "cnnps_staleness_bucket{le=\"%d\"} %" PRIu64 "\n", (1 << i) - 1,
				below);
	}
	fprintf(f,
		"cnnps_staleness_bucket{le=\"+Inf\"} %" PRIu64 "\ncnnps_staleness_sum %" PRIu64
		"\ncnnps_staleness_count %" PRIu64 "\n",
		below, t->staleness_sum, below);
}

static uint32_t quarantined(const struct core *c)
{
	struct quarantine_view v;
	uint32_t n = 0;

	while (core_quarantine(c, n, &v))
		n++;
	return n;
}

static void put_check_stats(FILE *f, const struct check_stats *s)
{
	metric_counter(f, "checks_agreed_total",
		"Checked evaluation results on which two workers agreed.", s->agreed);
	metric_counter(f, "checks_disputed_total",
		"Evaluation results that differed, without a third worker that decided.",
		s->disputed);
	metric_counter(f, "checks_outvoted_total",
		"Evaluation results that two other workers refuted.", s->outvoted);
	metric_counter(f, "checks_missed_total",
		"Evaluation results that no second worker has checked.", s->unchecked);
}

static void put_core(FILE *f, const struct core *c)
{
	const struct core_stats *t = core_stats(c);
	struct work_view work;

	core_work(c, &work);
	const struct {
		const char *name, *help;
		uint64_t value;
	} row[] = {
		{"updates_total", "Steps of the optimizer.", t->updates},
		{"line_search_points_total", "Points that L-BFGS evaluated.", t->trials},
		{"uncompensated_total",
			"Gradients applied without delay compensation: their weights were no "
			"longer held.",
			t->uncompensated},
		{"backup_leases_total", "Copies given out of work that another worker has.",
			t->backups},
		{"steps_short_total", "Steps of sync with fewer gradients than were due.",
			t->steps_short},
		{"superseded_total",
			"Results of work that another worker had delivered first, or "
			"of a step that was over.",
			t->superseded},
		{"expired_grants_total", "Grants that ended at their deadline.", t->expired},
		{"stalls_total", "Times that a live worker delivered nothing for too long.",
			t->stalls},
		{"images_total", "Training images counted.", t->images},
		{"pushes_total", "Pushes decided.", t->pushes},
		{"duplicates_total", "Pushes that had been decided before.", t->duplicates},
		{"refused_total", "Messages answered by an error.", t->refused},
		{"gaps_total", "Pushes that came before their predecessor.", t->gaps},
		{"pulls_total", "Weights sent.", t->pulls},
		{"leases_total", "Leases given out.", t->leases},
		{"released_total", "Batches taken back from a worker.", t->released},
		{"hellos_total", "Greetings of workers.", t->hellos},
		{"deaths_total", "Workers lost, dead or away for too long.", t->deaths},
		{"excluded_total",
			"Workers excluded for gradients or losses that were not finite, of a wrong "
			"shape or of another size, or for false evaluations.",
			t->excluded},
		{"rejoins_total", "Workers that joined again, restarted, or returned with HELLO.",
			t->rejoins},
		{"recoveries_total", "Starts from a checkpoint.", t->recoveries},
		{"snapshots_total", "Images taken of the run.", t->snapshots},
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		metric_counter(f, row[i].name, row[i].help, row[i].value);
	put_rejected(f, t);
	put_staleness(f, t);
	put_check_stats(f, core_check_stats(c));
	metric(f, "quarantined", "gauge", "Workers in quarantine.", (double)quarantined(c));
	metric(f, "loss", "gauge", "Exponential mean of pushed losses.", t->loss);
	metric(f, "learning_rate", "gauge",
		"Learning rate now: --lr times the factor of --schedule.", work.rate);
	metric(f, "weights_bytes", "gauge", "Bytes of the model's weights.",
		(double)core_config(c)->n_params * sizeof(float));
}

static void put_auth(FILE *f, const struct auth_stats *a)
{
	metric_counter(f, "keys_admitted_total", "Handshakes of keys on the list.", a->admitted);
	metric_counter(f, "keys_refused_total", "Handshakes of other keys.", a->refused);
	metric_counter(
		f, "keys_deferred_total", "Handshakes above the quota of their key.", a->deferred);
	metric_counter(f, "unauthorized_total", "Messages that their sender's key may not send.",
		a->unauthorized);
}

static void put_net(FILE *f, const struct router_stats *n)
{
	metric_counter(f, "messages_received_total", "Messages from peers.", n->received);
	metric_counter(f, "messages_sent_total", "Messages to peers.", n->sent);
	metric_counter(f, "received_bytes_total", "Bytes of these messages, without framing.",
		n->received_bytes);
	metric_counter(f, "sent_bytes_total", "Bytes of messages to peers, without framing.",
		n->sent_bytes);
	metric_counter(f, "malformed_total", "Messages that could not be decoded.", n->malformed);
	metric_counter(
		f, "dropped_replies_total", "Replies to peers that did not read.", n->dropped);
	metric_counter(f, "gone_total", "Replies whose peer had left.", n->gone);
	metric_counter(f, "params_framed_total", "Versions of the weights made into a frame.",
		n->params_framed);
	metric_counter(f, "connections_total", "Connections accepted.", n->port.accepted);
	metric_counter(f, "handshake_failures_total", "Connections that did not speak ZMTP.",
		n->port.handshakes_failed);
	metric_counter(f, "accept_failures_total", "Connections that could not be accepted.",
		n->port.accept_failures);
	metric_counter(f, "floods_total", "Connections closed: too many refused messages.",
		n->port.floods);
	metric_counter(
		f, "crowded_total", "Connections closed: their key had too many.", n->port.crowded);
	metric_counter(
		f, "zloop_rescues_total", "Wake-ups that were missed: must be 0.", n->rescues);
	metric(f, "lanes", "gauge", "Workers that use shared memory.", n->lanes.open);
	metric(f, "lanes_gpu", "gauge", "Workers that share memory of their GPUs.", n->lanes.gpus);
	metric_counter(f, "lane_pushes_total", "Gradients read in shared memory.", n->lanes.pushes);
	metric_counter(f, "lane_params_total", "Weights read in shared memory.", n->lanes.params);
	metric_counter(f, "lane_messages_total", "Messages that went through rings of lanes.",
		n->lanes.messages);
	metric_counter(f, "lane_torn_total", "Gradients in shared memory whose checksum was wrong.",
		n->torn);
	metric_counter(f, "lane_refused_total",
		"Connections to the socket of lanes with a wrong secret or form.",
		n->lanes.refused);
	metric(f, "connections", "gauge", "Connections open.", n->port.connections);
	metric(f, "side_connections", "gauge", "Side connections open.", n->sides);
	metric(f, "replies_waiting", "gauge", "Replies that wait for a peer.", n->waiting);
}

static void put_wal(FILE *f, const struct wal_stats *w)
{
	metric_counter(
		f, "wal_groups_total", "Groups of events on disk, one fsync each.", w->groups);
	metric_counter(f, "wal_events_total", "Events on disk.", w->events);
	metric(f, "wal_seconds_total", "counter", "Time to write the groups, with fsync.",
		w->seconds);
	metric_counter(f, "wal_failures_total", "Groups that failed.", w->failures);
}

static void put_checkpointer(FILE *f, const struct checkpointer_stats *s)
{
	metric_counter(f, "checkpoints_total", "Checkpoints on disk.", s->saved);
	metric_counter(f, "checkpoint_failures_total", "Checkpoints that failed.", s->failed);
	metric(f, "checkpoint_failing", "gauge", "1 if the newest checkpoint failed.", s->failing);
	metric(f, "checkpoint_generation", "gauge", "Newest generation on disk.",
		(double)s->generation);
	metric(f, "checkpoint_bytes", "gauge", "Size of the newest checkpoint.", (double)s->bytes);
	metric(f, "checkpoint_seconds", "gauge", "Time that writing it took.", s->seconds);
}

/* Writes a label's value and escapes quotes and backslashes. A worker's text has no control
 * characters, because decode.c refuses them. */
static void put_label(FILE *f, const char *text)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', f);
		fputc(*text, f);
	}
}

static void put_text_label(FILE *f, const char *name, const char *text)
{
	fprintf(f, ",%s=\"", name);
	put_label(f, text);
	fputc('"', f);
}

/* Writes the name of a worker's series and the labels that all series of workers have. These labels
 * stay the same when the server restarts. The caller writes further labels, if the series has any,
 * and ends the line. */
static void begin_worker_series(
	FILE *f, const char *name, const struct worker_view *w, const struct labels *labels)
{
	fprintf(f, "cnnps_worker_%s{worker=\"%u\"", name, w->worker);
	put_text_label(f, "name", w->name);
	put_text_label(f, "host", labels_of(labels, w->worker)->host);
}

static void put_worker_states(FILE *f, const struct status *s)
{
	fprintf(f, "# HELP cnnps_worker_state 1 for the state that a worker is in, 0 for others.\n"
		   "# TYPE cnnps_worker_state gauge\n");
	for (uint32_t i = 0; i < core_config(s->core)->sessions.max_workers; i++) {
		struct worker_view w;

		core_worker(s->core, i, &w);
		for (int k = 0; k < STATUS_WORKER_STATES && w.state != SESSION_FREE; k++) {
			const char *state = status_worker_states[k];

			begin_worker_series(f, "state", &w, s->labels);
			put_text_label(f, "state", state);
			fprintf(f, "} %d\n", strcmp(state, status_worker_state(&w)) == 0);
		}
	}
}

/* Writes cnnps_worker_info, one series for each worker process. A worker that has not sent HELLO
 * since the start of the server has no series of this kind. */
static void put_worker_info(FILE *f, const struct status *s)
{
	fprintf(f, "# HELP cnnps_worker_info Where a worker runs.\n"
		   "# TYPE cnnps_worker_info gauge\n");
	for (uint32_t i = 0; i < core_config(s->core)->sessions.max_workers; i++) {
		struct worker_view w;

		core_worker(s->core, i, &w);
		const struct label *l = labels_of(s->labels, w.worker);
		if (w.state == SESSION_FREE || !l->address[0])
			continue;
		begin_worker_series(f, "info", &w, s->labels);
		fprintf(f, ",pid=\"%u\"", l->pid);
		put_text_label(f, "address", l->address);
		put_text_label(f, "wire", status_wire(l->wire));
		fputs("} 1\n", f);
	}
}

static void put_worker_images(FILE *f, const struct status *s)
{
	fprintf(f, "# HELP cnnps_worker_images_total Training images counted, by worker.\n"
		   "# TYPE cnnps_worker_images_total counter\n");
	for (uint32_t i = 0; i < core_config(s->core)->sessions.max_workers; i++) {
		struct worker_view w;

		core_worker(s->core, i, &w);
		if (w.state == SESSION_FREE)
			continue;
		begin_worker_series(f, "images_total", &w, s->labels);
		fprintf(f, "} %" PRIu64 "\n", w.images);
	}
}

/* Writes a gauge for each worker, except for workers for which `value` returns NaN. */
static void put_worker_gauge(FILE *f, const struct status *s, const char *name, const char *help,
	double (*value)(const struct status *s, const struct worker_view *w))
{
	fprintf(f, "# HELP cnnps_worker_%s %s\n# TYPE cnnps_worker_%s gauge\n", name, help, name);
	for (uint32_t i = 0; i < core_config(s->core)->sessions.max_workers; i++) {
		struct worker_view w;

		core_worker(s->core, i, &w);
		if (w.state == SESSION_FREE)
			continue;
		begin_worker_series(f, name, &w, s->labels);
		if (isnan(value(s, &w)))
			fputs("} NaN\n", f);
		else
			fprintf(f, "} %.9g\n", value(s, &w));
	}
}

static double worker_rate(const struct status *s, const struct worker_view *w)
{
	return tallies_of(s->tallies, w->worker)->images_per_s;
}

static double worker_staleness(const struct status *s, const struct worker_view *w)
{
	double mean = tallies_of(s->tallies, w->worker)->staleness;

	return mean < 0 ? (double)NAN : mean;
}

static double worker_silence(const struct status *s, const struct worker_view *w)
{
	return s->now_ms > w->last_message_ms ? (double)(s->now_ms - w->last_message_ms) / 1000 : 0;
}

static double worker_is_live(const struct status *s, const struct worker_view *w)
{
	(void)s;
	return w->state == SESSION_LIVE && !w->stalled && !w->excluded;
}

/* For each worker, writes one series for each part of its time (struct time_split). */
static void put_worker_time(FILE *f, const struct status *s)
{
	fprintf(f,
		"# HELP cnnps_worker_seconds_total Time of the worker's program, by what it did.\n"
		"# TYPE cnnps_worker_seconds_total counter\n");
	for (uint32_t i = 0; i < core_config(s->core)->sessions.max_workers; i++) {
		struct worker_view w;

		core_worker(s->core, i, &w);
		for (int part = 0; part < TALLY_PARTS && w.state != SESSION_FREE; part++) {
			begin_worker_series(f, "seconds_total", &w, s->labels);
			put_text_label(f, "part", tally_part[part]);
			fprintf(f, "} %.9g\n", (double)tally_part_us(&w.counts.time, part) * 1e-6);
		}
	}
}

static void put_workers(FILE *f, const struct status *s)
{
	put_worker_time(f, s);
	put_worker_gauge(f, s, "images_per_second", "Images/s over the last second.", worker_rate);
	put_worker_gauge(
		f, s, "staleness", "Mean staleness of the newest pushes.", worker_staleness);
	put_worker_gauge(
		f, s, "silent_seconds", "Since the worker's last message.", worker_silence);
	put_worker_gauge(f, s, "live", "1 if the worker is at work.", worker_is_live);
}

static void put_server_time(FILE *f, const struct status *s)
{
	fprintf(f,
		"# HELP cnnps_server_seconds_total Time of the server's main thread, by what it "
		"did.\n"
		"# TYPE cnnps_server_seconds_total counter\n"
		"cnnps_server_seconds_total{part=\"apply\"} %.9g\n"
		"cnnps_server_seconds_total{part=\"verify\"} %.9g\n"
		"cnnps_server_seconds_total{part=\"idle\"} %.9g\n"
		"cnnps_server_seconds_total{part=\"other\"} %.9g\n",
		s->apply_s, s->net.verify_s, s->idle_s,
		fmax(0, s->total_s - s->apply_s - s->net.verify_s - s->idle_s));
}

/* Writes one series for each metric except accuracy. */
static void put_test_metrics(FILE *f, const struct core *c, const struct epoch_record *r)
{
	json_t *metrics = r ? epoch_metrics(c, r) : NULL, *value;
	const char *name;

	if (json_object_size(metrics) > 0)
		fprintf(f, "# HELP cnnps_test_metric Means over the test images of the newest "
			   "evaluation.\n# TYPE cnnps_test_metric gauge\n");
	json_object_foreach(metrics, name, value) fprintf(
		f, "cnnps_test_metric{name=\"%s\"} %.17g\n", name, json_number_value(value));
	json_decref(metrics);
}

static void put_progress(FILE *f, const struct status *s)
{
	struct progress_view v;

	progress_read(s->progress, s->core, &v);
	fprintf(f,
		"# HELP cnnps_build_info Version of the program, always 1.\n"
		"# TYPE cnnps_build_info gauge\ncnnps_build_info{version=\"" PS_VERSION "\"} 1\n");
	metric(f, "epoch", "gauge", "Epoch in training, from 1.", v.epoch);
	metric(f, "epochs", "gauge", "Epochs of the run; 0: no data set.", v.epochs);
	metric(f, "done_ratio", "gauge", "Part of the run that is done.", v.done);
	metric(f, "images_per_second", "gauge", "Images/s over the last second.", v.images_per_s);
	metric(f, "eta_seconds", "gauge", "Time until the run ends; NaN: not known.",
		v.eta_s < 0 ? (double)NAN : v.eta_s);
	const struct epoch_record *r = progress_evaluated(s->core);
	metric(f, "accuracy", "gauge", "Accuracy of the newest evaluation; NaN: none yet.",
		r ? epoch_accuracy(s->core, r) : (double)NAN);
	metric(f, "test_loss", "gauge", "Loss of the newest evaluation; NaN: none yet.",
		r ? r->eval_loss_sum / r->eval_done : (double)NAN);
	put_test_metrics(f, s->core, r);
	put_server_time(f, s);
	metric(f, "term", "gauge", "Number of this start of the server.",
		(double)core_config(s->core)->term);
}

char *status_metrics(const struct status *s)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return NULL;
	put_core(f, s->core);
	put_progress(f, s);
	put_workers(f, s);
	if (s->timings)
		timings_print(s->timings, f);
	put_worker_states(f, s);
	put_worker_info(f, s);
	put_worker_images(f, s);
	metric(f, "live_workers", "gauge", "Workers at work.", core_live_workers(s->core));
	put_net(f, &s->net);
	put_auth(f, &s->auth);
	if (s->checkpointer)
		put_checkpointer(f, s->checkpointer);
	if (s->wal)
		put_wal(f, s->wal);
	metric(f, "degraded", "gauge", "1 if the disk fails or does not answer.",
		status_degraded(s) != NULL);
	if (s->disk)
		metric(f, "disk_write_age_seconds", "gauge",
			"For how long the oldest write has been under way.",
			(double)disk_wait_write_ms(s->disk) / 1000);
	metric_counter(f, "hellos_turned_away_total", "HELLOs over the rate that is let in.",
		s->turned_away);
	metric(f, "resident_bytes", "gauge", "Memory of the server.", (double)s->rss_bytes);
	metric(f, "uptime_seconds", "gauge", "Since the start of the process.",
		(double)(s->now_ms - s->progress->start_ms) / 1000);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}
