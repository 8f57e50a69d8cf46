/*
 * address.h - finds out whether an address is reachable from other machines.
 *
 * Only the main thread may call these functions, and only at start-up, because they may wait for a
 * name server.
 */
#ifndef SERVER_NET_ADDRESS_H
#define SERVER_NET_ADDRESS_H
#include <sys/socket.h>
#include "common/endpoint.h"

enum address_reach {
	ADDRESS_LOOPBACK, /* all addresses of the host are loopback */
	/* other machines can reach the host: it is "*", an interface, or has an address that is not
	 * loopback */
	ADDRESS_OPEN,
	ADDRESS_UNKNOWN, /* the host does not resolve */
};

enum address_reach address_reach(const char *host);
/*
 * Replaces a host name by its first IPv4 address, or by its first IPv6 address if it has no IPv4
 * address, because libzmq cannot bind a name. If the host is "*", a network interface, an address,
 * or a name that does not resolve, the function does not change it.
 */
void address_resolve(struct endpoint *e);
/* Returns 1 if the address is in 127.0.0.0/8 or ::ffff:127.0.0.0/104, or is ::1. */
int address_is_loopback(const struct sockaddr *at);

#endif
