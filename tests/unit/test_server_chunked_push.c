/* test_server_chunked_push.c - proves the invariants of server/net/chunked_push.h. Covers attack A5
 * of docs/faults.md. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "proto/checksum.h"
#include "server/net/chunked_push.h"
#include "tests/support/test.h"

#define N     32 /* the number of floats of the model */
#define PEERS 4

static struct chunked_push *chunks;

static int set_up_chunks(void **state)
{
	(void)state;
	return chunked_push_new(&chunks, N, PEERS, NULL);
}

static int tear_down_chunks(void **state)
{
	(void)state;
	chunked_push_free(&chunks);
	assert_null(chunks);
	return 0;
}

static void put_bytes_in_frame(zmq_msg_t *frame, const void *data, size_t size)
{
	assert_int_equal(zmq_msg_init_size(frame, size), 0);
	memcpy(zmq_msg_data(frame), data, size);
}

/* Sends a chunk of `n` values from `peer` with this key, while `peers` peers are connected. All
 * values equal `value`. Returns the status. */
static int goes_with_key(uint32_t peer, const char *key, size_t n, float value, size_t peers)
{
	struct frames f;
	float values[2 * N];

	for (size_t i = 0; i < n; i++)
		values[i] = value;
	frames_init(&f);
	assert_int_equal(wire_encode_chunk_header(&f.frame[0]), PS_OK);
	put_bytes_in_frame(&f.frame[1], values, n * sizeof(*values));
	f.n = 2;
	assert_true(wire_is_chunk(&f));
	int rc = chunked_push_keep(chunks, peer, key, NULL, &f, peers);
	frames_release(&f);
	return rc;
}

static int goes(uint32_t peer, size_t n, float value, size_t peers)
{
	return goes_with_key(peer, "", n, value, peers);
}

/* Sends part `part` of push `seq` with one value, as a chunk with a mark. Returns the status. */
static int part_goes(uint32_t peer, uint64_t seq, uint32_t part, float value)
{
	const struct side_mark mark = {.number = seq, .part = part};
	struct side_mark read;
	struct frames f;

	frames_init(&f);
	assert_int_equal(side_encode_mark(&mark, &f.frame[0]), PS_OK);
	put_bytes_in_frame(&f.frame[1], &value, sizeof(value));
	f.n = 2;
	assert_false(wire_is_chunk(&f));
	assert_true(side_is_part(&f, &read) && read.number == seq && read.part == part);
	int rc = chunked_push_keep(chunks, peer, "", &mark, &f, 1);
	frames_release(&f);
	return rc;
}

/* Joins the header of PUSH `seq` of `peer`, all of whose `n` tensor frames are chunks. */
static int push_joins(uint32_t peer, uint64_t seq, uint32_t n)
{
	struct msg m = {.type = MSG_PUSH, .push = {.seq = seq, .chunks = n}};
	struct frames f;

	frames_init(&f);
	assert_int_equal(wire_encode_header(&m, &f.frame[0]), PS_OK);
	f.n = 1;
	int rc = chunked_push_join(chunks, peer, &f);
	assert_int_equal(f.n, rc ? 1 : 1 + n);
	for (uint32_t i = 0; i < n && !rc; i++) {
		float value;

		memcpy(&value, zmq_msg_data(&f.frame[1 + i]), sizeof(value));
		assert_true(value == (float)i);
	}
	frames_release(&f);
	return rc;
}

/* Joins a PUSH of `peer` with the `n` chunks that it announces. The PUSH also has one tensor frame
 * of its own. Returns the status. */
static int join_chunks(uint32_t peer, uint32_t n, struct frames *f)
{
	static const float own[1] = {9};
	struct msg m = {.type = MSG_PUSH, .push = {.chunks = n}};

	frames_init(f);
	assert_int_equal(wire_encode_header(&m, &f->frame[0]), PS_OK);
	put_bytes_in_frame(&f->frame[1], own, sizeof(own));
	f->n = 2;
	assert_false(wire_is_chunk(f));
	return chunked_push_join(chunks, peer, f);
}

