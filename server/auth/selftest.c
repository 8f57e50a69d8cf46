/* selftest.c - see selftest.h. */
#include "server/auth/selftest.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>
#include "common/keys.h"
#include "common/zmonitor.h"

/* an abstract address of a Unix socket: it has no file, and other machines cannot reach it */
#define ENDPOINT "ipc://@cnn-ps-self-test-%.8s"
#define LIMIT_MS 3000
#define POLL_MS  5
#define REFUSED  400 /* ZAP's status code for a refused key */

/* This struct has the socket of a client with a random key, and the monitor of its handshake. */
struct selftest_client {
	void *context, *socket, *monitor;
};

static int set_int_option(void *socket, int option, int value)
{
	return zmq_setsockopt(socket, option, &value, sizeof(value));
}

static int open_client(struct selftest_client *i, const char *server_key, struct key_pair *own)
{
	const int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

	i->context = zmq_ctx_new();
	i->socket = i->context ? zmq_socket(i->context, ZMQ_DEALER) : NULL;
	i->monitor = i->socket ? zmonitor_open(i->context, i->socket, events) : NULL;
	return !i->monitor || set_int_option(i->socket, ZMQ_LINGER, 0) ||
	       zmq_setsockopt(i->socket, ZMQ_CURVE_SERVERKEY, server_key, KEY_TEXT) ||
	       zmq_setsockopt(i->socket, ZMQ_CURVE_PUBLICKEY, own->public_key, KEY_TEXT) ||
	       zmq_setsockopt(i->socket, ZMQ_CURVE_SECRETKEY, own->secret_key, KEY_TEXT);
}

static void close_client(struct selftest_client *i)
{
	zmonitor_close(i->socket, &i->monitor);
	if (i->socket)
		zmq_close(i->socket);
	if (i->context)
		zmq_ctx_term(i->context);
}

/* Waits for the end of the handshake and returns the event that reports the end. If the handshake
 * does not end within LIMIT_MS, `number` in the event is 0. */
static struct zmonitor_event wait_for_end(struct selftest_client *i, uv_loop_t *loop)
{
	struct zmonitor_event end = {0, 0};

	uv_update_time(loop);
	for (uint64_t start = uv_now(loop); !end.number && uv_now(loop) - start < LIMIT_MS;) {
		zmq_pollitem_t item = {.socket = i->monitor, .events = ZMQ_POLLIN};

		uv_run(loop, UV_RUN_NOWAIT); /* runs the ZAP handler, which answers the handshake */
		(void)zmq_poll(&item, 1, POLL_MS);
		(void)zmonitor_next(i->monitor, &end);
		uv_update_time(loop);
	}
	return end;
}

static int check_outcome(struct zmonitor_event end, struct err *e)
{
	if (end.number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH && end.value == REFUSED)
		return PS_OK;
	if (end.number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
		return err_set(e, PS_EAUTH, "self-test: a random key was accepted");
	return err_set(
		e, PS_EAUTH, "self-test: a random key was not refused within %d ms", LIMIT_MS);
}

static int try_key(uv_loop_t *loop, const char *server_key, const char *endpoint, struct err *e)
{
	struct selftest_client client = {NULL, NULL, NULL};
	struct key_pair own;
	int rc = key_random(&own, e);

	if (rc)
		return rc;
	if (open_client(&client, server_key, &own) || zmq_connect(client.socket, endpoint))
		rc = err_set(e, PS_EAUTH, "self-test: %s", zmq_strerror(errno));
	if (!rc)
		rc = check_outcome(wait_for_end(&client, loop), e);
	close_client(&client);
	key_wipe(&own);
	return rc;
}

int auth_selftest(uv_loop_t *loop, void *socket, const char *server_key, struct err *e)
{
	struct key_pair name;
	char endpoint[64];
	int rc = key_random(&name, e);

	if (rc)
		return rc;
	for (char *c = name.public_key; *c;
		c++) /* only letters, because other characters can have a meaning in an address */
		*c = (char)('a' + (unsigned char)*c % 26);
	snprintf(endpoint, sizeof(endpoint), ENDPOINT, name.public_key);
	if (zmq_bind(socket, endpoint) != 0)
		return err_set(e, PS_EAUTH, "self-test: bind: %s", zmq_strerror(errno));
	rc = try_key(loop, server_key, endpoint, e);
	(void)zmq_unbind(socket, endpoint);
	return rc;
}
