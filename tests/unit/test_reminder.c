/* Proves the promises of common/reminder.h. */
#include <stddef.h>
#include <stdint.h>
#include "common/reminder.h"
#include "tests/support/test.h"

/* Poll the reminder every 100 ms. The reminder must report at the times `expected`, in
 * milliseconds. */
TEST(reports_come_at_growing_intervals)
{
	const uint64_t expected[] = {1500, 4500, 10500, 22500, 46500, 94500, 154500, 214500};
	struct reminder r = {0};
	size_t n = 0;

	for (uint64_t now = 0; now <= 220000; now += 100)
		if (reminder_due(&r, 7, 0, 1000 + now) && n < 8)
			assert_int_equal(1000 + now, expected[n++]);
	assert_int_equal(n, 8);
}

TEST(another_wait_begins_anew)
{
	struct reminder r = {0};

	assert_false(reminder_due(&r, 0, 0, 5000));
	/* due at once, because the wait began long before the first poll */
	assert_true(reminder_due(&r, 1, 3000, 5000));
	assert_false(reminder_due(&r, 1, 3000, 7900));
	assert_true(reminder_due(&r, 1, 3000, 8000));
	assert_false(reminder_due(&r, 2, 8000, 9400));
	assert_true(reminder_due(&r, 2, 8000, 9500));
	assert_int_equal(r.since_ms, 8000);
	assert_false(reminder_due(&r, 0, 9600, 9600));
	assert_false(reminder_due(&r, 2, 9700, 9700));
	assert_false(reminder_due(&r, 2, 9700, 11100));
	assert_true(reminder_due(&r, 2, 9700, 11200));
}
