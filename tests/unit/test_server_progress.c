/*
 * test_server_progress.c - the text of the progress bar, and the times and rates that it shows
 * (server/monitor/progress.h).
 */
#include <math.h>
#include "tests/support/direct_worker.h"
#include "server/monitor/progress.h"
#include "tests/support/test.h"

static struct options options;
static struct startup run;
static struct direct_worker worker;
static struct progress progress;
static struct capture errors;

static void begin_progress(const char *line)
{
	parse_options(&options, line);
	start_core(&run, &options);
	progress_init(&progress, run.core, 1000);
	worker = (struct direct_worker){.core = run.core, .peer = 5, .now_ms = 1000};
}

static int tear_down_progress(void **state)
{
	(void)state;
	startup_release(&run);
	return 0;
}

/* Let the worker deliver one batch of 100 images at `now_ms`. */
static void batch_at(struct work work, uint64_t now_ms)
{
	worker.now_ms = now_ms;
	direct_push(&worker, work, 100, 0.5f, 0.1f);
	direct_progress(&progress, &worker);
}

/* ---- the text ---------------------------------------------------------------------------- */

static const char *bar(struct progress_view v)
{
	static char line[256];

	progress_bar(&v, sizeof(line), line, sizeof(line));
	return line;
}

/* Returns the progress bar for a terminal with `columns` columns. */
static const char *bar_of(const struct progress_view *v, size_t columns)
{
	static char line[256];

	progress_bar(v, columns, line, sizeof(line));
	return line;
}

static const struct progress_view half = {.epochs = 3,
	.epoch = 2,
	.done = 0.5,
	.images_per_s = 12345.4,
	.loss = 0.123456,
	.accuracy = 0.9712,
	.eta_s = 7.2,
	.workers = 2};

TEST(a_bar_says_all_that_matters)
{
	assert_string_equal(bar(half),
		"epoch 2/3 [##########..........]  50 %  12345 images/s  loss 0.1235  accuracy "
		"97.12 %  ETA 8 s  2 workers");
}

TEST(what_is_not_known_is_left_out)
{
	struct progress_view v = half;

	v.accuracy = v.eta_s = -1;
	v.test_loss = (double)NAN;
	v.workers = 1;
	assert_string_equal(bar(v),
		"epoch 2/3 [##########..........]  50 %  12345 images/s  loss 0.1235  1 worker");
}

TEST(a_bar_without_an_accuracy_has_the_test_loss)
{
	struct progress_view v = half;

	v.accuracy = (double)NAN;
	v.test_loss = 0.25;
	snprintf(v.metrics, sizeof(v.metrics), "  mae 0.5  rmse 1.5");
	assert_non_null(strstr(bar(v), "  loss 0.1235  test loss 0.2500  mae 0.5  rmse 1.5  ETA"));
	v.loss = 1.2e-7;
	v.test_loss = 1.2e-11;
	assert_non_null(strstr(bar(v), "  loss 1.2e-07  test loss 1.2e-11  mae 0.5  rmse 1.5"));
	v.loss = 0.123456;
	v.accuracy = 0.5;
	assert_non_null(strstr(bar(v), "  accuracy 50.00 %  mae 0.5  rmse 1.5  ETA"));
}

TEST(the_ends_of_a_bar_are_full_and_empty)
{
	struct progress_view v = half;

	v.done = 0;
	assert_non_null(strstr(bar(v), "[....................]   0 %"));
	v.done = 0.999;
	assert_non_null(strstr(bar(v), "[###################.]  99 %"));
	v.done = 1;
	assert_non_null(strstr(bar(v), "[####################] 100 %"));
}

TEST(without_a_data_set_updates_are_counted)
{
	const struct progress_view v = {.updates = 17,
		.updates_per_s = 8.6,
		.loss = 2,
		.accuracy = -1,
		.test_loss = (double)NAN,
		.eta_s = -1,
		.workers = 3};

	assert_string_equal(bar(v), "17 updates  9 updates/s  loss 2.0000  3 workers");
}

