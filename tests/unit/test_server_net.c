/*
 * test_server_net.c - the server's port over real sockets: proves the invariants numbered in
 * server/net/net.h.
 */
#include "tests/unit/router_lab.h"
#include "common/endpoint.h"

/* ---- in and out -------------------------------------------------------------------------- */

static void the_endpoint_names_the_real_port(void **state)
{
	struct endpoint e;

	(void)state;
	assert_int_equal(endpoint_parse(router_endpoint(router), &e), PS_OK);
	assert_string_equal(e.host, "127.0.0.1");
	assert_true(e.number > 0);
}

static void an_address_in_use_is_refused(void **state)
{
	struct router_config cfg = config();
	struct router *second;
	struct err e;

	(void)state;
	cfg.bind = router_endpoint(router);
	assert_int_equal(router_new(&second, &cfg, &e), PS_EUSAGE);
	assert_null(second);
	assert_non_null(strstr(e.text, cfg.bind));
	cfg.bind = "tcp://192.0.2.1:0"; /* not an address of this machine */
	assert_int_equal(router_new(&second, &cfg, &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, "192.0.2.1"));
}

static void what_is_no_message_is_answered_and_counted(void **state)
{
	static const char *const junk[] = {"", "x", "\xff\xff\xff", "GET / HTTP/1.1"};
	struct wire *wire;
	struct frames f;
	struct msg m;

	(void)state;
	assert_int_equal(wire_new(&wire, N), PS_OK);
	void *s = connect_dealer();
	for (size_t i = 0; i < 4; i++) {
		assert_true(zmq_send(s, junk[i], strlen(junk[i]), 0) >= 0);
		hear(s, wire, &f, &m);
		assert_int_equal(m.type, MSG_ERROR);
		assert_int_equal(m.error.status, PS_EPROTO);
		assert_true(m.error.text[0] != '\0');
		frames_release(&f);
		assert_int_equal(stats().malformed, i + 1);
	}
	assert_int_equal(core.messages, 0);
	hang_up(s);
	wire_free(&wire);
}

static void a_chosen_routing_id_gets_no_answer(void **state)
{
	void *s = open_dealer();

	(void)state;
	zmq_setsockopt(s, ZMQ_ROUTING_ID, "admin", 5);
	zmq_connect(s, router_endpoint(router));
	beat(s);
	UNTIL(stats().malformed == 1)
	assert_int_equal(core.messages, 0);
	assert_int_equal(stats().waiting, 0);
	hang_up(s);
}

/* ---- who is silent ----------------------------------------------------------------------- */

static void all_are_heard_without_a_turn_of_the_loop(void **state)
{
	enum { EACH = 8 };
	uint64_t late = clock_ms() + DEADLINE_MS;
	void *s[2] = {connect_dealer(), connect_dealer()};

	(void)state;
	for (int i = 0; i < EACH; i++) {
		beat(s[0]);
		beat(s[1]);
	}
	while (core.messages < 2 * EACH) { /* libzmq's own thread brings them */
		assert_true(clock_ms() < late);
		router_receive_pending(router);
	}
	UNTIL(stats().port.connections == 2)
	assert_int_equal(stats().rescues, 0);
	hang_up(s[0]);
	hang_up(s[1]);
}

static void pulls_of_a_version_share_a_frame(void **state)
{
	struct wire *wire;
	struct frames f;
	struct msg m;
	void *s[3];

	(void)state;
	assert_int_equal(wire_new(&wire, N), PS_OK);
	for (size_t i = 0; i < 3; i++)
		s[i] = connect_dealer();
	for (core.version = 1; core.version <= 4; core.version++) {
		weights[0] = (float)core.version;
		for (size_t i = 0; i < 3; i++)
			pull(s[i], 100 + i, WEIGHTS_CURRENT);
		for (size_t i = 0; i < 3; i++) {
			hear(s[i], wire, &f, &m);
			assert_int_equal(m.type, MSG_PARAMS);
			assert_int_equal(m.params.request, 100 + i);
			assert_int_equal(m.params.version, core.version);
			assert_true(m.params.slices.slice[0].data[0] == (float)core.version);
			frames_release(&f);
		}
		assert_int_equal(stats().params_framed, core.version);
	}
	/* weights under evaluation are another set, even of the same version */
	weights[0] = 77;
	core.version--;
	pull(s[0], 1, WEIGHTS_EVAL);
	hear(s[0], wire, &f, &m);
	assert_true(m.params.slices.slice[0].data[0] == 77);
	frames_release(&f);
	assert_int_equal(stats().params_framed, 5);
	for (size_t i = 0; i < 3; i++)
		hang_up(s[i]);
	wire_free(&wire);
}

