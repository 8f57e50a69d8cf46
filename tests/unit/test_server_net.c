/*
 * test_server_net.c - tests the server's port with real sockets. Proves the invariants and promises
 * of server/net/net.h.
 */
#include "tests/support/router_fixture.h"
#include "common/endpoint.h"
#include "tests/support/test.h"

/* ---- receive and send ----------------------------------------------------------------------- */

TEST_IN(the_endpoint_names_the_real_port, router_set_up, router_tear_down)
{
	struct endpoint e;

	assert_int_equal(endpoint_parse(router_endpoint(router_under_test), &e), PS_OK);
	assert_string_equal(e.host, "127.0.0.1");
	assert_true(e.number > 0);
}

TEST_IN(an_address_in_use_is_refused, router_set_up, router_tear_down)
{
	struct router_config cfg = router_test_config();
	struct router *second;
	struct err e;

	cfg.bind = router_endpoint(router_under_test);
	assert_int_equal(router_new(&second, &cfg, &e), PS_EUSAGE);
	assert_null(second);
	assert_non_null(strstr(e.text, cfg.bind));
	cfg.bind = "tcp://192.0.2.1:0"; /* an address that this machine does not have */
	assert_int_equal(router_new(&second, &cfg, &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, "192.0.2.1"));
}

TEST_IN(malformed_messages_are_answered_and_counted, router_set_up, router_tear_down)
{
	static const char *const junk[] = {"", "x", "\xff\xff\xff", "GET / HTTP/1.1"};
	struct wire *wire;
	struct frames f;
	struct msg m;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	void *s = connect_dealer();
	for (size_t i = 0; i < 4; i++) {
		assert_true(zmq_send(s, junk[i], strlen(junk[i]), 0) >= 0);
		client_receive(s, wire, &f, &m);
		assert_int_equal(m.type, MSG_ERROR);
		assert_int_equal(m.error.status, PS_EPROTO);
		assert_true(m.error.text[0] != '\0');
		frames_release(&f);
		assert_int_equal(router_test_stats().malformed, i + 1);
	}
	assert_int_equal(router_core.messages, 0);
	close_dealer(s);
	wire_free(&wire);
}

static void send_message(void *socket, const struct msg *m)
{
	struct frames f;

	assert_int_equal(wire_encode(m, &f), PS_OK);
	assert_int_equal(wire_send(socket, 0, &f), PS_OK);
}

/* The last push of a worker may arrive after its shared memory was closed. While the run goes on,
 * the server must refuse this push; at the end of the run, it must ignore it. */
TEST_IN(a_push_in_closed_memory_is_refused_only_before_the_end, router_set_up, router_tear_down)
{
	const struct msg push = {
		.type = MSG_PUSH, .push = {.seq = 1, .lane_slot = 1, .lane_count = ROUTER_PARAMS}};
	struct wire *wire;
	struct frames f;
	struct msg m;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	void *s = connect_dealer();
	send_message(s, &push);
	client_receive(s, wire, &f, &m);
	assert_int_equal(m.type, MSG_ERROR);
	assert_int_equal(m.error.status, PS_ESTATE);
	frames_release(&f);
	router_run_ended(router_under_test);
	send_message(s, &push);
	/* the first answer is the one to this pull, so the server has not answered the push */
	client_pull(s, 7, WEIGHTS_CURRENT);
	client_receive(s, wire, &f, &m);
	assert_int_equal(m.type, MSG_PARAMS);
	frames_release(&f);
	assert_int_equal(router_test_stats().malformed, 1);
	close_dealer(s);
	wire_free(&wire);
}

TEST_IN(a_chosen_routing_id_gets_no_answer, router_set_up, router_tear_down)
{
	void *s = open_dealer();

	zmq_setsockopt(s, ZMQ_ROUTING_ID, "admin", 5);
	zmq_connect(s, router_endpoint(router_under_test));
	client_heartbeat(s);
	UNTIL(router_test_stats().malformed == 1)
	assert_int_equal(router_core.messages, 0);
	assert_int_equal(router_test_stats().waiting, 0);
	close_dealer(s);
}

/* ---- peers that are slow or gone --------------------------------------------------------- */

