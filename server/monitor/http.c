/* http.c - see http.h. */
#include "server/monitor/http.h"
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include "common/endpoint.h"
#include "common/log.h"
#include "common/mem.h"
#include "server/net/address.h"

#define MAX_CONNECTIONS 64u
#define MAX_BYTES       ((size_t)16384) /* of a request, and buffers, per connection */
#define IDLE_S          5u
#define REQUEST_MS      10000u /* a request, from its first byte to its answer */
#define CROWDED         48u /* with so many connections, the oldest one is closed for a new one */
#define MAX_SLEEP_MS    1000u

/* An open connection; fd 0: none. libmicrohttpd's time-out starts anew at each byte, so a client that
 * sends a byte now and then would stay for ever, and 64 of them would silence /healthz. */
struct visitor {
	int fd;
	uint64_t since_ms; /* its begin, or its newest request */
};

struct http {
	struct visitor visitor[MAX_CONNECTIONS];
	uv_loop_t *loop;
	struct MHD_Daemon *daemon;
	uv_poll_t poll;
	uv_timer_t timer;
	http_page_fn *page;
	void *arg;
	char url[320];
	int is_loopback;
};

/* ---- connections --------------------------------------------------------------------------- */

static int fd_of(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

	return info ? info->connect_fd : 0;
}

/* Closes a connection in both directions. libmicrohttpd notices it, and frees the descriptor. */
static void hang_up(struct visitor *v)
{
	(void)shutdown(v->fd, SHUT_RDWR);
	v->fd = 0;
}

static void close_oldest(struct http *h)
{
	struct visitor *oldest = NULL;
	uint32_t n = 0;

	for (uint32_t i = 0; i < MAX_CONNECTIONS; i++) {
		struct visitor *v = &h->visitor[i];

		n += v->fd > 0;
		if (v->fd > 0 && (!oldest || v->since_ms < oldest->since_ms))
			oldest = v;
	}
	if (oldest && n > CROWDED)
		hang_up(oldest);
}

static void close_slow(struct http *h)
{
	for (uint32_t i = 0; i < MAX_CONNECTIONS; i++)
		if (h->visitor[i].fd > 0 && uv_now(h->loop) - h->visitor[i].since_ms > REQUEST_MS)
			hang_up(&h->visitor[i]);
}

static struct visitor *visitor_of(struct http *h, int fd)
{
	for (uint32_t i = 0; i < MAX_CONNECTIONS; i++)
		if (h->visitor[i].fd == fd)
			return &h->visitor[i];
	return NULL;
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **context,
	enum MHD_ConnectionNotificationCode code)
{
	struct http *h = arg;
	int fd = fd_of(connection);
	struct visitor *v = visitor_of(h, code == MHD_CONNECTION_NOTIFY_STARTED ? 0 : fd);

	(void)context;
	if (!v || fd <= 0)
		return;
	v->fd = code == MHD_CONNECTION_NOTIFY_STARTED ? fd : 0;
	v->since_ms = uv_now(h->loop);
	if (v->fd)
		close_oldest(h);
}

/* 1: the request is for this host. The browser of a local user sends the name of a foreign page, whose
 * owner has it resolved to 127.0.0.1 (DNS rebinding). */
static int is_for_us(const struct http *h, struct MHD_Connection *connection)
{
	const char *host =
		MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
	size_t n = host ? strcspn(host, ":") : 0;

	if (!h->is_loopback || !host)
		return 1;
	return host[0] == '[' || strspn(host, "0123456789.") == n ||
	       (n == strlen("localhost") && strncasecmp(host, "localhost", n) == 0);
}

/* ---- answers ------------------------------------------------------------------------------- */

