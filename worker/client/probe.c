/* probe.c - see probe.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/endpoint.h"
#include "common/mem.h"
#include "worker/client/probe.h"

#define CONNECT_MS 1000
/* wait for a peer's first bytes; a ZeroMQ socket sends its signature at once */
#define GREETING_MS 400
#define REQUEST_MS  600 /* maximum wait for the answer of an HTTP server */
#define ANSWER      64  /* maximum number of bytes of the answer that the probe reads */

struct probe {
	pthread_mutex_t lock; /* guards `users`, `running` and `report` */
	/* number of users of this struct: the caller, and the thread while it runs */
	int users;
	int running;
	struct probe_report report;

	/* the server to probe, which never changes; its host is "" if there is none */
	struct endpoint server;
};

/* ---- results --------------------------------------------------------------------------------- */

static void set_report(struct probe *p, enum probe_result result, const char *detail)
{
	struct probe_report r = {.result = result};

	for (size_t i = 0; i + 1 < sizeof(r.detail) && detail[i]; i++)
		r.detail[i] =
			(char)(detail[i] >= ' ' && detail[i] <= '~' && detail[i] != '"' ? detail[i]
											: '?');
	pthread_mutex_lock(&p->lock);
	p->report = r;
	pthread_mutex_unlock(&p->lock);
}

static void unref(struct probe *p)
{
	pthread_mutex_lock(&p->lock);
	int users = --p->users;
	pthread_mutex_unlock(&p->lock);
	if (users)
		return;
	pthread_mutex_destroy(&p->lock);
	free(p);
}

/* ---- one attempt ----------------------------------------------------------------------------- */

/* Waits for one descriptor like poll(2), but a signal does not end the wait. */
static int wait_for(int fd, short events, int ms)
{
	struct pollfd item = {.fd = fd, .events = events};
	uint64_t end = clock_ms() + (uint64_t)ms;
	int n;

	do {
		uint64_t now = clock_ms();

		n = poll(&item, 1, now < end ? (int)(end - now) : 0);
	} while (n < 0 && errno == EINTR);
	return n;
}

static int connect_error(int fd)
{
	int error = 0;
	socklen_t size = sizeof(error);

	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) ? errno : error;
}

/* Connects to the address within CONNECT_MS. Returns 0, or an errno. */
static int connect_within(int fd, const struct addrinfo *a)
{
	if (!connect(fd, a->ai_addr, a->ai_addrlen))
		return 0;
	if (errno != EINPROGRESS)
		return errno;
	return wait_for(fd, POLLOUT, CONNECT_MS) > 0 ? connect_error(fd) : ETIMEDOUT;
}

/* Reads bytes that arrive within `ms` milliseconds. Returns their number, 0 if the peer has closed
 * or reset the connection, or -1 if no byte arrived. */
static ssize_t read_within(int fd, char *bytes, int ms)
{
	if (wait_for(fd, POLLIN, ms) <= 0)
		return -1;
	ssize_t n = recv(fd, bytes, ANSWER - 1, 0);
	return n < 0 ? 0 : n;
}

/* Returns 1 if the bytes are ZMTP's signature: 0xff, a length of 8 bytes, 0x7f. The signature may
 * arrive in two parts, so the function also accepts its first part. */
static int is_zmtp(const char *bytes, ssize_t n)
{
	return n >= 1 && (unsigned char)bytes[0] == 0xff && (n < 10 || bytes[9] == 0x7f);
}

/* Determines which program is at the other end of a connection. */
static void identify_peer(struct probe *p, int fd)
{
	static const char request[] = "GET / HTTP/1.0\r\n\r\n";
	char bytes[ANSWER] = "";
	ssize_t n = read_within(fd, bytes, GREETING_MS);

	if (n < 0 && send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) > 0)
		n = read_within(fd, bytes, REQUEST_MS);
	if (n < 0)
		set_report(p, PROBE_SILENT, "");
	else if (n == 0)
		set_report(p, PROBE_CLOSED, "");
	else if (is_zmtp(bytes, n))
		set_report(p, PROBE_ZMTP, "");
	else if (!strncmp(bytes, "HTTP/", 5))
		set_report(p, PROBE_HTTP, "");
	else
		set_report(p, PROBE_FOREIGN, bytes);
}

