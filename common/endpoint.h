/*
 * endpoint.h - splits addresses of the form "tcp://HOST:PORT". All programs use this parser.
 *
 * HOST is a name, an interface, an address or "*". An IPv6 address in such a text has brackets; the
 * field `host` has the address without the brackets. PORT is 0 to 65535, or "*" for 0. The
 * functions are pure, and any thread may call them.
 */
#ifndef COMMON_ENDPOINT_H
#define COMMON_ENDPOINT_H
#include <stddef.h>
#include "common/err.h"

#define ENDPOINT_HOST 256
/* size of a buffer for the text that endpoint_format writes */
#define ENDPOINT_TEXT (ENDPOINT_HOST + 16)

struct endpoint {
	char host[ENDPOINT_HOST];
	char port[6];    /* PORT, as it is in the text */
	unsigned number; /* number of the port; 0 means any free port */
};

/* Parses "tcp://HOST:PORT". If the text has another form, returns PS_EUSAGE and makes *e empty. */
int endpoint_parse(const char *text, struct endpoint *e) PS_MUST_CHECK;
/* Parses "HOST:PORT". Error: PS_EUSAGE. */
int endpoint_parse_address(const char *text, struct endpoint *e) PS_MUST_CHECK;
/* Parses "PORT", and sets the host to 127.0.0.1. Error: PS_EUSAGE. */
int endpoint_parse_port(const char *text, struct endpoint *e) PS_MUST_CHECK;
/* Writes *e as "tcp://HOST:PORT", in the form that zmq_bind and zmq_connect accept. */
void endpoint_format(const struct endpoint *e, char *out, size_t size);

#endif
