/* test_server_replies.c - proves the invariants numbered in server/net/net.h about replies that
 * wait for a peer or for the disk. Covers a part of attack A5 of docs/faults.md. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include "server/net/net.h"
#include "tests/support/test.h"

#define ROOM   8
#define PEERS  16
#define RECORD 4096

/* A simulated network: the messages that the peers have received, and the status of the next sends
 * to each peer. */
static struct {
	int answer[PEERS]; /* for each peer: the status that its next sends return */
	int full[PEERS];   /* before that, the number of sends to each peer that return PS_EAGAIN */
	uint32_t to[RECORD];
	uint64_t seq[RECORD]; /* the seq of the ACK; 0: the message was an ERROR */
	size_t n;
} net;
static struct wire *wire;
static struct replies *q;

static int send_to(void *arg, uint32_t peer, struct frames *f)
{
	struct msg m;
	const char *why;

	assert_ptr_equal(arg, &net);
	if (net.full[peer] > 0) {
		net.full[peer]--;
		return PS_EAGAIN;
	}
	if (net.answer[peer])
		return net.answer[peer];
	assert_int_equal(wire_decode(wire, f, &m, &why), PS_OK);
	assert_true(m.type == MSG_ACK || (m.type == MSG_ERROR && m.error.status == PS_ESTATE));
	net.to[net.n] = peer;
	net.seq[net.n++] = m.type == MSG_ACK ? m.ack.seq : 0;
	frames_release(f);
	return PS_OK;
}

/* the LSN that must be on the disk before the next replies may leave */
static uint64_t after;

static void put_reply(uint32_t peer, uint64_t seq)
{
	const struct msg m = {.type = MSG_ACK, .ack = {.seq = seq, .verdict = VERDICT_OK}};
	struct frames f;

	assert_int_equal(wire_encode(&m, &f), PS_OK);
	replies_put(q, peer, &f, after);
	assert_int_equal(f.n, 0);
}

static void flush_replies(void)
{
	assert_int_equal(replies_flush(q, send_to, &net), 0);
}

/* Check that message number i went to `peer`, and that it was the ACK of `seq` or, if `seq` is 0,
 * an ERROR. */
static void expect_reply(size_t i, uint32_t peer, uint64_t seq)
{
	assert_true(i < net.n);
	assert_int_equal(net.to[i], peer);
	assert_int_equal(net.seq[i], seq);
}

static int set_up_replies(void **state)
{
	(void)state;
	memset(&net, 0, sizeof(net));
	after = 0;
	assert_int_equal(wire_new(&wire, 16), PS_OK);
	return replies_new(&q, ROOM, 1000);
}

static int tear_down_replies(void **state)
{
	(void)state;
	replies_free(&q);
	assert_null(q);
	wire_free(&wire);
	return 0;
}

/* Invariant 2 of net.h: replies to one peer leave in the order in which the server made them. */
TEST_IN(replies_leave_in_order, set_up_replies, tear_down_replies)
{
	for (uint64_t i = 1; i <= 6; i++)
		put_reply(1 + (uint32_t)i % 2, i);
	flush_replies();
	for (uint64_t i = 1; i <= 6; i++)
		expect_reply(i - 1, 1 + (uint32_t)i % 2, i);
	assert_int_equal(replies_waiting(q), 0);
	assert_int_equal(replies_sent(q), 6);
}

/* Invariants 1 and 2 of net.h: replies to a peer whose queue is full wait in order, and delay no
 * other peer. */
TEST_IN(a_full_peer_waits_and_delays_nobody, set_up_replies, tear_down_replies)
{
	net.answer[1] = PS_EAGAIN;
	put_reply(1, 1);
	put_reply(2, 10);
	put_reply(1, 2);
	put_reply(2, 11);
	flush_replies();
	assert_int_equal(net.n, 2);
	expect_reply(0, 2, 10);
	expect_reply(1, 2, 11);
	net.answer[1] = PS_OK;
	put_reply(1, 3);
	flush_replies();
	assert_int_equal(net.n, 5);
	for (uint64_t i = 1; i <= 3; i++)
		expect_reply(1 + i, 1, i);
	assert_int_equal(replies_dropped(q), 0);
}

