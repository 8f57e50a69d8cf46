/*
 * router_lab.h - a router with a core of a few lines behind it, and clients of bare sockets.
 *
 * A header with bodies, for one test program is one file. Thread: the test's.
 */
#ifndef TESTS_UNIT_ROUTER_LAB_H
#define TESTS_UNIT_ROUTER_LAB_H
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"
#include <zmq.h>
#include "common/clock.h"
#include "common/log.h"
#include "proto/wire.h"
#include "server/net/net.h"

#define N           50000u /* floats of the model: large enough to fill a peer's queues */
#define DEADLINE_MS 20000

static uv_loop_t loop;
static struct router *router;
static void *context;
static void *clients[8]; /* open ones, closed by tear_down when a test failed */
static struct param_buffers *shared;
static float weights[N];

/* What the core would be: counts, and answers PULL by PARAMS with an ACK of `ack`, if there is one,
 * and BEAT by `replies` of BEAT. */
static struct {
	uint64_t messages, gone, version, ack;
	unsigned replies;
	uint32_t peer;
} core;

static inline void on_message(void *arg, uint32_t peer, const struct msg *m, struct frames *frames)
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
		reply.params.ack.seq = core.ack;
		reply.params.ack.verdict = core.ack ? VERDICT_OK : VERDICT_NONE;
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

static inline void on_gone(void *arg, uint32_t peer)
{
	assert_ptr_equal(arg, &core);
	assert_int_equal(peer, core.peer);
	core.gone++;
}

static inline struct router_config config(void)
{
	return (struct router_config){.loop = &loop,
		.bind = "tcp://127.0.0.1:0",
		.n_params = N,
		.push_window = 8,
		.max_workers = 4,
		.params = shared,
		.on_message = on_message,
		.on_gone = on_gone,
		.arg = &core};
}

/* A client's socket that is not connected yet. */
static inline void *open_dealer(void)
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

static inline void *connect_dealer(void)
{
	void *s = open_dealer();

	assert_int_equal(zmq_connect(s, router_endpoint(router)), 0);
	return s;
}

static inline void hang_up(void *socket)
{
	for (size_t i = 0; i < sizeof(clients) / sizeof(clients[0]); i++)
		if (clients[i] == socket)
			clients[i] = NULL;
	zmq_close(socket);
}

static inline int set_up(void **state)
{
	struct router_config cfg;
	struct err e;

	(void)state;
	log_set_level(LOG_ERROR);
	memset(&core, 0, sizeof(core));
	context = zmq_ctx_new();
	if (uv_loop_init(&loop) || param_buffers_new(&shared, N))
		return 1;
	cfg = config();
	return router_new(&router, &cfg, &e);
}

static inline int tear_down(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(clients) / sizeof(clients[0]); i++)
		if (clients[i])
			hang_up(clients[i]);
	router_stop(router);
	uv_run(&loop, UV_RUN_DEFAULT);
	router_free(&router);
	assert_null(router);
	param_buffers_free(&shared);
	zmq_ctx_term(context);
	return uv_loop_close(&loop);
}

/* ---- clients ----------------------------------------------------------------------------- */

static inline void say(void *socket, const struct msg *m)
{
	struct frames f;

	assert_int_equal(wire_encode(m, &f), PS_OK);
	assert_int_equal(wire_send(socket, 0, &f), PS_OK);
}

static inline void pull(void *socket, uint64_t request, enum weights which)
{
	const struct msg m = {.type = MSG_PULL, .pull = {.request = request, .which = which}};

	say(socket, &m);
}

static inline void beat(void *socket)
{
	const struct msg m = {.type = MSG_BEAT};

	say(socket, &m);
}

/* Turn the server's loop until `socket` has a message; it is in *f, decoded in *m. */
static inline void hear(void *socket, struct wire *wire, struct frames *f, struct msg *m)
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

static inline struct router_stats stats(void)
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

#endif
