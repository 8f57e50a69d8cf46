/*
 * test_server_status.c - the server's status (server/monitor/status.h): its numbers equal those of
 * the core, its texts fit in a message, and parsers can read them.
 */
#include <jansson.h>
#include "tests/support/direct_worker.h"
#include "server/net/clients.h"
#include "server/monitor/status.h"
#include "common/mem.h"
#include "tests/support/test.h"

static struct options options;
static struct startup run;
static struct direct_worker worker;
static struct progress progress;
static struct checkpointer_stats checkpointer;
static struct status now;

static void begin_status(const char *line)
{
	parse_options(&options, line);
	start_core(&run, &options);
	progress_init(&progress, run.core, 1000);
	worker = (struct direct_worker){.core = run.core, .peer = 5, .now_ms = 2000};
	checkpointer = (struct checkpointer_stats){
		.saved = 3, .generation = 44, .bytes = 555, .seconds = 0.25};
	now = (struct status){.core = run.core,
		.progress = &progress,
		.checkpointer = &checkpointer,
		.now_ms = 3500,
		.rss_bytes = 777,
		.net = {.malformed = 2,
			.torn = 14,
			.lanes = {.open = 2,
				.pushes = 11,
				.params = 12,
				.refused = 13,
				.messages = 15},
			.port.connections = 6}};
}

static int tear_down_status(void **state)
{
	(void)state;
	startup_release(&run);
	return 0;
}

static int finished(void)
{
	return progress_evaluated(run.core) &&
	       progress_evaluated(run.core) ==
		       core_epoch(run.core, options.core.training.epochs - 1);
}

/* Returns the number of images of a batch: 100, or those that are left for the last batch. */
static uint32_t images_in_batch(uint32_t batch)
{
	uint32_t left = core_train_images(run.core) - 100 * batch;

	return left < 100 ? left : 100;
}

/* Train and evaluate all epochs. In each evaluation, the worker classifies `correct` test images
 * correctly. */
static void train_and_evaluate(uint32_t correct)
{
	for (int guard = 0; !finished(); guard++) {
		assert_true(guard < 10000);
		worker.now_ms += 10;
		const struct msg_grant g = *direct_lease(&worker);
		direct_progress(&progress, &worker);
		if (g.kind == GRANT_EVAL) {
			direct_result(&worker, correct, 0.5 * g.eval_count);
			direct_progress(&progress, &worker);
			continue;
		}
		for (uint32_t i = 0; i < g.work.count; i++) {
			const struct work one = {g.work.epoch, g.work.first + i, 1};

			assert_int_equal(
				direct_push(&worker, one, images_in_batch(one.first), 0.25f, 0.5f)
					->verdict,
				VERDICT_OK);
			direct_progress(&progress, &worker);
		}
	}
}

static json_t *parsed(char *text)
{
	json_error_t error;

	assert_non_null(text);
	json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &error);

	if (!o)
		fail_msg("%s at %d: %s", error.text, error.position, text);
	assert_null(strchr(text, '\n'));
	free(text);
	return o;
}

static double json_number_of(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_number(v))
		fail_msg("%s is not a number", key);
	return json_number_value(v);
}

static const char *json_text_of(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_string(v))
		fail_msg("%s is not a text", key);
	return json_string_value(v);
}

/* ---- JSON -------------------------------------------------------------------------------- */

TEST_IN(lanes_are_counted_or_null, NULL, tear_down_status)
{
	begin_status("--model;fc:10");
	json_t *o = parsed(status_json(&now, WIRE_MAX_TEXT));
	assert_true(json_is_null(json_object_get(o, "lanes")));
	json_decref(o);
	now.net.has_lanes = 1;
	o = parsed(status_json(&now, WIRE_MAX_TEXT));
	const json_t *lanes = json_object_get(o, "lanes");
	assert_true(json_number_of(lanes, "open") == 2 && json_number_of(lanes, "pushes") == 11);
	assert_true(
		json_number_of(lanes, "params") == 12 && json_number_of(lanes, "refused") == 13);
	assert_true(json_number_of(lanes, "torn") == 14 && json_number_of(lanes, "messages") == 15);
	json_decref(o);
}

