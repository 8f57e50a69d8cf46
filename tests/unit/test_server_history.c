/*
 * test_server_history.c - tests the samples in a history (server/monitor/history.h). The test has
 * its own clocks: the Makefile links it with --wrap=log_wall_ms and --wrap=clock_boot_ms.
 */
#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tests/support/direct_worker.h"
#include "tests/support/temp_dir.h"
#include "server/monitor/history.h"
#include "server/monitor/status.h"
#include "tests/support/test.h"

#define STARTS  8
#define SECONDS 3000 /* virtual time in seconds for which the server runs after each start */
#define PERIODS 8    /* number of equal parts of the run for which count_samples counts samples */

static struct options options;
static struct startup run;
static struct progress progress;
static char dir[64];
static uint64_t wall_ms, boot_ms;
static uint64_t boot_step; /* each reading of boot_ms advances it by boot_step */

uint64_t __wrap_log_wall_ms(void);
uint64_t __wrap_log_wall_ms(void)
{
	return wall_ms;
}

uint64_t __wrap_clock_boot_ms(void);
uint64_t __wrap_clock_boot_ms(void)
{
	return boot_ms += boot_step;
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
		boot_ms += 1000;
		history_tick(h, now);
	}
	while (history_busy(h)) {
		uv_run(loop, UV_RUN_DEFAULT);
		history_tick(h, now);
	}
	history_free(&h);
}

/* Counts the samples in each of the PERIODS parts of the run. */
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

/* When the history is full, the server drops some samples and takes fewer new ones. If it took one
 * sample per second again after each start, it would drop samples again and again, until the
 * beginning of the run had none. */
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

TEST_IN(a_file_that_cannot_be_read_is_renamed_and_not_replaced, NULL, tear_down_history)
{
	char path[320], aside[320];
	struct stat st;
	uv_loop_t loop;

	parse_options(&options, "--model;fc:10");
	start_core(&run, &options);
	progress_init(&progress, run.core, 0);
	temp_dir_make(dir);
	temp_dir_path(dir, HISTORY_FILE, path);
	temp_dir_path(dir, HISTORY_FILE ".1", aside);
	int fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	/* makes the file too large to be read */
	assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
	close(fd);
	assert_int_equal(uv_loop_init(&loop), 0);
	struct status now = {.core = run.core, .progress = &progress};
	for (int i = 0; i < 2; i++) {
		run_server(&loop, &now, i);
		assert_int_equal(stat(aside, &st), 0);
		assert_true(st.st_size == (off_t)1 << 40);
		assert_int_equal(stat(path, &st), 0);
		assert_true(st.st_size > 0 && st.st_size < (off_t)1 << 30);
	}
	assert_int_equal(uv_loop_close(&loop), 0);
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
	boot_step = 1;
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
	boot_step = 0;
}

TEST_IN(the_start_has_the_options_as_they_are_typed, NULL, tear_down_history)
{
	struct history *h;
	struct err e;
	uv_loop_t loop;

	parse_options(&options, "--model;fc:10;--mode;sync;--sync-workers;5;--aggregate;trimmed:2");
	start_core(&run, &options);
	progress_init(&progress, run.core, 0);
	temp_dir_make(dir);
	assert_int_equal(uv_loop_init(&loop), 0);
	struct status now = {.core = run.core, .progress = &progress};
	assert_int_equal(history_new(&h, &loop, dir, &now, &options, 0, &e), PS_OK);
	while (history_busy(h))
		uv_run(&loop, UV_RUN_DEFAULT);
	char *text = history_text(h);
	json_t *start = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
	const json_t *o = json_object_get(start, "options");
	assert_string_equal(json_string_value(json_object_get(o, "mode")), "sync");
	assert_string_equal(json_string_value(json_object_get(o, "aggregate")), "trimmed:2");
	assert_null(json_object_get(o, "bad-workers"));
	json_decref(start);
	free(text);
	history_free(&h);
	assert_int_equal(uv_loop_close(&loop), 0);
}

/* A wall clock that steps back would otherwise give negative times, and a page would show no new
 * sample until the clock has caught up. A step forwards would look like a time without a server. */
