/*
 * test_server_membership.c - tests the log lines about workers that join and leave. Covers attack
 * A5 of docs/faults.md.
 */
#include "tests/support/core_fixture.h"
#include "tests/support/capture.h"
#include "common/log.h"
#include "server/monitor/membership.h"
#include "server/net/line_budget.h"
#include "tests/support/test.h"

static struct core_fixture f;
static struct line_budget lines;
static struct membership m;
static struct capture said;

static int set_up_core(void **state)
{
	(void)capture_info(state);
	fixture_open(&f, fixture_config());
	memset(&lines, 0, sizeof(lines));
	membership_init(&m, f.core, &lines);
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

	line_budget_tick(&lines, now_ms);
	membership_log(&m, &e, f.core, NULL);
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
	const uint64_t left_out = lines.left_out;
	assert_in_range(changes - left_out, SLOT_LINES, SLOT_LINES + hour_ms / SLOT_LINE_MS);
	log_set_level(LOG_INFO);
	capture_begin(&said, 2);
	log_change(1, WORKER_JOINED, hour_ms);
	log_change(1, WORKER_EXCLUDED, hour_ms);
	/* must be logged, because a key is in quarantine after three exclusions */
	f.core->worker[0].session.owner[0] = 'k';
	log_change(1, WORKER_QUARANTINED, hour_ms);
	/* must be logged, because worker 2 has a limit of its own */
	log_change(2, WORKER_JOINED, hour_ms);
	membership_check(&m, f.core);
	membership_check(&m, f.core);
	log_change(1, WORKER_GONE, hour_ms + SLOT_LINE_MS);
	(void)capture_log(&said);
	assert_int_equal(count_lines_with("worker=1 "), 2);
	assert_int_equal(count_lines_with("msg=\"worker quarantined\" worker=1 "), 1);
	assert_int_equal(count_lines_with("worker=2 "), 1);
	assert_int_equal(count_lines_with("changes_not_logged"), 1);
	assert_int_equal(lines.left_out, left_out + 2);
}

/* Without keys, a worker can join under a new name after each exclusion, so quarantine does not
 * limit its exclusions. */
TEST_IN(exclusions_without_keys_do_not_fill_the_log, set_up_core, tear_down_core)
{
	log_set_level(LOG_ERROR);
	for (uint32_t i = 0; i < 3 * SLOT_LINES; i++)
		log_change(1, i % 2 ? WORKER_EXCLUDED : WORKER_QUARANTINED, 0);
	assert_int_equal(lines.left_out, 2 * SLOT_LINES);
}

static void join_with_other_data(struct core_fixture *c, uint32_t peer, const struct data_id *d)
{
	struct msg hello = fixture_hello("");

	hello.hello.data = *d;
	fixture_message(c, peer, &hello);
}

/* A worker with another data set than the run's can join and leave again and again. */
TEST_IN(other_data_sets_do_not_fill_the_log, capture_info, tear_down_core)
{
	struct data_id other = fixture_data;
	struct core_config cfg = fixture_training();

	other.xxh3++;
	cfg.durable = 0;
	cfg.leases.min_workers = 5;
	cfg.sessions.max_workers = 8;
	fixture_open(&f, cfg);
	memset(&lines, 0, sizeof(lines));
	membership_init(&m, f.core, &lines);
	join_with_other_data(&f, 8, &fixture_data);
	join_with_other_data(&f, 9, &fixture_data);
	join_with_other_data(&f, 10, &other);
	capture_begin(&said, 2);
	membership_check(&m, f.core);
	m.others = 0; /* as if the worker had left and come back */
	while (line_budget_take(&lines, 0))
		continue;
	membership_check(&m, f.core);
	(void)capture_log(&said);
	assert_int_equal(count_lines_with("data_sets_differ"), 1);
}