TEST(a_bar_of_updates_has_the_share_of_max_updates)
{
	const struct progress_view v = {.updates = 17,
		.max_updates = 34,
		.done = 0.5,
		.updates_per_s = 8.6,
		.loss = 2,
		.accuracy = -1,
		.test_loss = (double)NAN,
		.eta_s = 2,
		.workers = 3};

	assert_string_equal(bar(v), "17 updates [##########..........]  50 %  9 updates/s  loss "
				    "2.0000  ETA 2 s  3 workers");
}

TEST(a_bar_says_why_nothing_moves)
{
	struct progress_view v = half;

	v.waiting = "waiting for workers: 0 of 1 for 3 s: cnn-worker";
	assert_string_equal(
		bar(v), "epoch 2/3 50 %  waiting for workers: 0 of 1 for 3 s: cnn-worker");
	v.done = 0;
	v.updates = 0;
	assert_string_equal(bar(v), "waiting for workers: 0 of 1 for 3 s: cnn-worker");
}

TEST(a_bar_fits_the_terminal)
{
	struct progress_view v = half;

	assert_string_equal(bar_of(&v, 97),
		"epoch 2/3 [#####.....]  50 %  12345 images/s  loss 0.1235  accuracy 97.12 %  ETA "
		"8 s  2 workers");
	assert_string_equal(bar_of(&v, 79),
		"epoch 2/3  50 %  12345 images/s  accuracy 97.12 %  ETA 8 s  2 workers");
	assert_string_equal(
		bar_of(&v, 59), "epoch 2/3  50 %  accuracy 97.12 %  ETA 8 s  2 workers");
	v.epoch = 2000;
	v.epochs = 3000;
	v.eta_s = 4444444;
	v.workers = 200;
	assert_string_equal(bar_of(&v, 79),
		"epoch 2000/3000  50 %  accuracy 97.12 %  ETA 1234.6 h  200 workers");
	assert_string_equal(
		bar_of(&v, 59), "epoch 2000/3000  50 %  accuracy 97.12 %  ETA 1234.6 h");
	/* without the result of an evaluation, the bar shows the training loss */
	v.accuracy = v.test_loss = (double)NAN;
	assert_string_equal(bar_of(&v, 59), "epoch 2000/3000  50 %  loss 0.1235  ETA 1234.6 h");
}

TEST(a_bar_never_leaves_its_buffer)
{
	char line[128];

	for (size_t size = 1; size < 100; size++) {
		memset(line, 'x', sizeof(line));
		progress_bar(&half, sizeof(line), line, size);
		assert_true(strlen(line) == size - 1);
		assert_int_equal(line[size], 'x');
	}
}

/* ---- times and rates --------------------------------------------------------------------- */

TEST_IN(seconds_run_from_the_first_work_to_the_last_epoch, NULL, tear_down_progress)
{
	begin_progress("--model;fc:10;--epochs;1;--warm-start-updates;0;--lease-batches;100");
	worker.now_ms = 3000; /* the time before a worker joins must not count as training time */
	direct_join(&worker, "", 200, 100);
	direct_progress(&progress, &worker);
	assert_true(progress_seconds(&progress, run.core, 3500) == 0);
	worker.now_ms = 4000;
	direct_lease(&worker);
	direct_progress(&progress, &worker);
	assert_true(progress_seconds(&progress, run.core, 4250) == 0.25);
	batch_at((struct work){0, 0, 1}, 5000);
	assert_true(progress_seconds(&progress, run.core, 5500) == 1.5);
	batch_at((struct work){0, 1, 1}, 6000);
	assert_true(progress_seconds(&progress, run.core, 99000) == 2);
}