TEST_IN(all_messages_are_received_without_a_loop_iteration, router_set_up, router_tear_down)
{
	enum { EACH = 8 };
	uint64_t late = clock_ms() + ROUTER_DEADLINE_MS;
	void *s[2] = {connect_dealer(), connect_dealer()};

	for (int i = 0; i < EACH; i++) {
		client_heartbeat(s[0]);
		client_heartbeat(s[1]);
	}
	/* libzmq's own thread receives the messages, so no iteration of the event loop is
	 * necessary */
	while (router_core.messages < 2 * EACH) {
		assert_true(clock_ms() < late);
		router_receive_pending(router_under_test);
	}
	UNTIL(router_test_stats().port.connections == 2)
	assert_int_equal(router_test_stats().rescues, 0);
	close_dealer(s[0]);
	close_dealer(s[1]);
}

TEST_IN(pulls_of_a_version_share_a_frame, router_set_up, router_tear_down)
{
	struct wire *wire;
	struct frames f;
	struct msg m;
	void *s[3];

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	for (size_t i = 0; i < 3; i++)
		s[i] = connect_dealer();
	for (router_core.version = 1; router_core.version <= 4; router_core.version++) {
		router_weights[0] = (float)router_core.version;
		for (size_t i = 0; i < 3; i++)
			client_pull(s[i], 100 + i, WEIGHTS_CURRENT);
		for (size_t i = 0; i < 3; i++) {
			client_receive(s[i], wire, &f, &m);
			assert_int_equal(m.type, MSG_PARAMS);
			assert_int_equal(m.params.request, 100 + i);
			assert_int_equal(m.params.version, router_core.version);
			assert_true(m.params.slices.slice[0].data[0] == (float)router_core.version);
			frames_release(&f);
		}
		assert_int_equal(router_test_stats().params_framed, router_core.version);
	}
	/* weights for an evaluation must be sent in another frame than the current weights, even if
	 * both have the same version */
	router_weights[0] = 77;
	router_core.version--;
	client_pull(s[0], 1, WEIGHTS_EVAL);
	client_receive(s[0], wire, &f, &m);
	assert_true(m.params.slices.slice[0].data[0] == 77);
	frames_release(&f);
	assert_int_equal(router_test_stats().params_framed, 5);
	for (size_t i = 0; i < 3; i++)
		close_dealer(s[i]);
	wire_free(&wire);
}

/* The answer to a push that also pulls is one message, PARAMS that contain the ACK (net.h). */
TEST_IN(an_ack_goes_along_with_the_weights_of_its_push, router_set_up, router_tear_down)
{
	struct wire *wire;
	struct frames f;
	struct msg m;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	void *s = connect_dealer();
	for (router_core.ack = 0; router_core.ack <= 7; router_core.ack += 7) {
		client_pull(s, 1, WEIGHTS_CURRENT);
		client_receive(s, wire, &f, &m);
		assert_int_equal(m.type, MSG_PARAMS);
		assert_int_equal(m.params.ack.seq, router_core.ack);
		frames_release(&f);
	}
	assert_int_equal(router_test_stats().sent, 2);
	close_dealer(s);
	wire_free(&wire);
}

/* Invariants 1 and 2 of net.h: the memory of the replies that wait for a peer is bounded, a peer
 * that loses replies is notified, and other peers never wait. */
TEST_IN(a_peer_that_does_not_read_loses_replies_and_is_notified, router_set_up, router_tear_down)
{
	const int one = 1;
	struct wire *wire;
	struct frames f;
	struct msg m;
	uint64_t params = 0;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	void *slow = open_dealer(), *reader = connect_dealer();
	zmq_setsockopt(slow, ZMQ_RCVHWM, &one, sizeof(one));
	zmq_connect(slow, router_endpoint(router_under_test));
	client_heartbeat(slow);
	UNTIL(router_core.messages == 1)
	const uint32_t slow_peer = router_core.peer;
	for (uint64_t sent = 0; router_test_stats().dropped == 0; sent++) {
		assert_true(sent < 2000);
		router_core.version++;
		client_pull(slow, sent, WEIGHTS_CURRENT);
		UNTIL(router_core.messages == sent + 2)
	}
	assert_int_equal(router_test_stats().waiting, 1);
	const uint64_t dropped = router_test_stats().dropped;
	router_core.replies = 1;
	client_heartbeat(reader);
	client_receive(reader, wire, &f, &m);
	assert_int_equal(m.type, MSG_HEARTBEAT);
	frames_release(&f);
	assert_int_not_equal(router_core.peer, slow_peer);
	for (;; params++) { /* now the peer reads: first the replies in flight, then the ERROR */
		client_receive(slow, wire, &f, &m);
		if (m.type != MSG_PARAMS)
			break;
		assert_int_equal(m.params.request, params);
		frames_release(&f);
	}
	assert_int_equal(m.type, MSG_ERROR);
	assert_int_equal(m.error.status, PS_ESTATE);
	frames_release(&f);
	client_heartbeat(slow);
	client_receive(slow, wire, &f, &m);
	assert_int_equal(m.type, MSG_HEARTBEAT);
	frames_release(&f);
	assert_int_equal(router_test_stats().dropped, dropped);
	close_dealer(slow);
	close_dealer(reader);
	wire_free(&wire);
}