static void assert_join_fails(uint32_t peer, uint32_t n)
{
	struct frames f;

	assert_int_equal(join_chunks(peer, n, &f), PS_EAGAIN);
	assert_int_equal(f.n, 2);
	frames_release(&f);
}

static float first_value(zmq_msg_t *frame)
{
	float value;

	memcpy(&value, zmq_msg_data(frame), sizeof(value));
	return value;
}

static void fits(uint32_t peer, uint32_t n, float from)
{
	struct frames f;

	assert_int_equal(join_chunks(peer, n, &f), PS_OK);
	assert_int_equal(f.n, 2 + n);
	assert_int_equal(f.n_chunks, n);
	for (uint32_t i = 0; i < n; i++) {
		zmq_msg_t *frame = &f.frame[1 + i];
		float value = first_value(frame);
		uint32_t bits;

		memcpy(&bits, &value, sizeof(bits));
		assert_true(value == from + (float)i);
		assert_int_equal(f.chunk[i].peak, bits);
		assert_true(f.chunk[i].xxh3 == wire_hash(zmq_msg_data(frame), zmq_msg_size(frame)));
	}
	assert_true(first_value(&f.frame[1 + n]) == 9);
	frames_release(&f);
}

TEST_IN(frames_come_before_the_messages_own_in_their_order, set_up_chunks, tear_down_chunks)
{
	for (uint32_t n = 0; n <= WIRE_MAX_CHUNKS; n++) {
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(goes(7, N / WIRE_MAX_CHUNKS, 1 + (float)i, 1), PS_OK);
		fits(7, n, 1);
		/* a PUSH without chunks fits, because no chunk of the peer is left */
		fits(7, 0, 0);
	}
}

TEST_IN(peers_are_apart, set_up_chunks, tear_down_chunks)
{
	for (uint32_t peer = 1; peer <= PEERS; peer++)
		assert_int_equal(goes(peer, 1, (float)peer, PEERS), PS_OK);
	for (uint32_t peer = PEERS; peer >= 1; peer--)
		fits(peer, 1, (float)peer);
}

TEST_IN(a_wrong_number_of_chunks_is_a_lost_message, set_up_chunks, tear_down_chunks)
{
	assert_join_fails(1, 1);
	assert_int_equal(goes(1, 1, 1, 1), PS_OK);
	assert_join_fails(1, 2);
	assert_join_fails(1, 1); /* the failed PUSH has discarded its chunks */
	assert_int_equal(goes(1, 1, 1, 1), PS_OK);
	fits(1, 0, 0); /* a PUSH without chunks is accepted */
	assert_join_fails(1, 1);
}

TEST_IN(chunks_over_the_limit_are_discarded, set_up_chunks, tear_down_chunks)
{
	assert_int_equal(goes(1, N, 1, 1), PS_OK);
	/* refused, because the model has only N values */
	assert_int_equal(goes(1, 1, 1, 1), PS_EAGAIN);
	assert_join_fails(1, 1);
	for (uint32_t i = 0; i < WIRE_MAX_CHUNKS; i++)
		assert_int_equal(goes(1, 1, 1, 1), PS_OK);
	/* refused, because the peer has already sent as many chunks as a PUSH may have */
	assert_int_equal(goes(1, 1, 1, 1), PS_EAGAIN);
	assert_join_fails(1, WIRE_MAX_CHUNKS);
	assert_int_equal(goes(1, N + 1, 1, 1), PS_EAGAIN);
	assert_int_equal(goes(1, 0, 1, 1), PS_EPROTO);
	fits(1, 0, 0);
}

