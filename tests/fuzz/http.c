/*
 * http.c - fuzzes the pages of the server: a TCP connection sends the bytes of the input, and the
 * server answers or closes the connection. After every 64th input, the target checks that the
 * server answers an honest request.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>
#include "common/endpoint.h"
#include "server/monitor/http.h"
#include "tests/support/fuzz_input.h"

static uv_loop_t loop;
static struct http *http;
static unsigned port;

static void page(void *arg, const char *path, struct http_page *p)
{
	(void)arg;
	if (strcmp(path, "/healthz") != 0)
		return;
	p->code = 200;
	p->type = "text/plain";
	p->text = strdup("ok\n");
}

/* Send a request and run the loop until the server has answered or closed the connection, at most
 * `rounds` times. Returns the number of bytes of the answer. */
static size_t exchange_request(const void *data, size_t size, int rounds, char *answer, size_t room)
{
	int fd = input_connect(port, data, size);
	ssize_t n = -1;

	PS_ASSERT(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	for (int i = 0; i < rounds && n < 0; i++) {
		uv_run(&loop, UV_RUN_NOWAIT);
		n = recv(fd, answer, room, 0);
		if (n < 0 && errno != EAGAIN)
			n = 0;
		if (n < 0 && i > 8)
			usleep(50);
	}
	input_close(fd);
	uv_run(&loop, UV_RUN_NOWAIT);
	return n > 0 ? (size_t)n : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char honest[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
	static unsigned n;
	struct err e = {0};
	struct endpoint at;
	char answer[256];

	if (!http) {
		PS_ASSERT(uv_loop_init(&loop) == 0);
		PS_ASSERT(http_new(&http, &loop, "127.0.0.1:0", page, NULL, &e) == 0);
		PS_ASSERT(endpoint_parse_address(http_url(http) + strlen("http://"), &at) == 0);
		port = at.number;
	}
	(void)exchange_request(data, size, 12, answer, sizeof(answer));
	if (++n % 64 == 0) {
		size_t got =
			exchange_request(honest, sizeof(honest) - 1, 20000, answer, sizeof(answer));

		PS_ASSERT(got > 15 && memcmp(answer, "HTTP/1.1 200 OK", 15) == 0);
	}
	return 0;
}
