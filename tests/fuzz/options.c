/*
 * options.c - fuzzes the command line of cnn-ps: each line of the input is an argument. The first
 * argument is --check-config, so the program resolves no host names and opens no files.
 */
#include "common/opt.h"
#include "server/config/options.h"
#include "tests/support/fuzz_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct options o;
	static char text[32][256];
	struct input in = {data, size};
	char *argv[34] = {(char[]){"cnn-ps"}};
	int argc = 1;

	while (in.left && argc < 33) {
		input_line(&in, text[argc - 1], sizeof(text[0]));
		/* an argument with a URL would make the program resolve a host name */
		if (strstr(text[argc - 1], "tcp://") || strstr(text[argc - 1], "http"))
			text[argc - 1][0] = 'x';
		argv[argc] = text[argc - 1];
		argc++;
	}
	int rc = options_parse(&o, argc, argv);
	PS_ASSERT(rc == OPT_RUN || rc == OPT_EXIT || rc == PS_EUSAGE);
	if (rc == OPT_RUN) {
		PS_ASSERT(o.core.n_params > 0 && o.core.n_params <= WIRE_MAX_PARAMS);
		PS_ASSERT(core_bytes(&o.core) > 0);
	}
	return 0;
}
