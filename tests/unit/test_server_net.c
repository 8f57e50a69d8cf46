/*
 * test_server_net.c - the server's port over real sockets: proves the invariants numbered in
 * server/net.h.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <zmq.h>
#include "common/clock.h"
#include "common/log.h"
#include "proto/wire.h"
#include "scratch.h"
#include "server/net.h"

#define N           50000u /* floats of the model: large enough to fill a peer's queues */
#define DEADLINE_MS 20000

static uv_loop_t loop;
static struct router *router;
static void *context;
static void *clients[8]; /* open ones, closed by tear_down when a test failed */
static struct versions *shared;
static float weights[N];

/* What the core would be: counts, and answers PULL by PARAMS, BEAT by `replies` of BEAT. */
static struct {
	uint64_t messages, gone, version;
	unsigned replies;
	uint32_t peer;
} core;

static void on_message(void *arg, uint32_t peer, const struct msg *m, struct frames *frames)
{
	(void)frames;
	assert_ptr_equal(arg, &core);
	core.messages++;
	core.peer = peer;
	if (m->type == MSG_PULL) {
		struct msg reply = {.type = MSG_PARAMS};
		reply.params.request = m->pull.request;
		reply.params.version = core.version;
		reply.params.which = m->pull.which;
		reply.params.slices.n = 1;
		reply.params.slices.slice[0] =
			(struct slice){.count = N, .encoding = ENCODING_F32, .data = weights};
		router_send(router, peer, &reply);
	}
	for (unsigned i = 0; m->type == MSG_BEAT && i < core.replies; i++) {
		const struct msg reply = {.type = MSG_BEAT, .beat = {.last_seq = i + 1}};
		router_send(router, peer, &reply);
	}
}

static void on_gone(void *arg, uint32_t peer)
{
	assert_ptr_equal(arg, &core);
	assert_int_equal(peer, core.peer);
	core.gone++;
}

static struct router_config config(void)
{
	return (struct router_config){.loop = &loop,
		.bind = "tcp://127.0.0.1:0",
		.n_params = N,
		.push_window = 8,
		.max_workers = 4,
		.versions = shared,
		.on_message = on_message,
		.on_gone = on_gone,
		.arg = &core};
}

/* A client's socket that is not connected yet. */
static void *open_dealer(void)
{
	void *s = zmq_socket(context, ZMQ_DEALER);
	const int off = 0;
	size_t i = 0;

	assert_non_null(s);
	zmq_setsockopt(s, ZMQ_LINGER, &off, sizeof(off));
	while (clients[i])
		i++;
	clients[i] = s;
	return s;
}

static void *connect_dealer(void)
{
	void *s = open_dealer();

	assert_int_equal(zmq_connect(s, router_endpoint(router)), 0);
	return s;
}

static void hang_up(void *socket)
{
	for (size_t i = 0; i < sizeof(clients) / sizeof(clients[0]); i++)
		if (clients[i] == socket)
			clients[i] = NULL;
	zmq_close(socket);
}

static int set_up(void **state)
{
	struct router_config cfg;
	struct err e;

	(void)state;
	log_set_level(LOG_ERROR);
	memset(&core, 0, sizeof(core));
	context = zmq_ctx_new();
	if (uv_loop_init(&loop) || versions_new(&shared, N))
		return 1;
	cfg = config();
	return router_new(&router, &cfg, &e);
}

static int tear_down(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(clients) / sizeof(clients[0]); i++)
		if (clients[i])
			hang_up(clients[i]);
	router_stop(router);
	uv_run(&loop, UV_RUN_DEFAULT);
	router_free(&router);
	assert_null(router);
	versions_free(&shared);
	zmq_ctx_term(context);
	return uv_loop_close(&loop);
}

/* ---- clients ----------------------------------------------------------------------------- */

static void say(void *socket, const struct msg *m)
{
	struct frames f;

	assert_int_equal(wire_encode(m, &f), PS_OK);
	assert_int_equal(wire_send(socket, 0, &f), PS_OK);
}

static void pull(void *socket, uint64_t request, enum weights which)
{
	const struct msg m = {.type = MSG_PULL, .pull = {.request = request, .which = which}};

	say(socket, &m);
}

static void beat(void *socket)
{
	const struct msg m = {.type = MSG_BEAT};

	say(socket, &m);
}

