/* endpoint.c - see endpoint.h. */
#include "common/endpoint.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEME   "tcp://"
#define MAX_PORT 65535

static int read_port(const char *text, struct endpoint *e)
{
	size_t n = strlen(text);
	int any = strcmp(text, "*") == 0;

	if (n == 0 || n >= sizeof(e->port) || (!any && strspn(text, "0123456789") != n))
		return PS_EUSAGE;
	e->number = any ? 0 : (unsigned)strtoul(text, NULL, 10);
	memcpy(e->port, text, n + 1);
	return e->number <= MAX_PORT ? PS_OK : PS_EUSAGE;
}

/* Reads the host, which is the `n` bytes before the colon of the port. */
static int read_host(const char *text, size_t n, struct endpoint *e)
{
	int brackets = n > 0 && text[0] == '[';

	if (brackets) {
		if (text[n - 1] != ']')
			return PS_EUSAGE;
		text++;
		n -= 2;
	}
	if (n == 0 || n >= sizeof(e->host) || (!brackets && memchr(text, ':', n)))
		return PS_EUSAGE;
	memcpy(e->host, text, n);
	e->host[n] = '\0';
	return strpbrk(e->host, " /[]") ? PS_EUSAGE : PS_OK;
}

int endpoint_parse_address(const char *text, struct endpoint *e)
{
	const char *colon = strrchr(text, ':');

	*e = (struct endpoint){.number = 0};
	if (colon && !read_host(text, (size_t)(colon - text), e) && !read_port(colon + 1, e))
		return PS_OK;
	*e = (struct endpoint){.number = 0};
	return PS_EUSAGE;
}

int endpoint_parse(const char *text, struct endpoint *e)
{
	size_t n = strlen(SCHEME);

	/* if the scheme is missing, pass "", which the call refuses */
	return endpoint_parse_address(strncmp(text, SCHEME, n) == 0 ? text + n : "", e);
}

int endpoint_parse_port(const char *text, struct endpoint *e)
{
	*e = (struct endpoint){.host = "127.0.0.1"};
	if (!read_port(text, e))
		return PS_OK;
	*e = (struct endpoint){.number = 0};
	return PS_EUSAGE;
}

void endpoint_format(const struct endpoint *e, char *out, size_t size)
{
	int six = strchr(e->host, ':') != NULL;

	snprintf(out, size, SCHEME "%s%s%s:%s", six ? "[" : "", e->host, six ? "]" : "", e->port);
}