/* Invariant 2 of net.h: if a message cannot be sent, the next message to this peer must wait as
 * well. */
TEST_IN(nothing_overtakes, set_up_replies, tear_down_replies)
{
	net.full[1] = 1;
	put_reply(1, 1);
	put_reply(1, 2);
	flush_replies();
	assert_int_equal(net.n, 0);
	put_reply(1, 3);
	flush_replies();
	for (uint64_t i = 1; i <= 3; i++)
		expect_reply(i - 1, 1, i);
}

/* Invariants 1 and 2 of net.h: if the replies to one peer need too much memory, one ERROR replaces
 * all of them. The limit of 1000 bytes allows only a few ACKs. The peer is an attacker that reads
 * nothing (attack A4 of docs/faults.md). */
TEST_IN(too_much_for_one_peer_becomes_one_error, set_up_replies, tear_down_replies)
{
	uint64_t dropped;
	size_t max;

	net.answer[1] = PS_EAGAIN;
	put_reply(2, 20);
	for (max = 1; replies_dropped(q) == 0; max++)
		put_reply(1, max);
	max--; /* the ACK that did not fit was dropped as well */
	assert_true(max > 2 && max < ROOM);
	dropped = replies_dropped(q);
	assert_int_equal(dropped, max);
	assert_int_equal(replies_waiting(q), 2);
	put_reply(1, 90); /* dropped, too, because the peer still reads nothing */
	put_reply(1, 91);
	assert_int_equal(replies_dropped(q), dropped + 2);
	net.answer[1] = PS_OK;
	flush_replies();
	assert_int_equal(net.n, 2);
	expect_reply(0, 2, 20);
	expect_reply(1, 1, 0);
	put_reply(1, 92); /* sent, because the peer has read the ERROR */
	flush_replies();
	expect_reply(2, 1, 92);
}

/* Invariants 1 and 2 of net.h: if the memory for all peers is used up, the peer that has waited for
 * the longest time loses its replies. */
TEST_IN(without_room_the_longest_waiting_peer_loses_its_replies, set_up_replies, tear_down_replies)
{
	net.answer[1] = net.answer[2] = PS_EAGAIN;
	put_reply(1, 1);
	put_reply(1, 2);
	for (uint32_t p = 2; p < ROOM; p++)
		put_reply(p, p);
	assert_int_equal(replies_waiting(q), ROOM);
	put_reply(9, 9);
	assert_int_equal(replies_dropped(q), 2);
	flush_replies();
	/* these are the reply to peer 2 and the ERROR for peer 1 */
	assert_int_equal(replies_waiting(q), 2);
	net.answer[1] = net.answer[2] = PS_OK;
	net.n = 0;
	flush_replies();
	expect_reply(0, 2, 2);
	expect_reply(1, 1, 0);
}

/* Invariant 1 of net.h: peers that read nothing must not occupy the memory for replies forever, not
 * even with the ERRORs that replace their replies. */
TEST_IN(a_room_full_of_silent_peers_still_takes_replies, set_up_replies, tear_down_replies)
{
	for (int i = 0; i < PEERS; i++)
		net.answer[i] = PS_EAGAIN;
	for (uint64_t i = 0; i < 1000; i++) {
		put_reply((uint32_t)(i % (PEERS - 2)), i + 1);
		assert_true(replies_waiting(q) <= ROOM);
		assert_int_equal(replies_flush(q, send_to, &net), 0);
	}
	net.answer[PEERS - 1] = PS_OK;
	put_reply(PEERS - 1, 7);
	flush_replies();
	assert_int_equal(net.n, 1);
	expect_reply(0, PEERS - 1, 7);
}

