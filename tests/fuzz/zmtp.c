/*
 * zmtp.c - fuzzes the server's port: a TCP connection sends the bytes of the input to a ROUTER
 * socket. If byte 0 is even, the connection sends only these bytes. If byte 0 is odd, the
 * connection first sends the greeting and READY of a DEALER, so that the ROUTER takes the bytes for
 * frames.
 *
 * After every 64th input, the target checks that the ROUTER answers an honest client.
 */
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>
#include <zmq.h>
#include "common/endpoint.h"
#include "proto/wire.h"
#include "server/net/net.h"
#include "server/net/param_buffers.h"
#include "tests/support/fuzz_input.h"
#include "tests/support/zmtp.h"

#define PARAMS 64u

static uv_loop_t loop;
static struct router *router;
static unsigned port;
static struct param_buffers *params;
static unsigned long n_heartbeats;

static void on_router_message(void *arg, uint32_t peer, const struct msg *m, struct frames *frames)
{
	const struct msg reply = {.type = MSG_HEARTBEAT};

	(void)arg;
	(void)frames;
	n_heartbeats += m->type == MSG_HEARTBEAT;
	router_send(router, peer, &reply);
}

static void on_gone(void *arg, uint32_t peer)
{
	(void)arg;
	(void)peer;
}

static void open_fuzzed_router(void)
{
	struct err e = {0};
	struct endpoint at;
	struct router_config cfg = {.loop = &loop,
		.bind = "tcp://127.0.0.1:0",
		.n_params = PARAMS,
		.push_window = 8,
		.max_workers = 4,
		.on_message = on_router_message,
		.on_gone = on_gone};

	PS_ASSERT(uv_loop_init(&loop) == 0);
	PS_ASSERT(param_buffers_new(&params, PARAMS, 0) == 0);
	cfg.params = params;
	PS_ASSERT(router_new(&router, &cfg, &e) == 0);
	PS_ASSERT(endpoint_parse(router_endpoint(router), &at) == 0);
	port = at.number;
}

static void run_loop(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		uv_run(&loop, UV_RUN_NOWAIT);
		router_flush(router);
		usleep(100);
	}
}

static void check_alive(void)
{
	unsigned long before = n_heartbeats;
	void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
	const struct msg m = {.type = MSG_HEARTBEAT,
		.heartbeat.stamp = {.run = {1, 1}, .term = 1, .worker = 1, .incarnation = 1}};
	struct frames f;
	int linger = 0;

	PS_ASSERT(zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger)) == 0);
	PS_ASSERT(zmq_connect(socket, router_endpoint(router)) == 0);
	PS_ASSERT(wire_encode(&m, &f) == 0);
	PS_ASSERT(wire_send(socket, 0, &f) == 0);
	for (int i = 0; i < 20000 && n_heartbeats == before; i++)
		run_loop(1);
	PS_ASSERT(n_heartbeats > before);
	zmq_close(socket);
	zmq_ctx_term(context);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static unsigned n;
	struct input in = {data, size};

	if (!router)
		open_fuzzed_router();
	uint8_t how = input_u8(&in);
	int fd = input_connect(port, NULL, 0);
	if (how & 1)
		zmtp_greet(fd);
	if (in.left)
		(void)!send(fd, in.at, in.left, MSG_NOSIGNAL);
	run_loop(4);
	input_close(fd);
	if (++n % 64 == 0)
		check_alive();
	return 0;
}
