/* test_server_port.c - the port's record of open connections, from scripted events of libzmq's
 * monitor. The Makefile replaces zmonitor_next by the function of this file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include <zmq.h>
#include "common/log.h"
#include "common/zmonitor.h"
#include "server/net/port.h"
#include "tests/support/test.h"

#define FD 7

static const struct zmonitor_event *script;
static size_t events_left;
static char lines[4096];

int __wrap_zmonitor_next(void *monitor, struct zmonitor_event *e);
int __wrap_zmonitor_next(void *monitor, struct zmonitor_event *e)
{
	(void)monitor;
	if (!events_left)
		return 0;
	*e = *script++;
	events_left--;
	return 1;
}

static void add_log_line(void *arg, int level, const char *line)
{
	(void)arg;
	(void)level;
	size_t used = strlen(lines);

	snprintf(lines + used, sizeof(lines) - used, "%s\n", line);
}

/* Lets a port read `n` events. Returns the number of connections that it then counts. */
static uint32_t connections_after(const struct zmonitor_event *events, size_t n)
{
	struct port *p = calloc(1, sizeof(*p));
	void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_ROUTER);
	uv_loop_t loop;
	struct err e;

	assert_non_null(p);
	assert_int_equal(uv_loop_init(&loop), 0);
	assert_int_equal(port_init(p), PS_OK);
	assert_int_equal(port_monitor(p, context, socket, &e), PS_OK);
	assert_int_equal(port_bind(p, "tcp://127.0.0.1:*", &e), PS_OK);
	assert_int_equal(port_start(p, &loop, NULL, 1), PS_OK);
	script = events;
	events_left = n;
	lines[0] = '\0';
	log_set_level(LOG_DEBUG);
	log_set_sink(add_log_line, NULL);
	port_sweep(p, NULL, NULL, 0);
	log_set_sink(NULL, NULL);
	uint32_t connections = p->stats.connections;
	port_stop(p);
	port_close(p);
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&loop), 0);
	port_release(p);
	free(p);
	assert_int_equal(zmq_close(socket), 0);
	assert_int_equal(zmq_ctx_term(context), 0);
	return connections;
}

TEST(a_connection_is_counted_until_it_ends)
{
	const struct zmonitor_event events[] = {
		{ZMQ_EVENT_ACCEPTED, FD}, {ZMQ_EVENT_DISCONNECTED, FD}, {ZMQ_EVENT_ACCEPTED, FD}};

	assert_int_equal(connections_after(events, 1), 1);
	assert_int_equal(connections_after(events, 2), 0);
	assert_int_equal(connections_after(events, 3), 1);
}

/* The reports of a short connection can arrive in the wrong order. The log still has its begin and
 * its end, and the next connection with this descriptor is counted. */
TEST(the_log_has_a_connection_whose_end_was_reported_first)
{
	const struct zmonitor_event events[] = {
		{ZMQ_EVENT_DISCONNECTED, FD}, {ZMQ_EVENT_ACCEPTED, FD}, {ZMQ_EVENT_ACCEPTED, FD}};

	assert_int_equal(connections_after(events, 2), 0);
	assert_non_null(strstr(lines, "net hung_up"));
	assert_non_null(strstr(lines, "net accepted"));
	assert_int_equal(connections_after(events, 3), 1);
}
