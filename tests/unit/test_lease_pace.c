/*
 * Proves that a worker sends few requests for leases to a hostile server
 * (worker/client/lease_pace.h), but never delays a request while the run trains or makes a usual
 * evaluation. Covers attack A22 of docs/faults.md.
 */
#include "tests/support/test.h"
#include "worker/client/lease_pace.h"

/* Returns the number of leases that a worker may request in `ms` milliseconds if it calls `then`
 * after each lease. */
static uint64_t leases_in(uint64_t ms, void (*then)(struct lease_pace *))
{
	struct lease_pace p = {0};
	uint64_t n = 0;

	for (uint64_t now = 5000; now < 5000 + ms; now++)
		for (int i = 0; i < 100 && lease_pace_allows(&p, LEASE_PAUSE_MS, now); i++) {
			lease_pace_lease(&p);
			then(&p);
			n++;
		}
	return n;
}

TEST(evaluations_without_end_are_paced)
{
	assert_in_range(leases_in(1, lease_pace_result), LEASES_AT_ONCE, LEASES_AT_ONCE + 1);
	assert_in_range(leases_in(10000, lease_pace_result), 10 * LEASES_PER_S,
		LEASES_AT_ONCE + 1 + 10 * LEASES_PER_S);
}

TEST(leases_between_pushes_have_no_limit)
{
	assert_int_equal(leases_in(1000, lease_pace_push), 100000);
}

/* A worker has received LEASES_AT_ONCE leases at once, and has delivered results. After a second,
 * it may request the same number again without a pause. */
TEST(the_bucket_fills_again)
{
	struct lease_pace p = {0};

	for (uint64_t now = 1000; now < 100000; now += 1000)
		for (int i = 0; i < LEASES_AT_ONCE; i++) {
			assert_true(lease_pace_allows(&p, 0, now));
			lease_pace_lease(&p);
			lease_pace_result(&p);
		}
}

TEST(leases_without_work_are_paused)
{
	struct lease_pace p = {0};

	for (int i = 0; i < MAX_EMPTY_LEASES; i++) {
		assert_true(lease_pace_allows(&p, 0, 1000));
		lease_pace_lease(&p);
	}
	assert_false(lease_pace_allows(&p, LEASE_PAUSE_MS - 1, 2000));
	assert_true(lease_pace_allows(&p, LEASE_PAUSE_MS, 2000));
}
