/*
 * test_server_process.c - the real cnn-ps as a process: how it survives kill -9, drains, lives with
 * a full disk, and with what exit code and last line it ends. Its client is libcnnps.
 */
#include <pthread.h>
#include "tests/unit/process_lab.h"

/* ---- life ---------------------------------------------------------------------------------- */

/* cnnps_close waits for a server that cannot save: not in the test's thread. */
static void *close_client(void *arg)
{
	cnnps_close(arg);
	return NULL;
}

static void a_killed_server_goes_on_where_it_was(void **state)
{
	char url[256], line[1024];

	(void)state;
	struct server *s = launch_here(LEDGER);
	endpoint(s, url);
	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;%s;" LEDGER, dir, url);
	struct cnnps *c = join(url);
	for (size_t life = 0; life < 3; life++) {
		push(c, 200 * life, 150);
		kill_9(s); /* in the middle: what is not durable comes again */
		s = launch(line);
		push(c, 200 * life + 150, 50);
		assert_int_equal(strtol(awaited(s, " term="), NULL, 10), (long)life + 2);
	}
	assert_int_equal(cnnps_flush(c, 1, DEADLINE_MS), 0);
	expect_ledger(c, N);
	cnnps_close(&c);
	kill(s->pid, SIGTERM);
	assert_int_equal(ended(s), 0);
	expect_status(s, "drained");
	json_t *o = result(s);
	assert_int_equal(json_integer_value(json_object_get(o, "updates")), N);
	assert_int_equal(json_integer_value(json_object_get(o, "term")), 4);
	json_decref(o);
}

/* P10 of faults.md: final checkpoint, workers told, exit 0, quickly. */
static void a_signal_drains(void **state)
{
	static const int signals[] = {SIGTERM, SIGINT};
	char url[256];

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct server *s = launch_here(LEDGER);
		endpoint(s, url);
		struct cnnps *c = join(url);
		push(c, 100 * i, 100);
		assert_int_equal(cnnps_flush(c, 0, DEADLINE_MS), 0);
		const uint64_t begin = clock_ms();
		kill(s->pid, signals[i]);
		assert_int_equal(ended(s), 0);
		assert_true(clock_ms() - begin < 3000);
		expect_status(s, "drained");
		struct cnnps_lease lease;
		assert_int_equal(cnnps_lease(c, &lease), CNNPS_ESHUTDOWN);
		cnnps_close(&c);
	}
	struct server *s = launch_here(LEDGER);
	endpoint(s, url);
	struct cnnps *c = join(url);
	expect_ledger(c, 200);
	cnnps_close(&c);
}

static void a_drain_can_be_asked_for_by_message(void **state)
{
	char url[256];

	(void)state;
	struct server *s = launch_here(LEDGER);
	endpoint(s, url);
	struct cnnps *c = join(url);
	push(c, 0, 10);
	assert_int_equal(cnnps_flush(c, 0, DEADLINE_MS), 0);
	assert_int_equal(cnnps_drain(c), 0);
	assert_int_equal(ended(s), 0);
	expect_status(s, "drained");
	cnnps_close(&c);
}

static void enough_updates_end_a_run(void **state)
{
	char url[256];

	(void)state;
	struct server *s = launch_here(LEDGER ";--max-updates;50");
	endpoint(s, url);
	struct cnnps *c = join(url);
	push(c, 0, 50);
	assert_int_equal(ended(s), 0);
	expect_status(s, "done");
	cnnps_close(&c);
}

/* ---- disks --------------------------------------------------------------------------------- */

static void a_full_disk_degrades_and_gets_over(void **state)
{
	char url[256], why[256];
	uint64_t generation = 0;

	(void)state;
	struct server *s = launch_here(LEDGER);
	endpoint(s, url);
	struct cnnps *c = join(url);
	push(c, 0, 50);
	assert_int_equal(cnnps_flush(c, 1, DEADLINE_MS), 0);
	await_health(s, 200, why);
	assert_string_equal(why, "ok\n");
	limit_files(s, 100);
	push(c, 50, 50);
	assert_int_equal(cnnps_flush(c, 0, DEADLINE_MS), 0); /* training goes on */
	await_health(s, 503, why);
	assert_non_null(strstr(why, dir));
	assert_int_equal(cnnps_flush(c, 1, 300), CNNPS_EAGAIN);
	limit_files(s, RLIM_INFINITY);
	assert_int_equal(cnnps_flush(c, 1, DEADLINE_MS), 0);
	await_health(s, 200, why);
	expect_ledger(c, 100);
	assert_int_equal(cnnps_checkpoint(c, &generation), 0);
	assert_true(generation > 1);
	read_some(s, 0);
	const char *first = strstr(s->said, "checkpoint failed");
	assert_non_null(first);
	assert_null(strstr(first + 1, "checkpoint failed")); /* said once */
	cnnps_close(&c);
}

/* No space for the last checkpoint: a second signal ends it at once, patience runs out otherwise;
 * at the natural end the exit code says that it was the disk. */
static void an_end_without_disk_is_bounded(void **state)
{
	char url[3][256], other[2][128];
	struct server *s[3];
	struct cnnps *c[3];
	pthread_t closing[3];

	(void)state;
	s[0] = launch_here(LEDGER);
	for (int i = 0; i < 2; i++) {
		char line[512];
		temp_dir_make(other[i]);
		snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;tcp://127.0.0.1:0;%s",
			other[i], i ? LEDGER ";--max-updates;20" : LEDGER);
		s[1 + i] = launch(line);
	}
	for (int i = 0; i < 3; i++) {
		char why[256];
		endpoint(s[i], url[i]);
		c[i] = join(url[i]);
		limit_files(s[i], 100);
		push(c[i], 0, 10);
		await_health(s[i], 503, why);
	}
	const uint64_t begin = clock_ms();
	push(c[2], 10, 10);
	assert_int_equal(cnnps_flush(c[2], 0, DEADLINE_MS), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&closing[i], NULL, close_client, &c[i]), 0);
	kill(s[0]->pid, SIGTERM);
	kill(s[1]->pid, SIGTERM);
	(void)awaited(s[0], "server draining");
	kill(s[0]->pid, SIGTERM);
	assert_int_equal(ended(s[0]), 1);
	assert_true(clock_ms() - begin < 4000);
	expect_status(s[0], "aborted");
	assert_int_equal(ended(s[1]), 10);
	assert_true(clock_ms() - begin < 6000);
	expect_status(s[1], "aborted");
	assert_int_equal(ended(s[2]), 10);
	assert_true(clock_ms() - begin > 8000);
	expect_status(s[2], "aborted");
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_join(closing[i], NULL), 0);
	for (int i = 0; i < 2; i++)
		temp_dir_remove(other[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_killed_server_goes_on_where_it_was, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_signal_drains, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_drain_can_be_asked_for_by_message, set_up, tear_down),
		cmocka_unit_test_setup_teardown(enough_updates_end_a_run, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_full_disk_degrades_and_gets_over, set_up, tear_down),
		cmocka_unit_test_setup_teardown(an_end_without_disk_is_bounded, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
