/* transfers.c - see transfers.h. */
#include "server/net/transfers.h"
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "common/mem.h"

#define POLL_EVERY_MS 100

void transfers_init(struct transfers *t, const struct core *c)
{
	*t = (struct transfers){0};
	t->slot = mem_must(core_config(c)->sessions.max_workers, sizeof(*t->slot), "transfers");
}

void transfers_release(struct transfers *t)
{
	free(t->slot);
	t->slot = NULL;
}

/* Writes the peer address of a descriptor to `text`, or "" if it has none. */
static void address_of(int fd, char *text, size_t size)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
		struct sockaddr_storage room;
	} a = {.room = {0}};
	socklen_t length = sizeof(a);
	char ip[INET6_ADDRSTRLEN] = "";

	text[0] = '\0';
	if (getpeername(fd, &a.any, &length) != 0)
		return;
	if (a.any.sa_family == AF_INET && inet_ntop(AF_INET, &a.v4.sin_addr, ip, sizeof(ip)))
		snprintf(text, size, "%s %u", ip, (unsigned)ntohs(a.v4.sin_port));
	if (a.any.sa_family == AF_INET6 && inet_ntop(AF_INET6, &a.v6.sin6_addr, ip, sizeof(ip)))
		snprintf(text, size, "%s %u", ip, (unsigned)ntohs(a.v6.sin6_port));
}

/* Returns the number of bytes that a connection has received, plus the number of sent bytes that
 * the peer has acknowledged. Returns 0 if the kernel does not report these numbers. */
static uint64_t acked_bytes(int fd)
{
	struct tcp_info info = {0};
	socklen_t length = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
		length < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof(uint64_t))
		return 0;
	return info.tcpi_bytes_received + info.tcpi_bytes_acked;
}

void transfers_note(struct transfers *t, uint32_t worker, uint32_t peer, struct frames *f)
{
	struct transfer *s = &t->slot[worker - 1];

	if (s->peer == peer)
		return;
	*s = (struct transfer){.peer = peer, .fd = zmq_msg_get(&f->frame[0], ZMQ_SRCFD)};
	address_of(s->fd, s->address, sizeof(s->address));
}

/* Returns the number of bytes that this connection has moved since the last poll. Stops polling the
 * descriptor if it now belongs to another connection. */
static uint64_t moved(struct transfer *s)
{
	char address[sizeof(s->address)];
	uint64_t before = s->bytes;

	if (s->fd < 0 || s->address[0] == '\0')
		return 0;
	address_of(s->fd, address, sizeof(address));
	if (strcmp(address, s->address) != 0) {
		s->fd = -1;
		return 0;
	}
	s->bytes = acked_bytes(s->fd);
	return before && s->bytes > before ? s->bytes - before : 0;
}

void transfers_poll(struct transfers *t, const struct core *c, uint64_t now_ms,
	transfers_report_fn *report, void *arg)
{
	if (now_ms - t->polled_ms < POLL_EVERY_MS)
		return;
	t->polled_ms = now_ms;
	for (uint32_t i = 0; i < core_config(c)->sessions.max_workers; i++) {
		struct transfer *s = &t->slot[i];
		struct event ev = {.kind = EVENT_PROGRESS, .peer = s->peer};
		struct worker_view w;

		core_worker(c, i, &w);
		if (!s->peer || w.peer != s->peer)
			continue;
		if (w.owes_ms < TRANSFERS_POLL_MS) {
			s->bytes = 0;
			continue;
		}
		ev.bytes = moved(s);
		if (ev.bytes)
			report(arg, &ev);
	}
}
