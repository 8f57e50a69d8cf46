/*
 * endpoint.h - "tcp://HOST:PORT" in parts; the only parser of addresses.
 *
 * HOST is a name, an interface, an address or "*". An IPv6 address stands in brackets in the text
 * and without them in `host`. PORT is 0 to 65535, or "*" for 0. Pure. Thread: any.
 */
#ifndef COMMON_ENDPOINT_H
#define COMMON_ENDPOINT_H
#include <stddef.h>
#include "common/err.h"

#define ENDPOINT_HOST 256
#define ENDPOINT_TEXT (ENDPOINT_HOST + 16) /* room for endpoint_format */

struct endpoint {
	char host[ENDPOINT_HOST];
	char port[6];    /* as it was given */
	unsigned number; /* of the port; 0: any free one */
};

/* "tcp://HOST:PORT". PS_EUSAGE: it is something else, and *e is empty. */
int endpoint_parse(const char *text, struct endpoint *e) PS_MUST_CHECK;
/* "HOST:PORT". PS_EUSAGE. */
int endpoint_parse_address(const char *text, struct endpoint *e) PS_MUST_CHECK;
/* "PORT" of 127.0.0.1. PS_EUSAGE. */
int endpoint_parse_port(const char *text, struct endpoint *e) PS_MUST_CHECK;
/* "tcp://HOST:PORT" again, as libzmq takes it. */
void endpoint_format(const struct endpoint *e, char *out, size_t size);

#endif
