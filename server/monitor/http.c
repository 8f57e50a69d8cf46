/* http.c - see http.h. */
#include "server/monitor/http.h"
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/endpoint.h"
#include "common/keys.h"
#include "common/log.h"
#include "common/mem.h"
#include "server/net/address.h"

#define MAX_CONNECTIONS 64u
/* maximum memory of a connection, for its request and its buffers, in bytes */
#define MAX_BYTES ((size_t)16384)
#define IDLE_S    5u
/* time limit for the header of a request, from the beginning of the connection or the end of the
 * previous answer. Also the time limit for an answer of 0 bytes, from the end of the header */
#define REQUEST_MS 10000u
/* the time limit for a longer answer is 1 ms longer for each 16 bytes (128 kbit/s); the server
 * closes the connection of a client that reads more slowly */
#define BYTES_PER_MS 16u
/* if this number of connections is open, a new connection closes the oldest one of the address that
 * has the most connections */
#define CROWDED      48u
#define MAX_SLEEP_MS 1000u
#define MAX_STREAMS  16u
/* if all streams are in use, a stream that is older than this can be replaced */
#define STREAM_MS    60000u
#define LAST_MS      1000u /* time limit for the last events of the streams when the server exits */
#define LAST_POLL_MS 10
/* maximum number of bytes that wait because the client of a stream does not read them */
#define MAX_WAITING ((size_t)4 << 20)
/* Answers above SMALL_ANSWER are large. All large answers together have at most MAX_ANSWERS bytes;
 * but a large answer is permitted if there is no other. Streams with a buffer above SMALL_STREAM
 * are large. All large buffers together have at most MAX_UNREAD bytes. */
#define SMALL_ANSWER ((size_t)16 << 10)
#define MAX_ANSWERS  ((size_t)12 << 20)
#define SMALL_STREAM ((size_t)256 << 10)
#define MAX_UNREAD   ((size_t)8 << 20)
/* if a large answer has no room, an older one that has taken longer than this ends */
#define SLOW_MS     10000u
#define RETRY_AFTER "1" /* seconds */
/* maximum number of runs of libmicrohttpd in which all large answers end */
#define END_RUNS  8
#define MIN_TOKEN 16u
/* On a server without a token, all pages together may use 1 / PAGE_PART of the time of one
 * processor. After a pause they may use up to BURST_NS at once. The time for /healthz and /livez,
 * which is short, does not count. */
#define PAGE_PART 10u /* the part of the time is 1 / PAGE_PART */
#define BURST_NS  ((int64_t)500000000)
/* the name of the cookie; the port follows, because browsers send a cookie to all ports */
#define COOKIE "cnnps_token_"

/* This struct describes a connection to /events. */
struct stream {
	struct http *http;
	struct MHD_Connection *connection;
	char *text; /* events that are not sent yet */
	size_t n, room;
	int is_suspended, ends;
	struct stream *next;
};

/* This struct has a large answer, which several connections share if they have requested the same
 * text. Clients that request the history many times and read it slowly would otherwise fill the
 * server's memory. */
struct answer {
	struct http *http;
	char *text;
	size_t n;
	unsigned n_users;  /* number of responses that send it; the last one frees it */
	uint64_t since_ms; /* time of the first request */
	struct answer *next;
};

/* This struct has the body of a POST request, the form with the token. */
struct form {
	char body[3 * HTTP_TOKEN + 64]; /* each character of a token may be encoded as %XX */
	size_t n;
};

/* This policy gives a page in the browser the right to run its own scripts and to send requests to
 * this server. */
#define POLICY                                                                                     \
	"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src "      \
	"data:; "                                                                                  \
	"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

/* This struct describes an open connection; if fd is 0, there is no connection. The server limits
 * the time of each request itself, because libmicrohttpd's time-out starts again at each byte. A
 * client that sends a byte now and then would stay connected for ever, and MAX_CONNECTIONS such
 * clients would make /healthz unreachable. */
struct visitor {
	int fd;
	uint64_t address; /* IPv4: address of the client; IPv6: the first 64 bits, its network */
	/* time at which the connection began, the newest header was complete, or the newest answer
	 * ended */
	uint64_t since_ms;
	uint64_t limit_ms; /* the connection is closed this number of ms after since_ms */
	/* number that orders connections with equal since_ms, as many connections have in a
	 * flood */
	uint64_t order;
	/* 1: the connection is a stream, which has no time limit; since_ms is the time at which it
	 * began */
	int is_stream;
	const struct answer *answer; /* the large answer that the connection sends, or NULL */
};