TEST_IN(an_epoch_is_one_log_line_with_its_rate, NULL, tear_down_progress)
{
	begin_progress("--model;fc:10;--epochs;1;--warm-start-updates;0;--lease-batches;100");
	direct_join(&worker, "", 200, 100);
	worker.now_ms = 4000;
	direct_lease(&worker);
	direct_progress(&progress, &worker);
	log_set_level(LOG_INFO);
	capture_begin(&errors, STDERR_FILENO);
	batch_at((struct work){0, 0, 1}, 5000);
	batch_at((struct work){0, 1, 1}, 6000);
	assert_int_equal(direct_lease(&worker)->kind, GRANT_EVAL);
	direct_result(&worker, 93, 25);
	direct_progress(&progress, &worker);
	capture_log(&errors);
	assert_string_equal(errors.text, "level=info msg=\"train epoch\" epoch=1 images=200 "
					 "updates=2 loss=0.5000 accuracy=0.9300 "
					 "test_loss=0.2500 images_per_s=100\n");
}

TEST_IN(a_small_loss_in_the_log_keeps_its_digits, NULL, tear_down_progress)
{
	begin_progress("--model;fc:10;--epochs;1;--warm-start-updates;0;--lease-batches;100");
	direct_join(&worker, "", 100, 100);
	direct_lease(&worker);
	log_set_level(LOG_INFO);
	capture_begin(&errors, STDERR_FILENO);
	direct_push(&worker, (struct work){0, 0, 1}, 100, 2.5e-7f, 0.1f);
	direct_progress(&progress, &worker);
	assert_int_equal(direct_lease(&worker)->kind, GRANT_EVAL);
	direct_result(&worker, 100, 1.2e-9);
	direct_progress(&progress, &worker);
	capture_log(&errors);
	assert_non_null(strstr(errors.text, " loss=2.5e-07 accuracy=1.0000 test_loss=1.2e-11 "));
}

/* Let one worker train the first of two epochs: 200 images in two seconds. */
static void train_the_first_epoch(void)
{
	begin_progress("--model;fc:10;--epochs;2;--warm-start-updates;0;--lease-batches;100");
	direct_join(&worker, "", 200, 100);
	direct_lease(&worker);
	direct_progress(&progress, &worker);
	log_set_level(LOG_ERROR);
	batch_at((struct work){0, 0, 1}, 2000);
	batch_at((struct work){0, 1, 1}, 3000);
}

/* One worker evaluates for four seconds, then trains the second epoch in two seconds. The time of
 * the evaluation must not count as time of the second epoch. */
TEST_IN(evaluation_is_not_of_the_next_epoch, NULL, tear_down_progress)
{
	train_the_first_epoch();
	assert_int_equal(direct_lease(&worker)->kind, GRANT_EVAL);
	direct_progress(&progress, &worker);
	worker.now_ms = 7000;
	direct_result(&worker, 93, 25);
	direct_progress(&progress, &worker);
	assert_true(progress.epoch_rate == 100);
	assert_int_equal(direct_lease(&worker)->kind, GRANT_TRAIN);
	direct_progress(&progress, &worker);
	batch_at((struct work){1, 0, 1}, 8000);
	batch_at((struct work){1, 1, 1}, 8250);
	assert_true(progress.epoch_rate == 160);
}

/* If a server restarts after the training of an epoch, but before its evaluation, the new server
 * does not have the time of the training. In this case the rate of the epoch must be unknown, not 0
 * images/s. */
TEST_IN(the_rate_of_an_epoch_before_the_restart_is_not_known, NULL, tear_down_progress)
{
	train_the_first_epoch();
	assert_true(progress.epoch_rate == 100);
	progress_init(&progress, run.core, 4000);
	assert_int_equal(direct_lease(&worker)->kind, GRANT_EVAL);
	direct_result(&worker, 93, 25);
	direct_progress(&progress, &worker);
	assert_true(isnan(progress.epoch_rate));
	assert_int_equal(direct_lease(&worker)->kind, GRANT_TRAIN);
	direct_progress(&progress, &worker);
	batch_at((struct work){1, 0, 1}, 8000);
	batch_at((struct work){1, 1, 1}, 8250);
	assert_true(progress.epoch_rate > 0);
}

