/*
 * watched.h - counts the bytes that a connection moves, as the kernel reports them (TCP_INFO).
 * libzmq owns the descriptor, and may give it to another connection at any time. If the peer
 * address of a descriptor has changed, the descriptor belongs to another connection.
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_NET_WATCHED_H
#define SERVER_NET_WATCHED_H
#include <stdint.h>

struct watched {
	int fd; /* descriptor of the connection; -1: the connection has ended */
	char address[64];
	/* bytes that the connection had moved at the newest call of watched_moved; 0 before the
	 * first call */
	uint64_t bytes;
};

/* Returns the number of bytes that the connection with descriptor `fd` has received, or 0 if the
 * kernel does not report this number. */
uint64_t watched_received(int fd);
/* Begins to watch the connection with descriptor `fd`. */
void watched_begin(struct watched *w, int fd);
/* Returns the number of bytes that the connection has moved since the last call. */
uint64_t watched_moved(struct watched *w);
/* Shuts the connection down, so that libzmq closes it. */
void watched_shut_down(struct watched *w);

#endif