TEST_IN(a_new_server_waits_and_knows_no_accuracy, NULL, tear_down_status)
{
	begin_status("--model;fc:10;--lr;0.125;--seed;9;--optimizer;adam;--schedule;cosine");
	json_t *o = parsed(status_json(&now, WIRE_MAX_TEXT));
	assert_string_equal(json_text_of(o, "state"), "waiting");
	assert_true(json_is_null(json_object_get(o, "degraded")));
	assert_true(json_is_null(json_object_get(o, "accuracy")));
	assert_true(json_is_null(json_object_get(o, "test_loss")));
	assert_true(json_is_null(json_object_get(o, "eta_s")));
	assert_string_equal(json_text_of(o, "model"), "fc:10");
	assert_string_equal(json_text_of(o, "mode"), "downpour");
	assert_string_equal(json_text_of(o, "optimizer"), "adam");
	assert_string_equal(json_text_of(o, "schedule"), "cosine");
	assert_int_equal(strlen(json_text_of(o, "run")), 32);
	assert_true(json_number_of(o, "n_params") == 7850 && json_number_of(o, "seed") == 9);
	assert_true(json_number_of(o, "lr") == 0.125 && json_number_of(o, "term") == 1);
	assert_true(json_number_of(o, "uptime_s") == 2.5 && json_number_of(o, "rss_bytes") == 777);
	assert_int_equal(json_array_size(json_object_get(o, "workers")), 0);
	json_decref(o);
}

TEST_IN(a_run_without_an_end_has_no_share, NULL, tear_down_status)
{
	begin_status("--model;vector:3");
	json_t *o = parsed(status_json(&now, WIRE_MAX_TEXT));
	assert_true(json_is_null(json_object_get(o, "done_ratio")));
	assert_true(json_is_null(json_object_get(o, "max_updates")));
	json_decref(o);
	startup_release(&run);
	begin_status("--model;vector:3;--max-updates;8");
	o = parsed(status_json(&now, WIRE_MAX_TEXT));
	assert_true(json_is_real(json_object_get(o, "done_ratio")));
	assert_true(json_number_of(o, "done_ratio") == 0 && json_number_of(o, "max_updates") == 8);
	json_decref(o);
}

TEST_IN(the_status_of_a_finished_run_has_its_numbers, NULL, tear_down_status)
{
	begin_status("--model;fc:10;--epochs;2;--warm-start-updates;0");
	direct_join(&worker, "ann", 1000, 500);
	train_and_evaluate(450);
	json_t *o = parsed(status_json(&now, WIRE_MAX_TEXT));
	assert_true(json_number_of(o, "updates") == 20 && json_number_of(o, "images") == 2000);
	assert_true(json_number_of(o, "accuracy") == 0.9 && json_number_of(o, "live_workers") == 1);
	assert_true(json_number_of(o, "test_loss") == 0.5);
	assert_true(json_number_of(o, "loss") == 0.25 && json_number_of(o, "staleness_mean") == 0);
	const json_t *epochs = json_object_get(o, "epoch_records");
	assert_int_equal(json_array_size(epochs), 2);
	const json_t *second = json_array_get(epochs, 1);
	assert_true(
		json_number_of(second, "epoch") == 2 && json_number_of(second, "images") == 1000);
	assert_true(json_number_of(second, "accuracy") == 0.9 &&
		    json_number_of(second, "test_loss") == 0.5);
	const json_t *counters = json_object_get(o, "counters");
	assert_true(json_number_of(counters, "pushes") == 20 &&
		    json_number_of(counters, "refusals") == 2);
	const json_t *w = json_array_get(json_object_get(o, "workers"), 0);
	assert_string_equal(json_text_of(w, "name"), "ann");
	assert_string_equal(json_text_of(w, "device"), "cpu \"quoted\"");
	assert_string_equal(json_text_of(w, "state"), "live");
	assert_true(json_number_of(w, "images") == 2000 && json_number_of(w, "last_seq") == 20);
	assert_true(json_number_of(json_object_get(o, "checkpoint"), "generation") == 44);
	json_decref(o);
}

