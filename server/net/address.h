/*
 * address.h - which addresses are this machine's alone.
 *
 * Thread: main, at start-up: the resolver may wait for a name server.
 */
#ifndef SERVER_NET_ADDRESS_H
#define SERVER_NET_ADDRESS_H
#include <stddef.h>
#include <sys/socket.h>

enum address_reach {
	ADDRESS_LOOPBACK, /* everything that the host resolves to is loopback */
	ADDRESS_OPEN,     /* something else is reachable there: the network, "*", an interface */
	ADDRESS_UNKNOWN,  /* the host does not resolve */
};

/* `host_port`: "HOST:PORT" or "[HOST]:PORT". */
enum address_reach address_reach(const char *host_port);
/*
 * "HOST:PORT" with a name's first address instead of the name, IPv4 before IPv6, in brackets; as it
 * is for "*", an interface, an address, or a name that does not resolve. libzmq binds no names.
 */
void address_numeric(const char *host_port, char *out, size_t size);
/* 1: 127.0.0.0/8, ::1, or the former written as IPv6. */
int address_is_loopback(const struct sockaddr *at);

#endif
