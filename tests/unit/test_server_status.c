/*
 * test_server_status.c - what the server says about itself (server/status.h): every number is the
 * core's, nothing is too long, and parsers can read it.
 */
#include <jansson.h>
#include "server_lab.h"
#include "server/status.h"

static struct options options;
static struct restored run;
static struct lab_worker worker;
static struct progress progress;
static struct saver_stats saver;
static struct status now;

static void begin(const char *line)
{
	lab_options(&options, line);
	lab_restore(&run, &options);
	progress_init(&progress, run.core, 1000);
	worker = (struct lab_worker){.core = run.core, .peer = 5, .now_ms = 2000};
	saver = (struct saver_stats){.saved = 3, .generation = 44, .bytes = 555, .seconds = 0.25};
	now = (struct status){.core = run.core,
		.progress = &progress,
		.saver = &saver,
		.now_ms = 3500,
		.rss_bytes = 777,
		.net = {.malformed = 2, .port.connections = 6}};
}

static int tear_down(void **state)
{
	(void)state;
	restore_release(&run);
	return 0;
}

static int finished(void)
{
	return progress_evaluated(run.core) &&
	       progress_evaluated(run.core) == core_epoch(run.core, options.core.epochs - 1);
}

/* Train and evaluate all epochs; in each, `correct` of all test images are right. */
static void train(uint32_t correct)
{
	for (int guard = 0; !finished(); guard++) {
		assert_true(guard < 10000);
		worker.now_ms += 10;
		const struct msg_grant g = *lab_lease(&worker);
		lab_show(&progress, &worker);
		if (g.kind == GRANT_EVAL) {
			lab_result(&worker, correct, 0.5 * g.eval_count);
			lab_show(&progress, &worker);
			continue;
		}
		for (uint32_t i = 0; i < g.work.count; i++) {
			const struct work one = {g.work.epoch, g.work.first + i, 1};
			assert_int_equal(
				lab_push(&worker, one, 100, 0.25f, 0.5f)->verdict, VERDICT_OK);
			lab_show(&progress, &worker);
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

static double number(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_number(v))
		fail_msg("%s is not a number", key);
	return json_number_value(v);
}

static const char *text_of(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_string(v))
		fail_msg("%s is not a text", key);
	return json_string_value(v);
}

/* ---- JSON -------------------------------------------------------------------------------- */

static void a_new_server_waits_and_knows_no_accuracy(void **state)
{
	(void)state;
	begin("--model;fc:10;--lr;0.125;--seed;9;--optimizer;adam;--schedule;cosine");
	json_t *o = parsed(status_json(&now));
	assert_string_equal(text_of(o, "state"), "waiting");
	assert_true(json_is_null(json_object_get(o, "degraded")));
	assert_true(json_is_null(json_object_get(o, "accuracy")));
	assert_true(json_is_null(json_object_get(o, "eta_s")));
	assert_string_equal(text_of(o, "model"), "fc:10");
	assert_string_equal(text_of(o, "mode"), "downpour");
	assert_string_equal(text_of(o, "optimizer"), "adam");
	assert_string_equal(text_of(o, "schedule"), "cosine");
	assert_int_equal(strlen(text_of(o, "run")), 32);
	assert_true(number(o, "n_params") == 7850 && number(o, "seed") == 9);
	assert_true(number(o, "lr") == 0.125 && number(o, "epoch") == 1);
	assert_true(number(o, "uptime_s") == 2.5 && number(o, "rss_bytes") == 777);
	assert_int_equal(json_array_size(json_object_get(o, "workers")), 0);
	json_decref(o);
}

static void a_finished_run_is_told_by_its_numbers(void **state)
{
	(void)state;
	begin("--model;fc:10;--epochs;2;--warm-updates;0");
	lab_join(&worker, "ann", 1000, 500);
	train(450);
	json_t *o = parsed(status_json(&now));
	assert_true(number(o, "updates") == 20 && number(o, "images") == 2000);
	assert_true(number(o, "accuracy") == 0.9 && number(o, "live_workers") == 1);
	assert_true(number(o, "loss") == 0.25 && number(o, "staleness_mean") == 0);
	const json_t *epochs = json_object_get(o, "epoch_records");
	assert_int_equal(json_array_size(epochs), 2);
	const json_t *second = json_array_get(epochs, 1);
	assert_true(number(second, "epoch") == 2 && number(second, "images") == 1000);
	assert_true(number(second, "accuracy") == 0.9 && number(second, "test_loss") == 0.5);
	const json_t *counters = json_object_get(o, "counters");
	assert_true(number(counters, "pushes") == 20 && number(counters, "refusals") == 2);
	const json_t *w = json_array_get(json_object_get(o, "workers"), 0);
	assert_string_equal(text_of(w, "name"), "ann");
	assert_string_equal(text_of(w, "device"), "cpu \"quoted\"");
	assert_string_equal(text_of(w, "state"), "live");
	assert_true(number(w, "images") == 2000 && number(w, "last_seq") == 20);
	assert_true(number(json_object_get(o, "checkpoint"), "generation") == 44);
	json_decref(o);
}

static void a_failing_saver_is_a_degraded_server(void **state)
{
	(void)state;
	begin("--model;vector:4");
	saver.failing = 1;
	snprintf(saver.why, sizeof(saver.why), "no space left");
	assert_string_equal(status_degraded(&now), "no space left");
	json_t *o = parsed(status_json(&now));
	assert_string_equal(text_of(o, "degraded"), "no space left");
	json_decref(o);
	now.saver = NULL;
	assert_null(status_degraded(&now));
	o = parsed(status_json(&now));
	assert_true(json_is_null(json_object_get(o, "checkpoint")));
	json_decref(o);
}

/* WIRE_MAX_TEXT bounds what STATUS may carry. */
static void a_crowd_is_cut_to_what_a_message_holds(void **state)
{
	char name[WIRE_MAX_NAME + 1];

	(void)state;
	begin("--model;vector:4;--max-workers;1024");
	for (uint32_t i = 0; i < 1024; i++) {
		snprintf(name, sizeof(name), "%04u-%055d", i, 0);
		worker.peer = i + 1;
		lab_join(&worker, name, 0, 0);
	}
	char *text = status_json(&now);
	assert_true(strlen(text) <= WIRE_MAX_TEXT);
	assert_true(strlen(text) > WIRE_MAX_TEXT / 4);
	json_t *o = parsed(text);
	size_t listed = json_array_size(json_object_get(o, "workers"));
	assert_true(listed > 10);
	assert_true(number(o, "workers_left_out") == 1024 - (double)listed);
	assert_true(number(o, "live_workers") == 1024);
	json_decref(o);
}

static void a_thousand_epochs_fit_as_well(void **state)
{
	(void)state;
	begin("--model;fc:10;--epochs;1000;--warm-updates;0");
	lab_join(&worker, "", 100, 10);
	train(9);
	json_t *o = parsed(status_json(&now));
	const json_t *epochs = json_object_get(o, "epoch_records");
	assert_int_equal(json_array_size(epochs), 20);
	json_decref(o);
	o = parsed(status_result(&now));
	assert_int_equal(json_array_size(json_object_get(o, "images_per_epoch")), 1000);
	json_decref(o);
}

static void the_result_has_every_field_of_the_contract(void **state)
{
	(void)state;
	begin("--model;fc:10;--epochs;2;--warm-updates;0");
	worker.now_ms = 2000;
	lab_join(&worker, "", 1000, 500);
	train(400);
	now.ending = PS_EDONE;
	now.now_ms = 9000;
	json_t *o = parsed(status_result(&now));
	assert_string_equal(text_of(o, "status"), "done");
	assert_true(number(o, "accuracy") == 0.8 && number(o, "loss") == 0.5);
	assert_true(number(o, "updates") == 20 && number(o, "images") == 2000);
	const json_t *images = json_object_get(o, "images_per_epoch");
	assert_true(json_integer_value(json_array_get(images, 0)) == 1000 &&
		    json_integer_value(json_array_get(images, 1)) == 1000);
	assert_true(number(o, "seconds_total") == 8);
	assert_true(number(o, "seconds") > 0 && number(o, "seconds") < 1);
	assert_true(number(o, "duplicates") == 0 && number(o, "rejected") == 0);
	assert_true(number(o, "refusals") == 2 && number(o, "epoch") == 1);
	const json_t *data = json_object_get(o, "data");
	assert_true(number(data, "n_train") == 1000 && number(data, "n_test") == 500);
	assert_string_equal(text_of(data, "xxh3"), "0000000000001234");
	assert_int_equal(strlen(text_of(o, "run")), 32);
	json_decref(o);
}

static void endings_have_names(void **state)
{
	static const struct {
		int status;
		const char *name;
	} row[] = {{PS_EDONE, "done"}, {PS_ESHUTDOWN, "drained"}, {PS_EDIVERGED, "diverged"},
		{PS_EAGAIN, "aborted"}, {PS_EIO, "aborted"}};

	(void)state;
	begin("--model;fc:10");
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		now.ending = row[i].status;
		json_t *o = parsed(status_result(&now));
		assert_string_equal(text_of(o, "status"), row[i].name);
		assert_true(json_is_null(json_object_get(o, "accuracy")));
		json_decref(o);
	}
}

