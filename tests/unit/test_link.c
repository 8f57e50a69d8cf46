/* test_link.c - proves that link.h counts the bytes that move on a worker's bulk connection. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <zmq.h>
#include "common/clock.h"
#include "worker/client/link.h"
#include "tests/support/test.h"

enum { DEADLINE_MS = 20000, BYTES = 1 << 20 };

/* libzmq is not built with ThreadSanitizer, so the sanitizer reports false races between libzmq's
 * own threads. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "ignore_noninstrumented_modules=1";
}

static void *context, *server;
static struct link worker;

#define UNTIL(condition)                                                                           \
	for (uint64_t end = clock_ms() + DEADLINE_MS; !(condition);)                               \
		assert_true(clock_ms() < end);

static int set_up_link(void **state)
{
	char endpoint[64];
	size_t size = sizeof(endpoint);
	int linger = 0;
	struct err e;

	(void)state;
	context = zmq_ctx_new();
	server = zmq_socket(context, ZMQ_ROUTER);
	zmq_setsockopt(server, ZMQ_LINGER, &linger, sizeof(linger));
	if (zmq_bind(server, "tcp://127.0.0.1:*") ||
		zmq_getsockopt(server, ZMQ_LAST_ENDPOINT, endpoint, &size))
		return 1;
	return link_open(&worker, endpoint, NULL, 1, 1, &e);
}

static void stop_server(void)
{
	if (server)
		zmq_close(server);
	server = NULL;
}

static int tear_down_link(void **state)
{
	(void)state;
	stop_server();
	link_close(&worker);
	link_term(&worker);
	return zmq_ctx_term(context);
}

TEST_IN(what_is_sent_and_what_comes_moves, set_up_link, tear_down_link)
{
	static char bytes[BYTES];
	char peer[16];
	uint64_t sent;
	int n;

	UNTIL(link_next_event(&worker) == LINK_UP)
	assert_true(link_bytes_moved(&worker) < BYTES);
	assert_int_equal(zmq_send(worker.bulk, bytes, BYTES, 0), BYTES);
	UNTIL(link_bytes_moved(&worker) >= BYTES)
	sent = link_bytes_moved(&worker);
	n = zmq_recv(server, peer, sizeof(peer), 0);
	assert_true(n > 0 && n <= (int)sizeof(peer));
	assert_int_equal(zmq_send(server, peer, (size_t)n, ZMQ_SNDMORE), n);
	assert_int_equal(zmq_send(server, bytes, BYTES, 0), BYTES);
	UNTIL(link_bytes_moved(&worker) >= sent + BYTES)
}

TEST_IN(without_a_connection_nothing_moves, set_up_link, tear_down_link)
{
	UNTIL(link_next_event(&worker) == LINK_UP)
	/* the handshake of the connection has moved some bytes */
	assert_true(link_bytes_moved(&worker) > 0);
	stop_server();
	UNTIL(link_next_event(&worker) == LINK_LOST)
	assert_int_equal(link_bytes_moved(&worker), 0);
}
