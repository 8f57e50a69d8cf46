/*
 * http.c - fuzzes the pages of the server: a TCP connection sends the bytes of the input, and the
 * server answers or closes the connection. The bits of byte 0 choose how:
 *
 *   TOKEN     the server requires the token that is in http.dict
 *   HALVES    the bytes arrive in two halves, so that the body of a form can arrive in parts
 *
 * The port of the server changes from run to run, and the name of the cookie ends with it.
 * Therefore the target replaces each later byte PORT by the digits of the port. The target checks
 * that the server makes no pages but /healthz and /livez for a request that does not contain the
 * token. After every 16th input, the target checks that the server answers honest requests.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>
#include "common/endpoint.h"
#include "server/monitor/http.h"
#include "tests/support/fuzz_input.h"

#define TOKEN  1
#define HALVES 2
#define PORT   1 /* a control character that no valid request has */

static const char token[] = "0123456789abcdef";
static uv_loop_t loop;
static struct http *http;
static unsigned port;
static char digits[16]; /* the port as text */
static int n_pages;     /* the pages of the newest request, without /healthz and /livez */

static void page(void *arg, const char *path, struct http_page *p)
{
	static const char constant[] = "<!doctype html>";
	int is_probe = strcmp(path, "/healthz") == 0 || strcmp(path, "/livez") == 0;

	(void)arg;
	n_pages += !is_probe;
	if (!is_probe && strcmp(path, "/") != 0 && strcmp(path, "/status") != 0)
		return;
	p->code = 200;
	p->type = "text/plain";
	if (strcmp(path, "/") == 0) {
		p->fixed = constant;
		p->fixed_bytes = sizeof(constant) - 1;
	} else {
		p->text = strdup("ok\n");
	}
}

/* Send a request and run the loop until the server has answered or closed the connection, at most
 * `rounds` times. The server gets the first `first` bytes alone. Returns the number of bytes of the
 * answer. */
static size_t exchange_request(
	const char *data, size_t size, size_t first, int rounds, char *answer, size_t room)
{
	int fd = input_connect(port, data, first);
	ssize_t n = -1;

	PS_ASSERT(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	for (int i = 0; i < rounds && n < 0; i++) {
		uv_run(&loop, UV_RUN_NOWAIT);
		if (i == 2 && size > first)
			(void)!send(fd, data + first, size - first, MSG_NOSIGNAL);
		n = recv(fd, answer, room, 0);
		if (n < 0 && errno != EAGAIN)
			n = 0;
		if (n < 0 && i > 8)
			usleep(50);
	}
	http_send(http, "status", "{}");
	input_close(fd);
	uv_run(&loop, UV_RUN_NOWAIT);
	return n > 0 ? (size_t)n : 0;
}

static void check_answer(const char *request, const char *status)
{
	char answer[256];
	size_t size = strlen(request), n = strlen(status);
	size_t got = exchange_request(request, size, size, 20000, answer, sizeof(answer));

	PS_ASSERT(got > n && memcmp(answer, status, n) == 0);
}

static void check_pages(void)
{
	http_require(http, NULL);
	check_answer("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200 OK");
	http_require(http, token);
	check_answer("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200 OK");
	check_answer("GET /status HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 401");
	check_answer("GET /status HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer 0123456789abcdef\r\n"
		     "\r\n",
		"HTTP/1.1 200 OK");
}

static void open_http(void)
{
	struct err e = {0};
	struct endpoint at;

	PS_ASSERT(uv_loop_init(&loop) == 0);
	PS_ASSERT(http_new(&http, &loop, "127.0.0.1:0", page, NULL, &e) == 0);
	PS_ASSERT(endpoint_parse_address(http_url(http) + strlen("http://"), &at) == 0);
	port = at.number;
	snprintf(digits, sizeof(digits), "%u", port);
}

/* Copy the rest of the input to `request`, and put the port's digits in the place of each byte
 * PORT. Returns the number of bytes. */
static size_t copy_request(struct input *in, char *request, size_t room)
{
	size_t n = 0, n_digits = strlen(digits);

	while (in->left && n + n_digits <= room) {
		char c = (char)input_u8(in);

		if (c == PORT) {
			memcpy(request + n, digits, n_digits);
			n += n_digits;
		} else {
			request[n++] = c;
		}
	}
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char request[1 << 16];
	static unsigned n;
	struct input in = {data, size};
	char answer[256];

	if (!http)
		open_http();
	uint8_t how = input_u8(&in);
	size_t bytes = copy_request(&in, request, sizeof(request));
	http_require(http, how & TOKEN ? token : NULL);
	n_pages = 0;
	(void)exchange_request(
		request, bytes, how & HALVES ? bytes / 2 : bytes, 12, answer, sizeof(answer));
	PS_ASSERT(
		!(how & TOKEN) || n_pages == 0 || memmem(request, bytes, token, sizeof(token) - 1));
	if (++n % 16 == 0)
		check_pages();
	return 0;
}