TEST_IN(the_push_of_the_longest_silent_peer_is_discarded, set_up_chunks, tear_down_chunks)
{
	for (uint32_t peer = 1; peer <= 3; peer++)
		assert_int_equal(goes(peer, 1, (float)peer, 3), PS_OK);
	/* after this chunk of peer 1, the last chunk of peer 2 is the oldest, so peer 2 loses its
	 * chunks first */
	assert_int_equal(goes(1, 1, 2, 3), PS_OK);
	assert_int_equal(goes(4, 1, 4, 3), PS_OK);
	assert_join_fails(2, 1);
	fits(1, 2, 1);
	fits(3, 1, 3);
	/* the number of peers whose chunks the server keeps is bounded */
	for (uint32_t peer = 10; peer < 100; peer++)
		assert_int_equal(goes(peer, 1, (float)peer, 1000), PS_OK);
	for (uint32_t peer = 10; peer < 100 - PEERS; peer++)
		assert_join_fails(peer, 1);
	assert_int_equal(goes(100, 1, 100, 1), PS_OK); /* now only 1 peer may have chunks */
	assert_join_fails(99, 1);
	fits(100, 1, 100);
}

/* A key with many connections sends chunks of pushes that never arrive. Each chunk of this key,
 * except for the first, makes the server discard an earlier chunk of the same key. */
TEST_IN(a_key_takes_no_place_of_another_one, set_up_chunks, tear_down_chunks)
{
	for (uint32_t peer = 1; peer < PEERS; peer++) {
		assert_int_equal(
			goes_with_key(peer, peer == 1 ? "A" : "B", 1, (float)peer, 1000), PS_OK);
		assert_int_equal(chunked_push_wasted(chunks), 0);
	}
	for (uint32_t peer = 10; peer < 100; peer++) {
		assert_int_equal(goes_with_key(peer, "C", 1, 1, 1000), PS_OK);
		assert_int_equal(chunked_push_wasted(chunks), peer > 10);
	}
	for (uint32_t peer = 1; peer < PEERS; peer++)
		fits(peer, 1, (float)peer);
	/* while no other key needs a place, the key may take all places, and it loses them when
	 * another key needs some */
	for (uint32_t peer = 10; peer < 100; peer++)
		assert_int_equal(goes_with_key(peer, "C", 1, 1, 1000), PS_OK);
	for (uint32_t peer = 1; peer < PEERS; peer++) {
		assert_int_equal(goes_with_key(peer, "A", 1, (float)peer, 1000), PS_OK);
		/* 1 only for peer 3, because each of the two keys has two places */
		assert_int_equal(chunked_push_wasted(chunks), peer == 3);
		assert_int_equal(goes_with_key(peer + 100, "C", 1, 1, 1000), PS_OK);
	}
	fits(2, 1, 2);
	fits(3, 1, 3);
}

/* The bytes in the chunks of a key are limited. If a key exceeds this limit, it loses the oldest of
 * its own pushes. */
TEST_IN(a_key_has_a_limited_number_of_bytes, set_up_chunks, tear_down_chunks)
{
	assert_int_equal(goes_with_key(1, "B", N, 1, 1000), PS_OK);
	chunked_push_limit(chunks, (N + 2) * sizeof(float));
	for (uint32_t peer = 10; peer < 13; peer++)
		assert_int_equal(goes_with_key(peer, "A", 1, (float)peer, 1000), PS_OK);
	assert_int_equal(chunked_push_wasted(chunks), 0);
	assert_int_equal(goes_with_key(11, "A", N - 1, 12, 1000), PS_OK);
	/* nothing is discarded yet: the limit is reached, but not exceeded */
	assert_int_equal(chunked_push_wasted(chunks), 0);
	assert_int_equal(goes_with_key(12, "A", 1, 13, 1000), PS_OK);
	assert_int_equal(chunked_push_wasted(chunks), 1);
	assert_join_fails(10, 1);
	assert_int_equal(goes_with_key(12, "A", 3, 14, 1000), PS_OK);
	assert_int_equal(chunked_push_wasted(chunks), 2);
	assert_join_fails(11, 2);
	fits(12, 3, 12);
	fits(1, 1, 1);
}

