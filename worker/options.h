/*
 * options.h - the command line of cnn-worker, and the rows of options that cnn-ctl shares with it.
 *
 * Thread: main, at start-up.
 */
#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H
#include <stdint.h>
#include "common/err.h"
#include "common/opt.h"

struct worker_options {
	const char *server, *data, *device, *name; /* data NULL: search the usual directories */
	const char *key, *server_key;              /* key files, or NULL */
	int64_t threads, connect_timeout_ms, disconnect_timeout_ms, batch_timeout_ms, grace_ms,
		device_timeout_ms, replay_mb, data_mb;
	int precision, kernels; /* enums kx_precision, kx_kernels */
	int print_data_id;
	int lane;                  /* enum cnnps_lane */
	int log_level, log_format; /* enums of common/log.h */
};

#define OPTIONS_SERVER_ROW(to, when)                                                               \
	{                                                                                          \
		.name = "server", .type = OPT_TEXT, .dest = (to), .def = "tcp://127.0.0.1:5555",   \
		.min = 1, .max = 255, .arg = "URL",                                                \
		.help = "address of the server: tcp://HOST:PORT", .needs = (when)                  \
	}
#define OPTIONS_KEY_ROW(to, when)                                                                  \
	{                                                                                          \
		.name = "key", .type = OPT_TEXT, .dest = (to), .min = 1, .max = 4000,              \
		.arg = "FILE",                                                                     \
		.help = "file with the secret key of this program (made by cnn-ctl keygen); "      \
			"needed if the server has a key",                                          \
		.unset = "no encryption", .needs = (when)                                          \
	}
#define OPTIONS_SERVER_KEY_ROW(to, when)                                                           \
	{                                                                                          \
		.name = "server-key", .type = OPT_TEXT, .dest = (to), .min = 1, .max = 4000,       \
		.arg = "FILE", .help = "public key of the server",                                 \
		.unset = "the file \"server.pub\" beside the file of --key", .needs = (when)       \
	}
#define OPTIONS_DATA_ROW(to, when)                                                                 \
	{                                                                                          \
		.name = "data", .type = OPT_TEXT, .dest = (to), .min = 1, .max = 4000,             \
		.arg = "DIR",                                                                      \
		.help = "directory of the data set: four IDX files, plain or .gz; if DIR has "     \
			"several splits of EMNIST, add the name of one: DIR/emnist-letters",       \
		.unset = "data/mnist, else Debian's Fashion-MNIST", .needs = (when)                \
	}
#define OPTIONS_LOG_ROW(to, level)                                                                 \
	{                                                                                          \
		.name = "log-level", .type = OPT_ENUM, .dest = (to), .def = (level),               \
		.values = LOG_LEVEL_NAMES, .arg = "LEVEL",                                         \
		.help = "least severe level that is logged on stderr"                              \
	}
#define OPTIONS_LOG_FORMAT_ROW(to)                                                                 \
	{                                                                                          \
		.name = "log-format", .type = OPT_ENUM, .dest = (to), .def = "text",               \
		.values = LOG_FORMAT_NAMES, .arg = "FORMAT",                                       \
		.help = "format of log lines: logfmt (text) or JSON objects (json)"                \
	}

/* Parses the command line. Returns OPT_RUN, OPT_EXIT, or PS_EUSAGE after it has printed the errors
 * on stderr. */
int worker_options_parse(struct worker_options *o, int argc, char **argv) PS_MUST_CHECK;
/* Checks that `server` is tcp://HOST:PORT with a port of 1 to 65535. PS_EUSAGE: the endpoint has
 * another form, and the function has printed an error that begins with `program` on stderr. */
int options_check_server(const char *program, const char *server) PS_MUST_CHECK;

#endif