/* ---- Prometheus -------------------------------------------------------------------------- */

/* The value in the line that starts with `series`. */
static double sample(const char *text, const char *series)
{
	char line[256];

	snprintf(line, sizeof(line), "\n%s ", series);
	const char *at = strstr(text, line);
	if (!at)
		fail_msg("no %s in:\n%s", series, text);
	return strtod(at + strlen(line), NULL);
}

static void metrics_are_the_cores_numbers(void **state)
{
	(void)state;
	begin("--model;fc:10;--epochs;2;--warm-updates;0");
	lab_join(&worker, "a\\b\"c", 1000, 500);
	train(450);
	char *text = status_metrics(&now);
	assert_true(sample(text, "cnnps_images_total") == 2000);
	assert_true(sample(text, "cnnps_weights_bytes") == 4 * 7850);
	assert_true(sample(text, "cnnps_resident_bytes") == 777);
	assert_true(sample(text, "cnnps_zloop_rescues_total") == 0);
	assert_true(sample(text, "cnnps_malformed_total") == 2);
	assert_true(sample(text, "cnnps_checkpoints_total") == 3);
	assert_true(sample(text, "cnnps_checkpoint_failures_total") == 0);
	assert_true(sample(text, "cnnps_rejected_total{reason=\"stale\"}") == 0);
	assert_true(sample(text, "cnnps_staleness_bucket{le=\"0\"}") == 20);
	assert_true(sample(text, "cnnps_staleness_bucket{le=\"+Inf\"}") == 20);
	assert_true(sample(text, "cnnps_staleness_count") == 20);
	assert_true(sample(text, "cnnps_worker_images_total{worker=\"1\"}") == 2000);
	assert_true(sample(text, "cnnps_worker_state{worker=\"1\",name=\"a\\\\b\\\"c\",state="
				 "\"live\"}") == 1);
	free(text);
}

