/* test_server_admission.c - proves how many HELLOs per second server/net/clients.h accepts. */
#include <stddef.h>
#include <stdint.h>
#include "server/net/clients.h"
#include "tests/support/test.h"

/* Returns how many of `n` HELLOs at the time `now_ms` are accepted. */
static int admitted_of(struct admission *a, int n, uint64_t now_ms)
{
	int in = 0;

	for (int i = 0; i < n; i++)
		in += admission_ask(a, now_ms);
	return in;
}

TEST(a_burst_of_hellos_is_accepted_at_once)
{
	struct admission a = {0};

	assert_int_equal(admitted_of(&a, 2 * ADMISSION_BURST, 5000), ADMISSION_BURST);
	assert_int_equal(a.turned_away, ADMISSION_BURST);
}

TEST(too_many_hellos_are_limited_to_the_rate)
{
	struct admission a = {0};
	int in = 0;

	for (uint64_t ms = 0; ms < 10000; ms++)
		in += admitted_of(&a, 3, ms);
	assert_in_range(in, 11 * ADMISSION_BURST - 2, 11 * ADMISSION_BURST);
}

TEST(a_pause_fills_the_bucket_and_no_more)
{
	struct admission a = {0};

	admitted_of(&a, 1000, 1);
	assert_int_equal(admitted_of(&a, 1000, 101), ADMISSION_BURST / 10);
	assert_int_equal(admitted_of(&a, 1000, 1000000), ADMISSION_BURST);
	assert_int_equal(admitted_of(&a, 1000, 1000000), 0);
}

TEST(a_steady_trickle_is_never_turned_away)
{
	struct admission a = {0};

	for (uint64_t ms = 0; ms < 100000; ms += 1000 / ADMISSION_BURST)
		assert_true(admission_ask(&a, ms));
}
