/*
 * test_server_history.c - the samples of a history (server/monitor/history.h). The test has its own
 * wall clock: the Makefile links it with --wrap=log_wall_ms.
 */
#include <jansson.h>
#include "tests/support/direct_worker.h"
#include "tests/support/temp_dir.h"
#include "server/monitor/history.h"
#include "server/monitor/status.h"
#include "tests/support/test.h"

#define STARTS  8
#define SECONDS 3000 /* of each start */
#define PERIODS 8    /* of the whole run */

static struct options options;
static struct startup run;
static struct progress progress;
static char dir[64];
static uint64_t wall_ms, wall_step; /* each reading of the clock advances it by wall_step */

uint64_t __wrap_log_wall_ms(void);
uint64_t __wrap_log_wall_ms(void)
{
	return wall_ms += wall_step;
}

static int tear_down_history(void **state)
{
	(void)state;
	startup_release(&run);
	temp_dir_remove(dir);
	return 0;
}

/* A server starts, runs for SECONDS, and is killed after it has written its lines. */
static void run_server(uv_loop_t *loop, struct status *now, int resumed)
{
	struct history *h;
	struct err e;

	assert_int_equal(history_new(&h, loop, dir, now, &options, resumed, &e), PS_OK);
	for (int i = 0; i < SECONDS; i++) {
		now->now_ms += 1000;
		wall_ms += 1000;
		history_tick(h, now);
	}
	while (history_busy(h)) {
		uv_run(loop, UV_RUN_DEFAULT);
		history_tick(h, now);
	}
	history_free(&h);
}

/* Counts the samples of each period of the run. */
static void count_samples(int *samples)
{
	char path[320], line[4096];
	FILE *f = fopen(temp_dir_path(dir, HISTORY_FILE, path), "r");

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		json_t *o = json_loads(line, 0, NULL);
		const char *kind = json_string_value(json_object_get(o, "kind"));
		uint64_t t = (uint64_t)json_integer_value(json_object_get(o, "t"));

		assert_non_null(kind);
		if (strcmp(kind, "sample") == 0)
			samples[(t - 1) * PERIODS / wall_ms]++;
		json_decref(o);
	}
	fclose(f);
}

/* A server that began again with a sample per second would drop the older samples again and again,
 * until the beginning of the run had none. */
TEST_IN(samples_show_all_times_of_a_run_with_restarts, NULL, tear_down_history)
{
	int samples[PERIODS] = {0};
	uv_loop_t loop;

	parse_options(&options, "--model;fc:10");
	start_core(&run, &options);
	progress_init(&progress, run.core, 0);
	temp_dir_make(dir);
	wall_ms = 0;
	assert_int_equal(uv_loop_init(&loop), 0);
	struct status now = {.core = run.core, .progress = &progress};
	for (int i = 0; i < STARTS; i++)
		run_server(&loop, &now, i > 0);
	assert_int_equal(uv_loop_close(&loop), 0);
	count_samples(samples);
	for (int i = 0; i < PERIODS; i++)
		if (samples[i] < 100 || samples[i] > samples[0] * 5 / 4 + 2)
			fail_msg("period %d has %d samples, the first one has %d", i, samples[i],
				samples[0]);
}

TEST_IN(no_line_is_older_than_the_line_before_it, NULL, tear_down_history)
{
	struct history *h;
	struct err e;
	uint64_t before = 0;
	uv_loop_t loop;

	parse_options(&options, "--model;fc:10");
	start_core(&run, &options);
	progress_init(&progress, run.core, 0);
	temp_dir_make(dir);
	wall_ms = 0;
	wall_step = 1;
	assert_int_equal(uv_loop_init(&loop), 0);
	struct status now = {.core = run.core, .progress = &progress, .ending = PS_EDONE};
	assert_int_equal(history_new(&h, &loop, dir, &now, &options, 0, &e), PS_OK);
	history_end(h, &now);
	while (history_busy(h))
		uv_run(&loop, UV_RUN_DEFAULT);
	char *text = history_text(h);
	assert_non_null(strstr(text, "\"end\""));
	for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
		uint64_t t = strtoull(strstr(line, "\"t\":") + 4, NULL, 10);

		assert_true(t >= before);
		before = t;
	}
	free(text);
	history_free(&h);
	assert_int_equal(uv_loop_close(&loop), 0);
	wall_step = 0;
}
