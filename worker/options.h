/*
 * options.h - the command line of cnn-worker, and the rows that cnn-ctl shares with it.
 *
 * Thread: main, at start-up.
 */
#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H
#include <stdint.h>
#include "common/err.h"
#include "common/opt.h"

struct worker_options {
	const char *server, *data, *device, *name; /* data NULL: look in the usual places */
	const char *key, *server_key;              /* files; NULL: not given */
	int64_t threads, connect_ms, patience_ms, hang_ms, replay_mb;
	int precision; /* enum kx_precision */
	int log_level; /* enum log_level */
};

#define OPTIONS_SERVER_ROW(to)                                                                     \
	{                                                                                          \
		.name = "server", .type = OPT_TEXT, .dest = (to), .def = "tcp://127.0.0.1:5555",   \
		.min = 1, .max = 255, .arg = "URL",                                                \
		.help = "where the server listens: tcp://HOST:PORT"                                \
	}
#define OPTIONS_KEY_ROW(to)                                                                        \
	{                                                                                          \
		.name = "key", .type = OPT_TEXT, .dest = (to), .min = 1, .max = 4000,              \
		.arg = "FILE",                                                                     \
		.help = "own secret key (cnn-ctl keygen), where the server has one; without it "   \
			"traffic is not encrypted"                                                 \
	}
#define OPTIONS_SERVER_KEY_ROW(to)                                                                 \
	{                                                                                          \
		.name = "server-key", .type = OPT_TEXT, .dest = (to), .min = 1, .max = 4000,       \
		.arg = "FILE",                                                                     \
		.help = "the server's public key; without it server.pub beside --key"              \
	}
#define OPTIONS_DATA_ROW(to)                                                                       \
	{                                                                                          \
		.name = "data", .type = OPT_TEXT, .dest = (to), .min = 1, .max = 4000,             \
		.arg = "DIR",                                                                      \
		.help = "the four IDX files, plain or .gz; without it data/mnist, else Debian's "  \
			"Fashion-MNIST"                                                            \
	}
#define OPTIONS_LOG_ROW(to, level)                                                                 \
	{                                                                                          \
		.name = "log-level", .type = OPT_ENUM, .dest = (to), .def = (level),               \
		.values = LOG_LEVEL_NAMES, .arg = "LEVEL", .help = "how much to say on stderr"     \
	}

/* OPT_RUN, OPT_EXIT, or PS_EUSAGE after saying why on stderr. */
int worker_options_parse(struct worker_options *o, int argc, char **argv) PS_MUST_CHECK;
/* Is `server` tcp://HOST:PORT with a port of 1 to 65535? If not, says so for `program`: PS_EUSAGE.
 */
int options_check_server(const char *program, const char *server) PS_MUST_CHECK;

#endif
