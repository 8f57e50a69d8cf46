/*
 * test_server_http.c - the pages of server/monitor/http.h: answers, refusals and limits. This file
 * also proves that a page does not delay the event loop.
 * Covers attacks A2 and A3 of docs/faults.md.
 */
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/clock.h"
#include "server/monitor/http.h"
#include "tests/support/test.h"

#define DEADLINE_MS 20000
#define LARGE       (1 << 20) /* the size of the page /large in bytes */
#define SLOW_MS     25        /* processor time of the page /slow in milliseconds */
#define HUGE        (4 << 20) /* the size of the pages /same and /new */
#define MANY        40        /* connections of slow readers */

static uv_loop_t loop;
static uint64_t frozen_ms; /* the time at which the clock stands still; 0: the clock runs */
static uint64_t rested_ns; /* time that a test has added to the clock of uv_hrtime */
static struct http *http;
static char answer[2 * LARGE];
static int pages; /* number of requests for pages so far */

/* Replaces libuv's function uv_now, so that a test can let time pass at once. */
uint64_t uv_now(const uv_loop_t *l)
{
	(void)l;
	return frozen_ms ? frozen_ms : clock_ms();
}

/* Replaces the clock of the limit on the processor time of all pages. */
uint64_t uv_hrtime(void)
{
	return (frozen_ms ? frozen_ms : clock_ms()) * 1000000 + rested_ns;
}

/* Returns the processor time of this thread in milliseconds. */
static uint64_t used_ms(void)
{
	struct timespec t;

	assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void work_for(uint64_t ms)
{
	const uint64_t end = used_ms() + ms;

	while (used_ms() < end)
		;
}

static void on_test_page(void *arg, const char *path, struct http_page *page)
{
	assert_ptr_equal(arg, &pages);
	pages++;
	if (strcmp(path, "/ok") == 0 || strcmp(path, "/healthz") == 0)
		*page = (struct http_page){
			.code = 200, .type = "text/x-test", .text = strdup("fine\n")};
	else if (strcmp(path, "/bad") == 0)
		*page = (struct http_page){
			.code = 503, .type = "text/plain", .text = strdup("not well\n")};
	else if (strcmp(path, "/none") == 0)
		*page = (struct http_page){.code = 200, .type = "text/plain", .text = NULL};
	else if (strcmp(path, "/large") == 0)
		*page = (struct http_page){
			.code = 200, .type = "text/plain", .text = calloc(1, LARGE + 1)};
	else if (strcmp(path, "/slow") == 0) {
		work_for(SLOW_MS);
		*page = (struct http_page){
			.code = 200, .type = "text/plain", .text = strdup("slow\n")};
	}
	const int is_new = strncmp(path, "/new", 4) == 0;
	if (is_new || strcmp(path, "/same") == 0) {
		*page = (struct http_page){.code = 200, .type = "text/x-test"};
		page->text = malloc(HUGE + 1);
		assert_non_null(page->text);
		memset(page->text, is_new ? 'a' + pages % 26 : 'x', HUGE);
		page->text[HUGE] = '\0';
	}
	if (strcmp(path, "/beyond") == 0) { /* above the limit for all large answers together */
		*page = (struct http_page){.code = 200, .type = "text/x-test"};
		page->text = malloc(4 * HUGE + 1);
		assert_non_null(page->text);
		memset(page->text, 'y', 4 * HUGE);
		page->text[4 * HUGE] = '\0';
	}
	if (page->text && strcmp(path, "/large") == 0)
		memset(page->text, 'x', LARGE);
}

static int set_up_http(void **state)
{
	struct err e;

	(void)state;
	pages = 0;
	frozen_ms = rested_ns = 0;
	return uv_loop_init(&loop) ||
	       http_new(&http, &loop, "127.0.0.1:0", on_test_page, &pages, &e);
}

static int tear_down_http(void **state)
{
	(void)state;
	frozen_ms = 0;
	http_stop(http);
	uv_run(&loop, UV_RUN_DEFAULT);
	http_free(&http);
	assert_null(http);
	return uv_loop_close(&loop);
}

static int connect_to_http(int fd)
{
	const char *colon = strrchr(http_url(http), ':');
	struct sockaddr_in at = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10)),
		.sin_addr = {htonl(INADDR_LOOPBACK)}};

	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	return fd;
}