TEST_IN(a_peer_that_left_is_named_once_and_forgotten, set_up_replies, tear_down_replies)
{
	net.answer[1] = PS_EUNREACHABLE;
	put_reply(1, 1);
	put_reply(2, 2);
	put_reply(1, 3);
	put_reply(2, 4);
	assert_int_equal(replies_flush(q, send_to, &net), 1);
	flush_replies();
	assert_int_equal(net.n, 2);
	expect_reply(0, 2, 2);
	expect_reply(1, 2, 4);
	assert_int_equal(replies_waiting(q), 0);
}

TEST_IN(a_broken_reply_is_lost_alone, set_up_replies, tear_down_replies)
{
	net.answer[1] = PS_ENET;
	put_reply(1, 1);
	put_reply(2, 2);
	flush_replies();
	assert_int_equal(net.n, 1);
	expect_reply(0, 2, 2);
	assert_int_equal(replies_waiting(q), 0);
}

TEST_IN(replies_wait_for_the_disk, set_up_replies, tear_down_replies)
{
	put_reply(1, 1);
	after = 5;
	put_reply(1, 2);
	put_reply(2, 3);
	after = 6;
	put_reply(2, 4);
	after = 0;
	/* this reply waits for no event, but it must not overtake the other replies to its peer */
	put_reply(2, 5);
	put_reply(3, 6);
	flush_replies();
	assert_int_equal(net.n, 2);
	expect_reply(0, 1, 1);
	expect_reply(1, 3, 6);
	replies_set_flushed(q, 4);
	flush_replies();
	assert_int_equal(net.n, 2);
	replies_set_flushed(q, 5);
	replies_set_flushed(q, 3); /* no effect, because 3 is below the flushed LSN */
	flush_replies();
	assert_int_equal(net.n, 4);
	expect_reply(2, 1, 2);
	expect_reply(3, 2, 3);
	replies_set_flushed(q, 6);
	flush_replies();
	expect_reply(4, 2, 4);
	expect_reply(5, 2, 5);
	assert_int_equal(replies_waiting(q), 0);
}

/* Replies that wait for a hanging disk must not use all memory. The server treats such replies like
 * the replies of a peer that does not read. */
TEST_IN(replies_that_wait_for_the_disk_are_bounded, set_up_replies, tear_down_replies)
{
	after = 9;
	for (uint64_t seq = 1; seq <= 100; seq++)
		put_reply(1, seq);
	flush_replies();
	assert_int_equal(net.n, 1);
	expect_reply(0, 1, 0); /* the ERROR is sent without waiting for the disk */
	replies_set_flushed(q, 9);
	flush_replies();
	assert_int_equal(net.n, 1);
	assert_int_equal(replies_waiting(q), 0);
}

static int refuse_to_send(void *arg, uint32_t peer, struct frames *f)
{
	(void)arg;
	(void)peer;
	(void)f;
	return PS_EAGAIN;
}

/* Return the minimum CPU time, in s, of 20 flushes of a queue in which replies to `n` peers that do
 * not read wait. */
static double flush_time(uint32_t n)
{
	struct replies *crowd;
	double min = 1e9;

	assert_int_equal(replies_new(&crowd, n, 1000), PS_OK);
	for (uint32_t peer = 1; peer <= n; peer++) {
		struct frames f;

		frames_init(&f);
		assert_int_equal(zmq_msg_init_size(&f.frame[f.n++], 8), 0);
		replies_put(crowd, peer * 77773, &f, 0);
	}
	for (int i = 0; i < 20; i++) {
		clock_t begin = clock();

		for (int k = 0; k < 20; k++)
			assert_int_equal(replies_flush(crowd, refuse_to_send, NULL), 0);
		double took = (double)(clock() - begin) / CLOCKS_PER_SEC;

		min = took < min ? took : min;
	}
	assert_int_equal(replies_waiting(crowd), n);
	replies_free(&crowd);
	return min;
}

/* A peer can fill the queue. The server then flushes the full queue after each message. */
TEST(the_time_of_a_flush_grows_linearly_with_the_queue)
{
	double ratio = flush_time(8000) / (flush_time(500) + 1e-6);

	if (ratio > 64) /* the square of 16 is 256 */
		fail_msg("16 times as many replies take %.0f times as long", ratio);
}
