/* address.c - see address.h. */
#include "server/net/address.h"
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

int address_is_loopback(const struct sockaddr *at)
{
	const struct sockaddr_in *four = (const void *)at;
	const struct sockaddr_in6 *six = (const void *)at;

	if (at->sa_family == AF_INET)
		return ntohl(four->sin_addr.s_addr) >> 24 == 127;
	if (at->sa_family != AF_INET6)
		return 0;
	if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
		return six->sin6_addr.s6_addr[12] == 127;
	return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

/* Returns the reach of a network interface. Only the IPv4 address of the interface counts, because
 * libzmq binds the socket to this address. */
static enum address_reach reach_of_interface(const char *name)
{
	struct ifaddrs *all;
	int loopback = 0;

	if (getifaddrs(&all) != 0)
		return ADDRESS_OPEN;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		loopback |= strcmp(i->ifa_name, name) == 0 && i->ifa_flags & IFF_LOOPBACK;
	freeifaddrs(all);
	return loopback ? ADDRESS_LOOPBACK : ADDRESS_OPEN;
}

enum address_reach address_reach(const char *host)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	int local = 1;

	if (strcmp(host, "*") == 0)
		return ADDRESS_OPEN;
	if (if_nametoindex(host) != 0)
		return reach_of_interface(host);
	if (getaddrinfo(host, NULL, &hints, &found) != 0)
		return ADDRESS_UNKNOWN;
	for (const struct addrinfo *a = found; a; a = a->ai_next)
		local &= address_is_loopback(a->ai_addr);
	freeaddrinfo(found);
	return local ? ADDRESS_LOOPBACK : ADDRESS_OPEN;
}

static const struct addrinfo *first(const struct addrinfo *found)
{
	for (const struct addrinfo *a = found; a; a = a->ai_next)
		if (a->ai_family == AF_INET)
			return a;
	return found;
}

void address_resolve(struct endpoint *e)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found;

	if (strcmp(e->host, "*") == 0 || if_nametoindex(e->host) != 0 ||
		getaddrinfo(e->host, NULL, &hints, &found) != 0)
		return;
	const struct addrinfo *a = first(found);
	char text[sizeof(e->host)];
	if (!strchr(e->host, ':') && getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text),
					     NULL, 0, NI_NUMERICHOST) == 0)
		memcpy(e->host, text, sizeof(text));
	freeaddrinfo(found);
}
