/* watched.c - see watched.h. */
#include "server/net/watched.h"
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

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

/* Reads the kernel's counters of a connection. A counter that the kernel does not have is 0. */
static struct tcp_info counters_of(int fd)
{
	struct tcp_info info = {0};
	socklen_t length = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
		length < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof(uint64_t))
		return (struct tcp_info){0};
	return info;
}

uint64_t watched_received(int fd)
{
	return counters_of(fd).tcpi_bytes_received;
}

/* Returns the number of bytes that a connection has received, plus the number of sent bytes that
 * the peer has acknowledged. Returns 0 if the kernel does not report these numbers. */
static uint64_t acked_bytes(int fd)
{
	const struct tcp_info info = counters_of(fd);

	return info.tcpi_bytes_received + info.tcpi_bytes_acked;
}

void watched_begin(struct watched *w, int fd)
{
	*w = (struct watched){.fd = fd};
	address_of(fd, w->address, sizeof(w->address));
}

/* Returns 1 if the descriptor still belongs to the connection. */
static int is_same_connection(struct watched *w)
{
	char address[sizeof(w->address)];

	if (w->fd < 0 || w->address[0] == '\0')
		return 0;
	address_of(w->fd, address, sizeof(address));
	if (strcmp(address, w->address) == 0)
		return 1;
	w->fd = -1;
	return 0;
}

uint64_t watched_moved(struct watched *w)
{
	uint64_t before = w->bytes;

	if (!is_same_connection(w))
		return 0;
	w->bytes = acked_bytes(w->fd);
	return before && w->bytes > before ? w->bytes - before : 0;
}

void watched_shut_down(struct watched *w)
{
	if (is_same_connection(w))
		(void)shutdown(w->fd, SHUT_RDWR);
	w->fd = -1;
}