TEST_IN(each_chunk_without_a_push_is_counted, set_up_chunks, tear_down_chunks)
{
	for (uint32_t i = 0; i <= WIRE_MAX_CHUNKS; i++) {
		int last = i == WIRE_MAX_CHUNKS;

		assert_int_equal(goes(1, 1, 1, 1), last ? PS_EAGAIN : PS_OK);
		assert_int_equal(chunked_push_wasted(chunks), last ? WIRE_MAX_CHUNKS + 1 : 0);
	}
	assert_int_equal(goes(1, 1, 1, 1), PS_OK);
	assert_join_fails(1, 2);
	assert_int_equal(chunked_push_wasted(chunks), 1);
	assert_int_equal(goes(1, 1, 1, 1), PS_OK);
	fits(1, 1, 1);
	assert_int_equal(chunked_push_wasted(chunks), 0);
}

TEST_IN(closed_connections_have_none, set_up_chunks, tear_down_chunks)
{
	assert_int_equal(goes(1, 1, 1, 2), PS_OK);
	assert_int_equal(goes(2, 1, 1, 2), PS_OK);
	chunked_push_clear(chunks);
	assert_join_fails(1, 1);
	assert_join_fails(2, 1);
}

TEST_IN(parts_with_marks_arrive_in_any_order, set_up_chunks, tear_down_chunks)
{
	for (uint32_t i = 4; i-- > 0;)
		assert_int_equal(part_goes(7, 1, i, (float)i), PS_OK);
	/* a message without parts in between, such as a LEASE */
	assert_int_equal(push_joins(7, 0, 0), PS_OK);
	assert_int_equal(push_joins(7, 1, 4), PS_OK);
	/* fails, because the first call has taken the parts */
	assert_int_equal(push_joins(7, 1, 4), PS_EAGAIN);
}

TEST_IN(parts_belong_to_the_push_of_their_mark, set_up_chunks, tear_down_chunks)
{
	assert_int_equal(part_goes(7, 1, 0, 0), PS_OK);
	assert_int_equal(part_goes(7, 1, 1, 1), PS_OK);
	assert_int_equal(push_joins(7, 2, 2), PS_EAGAIN);
	assert_int_equal(chunked_push_wasted(chunks), 2);
	/* a part of a later push discards the parts of an earlier push */
	assert_int_equal(part_goes(7, 1, 0, 0), PS_OK);
	assert_int_equal(part_goes(7, 2, 0, 0), PS_OK);
	assert_int_equal(chunked_push_wasted(chunks), 1);
	assert_int_equal(push_joins(7, 1, 1), PS_EAGAIN);
	/* fails, because part 0 is missing */
	assert_int_equal(part_goes(7, 3, 1, 1), PS_OK);
	assert_int_equal(push_joins(7, 3, 1), PS_EAGAIN);
	/* a HELLO discards the parts of its peer */
	assert_int_equal(part_goes(7, 4, 0, 0), PS_OK);
	chunked_push_drop(chunks, 7);
	assert_int_equal(push_joins(7, 4, 1), PS_EAGAIN);
}

TEST_IN(wrong_marks_are_refused, set_up_chunks, tear_down_chunks)
{
	assert_int_equal(part_goes(7, 0, 0, 0), PS_EPROTO);
	assert_int_equal(part_goes(7, 1, WIRE_MAX_CHUNKS, 0), PS_EPROTO);
	assert_int_equal(part_goes(7, 1, 255, 0), PS_EPROTO);
	assert_int_equal(part_goes(7, 1, 0, 0), PS_OK);
	assert_int_equal(part_goes(7, 1, 0, 0), PS_EPROTO);
	assert_int_equal(push_joins(7, 1, 1), PS_EAGAIN);
	/* a chunk without a mark after parts with a mark, and parts with a mark after such a
	 * chunk */
	assert_int_equal(part_goes(7, 1, 0, 0), PS_OK);
	assert_int_equal(goes(7, 1, 1, 1), PS_OK);
	assert_join_fails(7, 2);
	assert_int_equal(goes(7, 1, 1, 1), PS_OK);
	assert_int_equal(part_goes(7, 1, 1, 1), PS_OK);
	assert_int_equal(push_joins(7, 1, 2), PS_EAGAIN);
}
