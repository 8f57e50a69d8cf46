/*
 * test_server_membership.c - log lines about workers that join and leave.
 * Covers attack A5 of docs/faults.md.
 */
#include "tests/support/core_fixture.h"
#include "tests/support/capture.h"
#include "common/log.h"
#include "server/monitor/membership.h"
#include "tests/support/test.h"

static struct core_fixture f;
static struct membership m;
static struct capture said;

static int set_up_core(void **state)
{
	(void)capture_info(state);
	fixture_open(&f, fixture_config());
	membership_init(&m, f.core);
	return 0;
}

static int tear_down_core(void **state)
{
	(void)state;
	fixture_close(&f);
	return 0;
}

static void log_change(uint32_t worker, enum worker_change change, uint64_t now_ms)
{
	const struct effect e = {.kind = EFFECT_WORKER, .worker = worker, .change = change};

	membership_log(&m, &e, f.core, NULL, now_ms);
}

static size_t count_lines_with(const char *text)
{
	size_t n = 0;

	for (const char *at = said.text; (at = strstr(at, text)); at++)
		n++;
	return n;
}

TEST_IN(a_worker_that_comes_and_goes_does_not_fill_the_log, set_up_core, tear_down_core)
{
	const uint64_t hour_ms = 3600 * 1000, changes = 72000;

	log_set_level(LOG_ERROR);
	for (uint64_t i = 1; i <= changes; i++)
		log_change(1, i % 2 ? WORKER_JOINED : WORKER_GONE, i * hour_ms / changes);
	const uint64_t lines = changes - m.unlogged;
	assert_in_range(lines, CHANGES_AT_ONCE, CHANGES_AT_ONCE + hour_ms / CHANGE_MS);
	log_set_level(LOG_INFO);
	capture_begin(&said, 2);
	log_change(1, WORKER_JOINED, hour_ms);
	log_change(1, WORKER_QUARANTINED, hour_ms);
	log_change(2, WORKER_JOINED, hour_ms); /* another worker has lines of its own */
	membership_check(&m, f.core);
	membership_check(&m, f.core);
	log_change(1, WORKER_GONE, hour_ms + CHANGE_MS);
	(void)capture_log(&said);
	assert_int_equal(count_lines_with("worker=1 "), 2);
	assert_int_equal(count_lines_with("msg=\"worker quarantined\" worker=1 "), 1);
	assert_int_equal(count_lines_with("worker=2 "), 1);
	assert_int_equal(count_lines_with("changes_not_logged"), 1);
	assert_int_equal(m.unlogged, changes - lines + 1);
}
