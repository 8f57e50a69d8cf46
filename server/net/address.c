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

/* Without the brackets of IPv6. 0: it has no room. */
static int host_of(const char *host_port, char *host, size_t size)
{
	const char *colon = strrchr(host_port, ':');
	size_t n = colon ? (size_t)(colon - host_port) : 0, bracket = host_port[0] == '[';

	if (n >= size || n < 2 * bracket + 1)
		return 0;
	snprintf(host, size, "%.*s", (int)(n - 2 * bracket), host_port + bracket);
	return 1;
}

/* An interface, of which libzmq binds the IPv4 address. */
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

enum address_reach address_reach(const char *host_port)
{
	const struct addrinfo want = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	char host[256];
	int local = 1;

	if (!host_of(host_port, host, sizeof(host)))
		return ADDRESS_UNKNOWN;
	if (strcmp(host, "*") == 0)
		return ADDRESS_OPEN;
	if (if_nametoindex(host) != 0)
		return reach_of_interface(host);
	if (getaddrinfo(host, NULL, &want, &found) != 0)
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

void address_numeric(const char *host_port, char *out, size_t size)
{
	const struct addrinfo want = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	char host[256], text[NI_MAXHOST];

	snprintf(out, size, "%s", host_port);
	if (host_port[0] == '[' || !host_of(host_port, host, sizeof(host)) ||
		strcmp(host, "*") == 0 || if_nametoindex(host) != 0 ||
		getaddrinfo(host, NULL, &want, &found) != 0)
		return;
	const struct addrinfo *a = first(found);
	int six = a->ai_family == AF_INET6;
	if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST) ==
		0)
		snprintf(out, size, "%s%s%s%s", six ? "[" : "", text, six ? "]" : "",
			strrchr(host_port, ':'));
	freeaddrinfo(found);
}