/* (2) */
static void an_ack_goes_along_with_the_weights_of_its_push(void **state)
{
	struct wire *wire;
	struct frames f;
	struct msg m;

	(void)state;
	assert_int_equal(wire_new(&wire, N), PS_OK);
	void *s = connect_dealer();
	for (core.ack = 0; core.ack <= 7; core.ack += 7) {
		pull(s, 1, WEIGHTS_CURRENT);
		hear(s, wire, &f, &m);
		assert_int_equal(m.type, MSG_PARAMS);
		assert_int_equal(m.params.ack.seq, core.ack);
		frames_release(&f);
	}
	assert_int_equal(stats().sent, 2);
	hang_up(s);
	wire_free(&wire);
}

/* (1) (2): what it is owed is bounded, its loss is told, and the others never wait */
static void a_peer_that_does_not_read_loses_replies_and_is_told(void **state)
{
	const int one = 1;
	struct wire *wire;
	struct frames f;
	struct msg m;
	uint64_t params = 0;

	(void)state;
	assert_int_equal(wire_new(&wire, N), PS_OK);
	void *deaf = open_dealer(), *honest = connect_dealer();
	zmq_setsockopt(deaf, ZMQ_RCVHWM, &one, sizeof(one));
	zmq_connect(deaf, router_endpoint(router));
	beat(deaf);
	UNTIL(core.messages == 1)
	const uint32_t deaf_peer = core.peer;
	for (uint64_t sent = 0; stats().dropped == 0; sent++) {
		assert_true(sent < 2000);
		core.version++;
		pull(deaf, sent, WEIGHTS_CURRENT);
		UNTIL(core.messages == sent + 2)
	}
	assert_int_equal(stats().waiting, 1);
	const uint64_t dropped = stats().dropped;
	core.replies = 1;
	beat(honest);
	hear(honest, wire, &f, &m);
	assert_int_equal(m.type, MSG_BEAT);
	frames_release(&f);
	assert_int_not_equal(core.peer, deaf_peer);
	for (;; params++) { /* now it reads: what was on its way, then the ERROR */
		hear(deaf, wire, &f, &m);
		if (m.type != MSG_PARAMS)
			break;
		assert_int_equal(m.params.request, params);
		frames_release(&f);
	}
	assert_int_equal(m.type, MSG_ERROR);
	assert_int_equal(m.error.status, PS_ESTATE);
	frames_release(&f);
	beat(deaf);
	hear(deaf, wire, &f, &m);
	assert_int_equal(m.type, MSG_BEAT);
	frames_release(&f);
	assert_int_equal(stats().dropped, dropped);
	hang_up(deaf);
	hang_up(honest);
	wire_free(&wire);
}

static void a_burst_of_small_replies_reaches_a_peer_that_reads(void **state)
{
	struct wire *wire;
	struct frames f;
	struct msg m;

	(void)state;
	assert_int_equal(wire_new(&wire, N), PS_OK);
	void *s = connect_dealer();
	core.replies = 200;
	beat(s);
	for (uint64_t i = 1; i <= 200; i++) {
		hear(s, wire, &f, &m);
		assert_int_equal(m.type, MSG_BEAT);
		assert_int_equal(m.beat.last_seq, i);
		frames_release(&f);
	}
	assert_int_equal(stats().dropped, 0);
	hang_up(s);
	wire_free(&wire);
}

static void a_peer_that_left_is_reported(void **state)
{
	const struct msg m = {.type = MSG_BEAT};

	(void)state;
	void *s = connect_dealer();
	beat(s);
	UNTIL(core.messages == 1)
	UNTIL(stats().port.connections == 1)
	hang_up(s);
	UNTIL(stats().port.connections == 0)
	for (uint64_t end = clock_ms() + DEADLINE_MS; core.gone == 0;) {
		assert_true(clock_ms() < end);
		router_send(router, core.peer, &m);
		router_flush(router);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	assert_int_equal(stats().gone, 1);
	assert_int_equal(stats().waiting, 0);
}

static void no_wake_up_was_missed(void **state)
{
	struct wire *wire;
	struct frames f;
	struct msg m;

	(void)state;
	assert_int_equal(wire_new(&wire, N), PS_OK);
	void *s = connect_dealer();
	core.replies = 1;
	for (int i = 0; i < 2000; i++) {
		beat(s);
		hear(s, wire, &f, &m);
		frames_release(&f);
	}
	assert_int_equal(stats().rescues, 0);
	assert_int_equal(stats().received, 2000);
	hang_up(s);
	wire_free(&wire);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			the_endpoint_names_the_real_port, set_up, tear_down),
		cmocka_unit_test_setup_teardown(an_address_in_use_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			all_are_heard_without_a_turn_of_the_loop, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			what_is_no_message_is_answered_and_counted, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_chosen_routing_id_gets_no_answer, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			pulls_of_a_version_share_a_frame, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			an_ack_goes_along_with_the_weights_of_its_push, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_peer_that_does_not_read_loses_replies_and_is_told, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_burst_of_small_replies_reaches_a_peer_that_reads, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_peer_that_left_is_reported, set_up, tear_down),
		cmocka_unit_test_setup_teardown(no_wake_up_was_missed, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
