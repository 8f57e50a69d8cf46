/*
 * Proves that a hostile server cannot fill the log of a worker with messages that nobody can use,
 * and gets ever longer pauses (worker/client/garbage.h). Covers attack A22 of docs/faults.md.
 */
#include "common/log.h"
#include "tests/support/capture.h"
#include "tests/support/test.h"
#include "worker/client/garbage.h"

static struct capture said;

TEST_IN(garbage_without_end_is_one_line_per_second, capture_info, NULL)
{
	struct garbage g = {0};

	capture_begin(&said, 2);
	for (uint64_t now = 5000; now < 5000 + 10000; now++)
		for (int i = 0; i < 10; i++)
			(void)garbage_note(&g, "why", now);
	assert_int_equal(count_lines(capture_log(&said)), 10);
	assert_non_null(
		strstr(said.text, "level=warn msg=\"net dropped\" reason=\"why\" total=1\n"));
	assert_non_null(strstr(said.text, "total=10001\n"));
}

TEST(a_server_that_keeps_sending_garbage_gets_ever_longer_pauses)
{
	struct garbage g = {0};
	uint64_t now = 5000;

	log_set_level(LOG_ERROR);
	for (uint64_t pause = GARBAGE_PAUSE_MS, n = 0; n < 20; n++) {
		for (uint32_t i = 0; i < GARBAGE_AT_ONCE; i++)
			assert_int_equal(garbage_note(&g, "why", now), 0);
		assert_int_equal(garbage_note(&g, "why", now), pause);
		now += pause;
		pause = pause < GARBAGE_MAX_PAUSE_MS ? 2 * pause : pause;
	}
	now += GARBAGE_FORGET_MS;
	for (uint32_t i = 0; i < GARBAGE_AT_ONCE; i++)
		assert_int_equal(garbage_note(&g, "why", now), 0);
	assert_int_equal(garbage_note(&g, "why", now), GARBAGE_PAUSE_MS);
}

TEST(damaged_messages_once_in_a_while_keep_the_connection)
{
	struct garbage g = {0};

	log_set_level(LOG_ERROR);
	for (uint64_t i = 0; i < 1000; i++)
		assert_int_equal(garbage_note(&g, "why", 5000 + i * GARBAGE_MS), 0);
}

TEST(a_server_that_always_hangs_up_gets_about_two_connections_per_second)
{
	struct garbage g = {0};
	uint64_t losses = 0;

	for (uint64_t now = 5000; now < 5000 + 60000; now += 50, losses++)
		now += garbage_note_loss(&g, now);
	assert_in_range(losses, GARBAGE_LOSSES + 100, GARBAGE_LOSSES + 120);
	for (uint64_t i = 1; i < 1000; i++) /* losses at a usual rate must cause no pause */
		assert_int_equal(garbage_note_loss(&g, 100000 + i * GARBAGE_MS), 0);
}
