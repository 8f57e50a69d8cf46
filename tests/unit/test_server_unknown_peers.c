/*
 * test_server_unknown_peers.c - connections to the server's port that do not use its protocol, and
 * more connections than the process has file descriptors.
 * Covers attacks A3, A4, A5 and A7 of docs/faults.md.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "common/authorized_keys.h"
#include "common/endpoint.h"
#include "common/keys.h"
#include "tests/support/core_fixture.h"
#include "tests/support/router_fixture.h"
#include "tests/support/zmtp.h"
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

/* Open a connection whose handshake is complete, so that the test can send any bytes. */
static int dial_by_hand(void)
{
	char begin[66]; /* the server's greeting, and the beginning of its READY */
	int fd = dial_router();

	zmtp_greet(fd);
	assert_int_equal(recv(fd, begin, sizeof(begin), MSG_WAITALL), sizeof(begin));
	return fd;
}

/* Send bytes, and wait until the kernel has acknowledged them. */
static void send_bytes(int fd, const void *bytes, size_t n)
{
	int left = 1;

	assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
	UNTIL(ioctl(fd, SIOCOUTQ, &left) == 0 && left == 0)
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
	/* read the server's greeting, until the server closes the connection */
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

/* a core that has the sessions of the workers; it gets no messages over the network */
static struct core_fixture sessions;
static uint64_t now_ms;

static int set_up_with_sessions(void **state)
{
	struct core_config cfg = fixture_config();

	cfg.sessions.max_workers = ROUTER_WORKERS;
	fixture_open(&sessions, cfg);
	int rc = router_set_up(state);
	now_ms = 1;
	router_check_sessions(router_under_test, sessions.core, now_ms);
	return rc;
}

static int tear_down_with_sessions(void **state)
{
	int rc = router_tear_down(state);

	fixture_close(&sessions);
	return rc;
}

/* Let ROUTER_SILENT_MS pass, so that the server looks for silent connections. */
static void let_time_pass(void)
{
	now_ms += ROUTER_SILENT_MS;
	router_check_sessions(router_under_test, sessions.core, now_ms);
}

/* Let so much time pass that the server closes silent connections. Meanwhile, `talker` sends
 * messages. */
static void let_silent_connections_end(void *talker, struct wire *wire)
{
	for (int i = 0; i < 2; i++) {
		expect_answer(talker, wire);
		let_time_pass();
	}
}

/* Open a socket for which libzmq opens no new connection when the first one is closed. */
static void *open_once(void)
{
	const int never = -1;
	void *s = open_dealer();

	zmq_setsockopt(s, ZMQ_RECONNECT_IVL, &never, sizeof(never));
	return s;
}

static void *connect_once(void)
{
	void *s = open_once();

	assert_int_equal(zmq_connect(s, router_endpoint(router_under_test)), 0);
	return s;
}

/* Attack A4 of docs/faults.md: a peer completes the handshake and then sends nothing, or a message
 * that never ends. The server must close the connection. */
TEST_IN(a_connection_without_a_message_is_closed, set_up_with_sessions, tear_down_with_sessions)
{
	/* the header of a frame of 100 bytes, which do not follow */
	static const char begin[] = {0, 100};
	struct wire *wire;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	router_core.replies = 1;
	void *honest = connect_dealer();
	(void)connect_once();
	int slow = dial_by_hand();
	send_bytes(slow, begin, sizeof(begin));
	UNTIL(router_test_stats().port.connections == 3)
	expect_answer(honest, wire);
	let_time_pass();
	assert_int_equal(router_test_stats().port.silent, 0);
	send_bytes(slow, "x", 1);
	expect_answer(honest, wire);
	let_time_pass();
	assert_int_equal(router_test_stats().port.silent, 2);
	UNTIL(router_test_stats().port.connections == 1)
	expect_answer(honest, wire);
	assert_int_equal(router_test_stats().port.accepted, 3);
	close(slow);
	wire_free(&wire);
}

/* Attack A4 of docs/faults.md: a peer sends a message and then nothing. */
TEST_IN(a_connection_that_falls_silent_is_closed, set_up_with_sessions, tear_down_with_sessions)
{
	struct wire *wire;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	router_core.replies = 1;
	void *honest = connect_dealer(), *silent = connect_once();
	let_time_pass();
	expect_answer(silent, wire);
	expect_answer(honest, wire);
	let_time_pass();
	assert_int_equal(router_test_stats().port.silent, 0);
	expect_answer(honest, wire);
	let_time_pass();
	assert_int_equal(router_test_stats().port.silent, 1);
	UNTIL(router_test_stats().port.connections == 1)
	expect_answer(honest, wire);
	assert_int_equal(router_test_stats().port.accepted, 2);
	wire_free(&wire);
}

/* A worker that computes for a long time sends only heartbeats, on another connection. Its silent
 * bulk connection must stay open for as long as its session lives. */
TEST_IN(a_silent_connection_of_a_session_stays_as_long_as_the_session, set_up_with_sessions,
	tear_down_with_sessions)
{
	struct wire *wire;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	router_core.replies = 1;
	void *honest = connect_dealer(), *bulk = connect_once();
	expect_answer(bulk, wire);
	(void)fixture_join(&sessions, router_core.peer, "");
	for (int i = 0; i < 3; i++)
		let_silent_connections_end(honest, wire);
	assert_int_equal(router_test_stats().port.silent, 0);
	fixture_tick(&sessions, sessions.cfg.sessions.suspect_ms);
	fixture_tick(&sessions, sessions.cfg.sessions.dead_ms);
	let_silent_connections_end(honest, wire);
	assert_int_equal(router_test_stats().port.silent, 1);
	UNTIL(router_test_stats().port.connections == 1)
	wire_free(&wire);
}

/* A large message on a slow link may take longer than ROUTER_SILENT_MS, but its connection is not
 * silent. */
TEST_IN(a_connection_on_which_bytes_arrive_is_not_silent, set_up_with_sessions,
	tear_down_with_sessions)
{
	static const char message[] = {0, 1, 'x'}, begin[] = {0, 100};
	int slow = dial_by_hand();

	send_bytes(slow, message, sizeof(message));
	UNTIL(router_test_stats().malformed == 1)
	send_bytes(slow, begin, sizeof(begin));
	for (int i = 0; i < 5; i++) {
		let_time_pass();
		send_bytes(slow, "x", 1);
	}
	let_time_pass();
	assert_int_equal(router_test_stats().port.silent, 0);
	let_time_pass();
	assert_int_equal(router_test_stats().port.silent, 1);
	UNTIL(router_test_stats().port.connections == 0)
	close(slow);
}

/* ---- revoked keys ---------------------------------------------------------------------------- */

static char keys[64];
static struct key_pair own, other, server_key;

static void list_keys(const char *first, const char *second)
{
	char text[256];

	snprintf(text, sizeof(text), "worker %s\n%s%s\n", first, second ? "worker " : "",
		second ? second : "");
	temp_dir_write(keys, "authorized_keys", text, strlen(text));
}

static int set_up_with_keys(void **state)
{
	struct auth_config cfg = {.loop = &router_loop, .max_workers = ROUTER_WORKERS};
	char path[320];
	struct err e;
	int made;

	temp_dir_make(keys);
	assert_int_equal(key_random(&own, &e), PS_OK);
	assert_int_equal(key_random(&other, &e), PS_OK);
	assert_int_equal(key_make_files(keys, "server", server_key.public_key, &made, &e), PS_OK);
	list_keys(own.public_key, other.public_key);
	cfg.key_file = temp_dir_path(keys, "server.key", path);
	assert_int_equal(auth_new(&router_auth, &cfg, &e), PS_OK);
	return set_up_with_sessions(state);
}

static int tear_down_with_keys(void **state)
{
	int rc = tear_down_with_sessions(state);

	auth_free(&router_auth);
	temp_dir_remove(keys);
	return rc;
}

static void *connect_with_key(const struct key_pair *k)
{
	void *s = open_dealer();

	zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, server_key.public_key, KEY_TEXT);
	zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, k->public_key, KEY_TEXT);
	zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, k->secret_key, KEY_TEXT);
	assert_int_equal(zmq_connect(s, router_endpoint(router_under_test)), 0);
	return s;
}

