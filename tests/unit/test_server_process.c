/*
 * test_server_process.c - the program cnn-ps as a process: kill -9, a drain, a full disk, its exit
 * status, and the last line that it prints. The tests act as a client, with libcnnps.
 */
#include <pthread.h>
#include <stdatomic.h>
#include "tests/support/client_calls.h"
#include "tests/support/server_process.h"
#include "tests/support/test.h"

#define MANY_REPLIES_MS 1500

/* ---- start and end ------------------------------------------------------------------------- */

/* Calls cnnps_close in a thread of its own, because the call blocks while the server cannot write a
 * checkpoint. */
static void *close_in_thread(void *arg)
{
	cnnps_close(arg);
	return NULL;
}

TEST_IN(a_killed_server_goes_on_where_it_was, server_set_up, server_tear_down)
{
	char url[256], line[1024];

	struct server_process *s = server_start_here(LEDGER_OPTIONS);
	server_endpoint(s, url);
	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;%s;" LEDGER_OPTIONS, server_dir,
		url);
	struct cnnps *c = ledger_join(url);
	for (size_t life = 0; life < 3; life++) {
		ledger_push(c, 200 * life, 150);
		/* the server dies before all pushes are durable, so the client replays some */
		server_kill(s);
		s = server_start(line);
		ledger_push(c, 200 * life + 150, 50);
		assert_int_equal(strtol(server_await(s, " term="), NULL, 10), (long)life + 2);
	}
	assert_int_equal(cnnps_flush(c, 1, SERVER_DEADLINE_MS), 0);
	ledger_expect(c, LEDGER_PARAMS);
	cnnps_close(&c);
	kill(s->pid, SIGTERM);
	assert_int_equal(server_wait(s), 0);
	server_expect_status(s, "drained");
	json_t *o = server_result(s);
	assert_int_equal(json_integer_value(json_object_get(o, "updates")), LEDGER_PARAMS);
	assert_int_equal(json_integer_value(json_object_get(o, "term")), 4);
	json_decref(o);
}

static void sleep_ms(long ms)
{
	nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

struct stopped {
	struct server_process *server;
	atomic_int is_due; /* 1 if the server must answer and die now */
};

/* `stop` of the client, which libcnnps calls in each tick: the server answers the push in the ring
 * of the lane, and then dies. */
static int answer_and_die(void *arg)
{
	struct stopped *stopped = arg;

	if (atomic_load(&stopped->is_due)) {
		kill(stopped->server->pid, SIGCONT);
		sleep_ms(200);
		server_kill(stopped->server);
		atomic_store(&stopped->is_due, 0);
	}
	return 0;
}

/* A tick of the client may handle the last messages in the ring of a lost lane. A tick that took
 * the time before them took their negative age for a very long silence, and gave up the server. */
TEST_IN(the_last_messages_of_a_dead_server_are_no_silence, server_set_up, server_tear_down)
{
	char url[256], line[1024];
	struct stopped stopped = {.server = NULL};
	struct cnnps_options o = {.size = sizeof(o),
		.server = url,
		.name = "ledger",
		.stop = answer_and_die,
		.stop_arg = &stopped};
	struct cnnps *c;

	struct server_process *s = server_start_here(LEDGER_OPTIONS);
	server_endpoint(s, url);
	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;%s;" LEDGER_OPTIONS, server_dir,
		url);
	assert_int_equal(cnnps_connect(&c, &o), 0);
	(void)server_await(s, "lane open");
	kill(s->pid, SIGSTOP);
	ledger_push(c, 0, 1);
	stopped.server = s;
	atomic_store(&stopped.is_due, 1);
	for (int i = 0; atomic_load(&stopped.is_due); i++) {
		assert_true(i < SERVER_DEADLINE_MS / 10);
		sleep_ms(10);
	}
	(void)server_start(line);
	assert_int_equal(cnnps_flush(c, 1, SERVER_DEADLINE_MS), 0);
	ledger_expect(c, 1);
	cnnps_close(&c);
}

/* A reply with weights also has the ACK of the push, and the client handles both with one time.
 * The session refuses to go back in time, so this test needs many replies: few of them arrive just
 * before the clock moves on. */
TEST_IN(many_replies_move_the_time_only_forwards, server_set_up, server_tear_down)
{
	const float zeros[LEDGER_PARAMS] = {0};
	struct cnnps_pull view;
	char url[256];

	struct server_process *s = server_start_here(LEDGER_OPTIONS);
	server_endpoint(s, url);
	struct cnnps *c = ledger_join(url);
	const uint64_t end = clock_ms() + MANY_REPLIES_MS;
	for (uint64_t version = 0; clock_ms() < end; version = view.version)
		assert_int_equal(client_push_view(c, zeros, version, &view), 0);
	cnnps_close(&c);
}

/* P10 of docs/faults.md: after SIGTERM or SIGINT the server takes a last checkpoint, sends BYE to
 * the workers, and exits quickly with status 0. */
