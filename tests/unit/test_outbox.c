/* test_outbox.c - proves the invariants of worker/client/outbox.h over real sockets, and that
 * server/net/chunked_push.h reassembles a push that was sent in parts. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/clock.h"
#include "proto/bf16.h"
#include "server/net/chunked_push.h"
#include "worker/client/outbox.h"
#include "tests/support/test.h"

#define LARGE       150001u /* number of floats of a push that is sent in parts */
#define SMALL       10u
#define DEADLINE_MS 20000

static struct outbox out;
static void *context, *router, *dealer, *side[2];
static struct wire *wire;
static struct chunked_push *chunks;
static size_t n_chunks;

static int set_up_outbox(void **state)
{
	char endpoint[64];
	size_t size = sizeof(endpoint);
	const int few = 2;

	(void)state;
	context = zmq_ctx_new();
	router = zmq_socket(context, ZMQ_ROUTER);
	dealer = zmq_socket(context, ZMQ_DEALER);
	n_chunks = 0;
	(void)zmq_setsockopt(dealer, ZMQ_SNDHWM, &few, sizeof(few));
	(void)zmq_setsockopt(router, ZMQ_RCVHWM, &few, sizeof(few));
	outbox_init(&out, dealer);
	side[0] = zmq_socket(context, ZMQ_DEALER);
	side[1] = zmq_socket(context, ZMQ_DEALER);
	return zmq_bind(router, "tcp://127.0.0.1:*") ||
	       zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &size) ||
	       zmq_connect(dealer, endpoint) || zmq_connect(side[0], endpoint) ||
	       zmq_connect(side[1], endpoint) || wire_new(&wire, LARGE) ||
	       chunked_push_new(&chunks, LARGE, 2, NULL);
}

static int tear_down_outbox(void **state)
{
	const int now = 0;

	(void)state;
	outbox_release(&out);
	(void)zmq_setsockopt(dealer, ZMQ_LINGER, &now, sizeof(now));
	zmq_close(dealer);
	for (int i = 0; i < 2; i++) {
		(void)zmq_setsockopt(side[i], ZMQ_LINGER, &now, sizeof(now));
		zmq_close(side[i]);
	}
	zmq_close(router);
	zmq_ctx_term(context);
	wire_free(&wire);
	chunked_push_free(&chunks);
	return 0;
}

static float value(uint64_t seq, size_t i)
{
	return (float)seq + (float)i / 1000;
}

static void retain_in_outbox(uint64_t seq, uint64_t offset, size_t n)
{
	const struct slice whole = {.offset = offset, .count = n, .encoding = ENCODING_F32};
	zmq_msg_t tensor;

	assert_int_equal(zmq_msg_init_size(&tensor, n * sizeof(float)), 0);
	for (size_t i = 0; i < n; i++)
		((float *)zmq_msg_data(&tensor))[i] = value(seq, offset + i);
	outbox_retain(&out, seq, &whole, &tensor);
	assert_int_equal(zmq_msg_size(&tensor), 0);
}

static void post_push(uint64_t seq)
{
	const struct msg m = {.type = MSG_PUSH, .push = {.seq = seq, .images = 7}};

	outbox_post_push(&out, &m, seq);
}

/* Receives the next complete message, and joins its parts as the server does. */
static void next_message(struct frames *f, struct msg *m)
{
	uint64_t late = clock_ms() + DEADLINE_MS;
	struct side_mark mark;
	uint32_t peer;
	int rc = 0;

	while (rc != 1) {
		zmq_pollitem_t item = {.socket = router, .events = ZMQ_POLLIN};

		assert_true(clock_ms() < late);
		(void)zmq_poll(&item, 1, 5);
		outbox_flush(&out);
		if (wire_recv(router, &peer, f) != 1)
			continue;
		int is_part = side_is_part(f, &mark);

		if (!is_part && !wire_is_chunk(f)) {
			assert_int_equal(chunked_push_join(chunks, 1, f), PS_OK);
			mark.number = chunked_push_joined(chunks);
			mark.part = SIDE_WHOLE_PUSH;
			outbox_confirm(&out, &mark);
			assert_int_equal(wire_decode(wire, f, m, NULL), PS_OK);
			return;
		}
		assert_int_equal(
			chunked_push_keep(chunks, 1, "", is_part ? &mark : NULL, f, 2), PS_OK);
		n_chunks++;
		if (is_part)
			outbox_confirm(&out, &mark);
		frames_release(f);
	}
}

