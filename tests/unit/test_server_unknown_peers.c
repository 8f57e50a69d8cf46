/*
 * test_server_unknown_peers.c - connections to the server's port that do not use its protocol, and
 * more connections than the process has file descriptors.
 * Covers attacks A3, A4 and A5 of docs/faults.md.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "common/endpoint.h"
#include "tests/support/router_fixture.h"
#include "tests/support/test.h"

static void connect_to_router(int fd)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct endpoint e;

	assert_int_equal(endpoint_parse(router_endpoint(router_under_test), &e), PS_OK);
	at.sin_port = htons((uint16_t)e.number);
	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
}

static int dial_router(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	connect_to_router(fd);
	return fd;
}

/* Send a HEARTBEAT over the socket `s`. The server must answer the HEARTBEAT. */
static void expect_answer(void *s, struct wire *wire)
{
	struct frames f;
	struct msg m;

	client_heartbeat(s);
	client_receive(s, wire, &f, &m);
	frames_release(&f);
}

TEST_IN(a_peer_that_sends_no_handshake_is_disconnected, router_set_up, router_tear_down)
{
	int fd = dial_router();
	char byte;

	assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	const uint64_t begin = clock_ms();
	UNTIL(router_test_stats().port.connections == 1)
	UNTIL(router_test_stats().port.connections == 0)
	assert_true(clock_ms() - begin < 5000);
	/* the server sends its greeting and then closes the connection */
	UNTIL(recv(fd, &byte, 1, 0) == 0)
	assert_int_equal(router_test_stats().port.handshakes_failed, 1);
	close(fd);
}

/* While the event loop does not run, unknown peers cause more events than libzmq's queues can hold.
 * The server must still answer when the event loop runs again. */
TEST_IN(a_flood_of_such_peers_stops_nothing, router_set_up, router_tear_down)
{
	struct wire *wire;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	router_core.replies = 1;
	void *s = connect_dealer();
	expect_answer(s, wire);
	for (int i = 0; i < 2500; i++) {
		const struct timeval patience = {.tv_sec = 5};
		char greeting;
		int fd = dial_router();

		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		assert_int_equal(recv(fd, &greeting, 1, 0), 1);
		close(fd);
	}
	expect_answer(s, wire);
	UNTIL(router_test_stats().port.accepted == 2501)
	UNTIL(router_test_stats().port.connections == 1)
	close_dealer(s);
	wire_free(&wire);
}

/* ---- silence --------------------------------------------------------------------------------- */

#define SILENT_MS 500

static int set_up_with_limit(void **state)
{
	router_silent_ms = SILENT_MS;
	int rc = router_set_up(state);

	router_silent_ms = 0;
	return rc;
}

/* Attack A4 of docs/faults.md: a peer completes the handshake and then sends nothing. */
TEST_IN(a_connection_without_a_message_is_closed, set_up_with_limit, router_tear_down)
{
	struct wire *wire;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	router_core.replies = 1;
	void *honest = connect_dealer(), *silent = open_dealer();
	const int never = -1;
	zmq_setsockopt(silent, ZMQ_RECONNECT_IVL, &never, sizeof(never));
	assert_int_equal(zmq_connect(silent, router_endpoint(router_under_test)), 0);
	expect_answer(honest, wire);
	UNTIL(router_test_stats().port.connections == 2)
	const uint64_t begin = clock_ms();
	UNTIL(router_test_stats().port.silent > 0)
	UNTIL(router_test_stats().port.connections == 1)
	assert_true(clock_ms() - begin >= SILENT_MS - 50);
	/* the honest connection is silent for the same time, but it has sent a message before */
	while (clock_ms() - begin < 4 * SILENT_MS)
		uv_run(&router_loop, UV_RUN_NOWAIT);
	assert_int_equal(router_test_stats().port.accepted, 2);
	assert_int_equal(router_test_stats().port.silent, 1);
	expect_answer(honest, wire);
	wire_free(&wire);
}

/* ---- floods ---------------------------------------------------------------------------------- */

/* Opens a connection that libzmq does not open again. */
static void *connect_once(void)
{
	const int never = -1;
	void *s = open_dealer();

	zmq_setsockopt(s, ZMQ_RECONNECT_IVL, &never, sizeof(never));
	return s;
}