struct http {
	struct visitor visitor[MAX_CONNECTIONS];
	uint64_t last_order;
	uv_loop_t *loop;
	struct MHD_Daemon *daemon;
	uv_poll_t poll;
	uv_timer_t timer;
	int64_t page_ns;     /* processor time that pages may use now; it can be below 0 */
	uint64_t counted_ns; /* the time at which page_ns was last increased */
	http_page_fn *page;
	void *arg;
	char url[320];
	int is_loopback;
	const char *token; /* the token that clients must send; NULL: they need none */
	char cookie[32];   /* name of the cookie in which browsers send the token */
	struct stream *streams;
	unsigned n_streams;
	struct answer *answers; /* the newest one comes first */
	size_t answer_bytes;    /* bytes of all large answers */
	size_t stream_bytes;    /* bytes of the buffers of all large streams */
};

/* ---- connections --------------------------------------------------------------------------- */

static int fd_of(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

	return info ? info->connect_fd : 0;
}

/* Shuts a connection down in both directions. libmicrohttpd then detects the end of the connection
 * and frees the descriptor. */
static void hang_up(struct visitor *v)
{
	(void)shutdown(v->fd, SHUT_RDWR);
	v->fd = 0;
	v->answer = NULL;
}

/* Makes the time limit of a connection count from now. Called when the connection is new, and at
 * the beginning and the end of an answer. */
static void begin_time(struct http *h, struct visitor *v)
{
	v->since_ms = uv_now(h->loop);
	v->order = ++h->last_order;
}

/* Returns the address of a client as a number. All clients of an IPv6 network (the first 64 bits)
 * have the same number, because a host can use all addresses of its network. */
static uint64_t address_of_client(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	const struct sockaddr *from = info ? info->client_addr : NULL;
	uint64_t network = 0;

	if (from && from->sa_family == AF_INET)
		return ((const struct sockaddr_in *)(const void *)from)->sin_addr.s_addr;
	if (from && from->sa_family == AF_INET6) {
		const struct in6_addr *a =
			&((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;

		memcpy(&network, IN6_IS_ADDR_V4MAPPED(a) ? a->s6_addr + 8 : a->s6_addr,
			sizeof(network));
	}
	return network;
}

/* Returns the number of connections of the address of `v`: of streams if is_stream is 1, otherwise
 * of connections that are not streams. */
static uint32_t siblings_of(const struct http *h, const struct visitor *v, int is_stream)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < MAX_CONNECTIONS; i++)
		n += h->visitor[i].fd > 0 && h->visitor[i].is_stream == is_stream &&
		     h->visitor[i].address == v->address;
	return n;
}

/* If more than CROWDED connections are open, closes the oldest connection of the address that has
 * the most. */
static void close_oldest(struct http *h)
{
	struct visitor *oldest = NULL;
	uint32_t n = 0, max_siblings = 0;

	for (uint32_t i = 0; i < MAX_CONNECTIONS; i++)
		n += h->visitor[i].fd > 0;
	for (uint32_t i = 0; i < MAX_CONNECTIONS && n > CROWDED; i++) {
		struct visitor *v = &h->visitor[i];

		if (v->fd <= 0 || v->is_stream)
			continue;
		uint32_t siblings = siblings_of(h, v, 0);
		if (!oldest || siblings > max_siblings ||
			(siblings == max_siblings && v->order < oldest->order)) {
			oldest = v;
			max_siblings = siblings;
		}
	}
	if (oldest)
		hang_up(oldest);
}

static void close_slow(struct http *h)
{
	for (uint32_t i = 0; i < MAX_CONNECTIONS; i++) {
		struct visitor *v = &h->visitor[i];

		if (v->fd > 0 && !v->is_stream && uv_now(h->loop) - v->since_ms > v->limit_ms)
			hang_up(v);
	}
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
	*v = (struct visitor){.fd = code == MHD_CONNECTION_NOTIFY_STARTED ? fd : 0,
		.address = address_of_client(connection),
		.limit_ms = REQUEST_MS};
	begin_time(h, v);
	if (v->fd)
		close_oldest(h);
}

/* Returns 0 if three conditions hold: the server listens on loopback only, has no token, and the
 * Host header of the request is neither an address nor localhost. The check prevents DNS rebinding:
 * an attacker makes the host name of a page resolve to 127.0.0.1, and the browser of a local user
 * then sends requests with this name to the server. With a token there is no check, because a proxy
 * may keep the name that the user's browser requests. A page of an attacker has no token: the
 * cookie has no Domain, so that the browser sends it only to the host that has set it. */