TEST_IN(a_signal_drains, server_set_up, server_tear_down)
{
	static const int signals[] = {SIGTERM, SIGINT};
	char url[256];

	for (size_t i = 0; i < 2; i++) {
		struct server_process *s = server_start_here(LEDGER_OPTIONS);

		server_endpoint(s, url);
		struct cnnps *c = ledger_join(url);
		ledger_push(c, 100 * i, 100);
		assert_int_equal(cnnps_flush(c, 0, SERVER_DEADLINE_MS), 0);
		const uint64_t begin = clock_ms();
		kill(s->pid, signals[i]);
		assert_int_equal(server_wait(s), 0);
		assert_true(clock_ms() - begin < 3000);
		server_expect_status(s, "drained");
		struct cnnps_lease lease = {.size = sizeof(lease)};
		assert_int_equal(cnnps_lease(c, &lease), CNNPS_ESHUTDOWN);
		cnnps_close(&c);
	}
	struct server_process *s = server_start_here(LEDGER_OPTIONS);
	server_endpoint(s, url);
	struct cnnps *c = ledger_join(url);
	ledger_expect(c, 200);
	cnnps_close(&c);
}

TEST_IN(a_drain_can_be_asked_for_by_message, server_set_up, server_tear_down)
{
	char url[256];

	struct server_process *s = server_start_here(LEDGER_OPTIONS);
	server_endpoint(s, url);
	struct cnnps *c = ledger_join(url);
	ledger_push(c, 0, 10);
	assert_int_equal(cnnps_flush(c, 0, SERVER_DEADLINE_MS), 0);
	assert_int_equal(cnnps_drain(c), 0);
	assert_int_equal(server_wait(s), 0);
	server_expect_status(s, "drained");
	cnnps_close(&c);
}

TEST_IN(enough_updates_end_a_run, server_set_up, server_tear_down)
{
	char url[256];

	struct server_process *s = server_start_here(LEDGER_OPTIONS ";--max-updates;50");
	server_endpoint(s, url);
	struct cnnps *c = ledger_join(url);
	ledger_push(c, 0, 50);
	assert_int_equal(server_wait(s), 0);
	server_expect_status(s, "done");
	cnnps_close(&c);
}

/* ---- disks --------------------------------------------------------------------------------- */

TEST_IN(a_full_disk_degrades_and_recovers, server_set_up, server_tear_down)
{
	char url[256], why[256];
	uint64_t generation = 0;

	struct server_process *s = server_start_here(LEDGER_OPTIONS);
	server_endpoint(s, url);
	struct cnnps *c = ledger_join(url);
	ledger_push(c, 0, 50);
	assert_int_equal(cnnps_flush(c, 1, SERVER_DEADLINE_MS), 0);
	server_await_health(s, 200, why);
	assert_string_equal(why, "ok\n");
	server_limit_files(s, 100);
	ledger_push(c, 50, 50);
	/* the pushes are decided although the disk is full */
	assert_int_equal(cnnps_flush(c, 0, SERVER_DEADLINE_MS), 0);
	server_await_health(s, 503, why);
	assert_non_null(strstr(why, server_dir));
	assert_int_equal(cnnps_flush(c, 1, 300), CNNPS_EAGAIN);
	server_limit_files(s, RLIM_INFINITY);
	assert_int_equal(cnnps_flush(c, 1, SERVER_DEADLINE_MS), 0);
	server_await_health(s, 200, why);
	ledger_expect(c, 100);
	assert_int_equal(cnnps_checkpoint(c, &generation), 0);
	assert_true(generation > 1);
	server_read(s, 0);
	const char *first = strstr(s->said, "checkpoint failed");
	assert_non_null(first);
	assert_null(strstr(first + 1, "checkpoint failed")); /* the failure is logged once */
	cnnps_close(&c);
}

/* The disk has no space for the last checkpoint. A second signal must end the server at once, and
 * without it the server must end after a time limit. If the run has come to its end, the exit
 * status must show that the disk is the reason. */
TEST_IN(an_end_without_disk_is_bounded, server_set_up, server_tear_down)
{
	char url[3][256], other[2][128];
	struct server_process *s[3];
	struct cnnps *c[3];
	pthread_t closing[3];

	s[0] = server_start_here(LEDGER_OPTIONS);
	for (int i = 0; i < 2; i++) {
		char line[512];

		temp_dir_make(other[i]);
		snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;tcp://127.0.0.1:0;%s",
			other[i], i ? LEDGER_OPTIONS ";--max-updates;20" : LEDGER_OPTIONS);
		s[1 + i] = server_start(line);
	}
	for (int i = 0; i < 3; i++) {
		char why[256];

		server_endpoint(s[i], url[i]);
		c[i] = ledger_join(url[i]);
		server_limit_files(s[i], 100);
		ledger_push(c[i], 0, 10);
		server_await_health(s[i], 503, why);
	}
	const uint64_t begin = clock_ms();
	ledger_push(c[2], 10, 10);
	assert_int_equal(cnnps_flush(c[2], 0, SERVER_DEADLINE_MS), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&closing[i], NULL, close_in_thread, &c[i]), 0);
	kill(s[0]->pid, SIGTERM);
	kill(s[1]->pid, SIGTERM);
	(void)server_await(s[0], "server draining");
	kill(s[0]->pid, SIGTERM);
	assert_int_equal(server_wait(s[0]), 1);
	assert_true(clock_ms() - begin < 4000);
	server_expect_status(s[0], "aborted");
	assert_int_equal(server_wait(s[1]), 10);
	assert_true(clock_ms() - begin < 6000);
	server_expect_status(s[1], "aborted");
	assert_int_equal(server_wait(s[2]), 10);
	assert_true(clock_ms() - begin > 8000);
	server_expect_status(s[2], "aborted");
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_join(closing[i], NULL), 0);
	for (int i = 0; i < 2; i++)
		temp_dir_remove(other[i]);
}