TEST_IN(a_rate_is_measured_over_a_second, NULL, tear_down_progress)
{
	struct progress_view v;

	begin_progress("--model;fc:10;--epochs;2;--warm-start-updates;0;--lease-batches;100");
	direct_join(&worker, "", 500, 100);
	worker.now_ms = 4000;
	direct_lease(&worker);
	direct_progress(&progress, &worker);
	batch_at((struct work){0, 0, 1}, 4300);
	progress_tick(&progress, run.core, NULL, 4900);
	progress_read(&progress, run.core, &v);
	assert_true(v.images_per_s == 0 && v.eta_s < 0 && v.done == 0.1);
	batch_at((struct work){0, 1, 1}, 5000);
	progress_tick(&progress, run.core, NULL, 6000);
	progress_read(&progress, run.core, &v);
	/* the worker has trained 200 images in the 2 s since its first lease */
	assert_true(v.images_per_s == 100);
	assert_true(v.eta_s == 8 && v.epoch == 1 && v.epochs == 2 && v.workers == 1);
	assert_true(isnan(v.accuracy));
}

/* progress_end computes the rate at the end of the run. Without it, the last sample of a run of
 * less than a second would have a rate of 0. */
TEST_IN(a_run_shorter_than_a_second_has_the_rate_of_its_training, NULL, tear_down_progress)
{
	struct progress_view v;

	begin_progress("--model;fc:10;--epochs;1;--warm-start-updates;0;--lease-batches;100");
	assert_int_equal(progress_end(&progress, run.core, 3000), 0);
	direct_join(&worker, "", 200, 100);
	worker.now_ms = 4000;
	direct_lease(&worker);
	direct_progress(&progress, &worker);
	batch_at((struct work){0, 0, 1}, 4300);
	batch_at((struct work){0, 1, 1}, 4500);
	progress_tick(&progress, run.core, NULL, 4900);
	assert_int_equal(progress_end(&progress, run.core, 4900), 1);
	progress_read(&progress, run.core, &v);
	assert_true(v.images_per_s == 400 && v.updates_per_s == 4 && progress.rate_s == 0.5);
	assert_int_equal(progress_end(&progress, run.core, 4950), 0);
}

/* The worker computes two of the ten batches of the run in two seconds. */
static void read_after_two_batches(const char *max_updates, struct progress_view *v)
{
	char line[160];

	snprintf(line, sizeof(line),
		"--model;fc:10;--epochs;2;--warm-start-updates;0;--lease-batches;100;"
		"--max-updates;%s",
		max_updates);
	begin_progress(line);
	direct_join(&worker, "", 500, 100);
	worker.now_ms = 4000;
	direct_lease(&worker);
	direct_progress(&progress, &worker);
	batch_at((struct work){0, 0, 1}, 5000);
	batch_at((struct work){0, 1, 1}, 6000);
	progress_tick(&progress, run.core, NULL, 6000);
	progress_read(&progress, run.core, v);
}

TEST_IN(a_run_that_ends_at_max_updates_has_their_share_and_time, NULL, tear_down_progress)
{
	struct progress_view v;

	read_after_two_batches("4", &v);
	assert_true(v.done == 0.5 && v.eta_s == 2 && v.max_updates == 4);
}

TEST_IN(a_run_that_has_reached_max_updates_is_done, NULL, tear_down_progress)
{
	struct progress_view v;

	read_after_two_batches("2", &v);
	assert_true(v.done == 1 && v.eta_s == 0);
}

TEST_IN(the_last_epoch_may_end_before_max_updates, NULL, tear_down_progress)
{
	struct progress_view v;

	read_after_two_batches("11", &v);
	assert_true(v.done == 0.2 && v.eta_s == 8);
}