TEST_IN(failing_checkpoints_degrade_the_server, NULL, tear_down_status)
{
	begin_status("--model;vector:4");
	checkpointer.failing = 1;
	snprintf(checkpointer.why, sizeof(checkpointer.why), "no space left");
	assert_string_equal(status_degraded(&now), "no space left");
	json_t *o = parsed(status_json(&now, WIRE_MAX_TEXT));
	assert_string_equal(json_text_of(o, "degraded"), "no space left");
	json_decref(o);
	now.checkpointer = NULL;
	assert_null(status_degraded(&now));
	const struct disk_wait no_answer = {.why = "the disk does not answer"};
	now.disk = &no_answer;
	assert_string_equal(status_degraded(&now), "the disk does not answer");
	now.disk = NULL;
	o = parsed(status_json(&now, WIRE_MAX_TEXT));
	assert_true(json_is_null(json_object_get(o, "checkpoint")));
	json_decref(o);
}

static void label(struct labels *labels, uint32_t id)
{
	struct msg_hello hello = {.pid = 1000000 + id};

	snprintf(hello.host, sizeof(hello.host), "compute-a%04u.cluster", id);
	labels_hello(labels, id, &hello, "10.100.100.100");
	labels_join(labels, id, id, 1);
}

/* Check that the pages, from worker number `first` + 1 on, contain each worker up to number 1024
 * once. */
static void assert_pages_from(uint32_t first, size_t max_text)
{
	for (int pages = 0; first < 1024; pages++) {
		char *text = status_workers_json(&now, first + 1, max_text);

		assert_true(pages < 100 && strlen(text) <= max_text);
		json_t *o = parsed(text), *list = json_object_get(o, "workers");
		assert_int_equal(json_object_size(o), 2);
		assert_true(json_array_size(list) > 10 || first > 1014);
		for (size_t i = 0; i < json_array_size(list); i++)
			assert_true(json_number_of(json_array_get(list, i), "worker") == ++first);
		assert_true(json_number_of(o, "workers_left_out") == 1024 - (double)first);
		json_decref(o);
	}
}

/* Check that the status of 1024 workers has at most `max_text` bytes. */
static void assert_status_within(size_t max_text)
{
	char *text = status_json(&now, max_text);

	assert_true(strlen(text) <= max_text);
	/* the text uses most of the allowed size */
	assert_true(strlen(text) > max_text * 4 / 5);
	json_t *o = parsed(text);
	size_t listed = json_array_size(json_object_get(o, "workers"));
	assert_true(listed > 10);
	assert_true(json_number_of(o, "workers_left_out") == 1024 - (double)listed);
	assert_true(json_number_of(o, "live_workers") == 1024);
	json_decref(o);
	assert_pages_from((uint32_t)listed, max_text);
}

TEST_IN(many_workers_are_cut_to_the_size_of_a_message, NULL, tear_down_status)
{
	char name[WIRE_MAX_NAME + 1];

	begin_status("--model;vector:4;--max-workers;1024");
	struct labels *labels = labels_new(1024, NULL);
	assert_non_null(labels);
	for (uint32_t i = 0; i < 1024; i++) {
		snprintf(name, sizeof(name), "%04u-%055d", i, 0);
		worker.peer = i + 1;
		direct_join(&worker, name, 0, 0);
		label(labels, i + 1);
	}
	now.labels = labels;
	assert_status_within(WIRE_MAX_TEXT);
	assert_status_within(WIRE_MIN_TEXT);
	now.labels = NULL;
	labels_free(&labels);
}

TEST_IN(a_thousand_epochs_fit_as_well, NULL, tear_down_status)
{
	begin_status("--model;fc:10;--epochs;1000;--warm-start-updates;0");
	direct_join(&worker, "", 100, 10);
	train_and_evaluate(9);
	json_t *o = parsed(status_json(&now, WIRE_MAX_TEXT));
	const json_t *epochs = json_object_get(o, "epoch_records");
	assert_int_equal(json_array_size(epochs), 20);
	json_decref(o);
	o = parsed(status_result(&now));
	assert_int_equal(json_array_size(json_object_get(o, "images_per_epoch")), 1000);
	json_decref(o);
}