static int dial_http(void)
{
	return connect_to_http(socket(AF_INET, SOCK_STREAM, 0));
}

/* Runs the event loop until the server closes the connection or the answer contains `end`. Returns
 * the length of the answer. */
static size_t read_answer(int fd, const char *end)
{
	const uint64_t deadline = clock_ms() + DEADLINE_MS;
	size_t n = 0;

	for (;;) {
		ssize_t got = recv(fd, answer + n, sizeof(answer) - 1 - n, 0);

		if (got > 0)
			n += (size_t)got;
		answer[n] = '\0';
		if (got == 0 || (got < 0 && errno == ECONNRESET) || (end && strstr(answer, end)))
			return n;
		assert_true(clock_ms() < deadline);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
}

static size_t http_answer_bytes(const char *request)
{
	int fd = dial_http();

	assert_int_equal(send(fd, request, strlen(request), 0), (ssize_t)strlen(request));
	size_t n = read_answer(fd, NULL);
	close(fd);
	return n;
}

static size_t http_get_bytes(const char *path)
{
	char request[256];

	snprintf(request, sizeof(request),
		"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
	return http_answer_bytes(request);
}

static const char *body(void)
{
	const char *blank = strstr(answer, "\r\n\r\n");

	assert_non_null(blank);
	return blank + 4;
}

TEST_IN(a_page_arrives_with_its_type, set_up_http, tear_down_http)
{
	http_get_bytes("/ok");
	assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
	assert_non_null(strstr(answer, "Content-Type: text/x-test\r\n"));
	assert_string_equal(body(), "fine\n");
}

TEST_IN(a_page_may_have_another_code, set_up_http, tear_down_http)
{
	http_get_bytes("/bad");
	assert_int_equal(strncmp(answer, "HTTP/1.1 503 ", 13), 0);
	assert_string_equal(body(), "not well\n");
}

TEST_IN(an_unknown_page_is_404_and_lists_the_known, set_up_http, tear_down_http)
{
	http_get_bytes("/nothing");
	assert_int_equal(strncmp(answer, "HTTP/1.1 404 ", 13), 0);
	assert_non_null(strstr(body(), "/metrics"));
	http_get_bytes("/../../etc/passwd");
	assert_int_equal(strncmp(answer, "HTTP/1.1 404 ", 13), 0);
}

TEST_IN(a_page_without_memory_is_503, set_up_http, tear_down_http)
{
	http_get_bytes("/none");
	assert_int_equal(strncmp(answer, "HTTP/1.1 503 ", 13), 0);
}

TEST_IN(head_has_no_body, set_up_http, tear_down_http)
{
	http_answer_bytes("HEAD /ok HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
	assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
	assert_string_equal(body(), "");
}

TEST_IN(only_get_and_head_are_allowed, set_up_http, tear_down_http)
{
	static const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS", "FETCH"};
	char request[256];

	for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
		snprintf(request, sizeof(request),
			"%s /ok HTTP/1.1\r\nHost: localhost\r\nConnection: "
			"close\r\nContent-Length: "
			"0\r\n\r\n",
			methods[i]);
		http_answer_bytes(request);
		assert_int_equal(strncmp(answer, "HTTP/1.1 405 ", 13), 0);
		assert_non_null(strstr(answer, "Allow: GET, HEAD\r\n"));
	}
	assert_int_equal(pages, 0);
}

TEST_IN(an_announced_body_is_not_waited_for, set_up_http, tear_down_http)
{
	http_answer_bytes(
		"POST /ok HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\nx");
	assert_int_equal(strncmp(answer, "HTTP/1.1 405 ", 13), 0);
}

TEST_IN(a_large_page_arrives_whole, set_up_http, tear_down_http)
{
	size_t n = http_get_bytes("/large");

	assert_true(n > LARGE);
	const char *b = body();
	assert_int_equal(strspn(b, "x"), LARGE);
	assert_int_equal(strlen(b), LARGE);
}

TEST_IN(a_connection_has_one_answer, set_up_http, tear_down_http)
{
	const char *two = "GET /ok HTTP/1.1\r\nHost: localhost\r\n\r\n"
			  "GET /bad HTTP/1.1\r\nHost: localhost\r\n\r\n";

	http_answer_bytes(two);
	assert_non_null(strstr(answer, "fine\n"));
	assert_null(strstr(answer, "not well"));
	assert_int_equal(pages, 1);
}

/* A flood of requests must get only a limited part of the event loop's time, and /healthz must be
 * answered all the while. */
TEST_IN(a_flood_of_requests_leaves_time_for_the_loop, set_up_http, tear_down_http)
{
	uint64_t shown = 0;

	frozen_ms = clock_ms(); /* while no time passes, pages may use 500 ms */
	for (int i = 0; i < 40; i++) {
		http_get_bytes("/slow");
		shown += strncmp(answer, "HTTP/1.1 200 ", 13) == 0;
	}
	assert_in_range(shown * SLOW_MS, 100, 550);
	assert_int_equal(strncmp(answer, "HTTP/1.1 429 ", 13), 0);
	frozen_ms += 1000;
	http_get_bytes("/slow");
	assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
	http_get_bytes("/healthz");
	assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
}

TEST_IN(garbage_is_hung_up_on, set_up_http, tear_down_http)
{
	static const char *const junk[] = {
		"\x01\x02\x03\r\n\r\n", "GET\r\n\r\n", "\xff\r\n\r\n", "GET /ok HTTP/9.9\r\n\r\n"};
	char endless[64 * 1024 + 1];

	for (size_t i = 0; i < sizeof(junk) / sizeof(junk[0]); i++) {
		http_answer_bytes(junk[i]);
		assert_null(strstr(answer, " 200 "));
	}
	memset(endless, 'a', sizeof(endless) - 1);
	endless[sizeof(endless) - 1] = '\0';
	memcpy(endless, "GET /", 5);
	http_answer_bytes(endless);
	assert_null(strstr(answer, " 200 "));
	http_get_bytes("/ok");
	assert_string_equal(body(), "fine\n");
}

/* The server holds a bounded number of connections that send nothing, and closes each of them after
 * some seconds. */
TEST_IN(silent_connections_are_bounded_and_end, set_up_http, tear_down_http)
{
	int fd[100];
	char byte;

	for (size_t i = 0; i < 100; i++) {
		fd[i] = dial_http();
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	const uint64_t begin = clock_ms();
	for (int open = 100; open > 0;) {
		assert_true(clock_ms() - begin < DEADLINE_MS);
		uv_run(&loop, UV_RUN_NOWAIT);
		open = 0;
		for (size_t i = 0; i < 64; i++)
			open += recv(fd[i], &byte, 1, MSG_PEEK) < 0 && errno == EAGAIN;
	}
	assert_true(clock_ms() - begin > 2000);
	for (size_t i = 0; i < 100; i++)
		close(fd[i]);
	http_get_bytes("/ok");
	assert_string_equal(body(), "fine\n");
}

/* Returns 1 if the server closes the connection `fd` within `ms` milliseconds. */
static int is_hung_up_on(int fd, uint64_t ms)
{
	const uint64_t end = clock_ms() + ms;
	char byte;

	while (clock_ms() < end) {
		uv_run(&loop, UV_RUN_NOWAIT);
		if (recv(fd, &byte, 1, MSG_PEEK) >= 0 || errno != EAGAIN)
			return 1;
	}
	return 0;
}

/* A client sends its header slowly, so that its connection is never idle for long. The server
 * limits the time of the whole header to 10 s. */
TEST_IN(a_header_that_never_ends_is_not_waited_for, set_up_http, tear_down_http)
{
	static const char start[] = "GET /ok HTTP/1.1\r\nX: ";

	frozen_ms = clock_ms();
	int fd = dial_http();
	assert_int_equal(send(fd, start, strlen(start), 0), (ssize_t)strlen(start));
	assert_false(is_hung_up_on(fd, 1000));
	frozen_ms += 10000;
	assert_int_equal(send(fd, "x", 1, 0), 1);
	assert_false(is_hung_up_on(fd, 1000));
	frozen_ms += 1;
	int is_closed = 0;
	for (int i = 0; i < 8 && !is_closed; i++) { /* libmicrohttpd closes a silent connection */
		(void)!send(fd, "x", 1, MSG_NOSIGNAL);
		is_closed = is_hung_up_on(fd, 1000);
	}
	assert_true(is_closed);
	frozen_ms = 0;
	close(fd);
	http_get_bytes("/ok");
	assert_string_equal(body(), "fine\n");
}

/* 64 clients, as many as the server accepts, begin requests and do not complete them. The next
 * client must still get its page, because the server closes the oldest connection. */
TEST_IN(slow_clients_do_not_silence_a_page, set_up_http, tear_down_http)
{
	static const char start[] = "GET /ok HTTP/1.1\r\nX: ";
	int fd[64];

	for (size_t i = 0; i < 64; i++) {
		fd[i] = dial_http();
		assert_int_equal(send(fd[i], start, strlen(start), 0), (ssize_t)strlen(start));
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	const uint64_t begin = clock_ms();
	http_get_bytes("/ok");
	assert_string_equal(body(), "fine\n");
	assert_true(clock_ms() - begin < 2000);
	for (size_t i = 0; i < 64; i++)
		close(fd[i]);
}

/* A client sends its request in one piece, some time after it has connected. Meanwhile another
 * program with the same address opens more connections than the server keeps. */
TEST_IN(many_connections_do_not_close_one_before_its_request, set_up_http, tear_down_http)
{
	static const char request[] = "GET /ok HTTP/1.1\r\nHost: localhost\r\n\r\n";
	int fd[64], honest = dial_http();

	for (size_t i = 0; i < 64; i++) {
		fd[i] = dial_http();
		assert_int_equal(send(fd[i], "GET ", 4, 0), 4);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	assert_int_equal(
		send(honest, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
	read_answer(honest, "fine\n");
	assert_string_equal(body(), "fine\n");
	for (size_t i = 0; i < 64; i++)
		close(fd[i]);
	close(honest);
}

/* Opens a connection and sends a part of a request. */
static int begin_request(const char *part)
{
	int fd = dial_http();

	assert_int_equal(send(fd, part, strlen(part), 0), (ssize_t)strlen(part));
	uv_run(&loop, UV_RUN_NOWAIT);
	uv_run(&loop, UV_RUN_NOWAIT);
	return fd;
}

/* A client sends its request in two pieces. Between them, ten newer connections of the same address
 * make the server close older ones. All connections begin in the same millisecond, and the client's
 * connection has the table entry of the very first one, which has ended. Nevertheless, the client's
 * connection must stay open. */
TEST_IN(the_oldest_connection_of_a_millisecond_is_closed, set_up_http, tear_down_http)
{
	static const char rest[] = "ok HTTP/1.1\r\nHost: localhost\r\n\r\n";
	int fd[58], honest;

	frozen_ms = clock_ms();
	for (size_t i = 0; i < 48; i++)
		fd[i] = begin_request("GET ");
	close(fd[0]);
	fd[0] = -1;
	for (uint64_t begin = clock_ms(); clock_ms() - begin < 20;)
		uv_run(&loop, UV_RUN_NOWAIT);
	honest = begin_request("GET /");
	for (size_t i = 48; i < 58; i++)
		fd[i] = begin_request("GET ");
	assert_int_equal(send(honest, rest, strlen(rest), MSG_NOSIGNAL), (ssize_t)strlen(rest));
	read_answer(honest, "fine\n");
	assert_string_equal(body(), "fine\n");
	for (size_t i = 1; i < 58; i++)
		close(fd[i]);
	close(honest);
}

/* A client with another address opened its connection before all others, and completes its request
 * late. The server must close only connections of the address with the most connections. */
TEST_IN(many_connections_of_one_address_do_not_close_those_of_another, set_up_http, tear_down_http)
{
	const struct sockaddr_in other = {
		.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK + 1)}};
	static const char rest[] = "ok HTTP/1.1\r\nHost: localhost\r\n\r\n";
	int fd[64], honest = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(honest, (const struct sockaddr *)&other, sizeof(other)), 0);
	connect_to_http(honest);
	assert_int_equal(send(honest, "GET /", 5, 0), 5);
	for (size_t i = 0; i < 64; i++) {
		for (uint64_t begin = clock_ms(); i == 0 && clock_ms() - begin < 20;)
			/* wait 20 ms, so that `honest` is the oldest connection */
			uv_run(&loop, UV_RUN_NOWAIT);
		fd[i] = dial_http();
		assert_int_equal(send(fd[i], "GET ", 4, 0), 4);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	http_get_bytes("/ok");
	assert_string_equal(body(), "fine\n");
	assert_int_equal(send(honest, rest, strlen(rest), MSG_NOSIGNAL), (ssize_t)strlen(rest));
	read_answer(honest, "fine\n");
	assert_string_equal(body(), "fine\n");
	for (size_t i = 0; i < 64; i++)
		close(fd[i]);
	close(honest);
}

/* A stream stays open without new requests. The server must not treat a stream as a slow or old
 * connection. */
TEST_IN(slow_clients_do_not_end_a_stream, set_up_http, tear_down_http)
{
	static const char watch[] = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
	int fd[64], stream = dial_http();

	assert_int_equal(send(stream, watch, strlen(watch), 0), (ssize_t)strlen(watch));
	read_answer(stream, "retry: 1000");
	assert_int_equal(http_watchers(http), 1);
	for (size_t i = 0; i < 64; i++) {
		fd[i] = dial_http();
		assert_int_equal(send(fd[i], "GET ", 4, 0), 4);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	http_get_bytes("/ok");
	assert_string_equal(body(), "fine\n");
	http_send(http, "line", "{}");
	read_answer(stream, "event: line\ndata: {}\n\n");
	for (size_t i = 0; i < 64; i++)
		close(fd[i]);
	close(stream);
}

/* Requests a stream. `address` is the last byte of the client's address, 127.0.0.`address`. Reads
 * the answer until `end`, and returns the connection. */
static int open_events(uint32_t address, const char *end)
{
	static const char watch[] = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
	const struct sockaddr_in from = {
		.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK - 1 + address)}};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(fd, (const struct sockaddr *)&from, sizeof(from)), 0);
	connect_to_http(fd);
	assert_int_equal(send(fd, watch, strlen(watch), 0), (ssize_t)strlen(watch));
	read_answer(fd, end);
	assert_non_null(strstr(answer, end));
	return fd;
}

static int is_open(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_PEEK) < 0 && errno == EAGAIN;
}

static void wait_for_watchers(unsigned n)
{
	const uint64_t deadline = clock_ms() + DEADLINE_MS;

	while (http_watchers(http) != n) {
		assert_true(clock_ms() < deadline);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
}

static void close_all(const int *fd, size_t n)
{
	for (size_t i = 0; i < n; i++)
		close(fd[i]);
}

/* A client of one address has opened all 16 streams and reads nothing. Nevertheless, other
 * addresses get streams, until each address has about as many as the first one. For this, the
 * server ends only the oldest streams. */
TEST_IN(the_streams_of_one_address_give_way_to_others, set_up_http, tear_down_http)
{
	int fd[32];
	size_t n = 0;

	while (n < 16)
		fd[n++] = open_events(1, "retry: 1000");
	while (n < 24)
		fd[n++] = open_events(2, "retry: 1000");
	for (size_t i = 0; i < 8; i++)
		read_answer(fd[i], NULL);
	for (size_t i = 8; i < n; i++)
		assert_true(is_open(fd[i]));
	wait_for_watchers(16);
	fd[n++] = open_events(2, " 503 ");
	fd[n++] = open_events(1, " 503 ");
	close_all(fd, n);
}

/* Two programs on one machine have the same address. If all 16 streams are in use, a new stream
 * replaces a stream that is at least a minute old. */
TEST_IN(the_streams_of_one_address_take_turns, set_up_http, tear_down_http)
{
	int fd[19];
	size_t n = 0;

	frozen_ms = clock_ms();
	while (n < 16)
		fd[n++] = open_events(1, "retry: 1000");
	frozen_ms += 59999;
	fd[n++] = open_events(1, " 503 ");
	frozen_ms += 1;
	fd[n++] = open_events(1, "retry: 1000");
	read_answer(fd[0], NULL);
	assert_true(is_open(fd[1]));
	wait_for_watchers(16);
	close_all(fd, n);
}

/* Requests a page with a small receive buffer, and reads only the beginning of the answer, which
 * must contain `code`. Returns the connection. Before that, lets 10 s pass for the limit on the
 * processor time of pages: on a slow machine, 40 large pages would reach this limit. */
static int begin_reading(const char *path, const char *code)
{
	const int bytes = 4096;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char request[128];

	rested_ns += UINT64_C(10000000000);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
	connect_to_http(fd);
	snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
	assert_int_equal(send(fd, request, strlen(request), 0), (ssize_t)strlen(request));
	ssize_t n = 0;
	for (uint64_t end = clock_ms() + DEADLINE_MS; n <= 0; n = recv(fd, answer, 12, 0)) {
		assert_true(clock_ms() < end);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	answer[n] = '\0';
	assert_non_null(strstr(answer, code));
	return fd;
}

/* libmicrohttpd itself ends an answer if the client has read nothing for 5 s, so this function
 * waits less. */
static void wait_for_large_bytes(size_t max)
{
	const uint64_t deadline = clock_ms() + 3000;

	while (http_large_bytes(http) > max) {
		assert_true(clock_ms() < deadline);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
}

TEST_IN(slow_readers_share_a_large_answer, set_up_http, tear_down_http)
{
	int fd[MANY];

	for (size_t i = 0; i < MANY; i++) {
		fd[i] = begin_reading("/same", " 200");
		assert_int_equal(http_large_bytes(http), HUGE);
	}
	for (size_t i = 0; i < MANY; i++)
		close(fd[i]);
	wait_for_large_bytes(0);
}

TEST_IN(large_answers_have_a_limit, set_up_http, tear_down_http)
{
	int fd[MANY];
	size_t n = 0;

	while (n < 3)
		fd[n++] = begin_reading("/new", " 200");
	while (n < 10)
		fd[n++] = begin_reading("/new", " 503");
	assert_int_equal(http_large_bytes(http), 3 * HUGE);
	http_get_bytes("/new");
	assert_non_null(strstr(answer, "Retry-After: 1\r\n"));
	http_get_bytes("/ok"); /* the limit on large answers must not affect small ones */
	assert_string_equal(body(), "fine\n");
	close_all(fd, n);
	wait_for_large_bytes(0);
	close(begin_reading("/new", " 200"));
}

/* A client that reads slowly has 10 s for itself. After that its answer ends if another client
 * requests a large answer and there is no room. */
TEST_IN(the_oldest_large_answer_makes_room, set_up_http, tear_down_http)
{
	int fd[8];
	size_t n = 0;

	frozen_ms = clock_ms();
	while (n < 3)
		fd[n++] = begin_reading("/new", " 200");
	frozen_ms += 10000;
	fd[n++] = begin_reading("/new", " 503");
	wait_for_large_bytes(3 * HUGE);
	frozen_ms += 1;
	fd[n++] = begin_reading("/new", " 503");
	wait_for_large_bytes(2 * HUGE);
	fd[n++] = begin_reading("/new", " 200");
	read_answer(fd[0], NULL); /* the oldest one has ended */
	close_all(fd, n);
}

/* A single answer may be larger than the limit on all large answers together: the history of a long
 * run can be. */
TEST_IN(a_single_answer_may_have_any_size, set_up_http, tear_down_http)
{
	int fd = begin_reading("/beyond", " 200");

	assert_int_equal(http_large_bytes(http), 4 * HUGE);
	close(begin_reading("/new", " 503"));
	close(fd);
}

TEST_IN(unread_events_have_a_limit, set_up_http, tear_down_http)
{
	static char event[100001];
	int fd[16];

	memset(event, 'x', sizeof(event) - 1);
	for (size_t i = 0; i < 16; i++)
		fd[i] = open_events((uint32_t)i + 1, "retry: 1000");
	for (int i = 0; i < 200; i++) {
		http_send(http, "line", event);
		assert_true(http_large_bytes(http) <= 8 << 20);
	}
	close_all(fd, 16);
}

/* http_end_large, which the server calls when it needs memory, must end the large answers. */
TEST_IN(large_answers_end_when_the_server_needs_memory, set_up_http, tear_down_http)
{
	static char event[100001];
	int fd = begin_reading("/same", " 200"), stream = open_events(1, "retry: 1000");

	memset(event, 'x', sizeof(event) - 1);
	while (http_large_bytes(http) <= HUGE)
		http_send(http, "line", event);
	http_end_large(http);
	assert_int_equal(http_large_bytes(http), 0);
	http_get_bytes("/ok");
	assert_string_equal(body(), "fine\n");
	close(fd);
	close(stream);
}

static void get_of_host(const char *host)
{
	char request[128];

	snprintf(request, sizeof(request),
		"GET /ok HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host);
	http_answer_bytes(request);
}

/* DNS rebinding: a malicious web page in the browser of a local user resolves its host name to
 * 127.0.0.1, and then requests the server's pages. */
TEST_IN(a_foreign_host_is_refused_on_loopback, set_up_http, tear_down_http)
{
	get_of_host("evil.example");
	assert_int_equal(strncmp(answer, "HTTP/1.1 403 ", 13), 0);
	get_of_host("127.0.0.1.evil.example:80");
	assert_int_equal(strncmp(answer, "HTTP/1.1 403 ", 13), 0);
	get_of_host("LOCALHOST:80");
	assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
	get_of_host("127.0.0.1");
	assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
	get_of_host("[::1]:9");
	assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
}

/* A proxy on this host may keep the name that the browser uses. A page with another name has no
 * token: browsers send the cookie only to the name that has set it. */
TEST_IN(a_token_replaces_the_check_of_the_host, set_up_http, tear_down_http)
{
	http_require(http, "correct-horse-battery-staple");
	get_of_host("runs.example");
	assert_int_equal(strncmp(answer, "HTTP/1.1 401 ", 13), 0);
	assert_int_equal(pages, 0);
	http_answer_bytes("GET / HTTP/1.1\r\nHost: runs.example\r\nConnection: close\r\n\r\n");
	assert_int_equal(strncmp(answer, "HTTP/1.1 401 ", 13), 0);
	assert_non_null(strstr(body(), "<form"));
	http_answer_bytes("GET /ok HTTP/1.1\r\nHost: runs.example\r\nConnection: close\r\n"
			  "Authorization: Bearer correct-horse-battery-staple\r\n\r\n");
	assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
	assert_string_equal(body(), "fine\n");
}

TEST(a_token_that_others_can_read_is_refused)
{
	char path[] = "/tmp/cnn-ps-token-XXXXXX", token[HTTP_TOKEN];
	int fd = mkstemp(path);
	struct err e;

	assert_int_equal(write(fd, "correct-horse-battery-staple\n", 29), 29);
	assert_int_equal(http_read_token(path, token, &e), PS_OK);
	assert_string_equal(token, "correct-horse-battery-staple");
	assert_int_equal(fchmod(fd, 0644), 0);
	assert_int_equal(http_read_token(path, token, &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, "permits others to read it"));
	close(fd);
	unlink(path);
}

TEST_IN(an_address_that_cannot_be_had_is_named, set_up_http, tear_down_http)
{
	static const char *const bad[] = {"192.0.2.1:0", "no-such-host.invalid:80"};
	struct http *second;
	struct err e;

	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(
			http_new(&second, &loop, bad[i], on_test_page, &pages, &e), PS_EUSAGE);
		assert_null(second);
		assert_non_null(strstr(e.text, "--http"));
	}
	assert_int_equal(http_new(&second, &loop, http_url(http) + strlen("http://"), on_test_page,
				 &pages, &e),
		PS_EUSAGE);
	/* the text of the error must contain the address and the port */
	assert_non_null(strstr(e.text, http_url(http) + strlen("http://")));
	assert_non_null(strstr(e.text, "already in use"));
	assert_true(http_is_loopback(http));
}
