/* Proves the promises of common/zepoll.h: no peer can make libzmq end the process with PINGs before
 * the end of its connection, and each end of a connection is reported once.
 * Covers attack A2 of docs/faults.md. */
#include "common/zepoll.h"
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>
#include "common/clock.h"
#include "tests/support/test.h"
#include "tests/support/zmtp.h"

enum { DEADLINE_MS = 20000, MESSAGES = 40 };

/* libzmq is not built with ThreadSanitizer, so the sanitizer reports false races between libzmq's
 * own threads. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "ignore_noninstrumented_modules=1";
}

#define ANSWER_BYTES (64 + 38) /* the greeting and the READY of a ROUTER */

/* Connects to a socket of libzmq, and waits for the answer to the start of the connection. */
static int call_socket(uint16_t port)
{
	struct sockaddr_in at = {.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr = {htonl(INADDR_LOOPBACK)}};
	const struct linger reset = {.l_onoff = 1, .l_linger = 0};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
	zmtp_greet(fd);
	for (size_t n = 0; n < ANSWER_BYTES;) {
		char answer[ANSWER_BYTES];
		ssize_t got = recv(fd, answer, sizeof(answer) - n, 0);

		assert_true(got > 0);
		n += (size_t)got;
	}
	return fd;
}

/* Receives MESSAGES messages from the socket. Returns their number, or fewer if no frame arrives
 * for `patience_ms` milliseconds. */
static size_t read_messages(void *router, int patience_ms)
{
	size_t n = 0;
	char frame[16];

	(void)zmq_setsockopt(router, ZMQ_RCVTIMEO, &patience_ms, sizeof(patience_ms));
	while (n < MESSAGES && zmq_recv(router, frame, sizeof(frame), 0) >= 0) {
		int more = 0;
		size_t bytes = sizeof(more);

		assert_int_equal(zmq_getsockopt(router, ZMQ_RCVMORE, &more, &bytes), 0);
		n += more == 0;
	}
	return n;
}

/* A peer fills the queue of the socket, so that libzmq stops reading. It has already sent PINGs
 * behind its messages, and closes its connection. The program then reads the messages. */
TEST(pings_before_the_end_of_a_connection_do_no_harm)
{
	static const char message[] = "\0\1x", ping[] = "\4\13\4PING\0\12abcd";
	char bytes[MESSAGES * (sizeof(message) - 1) + 8 * (sizeof(ping) - 1)], url[64];
	size_t n = 0, room = sizeof(url), received = 0;
	int hwm = 2;

	zepoll_use();
	void *context = zmq_ctx_new();
	void *router = zmq_socket(context, ZMQ_ROUTER);
	assert_int_equal(zmq_setsockopt(router, ZMQ_RCVHWM, &hwm, sizeof(hwm)), 0);
	assert_int_equal(zmq_bind(router, "tcp://127.0.0.1:*"), 0);
	assert_int_equal(zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, url, &room), 0);
	const uint16_t port = (uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10);
	for (int i = 0; i < MESSAGES; i++) {
		memcpy(bytes + n, message, sizeof(message) - 1);
		n += sizeof(message) - 1;
		for (int k = 0; k < (i + 8 >= MESSAGES); k++) {
			memcpy(bytes + n, ping, sizeof(ping) - 1);
			n += sizeof(ping) - 1;
		}
	}
	for (int i = 0; i < 20; i++) {
		int fd = call_socket(port);

		assert_int_equal(send(fd, bytes, n, 0), (ssize_t)n);
		usleep(20000); /* libzmq fills the queue, and stops reading */
		close(fd);
		usleep(20000);
		received += read_messages(router, 200);
		/* libzmq learns of the messages and of the end at the same time, and may lose some
		 * of these messages */
		fd = call_socket(port);
		assert_int_equal(send(fd, bytes, n, 0), (ssize_t)n);
		close(fd);
		usleep(20000);
		(void)read_messages(router, 50);
	}
	assert_true(received > 0);
	assert_int_equal(zmq_close(router), 0);
	assert_int_equal(zmq_ctx_term(context), 0);
}

struct pair {
	int epfd, mine, theirs;
	struct epoll_event event;
};

static struct pair open_pair(uint32_t wanted)
{
	struct pair p = {.epfd = epoll_create1(0), .event = {.events = wanted}};
	int fd[2];

	assert_true(p.epfd >= 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	p.mine = fd[0];
	p.theirs = fd[1];
	p.event.data.ptr = &fd;
	assert_int_equal(epoll_ctl(p.epfd, EPOLL_CTL_ADD, p.mine, &p.event), 0);
	return p;
}

static int wait_once(const struct pair *p, int timeout_ms, struct epoll_event *e)
{
	return epoll_wait(p->epfd, e, 1, timeout_ms);
}

static void close_pair(const struct pair *p)
{
	assert_int_equal(epoll_ctl(p->epfd, EPOLL_CTL_DEL, p->mine, NULL), 0);
	close(p->mine);
	close(p->epfd);
}

TEST(the_end_is_reported_when_the_caller_reads_again)
{
	struct pair p = open_pair(0);
	struct epoll_event e;

	close(p.theirs);
	assert_int_equal(wait_once(&p, DEADLINE_MS, &e), 0);
	p.event.events = EPOLLIN;
	assert_int_equal(epoll_ctl(p.epfd, EPOLL_CTL_MOD, p.mine, &p.event), 0);
	assert_int_equal(wait_once(&p, DEADLINE_MS, &e), 1);
	assert_int_equal(e.events, EPOLLIN); /* the caller reads, and finds the end */
	assert_ptr_equal(e.data.ptr, p.event.data.ptr);
	close_pair(&p);
}

/* The caller wants to write, but not to read: it learns that it may write, not that the connection
 * has ended. The attempt to write will fail. */
TEST(a_writer_learns_only_that_it_may_write)
{
	struct pair p = open_pair(EPOLLOUT);
	struct epoll_event e;

	close(p.theirs);
	assert_int_equal(wait_once(&p, DEADLINE_MS, &e), 1);
	assert_int_equal(e.events, EPOLLOUT);
	close_pair(&p);
}

TEST(an_end_that_is_not_reported_wakes_nobody)
{
	struct pair p = open_pair(0);
	struct epoll_event e;

	close(p.theirs);
	assert_int_equal(wait_once(&p, DEADLINE_MS, &e), 0);
	const uint64_t begin = clock_ms();
	assert_int_equal(wait_once(&p, 100, &e), 0);
	assert_true(clock_ms() - begin >= 99);
	close_pair(
		&p); /* the kernel does not watch the descriptor; EPOLL_CTL_DEL succeeds anyway */
}

TEST(a_reader_learns_of_the_end_at_once)
{
	struct pair p = open_pair(EPOLLIN);
	struct epoll_event e;

	close(p.theirs);
	assert_int_equal(wait_once(&p, DEADLINE_MS, &e), 1);
	assert_int_equal(e.events, EPOLLIN);
	close_pair(&p);
}