TEST_IN(the_result_has_every_field_of_the_contract, NULL, tear_down_status)
{
	begin_status("--model;fc:10;--epochs;2;--warm-start-updates;0");
	worker.now_ms = 2000;
	direct_join(&worker, "", 1000, 500);
	train_and_evaluate(400);
	now.ending = PS_EDONE;
	now.now_ms = 9000;
	json_t *o = parsed(status_result(&now));
	assert_string_equal(json_text_of(o, "status"), "done");
	assert_true(json_is_false(json_object_get(o, "stop_rule")));
	assert_true(json_number_of(o, "accuracy") == 0.8 && json_number_of(o, "loss") == 0.5);
	assert_true(json_number_of(o, "updates") == 20 && json_number_of(o, "images") == 2000);
	const json_t *images = json_object_get(o, "images_per_epoch");
	assert_true(json_integer_value(json_array_get(images, 0)) == 1000 &&
		    json_integer_value(json_array_get(images, 1)) == 1000);
	assert_true(json_number_of(o, "seconds_total") == 8);
	assert_true(json_number_of(o, "seconds") > 0 && json_number_of(o, "seconds") < 1);
	assert_true(json_number_of(o, "duplicates") == 0 && json_number_of(o, "rejected") == 0);
	assert_true(json_number_of(o, "refusals") == 2 && json_number_of(o, "term") == 1);
	const json_t *data = json_object_get(o, "data");
	assert_true(
		json_number_of(data, "n_train") == 1000 && json_number_of(data, "n_test") == 500);
	assert_string_equal(json_text_of(data, "xxh3"), "0000000000001234");
	assert_int_equal(strlen(json_text_of(o, "run")), 32);
	json_decref(o);
}

TEST(a_slow_worker_has_a_rate)
{
	static const struct {
		double rate;
		const char *text;
	} row[] = {{0, "0.0"}, {0.04, "0.04"}, {0.337, "0.34"}, {9.5, "9.5"}, {10.9, "10"},
		{1234567.8, "1234567"}};

	for (size_t i = 0; i < sizeof(row) / sizeof(*row); i++) {
		json_t *o = status_rate(row[i].rate);
		char *text = json_dumps(o, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));

		assert_string_equal(text, row[i].text);
		free(text);
		json_decref(o);
	}
}

TEST_IN(endings_have_names, NULL, tear_down_status)
{
	static const struct {
		int status;
		const char *name;
	} row[] = {{PS_EDONE, "done"}, {PS_ESHUTDOWN, "drained"}, {PS_EDIVERGED, "diverged"},
		{PS_EAGAIN, "aborted"}, {PS_EIO, "aborted"}};

	begin_status("--model;fc:10");
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		now.ending = row[i].status;
		json_t *o = parsed(status_result(&now));
		assert_string_equal(json_text_of(o, "status"), row[i].name);
		assert_true(json_is_null(json_object_get(o, "accuracy")));
		json_decref(o);
	}
}

/* ---- Prometheus -------------------------------------------------------------------------- */

/* Returns the value in the line of `text` that starts with `series`. */
static double metric_sample(const char *text, const char *series)
{
	char line[256];

	snprintf(line, sizeof(line), "\n%s ", series);
	const char *at = strstr(text, line);
	if (!at)
		fail_msg("no %s in:\n%s", series, text);
	return strtod(at + strlen(line), NULL);
}