TEST_IN(a_vector_has_a_share_only_with_max_updates, NULL, tear_down_progress)
{
	const struct work none = {0};
	struct progress_view v;

	for (int limit = 0; limit < 2; limit++) {
		begin_progress(limit ? "--model;vector:3;--max-updates;8" : "--model;vector:3");
		direct_join(&worker, "", 0, 0);
		worker.now_ms = 5000;
		direct_push(&worker, none, 0, 0, 1);
		direct_progress(&progress, &worker);
		worker.now_ms = 6000;
		direct_push(&worker, none, 0, 0, 1);
		progress_tick(&progress, run.core, NULL, 6000);
		progress_read(&progress, run.core, &v);
		assert_true(v.done == (limit ? 0.25 : 0));
		assert_true(limit ? v.eta_s > 0 : v.eta_s < 0);
		if (!limit)
			startup_release(&run);
	}
}

/* ---- sandblaster: the images of a pass, before the pass ends and when it ends ------------ */

/* Begin a pass of five portions of 100 images. The worker gets its lease at 4000 ms. The tests then
 * deliver one portion each second with portion_at, from 5000 ms on. */
static void passes_begin(const char *optimizer)
{
	char line[200];

	snprintf(line, sizeof(line),
		"--model;fc:10;--mode;sandblaster;--optimizer;%s;--epochs;2;--lease-batches;1",
		optimizer);
	begin_progress(line);
	direct_join(&worker, "", 500, 100);
	worker.now_ms = 4000;
	direct_lease(&worker);
	direct_progress(&progress, &worker);
}

static void portion_at(uint32_t i, uint64_t now_ms)
{
	batch_at((struct work){core_training_epoch(run.core), i, 1}, now_ms);
	if (!core_epoch(run.core, 0)->end_ms && i < 4) {
		direct_lease(&worker);
		direct_progress(&progress, &worker);
	}
	progress_tick(&progress, run.core, NULL, now_ms);
}

TEST_IN(a_pass_moves_before_it_ends, NULL, tear_down_progress)
{
	struct progress_view v;

	passes_begin("sgd");
	for (uint32_t i = 0; i < 3; i++)
		portion_at(i, 5000 + 1000 * i);
	progress_read(&progress, run.core, &v);
	/* the core counts the images only when the pass ends */
	assert_int_equal(core_stats(run.core)->images, 0);
	assert_true(v.done == 0.3 && v.images == 300);
	assert_true(v.images_per_s == 100 && v.eta_s == 7);
}

TEST_IN(a_pass_has_the_rate_of_its_wall_time, NULL, tear_down_progress)
{
	passes_begin("sgd");
	for (uint32_t i = 0; i < 5; i++)
		portion_at(i, 5000 + 1000 * i);
	assert_int_equal(core_stats(run.core)->images, 500);
	assert_true(progress.epoch_rate == 100);
}

/* Two passes over the same images count as work: the first one, at the initial weights, and the
 * second one, at the first point of the line search. */
TEST_IN(every_pass_of_a_line_search_is_work, NULL, tear_down_progress)
{
	struct progress_view v;

	passes_begin("lbfgs");
	for (uint32_t i = 0; i < 5; i++)
		portion_at(i, 5000 + 1000 * i);
	progress_read(&progress, run.core, &v);
	assert_true(v.pass == 2 && v.done == 0 && v.images_per_s == 100);
	direct_lease(&worker);
	portion_at(0, 10000);
	progress_read(&progress, run.core, &v);
	assert_true(v.pass == 2 && v.done == 0.1 && v.images_per_s == 100 && v.eta_s == 9);
}

TEST_IN(a_vectors_time_is_that_of_its_updates, NULL, tear_down_progress)
{
	const struct work none = {0};

	begin_progress("--model;vector:3");
	direct_join(&worker, "", 0, 0);
	direct_progress(&progress, &worker);
	assert_true(progress_seconds(&progress, run.core, 5000) == 0);
	worker.now_ms = 6000;
	direct_push(&worker, none, 0, 0, 1);
	direct_progress(&progress, &worker);
	worker.now_ms = 7500;
	direct_push(&worker, none, 0, 0, 1);
	direct_progress(&progress, &worker);
	assert_true(progress_seconds(&progress, run.core, 99000) == 1.5);
}
