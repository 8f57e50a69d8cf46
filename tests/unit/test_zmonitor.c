/* test_zmonitor.c - proves the promises of common/zmonitor.h. */
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <zmq.h>
#include "common/clock.h"
#include "common/zmonitor.h"
#include "tests/support/test.h"

enum { DEADLINE_MS = 20000 };

static void *context, *server;
static char endpoint[64];

static int set_up_zmonitor(void **state)
{
	size_t size = sizeof(endpoint);

	(void)state;
	context = zmq_ctx_new();
	server = zmq_socket(context, ZMQ_ROUTER);
	return zmq_bind(server, "tcp://127.0.0.1:*") ||
	       zmq_getsockopt(server, ZMQ_LAST_ENDPOINT, endpoint, &size);
}

static int tear_down_zmonitor(void **state)
{
	(void)state;
	if (server)
		zmq_close(server);
	return zmq_ctx_term(context);
}

static void *open_monitored_client(void)
{
	const int none = 0;
	void *socket = zmq_socket(context, ZMQ_DEALER);

	assert_non_null(socket);
	zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof(none));
	return socket;
}

static struct zmonitor_event await_event(void *monitor)
{
	struct zmonitor_event e;

	for (uint64_t end = clock_ms() + DEADLINE_MS; !zmonitor_next(monitor, &e);)
		assert_true(clock_ms() < end);
	return e;
}

TEST_IN(events_come_in_order_and_only_those_asked_for, set_up_zmonitor, tear_down_zmonitor)
{
	void *client = open_monitored_client();
	void *monitor = zmonitor_open(context, client,
		ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED);
	struct zmonitor_event e = {1, 1};

	assert_non_null(monitor);
	assert_int_equal(zmonitor_next(monitor, &e), 0);
	assert_int_equal(e.number, 0);
	assert_int_equal(zmq_connect(client, endpoint), 0);
	e = await_event(monitor);
	assert_int_equal(e.number, ZMQ_EVENT_CONNECTED);
	/* the value is the file descriptor of the connection, and 0 to 2 are the standard
	 * streams */
	assert_true(e.value > 2);
	assert_int_equal(await_event(monitor).number, ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
	zmq_close(server);
	server = NULL;
	assert_int_equal(await_event(monitor).number, ZMQ_EVENT_DISCONNECTED);
	zmonitor_close(client, &monitor);
	assert_null(monitor);
	zmonitor_close(client, &monitor);
	zmq_close(client);
}

TEST_IN(two_sockets_of_a_context_have_monitors_of_their_own, set_up_zmonitor, tear_down_zmonitor)
{
	void *one = open_monitored_client(), *other = open_monitored_client();
	void *first = zmonitor_open(context, one, ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
	void *second = zmonitor_open(context, other, ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
	struct zmonitor_event e;

	assert_non_null(first);
	assert_non_null(second);
	assert_int_equal(zmq_connect(other, endpoint), 0);
	assert_int_equal(await_event(second).number, ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
	assert_int_equal(zmonitor_next(first, &e), 0);
	zmonitor_close(one, &first);
	zmonitor_close(other, &second);
	zmq_close(one);
	zmq_close(other);
}

TEST_IN(what_is_no_event_has_no_number, set_up_zmonitor, tear_down_zmonitor)
{
	void *sender = zmq_socket(context, ZMQ_PAIR), *monitor = zmq_socket(context, ZMQ_PAIR);
	struct zmonitor_event e;

	assert_int_equal(zmq_bind(sender, "inproc://not-libzmq"), 0);
	assert_int_equal(zmq_connect(monitor, "inproc://not-libzmq"), 0);
	assert_int_equal(zmq_send(sender, "four", 4, 0), 4);
	assert_int_equal(zmq_send(sender, "far too long", 12, ZMQ_SNDMORE), 12);
	assert_int_equal(zmq_send(sender, "and more", 8, ZMQ_SNDMORE), 8);
	assert_int_equal(zmq_send(sender, "and more", 8, 0), 8);
	assert_int_equal(zmonitor_next(monitor, &e), 1);
	assert_int_equal(e.number, 0);
	assert_int_equal(zmonitor_next(monitor, &e), 1);
	assert_int_equal(e.number, 0);
	assert_int_equal(zmonitor_next(monitor, &e), 0);
	zmq_close(sender);
	zmq_close(monitor);
}

TEST_IN(a_closed_socket_has_no_monitor, set_up_zmonitor, tear_down_zmonitor)
{
	void *none = zmq_socket(context, ZMQ_PAIR);

	zmq_close(none);
	assert_null(zmonitor_open(context, NULL, ZMQ_EVENT_ALL));
	assert_int_equal(errno, ENOTSOCK);
}