static int is_for_us(const struct http *h, struct MHD_Connection *connection)
{
	const char *host =
		MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
	size_t n = host ? strcspn(host, ":") : 0;

	if (!h->is_loopback || h->token || !host)
		return 1;
	return host[0] == '[' || strspn(host, "0123456789.") == n ||
	       (n == strlen("localhost") && strncasecmp(host, "localhost", n) == 0);
}

/* ---- answers ------------------------------------------------------------------------------- */

/* Sends `response` and releases it, or fails if `response` is NULL. */
static enum MHD_Result send_response(
	struct MHD_Connection *connection, unsigned code, struct MHD_Response *response)
{
	if (!response)
		return MHD_NO;
	(void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
	(void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
	(void)MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
	(void)MHD_add_response_header(response, "Content-Security-Policy", POLICY);
	enum MHD_Result rc = MHD_queue_response(connection, code, response);
	MHD_destroy_response(response);
	return rc;
}

/* Called when the connection can send more bytes of a large answer. */
static ssize_t read_large(void *arg, uint64_t at, char *out, size_t max)
{
	const struct answer *a = arg;
	size_t n = at < a->n ? a->n - (size_t)at : 0;

	if (n == 0)
		return MHD_CONTENT_READER_END_OF_STREAM;
	n = n < max ? n : max;
	memcpy(out, a->text + at, n);
	return (ssize_t)n;
}

/* Called when a response that sends a large answer is freed. */
static void leave_answer(void *arg)
{
	struct answer *a = arg, **at = &a->http->answers;

	if (--a->n_users > 0)
		return;
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	a->http->answer_bytes -= a->n;
	free(a->text);
	free(a);
}

/* Closes all connections that send the answer. */
static void end_answer(struct http *h, const struct answer *a)
{
	for (uint32_t i = 0; i < MAX_CONNECTIONS; i++)
		if (h->visitor[i].answer == a)
			hang_up(&h->visitor[i]);
}

/* Returns 1 if there is room for one more large answer of `n` bytes. If there is none, ends the
 * oldest answer that has taken longer than SLOW_MS, so that a later request finds room. */
static int has_answer_room(struct http *h, size_t n)
{
	const struct answer *oldest = h->answers;

	if (!oldest || h->answer_bytes + n <= MAX_ANSWERS)
		return 1;
	while (oldest->next)
		oldest = oldest->next;
	if (uv_now(h->loop) - oldest->since_ms > SLOW_MS)
		end_answer(h, oldest);
	return 0;
}

/* Returns a large answer with the text of `page`: one that other connections already receive, or
 * else a new one. Takes over the text. Returns NULL if there is no room, and then sets *is_full to
 * 1, or if there is no memory. */
static struct answer *take_answer(struct http *h, const struct http_page *page, int *is_full)
{
	const size_t n = strlen(page->text);
	struct answer *a = h->answers;

	while (a && (a->n != n || memcmp(a->text, page->text, n) != 0))
		a = a->next;
	if (a) {
		free(page->text);
		return a;
	}
	*is_full = !has_answer_room(h, n);
	a = *is_full ? NULL : mem_try(1, sizeof(*a));
	if (!a) {
		free(page->text);
		return NULL;
	}
	*a = (struct answer){.http = h,
		.text = page->text,
		.n = n,
		.since_ms = uv_now(h->loop),
		.next = h->answers};
	h->answers = a;
	h->answer_bytes += n;
	return a;
}

/* Makes the response for a page. Returns NULL if there is no memory. The response takes over the
 * `text` of the page. */
static struct MHD_Response *page_response(const struct http_page *page)
{
	struct MHD_Response *response;
	union {
		const void *in;
		void *out;
		/* removes const, because libmicrohttpd only reads this memory */
	} fixed = {.in = page->fixed};

	response = page->fixed ? MHD_create_response_from_buffer(
					 page->fixed_bytes, fixed.out, MHD_RESPMEM_PERSISTENT)
			       : MHD_create_response_from_buffer(
					 strlen(page->text), page->text, MHD_RESPMEM_MUST_FREE);
	if (!response)
		free(page->text);
	else
		(void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, page->type);
	return response;
}

static enum MHD_Result send_page(
	struct MHD_Connection *connection, unsigned code, const char *type, char *text)
{
	const struct http_page page = {code, type, text, NULL, 0};
	struct MHD_Response *response = page_response(&page);

	if (response && code == MHD_HTTP_METHOD_NOT_ALLOWED)
		(void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	if (response && code == MHD_HTTP_UNAUTHORIZED)
		(void)MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
	return send_response(connection, code, response);
}

/* Answers that there is no room for a large answer. */
static enum MHD_Result send_busy(struct MHD_Connection *connection)
{
	char *text = strdup("too many large answers: try again\n");
	const struct http_page page = {MHD_HTTP_SERVICE_UNAVAILABLE, "text/plain", text, NULL, 0};
	struct MHD_Response *response = text ? page_response(&page) : NULL;

	if (response)
		(void)MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, RETRY_AFTER);
	return send_response(connection, MHD_HTTP_SERVICE_UNAVAILABLE, response);
}

/* Sends a page whose text is large. */
static enum MHD_Result send_large(
	struct http *h, struct MHD_Connection *connection, const struct http_page *page)
{
	struct visitor *v = visitor_of(h, fd_of(connection));
	struct MHD_Response *response;
	int is_full = 0;
	struct answer *a = take_answer(h, page, &is_full);

	if (is_full)
		return send_busy(connection);
	if (!a)
		return MHD_NO;
	a->n_users++;
	response = MHD_create_response_from_callback(a->n, 16384, read_large, a, leave_answer);
	if (!response)
		leave_answer(a);
	else
		(void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, page->type);
	if (response && v)
		v->answer = a;
	return send_response(connection, page->code, response);
}

static enum MHD_Result send_text(
	struct MHD_Connection *connection, unsigned code, const char *words)
{
	char *text = strdup(words);

	return text ? send_page(connection, code, "text/plain", text) : MHD_NO;
}

/* ---- streams ------------------------------------------------------------------------------- */

static void run_daemon(struct http *h);

/* Returns how many bytes a stream with a buffer of `room` bytes adds to stream_bytes: `room` if the
 * stream is large, otherwise 0. */
static size_t large_part(size_t room)
{
	return room > SMALL_STREAM ? room : 0;
}

/* Changes the size of the buffer of a stream. Returns 0 if there is no room or no memory. */
static int resize_stream(struct stream *s, size_t room)
{
	const size_t now = large_part(s->room), wanted = large_part(room);
	struct http *h = s->http;

	if (room > MAX_WAITING || (wanted > now && h->stream_bytes - now + wanted > MAX_UNREAD))
		return 0;
	char *text = room ? realloc(s->text, room) : NULL;
	if (room && !text)
		return 0;
	if (!room)
		free(s->text);
	s->text = text;
	s->room = room;
	h->stream_bytes = h->stream_bytes - now + wanted;
	return 1;
}

/* Makes a stream end without its unread events. */
static void end_stream(struct stream *s)
{
	s->n = 0;
	s->ends = 1;
	(void)resize_stream(s, 0);
}

/* Called when the connection can send more bytes. If the stream has no text to send, the function
 * suspends it until the next http_send. */
static ssize_t read_stream(void *arg, uint64_t at, char *out, size_t max)
{
	struct stream *s = arg;
	size_t n = s->n < max ? s->n : max;

	(void)at;
	if (n == 0 && s->ends)
		return MHD_CONTENT_READER_END_OF_STREAM;
	if (n == 0) {
		s->is_suspended = 1;
		MHD_suspend_connection(s->connection);
		return 0;
	}
	memcpy(out, s->text, n);
	memmove(s->text, s->text + n, s->n - n);
	s->n -= n;
	if (s->n == 0 && s->room > SMALL_STREAM)
		(void)resize_stream(s, 0);
	return (ssize_t)n;
}

static void free_stream(void *arg)
{
	struct stream *s = arg, **at = &s->http->streams;

	while (*at && *at != s)
		at = &(*at)->next;
	if (*at)
		*at = s->next;
	s->http->n_streams--;
	(void)resize_stream(s, 0);
	free(s);
}

static void queue_text(struct stream *s, const char *text)
{
	size_t n = strlen(text);

	if (s->ends)
		return;
	size_t need = s->n + n, room = 2 * need > SMALL_STREAM ? need + SMALL_ANSWER : 2 * need;
	if (need > s->room && !resize_stream(s, room)) {
		/* the page does not read its stream: end the stream, so that the page connects
		 * again later */
		end_stream(s);
		return;
	}
	memcpy(s->text + s->n, text, n);
	s->n += n;
}

static void resume_stream(struct stream *s)
{
	if (!s->is_suspended)
		return;
	s->is_suspended = 0;
	MHD_resume_connection(s->connection);
}

/* Called when all streams are in use, and the client `v` requests one more. Ends the oldest stream
 * of the address that has the most streams, so that one client cannot keep all streams. If the
 * address of `v` has about as many streams as that address, the function ends this oldest stream
 * only if it has existed for STREAM_MS. If a machine has too many pages open, their streams
 * therefore take turns. Returns 0 if no stream was ended. */
static int replace_stream(struct http *h, const struct visitor *v)
{
	struct visitor *oldest = NULL;
	struct stream *found = NULL;
	uint32_t max_siblings = 0;

	/* from the newest stream to the oldest */
	for (struct stream *s = h->streams; s; s = s->next) {
		struct visitor *other = visitor_of(h, fd_of(s->connection));
		uint32_t siblings = other ? siblings_of(h, other, 1) : 0;

		if (other && siblings >= max_siblings) {
			oldest = other;
			found = s;
			max_siblings = siblings;
		}
	}
	if (!found || (max_siblings <= siblings_of(h, v, 1) + 1 &&
			      uv_now(h->loop) - oldest->since_ms < STREAM_MS))
		return 0;
	hang_up(oldest);
	end_stream(found);
	resume_stream(found);
	return 1;
}

static enum MHD_Result open_stream(struct http *h, struct MHD_Connection *connection)
{
	struct visitor *v = visitor_of(h, fd_of(connection));
	int is_free = v && (h->n_streams < MAX_STREAMS || replace_stream(h, v));
	struct stream *s = is_free ? mem_try(1, sizeof(*s)) : NULL;
	struct MHD_Response *response;

	if (!s)
		return send_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "too many streams\n");
	*s = (struct stream){.http = h, .connection = connection, .next = h->streams};
	queue_text(s, "retry: 1000\n\n");
	h->streams = s;
	h->n_streams++;
	response = MHD_create_response_from_callback(
		MHD_SIZE_UNKNOWN, 16384, read_stream, s, free_stream);
	if (response)
		(void)MHD_add_response_header(
			response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
	else
		free_stream(s);
	v->is_stream = response != NULL;
	return send_response(connection, MHD_HTTP_OK, response);
}

unsigned http_watchers(const struct http *h)
{
	return h ? h->n_streams : 0;
}

void http_send(struct http *h, const char *name, const char *text)
{
	for (struct stream *s = h->streams; s; s = s->next) {
		queue_text(s, "event: ");
		queue_text(s, name);
		queue_text(s, "\ndata: ");
		queue_text(s, text);
		queue_text(s, "\n\n");
		resume_stream(s);
	}
	if (h->streams)
		run_daemon(h);
}

/* ---- the token ----------------------------------------------------------------------------- */

int http_read_token(const char *path, char token[HTTP_TOKEN], struct err *e)
{
	static const char allowed[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
	char text[HTTP_TOKEN + 1];
	int fd = key_open(path, KEY_NOT_READ, e);

	if (fd < 0)
		return err_set(e, PS_EUSAGE, "--http-token: %.400s", e->text);
	/* if this reads more than a token and a newline, the file is too long */
	ssize_t got = read(fd, text, sizeof(text));
	close(fd);
	if (got < 0)
		return err_set(e, PS_EUSAGE, "--http-token: %.200s: %s", path, strerror(errno));
	size_t n = (size_t)got;
	if (n > 0 && text[n - 1] == '\n')
		n--;
	memcpy(token, text, n < HTTP_TOKEN ? n : HTTP_TOKEN - 1);
	token[n < HTTP_TOKEN ? n : HTTP_TOKEN - 1] = '\0';
	explicit_bzero(text, sizeof(text));
	if (n < MIN_TOKEN || n >= HTTP_TOKEN || strspn(token, allowed) != n)
		return err_set(e, PS_EUSAGE,
			"--http-token: %.200s: expected %u to %d letters, digits, -, ., _ or ~",
			path, MIN_TOKEN, HTTP_TOKEN - 1);
	return PS_OK;
}

/* Returns 1 if `given` is the token. The time that the comparison takes does not depend on the
 * place of the first wrong character, so that a client cannot guess the token character by
 * character. */
static int is_token(const struct http *h, const char *given, size_t n)
{
	size_t length = strlen(h->token);
	unsigned char differs = n != length;

	for (size_t i = 0; i < n; i++)
		differs |= (unsigned char)(given[i] ^ h->token[i % length]);
	return !differs;
}

static int is_probe(const char *path)
{
	return strcmp(path, "/healthz") == 0 || strcmp(path, "/livez") == 0;
}

static int may_read(const struct http *h, struct MHD_Connection *connection, const char *path)
{
	static const char bearer[] = "Bearer ";
	const char *header = MHD_lookup_connection_value(
		connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
	const char *cookie = MHD_lookup_connection_value(connection, MHD_COOKIE_KIND, h->cookie);

	if (!h->token || is_probe(path))
		return 1;
	if (header && strncasecmp(header, bearer, sizeof(bearer) - 1) == 0)
		return is_token(
			h, header + sizeof(bearer) - 1, strlen(header + sizeof(bearer) - 1));
	return cookie && is_token(h, cookie, strlen(cookie));
}

static enum MHD_Result send_form(
	struct MHD_Connection *connection, const char *path, const char *words)
{
	static const char page[] =
		"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
		"content='width=device-width'><meta name=color-scheme content='light dark'>"
		"<title>cnn-ps</title><style>body{font:16px/1.5 "
		"system-ui,sans-serif;max-width:22em;"
		"margin:15vh auto;padding:0 1em}input,button{font:inherit;width:100%;padding:.5em;"
		"margin:.3em 0;box-sizing:border-box}</style><main><h1>cnn-ps</h1><form "
		"method=post "
		"action=/login><label>Token (the content of the file of <span "
		"style=white-space:nowrap>--http-token</span>) <input name=token type=password "
		"required autofocus "
		"autocomplete=current-password></label><button>Open</button></form><p role=status>";

	if (strcmp(path, "/") != 0 && strcmp(path, "/login") != 0)
		return send_text(connection, MHD_HTTP_UNAUTHORIZED, "this needs the token\n");
	char *text = mem_try(sizeof(page) + strlen(words), 1);
	if (!text)
		return MHD_NO;
	memcpy(text, page, sizeof(page) - 1);
	memcpy(text + sizeof(page) - 1, words, strlen(words) + 1);
	return send_page(connection, MHD_HTTP_UNAUTHORIZED, "text/html; charset=utf-8", text);
}

/* Answers with a redirect to the page, and sets the cookie `cookie` unless it is NULL. */
static enum MHD_Result send_to_page(struct MHD_Connection *connection, const char *cookie)
{
	char *empty = strdup("");
	const struct http_page page = {MHD_HTTP_SEE_OTHER, "text/plain", empty, NULL, 0};
	struct MHD_Response *response = empty ? page_response(&page) : NULL;

	if (response) {
		if (cookie)
			(void)MHD_add_response_header(response, MHD_HTTP_HEADER_SET_COOKIE, cookie);
		(void)MHD_add_response_header(response, MHD_HTTP_HEADER_LOCATION, "/");
	}
	return send_response(connection, MHD_HTTP_SEE_OTHER, response);
}

/* Returns the value of a hexadecimal digit, or -1. */
static int hex_digit(char c)
{
	static const char digits[] = "0123456789abcdefABCDEF";
	const char *at = c ? strchr(digits, c) : NULL;

	if (!at)
		return -1;
	return (int)(at - digits) - (*at >= 'A' && *at <= 'F' ? 6 : 0);
}

/* Decodes each %XX of a form's body in place. Browsers encode some characters that a token may
 * have, for example ~. */
static void decode_form(struct form *form)
{
	size_t n = 0;

	for (size_t i = 0; i < form->n; i++) {
		int high = -1, low = -1;

		if (form->body[i] == '%' && i + 2 < form->n) {
			high = hex_digit(form->body[i + 1]);
			low = hex_digit(form->body[i + 2]);
		}
		if (high >= 0 && low >= 0) {
			form->body[n++] = (char)(high << 4 | low);
			i += 2;
		} else if (form->body[i] == '+') {
			form->body[n++] = ' ';
		} else {
			form->body[n++] = form->body[i];
		}
	}
	form->n = n;
}

/* Answers the form: sets the cookie if the token is right, otherwise sends the form again. The
 * token is in a cookie, because the browser's EventSource cannot send a header of its own. Scripts
 * cannot read the cookie. */
static enum MHD_Result log_in(
	const struct http *h, struct MHD_Connection *connection, struct form *form)
{
	static const char field[] = "token=";
	char cookie[HTTP_TOKEN + 128];
	size_t from = sizeof(field) - 1;

	decode_form(form);
	while (form->n > from && form->body[form->n - 1] == ' ')
		form->n--;
	while (from < form->n && form->body[from] == ' ')
		from++;
	if (form->n < from || memcmp(form->body, field, sizeof(field) - 1) != 0 ||
		!is_token(h, form->body + from, form->n - from))
		return send_form(connection, "/login", "That is not the token.");
	snprintf(cookie, sizeof(cookie),
		"%s=%s; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000", h->cookie, h->token);
	return send_to_page(connection, cookie);
}

/* Reads the body of the form, which may arrive in several calls, and answers when the body is
 * complete. */
static enum MHD_Result read_form(struct http *h, struct MHD_Connection *connection,
	const char *body, size_t *body_size, void **state)
{
	struct form *form = *state;

	if (!form) {
		*state = mem_try(1, sizeof(*form));
		return *state ? MHD_YES : MHD_NO;
	}
	if (*body_size == 0)
		return log_in(h, connection, form);
	for (size_t i = 0; i < *body_size && form->n < sizeof(form->body); i++)
		form->body[form->n++] = body[i];
	*body_size = 0;
	return MHD_YES;
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **state,
	enum MHD_RequestTerminationCode code)
{
	struct http *h = arg;
	struct visitor *v = visitor_of(h, fd_of(connection));

	(void)code;
	if (v) {
		v->is_stream = 0;
		v->answer = NULL;
		begin_time(h, v);
		v->limit_ms = REQUEST_MS;
	}
	free(*state);
	*state = NULL;
}

/* ---- requests ------------------------------------------------------------------------------ */

/* Returns 1 if a page may be made now. Without this limit, a client that requests pages as fast as
 * it can would take the loop's time from the workers. */
static int has_page_time(struct http *h)
{
	const uint64_t now_ns = uv_hrtime();

	h->page_ns += (int64_t)((now_ns - h->counted_ns) / PAGE_PART);
	h->counted_ns = now_ns;
	if (h->page_ns > BURST_NS)
		h->page_ns = BURST_NS;
	return h->page_ns > 0;
}

static enum MHD_Result answer_get(
	struct http *h, struct MHD_Connection *connection, const char *path, int is_get)
{
	struct http_page page = {0};

	if (!may_read(h, connection, path))
		return send_form(connection, path, "");
	if (h->token && strcmp(path, "/login") == 0)
		return send_to_page(connection, NULL);
	if (is_get && strcmp(path, "/events") == 0)
		return open_stream(h, connection);
	const int is_counted = !h->token && !is_probe(path);
	if (is_counted && !has_page_time(h))
		return send_text(
			connection, MHD_HTTP_TOO_MANY_REQUESTS, "too many requests: try again\n");
	const double begin_s = clock_thread_seconds();
	h->page(h->arg, path, &page);
	h->page_ns -= is_counted ? (int64_t)((clock_thread_seconds() - begin_s) * 1e9) : 0;
	if (page.code == 0)
		return send_text(connection, MHD_HTTP_NOT_FOUND,
			"/ /metrics /status /history /history/short /events /healthz /livez\n");
	if (!page.text && !page.fixed)
		return send_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory\n");
	struct visitor *v = visitor_of(h, fd_of(connection));
	if (v)
		v->limit_ms += (page.fixed ? page.fixed_bytes : strlen(page.text)) / BYTES_PER_MS;
	if (page.text && strlen(page.text) > SMALL_ANSWER)
		return send_large(h, connection, &page);
	return send_response(connection, page.code, page_response(&page));
}

/* Answers a request as soon as its header has arrived. The function reads the body only if the
 * request sends the form. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *path,
	const char *method, const char *version, const char *body, size_t *body_size, void **state)
{
	struct http *h = arg;
	int is_get = strcmp(method, MHD_HTTP_METHOD_GET) == 0;

	(void)version;
	if (!is_for_us(h, connection)) {
		*body_size = 0;
		return send_text(connection, MHD_HTTP_FORBIDDEN, "not the host of this page\n");
	}
	struct visitor *v = visitor_of(h, fd_of(connection));
	if (v && !*state)
		begin_time(h, v);
	if (h->token && strcmp(method, MHD_HTTP_METHOD_POST) == 0 && strcmp(path, "/login") == 0)
		return read_form(h, connection, body, body_size, state);
	if (!is_get && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return send_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET or HEAD\n");
	*body_size = 0;
	return answer_get(h, connection, path, is_get);
}

/* ---- in the loop --------------------------------------------------------------------------- */

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

/* Runs libmicrohttpd now, and again at its next time-out, at most MAX_SLEEP_MS later. The limit
 * MAX_SLEEP_MS is needed when libmicrohttpd had as many connections as allowed: it accepts new ones
 * only in its next run, and sets no time-out for that run. */
static void run_daemon(struct http *h)
{
	MHD_UNSIGNED_LONG_LONG ms;

	(void)MHD_run(h->daemon);
	close_slow(h);
	if (MHD_get_timeout(h->daemon, &ms) != MHD_YES || ms > MAX_SLEEP_MS)
		ms = MAX_SLEEP_MS;
	uv_timer_start(&h->timer, on_http_timer, ms, 0);
}

size_t http_large_bytes(const struct http *h)
{
	return h ? h->answer_bytes + h->stream_bytes : 0;
}

void http_end_large(struct http *h)
{
	for (const struct answer *a = h->answers; a; a = a->next)
		end_answer(h, a);
	for (struct stream *s = h->streams; s; s = s->next)
		if (s->room > SMALL_STREAM) {
			end_stream(s);
			resume_stream(s);
		}
	/* one run detects that a connection has ended, and a later one frees it */
	for (int i = 0; i < END_RUNS && h->answers; i++)
		(void)MHD_run(h->daemon);
	run_daemon(h);
}

static int watch_daemon(struct http *h, struct err *e)
{
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);

	if (!info || uv_poll_init(h->loop, &h->poll, info->epoll_fd) != 0)
		return err_set(e, PS_ENET, "HTTP: the loop cannot watch it");
	uv_timer_init(h->loop, &h->timer);
	h->poll.data = h->timer.data = h;
	h->page_ns = BURST_NS;
	h->counted_ns = uv_hrtime();
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

/* From now on, libmicrohttpd gets a new connection when its first bytes have arrived, or after a
 * second. So a request that arrives with its connection is answered before later connections can
 * cause close_oldest to close it, even if an attacker at the same address opens any number of
 * connections. Without this option of the kernel, /healthz could remain unanswered. */
static void accept_requests_only(const struct http *h)
{
	const union MHD_DaemonInfo *info =
		MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_LISTEN_FD);
	const int seconds = 1;

	if (info)
		(void)setsockopt(
			info->listen_fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof(seconds));
}

static int start_daemon(
	struct http *h, const struct endpoint *to, const struct addrinfo *at, struct err *e)
{
	unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME |
			 (at->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0u);

	errno = 0;
	h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_SOCK_ADDR,
		at->ai_addr, MHD_OPTION_CONNECTION_LIMIT, MAX_CONNECTIONS,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, MAX_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
		IDLE_S, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_NOTIFY_COMPLETED,
		on_completed, h, MHD_OPTION_END);
	if (!h->daemon)
		return cannot_listen(to, errno, e);
	accept_requests_only(h);
	h->is_loopback = address_is_loopback(at->ai_addr);
	const union MHD_DaemonInfo *info =
		MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
	int six = at->ai_family == AF_INET6;
	snprintf(h->cookie, sizeof(h->cookie), COOKIE "%u", info ? info->port : 0u);
	snprintf(h->url, sizeof(h->url), "http://%s%s%s:%u", six ? "[" : "", to->host,
		six ? "]" : "", info ? info->port : 0u);
	return PS_OK;
}

static int listen_at(struct http *h, const char *address, struct err *e)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	struct addrinfo *found;
	struct endpoint to;

	if (endpoint_parse_address(address, &to) && endpoint_parse_port(address, &to))
		return err_set(e, PS_EUSAGE, "--http %.100s: expected HOST:PORT or PORT", address);
	int rc = getaddrinfo(to.host, to.port, &hints, &found);
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

void http_require(struct http *h, const char *token)
{
	h->token = token;
}

/* Ends all streams, because libmicrohttpd does not stop while a connection is suspended. Each
 * stream first sends its remaining events, such as the end of the run. The function waits at most
 * LAST_MS for clients that do not read them. */
static void end_streams(struct http *h)
{
	const uint64_t end = uv_hrtime() + LAST_MS * (uint64_t)1000000;
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	struct pollfd ready = {.fd = info ? info->epoll_fd : -1, .events = POLLIN};

	for (struct stream *s = h->streams; s; s = s->next) {
		s->ends = 1;
		resume_stream(s);
	}
	(void)MHD_run(h->daemon);
	while (h->streams && uv_hrtime() < end) {
		(void)poll(&ready, 1, LAST_POLL_MS);
		(void)MHD_run(h->daemon);
	}
}

void http_stop(struct http *h)
{
	end_streams(h);
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
		end_streams(*h);
	if ((*h)->daemon)
		MHD_stop_daemon((*h)->daemon);
	free(*h);
	*h = NULL;
}