TEST_IN(metrics_are_the_cores_numbers, NULL, tear_down_status)
{
	begin_status("--model;fc:10;--epochs;2;--warm-start-updates;0");
	direct_join(&worker, "a\\b\"c", 1000, 500);
	train_and_evaluate(450);
	char *text = status_metrics(&now);
	assert_true(metric_sample(text, "cnnps_images_total") == 2000);
	assert_true(metric_sample(text, "cnnps_weights_bytes") == 4 * 7850);
	assert_true(metric_sample(text, "cnnps_resident_bytes") == 777);
	assert_true(metric_sample(text, "cnnps_zloop_rescues_total") == 0);
	assert_true(metric_sample(text, "cnnps_malformed_total") == 2);
	assert_true(metric_sample(text, "cnnps_lanes") == 2);
	assert_true(metric_sample(text, "cnnps_lane_pushes_total") == 11);
	assert_true(metric_sample(text, "cnnps_lane_params_total") == 12);
	assert_true(metric_sample(text, "cnnps_lane_refused_total") == 13);
	assert_true(metric_sample(text, "cnnps_lane_torn_total") == 14);
	assert_true(metric_sample(text, "cnnps_lane_messages_total") == 15);
	assert_true(metric_sample(text, "cnnps_checkpoints_total") == 3);
	assert_true(metric_sample(text, "cnnps_checkpoint_failures_total") == 0);
	assert_true(metric_sample(text, "cnnps_rejected_total{reason=\"stale\"}") == 0);
	assert_true(metric_sample(text, "cnnps_staleness_bucket{le=\"0\"}") == 20);
	assert_true(metric_sample(text, "cnnps_staleness_bucket{le=\"+Inf\"}") == 20);
	assert_true(metric_sample(text, "cnnps_staleness_count") == 20);
	assert_true(
		metric_sample(text, "cnnps_worker_images_total{worker=\"1\",name=\"a\\\\b\\\"c\","
				    "host=\"\"}") == 2000);
	assert_true(metric_sample(text,
			    "cnnps_worker_state{worker=\"1\",name=\"a\\\\b\\\"c\",host=\"\","
			    "state=\"live\"}") == 1);
	assert_true(metric_sample(text,
			    "cnnps_worker_state{worker=\"1\",name=\"a\\\\b\\\"c\",host=\"\","
			    "state=\"away\"}") == 0);
	free(text);
}

static int declared(const char *type_line, const char *series)
{
	size_t n = strcspn(type_line, " ");

	return strncmp(type_line, series, n) == 0 &&
	       (series[n] == ' ' || series[n] == '{' || series[n] == '_');
}

/* In Prometheus's text format, the samples of a metric follow its TYPE line, and a metric has only
 * one TYPE line. */
TEST_IN(metrics_follow_the_text_format, NULL, tear_down_status)
{
	const char *type = NULL;
	char *save, *copy;

	begin_status("--model;fc:10");
	direct_join(&worker, "one", 1000, 500);
	worker.peer = 6;
	direct_join(&worker, "two", 1000, 500);
	char *text = status_metrics(&now);
	assert_true(text[strlen(text) - 1] == '\n');
	copy = strdup(text);
	for (char *line = copy; *line; line = save) {
		save = strchr(line, '\n');
		*save++ = '\0';
		if (strncmp(line, "# HELP ", 7) == 0)
			continue;
		if (strncmp(line, "# TYPE ", 7) != 0) {
			if (!type || !declared(type, line))
				fail_msg("%s under %s", line, type ? type : "nothing");
			continue;
		}
		type = line + 7;
		char once[256];
		snprintf(once, sizeof(once), "\n%s\n", line);
		const char *first = strstr(text, line);
		assert_null(strstr(first + 1, once));
	}
	free(copy);
	free(text);
}

TEST(memory_of_the_process_is_read)
{
	/* large, because Linux counts resident pages only approximately */
	const size_t size = 8 << 20;
	volatile unsigned char *mine = mem_must(size, 1, "memory");

	for (size_t i = 0; i < size; i += 1024)
		mine[i] = 1;
	assert_true(status_rss() > 1 << 20);
	assert_true(status_rss() < (uint64_t)1 << 40);
	free((void *)mine);
}

/* ---- warnings about doubtful runs ----------------------------------------------------------- */

static struct warnings warnings;

/* Train with the options `line`. In each evaluation, the worker classifies `correct` test images
 * correctly. Returns the only warning in the final result, or NULL if it has none. */
