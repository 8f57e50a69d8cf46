/* router_fixture.c - see router_fixture.h. */
#include "tests/support/router_fixture.h"
#include "server/net/line_budget.h"

uv_loop_t router_loop;
struct router *router_under_test;
static void *router_context;
static void *router_clients[8]; /* the open sockets */
static struct param_buffers *router_params;
float router_weights[ROUTER_PARAMS];
struct router_core router_core;

static void count_message(void *arg, uint32_t peer, const struct msg *m, struct frames *frames)
{
	(void)frames;
	assert_ptr_equal(arg, &router_core);
	router_core.messages++;
	router_core.peer = peer;
	if (m->type == MSG_PULL) {
		struct msg reply = {.type = MSG_PARAMS};

		reply.params.request = m->pull.request;
		reply.params.version = router_core.version;
		reply.params.which = m->pull.which;
		reply.params.ack.seq = router_core.ack;
		reply.params.ack.verdict = router_core.ack ? VERDICT_OK : VERDICT_NONE;
		/* the router must not use these values, because the real core leaves arbitrary
		 * values here */
		reply.params.lane_hold = 77;
		reply.params.lane_ticket = reply.params.lane_buffer = 78;
		reply.params.slices.n = 1;
		reply.params.slices.slice[0] = (struct slice){
			.count = ROUTER_PARAMS, .encoding = ENCODING_F32, .data = router_weights};
		router_send(router_under_test, peer, &reply);
	}
	for (unsigned i = 0; m->type == MSG_HEARTBEAT && i < router_core.replies; i++) {
		const struct msg reply = {.type = MSG_HEARTBEAT, .heartbeat = {.last_seq = i + 1}};

		router_send(router_under_test, peer, &reply);
	}
}

static void count_gone(void *arg, uint32_t peer)
{
	assert_ptr_equal(arg, &router_core);
	router_core.gone++;
	router_core.gone_peer = peer;
}

struct auth *router_auth;
static struct line_budget router_lines;

struct router_config router_test_config(void)
{
	return (struct router_config){.loop = &router_loop,
		.bind = "tcp://127.0.0.1:0",
		.n_params = ROUTER_PARAMS,
		.push_window = 8,
		.max_workers = ROUTER_WORKERS,
		.lines = &router_lines,
		.silent_ms = ROUTER_SILENT_MS,
		.auth = router_auth,
		.params = router_params,
		.on_message = count_message,
		.on_gone = count_gone,
		.arg = &router_core};
}

void *open_dealer(void)
{
	void *s = zmq_socket(router_context, ZMQ_DEALER);
	const int off = 0;
	size_t i = 0;

	assert_non_null(s);
	zmq_setsockopt(s, ZMQ_LINGER, &off, sizeof(off));
	while (router_clients[i])
		i++;
	router_clients[i] = s;
	return s;
}

void *connect_dealer(void)
{
	void *s = open_dealer();

	assert_int_equal(zmq_connect(s, router_endpoint(router_under_test)), 0);
	return s;
}

void close_dealer(void *socket)
{
	for (size_t i = 0; i < sizeof(router_clients) / sizeof(router_clients[0]); i++)
		if (router_clients[i] == socket)
			router_clients[i] = NULL;
	zmq_close(socket);
}

int router_set_up(void **state)
{
	struct router_config cfg;
	struct err e;

	(void)state;
	log_set_level(LOG_ERROR);
	memset(&router_core, 0, sizeof(router_core));
	router_context = zmq_ctx_new();
	if (uv_loop_init(&router_loop) || param_buffers_new(&router_params, ROUTER_PARAMS, 0))
		return 1;
	cfg = router_test_config();
	return router_new(&router_under_test, &cfg, &e);
}

int router_tear_down(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(router_clients) / sizeof(router_clients[0]); i++)
		if (router_clients[i])
			close_dealer(router_clients[i]);
	router_stop(router_under_test);
	uv_run(&router_loop, UV_RUN_DEFAULT);
	router_free(&router_under_test);
	assert_null(router_under_test);
	param_buffers_free(&router_params);
	zmq_ctx_term(router_context);
	return uv_loop_close(&router_loop);
}

/* ---- clients ----------------------------------------------------------------------------- */

static void client_send(void *socket, const struct msg *m)
{
	struct frames f;

	assert_int_equal(wire_encode(m, &f), PS_OK);
	assert_int_equal(wire_send(socket, 0, &f), PS_OK);
}

void client_pull(void *socket, uint64_t request, enum weights which)
{
	const struct msg m = {.type = MSG_PULL, .pull = {.request = request, .which = which}};

	client_send(socket, &m);
}

void client_heartbeat(void *socket)
{
	const struct msg m = {.type = MSG_HEARTBEAT};

	client_send(socket, &m);
}

void client_status(void *socket)
{
	const struct msg m = {.type = MSG_STATUS};

	client_send(socket, &m);
}

void client_receive(void *socket, struct wire *wire, struct frames *f, struct msg *m)
{
	uint64_t end = clock_ms() + ROUTER_DEADLINE_MS;
	const char *why;
	int rc;

	while ((rc = wire_recv(socket, NULL, f)) == 0) {
		assert_true(clock_ms() < end);
		uv_run(&router_loop, UV_RUN_NOWAIT);
	}
	assert_int_equal(rc, 1);
	assert_int_equal(wire_decode(wire, f, m, &why), PS_OK);
}

struct router_stats router_test_stats(void)
{
	struct router_stats s;

	router_stats(router_under_test, &s);
	return s;
}