/* Send a page. The function takes over `text`. */
static enum MHD_Result send_page(
	struct MHD_Connection *connection, unsigned code, const char *type, char *text)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);

	if (!response) {
		free(text);
		return MHD_NO;
	}
	(void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		(void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	enum MHD_Result rc = MHD_queue_response(connection, code, response);
	MHD_destroy_response(response);
	return rc;
}

static enum MHD_Result send_text(
	struct MHD_Connection *connection, unsigned code, const char *words)
{
	char *text = strdup(words);

	return text ? send_page(connection, code, "text/plain", text) : MHD_NO;
}

/* Answer a request when its header has arrived, without waiting for a body. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *path,
	const char *method, const char *version, const char *body, size_t *body_size, void **state)
{
	struct http *h = arg;
	struct http_page page = {0};

	(void)version;
	(void)body;
	(void)state;
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return send_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET or HEAD\n");
	*body_size = 0;
	if (!is_for_us(h, connection))
		return send_text(connection, MHD_HTTP_FORBIDDEN, "not the host of this page\n");
	struct visitor *v = visitor_of(h, fd_of(connection));
	if (v)
		v->since_ms = uv_now(h->loop);
	h->page(h->arg, path, &page);
	if (page.code == 0)
		return send_text(
			connection, MHD_HTTP_NOT_FOUND, "/metrics /status /healthz /livez\n");
	if (!page.text)
		return send_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory\n");
	return send_page(connection, page.code, page.type, page.text);
}

/* ---- in the loop --------------------------------------------------------------------------- */

static void run_daemon(struct http *h);

static void on_http_poll(uv_poll_t *p, int status, int events)
{
	(void)status;
	(void)events;
	run_daemon(p->data);
}

static void on_http_timer(uv_timer_t *t)
{
	run_daemon(t->data);
}

/* Run libmicrohttpd now, and again at its next time-out, at most MAX_SLEEP_MS later. After its
 * connection limit was reached, libmicrohttpd accepts connections again only in its next run, and
 * it sets no time-out for this. */
static void run_daemon(struct http *h)
{
	MHD_UNSIGNED_LONG_LONG ms;

	(void)MHD_run(h->daemon);
	close_slow(h);
	if (MHD_get_timeout(h->daemon, &ms) != MHD_YES || ms > MAX_SLEEP_MS)
		ms = MAX_SLEEP_MS;
	uv_timer_start(&h->timer, on_http_timer, ms, 0);
}

static int watch_daemon(struct http *h, struct err *e)
{
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);

	if (!info || uv_poll_init(h->loop, &h->poll, info->epoll_fd) != 0)
		return err_set(e, PS_ENET, "HTTP: the loop cannot watch it");
	uv_timer_init(h->loop, &h->timer);
	h->poll.data = h->timer.data = h;
	uv_poll_start(&h->poll, UV_READABLE, on_http_poll);
	run_daemon(h);
	return PS_OK;
}

/* ---- start --------------------------------------------------------------------------------- */

static int cannot_listen(const struct endpoint *to, int error, struct err *e)
{
	int six = strchr(to->host, ':') != NULL;

	return err_set(e, PS_EUSAGE, "--http %s%.100s%s:%s: %s%s", six ? "[" : "", to->host,
		six ? "]" : "", to->port, error ? strerror(error) : "cannot listen there",
		error == EADDRINUSE ? ": stop the process that has it, or take another port" : "");
}

static int start_daemon(
	struct http *h, const struct endpoint *to, const struct addrinfo *at, struct err *e)
{
	unsigned flags = MHD_USE_EPOLL | (at->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0u);

	errno = 0;
	h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_SOCK_ADDR,
		at->ai_addr, MHD_OPTION_CONNECTION_LIMIT, MAX_CONNECTIONS,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, MAX_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
		IDLE_S, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_END);
	if (!h->daemon)
		return cannot_listen(to, errno, e);
	h->is_loopback = address_is_loopback(at->ai_addr);
	const union MHD_DaemonInfo *info =
		MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
	int six = at->ai_family == AF_INET6;
	snprintf(h->url, sizeof(h->url), "http://%s%s%s:%u", six ? "[" : "", to->host,
		six ? "]" : "", info ? info->port : 0u);
	return PS_OK;
}

static int listen_at(struct http *h, const char *address, struct err *e)
{
	const struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	struct addrinfo *found;
	struct endpoint to;

	if (endpoint_parse_address(address, &to) && endpoint_parse_port(address, &to))
		return err_set(e, PS_EUSAGE, "--http %.100s: expected HOST:PORT or PORT", address);
	int rc = getaddrinfo(to.host, to.port, &want, &found);
	if (rc)
		return err_set(e, PS_EUSAGE, "--http %.100s: %s", address, gai_strerror(rc));
	rc = start_daemon(h, &to, found, e);
	freeaddrinfo(found);
	return rc;
}

int http_new(struct http **out, uv_loop_t *loop, const char *address, http_page_fn *page, void *arg,
	struct err *e)
{
	struct http *h = mem_try(1, sizeof(*h));

	*out = NULL;
	if (!h)
		return err_set(e, PS_ENOMEM, "no memory for HTTP");
	h->loop = loop;
	h->page = page;
	h->arg = arg;
	int rc = listen_at(h, address, e);
	if (!rc)
		rc = watch_daemon(h, e);
	if (rc) {
		http_free(&h);
		return rc;
	}
	*out = h;
	return PS_OK;
}

const char *http_url(const struct http *h)
{
	return h->url;
}

int http_is_loopback(const struct http *h)
{
	return h->is_loopback;
}

void http_stop(struct http *h)
{
	uv_close((uv_handle_t *)&h->poll, NULL);
	uv_close((uv_handle_t *)&h->timer, NULL);
	MHD_stop_daemon(h->daemon);
	h->daemon = NULL;
}

void http_free(struct http **h)
{
	if (!*h)
		return;
	if ((*h)->daemon)
		MHD_stop_daemon((*h)->daemon);
	free(*h);
	*h = NULL;
}