static const char *warning_of(const char *line, uint32_t correct)
{
	static char text[WARNING_TEXT];

	begin_status(line);
	warnings = (struct warnings){
		.classes = options.model.classes, .usual_rate = options.usual_rate};
	now.warnings = &warnings;
	direct_join(&worker, "", 1000, 100);
	if (options.core.training.batch_size == 100)
		train_and_evaluate(correct);
	now.ending = PS_EDONE;
	json_t *o = parsed(status_result(&now)), *list = json_object_get(o, "warnings");
	assert_true(json_is_array(list) && json_array_size(list) <= 1);
	const char *found = json_string_value(json_array_get(list, 0));
	snprintf(text, sizeof(text), "%s", found ? found : "");
	json_decref(o);
	startup_release(&run);
	return found ? text : NULL;
}

static void expect_warning(const char *line, uint32_t correct, const char *words)
{
	const char *text = warning_of(line, correct);

	if (!text || !strstr(text, words))
		fail_msg("%s: no \"%s\" in: %s", line, words, text ? text : "nothing");
}

TEST(a_result_at_chance_level_is_warned_about)
{
	/* A model that always answers the most frequent class of MNIST has an accuracy of 11.35 %.
	 * The accuracy up to which the server warns must be higher than this. */
	assert_true(warning_chance(10, 10000) > 0.1135 && warning_chance(10, 10000) < 0.14);
	assert_true(warning_chance(2, 10000) > 0.625 && warning_chance(2, 10000) < 0.65);
	assert_true(warning_chance(100, 10000) > 0.0125 && warning_chance(100, 10000) < 0.02);
	expect_warning("--model;fc:10;--epochs;1", 0, "no better than chance");
	expect_warning("--model;fc:10;--epochs;1", 0, "10 classes and 100 test images");
	assert_null(warning_of("--model;fc:10;--epochs;1", 60));
}

TEST(a_result_at_chance_level_names_the_images_that_are_held_back)
{
	expect_warning(
		"--model;fc:10;--epochs;1;--validate;50", 0, "10 classes and 50 held-back images");
	assert_null(warning_of("--model;fc:10;--epochs;1;--validate;50", 40));
}

TEST(a_result_on_too_few_images_is_not_called_chance)
{
	assert_true(warning_chance(10, 1) >= 1);
	assert_null(warning_of("--model;fc:10;--epochs;1;--validate;1", 0));
	assert_null(warning_of("--model;fc:10;--epochs;1;--validate;1", 1));
}

static void expect_rate(double usual_rate, int warned)
{
	char text[WARNING_TEXT];

	warnings = (struct warnings){.classes = 10, .usual_rate = usual_rate};
	assert_int_equal(warning_text(&warnings, WARNING_RATE, run.core, 0, text), warned);
}

TEST(a_rate_far_above_the_usual_is_warned_about)
{
	expect_warning("--model;fc:10;--epochs;1;--optimizer;sgd;--lr;500", 60,
		"--lr 500 is 2500 times the usual rate of sgd (0.2)");
	expect_warning("--model;fc:10;--epochs;1;--optimizer;adam;--lr;0.1", 60, "of adam");
	assert_null(warning_of("--model;fc:10;--epochs;1;--optimizer;sgd;--lr;3", 60));
	/* in mode sync, the usual learning rate is another one */
	begin_status("--model;fc:10;--mode;sync;--lr;1");
	expect_rate(options.usual_rate, 0);
	expect_rate(options.usual_rate / 10, 1);
	startup_release(&run);
	assert_null(warning_of("--model;fc:10;--epochs;1;--optimizer;adagrad;--lr;0.5", 60));
}

TEST(a_batch_larger_than_the_data_set_is_warned_about)
{
	expect_warning("--model;fc:10;--epochs;1;--batch-size;100000", 60,
		"--batch-size 100000 is larger than");
	assert_null(warning_of("--model;fc:10;--epochs;1;--batch-size;100", 60));
}

TEST_IN(warnings_are_logged_once, NULL, tear_down_status)
{
	static struct capture log;

	begin_status("--model;fc:10;--epochs;1;--optimizer;sgd;--lr;500");
	warnings = (struct warnings){.classes = 10, .usual_rate = 0.2};
	capture_begin(&log, STDERR_FILENO);
	warnings_check(&warnings, run.core, 0);
	warnings_check(&warnings, run.core, 0);
	capture_end(&log);
	assert_int_equal(count_lines(log.text), 1);
	assert_non_null(strstr(log.text, "--lr 500"));
}
