/*
 * address.h - whether an address is reachable from other machines.
 *
 * Thread: main, at the start: the resolver may wait for a name server.
 */
#ifndef SERVER_NET_ADDRESS_H
#define SERVER_NET_ADDRESS_H
#include <sys/socket.h>
#include "common/endpoint.h"

enum address_reach {
	ADDRESS_LOOPBACK, /* all addresses of the host are loopback */
	ADDRESS_OPEN,     /* reachable from the network: another address, "*", an interface */
	ADDRESS_UNKNOWN,  /* the host does not resolve */
};

enum address_reach address_reach(const char *host);
/*
 * Replace a host name by its first address, IPv4 before IPv6: libzmq binds no names. "*", an
 * interface, an address, and a name that does not resolve stay as they are.
 */
void address_resolve(struct endpoint *e);
/* 1: 127.0.0.0/8, ::1, or the former written as IPv6. */
int address_is_loopback(const struct sockaddr *at);

#endif
