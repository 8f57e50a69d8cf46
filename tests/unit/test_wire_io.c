/* test_wire_io.c - a message arrives complete or not at all, and all frames of a refused message
 * are discarded. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "proto/wire.h"
#include "tests/support/test.h"

#define DEADLINE_MS 5000

static void *context, *router, *dealer;
static char endpoint[64];

static void *open_wire_socket(int type)
{
	void *s = zmq_socket(context, type);
	const int off = 0, on = 1;

	assert_non_null(s);
	assert_int_equal(zmq_setsockopt(s, ZMQ_LINGER, &off, sizeof(off)), 0);
	if (type == ZMQ_ROUTER)
		assert_int_equal(zmq_setsockopt(s, ZMQ_ROUTER_MANDATORY, &on, sizeof(on)), 0);
	return s;
}

static int set_up_sockets(void **state)
{
	size_t n = sizeof(endpoint);

	(void)state;
	context = zmq_ctx_new();
	router = open_wire_socket(ZMQ_ROUTER);
	dealer = open_wire_socket(ZMQ_DEALER);
	assert_int_equal(zmq_bind(router, "tcp://127.0.0.1:*"), 0);
	assert_int_equal(zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &n), 0);
	assert_int_equal(zmq_connect(dealer, endpoint), 0);
	return 0;
}

static int tear_down_sockets(void **state)
{
	(void)state;
	zmq_close(dealer);
	zmq_close(router);
	zmq_ctx_term(context);
	return 0;
}

static void await_frames(void *socket)
{
	zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};

	assert_int_equal(zmq_poll(&item, 1, DEADLINE_MS), 1);
}

/* Make a message of `n` frames of `size` bytes. Each byte of a frame is the number of the frame. */
static void fill_frames(struct frames *f, size_t n, size_t size)
{
	frames_init(f);
	while (f->n < n) {
		assert_int_equal(zmq_msg_init_size(&f->frame[f->n], size), 0);
		memset(zmq_msg_data(&f->frame[f->n]), (int)f->n, size);
		f->n++;
	}
}

static void assert_filled(struct frames *f, size_t n, size_t size)
{
	assert_int_equal(f->n, n);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(zmq_msg_size(&f->frame[i]), size);
		assert_int_equal(*(unsigned char *)zmq_msg_data(&f->frame[i]), i);
	}
	frames_release(f);
	assert_int_equal(f->n, 0);
}

static uint32_t greet_from(void *client)
{
	struct frames f;
	uint32_t peer = 0;

	fill_frames(&f, 1, 3);
	assert_int_equal(wire_send(client, 0, &f), PS_OK);
	await_frames(router);
	assert_int_equal(wire_recv(router, &peer, &f), 1);
	assert_filled(&f, 1, 3);
	assert_int_not_equal(peer, 0);
	return peer;
}

TEST_IN(whole_messages_travel_both_ways, set_up_sockets, tear_down_sockets)
{
	struct frames f;
	uint32_t peer;

	assert_int_equal(wire_recv(router, &peer, &f), 0);
	fill_frames(&f, 1 + WIRE_MAX_SLICES, 100);
	assert_int_equal(wire_send(dealer, 0, &f), PS_OK);
	assert_int_equal(f.n, 0);
	await_frames(router);
	assert_int_equal(wire_recv(router, &peer, &f), 1);
	assert_filled(&f, 1 + WIRE_MAX_SLICES, 100);
	fill_frames(&f, 2, 100000);
	zmq_msg_close(&f.frame[0]);
	assert_int_equal(zmq_msg_init_size(&f.frame[0], 1), 0);
	assert_int_equal(wire_send(router, peer, &f), PS_OK);
	await_frames(dealer);
	assert_int_equal(wire_recv(dealer, NULL, &f), 1);
	assert_int_equal(f.n, 2);
	assert_int_equal(zmq_msg_size(&f.frame[0]), 1);
	frames_release(&f);
	frames_release(&f);
}

static void send_parts(void *socket, size_t n, size_t size)
{
	char part[WIRE_MAX_HEADER + 1] = {0};

	assert_true(size <= sizeof(part));
	for (size_t i = 0; i < n; i++)
		assert_int_equal(
			zmq_send(socket, part, size, i + 1 < n ? ZMQ_SNDMORE : 0), (int)size);
}

/* Checks that all frames of a refused message are discarded, so that the next message arrives
 * unchanged. */
static void assert_dropped_whole(void *client, int peer_known)
{
	struct frames f;
	uint32_t peer;

	await_frames(router);
	assert_int_equal(wire_recv(router, &peer, &f), PS_EPROTO);
	assert_int_equal(peer != 0, peer_known);
	assert_int_equal(f.n, 0);
	if (peer_known)
		assert_int_equal(greet_from(client), peer);
}

TEST_IN(too_many_parts_are_dropped_whole, set_up_sockets, tear_down_sockets)
{
	send_parts(dealer, 1 + WIRE_MAX_SLICES + 1, 10);
	assert_dropped_whole(dealer, 1);
	send_parts(dealer, 5000, 0);
	assert_dropped_whole(dealer, 1);
}

TEST_IN(a_header_over_the_limit_is_dropped_with_its_tensors, set_up_sockets, tear_down_sockets)
{
	struct frames f;
	uint32_t peer;

	send_parts(dealer, 3, WIRE_MAX_HEADER + 1);
	assert_dropped_whole(dealer, 1);
	send_parts(dealer, 3, WIRE_MAX_HEADER);
	await_frames(router);
	assert_int_equal(wire_recv(router, &peer, &f), 1);
	frames_release(&f);
}

TEST_IN(a_client_chosen_identity_is_dropped, set_up_sockets, tear_down_sockets)
{
	void *liar = open_wire_socket(ZMQ_DEALER);

	assert_int_equal(zmq_setsockopt(liar, ZMQ_ROUTING_ID, "admin", 5), 0);
	assert_int_equal(zmq_connect(liar, endpoint), 0);
	send_parts(liar, 3, 10);
	assert_dropped_whole(liar, 0);
	zmq_close(liar);
	(void)greet_from(dealer);
}

TEST_IN(what_cannot_be_sent_stays_the_callers, set_up_sockets, tear_down_sockets)
{
	void *alone = open_wire_socket(ZMQ_DEALER);
	struct frames f;

	fill_frames(&f, 3, 10);
	assert_int_equal(wire_send(alone, 0, &f), PS_EAGAIN);
	assert_int_equal(wire_send(router, 0xfffffffeu, &f), PS_EUNREACHABLE);
	assert_filled(&f, 3, 10);
	zmq_close(alone);
}

TEST_IN(a_full_queue_refuses_whole_messages, set_up_sockets, tear_down_sockets)
{
	void *slow = open_wire_socket(ZMQ_DEALER);
	const int two = 2;
	struct frames f;
	int sent = 0, rc = PS_OK;

	/* no peer reads and the queue is bounded, so the queue becomes full */
	assert_int_equal(zmq_setsockopt(slow, ZMQ_SNDHWM, &two, sizeof(two)), 0);
	assert_int_equal(zmq_connect(slow, "tcp://127.0.0.1:1"), 0);
	while (rc == PS_OK && sent < 100) {
		fill_frames(&f, 3, 10);
		rc = wire_send(slow, 0, &f);
		sent += rc == PS_OK;
	}
	assert_int_equal(rc, PS_EAGAIN);
	assert_int_equal(sent, 2);
	assert_filled(&f, 3, 10);
	zmq_close(slow);
}
