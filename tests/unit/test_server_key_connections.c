/* test_server_key_connections.c - the table of the open connections of each key
 * (server/net/key_connections.h). Covers attack A5 of docs/faults.md. */
#include "server/net/key_connections.h"
#include <stdio.h>
#include "common/authorized_keys.h"
#include "tests/support/test.h"

static struct key_connections *table;

static int set_up(void **state)
{
	(void)state;
	return key_connections_new(&table, 64);
}

static int tear_down(void **state)
{
	(void)state;
	key_connections_free(&table);
	return table != NULL;
}

/* Proves invariant 1 of key_connections.h. */
TEST_IN(connections_count_for_their_key, set_up, tear_down)
{
	assert_int_equal(key_connections_of(table, "a"), 0);
	assert_int_equal(key_connections_add(table, 5, 1, "a"), 1);
	assert_int_equal(key_connections_add(table, 6, 2, "a"), 2);
	assert_int_equal(key_connections_add(table, 7, 3, "b"), 1);
	assert_true(key_connections_has(table, 6, 2));
	/* not the same connection: a new connection got the same descriptor */
	assert_false(key_connections_has(table, 6, 3));
	assert_false(key_connections_has(table, 8, 2));
	key_connections_remove(table, 5);
	key_connections_remove(table, 5);
	assert_int_equal(key_connections_of(table, "a"), 1);
	assert_int_equal(key_connections_of(table, "b"), 1);
}

TEST_IN(a_descriptor_that_is_used_again_counts_once, set_up, tear_down)
{
	assert_int_equal(key_connections_add(table, 5, 1, "a"), 1);
	assert_int_equal(key_connections_add(table, 5, 2, "b"), 1);
	assert_int_equal(key_connections_of(table, "a"), 0);
	assert_int_equal(key_connections_add(table, 5, 3, "b"), 1);
}

TEST_IN(connections_that_are_not_open_are_forgotten, set_up, tear_down)
{
	const unsigned char open[64 / 8] = {[0] = 1u << 3};

	for (uint32_t fd = 1; fd < 6; fd++)
		assert_int_equal(key_connections_add(table, fd, fd, "a"), fd);
	key_connections_retain(table, open, 5);
	assert_int_equal(key_connections_of(table, "a"), 2);
	assert_true(key_connections_has(table, 3, 3));
	assert_true(key_connections_has(table, 5, 5)); /* the newest connection */
}

TEST_IN(a_key_without_connections_gives_its_entry_to_another, set_up, tear_down)
{
	char key[16];

	for (uint32_t i = 0; i < 2 * MAX_AUTHORIZED_KEYS; i++) {
		snprintf(key, sizeof(key), "%u", i);
		assert_int_equal(key_connections_add(table, i % 64, i, key), 1);
		key_connections_remove(table, i % 64);
	}
}
