/*
 * router_fixture.h - the server's router with a minimal core, and clients that are plain ZeroMQ
 * sockets. A test must run the event loop itself.
 */
#ifndef TESTS_SUPPORT_ROUTER_FIXTURE_H
#define TESTS_SUPPORT_ROUTER_FIXTURE_H
#include <zmq.h>
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"
#include "common/clock.h"
#include "common/log.h"
#include "proto/wire.h"
#include "server/net/net.h"

/* the number of weights; with this number, one PARAMS is so large that it fills the queues of a
 * peer */
#define ROUTER_PARAMS      50000u
#define ROUTER_DEADLINE_MS 20000
#define ROUTER_SILENT_MS   1000 /* silent_ms of the router; short, because tests let it pass */
#define ROUTER_WORKERS     4u

extern uv_loop_t router_loop;
extern struct router *router_under_test;
extern struct auth *router_auth; /* `auth` of the next router (server/net/net.h); NULL: no keys */
extern float router_weights[ROUTER_PARAMS];

/*
 * A minimal core that counts messages, answers PULL with PARAMS, and answers each HEARTBEAT with
 * `replies` HEARTBEATs. If `ack` is not 0, each PARAMS contains the ACK of push `ack`.
 */
struct router_core {
	uint64_t messages, gone, version, ack;
	unsigned replies;
	/* peer: the sender of the last message; gone_peer: the peer that left last */
	uint32_t peer, gone_peer;
};

extern struct router_core router_core;

int router_set_up(void **state);
int router_tear_down(void **state);
struct router_config router_test_config(void);
struct router_stats router_test_stats(void);

/* Run the event loop until `condition` holds. */
#define UNTIL(condition)                                                                           \
	for (uint64_t end = clock_ms() + ROUTER_DEADLINE_MS; !(condition);) {                      \
		assert_true(clock_ms() < end);                                                     \
		uv_run(&router_loop, UV_RUN_NOWAIT);                                               \
	}

/* ---- clients -------------------------------------------------------------------------------- */

/* Open a socket without a connection. The tear-down closes all sockets that are still open. */
void *open_dealer(void);
void *connect_dealer(void);
void close_dealer(void *socket);
void client_pull(void *socket, uint64_t request, enum weights which);
void client_heartbeat(void *socket);
void client_status(void *socket);
/* Run the event loop until `socket` receives a message. Writes its frames to *f and the decoded
 * message to *m. */
void client_receive(void *socket, struct wire *wire, struct frames *f, struct msg *m);

#endif
