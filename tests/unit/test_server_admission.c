/* test_server_admission.c - how many HELLOs server/net/clients.h accepts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "server/net/clients.h"

/* Returns how many of `n` HELLOs at `now_ms` are accepted. */
static int ask(struct admission *a, int n, uint64_t now_ms)
{
	int in = 0;

	for (int i = 0; i < n; i++)
		in += admission_ask(a, now_ms);
	return in;
}

static void a_burst_of_hellos_is_accepted_at_once(void **state)
{
	struct admission a = {0};

	(void)state;
	assert_int_equal(ask(&a, 2 * ADMISSION_BURST, 5000), ADMISSION_BURST);
	assert_int_equal(a.turned_away, ADMISSION_BURST);
}

static void too_many_hellos_are_limited_to_the_rate(void **state)
{
	struct admission a = {0};
	int in = 0;

	(void)state;
	for (uint64_t ms = 0; ms < 10000; ms++)
		in += ask(&a, 3, ms);
	assert_in_range(in, 11 * ADMISSION_BURST - 2, 11 * ADMISSION_BURST);
}

static void a_pause_fills_the_bucket_and_no_more(void **state)
{
	struct admission a = {0};

	(void)state;
	ask(&a, 1000, 1);
	assert_int_equal(ask(&a, 1000, 101), ADMISSION_BURST / 10);
	assert_int_equal(ask(&a, 1000, 1000000), ADMISSION_BURST);
	assert_int_equal(ask(&a, 1000, 1000000), 0);
}

static void a_steady_trickle_is_never_turned_away(void **state)
{
	struct admission a = {0};

	(void)state;
	for (uint64_t ms = 0; ms < 100000; ms += 1000 / ADMISSION_BURST)
		assert_true(admission_ask(&a, ms));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_burst_of_hellos_is_accepted_at_once),
		cmocka_unit_test(too_many_hellos_are_limited_to_the_rate),
		cmocka_unit_test(a_pause_fills_the_bucket_and_no_more),
		cmocka_unit_test(a_steady_trickle_is_never_turned_away),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