/* Turn the server's loop until `socket` has a message; it is in *f, decoded in *m. */
static void hear(void *socket, struct wire *wire, struct frames *f, struct msg *m)
{
	uint64_t end = clock_ms() + DEADLINE_MS;
	const char *why;
	int rc;

	while ((rc = wire_recv(socket, NULL, f)) == 0) {
		assert_true(clock_ms() < end);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	assert_int_equal(rc, 1);
	assert_int_equal(wire_decode(wire, f, m, &why), PS_OK);
}

static struct router_stats stats(void)
{
	struct router_stats s;

	router_stats(router, &s);
	return s;
}

/* Turn the loop until `condition` holds. */
#define UNTIL(condition)                                                                           \
	for (uint64_t end = clock_ms() + DEADLINE_MS; !(condition);) {                             \
		assert_true(clock_ms() < end);                                                     \
		uv_run(&loop, UV_RUN_NOWAIT);                                                      \
	}

/* ---- in and out -------------------------------------------------------------------------- */

static void the_endpoint_names_the_real_port(void **state)
{
	unsigned port = 0;
	const char *colon = strrchr(router_endpoint(router), ':');

	(void)state;
	assert_non_null(colon);
	port = (unsigned)strtoul(colon + 1, NULL, 10);
	assert_true(port > 0 && port < 65536);
	assert_int_equal(strncmp(router_endpoint(router), "tcp://127.0.0.1:", 16), 0);
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
	UNTIL(stats().connections == 1)
	hang_up(s);
	UNTIL(stats().connections == 0)
	for (uint64_t end = clock_ms() + DEADLINE_MS; core.gone == 0;) {
		assert_true(clock_ms() < end);
		router_send(router, core.peer, &m);
		router_flush(router);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	assert_int_equal(stats().gone, 1);
	assert_int_equal(stats().waiting, 0);
}

static void dial_with(int fd)
{
	const char *colon = strrchr(router_endpoint(router), ':');
	struct sockaddr_in at = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10)),
		.sin_addr = {htonl(INADDR_LOOPBACK)}};

	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
}

static int dial(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	dial_with(fd);
	return fd;
}

static void a_stranger_is_hung_up_on(void **state)
{
	int fd = dial();
	char byte;

	(void)state;
	assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	const uint64_t begin = clock_ms();
	UNTIL(stats().connections == 1)
	UNTIL(stats().connections == 0)
	assert_true(clock_ms() - begin < 5000);
	UNTIL(recv(fd, &byte, 1, 0) == 0) /* its greeting came before that */
	assert_int_equal(stats().handshakes_failed, 1);
	close(fd);
}

/* More events than libzmq's queues hold come while the loop does not turn. */
static void a_flood_of_strangers_stops_nothing(void **state)
{
	struct wire *wire;
	struct frames f;
	struct msg m;

	(void)state;
	assert_int_equal(wire_new(&wire, N), PS_OK);
	core.replies = 1;
	void *s = connect_dealer();
	beat(s);
	hear(s, wire, &f, &m);
	frames_release(&f);
	for (int i = 0; i < 2500; i++) {
		const struct timeval patience = {.tv_sec = 5};
		char greeting;
		int fd = dial();
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		assert_int_equal(recv(fd, &greeting, 1, 0), 1);
		close(fd);
	}
	beat(s);
	hear(s, wire, &f, &m);
	frames_release(&f);
	UNTIL(stats().accepted == 2501)
	UNTIL(stats().connections == 1)
	hang_up(s);
	wire_free(&wire);
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

/* (3) */
static void out_of_descriptors_newcomers_wait_and_nobody_else_notices(void **state)
{
	struct rlimit before, limit;
	struct wire *wire;
	struct frames f;
	struct msg m;

	(void)state;
	assert_int_equal(wire_new(&wire, N), PS_OK);
	core.replies = 1;
	void *s = connect_dealer(), *late = connect_dealer();
	beat(s);
	hear(s, wire, &f, &m);
	frames_release(&f);
	UNTIL(stats().connections == 2)
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	limit.rlim_cur = (rlim_t)next_fd(); /* none left for accept */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	dial_with(fd);
	UNTIL(stats().accept_failures > 0)
	const double cpu = cpu_seconds();
	const uint64_t begin = clock_ms();
	while (clock_ms() - begin < 1500)
		uv_run(&loop, UV_RUN_ONCE);
	const double share = (cpu_seconds() - cpu) / 1.5;
	printf("# out of descriptors: %.1f %% of a CPU\n", 100 * share);
	assert_true(share < 0.1);
	const uint64_t accepted = stats().accepted;
	beat(s); /* on its old connection */
	hear(s, wire, &f, &m);
	frames_release(&f);
	assert_int_equal(stats().accepted, accepted);
	assert_true(stats().connections >= 2);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	close(fd);
	beat(late);
	hear(late, wire, &f, &m);
	frames_release(&f);
	void *fresh = connect_dealer();
	beat(fresh);
	hear(fresh, wire, &f, &m);
	frames_release(&f);
	hang_up(s);
	hang_up(late);
	hang_up(fresh);
	wire_free(&wire);
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
			what_is_no_message_is_answered_and_counted, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_chosen_routing_id_gets_no_answer, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			pulls_of_a_version_share_a_frame, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_peer_that_does_not_read_loses_replies_and_is_told, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_burst_of_small_replies_reaches_a_peer_that_reads, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_peer_that_left_is_reported, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_stranger_is_hung_up_on, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_flood_of_strangers_stops_nothing, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			out_of_descriptors_newcomers_wait_and_nobody_else_notices, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(no_wake_up_was_missed, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