static int declared(const char *type_line, const char *series)
{
	size_t n = strcspn(type_line, " ");

	return strncmp(type_line, series, n) == 0 &&
	       (series[n] == ' ' || series[n] == '{' || series[n] == '_');
}

/* The text format: each series follows the TYPE line of its metric, which stands there once. */
static void metrics_follow_the_text_format(void **state)
{
	const char *type = NULL;
	char *save, *copy;

	(void)state;
	begin("--model;fc:10");
	lab_join(&worker, "one", 1000, 500);
	worker.peer = 6;
	lab_join(&worker, "two", 1000, 500);
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

static void memory_of_the_process_is_read(void **state)
{
	(void)state;
	assert_true(status_rss() > 1 << 20);
	assert_true(status_rss() < (uint64_t)1 << 40);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(a_new_server_waits_and_knows_no_accuracy, tear_down),
		cmocka_unit_test_teardown(a_finished_run_is_told_by_its_numbers, tear_down),
		cmocka_unit_test_teardown(a_failing_saver_is_a_degraded_server, tear_down),
		cmocka_unit_test_teardown(a_crowd_is_cut_to_what_a_message_holds, tear_down),
		cmocka_unit_test_teardown(a_thousand_epochs_fit_as_well, tear_down),
		cmocka_unit_test_teardown(the_result_has_every_field_of_the_contract, tear_down),
		cmocka_unit_test_teardown(endings_have_names, tear_down),
		cmocka_unit_test_teardown(metrics_are_the_cores_numbers, tear_down),
		cmocka_unit_test_teardown(metrics_follow_the_text_format, tear_down),
		cmocka_unit_test(memory_of_the_process_is_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