TEST_IN(a_burst_of_small_replies_reaches_a_peer_that_reads, router_set_up, router_tear_down)
{
	struct wire *wire;
	struct frames f;
	struct msg m;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	void *s = connect_dealer();
	router_core.replies = 200;
	client_heartbeat(s);
	for (uint64_t i = 1; i <= 200; i++) {
		client_receive(s, wire, &f, &m);
		assert_int_equal(m.type, MSG_HEARTBEAT);
		assert_int_equal(m.heartbeat.last_seq, i);
		frames_release(&f);
	}
	assert_int_equal(router_test_stats().dropped, 0);
	close_dealer(s);
	wire_free(&wire);
}

/* A queue of a peer has room for ten replies. When the peer has read some, the server must send the
 * next ones at once: the timer that tries again would need 190 ms for 200 replies. The test takes
 * the time of the fastest of several bursts, because other programs may delay a burst. */
TEST_IN(waiting_replies_leave_as_soon_as_the_peer_reads, router_set_up, router_tear_down)
{
	uint64_t fastest_us = UINT64_MAX;
	struct wire *wire;
	struct frames f;
	struct msg m;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	void *s = connect_dealer();
	router_core.replies = 200;
	for (int burst = 0; burst < 10; burst++) {
		uint64_t begin_us = clock_us();

		client_heartbeat(s);
		for (uint64_t i = 1; i <= 200; i++) {
			client_receive(s, wire, &f, &m);
			assert_int_equal(m.heartbeat.last_seq, i);
			frames_release(&f);
		}
		uint64_t took_us = clock_us() - begin_us;
		fastest_us = took_us < fastest_us ? took_us : fastest_us;
	}
	assert_in_range(fastest_us, 0, 100000);
	close_dealer(s);
	wire_free(&wire);
}

TEST_IN(a_peer_that_left_is_reported, router_set_up, router_tear_down)
{
	const struct msg m = {.type = MSG_HEARTBEAT};

	void *s = connect_dealer();
	client_heartbeat(s);
	UNTIL(router_core.messages == 1)
	UNTIL(router_test_stats().port.connections == 1)
	close_dealer(s);
	UNTIL(router_test_stats().port.connections == 0)
	for (uint64_t end = clock_ms() + ROUTER_DEADLINE_MS; router_core.gone == 0;) {
		assert_true(clock_ms() < end);
		router_send(router_under_test, router_core.peer, &m);
		router_flush(router_under_test);
		uv_run(&router_loop, UV_RUN_NOWAIT);
	}
	assert_int_equal(router_test_stats().gone, 1);
	assert_int_equal(router_core.gone_peer, router_core.peer);
	assert_int_equal(router_test_stats().waiting, 0);
}

TEST_IN(no_wake_up_was_missed, router_set_up, router_tear_down)
{
	struct wire *wire;
	struct frames f;
	struct msg m;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	void *s = connect_dealer();
	router_core.replies = 1;
	for (int i = 0; i < 2000; i++) {
		client_heartbeat(s);
		client_receive(s, wire, &f, &m);
		frames_release(&f);
	}
	assert_int_equal(router_test_stats().rescues, 0);
	assert_int_equal(router_test_stats().received, 2000);
	close_dealer(s);
	wire_free(&wire);
}