TEST_IN(steps_of_the_wall_clock_do_not_change_the_times, NULL, tear_down_history)
{
	const uint64_t run_ms = (uint64_t)SECONDS * 1000;
	uint64_t before = 0, first = 0;
	char path[320], line[4096];
	uv_loop_t loop;
	struct history *h;
	struct err e;

	parse_options(&options, "--model;fc:10");
	start_core(&run, &options);
	progress_init(&progress, run.core, 0);
	temp_dir_make(dir);
	wall_ms = 10 * run_ms;
	assert_int_equal(uv_loop_init(&loop), 0);
	struct status now = {.core = run.core, .progress = &progress, .ending = PS_EDONE};
	run_server(&loop, &now, 0);
	wall_ms -= run_ms / 2; /* between two starts */
	assert_int_equal(history_new(&h, &loop, dir, &now, &options, 1, &e), PS_OK);
	for (int i = 0; i < SECONDS; i++) {
		now.now_ms += 1000;
		boot_ms += 1000;
		wall_ms += i == 100 ? 50 * run_ms : 1000; /* one step forwards */
		wall_ms -= i == 200 ? 53 * run_ms : 0;
		history_tick(h, &now);
	}
	history_end(h, &now);
	while (history_busy(h))
		uv_run(&loop, UV_RUN_DEFAULT);
	history_free(&h);
	assert_int_equal(uv_loop_close(&loop), 0);
	FILE *f = fopen(temp_dir_path(dir, HISTORY_FILE, path), "r");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		uint64_t t = strtoull(strstr(line, "\"t\":") + 4, NULL, 10);

		first = first ? first : t;
		assert_true(t >= before);
		before = t;
	}
	fclose(f);
	assert_in_range(before - first, 2 * run_ms - 60000, 2 * run_ms + 60000);
}

#define EPOCHS 2000

/* Returns how often `part` occurs in `text`. */
static unsigned count_texts(const char *text, const char *part)
{
	unsigned n = 0;

	for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
		n++;
	return n;
}

/* Writes a history of 1,024 workers with names, hosts and devices of the maximum length. The
 * longest texts of a line have quotation marks. Each quotation mark becomes two bytes in JSON. */
static void write_crowded_history(const char *start)
{
	char path[320], name[WIRE_MAX_NAME + 1];
	FILE *f = fopen(temp_dir_path(dir, HISTORY_FILE, path), "w");

	assert_non_null(f);
	fprintf(f, "%.*s\n", (int)strcspn(start, "\n"), start);
	memset(name, '"', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	for (uint32_t i = 1; i <= 3 * WIRE_MAX_WORKERS; i++) {
		json_t *o = json_pack("{s:i, s:s, s:i, s:i, s:s, s:s, s:s, s:s, s:i}", "t", i,
			"kind", "worker", "term", 1, "worker", 1 + i % WIRE_MAX_WORKERS, "change",
			"joined", "name", name, "host", name, "device", name, "images", 0);

		json_dumpf(o, f, JSON_COMPACT);
		fputc('\n', f);
		json_decref(o);
	}
	for (int i = 0; i < 3000; i++)
		fprintf(f, "{\"t\":%d,\"kind\":\"sample\",\"term\":1,\"workers\":[%*s]}\n", i,
			i % 7 ? 500 : 4000, "");
	fclose(f);
}

TEST_IN(the_history_of_a_page_is_short_with_all_workers, NULL, tear_down_history)
{
	struct history *h;
	struct err e;
	uv_loop_t loop;

	parse_options(&options, "--model;fc:10;--epochs;2000;--max-workers;1024");
	start_core(&run, &options);
	progress_init(&progress, run.core, 0);
	temp_dir_make(dir);
	assert_int_equal(uv_loop_init(&loop), 0);
	struct status now = {.core = run.core, .progress = &progress};
	assert_int_equal(history_new(&h, &loop, NULL, &now, &options, 0, &e), PS_OK);
	char *text = history_text(h);
	write_crowded_history(text);
	free(text);
	history_free(&h);
	assert_int_equal(history_new(&h, &loop, dir, &now, &options, 1, &e), PS_OK);
	for (uint32_t i = 0; i < EPOCHS; i++)
		history_effect(h, &now, &(struct effect){.kind = EFFECT_EVALUATED, .epoch = i});
	text = history_short(h);
	if (strlen(text) >= 1 << 20)
		fail_msg("%zu bytes", strlen(text));
	assert_true(count_texts(text, "\"kind\":\"worker\"") >= WIRE_MAX_WORKERS);
	assert_in_range(count_texts(text, "\"kind\":\"sample\""), 200, 1000);
	assert_in_range(count_texts(text, "\"kind\":\"epoch\""), 200, EPOCHS);
	assert_int_equal(count_texts(text, "\"kind\":\"start\""), 2);
	free(text);
	while (history_busy(h))
		uv_run(&loop, UV_RUN_DEFAULT);
	history_free(&h);
	assert_int_equal(uv_loop_close(&loop), 0);
}
