/*
 * options.c - fuzzes the command line of cnn-ps: each line of the input is an argument. The parser
 * opens no file for writing and no port. It would resolve the hosts of --bind and --http, so the
 * target replaces address_reach, and the answer depends only on the text of the host.
 */
#include "common/endpoint.h"
#include "common/opt.h"
#include "server/config/options.h"
#include "server/net/address.h"
#include "tests/support/fuzz_input.h"

/* Replaces the function of server/net/address.c. */
enum address_reach address_reach(const char *host)
{
	return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ? ADDRESS_LOOPBACK
	       : strcmp(host, "none") == 0                               ? ADDRESS_UNKNOWN
									 : ADDRESS_OPEN;
}

/* Check that the server can use the addresses, and that only keys, --insecure or a token open them
 * to the network. */
static void check_accepted_addresses(const struct options *o)
{
	struct endpoint e;

	PS_ASSERT(endpoint_parse(o->bind, &e) == PS_OK);
	PS_ASSERT(o->key || o->insecure || address_reach(e.host) == ADDRESS_LOOPBACK);
	if (!o->http)
		return;
	PS_ASSERT(endpoint_parse_address(o->http, &e) == PS_OK ||
		  endpoint_parse_port(o->http, &e) == PS_OK);
	PS_ASSERT(o->http_token || address_reach(e.host) == ADDRESS_LOOPBACK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct options o;
	static char text[32][256];
	struct input in = {data, size};
	char *argv[34] = {(char[]){"cnn-ps"}};
	int argc = 1;

	while (in.left && argc < 33) {
		input_line(&in, text[argc - 1], sizeof(text[0]));
		argv[argc] = text[argc - 1];
		argc++;
	}
	int rc = options_parse(&o, argc, argv);
	PS_ASSERT(rc == OPT_RUN || rc == OPT_EXIT || rc == PS_EUSAGE);
	if (rc == OPT_RUN) {
		PS_ASSERT(o.core.n_params > 0 && o.core.n_params <= WIRE_MAX_PARAMS);
		PS_ASSERT(core_bytes(&o.core) > 0);
		check_accepted_addresses(&o);
	}
	return 0;
}
