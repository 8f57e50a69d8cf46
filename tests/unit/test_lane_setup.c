/* test_lane_setup.c - a worker without a shared-memory lane logs the reason once per term of the
 * server. */
#include "worker/client/lane_setup.h"
#include <stdio.h>
#include <string.h>
#include "common/log.h"
#include "tests/support/test.h"

#define NO_SERVER "/nowhere/lane"

static struct outbox out;
static struct lane_setup setup;
static size_t n_lines;   /* number of lines of the log */
static char newest[512]; /* the newest line of the log */

static void note_lane_line(void *arg, int level, const char *line)
{
	(void)arg;
	assert_int_equal(level, LOG_INFO);
	snprintf(newest, sizeof(newest), "%s", line);
	n_lines++;
}

static int set_up_log(void **state)
{
	(void)state;
	n_lines = 0;
	newest[0] = '\0';
	log_set_level(LOG_INFO);
	log_set_sink(note_lane_line, NULL);
	return 0;
}

static int tear_down_log(void **state)
{
	(void)state;
	lane_setup_drop(&setup);
	log_set_sink(NULL, NULL);
	return 0;
}

/* The worker gets a WELCOME of a server whose socket has this path. Returns the status. */
static int get_welcome(uint64_t term, const char *path, struct err *e)
{
	struct msg_welcome w = {
		.stamp = {.term = term, .worker = 1, .incarnation = 1}, .n_params = 4};

	snprintf(w.lane_path, sizeof(w.lane_path), "%s", path);
	return lane_setup_welcome(&setup, &w, 0, e);
}

/* Checks that the worker logs `reason` for the first of several WELCOMEs of a term. */
static void check_reason(const char *path, const char *reason)
{
	struct err e;

	lane_setup_init(&setup, CNNPS_LANE_AUTO, "a server", &out);
	for (uint64_t term = 1; term <= 2; term++)
		for (int connection = 0; connection < 3; connection++) {
			assert_int_equal(get_welcome(term, path, &e), PS_OK);
			assert_int_equal(n_lines, term);
			assert_non_null(strstr(newest, "msg=\"lane tcp\""));
			assert_non_null(strstr(newest, reason));
		}
}

TEST_IN(a_server_without_lanes_is_a_reason, set_up_log, tear_down_log)
{
	check_reason("", "reason=\"the server offers none (");
}

TEST_IN(a_socket_that_does_not_exist_is_a_reason, set_up_log, tear_down_log)
{
	check_reason(NO_SERVER, "No such file or directory; is the server on another host?\"");
}

TEST_IN(a_worker_that_needs_a_lane_gets_the_reason_as_an_error, set_up_log, tear_down_log)
{
	struct err e;

	lane_setup_init(&setup, CNNPS_LANE_SHM, "a server", &out);
	assert_int_equal(get_welcome(1, "", &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, "the server offers none"));
	assert_int_equal(get_welcome(1, NO_SERVER, &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, NO_SERVER));
	assert_int_equal(n_lines, 0);
}

TEST_IN(a_worker_that_chose_tcp_logs_nothing, set_up_log, tear_down_log)
{
	struct err e;

	lane_setup_init(&setup, CNNPS_LANE_TCP, "a server", &out);
	assert_int_equal(get_welcome(1, "", &e), PS_OK);
	assert_int_equal(n_lines, 0);
}
