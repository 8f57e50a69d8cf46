/* client_opt.c - see client_opt.h. */
#include "common/client_opt.h"
#include <stdio.h>
#include "common/endpoint.h"

int client_opt_check_server(const char *program, const char *server)
{
	struct endpoint e;
	struct err line;

	if (!endpoint_parse(server, &e) && e.number > 0)
		return PS_OK;
	err_set(&line, PS_EUSAGE, "--server: \"%.100s\": expected tcp://HOST:PORT, PORT 1 to 65535",
		server);
	fprintf(stderr, "%s: %s\n", program, line.text);
	return PS_EUSAGE;
}