/* Covers attack A7 of docs/faults.md. The server must close the connection of a revoked key even if
 * no further message arrives: with a message that never ends, this connection would never count as
 * silent. */
TEST_IN(a_revoked_key_loses_its_connection_without_another_message, set_up_with_keys,
	tear_down_with_keys)
{
	void *good = connect_with_key(&own), *revoked = connect_with_key(&other);

	client_status(good);
	client_status(revoked);
	UNTIL(router_core.messages == 2)
	list_keys(own.public_key, NULL);
	auth_reload(router_auth);
	UNTIL(!auth_busy(router_auth))
	assert_int_equal(router_test_stats().port.connections, 2);
	let_time_pass();
	UNTIL(router_test_stats().port.connections == 1)
	client_status(good);
	UNTIL(router_core.messages == 3)
}

/* ---- floods ---------------------------------------------------------------------------------- */

/* Sends messages that the server cannot decode until it has received `n` of them. */
static void send_junk(void *s, uint64_t n)
{
	const uint64_t wanted = router_test_stats().malformed + n;

	for (uint64_t i = 0; i < n; i++)
		assert_int_equal(zmq_send(s, "x", 1, 0), 1);
	UNTIL(router_test_stats().malformed >= wanted)
}

/* Covers attack A5 of docs/faults.md. A correct peer can have many messages refused at once, for
 * example after a restart of the server. Therefore the server closes a connection only after more
 * refusals than such a peer causes. */
TEST_IN(a_flood_of_refused_messages_ends_its_connection, router_set_up, router_tear_down)
{
	const uint64_t burst = FLOOD_BURST + 2 * router_test_config().push_window;
	struct wire *wire;

	assert_int_equal(wire_new(&wire, ROUTER_PARAMS), PS_OK);
	router_core.replies = 1;
	void *honest = connect_dealer(), *flood = connect_once();
	expect_answer(honest, wire);
	UNTIL(router_test_stats().port.connections == 2)
	send_junk(flood, burst);
	assert_int_equal(router_test_stats().port.floods, 0);
	/* in each second the server forgets some refusals, so send until there are too many */
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
	void *flood = open_once();

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
	/* so low that no descriptor is left for new connections */
	limit.rlim_cur = (rlim_t)next_fd();
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
