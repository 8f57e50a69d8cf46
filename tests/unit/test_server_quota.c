/* test_server_quota.c - the limit on the messages of each key per second (server/auth/quota.h).
 * Covers attack A5 of docs/faults.md. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "server/auth/quota.h"
#include "tests/support/test.h"

TEST(one_key_cannot_take_the_tokens_of_another)
{
	static struct quota q;
	uint32_t taken = 0;

	for (uint64_t ms = 1000; ms < 11000; ms++)
		for (int i = 0; i < 7; i++)
			taken += (uint32_t)quota_take(&q, "flood", QUOTA_OF_HELLO, 25, ms);
	assert_in_range(taken, 10 * 25, 10 * 25 + 25);
	assert_int_equal(q.dropped, 70000 - taken);
	for (int i = 0; i < 25; i++)
		assert_true(quota_take(&q, "honest", QUOTA_OF_HELLO, 25, 11000));
	assert_false(quota_take(&q, "honest", QUOTA_OF_HELLO, 25, 11000));
	assert_true(quota_take(&q, "honest", QUOTA_OF_STATUS, 50, 11000));
	assert_true(quota_take(&q, "honest", QUOTA_OF_HELLO, 25, 11040));
	assert_true(quota_take(&q, "honest", QUOTA_OF_HELLO, 25, 99999999));
}

/* The table must have room for all keys that a list can have: while the others send messages, a
 * silent key must keep its bucket. */
TEST(all_keys_of_a_list_have_an_entry)
{
	static struct quota q;
	char key[KEY_TEXT];

	for (int i = 0; i < 25; i++)
		assert_true(quota_take(&q, "flood", QUOTA_OF_HELLO, 25, 1000));
	for (int i = 1; i < MAX_AUTHORIZED_KEYS; i++) {
		snprintf(key, sizeof(key), "key %d", i);
		assert_true(quota_take(&q, key, QUOTA_OF_HELLO, 25, 1001));
	}
	assert_false(quota_take(&q, "flood", QUOTA_OF_HELLO, 25, 1001));
}

/* If there are more keys than entries in the table, a key that keeps sending messages must keep its
 * bucket, because a new bucket would be full. */
TEST(many_keys_do_not_refill_a_bucket)
{
	static struct quota q;
	char key[KEY_TEXT];

	for (int i = 0; i < 25; i++)
		assert_true(quota_take(&q, "flood", QUOTA_OF_HELLO, 25, 1000));
	for (int i = 0; i < 2 * MAX_AUTHORIZED_KEYS; i++) {
		snprintf(key, sizeof(key), "key %d", i);
		assert_true(quota_take(&q, key, QUOTA_OF_HELLO, 25, 1001));
		assert_false(quota_take(&q, "flood", QUOTA_OF_HELLO, 25, 1001));
	}
}
