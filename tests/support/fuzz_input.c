/* fuzz_input.c - see fuzz_input.h. */
#include "tests/support/fuzz_input.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

uint8_t input_u8(struct input *in)
{
	if (in->left == 0)
		return 0;
	in->left--;
	return *in->at++;
}

uint64_t input_u64(struct input *in)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < 64; i += 8)
		v |= (uint64_t)input_u8(in) << i;
	return v;
}

uint32_t input_below(struct input *in, uint32_t n)
{
	return input_u8(in) % n;
}

uint64_t input_near(struct input *in, uint64_t v)
{
	uint8_t how = input_u8(in);

	if (how < 160)
		return v;
	if (how < 232)
		return v + (uint64_t)((int64_t)how - 196);
	return input_u64(in);
}

void input_line(struct input *in, char *text, size_t size)
{
	size_t n = 0;

	while (in->left && *in->at != '\n' && n + 1 < size)
		text[n++] = (char)input_u8(in);
	while (in->left && input_u8(in) != '\n')
		;
	text[n] = '\0';
}

static void run_backwards(void *self, const struct engine_job *job)
{
	(void)self;
	for (size_t i = job->n; i-- > 0;)
		job->run(job->arg, i);
}

static void has_run(void *self, const struct engine_job *job, size_t block)
{
	(void)self;
	(void)job;
	(void)block;
}

struct engine input_engine(size_t block)
{
	return (struct engine){.begin = run_backwards, .wait = has_run, .block = block};
}

const char *input_file(const uint8_t *data, size_t size)
{
	static char path[64];
	static int fd = -1;

	if (fd < 0) {
		fd = memfd_create("input", MFD_CLOEXEC);
		PS_ASSERT(fd >= 0 && fchmod(fd, 0600) == 0);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	}
	PS_ASSERT(ftruncate(fd, 0) == 0);
	PS_ASSERT(pwrite(fd, data, size, 0) == (ssize_t)size);
	return path;
}

/* Connect the socket `fd` to the address `a`. libFuzzer's timer has a signal handler without
 * SA_RESTART, so a signal can interrupt connect. The kernel then continues to connect in the
 * background, and poll waits until it has finished. */
static bool input_connect_to(int fd, const struct sockaddr_in *a)
{
	struct pollfd connected = {.fd = fd, .events = POLLOUT};
	int fault = 0;
	socklen_t size = sizeof(fault);

	if (connect(fd, (const struct sockaddr *)(const void *)a, sizeof(*a)) == 0)
		return true;
	if (errno != EINTR)
		return false;
	while (poll(&connected, 1, -1) < 0)
		PS_ASSERT(errno == EINTR);
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &fault, &size) == 0 && fault == 0;
}

int input_connect(unsigned port, const void *data, size_t size)
{
	static uint32_t n;     /* the number of connections so far */
	const int late = 1;    /* connect, not bind, chooses the source port */
	const int at_once = 1; /* the kernel does not delay what a target sends */
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	/* When the server closes a connection first, the connection's pair of ports stays in use
	 * for a minute. Therefore each source address of 127/8 serves 8192 connections, and then
	 * the next address is used. */
	struct sockaddr_in own = {.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + n++ / 8192 % 65536)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	a.sin_port = htons((uint16_t)port);
	PS_ASSERT(fd >= 0 &&
		  setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof(late)) == 0);
	PS_ASSERT(bind(fd, (struct sockaddr *)(void *)&own, sizeof(own)) == 0);
	PS_ASSERT(input_connect_to(fd, &a));
	PS_ASSERT(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once)) == 0);
	(void)!send(fd, data, size, MSG_NOSIGNAL);
	return fd;
}

void input_close(int fd)
{
	struct linger at_once = {.l_onoff = 1};

	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	(void)close(fd);
}
