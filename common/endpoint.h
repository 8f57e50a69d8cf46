/*
 * endpoint.h - splits addresses of the form "tcp://HOST:PORT". All programs use this parser.
 *
 * HOST is a name, an interface, an address or "*". An IPv6 address in such a text has brackets; the
 * field `host` has the address without the brackets. PORT is 0 to 65535, or "*" for 0. Pure.
 * Thread: any.
 */
#ifndef COMMON_ENDPOINT_H
#define COMMON_ENDPOINT_H
#include <stddef.h>
#include "common/err.h"

#define ENDPOINT_HOST 256
#define ENDPOINT_TEXT (ENDPOINT_HOST + 16) /* room for endpoint_format */

struct endpoint {
	char host[ENDPOINT_HOST];
	char port[6];    /* the port as it is in the text */
	unsigned number; /* number of the port; 0 means any free port */
};

/* Parses "tcp://HOST:PORT". If the text has another form, returns PS_EUSAGE and makes *e empty. */
int endpoint_parse(const char *text, struct endpoint *e) PS_MUST_CHECK;
/* Parses "HOST:PORT". PS_EUSAGE. */
int endpoint_parse_address(const char *text, struct endpoint *e) PS_MUST_CHECK;
/* Parses "PORT", and sets the host to 127.0.0.1. PS_EUSAGE. */
int endpoint_parse_port(const char *text, struct endpoint *e) PS_MUST_CHECK;
/* Writes "tcp://HOST:PORT" in libzmq's syntax. */
void endpoint_format(const struct endpoint *e, char *out, size_t size);

#endif