/* Checks that the next message is push `seq` with the values [offset, offset + n). */
static void arrives(uint64_t seq, uint64_t offset, size_t n)
{
	struct frames f;
	struct msg m;
	uint64_t at = offset;

	next_message(&f, &m);
	assert_int_equal(m.type, MSG_PUSH);
	assert_int_equal(m.push.seq, seq);
	assert_int_equal(m.push.images, 7);
	for (uint32_t k = 0; k < m.push.slices.n; k++) {
		const struct slice *s = &m.push.slices.slice[k];

		assert_int_equal(s->offset, at);
		for (size_t i = 0; i < s->count; i++)
			assert_true(s->data[i] == value(seq, at + i));
		at += s->count;
	}
	assert_int_equal(at, offset + n);
	frames_release(&f);
}

TEST_IN(a_small_push_is_one_message, set_up_outbox, tear_down_outbox)
{
	retain_in_outbox(1, 3, SMALL);
	post_push(1);
	arrives(1, 3, SMALL);
	assert_int_equal(n_chunks, 0);
	assert_int_equal(out.retained_bytes, SMALL * sizeof(float));
}

TEST_IN(a_large_push_is_whole_again_and_the_same_when_it_is_sent_again, set_up_outbox,
	tear_down_outbox)
{
	retain_in_outbox(1, 0, LARGE);
	for (int i = 0; i < 3; i++) {
		post_push(1);
		arrives(1, 0, LARGE);
	}
	assert_int_equal(n_chunks, 3 * (OUTBOX_PARTS - 1));
	assert_int_equal(out.replayed, 2);
	/* the first part of this push begins at value 10, where the slice begins */
	retain_in_outbox(2, 10, LARGE - 11);
	post_push(2);
	arrives(2, 10, LARGE - 11);
	assert_int_equal(out.retained_bytes, (2 * LARGE - 11) * sizeof(float));
}

/* The values of this push are whole numbers, which bfloat16 represents exactly, so the received
 * values can be compared with the sent ones. */
TEST_IN(a_push_in_bfloat16_is_whole_again_when_it_is_sent_again, set_up_outbox, tear_down_outbox)
{
	const size_t sizes[] = {1, 1001, LARGE - 11};
	zmq_msg_t tensor;
	struct frames f;
	struct msg m;

	for (uint64_t seq = 1; seq <= 3; seq++) {
		size_t n = sizes[seq - 1];
		const struct slice whole = {.offset = 10, .count = n, .encoding = ENCODING_BF16};

		assert_int_equal(zmq_msg_init_size(&tensor, n * BF16_BYTES), 0);
		for (size_t i = 0; i < n; i++) {
			uint16_t half = bf16_of((float)(i % 251));

			memcpy((char *)zmq_msg_data(&tensor) + BF16_BYTES * i, &half, sizeof(half));
		}
		outbox_retain(&out, seq, &whole, &tensor);
		for (int again = 0; again < 2; again++) {
			size_t at = 0;

			post_push(seq);
			next_message(&f, &m);
			assert_int_equal(m.push.seq, seq);
			for (uint32_t k = 0; k < m.push.slices.n; k++) {
				const struct slice *s = &m.push.slices.slice[k];

				assert_int_equal(s->encoding, ENCODING_BF16);
				assert_int_equal(s->offset, 10 + at);
				for (size_t i = 0; i < s->count; i++)
					assert_true(s->data[i] == (float)((at + i) % 251));
				at += s->count;
			}
			assert_int_equal(at, n);
			frames_release(&f);
		}
	}
	assert_int_equal(n_chunks, 2 * (OUTBOX_PARTS - 1));
	assert_int_equal(out.retained_bytes, (1 + 1001 + LARGE - 11) * BF16_BYTES);
}

TEST_IN(what_finds_no_room_leaves_later_in_its_order, set_up_outbox, tear_down_outbox)
{
	enum { PUSHES = 12 };

	for (uint64_t seq = 1; seq <= PUSHES; seq++) {
		retain_in_outbox(seq, 0, seq % 3 ? LARGE : SMALL);
		post_push(seq);
	}
	/* some messages could not be sent, because libzmq queues only two and TCP buffers few
	 * bytes */
	assert_true(out.count > 0);
	for (uint64_t seq = 1; seq <= PUSHES; seq++)
		arrives(seq, 0, seq % 3 ? LARGE : SMALL);
	assert_int_equal(out.count, 0);
}

TEST_IN(bytes_stay_until_they_have_left, set_up_outbox, tear_down_outbox)
{
	retain_in_outbox(1, 0, LARGE);
	post_push(1);
	outbox_drop(&out, 1); /* libzmq still holds the messages that it has not sent */
	assert_int_equal(out.retained_bytes, 0);
	if (!out.count)
		arrives(1, 0, LARGE);
}

