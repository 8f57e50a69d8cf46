/* test_server_owners.c - the limit on the weights that wait for the connections of a key. Proves
 * the invariants of server/net/owners.h. Covers attack A5 of docs/faults.md. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "server/net/owners.h"
#include "tests/support/test.h"

#define BYTES 1000u

static struct owners *owners;
static int n_freed;

static int set_up_owners(void **state)
{
	(void)state;
	n_freed = 0;
	owners = owners_new();
	return owners == NULL;
}

static int tear_down_owners(void **state)
{
	(void)state;
	owners_free(&owners);
	assert_null(owners);
	return 0;
}

static void note_free(void *data, void *arg)
{
	(void)data;
	(void)arg;
	n_freed++;
}

/* Makes a frame of weights for `peer`. Its bytes count for the key of the peer until the frame is
 * freed. */
static void reply_to(uint32_t peer, zmq_msg_t *frame)
{
	static char weights[BYTES] = "weights";

	assert_int_equal(zmq_msg_init_data(frame, weights, BYTES, note_free, NULL), 0);
	owners_count(owners, peer, frame);
	assert_int_equal(zmq_msg_size(frame), BYTES);
	assert_string_equal(zmq_msg_data(frame), "weights");
}

TEST_IN(a_key_has_a_limit_for_all_its_connections, set_up_owners, tear_down_owners)
{
	zmq_msg_t frame[3], copy;

	for (uint32_t i = 0; i < 3; i++) {
		assert_true(owners_may_pull(owners, 10 + i, "greedy", 3 * BYTES));
		reply_to(10 + i, &frame[i]);
	}
	assert_int_equal(owners_waiting(owners, "greedy"), 3 * BYTES);
	assert_false(owners_may_pull(owners, 13, "greedy", 3 * BYTES));
	assert_true(owners_may_pull(owners, 14, "other", 3 * BYTES));
	assert_int_equal(owners_waiting(owners, "other"), 0);
	(void)zmq_msg_init(&copy);
	(void)zmq_msg_copy(&copy, &frame[1]);
	/* the bytes still count, because the copy of this frame still waits */
	(void)zmq_msg_close(&frame[1]);
	assert_false(owners_may_pull(owners, 10, "greedy", 3 * BYTES));
	(void)zmq_msg_close(&copy);
	assert_int_equal(n_freed, 1);
	assert_true(owners_may_pull(owners, 10, "greedy", 3 * BYTES));
	(void)zmq_msg_close(&frame[0]);
	(void)zmq_msg_close(&frame[2]);
	assert_int_equal(owners_waiting(owners, "greedy"), 0);
	assert_int_equal(n_freed, 3);
}

/* Weights for a peer without an entry are sent but not counted. A peer has no entry if it has sent
 * no request, or if all entries of the table are in use by other keys. */
TEST_IN(what_has_no_place_is_not_counted, set_up_owners, tear_down_owners)
{
	zmq_msg_t frame[OWNERS], extra;
	char key[32];

	reply_to(77, &extra);
	(void)zmq_msg_close(&extra);
	for (uint32_t i = 0; i < OWNERS; i++) {
		snprintf(key, sizeof(key), "key %u", i);
		assert_true(owners_may_pull(owners, i, key, BYTES));
		reply_to(i, &frame[i]);
		assert_int_equal(owners_waiting(owners, key), BYTES);
	}
	assert_true(owners_may_pull(owners, 5000, "one more", BYTES));
	reply_to(5000, &extra);
	assert_int_equal(owners_waiting(owners, "one more"), 0);
	(void)zmq_msg_close(&extra);
	(void)zmq_msg_close(&frame[0]);
	/* "one more" takes the entry of peer 0's key, which has no waiting bytes */
	assert_true(owners_may_pull(owners, 5000, "one more", BYTES));
	reply_to(0, &extra); /* not counted, because the key of peer 0 has lost its entry */
	assert_int_equal(owners_waiting(owners, "one more"), 0);
	(void)zmq_msg_close(&extra);
	for (uint32_t i = 1; i < OWNERS; i++)
		(void)zmq_msg_close(&frame[i]);
	assert_int_equal(n_freed, OWNERS + 3);
}