static void attempt(struct probe *p, const struct addrinfo *a)
{
	int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int error = fd < 0 ? errno : connect_within(fd, a);

	if (!error)
		identify_peer(p, fd);
	else if (error == ECONNREFUSED)
		set_report(p, PROBE_REFUSED, "");
	else if (error == ETIMEDOUT)
		set_report(p, PROBE_TIMEOUT, "");
	else
		set_report(p, PROBE_FAILED, strerror(error));
	if (fd >= 0)
		close(fd);
}

/* Records the end of the name lookup. */
static void end_lookup(struct probe *p)
{
	pthread_mutex_lock(&p->lock);
	if (p->report.result == PROBE_LOOKUP)
		p->report.result = PROBE_NONE;
	pthread_mutex_unlock(&p->lock);
}

/* The thread of one probe. The probe uses only IPv4, like libzmq's sockets. */
static void *probe_main(void *arg)
{
	const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	struct probe *p = arg;
	sigset_t all;
	int error;

	sigfillset(&all); /* block all signals, because the program's threads handle them */
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	error = getaddrinfo(p->server.host, p->server.port, &hints, &found);
	end_lookup(p);
	if (error)
		set_report(p, PROBE_NAME, gai_strerror(error));
	else
		attempt(p, found);
	if (found)
		freeaddrinfo(found);
	pthread_mutex_lock(&p->lock);
	p->running = 0;
	pthread_mutex_unlock(&p->lock);
	unref(p);
	return NULL;
}

/* ---- the caller's side ----------------------------------------------------------------------- */

int probe_new(struct probe **out, const char *endpoint)
{
	struct probe *p = mem_try(1, sizeof(*p));

	*out = NULL;
	if (!p || pthread_mutex_init(&p->lock, NULL)) {
		free(p);
		return PS_ENOMEM;
	}
	p->users = 1;
	if (endpoint_parse(endpoint, &p->server))
		p->server.host[0] = '\0';
	*out = p;
	return PS_OK;
}

static int start_thread(struct probe *p)
{
	pthread_attr_t detached;
	pthread_t thread;
	int error;

	if (pthread_attr_init(&detached))
		return -1;
	error = pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED) ||
		pthread_create(&thread, &detached, probe_main, p);
	pthread_attr_destroy(&detached);
	return error ? -1 : 0;
}

/* Returns 1 if the host is an address, which needs no lookup. */
static int is_address(const char *host)
{
	struct in_addr address;

	return inet_pton(AF_INET, host, &address) == 1;
}

void probe_start(struct probe *p)
{
	int idle;

	pthread_mutex_lock(&p->lock);
	idle = p->server.host[0] && !p->running;
	if (idle) {
		p->running = 1;
		p->users++;
		if (p->report.result == PROBE_NONE && !is_address(p->server.host))
			p->report.result = PROBE_LOOKUP;
	}
	pthread_mutex_unlock(&p->lock);
	if (!idle || !start_thread(p))
		return;
	pthread_mutex_lock(&p->lock); /* the thread could not be started, so there is no result */
	p->running = 0;
	p->users--;
	p->report = (struct probe_report){0};
	pthread_mutex_unlock(&p->lock);
}

void probe_read(struct probe *p, struct probe_report *r)
{
	pthread_mutex_lock(&p->lock);
	*r = p->report;
	pthread_mutex_unlock(&p->lock);
}

void probe_forget(struct probe *p)
{
	pthread_mutex_lock(&p->lock);
	p->report = (struct probe_report){0};
	pthread_mutex_unlock(&p->lock);
}

void probe_free(struct probe **p)
{
	if (*p)
		unref(*p);
	*p = NULL;
}