/* ---- side connections ------------------------------------------------------------------------ */

TEST_IN(a_large_push_travels_over_all_connections, set_up_outbox, tear_down_outbox)
{
	for (size_t n = 1; n <= 2; n++) {
		outbox_use_sides(&out, side, n);
		retain_in_outbox(n, 0, LARGE);
		n_chunks = 0;
		for (int i = 0; i < 2; i++) {
			post_push(n);
			arrives(n, 0, LARGE);
		}
		assert_int_equal(n_chunks, 2 * (n == 2 ? OUTBOX_PARTS_OF_3 : OUTBOX_PARTS));
	}
	/* a small push is sent without waiting for receipts */
	retain_in_outbox(3, 3, SMALL);
	post_push(3);
	assert_false(outbox_awaits_receipts(&out));
	arrives(3, 3, SMALL);
}

TEST_IN(a_push_waits_for_the_receipts_of_its_parts, set_up_outbox, tear_down_outbox)
{
	struct side_mark receipt = {.number = 7};
	const struct msg lease = {.type = MSG_LEASE};

	outbox_use_sides(&out, side, 1);
	retain_in_outbox(1, 0, LARGE);
	post_push(1);
	outbox_post(&out, &lease);
	for (uint64_t late = clock_ms() + DEADLINE_MS; !outbox_awaits_receipts(&out);) {
		assert_true(clock_ms() < late);
		outbox_flush(&out);
	}
	assert_int_equal(out.count, 2);
	for (receipt.part = 0; receipt.part < 256; receipt.part++)
		/* this receipt is for another push, so the outbox must ignore it */
		outbox_confirm(&out, &receipt);
	assert_int_equal(out.count, 2);
	receipt = (struct side_mark){.number = 1, .part = 1};
	outbox_confirm(&out, &receipt);
	outbox_confirm(&out, &receipt);
	assert_true(outbox_awaits_receipts(&out));
	/* the side connection is lost: the outbox discards the parts that wait, and uses only the
	 * bulk connection */
	outbox_use_sides(&out, NULL, 0);
	outbox_clear(&out);
	assert_false(outbox_awaits_receipts(&out));
	n_chunks = 0;
	chunked_push_clear(chunks);
}

/* Discards what the router has received, and confirms all parts of push `seq`, until the outbox has
 * sent the PUSH and waits. */
static void confirm_parts(uint64_t seq)
{
	for (uint64_t late = clock_ms() + DEADLINE_MS;
		out.unconfirmed_push != seq || !outbox_awaits_receipts(&out);) {
		struct side_mark receipt = {.number = seq};
		struct frames f;
		uint32_t peer;

		assert_true(clock_ms() < late);
		while (wire_recv(router, &peer, &f) == 1)
			frames_release(&f);
		for (; receipt.part < OUTBOX_PARTS; receipt.part++)
			outbox_confirm(&out, &receipt);
	}
}

TEST_IN(parts_do_not_overtake_a_push_from_before_the_side_connections, set_up_outbox,
	tear_down_outbox)
{
	retain_in_outbox(1, 0, LARGE);
	retain_in_outbox(2, 0, LARGE);
	post_push(1);
	outbox_use_sides(&out, side, 1);
	post_push(2);
	for (uint64_t late = clock_ms() + DEADLINE_MS; !outbox_awaits_receipts(&out);) {
		assert_true(clock_ms() < late);
		outbox_flush(&out);
	}
	outbox_decided(&out, 0);
	assert_int_equal(out.spread_seq, 0);
	outbox_decided(&out, 1);
	assert_int_equal(out.spread_seq, 2);
}

TEST_IN(parts_of_the_next_push_wait_for_the_receipt_of_the_push, set_up_outbox, tear_down_outbox)
{
	const struct side_mark receipt = {.number = 1, .part = SIDE_WHOLE_PUSH};

	outbox_use_sides(&out, side, 1);
	retain_in_outbox(1, 0, LARGE);
	retain_in_outbox(2, 0, LARGE);
	post_push(1);
	post_push(2);
	confirm_parts(1);
	/* part 0 of push 2 was sent on the bulk connection; part 1 waits for the receipt of push
	 * 1 */
	assert_int_equal(out.spread_seq, 1);
	assert_int_equal(out.count, OUTBOX_PARTS);
	outbox_confirm(&out, &receipt);
	assert_int_equal(out.unconfirmed_push, 0);
	assert_int_equal(out.spread_seq, 2);
}