/* Sends messages that the server cannot decode until it has received `n` of them. */
static void send_junk(void *s, uint64_t n)
{
	const uint64_t wanted = router_test_stats().malformed + n;

	for (uint64_t i = 0; i < n; i++)
		assert_int_equal(zmq_send(s, "x", 1, 0), 1);
	UNTIL(router_test_stats().malformed >= wanted)
}

/* Covers attack A5 of docs/faults.md. A correct peer can have many messages refused at once, for
 * example after a restart of the server. */
TEST_IN(a_flood_of_refused_messages_ends_its_connection, router_set_up, router_tear_down)
{
	const uint64_t burst = FLOOD_BURST + 2 * router_test_config().push_window;
	struct wire *wire;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	router_core.replies = 1;
	void *honest = connect_dealer(), *flood = connect_once();
	assert_int_equal(zmq_connect(flood, router_endpoint(router_under_test)), 0);
	expect_answer(honest, wire);
	UNTIL(router_test_stats().port.connections == 2)
	send_junk(flood, burst);
	assert_int_equal(router_test_stats().port.floods, 0);
	/* the refusals of one second are forgotten in each second */
	while (router_test_stats().port.floods == 0) {
		assert_true(router_test_stats().malformed < 10 * burst);
		(void)zmq_send(flood, "x", 1, ZMQ_DONTWAIT);
		uv_run(&router_loop, UV_RUN_NOWAIT);
	}
	UNTIL(router_test_stats().port.connections == 1)
	assert_int_equal(router_test_stats().port.floods, 1);
	expect_answer(honest, wire);
	wire_free(&wire);
}

/* The server cannot answer these messages, because it refuses the routing id of the sender. */
TEST_IN(a_flood_with_a_chosen_routing_id_ends, router_set_up, router_tear_down)
{
	void *flood = connect_once();

	zmq_setsockopt(flood, ZMQ_ROUTING_ID, "admin", 5);
	assert_int_equal(zmq_connect(flood, router_endpoint(router_under_test)), 0);
	UNTIL(router_test_stats().port.connections == 1)
	const uint64_t late = clock_ms() + ROUTER_DEADLINE_MS;
	while (router_test_stats().port.floods == 0) {
		assert_true(clock_ms() < late);
		(void)zmq_send(flood, "x", 1, ZMQ_DONTWAIT);
		uv_run(&router_loop, UV_RUN_NOWAIT);
	}
	UNTIL(router_test_stats().port.connections == 0)
}

/* ---- descriptors ------------------------------------------------------------------------- */

static double cpu_seconds(void)
{
	struct rusage u;

	assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int next_fd(void)
{
	int fd = dup(STDERR_FILENO);

	assert_true(fd >= 0);
	close(fd);
	return fd;
}

/* Promise 2 of net.h: without free file descriptors, new connections wait, and open connections
 * continue to work. */
TEST_IN(without_descriptors_new_connections_wait_and_others_go_on, router_set_up, router_tear_down)
{
	struct rlimit before, limit;
	struct wire *wire;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	router_core.replies = 1;
	void *s = connect_dealer(), *late = connect_dealer();
	expect_answer(s, wire);
	UNTIL(router_test_stats().port.connections == 2)
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	limit.rlim_cur = (rlim_t)next_fd(); /* no descriptor is left for new connections */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	connect_to_router(fd);
	UNTIL(router_test_stats().port.accept_failures > 0)
	const double cpu = cpu_seconds();
	const uint64_t begin = clock_ms();
	while (clock_ms() - begin < 1500)
		uv_run(&router_loop, UV_RUN_ONCE);
	const double share = (cpu_seconds() - cpu) / 1.5;
	printf("# out of descriptors: %.1f %% of a CPU\n", 100 * share);
	assert_true(share < 0.1);
	const uint64_t accepted = router_test_stats().port.accepted;
	expect_answer(s, wire); /* an open connection still works */
	assert_int_equal(router_test_stats().port.accepted, accepted);
	assert_true(router_test_stats().port.connections >= 2);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	close(fd);
	expect_answer(late, wire);
	void *fresh = connect_dealer();
	expect_answer(fresh, wire);
	close_dealer(s);
	close_dealer(late);
	close_dealer(fresh);
	wire_free(&wire);
}
