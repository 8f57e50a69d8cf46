/* test_clock.c - proves that clock.h measures the time for which an event loop was awake. */
#include <stddef.h>
#include <stdint.h>
#include "common/clock.h"
#include "tests/support/test.h"

TEST(the_clock_never_goes_back)
{
	uint64_t before = clock_ms();

	for (int i = 0; i < 1000; i++) {
		uint64_t now = clock_ms();

		assert_true(now >= before);
		before = now;
	}
}

TEST(time_awake_follows_the_clock_while_it_is_polled)
{
	struct awake a = {0};

	for (uint64_t now = 5000; now < 20000; now += 100)
		assert_int_equal(awake_ms(&a, now, 1000), now);
	/* awake_ms is called a second time in the same millisecond: the result is the same */
	assert_int_equal(awake_ms(&a, 19900, 1000), 19900);
}

TEST(an_hour_of_sleep_counts_as_one_step)
{
	struct awake a = {0};

	(void)awake_ms(&a, 5000, 200);
	assert_int_equal(awake_ms(&a, 5000 + 3600000, 200), 5200);
	assert_int_equal(awake_ms(&a, 5100 + 3600000, 200), 5300);
	assert_int_equal(awake_ms(&a, UINT64_MAX, 1000), 6300);
}
